# SPDX-License-Identifier: MIT
"""The faults: each is injected under load, and compared with what the gateway says of it."""

import ctypes
import errno
import os
import random
import shutil
import threading

import disk
from harness import wait_until
from load import Wrong
from world import NOT_THERE

PATIENCE_S = 60
LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, EXCHANGE = -100, 2   # of renameat2()


def expect(fine, what):
    if not fine:
        raise Wrong(what() if callable(what) else what)


def finish(world, load):
    """All clients have their answers, and nothing they saw was wrong."""
    load.join()
    for name, n in load.count.items():
        world.seen[name] += n
    expect(not load.wrong, lambda: "; ".join(load.wrong[:3]))


def settle(world, exact=True, mode="store"):
    world.settle(mode)
    bad = world.check(exact)
    expect(not bad, lambda: "; ".join(bad))


# ---- the gateway is killed -----------------------------------------------------------------

KILLS = {
    "save, a block half written": ("block", "write", disk.AFTER, 20),
    "save, before a block is synced": ("block", "sync", disk.KILL, 20),
    "save, before a block has its name": ("block", "rename", disk.KILL, 20),
    "save, behind that": ("block", "rename", disk.AFTER, 20),
    "save, the slot's file is read": ("slot", "open", disk.KILL, 2),
    "save, half a record of prompts": ("log", "write", disk.AFTER, 3),
    "evict, before a block is deleted": ("block", "unlink", disk.KILL, 20),
    "evict, behind that": ("block", "unlink", disk.AFTER, 20),
    "restore, a block is read": ("block", "read", disk.KILL, 30),
    "restore, a slot file half written": ("slot", "write", disk.AFTER, 2),
    "restore, a slot file just made": ("slot", "create", disk.AFTER, 2),
    "restore, before a slot file is deleted": ("slot", "unlink", disk.KILL, 3),
}


def phase_now(world):
    """What the gateway is at, as far as it tells."""
    try:
        replica = world.stats()["replicas"][0]
    except NOT_THERE:
        return "starting"
    states = [s["state"] for s in replica.get("slots", ())]
    if "saving" in states:
        return "save, the engine writes"
    if replica.get("kv_operations"):
        return "save or restore under way"
    return "requests run" if "owned" in states else "nothing under way"


def die(world, load, where):
    """Kills it by a rule of the disk, or after some answers where that never comes."""
    rule = KILLS.get(where)
    if rule:
        kind, op, what, most = rule
        world.disk.fail(kind, op, what, after=world.rng.randrange(most), times=1)
        world.killing = True
        wait_until(lambda: not world.gateway.alive() or not load.running(), "a death",
                   2 * PATIENCE_S)
    else:
        n = load.delivered() + world.rng.randrange(1, 6)
        wait_until(lambda: load.delivered() >= n or not load.running(), "answers",
                   2 * PATIENCE_S)
    by_rule = rule and not world.gateway.alive()
    at = where if by_rule else phase_now(world)
    world.kill_gateway()
    world.seen[f"kill: {at}"] += 1


def start_again(world):
    """On the same store; now and then it is killed while it looks at it."""
    if world.disk and world.rng.random() < 0.2:
        world.disk.forget()
        world.disk.fail("block", "read", disk.KILL, after=world.rng.randrange(40), times=1)
        try:
            world.gateway.start(wait="listening")
            wait_until(lambda: not world.gateway.alive() or world.mode_is("store"),
                       "recovery", PATIENCE_S)
        except AssertionError:
            expect(not world.gateway.alive(), lambda: world.gateway.text()[-500:])
        world.seen["kill: recovery" if not world.gateway.alive()
                   else "kill: nothing under way"] += 1
        world.gateway.crash()
    if world.disk:
        world.disk.forget()
    world.start_gateway()


def round_kill(world):
    where = world.rng.choice([*KILLS, None, None, None] if world.disk else [None])
    world.texts.renew()
    load = world.load(world.rng.randrange(8, 16))
    die(world, load, where)
    bad = world.check_down()
    start_again(world)
    finish(world, load)
    expect(not bad, lambda: "; ".join(bad))
    settle(world)


# ---- the disk fails ------------------------------------------------------------------------

