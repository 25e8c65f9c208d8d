"""Time to the first batch of 64 decoded images from local shards, beside Python webdataset.

    build/venv/bin/python bench/first_batch.py SHARDS [--rounds 7]

Both start as a user's program does, from nothing, in turns: millrace-like (example_first_batch) and a Python process
with WebDataset, torchvision's transforms and a batch of 64, without and with 2 workers. The time counts from the start
of the pipeline (imports left out) to the batch in hand. Medians. Needs ./setup --peers."""

import argparse
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import harness  # noqa: E402

PYTHON = """
import sys, time
import torch, torchvision, webdataset as wds
from torchvision import transforms as T
spec, workers = sys.argv[1], int(sys.argv[2])
start = time.perf_counter()
transform = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()])
data = (wds.WebDataset(spec, shardshuffle=100, seed=1).shuffle(64).decode("pil").to_tuple("jpg", "cls")
        .map_tuple(transform, lambda y: y).batched(64))
images, labels = next(iter(wds.WebLoader(data, batch_size=None, num_workers=workers)))
print(time.perf_counter() - start)
assert images.shape[0] == 64
"""


def seconds(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=harness.CLEAN)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("shards")
    options.add_argument("--rounds", type=int, default=7)
    o = options.parse_args()
    programs = {
        "millrace": [harness.BIN / "example_first_batch", o.shards],
        "webdataset, in the process": [sys.executable, "-c", PYTHON, o.shards, "0"],
        "webdataset, 2 workers": [sys.executable, "-c", PYTHON, o.shards, "2"],
    }
    times = {name: [] for name in programs}
    for _ in range(o.rounds):
        for name, command in programs.items():
            times[name].append(seconds(command))
    ours = statistics.median(times["millrace"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:28} {1000 * median:7.1f} ms (from {1000 * min(taken):.1f} to {1000 * max(taken):.1f}), "
              f"{median / ours:5.1f} x")


if __name__ == "__main__":
    main()
