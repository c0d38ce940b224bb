# SPDX-License-Identifier: MIT
"""A toy language model for the stand-in engine: tokenizer, chat template, "weights".

Nothing here is learned, everything is exact. The state of a token is a 64-byte digest of
the state before it and the token, so a state belongs to one prefix under one set of
weights and to no other, and anybody who has the tokens can check it. The next token is
read from the last state: a wrong state gives wrong answers, as it would in an engine.

The tokenizer has the property that makes real ones awkward: the tokens of a text's start
need not be the start of the text's tokens (" riv" + "er" is not " river").
"""

import base64
import hashlib
import json
import re

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
           "<think>", "</think>"]
END_OF_TEXT, IM_START, IM_END = 0, 1, 2
FIRST_BYTE = len(SPECIAL)

WORDS = """the of and to in is that for it as was with be by on not he his but at are this
have from or had an they which one you were all her she there would their we him been has
when who will no more if out so up said what its about than into them can only other time
new some could these two may first then do any like my now over such our man me even most
made after also did many off before must well back through years much where your way down
should because long each just state those people too mr how little good world make very
year still see own work men day get here between both life being under three never know
same last another while us might great go come since against right came take used himself
few house use place during high without again home around small however found part school
general line river bank stone paper table window garden letter number answer question
system user assistant tool weather city name value text data list result price order water
light music train bridge winter summer morning evening coffee bread green blue red black
document section chapter article notes please tell write read open close begin end north
south east west street road mountain valley forest field island harbour ship captain crew
engine wheel clock mirror candle kitchen doctor teacher student lesson story ending reason
idea plan change level point center history science nature animal bird horse dog cat fish
cloud rain snow wind storm fire earth gold silver iron glass wood leather cotton silk salt
ing tion ment able ness ful less ous ive est pre con dis com""".split()


def _vocabulary():
    pieces = [s.encode() for s in SPECIAL] + [bytes([b]) for b in range(256)]
    known = set(pieces)
    for word in WORDS:
        for form in (word, " " + word, word.capitalize(), " " + word.capitalize()):
            if form.encode() not in known:
                known.add(form.encode())
                pieces.append(form.encode())
    for n in range(100):
        pieces.append(f"{n:02d}".encode())
    for run in ("\n\n", "  ", "    ", ", ", ". ", '": ', '",', "{\"", "\"}"):
        if run.encode() not in known:
            pieces.append(run.encode())
    return pieces


PIECES = _vocabulary()
IDS = {piece: i for i, piece in reversed(list(enumerate(PIECES)))}
N_VOCAB = len(PIECES)
ANSWER_IDS = [IDS[(" " + w).encode()] for w in WORDS if len(w) > 3]
LONGEST = max(len(p) for p in PIECES[FIRST_BYTE:])

_SPLIT = re.compile("|".join(re.escape(s) for s in SPECIAL).encode()
                    + rb"| ?[A-Za-z]+|[0-9]{2}|\n\n| {4}| {2}|, |\. |\": |\",|\{\"|\"\}|[\x00-\xff]",
                    re.S)


def _merge(chunk, known={}):
    """Longest pieces first from the left; remembered, since words come again."""
    tokens = known.get(chunk)
    if tokens is None:
        tokens, at = [], 0
        while at < len(chunk):
            for size in range(min(LONGEST, len(chunk) - at), 0, -1):
                token = IDS.get(chunk[at:at + size])
                if token is not None and (token >= FIRST_BYTE or size == len(chunk)):
                    break
            tokens.append(token)
            at += size
        if len(known) < 100000:
            known[chunk] = tokens
    return tokens


def tokenize(text):
    data = text.encode() if isinstance(text, str) else text
    tokens = []
    for chunk in _SPLIT.findall(data):
        tokens += _merge(chunk)
    return tokens


def token_bytes(token):
    return PIECES[token] if isinstance(token, int) and 0 <= token < N_VOCAB else b""


def detokenize(tokens):
    return b"".join(token_bytes(t) for t in tokens).decode(errors="replace")


# ---- media -----------------------------------------------------------------------------

MEDIA_TOKENS = 16


