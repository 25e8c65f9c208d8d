"""millrace ls beside Python webdataset, on every real shard: the same keys, extensions and sizes.

Run it in the environment of ./setup --peers; skips where that or the data is missing."""

import json
import pathlib
import sys
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


if __name__ == "__main__":
    unittest.main()
