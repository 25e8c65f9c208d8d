"""The benchmark scripts: that they still run, on little of everything."""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402


class Scripts(unittest.TestCase):
    @unittest.skipUnless(shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"), "no nginx: ./setup --tests installs it")
    def test_network(self):
        cases = ["shards", "object", "tls", "small", "delay", "cache"]
        with harness.Folder() as folder:
            done = subprocess.run([sys.executable, harness.ROOT / "bench/network.py", "--small", "--rounds", "1", "--folder", folder, *cases],
                                  capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("| millrace | "), len(cases) + 1, done.stdout)  # the cache is read in two ways


if __name__ == "__main__":
    unittest.main(verbosity=2)
