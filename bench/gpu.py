"""Training on a GPU beside PyTorch, and from shards beside batches that are made once.

    gpu.py [--bin build/release/bin] [--json FILE] [--rounds 3] [--device cuda] [--small]

Alternates within each comparison; prints medians of ratios. Run by an interpreter with torch and torchvision, which are the peer.
--small: small models and few steps, to try the script itself, on --device cpu too."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


class Case:
    """What is trained: as both sides take it."""

    def __init__(self, model, size, batch, steps):
        self.model, self.size, self.batch, self.steps = model, size, batch, steps

    def words(self):
        return ["--model", self.model, "--size", self.size, "--batch-size", self.batch, "--max-steps", self.steps]


def millrace(a, case, *more):
    """The JSON object of a run; `images_per_s` leaves out the first steps, in which kernels are chosen."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "m.jsonl"
        words = [a.bin / "millrace-train", *case.words(), "--device", a.device, "--lr", 0.01, "--schedule", "constant", "--json",
                 "--metrics", metrics, *more]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
        steps = [s for s in map(json.loads, metrics.read_text().splitlines()) if "batch" in s][10:]
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = sum(s["seconds"] for s in steps)
    return {"images_per_s": len(steps) * case.batch / seconds, "waiting": sum(s["waiting"] for s in steps) / seconds,
            "cores": found.get("cpu_seconds", 0) / max(found.get("seconds", 1), 1e-9)}


def torch_rate(a, case, compiled):
    """Images per second of the same model in Python, on one batch that stays on the device."""
    import torch
    import torchvision
    model = getattr(torchvision.models, case.model)(num_classes=1000).to(a.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=a.device == "cuda")
    step = torch.compile(model) if compiled else model
    images = torch.randint(0, 256, (case.batch, case.size, case.size, 3), dtype=torch.uint8, device=a.device).permute(0, 3, 1, 2)
    labels = torch.randint(0, 1000, (case.batch,), device=a.device)
    wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    for i in range(case.steps):
        if i == 10:
            wait()
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=a.device == "cuda"):
            loss = torch.nn.functional.cross_entropy(step(images.float() / 255), labels)
        loss.backward()
        optimizer.step()
    wait()
    return (case.steps - 10) * case.batch / (time.perf_counter() - start)


def compared(a, name, at_least, one, other, unit="images/s"):
    """Runs both in turns."""
    ours, theirs, ratios = [], [], []
    for _ in range(a.rounds):
        ours.append(one())
        theirs.append(other())
        ratios.append(ours[-1] / theirs[-1])
    row = {"what": name, "ours": statistics.median(ours), "other": statistics.median(theirs), "ratio": statistics.median(ratios),
           "least": min(ratios), "most": max(ratios), "at_least": at_least}
    print(f"{name}: {row['ours']:.0f} against {row['other']:.0f} {unit}, ratio {row['ratio']:.3f} ({row['least']:.3f} to "
          f"{row['most']:.3f}); at least {at_least}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1] / "build/release/bin")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    a = parser.parse_args()
    large = Case("resnet18", 64, 8, 20) if a.small else Case("resnet50", 224, 256, 110)
    quick = Case("resnet18", 64, 8, 20) if a.small else Case("resnet18", 64, 128, 400)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        shards = f"{folder}/t-{{000000..000007}}.tar"
        subprocess.run([a.bin / "millrace", "fake", f"{folder}/t-%06d.tar", "--shards", "8", "--samples", "400" if a.small else "8000",
                        "--size", "96" if a.small else "400", "--classes", "100"], check=True, capture_output=True)
        from_shards, waits, cores = ["--shards", shards, "--epochs", 1000], [], []

        def loaded():
            found = millrace(a, large, *from_shards)
            waits.append(found["waiting"])
            cores.append(found["cores"])
            return found["images_per_s"]

        synthetic = lambda case, *more: millrace(a, case, "--synthetic", *more)["images_per_s"]  # noqa: E731
        rows.append(compared(a, f"{large.model} from shards against --synthetic", 0.99, loaded, lambda: synthetic(large)))
        rows.append({"what": "waiting for data after the first ten steps", "ours": statistics.median(waits), "at_most": 0.01})
        print(f"waiting for data after the first ten steps: {100 * rows[-1]['ours']:.2f} % (at most 1), "
              f"{statistics.median(cores):.1f} cores in all (at most 6)", flush=True)
        for compiled in (False, True):
            name = "torch.compile" if compiled else "PyTorch eager"
            rows.append(compared(a, f"{large.model} --synthetic against {name}", 1.0, lambda: synthetic(large),
                                 lambda c=compiled: torch_rate(a, large, c)))
        if a.device == "cuda":
            rows.append(compared(a, f"{quick.model} at {quick.size} with --graph against without", 1.3,
                                 lambda: synthetic(quick, "--graph"), lambda: synthetic(quick)))
        saved = ["--checkpoint-dir", f"{folder}/c", "--checkpoint-every", 10 if a.small else 100, "--overwrite"]
        rows.append(compared(a, f"{large.model} with a checkpoint every {saved[3]} steps against without", 0.99,
                             lambda: millrace(a, large, *from_shards, *saved)["images_per_s"], loaded))
    if a.json:
        a.json.write_text(json.dumps({"device": a.device, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
