"""docs/troubleshooting.md knows every kind of error, and no other."""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402


class Troubleshooting(unittest.TestCase):
    def test_every_kind_of_error_is_explained(self):
        kinds = re.findall(r"^  (\w+),\s+// ", (harness.ROOT / "engine/base/error.h").read_text().split("enum class errc")[1].split("};")[0], re.M)
        explained = re.findall(r"^\| `(\w+)` \|", (harness.ROOT / "docs/troubleshooting.md").read_text(), re.M)
        self.assertGreater(len(kinds), 30)
        self.assertEqual(sorted(explained), sorted(kinds))


if __name__ == "__main__":
    unittest.main()