NO_SPACE, READ_ONLY, BROKEN = errno.ENOSPC, errno.EROFS, errno.EIO
# class, operation, what; the counter that says as much, the event that says it once
DISK = (
    ("block", "create", NO_SPACE, "write_errors", "store-write-failed"),
    ("block", "create", READ_ONLY, "write_errors", "store-write-failed"),
    ("block", "mkdir", NO_SPACE, "write_errors", "store-write-failed"),
    ("block", "write", NO_SPACE, "write_errors", "store-write-failed"),
    ("block", "write", BROKEN, "write_errors", "store-write-failed"),
    ("block", "write", disk.SHORT, None, None),
    ("block", "sync", BROKEN, "write_errors", "store-write-failed"),
    ("block", "rename", BROKEN, "write_errors", "store-write-failed"),
    ("block", "unlink", READ_ONLY, None, None),
    ("block", "open", BROKEN, "read_errors", "store-read-failed"),
    ("block", "open", errno.EMFILE, "read_errors", "store-read-failed"),
    ("block", "read", BROKEN, "read_errors", "store-read-failed"),
    ("block", "read", disk.SHORT, None, None),
    ("log", "write", NO_SPACE, None, "prompt-log-failed"),
    ("log", "write", disk.SHORT, None, None),
    ("slot", "create", NO_SPACE, "scratch-file", None),
    ("slot", "write", NO_SPACE, "scratch-file", None),
    ("slot", "write", disk.SHORT, None, None),
    ("slot", "open", BROKEN, "save_failures", "save-failed"),
)
ERRORS = ("write_errors", "read_errors", "damaged", "missing", "save_failures",
          "scratch-file", "block-lost", "engine-refused", "wrong-count", "not-reused")


def word(what):
    return "SHORT" if what == disk.SHORT else errno.errorcode[what]


def round_disk(world):
    kind, op, what, counter, event = world.rng.choice(DISK)
    chance = world.rng.choice((1.0, 1.0, 0.5, 0.1))
    world.what = f"{word(what)} on {op} of {kind}, chance {chance}"
    before = {name: world.count(name) for name in ERRORS}
    world.texts.renew()
    world.disk.fail(kind, op, what, chance=chance)
    load = world.load(world.rng.randrange(10, 18))
    finish(world, load)
    world.settle(mode=None)
    world.disk.mend()
    hits = world.disk.hits(kind, op)
    world.seen[f"fault: {word(what)} on {op} of {kind}"] += hits
    rest = {name: world.count(name) - before[name] for name in ERRORS}
    counted = rest.pop(counter) if counter else 0
    tell = f"{hits} times {world.what}, counted {counted}, others {rest}"
    if counter == "scratch-file":   # the self-test writes there as well
        expect(bool(counted) <= bool(hits) and counted <= hits, tell)
    elif counter:
        expect(counted == hits, tell)
    if counter in ("read_errors", "write_errors") and counted:
        rest.pop("block-lost")      # not to be had now, or from RAM only as long as it lasts
        rest.pop("missing")
    # one slot is taken by a prompt that the engine places: no failure of the restore there
    expect(rest.pop("not-reused") == 0 or not world.events("kind=not-reused"), tell)
    # … nor is it one of the disk where a slot that the engine gave to another is not kept
    expect(rest.pop("save_failures", 0) <= 2, tell)
    expect(not any(rest.values()), tell)
    world.seen[f"counted: {counter}"] += counted
    if event:
        n = len(world.events(event))
        said = any(event in line for line in world.gateway.output)   # in an earlier round?
        expect(n <= 1 and said >= bool(hits), f"{event} said {n} times, {hits} faults")
    bad = world.reuse_comes_back()
    expect(not bad, lambda: "; ".join(bad))
    finish(world, world.load(6))
    settle(world)
    if counter == "write_errors" and counted:
        restart(world)      # else a later round finds missing what RAM has let go since


# ---- files of the store are changed behind its back --------------------------------------------

def flip(path, rng):
    with open(path, "r+b") as f:
        size = os.path.getsize(path)
        at = rng.randrange(size)
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << rng.randrange(8)]))


def cut(path, rng):
    os.truncate(path, rng.randrange(os.path.getsize(path)))


def grow(path, _rng):
    with open(path, "ab") as f:
        f.write(b"x")


def delete(path, _rng):
    os.unlink(path)


def link(path, _rng):
    os.rename(path, path + ".away")
    os.symlink(path + ".away", path)


def folder(path, _rng):
    os.unlink(path)
    os.mkdir(path)


def pipe(path, _rng):
    os.unlink(path)
    os.mkfifo(path)


DAMAGES = (flip, flip, cut, grow, delete, link, folder, pipe)


def damage_some(world, n):
    """Names of what was done to which file."""
    done = {}
    paths = sorted(disk.block_files(world.store))
    world.rng.shuffle(paths)
    for path in paths[:n]:
        how = world.rng.choice(DAMAGES)
        try:
            how(path, world.rng)
        except OSError:
            continue    # evicted meanwhile
        done[path] = how.__name__
        world.damaged.add(path)
        world.seen[f"damage: {how.__name__}"] += 1
    return done


