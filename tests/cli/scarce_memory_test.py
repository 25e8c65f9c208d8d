"""Libraries that are refused memory, one allocation after the other: the command gives what it gives otherwise, or says
that there is no memory. What a library makes of it is never taken for damage of the data."""

import gzip
import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402

POINTS = 40  # of each library, spread over all of them


@unittest.skipUnless((harness.BIN / "scarce_memory.so").exists(), "scarce_memory.so is not built here")
class ScarceMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Folder()
        cls.path = cls.folder.__enter__()
        cls.addClassCleanup(cls.folder.__exit__)
        harness.fake(cls.path, "a", 1, 12, size=64)
        cls.shard = cls.path / "a-000000.tar"

    def told(self, words, library, at):
        env = {"LD_PRELOAD": str(harness.BIN / "scarce_memory.so"), "SCARCE_LIBRARY": library, "SCARCE_AT": str(at),
               "MILLRACE_CPU_THREADS": "1", "MILLRACE_LOG": "quiet"}
        done = run("millrace", *words, "--json", env=env, timeout=60)
        asked = re.search(r"scarce_memory: (\d+) asked for\n", done.stderr)
        return done, int(asked.group(1)) if asked else 0

    def check(self, library, *words):
        whole, asked = self.told(words, library, 0)
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertGreater(asked, 0, f"{library} asks for no memory")
        for at in sorted({1 + i * max(1, asked // POINTS) for i in range(POINTS)}):
            if at > asked:
                break
            done, _ = self.told(words, library, at)
            with self.subTest(library, at=at, of=asked):
                if done.returncode == 0:
                    self.assertEqual(done.stdout, whole.stdout)
                else:
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertEqual(json.loads(done.stdout.splitlines()[-1])["error"]["kind"], "no_memory", done.stderr)

    def packed(self, name, content):
        path = self.path / name
        path.write_bytes(content)
        return path

    def test_of_images(self):
        self.check("libjpeg", "verify", "--images", self.shard)

    def test_of_compressed_shards(self):
        self.check("libz.", "digest", self.packed("a.tar.gz", gzip.compress(self.shard.read_bytes())))
        # Of libarchive 3.6 and of what it calls some refusals end the program within it, and bzip2's are damage to it.

    def test_of_digests(self):
        self.check("libcrypto", "digest", self.shard)

    def test_a_host_without_md5(self):
        configuration = self.path / "openssl.cnf"
        configuration.write_text("openssl_conf = a\n[a]\nalg_section = b\n[b]\ndefault_properties = fips=yes\n")
        for words in (["digest", self.shard], ["index", "create", self.shard, "-o", self.path / "i.json"]):
            done = run("millrace", *words, env={"OPENSSL_CONF": str(configuration)})
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("millrace: unsupported: OpenSSL cannot compute ", done.stderr)


if __name__ == "__main__":
    unittest.main()
