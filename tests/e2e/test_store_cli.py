# SPDX-License-Identifier: MIT
"""The store's directory from outside: `incipit store …` as a process, on directories that a
gateway has filled, beside it and after it."""

import glob
import json
import os
import shutil
import stat
import subprocess
import tempfile
import time

from harness import CHAT, Case, binary, chat_body, wait_until, words


def run(command, *arguments, stdin=None, text=True):
    return subprocess.run([binary(), "store", command, *arguments], capture_output=True,
                          text=text, input=stdin, timeout=60)


def ask(system, user):
    return chat_body([{"role": "system", "content": system},
                      {"role": "user", "content": user}])


def blocks(directory):
    return sorted(glob.glob(os.path.join(directory, "blocks/*/*/*.kv")))


def everything(directory):
    """{path: (content, time)} of all files."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as f:
                found[os.path.relpath(path, directory)] = f.read(), os.stat(path).st_mtime_ns
    return found


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))


class StoreCase(Case):
    """`self.dir`: a store of two documents with two questions each."""

    SYSTEMS = words(400, "one"), words(300, "two")
    made = None

    def fill(self, engine, gateway):
        for system in self.SYSTEMS:
            for user in ("what is it", words(90, "a longer question")):
                saves = len(engine.events("save"))
                self.assertEqual(gateway.fetch("POST", CHAT, ask(system, user)).status, 200)
                wait_until(lambda: len(engine.events("save")) > saves, "a save")
                gateway.wait_quiet()

    def setUp(self):
        super().setUp()
        if not StoreCase.made:
            engine, gateway = self.pair(mode="store", slots=1)
            self.fill(engine, gateway)
            self.assertEqual(gateway.stop(), 0)
            StoreCase.made = tempfile.mkdtemp(prefix="incipit-store-test-")
            shutil.move(gateway.store_dir, os.path.join(StoreCase.made, "store"))
        self.dir = os.path.join(self.folder, "kept")
        shutil.copytree(os.path.join(StoreCase.made, "store"), self.dir)
        os.chmod(self.dir, 0o700)
        for f in blocks(self.dir):   # no gateway is just writing them
            os.utime(f, (os.path.getmtime(f) - 600,) * 2)
        self.path = os.path.join(self.folder, "archive")

    @classmethod
    def tearDownClass(cls):
        if StoreCase.made:
            shutil.rmtree(StoreCase.made, ignore_errors=True)
        StoreCase.made = None

    def run_json(self, command, *arguments, status=0):
        done = run(command, "--dir", self.dir, "--json", *arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout)

    def fine(self, command, *arguments, **more):
        done = run(command, *arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, status, text, command, *arguments, **more):
        done = run(command, *arguments, **more)
        self.assertEqual(done.returncode, status, done.stdout)
        self.assertIn(text, done.stderr)
        return done


class Looking(StoreCase):
    def test_ls_lists_models_and_their_sequences(self):
        files = blocks(self.dir)
        [model] = self.run_json("ls")["models"]
        self.assertEqual(model["blocks"], len(files))
        self.assertEqual(model["bytes"], sum(os.path.getsize(f) for f in files))
        times = [int(os.path.getmtime(f)) for f in files]
        self.assertEqual((model["oldest_use"], model["newest_use"]), (min(times), max(times)))
        tree = self.run_json("ls", model["fingerprint"][:6].upper())
        self.assertEqual(tree["fingerprint"], model["fingerprint"])
        self.assertEqual(sum(r["blocks"] for r in tree["runs"]), len(files))
        self.assertEqual(sum(r["bytes"] for r in tree["runs"]), model["bytes"])
        roots = [r for r in tree["runs"] if r["depth"] == 0]
        self.assertEqual(len(roots), 2)
        branches = [r for r in tree["runs"] if r["level"] == 1]
        self.assertGreaterEqual(len(branches), 4)
        self.assertTrue(all(r["depth"] > 0 for r in branches))
        text = self.fine("ls", "--dir", self.dir, model["fingerprint"]).stdout
        self.assertEqual(len(text.splitlines()), len(tree["runs"]))
        self.assertIn(roots[0]["end"][:12], text)

    def test_ls_is_bounded(self):
        [model] = self.run_json("ls")["models"]
        all_of_them = self.run_json("ls", model["fingerprint"])
        self.assertEqual(all_of_them["more"], 0)
        n = len(all_of_them["runs"])
        some = self.run_json("ls", model["fingerprint"], "--limit", "2")
        self.assertEqual(some["runs"], all_of_them["runs"][:2])
        self.assertEqual(some["more"], n - 2)
        text = self.fine("ls", "--dir", self.dir, model["fingerprint"], "--limit=2").stdout
        self.assertEqual(text.splitlines()[2], f"… {n - 2} more (--limit)")
        self.assertEqual(self.run_json("ls", model["fingerprint"], "--limit", str(n)),
                         all_of_them)
        self.refused(2, "--limit", "ls", "--dir", self.dir, model["fingerprint"], "--limit", "0")

    def test_stat_says_what_sharing_saves(self):
        said = self.run_json("stat")
        [model] = self.run_json("ls")["models"]
        tree = self.run_json("ls", model["fingerprint"])["runs"]
        self.assertEqual((said["blocks"], said["bytes"]), (model["blocks"], model["bytes"]))
        self.assertEqual(said["tokens"], sum(r["tokens"] for r in tree))
        whole, path = 0, []
        for i, run_ in enumerate(tree):   # depth first: what is above a run comes before it
            path = path[:run_["level"]] + [run_["bytes"]]
            if i + 1 == len(tree) or tree[i + 1]["level"] <= run_["level"]:
                whole += sum(path)
        self.assertEqual(said["sequences"]["bytes_if_kept_whole"], whole)
        self.assertGreater(whole, said["bytes"])
        self.assertEqual(said["prompts"]["bytes"],
                         os.path.getsize(os.path.join(self.dir, "prompts.log")))
        self.assertEqual(said["prompts"]["records"] * 80, said["prompts"]["bytes"])
        self.assertTrue(said["key"])
        self.assertIn("times as much", self.fine("stat", "--dir", self.dir).stdout)

    def test_looking_changes_nothing(self):
        before = everything(self.dir)
        [model] = self.run_json("ls")["models"]
        self.run_json("ls", model["fingerprint"])
        self.run_json("stat")
        self.run_json("verify")
        self.run_json("prune", "--keep", "0", "--dry-run")
        self.fine("export", "--dir", self.dir, self.path)
        self.assertEqual(everything(self.dir), before)

    def test_beside_a_running_gateway(self):
        engine = self.engine(slots=1)
        gateway = self.gateway(engine, mode="store")
        self.fill(engine, gateway)
        self.dir = gateway.store_dir
        self.assertEqual(self.run_json("verify")["faults"], [])
        self.assertEqual(self.run_json("stat")["blocks"], len(blocks(self.dir)))
        self.fine("export", "--dir", self.dir, self.path)
        for command in (("prune", "--keep", "0"), ("verify", "--fix"), ("import", self.path)):
            self.refused(1, "another gateway works in", *command[:1], "--dir", self.dir,
                         *command[1:])
        self.assertTrue(blocks(self.dir))
        self.assert_clean()

    def test_config_names_the_directory(self):
        config = os.path.join(self.folder, "my.yaml")
        with open(config, "w", encoding="ascii") as f:
            f.write(f"store:\n  dir: {self.dir}\n")
        done = self.fine("ls", "--config", config, "--json")
        self.assertEqual(len(json.loads(done.stdout)["models"]), 1)
        with open(config, "w", encoding="ascii") as f:
            f.write("listen: 127.0.0.1:0\n")
        self.refused(1, "has no store.dir", "ls", "--config", config)

    def test_what_was_typed_wrong(self):
        self.refused(2, "either --dir or --config", "ls")
        self.refused(1, "no models begin with", "ls", "--dir", self.dir, "zz")
        self.refused(1, "cannot open", "stat", "--dir", os.path.join(self.folder, "none"))
        self.refused(1, "is no store's directory", "prune", "--keep", "0", "--dir", self.folder)
        self.refused(2, "give --keep, --older or --model", "prune", "--dir", self.dir)
        self.refused(2, "no size", "prune", "--dir", self.dir, "--keep", "much")
        self.refused(2, "no age", "prune", "--dir", self.dir, "--older", "7")
        self.refused(2, "usage:", "export", "--dir", self.dir)
        self.refused(2, "store verify", "bogus")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "blocks")))


class Verifying(StoreCase):
    def test_each_fault_is_named_and_fixed(self):
        files = blocks(self.dir)
        [model] = self.run_json("ls")["models"]
        runs = self.run_json("ls", model["fingerprint"])["runs"]
        by_hash = {os.path.basename(f)[:-3]: f for f in files}
        leaf = next(r for r in runs if r["level"] == 1)
        other_root = [r for r in runs if r["depth"] == 0][1]
        flip(by_hash[leaf["end"]], -20)                   # a row
        os.unlink(by_hash[other_root["end"]])             # with four blocks or more behind it
        self.assertEqual(run("verify", "--dir", self.dir).returncode, 1)
        said = self.run_json("verify", status=1)
        what = {f["file"]: f["what"] for f in said["faults"]}
        self.assertIn("checksum", what[os.path.relpath(by_hash[leaf["end"]], self.dir)])
        behind = [f for f, w in what.items() if "missing" in w]
        self.assertGreaterEqual(len(behind), 2)
        self.assertEqual(said["blocks"], len(files) - 1)
        self.assertEqual(said["fixed"], 0)
        fixed = self.run_json("verify", "--fix", status=1)
        self.assertEqual(fixed["fixed"], len(said["faults"]))
        self.assertEqual(os.listdir(os.path.join(self.dir, "damaged")),
                         [f"{model['fingerprint']}-{leaf['end']}.kv"])
        again = self.run_json("verify")
        self.assertEqual(again["faults"], [])
        self.assertEqual(again["blocks"], len(files) - 1 - len(said["faults"]))

    def test_another_key_is_found_and_costs_no_block(self):
        n = len(blocks(self.dir))
        with open(os.path.join(self.dir, "key"), "wb") as f:
            f.write(bytes(32))
        said = self.run_json("verify", "--fix", status=1)
        self.assertEqual({f["what"] for f in said["faults"]},
                         {"its name is not the hash of its tokens under this key"})
        self.assertEqual(len(said["faults"]), n)
        self.assertEqual(len(blocks(self.dir)), n)
        os.unlink(os.path.join(self.dir, "key"))
        said = self.run_json("verify", status=1)
        self.assertEqual([f["file"] for f in said["faults"]], ["key"])
        self.assertFalse(os.path.exists(os.path.join(self.dir, "key")))

    def test_a_name_that_is_not_the_blocks_own(self):
        files = blocks(self.dir)
        os.replace(files[0], files[1])
        what = [f["what"] for f in self.run_json("verify", status=1)["faults"]]
        self.assertIn("holds another block", what)


class Pruning(StoreCase):
    def left(self):
        return self.run_json("stat")["bytes"]

    def test_keep_takes_the_oldest_and_leaves_whole_sequences(self):
        files = blocks(self.dir)
        total = sum(os.path.getsize(f) for f in files)
        keep = total * 2 // 3
        plan = self.run_json("prune", "--keep", str(keep), "--dry-run")["models"][0]
        self.assertEqual(len(blocks(self.dir)), len(files))
        done = self.run_json("prune", "--keep", str(keep))["models"][0]
        self.assertEqual(done, plan)
        self.assertEqual(len(blocks(self.dir)), done["blocks_left"])
        self.assertEqual(self.left(), done["bytes_left"])
        self.assertLessEqual(self.left(), keep)
        self.assertGreater(self.left(), keep - max(map(os.path.getsize, blocks(self.dir))))
        self.assertEqual(self.run_json("verify")["faults"], [])

    def test_older_goes_by_the_last_use_of_what_is_behind(self):
        files = blocks(self.dir)
        long_ago = time.time() - 10 * 86400
        [model] = self.run_json("ls")["models"]
        runs = self.run_json("ls", model["fingerprint"])["runs"]
        leaf = next(r for r in runs if r["level"] == 1)
        for f in files:
            if leaf["end"] not in f:
                os.utime(f, (long_ago, long_ago))
        done = self.run_json("prune", "--older", "7d")["models"][0]
        self.assertEqual(done["blocks_left"], leaf["depth"] + leaf["blocks"])
        self.assertTrue(any(leaf["end"] in f for f in blocks(self.dir)))
        self.assertEqual(self.run_json("verify")["faults"], [])
        self.assertEqual(self.run_json("prune", "--older", "7d")["models"][0]["blocks"], 0)

    def test_model_alone_goes_as_a_whole(self):
        [model] = self.run_json("ls")["models"]
        other = model["fingerprint"][::-1]
        shutil.copytree(os.path.join(self.dir, "blocks", model["fingerprint"]),
                        os.path.join(self.dir, "blocks", other))
        self.fine("prune", "--dir", self.dir, "--model", model["fingerprint"])
        self.assertEqual([m["fingerprint"] for m in self.run_json("ls")["models"]], [other])


class Archives(StoreCase):
    def taken(self, directory):
        return {os.path.basename(f): open(f, "rb").read() for f in blocks(directory)}

    def test_with_its_key_an_empty_store_becomes_the_same(self):
        self.fine("export", "--dir", self.dir, "--with-key", self.path)
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
        with open(os.path.join(self.dir, "key"), "rb") as f:
            key = f.read()
        with open(self.path, "rb") as f:
            self.assertIn(key, f.read(80))
        target = os.path.join(self.folder, "new")
        self.fine("import", "--dir", target, self.path)
        was, now = everything(self.dir), everything(target)
        self.assertEqual(self.taken(target), self.taken(self.dir))
        self.assertEqual(now["key"][0], key)
        for name, (content, _) in was.items():
            if name.startswith("prompts.log"):
                self.assertEqual(now[name][0], content)
        self.assertEqual(self.run_json("verify")["faults"], [])
        again = self.fine("import", "--dir", target, self.path)
        self.assertIn(f"{len(self.taken(target))} blocks were there already", again.stderr)
        self.assertEqual(everything(target), now)   # nothing twice, not one time changed

    def test_without_it_only_the_same_key_takes_it(self):
        self.fine("export", "--dir", self.dir, self.path)
        with open(os.path.join(self.dir, "key"), "rb") as f, open(self.path, "rb") as a:
            self.assertNotIn(f.read(), a.read())
        self.refused(1, "made with another key", "import", "--dir",
                     os.path.join(self.folder, "new"), self.path)
        before = self.taken(self.dir)
        self.fine("prune", "--dir", self.dir, "--keep", "0")
        self.assertEqual(blocks(self.dir), [])
        self.fine("import", "--dir", self.dir, self.path)
        self.assertEqual(self.taken(self.dir), before)

    def test_a_store_with_blocks_keeps_its_key(self):
        engine, gateway = self.pair(mode="store", slots=1)
        self.fill(engine, gateway)
        self.assertEqual(gateway.stop(), 0)
        self.fine("export", "--dir", self.dir, "--with-key", self.path)
        before = everything(gateway.store_dir)
        self.refused(1, "has blocks and another key", "import", "--dir", gateway.store_dir,
                     self.path)
        self.assertEqual(everything(gateway.store_dir), before)

    def test_with_a_key_file(self):
        key = os.path.join(self.folder, "my.key")
        os.replace(os.path.join(self.dir, "key"), key)
        os.chmod(key, 0o600)
        with open(os.path.join(self.dir, "key"), "wb") as f:
            f.write(bytes(32))
        self.assertEqual(run("verify", "--dir", self.dir).returncode, 1)
        self.fine("verify", "--dir", self.dir, "--key-file", key)
        self.fine("export", "--dir", self.dir, "--key-file", key, self.path)
        target = os.path.join(self.folder, "new")
        self.refused(1, "made with another key", "import", "--dir", target, self.path)
        self.fine("import", "--dir", target, "--key-file", key, self.path)
        self.assertEqual(self.taken(target), self.taken(self.dir))
        none = os.path.join(self.folder, "none")
        self.refused(1, "cannot read the key file", "export", "--dir", self.dir, "--key-file",
                     none, self.path)
        self.assertFalse(os.path.exists(none))

    def test_through_a_pipe(self):
        archive = self.fine("export", "--dir", self.dir, "--with-key", "-", text=False).stdout
        target = os.path.join(self.folder, "new")
        self.fine("import", "--dir", target, "-", stdin=archive, text=False)
        self.assertEqual(self.taken(target), self.taken(self.dir))

    def test_prompts_find_their_blocks_in_another_place(self):
        engine = self.engine(slots=1)
        gateway = self.gateway(engine, wait="listening")
        self.assertEqual(gateway.stop(), 0)
        shutil.rmtree(gateway.store_dir)
        self.fine("export", "--dir", self.dir, "--with-key", self.path)
        self.fine("import", "--dir", gateway.store_dir, self.path)
        gateway.start()
        gateway.wait_ready("store")
        self.assertEqual(gateway.fetch("POST", CHAT, ask(self.SYSTEMS[0], "dragons")).status, 200)
        self.assertGreater(engine.bodies("dragons")[-1].cache_n, 300)
        self.assert_clean()

    def test_every_damage_is_found_and_nothing_wrong_is_taken(self):
        archive = self.fine("export", "--dir", self.dir, "--with-key", "-", text=False).stdout
        good = self.taken(self.dir)
        places = sorted({*range(0, 104, 7), *range(104, len(archive), len(archive) // 30),
                         len(archive) - 1})
        for at in places:
            for broken in (archive[:at] + bytes([archive[at] ^ 4]) + archive[at + 1:],
                           archive[:at]):
                target = os.path.join(self.folder, "t")
                done = run("import", "--dir", target, "-", stdin=broken, text=False)
                self.assertEqual(done.returncode, 1, (at, len(broken), done.stderr))
                self.assertLessEqual(self.taken(target).items(), good.items())
                if os.path.exists(target):
                    self.assertEqual(run("verify", "--dir", target).returncode, 0)
                shutil.rmtree(target, ignore_errors=True)
        done = run("import", "--dir", self.dir, "-", stdin=archive + b"x", text=False)
        self.assertIn(b"something follows", done.stderr)

    def test_damaged_blocks_are_left_out(self):
        files = blocks(self.dir)
        [model] = self.run_json("ls")["models"]
        root = next(r for r in self.run_json("ls", model["fingerprint"])["runs"]
                    if r["depth"] == 0)
        flip(next(f for f in files if root["end"] in f), -1)
        done = run("export", "--dir", self.dir, "--with-key", self.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("left out", done.stderr)
        target = os.path.join(self.folder, "new")
        self.fine("import", "--dir", target, self.path)
        self.assertLess(len(blocks(target)), len(files) - 2)
        self.assertEqual(run("verify", "--dir", target).returncode, 0)