def names_in(world, name):
    path = os.path.join(world.store, name)
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def put_aside(path):
    """The name that a damaged file has when it was put aside."""
    fingerprint, _, file = path.split(os.sep)[-3:]
    return f"{fingerprint}-{file}"


def sweep(world):
    """Takes away what the damages have left: nobody else does."""
    for path in list(world.damaged):
        if path in disk.block_files(world.store) or os.path.isdir(path):
            shutil.rmtree(path, True) if os.path.isdir(path) else os.unlink(path)
        if os.path.lexists(path + ".away"):
            os.unlink(path + ".away")
    for name in names_in(world, "damaged"):
        path = os.path.join(world.store, "damaged", name)
        shutil.rmtree(path, True) if os.path.isdir(path) and not os.path.islink(path) \
            else os.unlink(path)


def round_damage(world):
    """Bits, sizes and kinds of files, while it runs and while it does not."""
    down = world.rng.random() < 0.4
    world.what = "while it is down" if down else "while it runs"
    before = world.count("damaged")
    load = world.load(world.rng.randrange(10, 16))
    if down:
        world.seen["kill: before damage"] += 1
        world.kill_gateway()
        before = 0
    done = damage_some(world, world.rng.randrange(3, 12))
    if down:
        world.start_gateway()
    finish(world, load)
    settle(world, exact=False)
    bad = world.reuse_comes_back()
    expect(not bad, lambda: "; ".join(bad))
    world.settle()
    counted = world.count("damaged") - before
    world.seen["counted: damaged"] += counted
    aside = names_in(world, "damaged")
    mine = {put_aside(path) for path in done}
    expect(set(aside) <= mine, lambda: f"put aside without a reason: {set(aside) - mine}")
    expect(len(aside) <= counted <= len(done),
           f"{counted} counted, {len(aside)} put aside, {len(done)} damaged: {done}")
    expect(len(world.events("block-damaged")) == counted,
           lambda: f"said {len(world.events('block-damaged'))} times, {counted} counted")
    sweep(world)
    restart(world)


def restart(world):
    """An orderly one: what was done to its files is behind us."""
    world.killing = True
    world.is_up.clear()
    code = world.gateway.stop()
    expect(code == 0, f"ended with {code}")
    world.start_gateway()
    settle(world)


def remove(path):
    """A folder may still be written to through a descriptor of before."""
    if not os.path.isdir(path):
        os.unlink(path)
        return

    def gone():
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.exists(path)
    wait_until(gone, f"{path} is gone", PATIENCE_S)


def round_folders(world):
    """Whole folders go, or lead elsewhere."""
    outside = os.path.join(world.folder, "outside")
    os.makedirs(outside, exist_ok=True)
    with open(os.path.join(outside, "precious"), "w", encoding="ascii") as f:
        f.write("not yours")
    names = [name for name in ("blocks", "tmp", "damaged", "prompts.log")]
    shards = sorted({os.path.dirname(p) for p in disk.block_files(world.store)})
    where = world.rng.choice([*(os.path.join(world.store, n) for n in names),
                              *(world.rng.sample(shards, min(len(shards), 4))),
                              *{os.path.dirname(s) for s in shards}])
    linked = world.rng.random() < 0.4
    world.what = f"{os.path.relpath(where, world.store)} {'a link' if linked else 'gone'}"
    load = world.load(world.rng.randrange(10, 16))
    wait_until(lambda: load.delivered() >= 3 or not load.running(), "answers", PATIENCE_S)
    world.damaged.update(disk.block_files(world.store))
    os.rename(where, where + ".away")
    if linked:
        os.symlink(outside, where)
    world.seen[f"damage: folder {'linked' if linked else 'removed'}"] += 1
    finish(world, load)
    world.settle(mode=None)
    if linked:
        os.unlink(where)
    expect(os.listdir(outside) == ["precious"], lambda: f"written to: {os.listdir(outside)}")
    remove(where + ".away")
    load = world.load(10)
    finish(world, load)
    world.settle()
    bad = world.reuse_comes_back()
    expect(not bad, lambda: "; ".join(bad))
    sweep(world)
    restart(world)


# ---- the slot directory ---------------------------------------------------------------------

class Thief(threading.Thread):
    """Takes or cuts what lies in the slot directory, as soon as it is there."""

    def __init__(self, world, how):
        super().__init__(daemon=True)
        self.world, self.how, self.over, self.n = world, how, threading.Event(), 0
        self.rng = random.Random(world.rng.random())
        self.start()

    def run(self):
        while not self.over.is_set():
            for name in os.listdir(self.world.slots):
                if self.rng.random() < 0.5:
                    try:
                        self.how(os.path.join(self.world.slots, name), self.rng)
                        self.n += 1
                    except (OSError, ValueError):
                        pass
            self.over.wait(0.0005)

    def stop(self):
        self.over.set()
        self.join()


