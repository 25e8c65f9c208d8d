"""hidden_arrows.py finds a function that is defined above its header, and nothing else."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import hidden_arrows  # noqa: E402

FILES = {
    "pipeline/low/a.h": "int up(const char* x);\nstate both(int y = {});\nvoid within();\nextern template int made(int);\n",
    "pipeline/low/a.cc": "state both(int y) {\n}\nvoid within() {\n  up(1);\n}\n",
    "pipeline/high/b.h": "void down();\n",
    "pipeline/high/b.cc": "int up(const char* x) {\n}\nstate both(int y) {\n}\nint made(int) {\n}\n",
    "pipeline/low/c.cc": "void down() {\n}\n",
}


class HiddenArrows(unittest.TestCase):
    def test_a_definition_above_its_header_is_reported(self):
        found = list(hidden_arrows.hidden(FILES, lambda path: int("high" in path)))
        self.assertEqual(found, [("pipeline/low/a.h", "up", "pipeline/high/b.cc")])


if __name__ == "__main__":
    unittest.main(verbosity=2)
