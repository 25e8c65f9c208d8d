"""docs/python.md: every block is run in order, those of Python in one process; and every name that it offers is offered."""

import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, PACKAGES, Case, harness, mr  # noqa: E402

PAGE = harness.ROOT / "docs/python.md"


class PythonPage(Case):
    def test_every_block_runs(self):
        blocks = re.findall(r"^```(\w+)( skip)?\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
        self.assertEqual({kind for kind, _, _ in blocks}, {"bash", "python"})
        with harness.Folder() as folder:
            environment = harness.CLEAN | {"PYTHONPATH": PACKAGES}
            for kind, skip, content in blocks:
                if kind == "bash" and not skip:
                    content = content.replace("python -m", f"{sys.executable} -m")
                    done = subprocess.run(["bash", "-eu", "-c", content], cwd=folder, env=environment, text=True,
                                          capture_output=True)
                    self.assertEqual(done.returncode, 0, done.stderr)
            python = [c for kind, skip, c in blocks if kind == "python" and not skip and (HAS_TORCH or "import torch" not in c)]
            text = "\n".join(python) + "\nassert (step, len(keys), left) == (3, 100, 400 - 2 * 2 * 32), (step, len(keys), left)\n"
            done = subprocess.run([sys.executable, "-W", "error", "-c", text], cwd=folder, env=environment, text=True,
                                  capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("not_found: no such file, at nowhere.tar", done.stdout)

    def test_names_are_there(self):
        for name in set(re.findall(r"\bmr\.(\w+)", PAGE.read_text())) - {"IterableDataset"}:
            self.assertTrue(hasattr(mr, name), name)


if __name__ == "__main__":
    unittest.main()
