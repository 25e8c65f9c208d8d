"""millrace fake: the same bytes for the same options, and no half shards."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.archives import md5  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


class Fake(unittest.TestCase):
    def test_is_the_same_every_time_and_differs_by_seed(self):
        with harness.Folder() as folder:
            digests = [run("millrace", "digest", harness.fake(folder, name, 3, 50, seed=seed)).stdout
                       for name, seed in (("a", 1), ("b", 1), ("c", 2))]
            self.assertEqual(digests[0], digests[1])
            self.assertNotEqual(digests[0], digests[2])

    def test_takes_a_brace_range_and_leaves_no_half_shard(self):
        with harness.Folder() as folder:
            done = run("millrace", "fake", f"{folder}/x-{{00..02}}.tar", "--samples", 10)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(p.name for p in folder.iterdir()),
                             ["x-00.tar", "x-01.tar", "x-02.tar"])
            done = run("millrace", "fake", f"{folder}/none/x-%d.tar")
            self.assertEqual(done.returncode, 4)

    def test_a_name_of_another_number_of_shards_is_refused(self):
        with harness.Folder() as folder:
            for name, shards in (("x.tar", 2), ("x-{0..2}.tar", 2), ("x-{0..2}.tar", 4)):
                done = run("millrace", "fake", folder / name, "--shards", shards, "--samples", 2)
                self.assertEqual((done.returncode, [*folder.iterdir()]), (2, []), done.stderr)
                self.assertIn(f"but --shards is {shards}; write %06d into the name", done.stderr)
            done = run("millrace", "fake", folder / "x.tar", "--shards", 1, "--samples", 2)
            self.assertEqual((done.returncode, [p.name for p in folder.iterdir()]), (0, ["x.tar"]), done.stderr)

    def test_of_two_at_once_none_replaces_a_shard_of_the_other(self):
        with Folder() as folder:
            for name in ("a", "b"):
                run("millrace", "fake", folder / f"{name}-%d.tar", "--shards", 20, "--samples", 400, "--seed", ord(name))
            whole = {name: [md5(folder / f"{name}-{i}.tar") for i in range(20)] for name in ("a", "b")}
            for _ in range(5):
                runs = [harness.start("millrace", "fake", folder / "o-%d.tar", "--shards", 20, "--samples", 400, "--seed", ord(name),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for name in ("a", "b")]
                said = [r.communicate(timeout=60)[1] for r in runs]
                written = [md5(p) for p in sorted(folder.glob("o-*.tar"), key=lambda p: int(p.stem[2:]))]
                for name, one in zip(("a", "b"), runs):
                    self.assertEqual(one.returncode == 0, written == whole[name], said)
                    self.assertIn(one.returncode, (0, 2), said)
                self.assertEqual(list(folder.glob("*.partial.*")), [])
                for left in folder.glob("o-*.tar"):
                    left.unlink()


if __name__ == "__main__":
    unittest.main(verbosity=2)
