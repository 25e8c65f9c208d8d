"""One cache and many processes, which are killed, stopped and deceived; and what a child of ours inherits."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.fault_server import FaultServer  # noqa: E402
from tests.support.harness import Folder, cat, run, sha  # noqa: E402

# Of one size: only what the server says tells them apart.
VERSIONS = [random.Random(k).randbytes(2_600_000) for k in range(3)]
SECONDS = float(os.environ.get("TEST_SECONDS", "5"))
NO_SIGN = "has given no sign"


def first_bytes(process, size):
    """So many bytes of what it writes; fewer where it ends before."""
    got = b""
    while len(got) < size and (more := process.stdout.read(size - len(got))):
        got += more
    return got


class Shared(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.path = self.folder.__enter__()
        self.cache = self.path / "cache"
        self.env = {"MILLRACE_CACHE": str(self.cache), "MILLRACE_CACHE_FREE": "0", "MILLRACE_HTTP_SPLIT": "off",
                    "MILLRACE_GATE_PATIENCE": "0.5"}
        self.addCleanup(self.folder.__exit__)

    def start(self, url):
        # Without a buffer of Python's, which communicate() would leave out.
        return subprocess.Popen([harness.BIN / "millrace", "cat", url], env=harness.CLEAN | self.env,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)

    def gets(self, server):
        return [r for r in server.requests() if r.get("method") == "GET"]

    def assert_nothing_is_left(self):
        self.assertEqual(run("millrace", "cache", "verify", env=self.env).returncode, 0)
        run("millrace", "cache", "clean", "--all", env=self.env)
        self.assertEqual(list(self.cache.iterdir()), [])


class Storm:
    """Slots in which one reader after the other lives and dies; every byte that one gave is looked at: it is of a
    version that the server had while that reader lived, not of one that it had before."""

    def __init__(self, test, server, seed):
        self.test, self.server, self.chance = test, server, random.Random(seed)
        self.had = [server.contents["a.tar"]]  # in their order
        self.swapping = threading.Lock()
        self.count = {"whole": 0, "killed": 0, "stopped": 0}
        self.wrong = []
        self.over = time.monotonic() + SECONDS

    def swap(self):
        with self.swapping:
            self.server.contents["a.tar"] = self.chance.choice(VERSIONS)
            self.had.append(self.server.contents["a.tar"])

    def one(self, fate):
        with self.swapping:
            before = len(self.had) - 1
        reader = self.test.start(f"{self.server.url}/slow/8000/a.tar")
        got = b""
        if fate != "whole":
            got = first_bytes(reader, self.chance.randrange(1, len(VERSIONS[0])))
        if fate == "stopped":
            reader.send_signal(signal.SIGSTOP)
            threading.Event().wait(self.chance.random())  # for others to lose patience with it, or not
            reader.send_signal(signal.SIGKILL if self.chance.random() < 0.5 else signal.SIGCONT)
        elif fate == "killed":
            reader.send_signal(signal.SIGKILL)
        rest, said = reader.communicate(timeout=60)
        got += rest
        self.count[fate] += 1
        if reader.returncode == 0:
            right = got in self.had[before:]
        else:
            right = any(v.startswith(got) for v in self.had[before:])
            died = reader.returncode == -signal.SIGKILL
            right = right and (died or len(self.had) - 1 != before)
        if not right:
            self.wrong.append((fate, reader.returncode, len(got), said.decode()))

    def slot(self):
        while time.monotonic() < self.over and not self.wrong:
            if self.chance.random() < 0.1:
                self.swap()
            if self.chance.random() < 0.1:
                run("millrace", "cache", "clean", "--all", env=self.test.env)
            self.one(self.chance.choice(["whole", "killed", "killed", "stopped"]))

    def rage(self):
        slots = [threading.Thread(target=self.slot) for _ in range(3)]
        for s in slots:
            s.start()
        for s in slots:
            s.join()


class CacheProcesses(Shared):
    def test_three_processes_killed_and_stopped_at_random(self):
        seed = int(os.environ.get("TEST_SEED", "11"))
        with FaultServer({"a.tar": VERSIONS[0]}) as server:
            storm = Storm(self, server, seed)
            storm.rage()
            self.assertEqual(storm.wrong, [], f"seed {seed}: {storm.count}")
            self.assertGreater(storm.count["killed"] + storm.count["stopped"], 0)
            now = server.contents["a.tar"]
            for _ in range(2):
                self.assertEqual(sha(cat(f"{server.url}/plain/a.tar", env=self.env).stdout), sha(now))
        self.assert_nothing_is_left()

    def test_a_filler_that_is_stopped_is_passed_by_with_one_notice(self):
        with FaultServer({"a.tar": VERSIONS[0]}) as server:
            url = f"{server.url}/slow/4000/a.tar"
            filler = self.start(url)
            got = first_bytes(filler, 100_000)
            filler.send_signal(signal.SIGSTOP)
            readers = [self.start(url) for _ in range(2)]
            for reader in readers:
                out, said = reader.communicate(timeout=60)
                self.assertEqual(sha(out), sha(VERSIONS[0]))
                self.assertEqual(said.decode().count(NO_SIGN), 1, said)
            filler.send_signal(signal.SIGCONT)
            rest, said = filler.communicate(timeout=60)
            self.assertEqual(sha(got + rest), sha(VERSIONS[0]), said)
        self.assert_nothing_is_left()

    def test_a_slow_server_is_no_stopped_filler(self):
        with FaultServer({"a.tar": VERSIONS[0]}) as server:
            # No byte for longer than the patience, twice.
            url = f"{server.url}/stall/200000/2/a.tar"
            self.env |= {"MILLRACE_HTTP_PROGRESS_TIMEOUT": "2", "MILLRACE_GATE_PATIENCE": "1.5"}
            for reader in [self.start(url) for _ in range(3)]:
                out, said = reader.communicate(timeout=60)
                self.assertEqual(sha(out), sha(VERSIONS[0]), said)
                self.assertNotIn(NO_SIGN, said.decode())

    def test_a_folder_that_is_removed_while_it_fills_starts_no_stampede(self):
        with FaultServer({"a.tar": VERSIONS[0]}) as server:
            url = f"{server.url}/slow/4000/a.tar"
            filler = self.start(url)
            got = first_bytes(filler, 100_000)
            readers = [self.start(url) for _ in range(3)]
            begun = [r.stdout.read(1) for r in readers]
            shutil.rmtree(self.cache)
            self.assertEqual(sha(got + filler.communicate(timeout=60)[0]), sha(VERSIONS[0]))
            for first, reader in zip(begun, readers):
                out, said = reader.communicate(timeout=60)
                self.assertEqual(sha(first + out), sha(VERSIONS[0]))
                self.assertLessEqual(said.decode().count("\n"), 1, said)
            self.assertEqual(len(self.gets(server)), 1)
            self.assertEqual(sha(cat(url, env=self.env).stdout), sha(VERSIONS[0]))

    @unittest.skipUnless(os.getuid() == 0, "mounting a small disk needs root")
    def test_a_cache_that_can_hold_nothing_says_so_once(self):
        small = self.path / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", small], check=True)
        try:
            with FaultServer({"a.tar": VERSIONS[0], "b.tar": VERSIONS[1]}) as server:
                done = cat(f"{server.url}/plain/a.tar", f"{server.url}/plain/b.tar",
                           env=self.env | {"MILLRACE_CACHE": str(small / "c"), "MILLRACE_CACHE_FREE": "1G"})
                self.assertEqual(sha(done.stdout), sha(VERSIONS[0] + VERSIONS[1]))
                self.assertEqual(done.stderr.decode().count("the cache has no room"), 1, done.stderr)
                self.assertIn("MILLRACE_CACHE_FREE keeps 1.0 GiB", done.stderr.decode())
        finally:
            subprocess.run(["umount", small], check=True)

    def test_one_huge_length_removes_nothing(self):
        with FaultServer({f"{c}.tar": VERSIONS[0][:1000] for c in "abcde"}) as server:
            for c in "abcde":
                cat(f"{server.url}/plain/{c}.tar", env=self.env)
            before = sorted(p.name for p in self.cache.iterdir() if "." not in p.name)
            self.assertEqual(len(before), 5)
            server.contents["huge"] = Huge()
            cat(f"{server.url}/plain/huge", env=self.env)
            self.assertEqual(sorted(p.name for p in self.cache.iterdir() if "." not in p.name), before)

    def test_looking_at_a_cache_that_is_not_there_makes_none(self):
        wrong = self.path / "a" / "b"
        done = run("millrace", "cache", "ls", env={"MILLRACE_CACHE": str(wrong)})
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("check MILLRACE_CACHE", done.stderr)
        self.assertFalse((self.path / "a").exists())

    def test_different_queries_are_different_objects(self):
        with FaultServer({"a.tar": VERSIONS[0]}) as server:
            for query in "st=train", "st=val", "v=1", "v=2", "se=2", "sig=1":
                cat(f"{server.url}/plain/a.tar?{query}", env=self.env)
            self.assertEqual(len(self.gets(server)), 6)
            signed = "X-Amz-Date={}&X-Amz-Signature={}"
            for at in 1, 2:
                cat(f"{server.url}/plain/a.tar?{signed.format(at, at)}", env=self.env)
            self.assertEqual(len(self.gets(server)), 7)


class Huge(bytes):
    """Announced as larger than any disk."""

    def __len__(self):
        return 10**15


class Descriptors(Shared):
    def test_all_are_closed_on_exec(self):
        """While a run has everything open at once that it ever opens: the descriptors that a program would inherit
        which somebody starts in this process."""
        data = self.path / "f.bin"
        data.write_bytes(VERSIONS[0])
        env = self.env | {"MILLRACE_SPINDLES": "1", "MILLRACE_GATE_DIR": str(self.path / "gate"),
                          "MILLRACE_ALLOW_PIPE": "1", "MILLRACE_HTTP_PROGRESS_TIMEOUT": "60"}
        with FaultServer({"a.tar": VERSIONS[0]}) as server:
            for io in "auto", "pread":
                reader = subprocess.Popen(
                    [harness.BIN / "millrace", "cat", data, f"pipe:cat {data}", f"{server.url}/stall/1000000/9/a.tar"],
                    env=harness.CLEAN | env | {"MILLRACE_IO": io}, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                try:
                    # The last of them has begun to come.
                    first_bytes(reader, 2 * len(VERSIONS[0]) + 1)
                    open_now = pathlib.Path(f"/proc/{reader.pid}/fd")
                    seen, inherited = [], []
                    for fd in sorted(open_now.iterdir(), key=lambda p: int(p.name)):
                        if int(fd.name) <= 2:
                            continue
                        flags = (open_now.parent / "fdinfo" / fd.name).read_text()
                        flags = int(next(line for line in flags.splitlines() if line.startswith("flags:")).split()[1], 8)
                        seen.append(os.readlink(fd))
                        if not flags & os.O_CLOEXEC:
                            inherited.append(seen[-1])
                    self.assertEqual(inherited, [])
                    for part in "socket:", "gate", ".part", "eventpoll":
                        self.assertTrue(any(part in s for s in seen), f"{part} is not among {seen}")
                finally:
                    reader.kill()
                    reader.communicate()


if __name__ == "__main__":
    unittest.main()
