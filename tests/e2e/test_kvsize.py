# SPDX-License-Identifier: MIT
"""What a KV cache takes: `incipit kvsize` as a process."""

import json
import os
import re
import struct
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("INCIPIT_BIN", os.path.join(ROOT, "build/release/incipit"))
GPT2 = ("--layers", "12", "--kv-heads", "12", "--head-dim", "64")


def kvsize(*arguments):
    return subprocess.run([BIN, "kvsize", *arguments], cwd=ROOT, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=60)


def answer(*arguments):
    done = kvsize(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(words):
    """A header in the shape of SmolLM2-135M with a word list of its own."""
    pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama"),
             text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, words) +
             text("word") * words]
    for key, value in (("block_count", 30), ("embedding_length", 576),
                       ("attention.head_count", 9), ("attention.head_count_kv", 3)):
        pairs.append(text("llama." + key) + struct.pack("<II", 4, value))
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)


class KvSize(unittest.TestCase):
    def test_text_says_what_the_formula_says(self):
        done = kvsize(*GPT2, "--context", "1024")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^a token +36,864 B$")
        self.assertRegex(done.stdout, r"(?m)^1,024 tokens +37,748,736 B \(37\.7 MB, 36\.0 MiB\)$")

    def test_memory_holds_tokens_chats_and_documents(self):
        memory = answer(*GPT2, "--memory", "1GiB", "--chat", "2000")["memory"]
        self.assertEqual(memory, {
            "bytes": 2**30, "tokens": 2**30 // 36864,
            "chats": {"tokens": 2000, "fit": 2**30 // 36864 // 2000},
            "documents": {"tokens": 1000, "fit": 2**30 // 36864 // 1000}})

    def test_the_table_in_the_manual_is_what_is_computed(self):
        rows = 0
        with open(os.path.join(ROOT, "docs/kvsize.md"), encoding="utf-8") as manual:
            table = {m[1]: m for m in re.finditer(
                r"(?m)^\| (\S+/\S+) \| .* \| ([\d,]+)(?:, then ([\d,]+))? \| (.*) \|$",
                manual.read())}
        folder = os.path.join(ROOT, "tests/data/kvsize")
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                row = name.endswith(".json") and table.get(json.load(file)["_name_or_path"])
            if not row:
                continue
            said = answer(os.path.join(folder, name))
            number = [int(n.replace(",", "")) if n and n[0].isdigit() else None
                      for n in row.groups()[1:]]
            each = said["bytes_per_token"]
            self.assertEqual(each["first"], number[0], name)
            self.assertEqual(each["behind_window"],
                             number[0] if number[1] is None else number[1], name)
            self.assertEqual(said.get("context", {}).get("bytes"), number[2], name)
            rows += 1
        self.assertEqual(rows, len(table))
        self.assertGreaterEqual(rows, 10)

    def test_gguf_larger_than_what_is_read_first(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(gguf(1_000_000))
            file.flush()
            said = answer(file.name)
            self.assertEqual(said["bytes_per_token"]["first"], 23040)
            self.assertEqual(answer(file.name, "--type", "q8_0")["layers"],
                             [{"layers": 30, "k_values": 192, "v_values": 192, "window": 0,
                               "bytes_per_token": 408}])
            file.truncate(10_000_000)
            done = kvsize(file.name)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the file ends inside its metadata", done.stderr)

    def test_a_missing_key_names_the_flag(self):
        name = "tests/data/kvsize/gemma-3-4b-it.json"
        done = kvsize(name)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"{name}: num_key_value_heads is missing: give --kv-heads", done.stderr)
        each = answer(name, "--kv-heads", "4", "--head-dim", "256")["bytes_per_token"]
        self.assertEqual((each["first"], each["behind_window"]), (139264, 20480))

    def test_wrong_flags(self):
        for arguments, says in (((), "usage: incipit kvsize"),
                                ((*GPT2, "--type", "q3"), "is none of f32 f16"),
                                ((*GPT2, "--context", "0"), '--context: "0"'),
                                ((*GPT2, "--memory", "lots"), '--memory: "lots"')):
            done = kvsize(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(says, done.stderr)

    def test_rows_that_do_not_fill_blocks(self):
        done = kvsize("--layers", "2", "--kv-heads", "1", "--head-dim", "80", "--type", "q8_0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("q8_0 keeps values in blocks of 32, and a row here has 80", done.stderr)


if __name__ == "__main__":
    unittest.main()
