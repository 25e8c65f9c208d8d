"""docs/first-hour.md as its reader goes through it: each block of commands, in order, in one folder. The lines shown below a block must
be in what it printed, in their order. Figures that differ from run to run may be others of their kind."""

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

# Figures with a unit or a decimal point: times, sizes, rates, time left, losses. All other figures are compared.
VARYING = [r"\d[\d.]* (?:us|ms|s|min|h)\b", r"\d[\d.]* (?:B|[KMGT]iB)\b", r"\d[\d.]* (?:images/s|MB/s|%|cores)", r"\d+:[\d:]+ left",
           r"\d+\.\d+"]


def blocks(text):
    """(commands, what they print) for each block of commands."""
    found = []
    for kind, content in re.findall(r"^```(bash|text)\n(.*?)^```$", text, re.M | re.S):
        if kind == "bash":
            found.append((content, ""))
        else:
            found[-1] = (found[-1][0], content)
    return found


def pattern_of(shown):
    """Matches the lines that `shown` stands for, whatever their alignment."""
    parts = re.split(rf"(\.\.\.|(?<![\w.])(?:{'|'.join(VARYING)}))", " ".join(shown.split()))
    return "".join(".*" if p == "..." else next((kind for kind in VARYING if re.fullmatch(kind, p)), re.escape(p)) for p in parts)


def first_not_printed(shown, printed):
    """The first line of `shown` that `printed` does not have after those before it, or None."""
    lines = (" ".join(line.split()) for line in printed.splitlines())
    return next((s for s in shown.splitlines() if not any(re.fullmatch(pattern_of(s), line) for line in lines)), None)


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
                self.assertIsNone(first_not_printed(printed, done.stdout), done.stdout)
        if left_out:
            print(f"\nleft out, for want of their programs: {left_out}")

    def test_only_figures_of_a_run_may_differ(self):
        said = "4 shards, 400 samples, 986.0 KiB  in 1.2 s\nexit code 1"
        for shown in ["4 shards, 400 samples, 14.6 MiB in 180 ms", "... in 3 s\nexit code 1", "4 ... samples, ..."]:
            self.assertIsNone(first_not_printed(shown, said), shown)
        for shown in ["4 shards, 401 samples, 14.6 MiB in 180 ms", "4 shards, 400 samples, 14.6 MiB in 3 MiB", "exit code 2",
                      "4 shards, 400 samples", "exit code 1\n4 shards, ..."]:
            self.assertIsNotNone(first_not_printed(shown, said), shown)

    def test_every_bottleneck_is_in_the_table(self):
        table = re.search(r"^\| limited by \|.*?\n\|---.*?\n(.*?)\n\n", DOCUMENT.read_text(), re.M | re.S)[1]
        named = re.findall(r'"limited by ([^:"]+):', (harness.ROOT / "cli/bench_load.cc").read_text())
        self.assertEqual(sorted(re.findall(r"^\| ([^|]+) \|", table, re.M)), sorted(set(named)))

    def test_every_link_leads_to_a_file(self):
        for document in [harness.ROOT / "README.md", *(harness.ROOT / "docs").glob("*.md")]:
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
                if "://" not in target:
                    self.assertTrue((document.parent / target).exists(), f"{document.name}: {target}")


if __name__ == "__main__":
    unittest.main()