def shorten(path, rng):
    """A shorter file takes its place, where it is still there. One that is cut in its place
    while somebody reads it is another matter: who can do that is trusted, for slot files
    have no checksum (docs/security.md)."""
    with open(path, "rb") as f:
        data = f.read(rng.randrange(os.path.getsize(path)))
    other = os.path.dirname(path) + ".shorter"
    with open(other, "wb") as f:
        f.write(data)
    try:
        if LIBC.renameat2(AT_FDCWD, other.encode(), AT_FDCWD, path.encode(), EXCHANGE):
            raise OSError(ctypes.get_errno(), "renameat2")
    finally:
        os.unlink(other)


def round_thief(world):
    how = world.rng.choice((delete, shorten))
    world.what = f"slot files: {how.__name__}"
    thief = Thief(world, how)
    load = world.load(world.rng.randrange(10, 16))
    finish(world, load)
    thief.stop()
    world.seen[f"slot files: {how.__name__}"] += thief.n
    settle(world)
    bad = world.reuse_comes_back()
    expect(not bad, lambda: "; ".join(bad))


def round_no_slot_dir(world):
    """The slot directory is away for a while: neither side can write there."""
    load = world.load(world.rng.randrange(10, 16))
    wait_until(lambda: load.delivered() >= 2 or not load.running(), "answers", PATIENCE_S)
    os.rename(world.slots, world.slots + ".away")
    finish(world, load)
    world.settle(mode=None)
    os.rename(world.slots + ".away", world.slots)
    for name in os.listdir(world.slots):
        os.unlink(os.path.join(world.slots, name))
    world.seen["fault: no slot directory"] += 1
    settle(world)
    bad = world.reuse_comes_back()
    expect(not bad, lambda: "; ".join(bad))


# ---- the engine ---------------------------------------------------------------------------------

def round_engine(world):
    """It is killed, and comes back as the same or as another."""
    flags = world.engine.flags
    change = world.rng.choice(({}, {}, {"seed": 3 - flags["seed"]}, {"seed": 3 - flags["seed"]},
                               {"slots": world.rng.choice((1, 2, 3))},
                               {"state_version": world.rng.choice((2, 4))}))
    world.what = f"killed, then {change or 'the same'}"
    load = world.load(world.rng.randrange(10, 16))
    n = world.rng.randrange(1, 8)
    wait_until(lambda: load.delivered() >= n or not load.running(), "answers", PATIENCE_S)
    world.kill_engine()
    world.seen["engine killed"] += 1
    if world.rng.random() < 0.3:
        wait_until(lambda: world.mode_is("down"), "noticed", PATIENCE_S)
    world.start_engine(**change)
    finish(world, load)
    clean_slots(world)
    settle(world)
    load = world.load(8)
    finish(world, load)
    settle(world)


def clean_slots(world):
    """What an engine had half written when it was killed is nobody's."""
    world.settle()
    for name in os.listdir(world.slots):
        os.unlink(os.path.join(world.slots, name))


def round_misbehave(world):
    """The engine lies, breaks off, or is slow."""
    way = world.rng.choice(("restore-lies", "no-reuse-after-restore", "stays-busy",
                            "wrong-counts", "cut", "reset", "no-slots"))
    world.what = way
    world.engine.misbehave(way)
    world.engine_bad = way in ("cut", "reset")
    load = world.load(world.rng.randrange(8, 12))
    if world.engine_bad:
        failures = ("cut", "refused", "no answer")
        # a client that has failed waits for a better engine; others may be done by then
        wait_until(lambda: sum(load.count[f] for f in failures) >= min(3, load.alive()),
                   "failures", PATIENCE_S)
        world.engine.misbehave()
        world.next_engine()
        world.engine_bad = False
    if way == "stays-busy":     # nobody gets anything where all slots are lost to leavers
        wait_until(lambda: not load.running() or world.slot_states() == {"zombie"},
                   "the end, or no slot", PATIENCE_S)
        world.engine.misbehave()
    finish(world, load)
    world.engine.misbehave()
    world.seen[f"engine: {way}"] += 1
    settle(world)
    bad = world.reuse_comes_back()
    expect(not bad, lambda: "; ".join(bad))


ROUNDS = {  # how often, what, whether it needs the disk that fails
    "kill": (4, round_kill, False),
    "disk": (4, round_disk, True),
    "damage": (2, round_damage, False),
    "folders": (1, round_folders, False),
    "thief": (1, round_thief, False),
    "no-slot-dir": (1, round_no_slot_dir, False),
    "engine": (2, round_engine, False),
    "misbehave": (2, round_misbehave, False),
}
