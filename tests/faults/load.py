# SPDX-License-Identifier: MIT
"""Clients that ask all the time, and know what the right answer is.

Texts are made from the seed. What an engine that holds nothing answers to each body is
asked of a second engine, once. Every request is asked again until its answer was whole;
whatever else comes must have its excuse: a gateway that was killed meanwhile, an engine
that was killed or misbehaves. Trouble of the cache is none.
"""

import atexit
import collections
import json
import random
import re
import threading

import engines
from harness import CHAT, Client, fetch, request_bytes, stream_events, wait_until
from lab_engine import answer_text, sse

MARK = "sekret"       # in every prompt; never in a log
ANSWER_TOKENS = 12
PATIENCE_S = 60       # of one request, on a busy machine
WORDS = ("harbour tide ledger copper lantern orchard mountain river letter window silver "
         "garden engine signal thunder marble velvet cipher meadow anchor").split()


class Question:
    """One body for one API."""

    def __init__(self, path, body, stream=False):
        self.path, self.body, self.stream = path, body, stream
        self.key = (path, json.dumps(body, sort_keys=True))

    def bytes(self):
        body = self.body | {"stream": True} if self.stream else self.body
        return request_bytes("POST", self.path, json.dumps(body).encode(),
                             (("Content-Type", "application/json"),))


CONTEXT = 2048        # its length changes the weights that are drawn
_twins, _right, _right_lock = {}, {}, threading.Lock()


def twin(weights):
    """An engine for right answers, one for all rounds."""
    with _right_lock:
        if weights not in _twins:
            _twins[weights] = engines.Lab(context=CONTEXT, seed=weights).start()
            atexit.register(_twins[weights].stop)
        return _twins[weights]


def right_answer(question, weights):
    """What an engine with these weights says that has computed every token itself."""
    key = (weights, question.key)
    if key not in _right:
        answer = fetch(twin(weights).port, "POST", question.path,
                       question.body | {"cache_prompt": False}, timeout=PATIENCE_S)
        assert answer.status == 200, answer.body
        with _right_lock:
            _right[key] = answer_text(question.path, answer.json())
    return _right[key]


def text_so_far(path, body):
    """Text of a stream, whole or not, and whether it has ended."""
    whole = body[:body.rfind(b"\n\n") + 2]
    if path == CHAT:
        text = "".join(c["delta"].get("content") or "" for e in stream_events(whole)
                       for c in e.get("choices", ()))
        return text, b"data: [DONE]" in whole
    text, ended = "", False
    for name, event in sse(whole):
        if path == "/v1/messages":
            text += event.get("delta", {}).get("text", "") if event else ""
            ended |= name == "message_stop"
        else:
            text += "".join(c["text"] for c in event["choices"]) if event else ""
            ended |= name == "done"
    return text, ended


class Texts:
    """Documents with several questions, chats that grow, all with a common start."""

    def __init__(self, rng, documents=4, chats=3):
        self.rng = rng
        self.system = self.words(90)
        self.documents = [self.words(160) for _ in range(documents)]
        self.chats = [self.words(30) for _ in range(chats)]

    def words(self, n_bytes):
        out = [MARK]
        while sum(map(len, out)) + len(out) < n_bytes:
            out.append(self.rng.choice(WORDS) + str(self.rng.randrange(100)))
        return " ".join(out)

    def renew(self):
        """A document nobody has seen takes the place of another."""
        self.documents[self.rng.randrange(len(self.documents))] = self.words(160)
        self.chats[self.rng.randrange(len(self.chats))] = self.words(30)

    @staticmethod
    def about(document, n, api):
        """One of the questions about a document."""
        text = f"{document}\n\nquestion {n}"
        if api == "completions":
            return Question("/v1/completions", {"prompt": text, "max_tokens": ANSWER_TOKENS})
        path = "/v1/messages" if api == "messages" else CHAT
        return Question(path, {"model": "lab", "max_tokens": ANSWER_TOKENS,
                               "messages": [{"role": "user", "content": text}]})

    def chat(self, opening, turns, weights):
        """A chat in its nth turn: earlier answers are what was answered."""
        messages = [{"role": "system", "content": self.system}]
        for turn in range(turns):
            messages.append({"role": "user", "content": f"{opening} turn {turn}"})
            question = Question(CHAT, {"model": "lab", "max_tokens": ANSWER_TOKENS,
                                       "messages": list(messages)})
            if turn + 1 < turns:
                messages.append({"role": "assistant",
                                 "content": right_answer(question, weights)})
        return question

    def pick(self, rng, weights):
        if rng.random() < 0.6:
            question = self.about(rng.choice(self.documents), rng.randrange(4),
                                  rng.choice(("completions", "messages", "chat", "chat")))
        else:
            question = self.chat(rng.choice(self.chats), rng.randrange(1, 4), weights)
        question.stream = rng.random() < 0.5
        return question


