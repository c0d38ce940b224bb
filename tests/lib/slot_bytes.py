# SPDX-License-Identifier: MIT
"""Slot files as llama-server writes them: the bytes, both ways.

    magic, version, W, W payload words (marker, 1, n, n token ids, media)
    streams; for each: cells, cells × (pos, 1, slot)   [once a stream has cells:]
    V transposed, layers, (u64 0 in version 4), layers × K, layers × V

Where V is transposed, a layer of it is type, bytes of an element, elements, and then a row for
each element instead of one for each token. With a sliding window the streams come a second
time, with cells of the last tokens only.
"""

import struct

import toy_model as model

MAGIC = 0x67677371
MARKER = 0xFFFFFFFF
MEDIA_ID = 0xFFFFFFFF
ELEMENT = 2


class Damaged(Exception):
    """The frame makes no sense: llama-server answers 400 and empties the slot."""


class CutShort(Exception):
    """The state ends early: llama-server dies on an assertion."""


def _media_words(tokens):
    """The list of media: for each its start and a blob, padded to whole words."""
    starts = [(i, t) for i, t in enumerate(tokens) if not isinstance(t, int) and t[1] == 0]
    out = struct.pack("<I", len(starts))
    for start, token in starts:
        blob = model.media_blob(token)
        blob += b"\0" * (-len(blob) % 4)
        out += struct.pack("<II", start, len(blob)) + blob
    return out


def _turned(rows, size):
    """Element i of each row, for each i."""
    return [b"".join(row[i:i + ELEMENT] for row in rows) for i in range(0, size, ELEMENT)]


def _cache(states, first, version, streams, slot, v_transposed):
    """Streams of which one has these states, at the positions from `first` on."""
    out = [struct.pack("<I", streams)]
    for s in range(streams):
        cells = len(states) if s == (slot if streams > 1 else 0) else 0
        out.append(struct.pack("<I", cells))
        if cells == 0:
            continue
        out += [struct.pack("<3I", pos, 1, slot) for pos in range(first, first + cells)]
        out.append(struct.pack("<2I", v_transposed, model.LAYERS))
        if version == 4:
            out.append(struct.pack("<Q", 0))
        for row, turn in ((model.k_row, False), (model.v_row, v_transposed)):
            for layer in range(model.LAYERS):
                rows = [row(state, layer) for state in states]
                shape = (ELEMENT, model.ROW_BYTES // ELEMENT) if turn else (model.ROW_BYTES, 0)
                out.append(struct.pack("<3I", model.TYPE_F16, *shape))
                out += _turned(rows, model.ROW_BYTES) if turn else rows
    return out


def write(tokens, states, version=2, streams=1, slot=0, v_transposed=0, window=0):
    n = len(tokens)
    ids = [t if isinstance(t, int) else MEDIA_ID for t in tokens]
    payload = struct.pack(f"<3I{n}I", MARKER, 1, n, *ids) + _media_words(tokens)
    out = [struct.pack("<3I", MAGIC, version, len(payload) // 4), payload]
    out += _cache(states, 0, version, streams, slot, v_transposed)
    if window:
        first = max(0, n - window)
        out += _cache(states[first:], first, version, streams, slot, v_transposed)
    return b"".join(out)


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size, error):
        if self.at + size > len(self.data):
            raise error("unexpected end")
        self.at += size
        return self.data[self.at - size:self.at]

    def u32(self, error=CutShort):
        return struct.unpack("<I", self.take(4, error))[0]

    def u64(self):
        return struct.unpack("<Q", self.take(8, CutShort))[0]


def _require(condition, what):
    if not condition:
        raise Damaged(what)


def _read_tokens(r, version):
    _require(r.u32(Damaged) == MAGIC, "magic")
    _require(r.u32(Damaged) == version, "version")
    n_words = r.u32(Damaged)
    words = struct.unpack(f"<{n_words}I", r.take(4 * n_words, Damaged))
    _require(n_words >= 4 and words[0] == MARKER and words[1] == 1, "payload")
    n = words[2]
    _require(n_words == n + 4 and words[-1] == 0, "token count or media")
    _require(all(t < model.N_VOCAB for t in words[3:-1]), "token outside the vocabulary")
    return list(words[3:-1])


def _read_rows(r, n, turned=False):
    shape = (ELEMENT, model.ROW_BYTES // ELEMENT) if turned else (model.ROW_BYTES, 0)
    step = n * ELEMENT if turned else model.ROW_BYTES
    rows = []
    for _ in range(model.LAYERS):
        _require((r.u32(), r.u32(), r.u32()) == (model.TYPE_F16, *shape), "row type or size")
        block = r.take(n * model.ROW_BYTES, CutShort)
        lines = [block[i:i + step] for i in range(0, len(block), step)]
        rows.append(_turned(lines, step) if turned else lines)
    return rows


def _read_cache(r, n, version, streams, v_transposed, some):
    """States of the last tokens of n; of all, unless `some` will do."""
    _require(r.u32() == streams, "streams")
    states, found = [], n == 0
    for _ in range(streams):
        cells = r.u32()
        if cells == 0:
            continue
        _require(not found and (cells == n or (some and cells < n)), "cells")
        found = True
        for pos in range(n - cells, n):
            _require(struct.unpack("<3I", r.take(12, CutShort))[:2] == (pos, 1), "cell")
        _require((r.u32(), r.u32()) == (v_transposed, model.LAYERS), "layers")
        if version == 4:
            _require(r.u64() == 0, "extension")
        k, v = _read_rows(r, cells), _read_rows(r, cells, v_transposed)
        states = [model.state_of_rows([layer[i] for layer in k], [layer[i] for layer in v])
                  for i in range(cells)]
    _require(found, "cells")
    return states


def read(data, version=2, streams=1, v_transposed=0, window=0):
    """Tokens and states of a file, and the position of its window's first cell; a state is None
    where its rows contradict each other.

    Raises Damaged or CutShort. As in the engine, the rows' contents are not checked, but for
    those of a window, which must be the same as those of the tokens' other layers here.
    """
    r = _Reader(data)
    tokens = _read_tokens(r, version)
    states = _read_cache(r, len(tokens), version, streams, v_transposed, False)
    first = 0
    if window:
        last = _read_cache(r, len(tokens), version, streams, v_transposed, True)
        first = len(tokens) - len(last)
        _require(last[-window:] == states[-window:], "window")
    _require(r.at == len(data), "trailing bytes")
    return tokens, states, first
