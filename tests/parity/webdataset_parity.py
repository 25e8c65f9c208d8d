"""millrace ls beside Python webdataset, on every real shard: the same keys, extensions and sizes.

Run it in the environment of ./setup --peers; skips where that or the data is missing."""

import io
import json
import os
import pathlib
import random
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

try:
    import webdataset
except ImportError:
    webdataset = None


def samples_of_webdataset(shard):
    data = webdataset.WebDataset(str(shard), shardshuffle=False, empty_check=False)
    return [(s["__key__"], {k: len(v) for k, v in s.items() if not k.startswith("__")})
            for s in data]


@unittest.skipUnless(webdataset, "webdataset is not installed: ./setup --peers")
class WebDatasetParity(unittest.TestCase):
    def compare(self, folder):
        shards = sorted((harness.SHARED / folder).glob("*.tar"))
        self.assertTrue(shards)
        for shard in shards:
            with self.subTest(shard=shard.name):
                listed = harness.run("millrace", "ls", "--json", shard)
                self.assertEqual(listed.returncode, 0, listed.stderr)
                ours = [(s["key"], s["fields"]) for s in json.loads(listed.stdout)["list"]]
                self.assertEqual(ours, samples_of_webdataset(shard))

    @harness.needs_shared("webdataset-real")
    def test_real(self):
        self.compare("webdataset-real")

    @harness.needs_shared("imagenet-sample")
    def test_imagenet_sample(self):
        self.compare("imagenet-sample")

    @harness.needs_shared("imagenette224")
    def test_imagenette(self):
        self.compare("imagenette224")

    def test_random_shards(self):
        """Odd names, dots, folders, duplicates, empty files, links; in the formats that tar has."""
        rng = random.Random(11)
        errors = 0
        with harness.Folder() as folder:
            for number in range(int(os.environ.get("MILLRACE_TEST_SHARDS", 1000))):
                shard = folder / f"{number}.tar"
                write_random_shard(rng, shard)
                try:
                    theirs = samples_of_webdataset(shard)
                except Exception as wrong:  # noqa: BLE001
                    theirs = f"{wrong}"
                listed = harness.run("millrace", "ls", "--json", shard)
                if isinstance(theirs, str):
                    errors += 1
                    self.assertIn("duplicate file name", theirs)
                    self.assertIn("duplicate_field", listed.stderr)
                    self.assertEqual(listed.returncode, 5)
                elif theirs:
                    self.assertEqual(listed.returncode, 0, listed.stderr)
                    ours = [(s["key"], s["fields"]) for s in json.loads(listed.stdout)["list"]]
                    self.assertEqual(ours, theirs, f"shard {number}")
                else:
                    self.assertIn("no_samples", listed.stderr)
                shard.unlink()
        self.assertGreater(errors, 3)


def write_random_shard(rng, path):
    parts = ["a", "b.c", "img 2.0 (x)", ".hidden", "__x__", "__meta__", "dir", "deep/er", "./d", "n" * 120, "\u00e9t\u00e9",
             "2024.01.02", "x..y", "UP", "line\nfeed"]
    extensions = ["jpg", "JPG", "cls", "json", "txt.gz", "seg.png", "", "a.b.c", "Mixed.Case"]
    form = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(path, "w", format=form) as tar:
        for _ in range(rng.randint(1, 12)):
            stem = "/".join(rng.choice(parts) for _ in range(rng.randint(1, 2)))[:200]
            if form == tarfile.USTAR_FORMAT:
                stem = stem[:60].encode("ascii", "ignore").decode() or "a"
            stem += rng.choice(["", "", f"{rng.randint(0, 99):03}"])
            for extension in rng.sample(extensions, rng.randint(1, 3)) + rng.choice([[], [], [], ["jpg"]]):
                info = tarfile.TarInfo(stem + rng.choice([".", ".", ".", ""]) + extension)
                kind = rng.random()
                if kind < 0.05:
                    info.type, info.linkname = rng.choice([(tarfile.SYMTYPE, "a"), (tarfile.LNKTYPE, "a"), (tarfile.DIRTYPE, "")])
                    tar.addfile(info)
                    continue
                content = rng.randbytes(rng.choice([0, 1, 511, 512, 513, 3000]))
                info.size = len(content)
                info.mtime = rng.choice([0, 1.5]) if form == tarfile.PAX_FORMAT else 0
                tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    unittest.main()