class Wrong(Exception):
    """What must never happen."""


class Asker:
    """Asks until the answer is whole. `world` tells what may excuse a failure."""

    def __init__(self, world, leavers=0.0):
        self.world, self.leavers = world, leavers
        self.count, self.lock = collections.Counter(), threading.Lock()

    def _add(self, **what):
        with self.lock:
            self.count.update(what)

    def ask(self, question, rng):
        leaves = question.stream and rng.random() < self.leavers
        for attempt in range(50):
            wait_until(self.world.is_up.is_set, "a gateway that runs", PATIENCE_S)
            before = self.world.moment()
            outcome, detail = self._attempt(question, rng.randrange(1, 4) if leaves else 0,
                                            before)
            self._add(**{outcome: 1})
            if outcome in ("right", "left"):
                return
            self._excuse(outcome, detail, before)
        raise Wrong(f"no answer in {attempt + 1} attempts, last {outcome}: {detail}")

    def _excuse(self, outcome, detail, before):
        """A failure that nothing explains is one of the gateway."""
        why = self.world.excuses(before)
        if "gateway" in why or ("engine" in why and outcome != "no answer"):
            return
        raise Wrong(f"{outcome} without a reason: {detail}")

    def _attempt(self, question, leave_after, before):
        """Outcome and what it was."""
        try:
            with Client(self.world.gateway.port, PATIENCE_S) as client:
                client.send(question.bytes())
                if leave_after:
                    return self._leave(client, question, leave_after, before)
                answer = client.read_answer("POST")
        except (OSError, EOFError) as error:
            if isinstance(error, TimeoutError):
                raise Wrong(f"nothing within {PATIENCE_S} s") from None
            return "no answer", repr(error)
        if answer.status != 200:
            return "refused", f"{answer.status} {answer.body[:200]}"
        if question.stream:
            text, ended = text_so_far(question.path, answer.body)
            whole = answer.complete and ended
        else:
            whole = answer.complete
            text = answer_text(question.path, answer.json()) if whole else ""
        self._compare(question, text, whole, before)
        if not whole:
            return "cut", f"{answer} {answer.body[-200:]}"
        reused = re.findall(rb'"(?:cache_n|cache_read_input_tokens)": ?(\d+)', answer.body)
        self._add(reused_tokens=int(reused[-1]) if reused else 0)
        return "right", ""

    def _leave(self, client, question, events, before):
        answer = client.read_head()
        if answer.status != 200:
            return "refused", f"{answer.status}"
        body, cut = b"", ""
        try:
            for _, (event, _) in zip(range(events), client.events()):
                body += event
        except EOFError as error:
            cut = repr(error)
        self._compare(question, text_so_far(question.path, body)[0], False, before)
        client.abort()
        return ("cut", cut) if cut else ("left", "")

    def _compare(self, question, text, whole, before):
        """Right for the weights of an engine that ran meanwhile."""
        may_be = [right_answer(question, w) for w in self.world.weights_since(before)]
        if not any(text == r if whole else r.startswith(text) for r in may_be):
            raise Wrong(f"WRONG ANSWER {text!r} instead of {may_be} to {question.key}")


class Load(Asker):
    """Clients over one round."""

    def __init__(self, world, requests, clients=3, leavers=0.15):
        super().__init__(world, leavers)
        self.wrong = []
        plans = [[] for _ in range(clients)]
        for i in range(requests):
            plans[i % clients].append(world.texts.pick(world.rng, world.weights))
        self.threads = [threading.Thread(target=self._client, daemon=True,
                                         args=(plan, random.Random(world.rng.random())))
                        for plan in plans]
        for thread in self.threads:
            thread.start()

    def alive(self):
        return sum(t.is_alive() for t in self.threads)

    def running(self):
        return self.alive() > 0

    def join(self):
        for thread in self.threads:
            thread.join(4 * PATIENCE_S)
        if self.running():
            self.wrong.append("a client never got its answer")

    def delivered(self):
        return self.count["right"] + self.count["left"]

    def _client(self, plan, rng):
        try:
            for question in plan:
                self.ask(question, rng)
        except Exception as error:  # pylint: disable=broad-except
            self.wrong.append(f"{type(error).__name__}: {error}")
