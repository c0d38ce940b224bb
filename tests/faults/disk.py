# SPDX-License-Identifier: MIT
"""A disk that fails when it is told to: the test's side of faultfs.c."""

import ctypes
import mmap
import os
import struct

import preload

CLASSES = ("block", "log", "slot")
OPS = ("open", "create", "read", "write", "sync", "rename", "unlink", "mkdir")
RULE = struct.Struct("=IIIIQQ")
FOR_EVER = 0xFFFFFFFF
SHORT, KILL, AFTER = 0x10000, 0x20000, 0x40000


class Disk:
    """Rules, and how often each was followed; they outlive the gateway."""

    def __init__(self, folder, store, slots):
        self.path = os.path.join(folder, "faultfs")
        with open(self.path, "wb") as f:
            f.truncate(len(CLASSES) * len(OPS) * RULE.size)
        with open(self.path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0)
        self.env = {"LD_PRELOAD": preload.build("faults/faultfs.c"), "FAULTFS_CONTROL": self.path,
                    "FAULTFS_STORE": store, "FAULTFS_SLOTS": slots}

    def _at(self, kind, op):
        return (CLASSES.index(kind) * len(OPS) + OPS.index(op)) * RULE.size

    def fail(self, kind, op, what, after=0, times=FOR_EVER, chance=1.0):
        """From now on: errno or one of the words above."""
        at = self._at(kind, op)
        self.map[at:at + 4] = bytes(4)
        struct.pack_into("=IIIQQ", self.map, at + 4, after, times, int(chance * 0xFFFF) + 1,
                         0, 0)
        struct.pack_into("=I", self.map, at, what)

    def mend(self):
        """No faults any more; what was done stays readable."""
        for kind in CLASSES:
            for op in OPS:
                at = self._at(kind, op)
                self.map[at:at + 4] = bytes(4)

    def forget(self):
        self.map[:] = bytes(len(self.map))

    def calls(self, kind, op):
        return RULE.unpack_from(self.map, self._at(kind, op))[4]

    def hits(self, kind=None, op=None):
        return sum(RULE.unpack_from(self.map, self._at(k, o))[5] for k in CLASSES for o in OPS
                   if kind in (None, k) and op in (None, o))

    def close(self):
        self.map.close()


# ---- what is in a store's directory ------------------------------------------------------

class _Hash(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


def _hasher():
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = _Hash
    library.XXH3_128bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)

    def xxh(data):
        h = library.XXH3_128bits(data, len(data))
        return struct.pack("<QQ", h.low, h.high)
    return xxh


_xxh = None


def xxh128(data):
    global _xxh
    _xxh = _xxh or _hasher()
    return _xxh(data)


HEAD = struct.Struct("<8sII16s16s16sIIQ16s")


def hex_of(raw):
    low, high = struct.unpack("<QQ", raw)
    return f"{high:016x}{low:016x}"


def check_block(data, name=None):
    """What is wrong with the bytes of a block file (docs/store.md), or None."""
    if len(data) < HEAD.size + 16:
        return "cut short"
    (magic, version, rows_at, fingerprint, chain, _, _, tokens, rows,
     check) = HEAD.unpack_from(data)
    if magic != b"incipKV\n" or version != 1 or rows_at != 96 + 4 * tokens:
        return "head"
    if len(data) != 96 + 4 * tokens + rows + 16:
        return "size"
    if xxh128(data[:80] + data[96:rows_at]) != check:
        return "checksum of the head"
    if xxh128(data[:-16]) != data[-16:]:
        return "checksum"
    if name and name != (hex_of(fingerprint), hex_of(chain)):
        return "name"
    return None


def block_files(store):
    """{path: (fingerprint, hash)} of all files that have a block's name."""
    out = {}
    top = os.path.join(store, "blocks")
    for folder, _, files in os.walk(top):
        parts = os.path.relpath(folder, top).split(os.sep)
        for f in files if len(parts) == 2 else ():
            if f.endswith(".kv"):
                out[os.path.join(folder, f)] = (parts[0], f[:-3])
    return out


def check_store(store, known_bad=()):
    """(number of blocks, their bytes, what is wrong with which), but for what the test did."""
    bad, size, files = [], 0, block_files(store)
    for path, name in files.items():
        if not os.path.isfile(path) or os.path.islink(path):
            if path not in known_bad:
                bad.append((path, "not a file"))
            continue
        with open(path, "rb") as f:
            data = f.read()
        size += len(data)
        why = check_block(data, name)
        if why and path not in known_bad:
            bad.append((path, why))
    return len(files), size, bad
