# SPDX-License-Identifier: MIT
"""A headless Chromium, where there is one, spoken to over a pipe (its DevTools protocol):
it opens a page at a width and tells what it complained of and what it asked for."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--remote-debugging-pipe")


def program():
    """Its path, None where none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours_in, its_out = os.pipe()
        its_in, ours_out = os.pipe()
        # It reads commands at 3 and writes answers at 4.
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 3<&"$0" 4>&"$IT"', str(its_in), program(), *FLAGS,
             f"--user-data-dir={self.folder.name}", "about:blank"],
            env={**os.environ, "IT": str(its_out)}, pass_fds=(its_in, its_out),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(its_in)
        os.close(its_out)
        self.reader, self.writer = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self.number, self.data, self.events, self.session = 0, b"", [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target,
                                flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def close(self):
        self.session = None
        self.ask("Browser.close")
        self.process.wait()
        self.reader.close()
        self.writer.close()
        self.folder.cleanup()

    def _message(self):
        while b"\0" not in self.data:
            more = self.reader.read1(65536)
            if not more:
                raise RuntimeError("the browser has gone")
            self.data += more
        one, self.data = self.data.split(b"\0", 1)
        return json.loads(one)

    def ask(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        self.writer.write(json.dumps(command).encode() + b"\0")
        self.writer.flush()
        while True:
            message = self._message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def look(self, width, dark=False):
        """The size of the window, and which colours it prefers."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900,
                 deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, path):
        """Shows a file; returns (complaints, addresses that were asked for)."""
        self.events.clear()
        self.ask("Page.navigate", url="file://" + path)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message())
        self.evaluate("document.fonts.ready.then(() => 0)")
        complaints = [e["params"] for e in self.events if e.get("method") in (
            "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")]
        asked = [e["params"]["request"]["url"] for e in self.events
                 if e.get("method") == "Network.requestWillBeSent"]
        return complaints, asked

    def evaluate(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def picture(self, path, height=None):
        """The whole page as PNG: for a person to look at."""
        if height is None:
            height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("innerWidth")
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                        clip={"x": 0, "y": 0, "width": width, "height": height,
                              "scale": 1})["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
