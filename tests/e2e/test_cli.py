# SPDX-License-Identifier: MIT
"""What a person can type: the program as a process."""

import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("INCIPIT_BIN", os.path.join(ROOT, "build/release/incipit"))


def incipit(*arguments):
    return subprocess.run([BIN, *arguments], cwd=ROOT, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=60)


class Commands(unittest.TestCase):
    def test_version_is_the_first_line(self):
        done = incipit("version")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout.splitlines()[0], r"^incipit \d+\.\d+\.\d+$")

    def test_help_lists_the_commands(self):
        done = incipit("help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for command in ("serve", "check", "version", "help"):
            self.assertRegex(done.stdout, rf"(?m)^  {command} ")

    def test_without_a_command_it_says_how(self):
        done = incipit()
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("usage: incipit COMMAND", done.stderr)

    def test_unknown_command_names_the_nearest(self):
        done = incipit("chek")
        self.assertEqual(done.returncode, 2)
        self.assertIn('did you mean "check"?', done.stderr)

    def test_unknown_flag_names_the_nearest(self):
        done = incipit("serve", "--upsteam", "http://127.0.0.1:1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean --upstream?", done.stderr)

    def test_serve_without_an_engine_says_what_is_missing(self):
        done = incipit("serve")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--upstream URL", done.stderr)


class Check(unittest.TestCase):
    def check(self, text, *flags):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            return incipit("check", *flags, file.name), file.name

    def test_examples_are_right(self):
        for name in ("conf/incipit.yaml", "conf/minimal.yaml"):
            done = incipit("check", name)
            self.assertEqual((done.returncode, done.stdout), (0, f"{name}: right\n"), done.stderr)

    def test_an_error_names_file_line_and_nearest_key(self):
        done, name = self.check("upstream: http://127.0.0.1:1\nlimits:\n  que: 1\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f'{name}:3: unknown key "limits.que"; did you mean "limits.queue"?',
                      done.stderr)

    def test_what_is_printed_is_a_configuration_that_prints_the_same(self):
        first, _ = self.check("upstream: http://127.0.0.1:1\nlimits: {queue: 7}\n", "--print")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("  queue: 7\n", first.stdout)
        again, _ = self.check(first.stdout, "--print")
        self.assertEqual(again.stdout, first.stdout)

    def test_serve_refuses_what_check_refuses(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("upstream: http://127.0.0.1:1\nworkers: 0\n")
            file.flush()
            done = incipit("serve", "--config", file.name)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f'{file.name}:2: workers: "0" is out of range; allowed: 1 to 64',
                      done.stderr)


if __name__ == "__main__":
    unittest.main()
