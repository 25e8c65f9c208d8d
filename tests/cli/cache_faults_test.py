"""What an origin does wrong is met with and without the cache alike; and processes that fill it at the same time."""

import json
import pathlib
import random
import resource
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.fault_server import FaultServer  # noqa: E402
from tests.support.harness import Folder, cat, run, sha  # noqa: E402

# Those up to 4 MiB are checked before their first byte is given out, others before their last.
SMALL = random.Random(5).randbytes(1_000_000)
LARGE = random.Random(6).randbytes(9_000_000)
TIMERS = {"MILLRACE_HTTP_FIRST_BYTE_TIMEOUT": "2", "MILLRACE_HTTP_PROGRESS_TIMEOUT": "2",
          "MILLRACE_HTTP_ATTEMPTS": "3", "MILLRACE_HTTP_BACKOFF": "0.05"}
FAULTS = ("plain", "shiftbody", "shiftbody/always", "truncate/700000", "cutat/300000", "norange", "s3err200", "503/99",
          "404/99", "close", "badtotal")


class CachedFaults(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.path = self.folder.__enter__()
        self.env = TIMERS | {"MILLRACE_CACHE": str(self.path / "cache"), "MILLRACE_CACHE_FREE": "0"}
        self.addCleanup(self.folder.__exit__)

    def test_the_outcome_is_that_without_the_cache(self):
        for content in SMALL, LARGE:
            for fault in FAULTS:
                with FaultServer({"a.tar": content}) as server:
                    plain = cat(f"{server.url}/{fault}/a.tar", env=TIMERS)
                with FaultServer({"a.tar": content}) as server:
                    for _ in range(2):
                        cached = cat(f"{server.url}/{fault}/a.tar", env=self.env)
                        with self.subTest(fault=fault, size=len(content)):
                            if cached.returncode == 0:
                                self.assertIn(sha(cached.stdout), (sha(content), sha(plain.stdout)))
                            if fault == "shiftbody/always":
                                self.assertEqual(cached.returncode, 5, cached.stderr)
                            if plain.returncode == 0:
                                self.assertEqual(cached.returncode, 0, cached.stderr)
                self.assertEqual(run("millrace", "cache", "verify", env=self.env).returncode, 0)

    def test_processes_at_the_same_time_keep_to_the_size(self):
        size = 9_000_000
        env = self.env | {"MILLRACE_CACHE_SIZE": "12000000"}
        with FaultServer({f"{k}.tar": random.Random(k).randbytes(size) for k in range(6)}) as server:
            readers = [subprocess.Popen([harness.BIN / "millrace", "cat", f"{server.url}/slow/30000/{k}.tar"],
                                        env=harness.CLEAN | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                       for k in range(6)]
            for k, reader in enumerate(readers):
                self.assertEqual(sha(reader.communicate(timeout=120)[0]), sha(server.contents[f"{k}.tar"]))
        found = json.loads(run("millrace", "cache", "ls", "--json", env=env).stdout)
        self.assertLessEqual(found["bytes"], 12_000_000)

    def test_an_object_of_which_only_all_can_be_had_is_read(self):
        """Larger than any answer that is kept in memory."""
        content = bytes(70_000_000)
        with FaultServer({"a.tar": content}) as server:
            for _ in range(2):
                done = cat(f"{server.url}/nohead/a.tar", env=self.env)
                self.assertEqual((done.returncode, len(done.stdout)), (0, len(content)), done.stderr)
            self.assertEqual(sha(done.stdout), sha(content))

    def test_few_descriptors_suffice_for_what_is_there(self):
        if harness.has_ubsan():
            self.skipTest("UBSan's check of virtual calls needs descriptors of its own")
        with FaultServer({"a.tar": LARGE}) as server:
            url = f"{server.url}/plain/a.tar"
            self.assertEqual(sha(cat(url, env=self.env).stdout), sha(LARGE))
            asked = len([r for r in server.requests() if r.get("method") == "GET"])
            for most in (12, 16, 20, 24):
                with self.subTest(descriptors=most):
                    done = subprocess.run([harness.BIN / "millrace", "cat", url], env=harness.CLEAN | self.env,
                                          capture_output=True, timeout=60,
                                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
                    self.assertEqual((done.returncode, sha(done.stdout), done.stderr), (0, sha(LARGE), b""))
            self.assertEqual(len([r for r in server.requests() if r.get("method") == "GET"]), asked)


if __name__ == "__main__":
    unittest.main()
