"""Crops of real photos, decoded from only their rows and columns, are bit-identical to those of the whole image."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

CROPS = os.environ.get("MILLRACE_TEST_CROPS", "3")  # of each photo; 200 for the whole table


class Exactness(unittest.TestCase):
    def check(self, folder, restart):
        shards = sorted(map(str, (harness.SHARED / folder).glob("*.tar")))
        done = subprocess.run([harness.BIN / "crop_visitor", CROPS, str(restart), *shards], capture_output=True, text=True,
                              env=harness.CLEAN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = json.loads(done.stdout)
        self.assertGreater(found["photos"], 0)
        self.assertEqual(found["differing"], 0)
        print(f"{folder}, restart {restart}: {found}")

    @harness.needs_shared("imagenet-sample")
    def test_photos_as_they_are(self):
        self.check("imagenet-sample", 0)

    @harness.needs_shared("imagenet-sample")
    def test_photos_with_restart_runs(self):
        self.check("imagenet-sample", 4)

    @harness.needs_shared("imagenette224")
    def test_small_photos(self):
        self.check("imagenette224", 0)

    def test_what_the_tests_have_themselves(self):
        with harness.Folder() as folder:
            harness.fake(folder, "a", 1, 20, size=150)
            for restart in "0", "2":
                done = subprocess.run([harness.BIN / "crop_visitor", "20", restart, folder / "a-000000.tar"],
                                      capture_output=True, text=True, env=harness.CLEAN)
                self.assertEqual(json.loads(done.stdout), {"photos": 20, "crops": 400, "differing": 0}, done.stderr)


if __name__ == "__main__":
    unittest.main()
