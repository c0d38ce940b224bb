# SPDX-License-Identifier: MIT
"""One streamed chat request, timed with the client's own clock, and rounds of them."""

import http.client
import json
import threading
import time

TIMEOUT_S = 120


class Answer:
    """prompt_tokens and cached_tokens are the engine's own counts."""

    def __init__(self):
        self.text, self.error = "", None
        self.prompt_tokens = self.cached_tokens = None
        self.ttft_ms = None

    def read(self, event, since):
        delta = (event.get("choices") or [{}])[0].get("delta", {})
        if delta.get("content"):
            if self.ttft_ms is None:
                self.ttft_ms = 1e3 * (time.monotonic() - since)
            self.text += delta["content"]
        usage, timings = event.get("usage"), event.get("timings")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = details.get("cached_tokens")
        if timings:
            self.cached_tokens = timings["cache_n"]
            self.prompt_tokens = timings["cache_n"] + timings["prompt_n"]


def ask(port, body):
    """Never raises for what the other side did: see `error`."""
    answer, data = Answer(), json.dumps(body)
    since = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v1/chat/completions", data,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            answer.error = f"status {response.status}: {response.read(200)!r}"
            return answer
        for line in response:
            if line.startswith(b"data: {"):
                answer.read(json.loads(line[6:]), since)
        if answer.prompt_tokens is None or answer.cached_tokens is None:
            answer.error = "the engine told no counts"
    except (OSError, http.client.HTTPException, ValueError) as e:
        answer.error = f"{type(e).__name__}: {e}"
    finally:
        connection.close()
    return answer


class Round:
    """Closed loop: each client asks as soon as it has its answer. Requests begin in the
    given order, but none of a thread before the one before it has ended."""

    def __init__(self, workload, state, order, port, extra):
        self.workload, self.state, self.port, self.extra = workload, state, port, extra
        self.waiting, self.busy = list(order), set()
        self.answers, self.failure = [], None
        self.changed = threading.Condition()

    def _take(self):
        with self.changed:
            while self.waiting and not self.failure:
                for i, thread in enumerate(self.waiting):
                    if thread not in self.busy:
                        self.busy.add(thread)
                        return self.waiting.pop(i)
                self.changed.wait()
        return None

    def _client(self):
        try:
            while (thread := self._take()) is not None:
                body = self.workload.request(self.state, thread, self.workload.seed)
                answer = ask(self.port, {**body, **self.extra})
                with self.changed:
                    self.workload.answered(self.state, thread, answer.text)
                    self.answers.append(answer)
                    self.busy.discard(thread)
                    self.changed.notify_all()
        except Exception as e:  # noqa: BLE001: told by run()
            with self.changed:
                self.failure = e
                self.changed.notify_all()

    def run(self, clients):
        """All answers, in the order in which they came."""
        threads = [threading.Thread(target=self._client, daemon=True)
                   for _ in range(clients)]
        for t in threads:
            t.start()
        try:
            for t in threads:
                while t.is_alive():
                    t.join(0.2)  # Ctrl-C gets through
        except KeyboardInterrupt:
            with self.changed:
                self.waiting.clear()
            raise
        if self.failure:
            raise self.failure
        return self.answers
