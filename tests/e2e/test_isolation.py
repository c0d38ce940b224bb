# SPDX-License-Identifier: MIT
"""What tenants share, drawn at random and compared with a model of it.

Requests of a few credentials, teams and salts, with and without adapters and pictures,
over chats and messages, ask prompts that begin alike, also side by side and over restarts
of the gateway. The model knows which earlier requests one may share with, and so the most
prompt tokens that the engine may say it has reused: what the longest common start with
one of them comes to. The seed is printed where a test fails; SEED repeats it, and
ISOLATION_REQUESTS asks for more than 80 in each mode.
"""

import os
import random
import threading

from harness import CHAT, ENGINE, Case, chat_body, common, words

REQUESTS = int(os.environ.get("ISOLATION_REQUESTS", "80"))
ANSWER_TOKENS = 3
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 30


class Asked:
    """One request: what it says, whose it is, what of it was reused."""

    def __init__(self, path, body, headers, domain):
        self.path, self.body, self.headers, self.domain = path, body, headers, domain
        self.tokens, self.status, self.reused = [], 0, 0

    def __repr__(self):
        return f"<{self.path} {self.domain} {len(self.tokens)} tokens, {self.reused} reused>"


class Model:
    """Naive: everything that was ever asked, and by whom."""

    def __init__(self):
        self.asked = []

    def most(self, one, beside):
        """Tokens that may be reused: the earlier prompt, and its answer behind it."""
        best = 0
        for other in [*self.asked, *beside]:
            if other is not one and other.domain == one.domain:
                n = common(one.tokens, other.tokens)
                best = max(best, n + ANSWER_TOKENS * (n == len(other.tokens)))
        return best


class Draw:
    """Requests of one mode of isolation."""

    def __init__(self, rng, mode, adapters, pictures):
        self.rng, self.mode = rng, mode
        self.adapters, self.pictures = adapters, pictures
        self.starts = [words(150, f"start {i}") for i in range(2)]
        self.middles = [words(90, f"middle {i}") for i in range(3)]
        self.ends = [words(20, f"end {i}") for i in range(4)]

    def text(self):
        parts = (self.starts, self.middles, self.ends)[:self.rng.randint(1, 3)]
        return " ".join(self.rng.choice(part) for part in parts)

    def content(self):
        text = self.text()
        if self.pictures and self.rng.random() < 0.1:
            return [{"type": "text", "text": text},
                    {"type": "image_url", "image_url": {"url": PICTURE}},
                    {"type": "text", "text": self.rng.choice(self.ends)}]
        return text

    def who(self):
        """Headers, and what of them tells tenants apart in this mode."""
        rng, headers = self.rng, []
        key, team = rng.choice(("", "one", "two")), rng.choice(("", "red", "blue"))
        if key:
            headers.append(rng.choice((("Authorization", f"Bearer {key}"),
                                       ("x-api-key", key))))
        if team:
            headers.append(("X-Team", team))
        tenant = {"credential": key, "header:X-Team": team}.get(self.mode, "")
        return headers, tenant

    def one(self):
        rng = self.rng
        headers, tenant = self.who()
        salt = rng.choice(("", "", "", "x", "y"))
        path = CHAT if rng.random() < 0.75 else "/v1/messages"
        content = self.content() if path == CHAT else self.text()
        body = chat_body([{"role": "user", "content": content}],
                         max_tokens=ANSWER_TOKENS,
                         model=rng.choice(("standin-tiny", "another-name")))
        adapter = 0.0
        if self.adapters and path == CHAT and rng.random() < 0.2:
            adapter = rng.choice((0.25, 0.5))
            body["lora"] = [{"id": 0, "scale": adapter}]
        if salt and path == CHAT and rng.random() < 0.5:
            body["cache_salt"] = salt
        elif salt:
            headers.append(("X-Cache-Salt", salt))
        return Asked(path, body, headers, (tenant, salt, adapter))


class Isolation(Case):
    def ask(self, gateway, one):
        answer = gateway.fetch("POST", one.path, one.body, headers=one.headers)
        one.status = answer.status
        if answer.status != 200:
            return
        usage = answer.json()["usage"]
        one.reused = (usage["cache_read_input_tokens"] if one.path == "/v1/messages"
                      else usage["prompt_tokens_details"]["cached_tokens"])

    def ask_side_by_side(self, gateway, some):
        threads = [threading.Thread(target=self.ask, args=(gateway, one)) for one in some]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def again(self, gateway):
        """The same store, another process."""
        gateway.wait_quiet()
        self.assertEqual(gateway.stop(), 0)
        gateway.start(wait="listening")
        gateway.wait_ready("store")

    def compare(self, model, some):
        for one in some:
            if one.status == 500 and PICTURE in str(one.body):
                continue            # an engine without eyes
            self.assertEqual(one.status, 200, one)
            self.assertLessEqual(one.reused, model.most(one, some), (one, some))
        model.asked += some

    def play(self, mode):
        seed = os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32)
        with self.subTest(mode=mode, seed=seed):
            self.play_with(mode, random.Random(f"{seed} {mode}"))

    def play_with(self, mode, rng):
        standin = ENGINE == "standin"
        more = {"lora": 1} if standin else {}
        engine, gateway = self.pair({"isolation": mode}, mode="store", slots=2, **more)
        draw, model = Draw(rng, mode, standin, standin), Model()
        while len(model.asked) < REQUESTS:
            some = [draw.one() for _ in range(rng.choice((1, 2, 3, 4)))]
            for one in some:
                one.tokens = engine.prompt_of(one.body)
            self.ask_side_by_side(gateway, some)
            self.compare(model, some)
            if rng.random() < 0.6:
                gateway.wait_quiet()
            if rng.random() < 0.03:
                self.again(gateway)
        gateway.wait_quiet()
        # Nothing reused at all would be right as well, and prove nothing.
        could = sum(model.most(one, ()) > 100 for one in model.asked)
        did = sum(one.reused > 100 for one in model.asked)
        self.assertGreater(did, could // 10, f"{did} of {could} that could")

    def test_credentials(self):
        self.play("credential")

    def test_values_of_a_header(self):
        self.play("header:X-Team")

    def test_salts(self):
        self.play("salt")

    def test_one_for_all(self):
        self.play("shared")
