# SPDX-License-Identifier: MIT
"""The lesson of the KV cache: `incipit lab` as a process, and on a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("INCIPIT_BIN", os.path.join(ROOT, "build/release/incipit"))
PATIENCE_S = 60
LEFT, RIGHT, HOME, END = b"\x1b[D", b"\x1b[C", b"\x1b[H", b"\x1b[F"
LEAVE = b"\x1b[?1049l"


def lab(*arguments):
    return subprocess.run([BIN, "lab", *arguments], cwd=ROOT, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=PATIENCE_S)


class Printed(unittest.TestCase):
    def test_plain_text_says_153_21_and_exactly_0(self):
        done = lab()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("13 + 14 + ... + 21 = 153 positions computed", done.stdout)
        self.assertRegex(done.stdout, r"13 \+ 8 +=  21 positions computed")
        self.assertIn("Largest difference of a logit in all 9 passes: exactly 0.", done.stdout)
        self.assertNotIn("\x1b", done.stdout)

    def test_json(self):
        done = lab("--json")
        said = json.loads(done.stdout)
        self.assertEqual(said["total"]["without"]["projections"], 153)
        self.assertEqual(said["total"]["with"]["projections"], 21)
        self.assertEqual(said["total"]["difference"], 0)
        self.assertEqual([p["positions"] for p in said["passes"]], list(range(13, 22)))
        self.assertEqual({q["difference"] for q in said["requests"]}, {0})
        kept = [q["kept"] for q in said["requests"]]
        self.assertGreater(kept[1], 300)
        self.assertLess(kept[2], 20)
        self.assertGreater(kept[4], 300)

    def test_page_is_one_file_that_loads_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lesson.html")
            done = lab("--html", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(os.listdir(folder), ["lesson.html"])
            with open(path, encoding="utf-8") as file:
                page = file.read()
        self.assertTrue(page.startswith("<!doctype html>"))
        self.assertNotRegex(page, r"https?:|src=|href=|url\(|@import|fetch\(")
        self.assertIn('type="range" min="1" max="9"', page)
        data = re.search(r'(?s)<script type="application/json" id="lesson">(.*?)</script>', page)
        self.assertEqual(json.loads(data[1])["total"]["without"]["projections"], 153)

    def test_page_that_cannot_be_written(self):
        done = lab("--html", "/nowhere/lesson.html")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("/nowhere/lesson.html: No such file", done.stderr)

    def test_one_form_at_a_time(self):
        done = lab("--json", "--plain")
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: incipit lab", done.stderr)


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, *arguments, rows=24):
        try:
            self.master, self.slave = pty.openpty()
        except OSError as why:
            raise unittest.SkipTest(f"no pseudo-terminal is to be had: {why}")
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.child = subprocess.Popen([BIN, "lab", *arguments], stdin=self.slave,
                                      stdout=self.slave, stderr=self.slave,
                                      env=dict(os.environ, TERM="xterm"),
                                      preexec_fn=self.as_from_a_shell)

    @staticmethod
    def as_from_a_shell():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)   # nohup makes it ignored

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.master)
        os.close(self.slave)

    def until(self, wanted):
        """What came, up to and with `wanted`."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f"no {wanted!r} in {self.seen!r}")
            self.seen += os.read(self.master, 65536)
        came, self.seen = self.seen.split(wanted, 1)
        return came + wanted

    def screen(self, number):
        """The text of the screen that says this number at its foot."""
        came = self.until(b" %d of 14 " % number)
        self.until(b"q: quit")
        return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", came).decode()

    def press(self, keys):
        os.write(self.master, keys)

    def ended(self):
        """Exit status; the terminal has to be as it was."""
        self.until(LEAVE)
        status = self.child.wait(PATIENCE_S)
        if termios.tcgetattr(self.slave) != self.before:
            raise AssertionError("the terminal was not put back")
        return status


class Walked(unittest.TestCase):
    def test_arrow_keys_walk_through_the_passes(self):
        with Terminal() as t:
            self.assertIn("What a KV cache does", t.screen(1))
            t.press(RIGHT)
            self.assertRegex(t.screen(2), r"Pass 1 of 9: prefill[\s\S]*computed +13 +13")
            t.press(RIGHT)
            self.assertRegex(t.screen(3), r"Pass 2 of 9: decode[\s\S]*computed +14 +1\b")
            t.press(LEFT)
            self.assertIn("Pass 1 of 9", t.screen(2))
            t.press(b"\x1bOC")
            self.assertIn("Pass 2 of 9", t.screen(3))
            t.press(b"q")
            self.assertEqual(t.ended(), 0)

    def test_the_sum_behind_the_passes(self):
        with Terminal() as t:
            t.screen(1)
            t.press(RIGHT * 10)
            for number in range(2, 12):
                last = t.screen(number)
            self.assertRegex(last, r"= 153 positions[\s\S]*=  21 positions[\s\S]*exactly 0\.")
            t.press(b"q")
            self.assertEqual(t.ended(), 0)

    def test_first_and_last_screen_are_ends(self):
        with Terminal() as t:
            t.screen(1)
            t.press(LEFT)
            t.screen(1)
            t.press(END)
            self.assertIn("What one changed byte costs", t.screen(14))
            t.press(RIGHT)
            t.screen(14)
            t.press(HOME)
            t.screen(1)
            t.press(b"\x1b")
            self.assertEqual(t.ended(), 0)

    def test_ctrl_c_and_end_of_input_put_the_terminal_back(self):
        for key in (b"\x03", b"\x04"):
            with self.subTest(key=key), Terminal() as t:
                t.screen(1)
                t.press(key)
                self.assertEqual(t.ended(), 0)

    def test_signals_put_the_terminal_back(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=number), Terminal() as t:
                t.screen(1)
                t.child.send_signal(number)
                self.assertEqual(t.ended(), -number)

    def test_another_size_is_drawn_anew(self):
        with Terminal(rows=10) as t:
            self.assertNotIn("measured while it runs", t.screen(1))
            fcntl.ioctl(t.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
            t.child.send_signal(signal.SIGWINCH)
            self.assertIn("measured while it runs", t.screen(1))
            t.press(b"q")
            self.assertEqual(t.ended(), 0)

    def test_plain_on_a_terminal_prints_text(self):
        with Terminal("--plain") as t:
            came = t.until(b"for a model of yours.")
            self.assertIn(b"= 153 positions computed", came)
            self.assertNotIn(b"\x1b", came)
            self.assertEqual(t.child.wait(PATIENCE_S), 0)


if __name__ == "__main__":
    unittest.main()
