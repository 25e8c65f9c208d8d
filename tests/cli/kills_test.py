"""Commands that write, killed with -9 at random times until one run is left to complete its job: then everything is there,
as if nothing had happened, and nothing else. TEST_KILLS says how many kills (and TEST_SEED which)."""

import os
import pathlib
import random
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import Folder, PlainServer, run  # noqa: E402

KILLS = int(os.environ.get("TEST_KILLS", "4"))  # of each kind of job
SEED = int(os.environ.get("TEST_SEED", "1"))


def contents(folder):
    return {p.relative_to(folder).as_posix(): harness.sha(p.read_bytes()) for p in folder.rglob("*")
            if p.is_file() and "-of-" not in p.name}  # lists of shards hold times


class Kills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = Folder()
        cls.path = cls.made.__enter__()
        cls.addClassCleanup(cls.made.__exit__)
        cls.spec = harness.fake(cls.path, "in", 4, 400, size=96)
        for c in range(3):
            (cls.path / f"tree/class{c}").mkdir(parents=True)
            for i in range(300):
                (cls.path / f"tree/class{c}/{i:04}.jpg").write_bytes(bytes([c, i % 251]) * 15000)

    def check(self, words, env=None, product=contents):
        """`words` is told the folder that the job writes to; `product` is what counts of it."""
        chance = random.Random(f"{SEED} {self.id()}")
        with Folder() as folder:
            whole = folder / "whole"
            whole.mkdir()
            begun = time.monotonic()
            done = run("millrace", *words(whole), env=env and env(whole))
            self.assertEqual(done.returncode, 0, done.stderr)
            seconds = time.monotonic() - begun
            expected = product(whole)
            kills = runs = 0
            while kills < KILLS:
                out = folder / f"{runs}"
                out.mkdir()
                runs += 1
                for _ in range(chance.randrange(1, 4)):
                    process = harness.start("millrace", *words(out), env=env and env(out), stdout=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE, text=True)
                    try:
                        said = process.communicate(timeout=chance.random() * seconds)[1]
                        self.assertEqual(process.returncode, 0, said)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.communicate()
                        kills += 1
                done = run("millrace", *words(out), env=env and env(out))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(product(out), expected, f"seed {SEED}, run {runs}")
            print(f"{kills} kills in {runs} jobs", file=sys.stderr)

    def test_pack(self):
        self.check(lambda out: ["pack", self.path / "tree", "-o", out / "o-%d.tar", "--max-count", 200])

    def test_pack_from_shards(self):
        self.check(lambda out: ["pack", "--from-shards", self.spec, "-o", out / "o-%d.tar", "--restart", 1])

    def test_index_create(self):
        self.check(lambda out: ["index", "create", self.spec, "-o", out / "i.json"])

    def test_fake(self):
        self.check(lambda out: ["fake", out / "f-%06d.tar", "--shards", 3, "--samples", 300, "--overwrite"])

    def test_a_cache_that_is_filled(self):
        with PlainServer(self.path) as server:
            urls = [f"{server.url}/in-{i:06}.tar" for i in range(4)]
            self.check(lambda out: ["digest", *urls],
                       env=lambda out: {"MILLRACE_CACHE": str(out / "cache"), "MILLRACE_CACHE_FREE": "0"},
                       product=self.entries)

    def entries(self, out):
        env = {"MILLRACE_CACHE": str(out / "cache")}
        self.assertEqual(run("millrace", "cache", "verify", env=env).returncode, 0)
        return sorted(p.name for p in (out / "cache").iterdir() if len(p.name) == 64)


if __name__ == "__main__":
    unittest.main()
