"""millrace index beside Python wids 0.2.111: the same index to the byte, and the same bytes of every sample asked for.

Run it in the environment of ./setup --peers; skips where that is missing."""

import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

# An older release than that of the other comparisons, so in a folder of its own: later ones have no wids.
WIDS = pathlib.Path(sys.prefix) / "wids"

CREATE = """
import sys
from wids.wids_index import main
sys.argv = ["widsindex", "create", *sys.argv[1:]]
main()
"""

# The samples of numbers on stdin, as lines of JSON: key and {extension: content in hexadecimal}.
GET = """
import json, sys
import wids
data = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2], keep=True, transformations=[])
for number in json.load(sys.stdin):
    sample = data[number]
    fields = {k[1:]: (v if isinstance(v, bytes) else v.read()).hex() for k, v in sample.items() if k.startswith(".")}
    print(json.dumps([sample["__key__"], fields]))
"""


def wids(script, *arguments, stdin="", cwd=None):
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], input=stdin, cwd=cwd, text=True,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(WIDS)}, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def write_shard(chance, path, first, count):
    """Names that wids reads whole: short ones. Its other formats of headers confuse its numbering of samples."""
    extensions = ["jpg", "cls", "json", "seg.png", "txt.gz"]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(first, first + count):
            for extension in chance.sample(extensions, chance.randint(1, 4)):
                content = chance.randbytes(chance.choice([1, 511, 512, 513, 3000]))
                info = tarfile.TarInfo(f"{chance.choice(['', 'in/'])}s{i:06}.{extension}" if extension == "jpg" else f"s{i:06}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


@unittest.skipUnless(WIDS.is_dir(), "wids is not installed: ./setup --peers")
class WidsParity(unittest.TestCase):
    def compare(self, folder, shards, numbers):
        names = [s.name for s in shards]
        told = wids(CREATE, *names, "-o", "theirs.json", cwd=folder)
        done = harness.run("millrace", "index", "create", *names, "-o", "ours.json", cwd=folder)
        self.assertEqual(done.stdout, told, done.stderr)
        self.assertEqual((folder / "ours.json").read_bytes(), (folder / "theirs.json").read_bytes())
        lines = wids(GET, folder / "theirs.json", folder / "cache", stdin=json.dumps(numbers)).splitlines()
        theirs = [json.loads(line) for line in lines if line.startswith("[")]
        self.assertEqual(len(theirs), len(numbers))
        for number, (key, fields) in zip(numbers, theirs):
            listed = harness.run("millrace", "index", "sample", "ours.json", number, cwd=folder).stdout
            self.assertIn(f"'{key}'", listed)
            for extension, content in fields.items():
                ours = subprocess.run([harness.BIN / "millrace", "index", "sample", "ours.json", str(number), "-c", extension],
                                      cwd=folder, env=harness.CLEAN, capture_output=True, check=True).stdout
                self.assertEqual(ours.hex(), content, f"sample {number}, {extension}")

    def test_random_shards(self):
        chance = random.Random(7)
        with harness.Folder() as folder:
            counts = [chance.randint(1, 20) for _ in range(30)]
            shards = []
            for i, count in enumerate(counts):
                shards.append(folder / f"s-{i:03}.tar")
                write_shard(chance, shards[-1], sum(counts[:i]), count)
            self.compare(folder, shards, chance.sample(range(sum(counts)), 80))

    @harness.needs_shared("imagenet-sample")
    def test_real_shards(self):
        chance = random.Random(8)
        with harness.Folder() as folder:
            for shard in sorted((harness.SHARED / "imagenet-sample").glob("*.tar")):
                (folder / shard.name).symlink_to(shard)
            self.compare(folder, sorted(folder.glob("*.tar")), chance.sample(range(700), 20))


if __name__ == "__main__":
    unittest.main()
