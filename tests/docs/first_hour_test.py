"""docs/first-hour.md as its reader goes through it: each block of commands, in order, in one folder. What a block prints is looked for
in what it printed, whatever the figures are."""

import pathlib
import re
import shutil
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

DOCUMENT = harness.ROOT / "docs/first-hour.md"
TRAINER = harness.BIN / "millrace-train"
TOOLS = harness.ROOT / "build/venv/bin"


def blocks(text):
    """(commands, what they print) for each block of commands."""
    found = []
    for kind, content in re.findall(r"^```(bash|text)\n(.*?)^```$", text, re.M | re.S):
        if kind == "bash":
            found.append((content, ""))
        else:
            found[-1] = (found[-1][0], content)
    return found


def without_figures(text):
    """Lines in which all figures, and the units of times and sizes, are the same."""
    return [re.sub(r"# (us|ms|s|KiB|MiB)\b", "# unit", re.sub(r"\d[\d.,:]*", "#", line)).strip() for line in text.splitlines()]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class FirstHour(unittest.TestCase):
    def test_every_block_does_what_it_says(self):
        folder = self.enterContext(harness.Folder())
        port = free_port()
        path = f"{harness.BIN}:{TOOLS}:{harness.CLEAN['PATH']}"
        left_out = []
        for commands, printed in blocks(DOCUMENT.read_text()):
            needs = [w for w in ("torchrun", "moto_server") if w in commands]
            trains = "millrace-train" in commands or "train.sh" in commands
            if any(shutil.which(w, path=path) is None for w in needs) or (trains and not TRAINER.exists()):
                left_out.append(commands.splitlines()[0])
                continue
            leaves_nothing = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
            with self.subTest(commands=commands):
                script = leaves_nothing + commands.replace("5000", str(port))
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                                      env=harness.CLEAN | {"PATH": path, "OMP_NUM_THREADS": "1"})
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertEqual([l for l in without_figures(printed) if l not in without_figures(done.stdout)], [], done.stdout)
        if left_out:
            print(f"\nleft out, for want of their programs: {left_out}")

    def test_every_link_leads_to_a_file(self):
        for document in [harness.ROOT / "README.md", *(harness.ROOT / "docs").glob("*.md")]:
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
                if "://" not in target:
                    self.assertTrue((document.parent / target).exists(), f"{document.name}: {target}")


if __name__ == "__main__":
    unittest.main()
