"""The step of an exported module in millrace-train beside the same module in PyTorch: eager, and by torch.compile.

    build/venv/bin/python bench/exported.py torchvision.models:resnet18 [--size 64] [--batch 16] [--steps 20] [--rounds 3] [--threads 1]

All train on the same images with as many threads, in alternating turns; medians of the steps after the first few, without
the time that millrace-train waits for data. Needs ./setup --peers."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "train/models")]
from tests.support import harness  # noqa: E402

WARM_UP = 5


def by_millrace(a, folder, turn):
    metrics = folder / f"{turn}.jsonl"
    words = ["--shards", folder / "data-000000.tar", "--model", folder / "model.pt2", "--classes", a.classes, "--size", a.size,
             "--batch-size", a.batch, "--device", "cpu", "--max-steps", a.steps + WARM_UP, "--epochs", 1000, "--lr", 0.001,
             "--schedule", "constant", "--metrics", metrics, "--prefetch", 4]
    done = harness.run("millrace-train", *words, timeout=3600,
                       env={"OMP_NUM_THREADS": str(a.threads), "MILLRACE_CPU_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [s["seconds"] - s["waiting"] for s in steps if "batch" in s][WARM_UP:]


def in_python(a, compiled):
    import export_model
    import torch

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = export_model.module_of(a.model, a.classes, a.size).train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(a.batch, 3, a.size, a.size).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(a.batch) % a.classes
    run = torch.compile(model) if compiled else model
    seconds = []
    for _ in range(a.steps + WARM_UP):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run(images), labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="what export_model.py takes: FILE.py:FUNCTION or MODULE:FUNCTION")
    for name, value in (("size", 64), ("classes", 10), ("batch", 16), ("steps", 20), ("rounds", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which compiles in each turn")
    parser.add_argument("--python", choices=["eager", "compiled"], help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.python:
        print(json.dumps(in_python(a, a.python == "compiled")))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        harness.fake(folder, "data", 1, a.batch * 8, size=a.size, classes=a.classes)
        start = time.perf_counter()
        subprocess.run([sys.executable, ROOT / "train/models/export_model.py", a.model, "-o", folder / "model.pt2", "--size", str(a.size),
                        "--classes", str(a.classes), "--batch-size", str(a.batch)], check=True)
        print(f"exported in {time.perf_counter() - start:.0f} s")
        kinds = ["eager", "compiled"] if a.compile else ["eager"]
        times = {"millrace-train": []} | {kind: [] for kind in kinds}
        for turn in range(a.rounds):
            times["millrace-train"] += by_millrace(a, folder, turn)
            for kind in kinds:
                out = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--python", kind], check=True, stdout=subprocess.PIPE,
                                     env=os.environ | {"OMP_NUM_THREADS": str(a.threads)})
                times[kind] += json.loads(out.stdout)
    ours = statistics.median(times["millrace-train"])
    for kind, of in times.items():
        median = statistics.median(of)
        print(f"{kind}: {1000 * median:.1f} ms a step, of {a.batch} images; {median / ours:.2f} of millrace-train's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