def media_tokens(value):
    """A picture or sound: places in the sequence that equal those of the same bytes only."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
    return [(digest, i) for i in range(MEDIA_TOKENS)]


# ---- weights ---------------------------------------------------------------------------

class Weights:
    """One model: `seed` stands for its weights, `adapters` for LoRA and its scales."""

    def __init__(self, seed, adapters=()):
        self.root = hashlib.blake2b(repr((seed, tuple(adapters))).encode()).digest()

    def extend(self, states, tokens):
        """States of `tokens` behind those of `states`, which is extended in place."""
        state = states[-1] if states else self.root
        blake = hashlib.blake2b
        for token in tokens:
            state = blake(state + (b"%d" % token if isinstance(token, int)
                                   else repr(token).encode())).digest()
            states.append(state)

    def first_wrong(self, states, tokens):
        """Index of the first state that is not that of its prefix, or None."""
        right = []
        self.extend(right, tokens)
        return next((i for i, pair in enumerate(zip(states, right)) if pair[0] != pair[1]),
                    None)


def next_token(state):
    return ANSWER_IDS[int.from_bytes(state[:4], "little") % len(ANSWER_IDS)]


def log_probabilities(state, n):
    """The n most probable next tokens, best first; depends on every bit of the state."""
    first = int.from_bytes(state[:4], "little")
    digest = hashlib.blake2b(state, digest_size=6).digest()
    step = 1 + digest[4] % 16
    spread = int.from_bytes(digest[:4], "little")
    out = []
    for i in range(n):
        token = ANSWER_IDS[(first + i * step) % len(ANSWER_IDS)]
        out.append((token, round(-0.5 - i - spread / 2 ** 33, 9)))
    return out


# ---- rows ------------------------------------------------------------------------------

LAYERS = 2
ROW_BYTES = 32
TYPE_F16 = 1


def k_row(state, layer):
    return state[:32] if layer == 0 else state[31::-1]


def v_row(state, layer):
    return state[32:] if layer == 0 else state[:31:-1]


def state_of_rows(k, v):
    """The state that these rows (one per layer) stand for, or None where they differ."""
    state = k[0] + v[0]
    same = all(k_row(state, i) == k[i] and v_row(state, i) == v[i] for i in range(LAYERS))
    return state if same else None


# ---- the chat template -------------------------------------------------------------------

TOOLS_HEAD = "# Tools\n\nYou may call these functions:\n<tools>\n"
TOOLS_TAIL = "\n</tools>"
MEDIA_MARK = "<__media__>"


def content_text(content, media):
    """A message's content as text; pictures become marks and are collected in `media`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text"):
            texts.append(part.get("text") or "")
        elif kind in ("image_url", "image", "input_audio", "input_image"):
            media.append(part)
            texts.append(MEDIA_MARK)
        elif kind == "tool_result":
            texts.append(content_text(part.get("content"), media))
        elif kind == "tool_use":
            texts.append(_tool_call(part.get("name"), part.get("input")))
        elif kind == "thinking":
            pass
        else:
            raise ValueError("unsupported content[].type")
    return "\n".join(texts)


def _tool_call(name, arguments):
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return '<tool_call>\n{"name": %s, "arguments": %s}\n</tool_call>' % (
        json.dumps(name), arguments)


def _message_text(message, media):
    text = content_text(message.get("content"), media)
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        text += ("\n" if text else "") + _tool_call(function.get("name"),
                                                    function.get("arguments"))
    return text


def render(messages, tools=None, order="system-first", add_generation_prompt=True):
    """ChatML. Returns the text, with marks for media, and the media in order."""
    media, out = [], []

    def say(role, text):
        out.append(f"<|im_start|>{role}\n{text}<|im_end|>\n")

    tool_text = ""
    if tools:
        tool_text = TOOLS_HEAD + "\n".join(json.dumps(t) for t in tools) + TOOLS_TAIL
    rest = list(messages)
    system = []
    while rest and rest[0].get("role") in ("system", "developer"):
        system.append(_message_text(rest.pop(0), media))
    system = "\n".join(system)
    last_user = max((i for i, m in enumerate(rest) if m.get("role") == "user"), default=0)
    if order == "tools-late":
        if system:
            say("system", system)
    else:
        parts = [system, tool_text] if order == "system-first" else [tool_text, system]
        if any(parts):
            say("system", "\n\n".join(p for p in parts if p))
    for i, message in enumerate(rest):
        if order == "tools-late" and tool_text and i == last_user:
            say("system", tool_text)
        text = _message_text(message, media)
        reasoning = message.get("reasoning_content")
        if isinstance(reasoning, str) and i > last_user:
            text = f"<think>\n{reasoning}\n</think>\n\n{text}"
        say(message.get("role", "user"), text)
    if add_generation_prompt:
        out.append("<|im_start|>assistant\n")
    return "".join(out), media


def prompt_tokens(text, media):
    """Tokens of a rendered prompt, each mark replaced by its picture's places."""
    if not media:
        return tokenize(text)
    tokens, parts = [], text.split(MEDIA_MARK)
    for i, part in enumerate(parts):
        tokens += tokenize(part)
        if i < len(media) and i + 1 < len(parts):
            tokens += media_tokens(media[i])
    return tokens


def media_blob(token):
    return base64.b64encode(token[0].encode())
