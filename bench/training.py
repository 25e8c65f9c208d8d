"""Training beside PyTorch, and from shards beside batches that are made once.

    training.py [--bin build/release/bin] [--json FILE] [--rounds 3] [--device cuda|cpu] [--small] [--trace FILE]
                [--shards SPEC]

Alternates within each comparison; prints medians of ratios. Run by an interpreter with torch and torchvision, which are the peer.
On the CPU both sides have one thread a rank for the model, and sizes are a CPU's. --small: few steps, to try the script itself. --shards:
to train from, in place of generated ones of 8,000 images. --trace: of ten
steps from shards, as --profile of millrace-train writes it."""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time


class Case:
    """What is trained: as both sides take it."""

    def __init__(self, model, size, batch, steps, ranks=1):
        self.model, self.size, self.batch, self.steps, self.ranks = model, size, batch, steps, ranks

    def words(self):
        return ["--model", self.model, "--size", self.size, "--batch-size", self.batch, "--max-steps", self.steps,
                *(["--nproc", self.ranks] if self.ranks > 1 else [])]


def one_thread(a):
    """For a CPU's figures: else each side decides for itself how many threads it takes."""
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} if a.device == "cpu" else {}


def millrace(a, case, *more):
    """The JSON object of a run; `images_per_s` leaves out the first steps, in which kernels are chosen."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "m.jsonl"
        words = [a.bin / "millrace-train", *case.words(), "--device", a.device, "--lr", 0.01, "--schedule", "constant", "--json",
                 "--metrics", metrics, *more]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, env=os.environ | one_thread(a))
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
        steps = [s for s in map(json.loads, metrics.read_text().splitlines()) if "batch" in s][10:]
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = sum(s["seconds"] for s in steps)
    return {"images_per_s": len(steps) * case.batch / seconds, "waiting": sum(s["waiting"] for s in steps) / seconds,
            "cores": found.get("cpu_seconds", 0) / max(found.get("seconds", 1), 1e-9)}


def torch_rate(a, case, compiled=False):
    """Images per second and rank of the same model in Python, on one batch that stays on the device."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--peer", f"{case.model},{case.size},{case.batch},{case.steps},{case.ranks}", "--device", a.device]
    ranks = [subprocess.Popen([sys.executable, __file__, *words, *(["--compiled"] if compiled else [])], stdout=subprocess.PIPE, text=True,
                              env=os.environ | one_thread(a) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                                                                "WORLD_SIZE": str(case.ranks), "LOCAL_RANK": str(rank)})
             for rank in range(case.ranks)]
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise RuntimeError(f"the peer failed: {' '.join(words)}")
    return float(said[0].split()[-1])


def peer(a):
    """One rank of torch_rate()."""
    import torch
    import torchvision
    model, *numbers = a.peer.split(",")
    case = Case(model, *map(int, numbers))
    device = f"cuda:{os.environ['LOCAL_RANK']}" if a.device == "cuda" else "cpu"
    model = getattr(torchvision.models, case.model)(num_classes=1000).to(device, memory_format=torch.channels_last)
    if case.ranks > 1:
        torch.distributed.init_process_group("nccl" if a.device == "cuda" else "gloo")
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    step = torch.compile(model) if a.compiled else model
    images = torch.randint(0, 256, (case.batch, case.size, case.size, 3), dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
    labels = torch.randint(0, 1000, (case.batch,), device=device)
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
    print((case.steps - 10) * case.batch / (time.perf_counter() - start))
    return 0


def gpus():
    import torch
    return torch.cuda.device_count()


def in_turns(a, runs):
    """Figures of each run by name, one a round."""
    found = {name: [] for name in runs}
    for _ in range(a.rounds):
        for name, run in runs.items():
            found[name].append(run())
    return found


def compared(name, at_least, ours, theirs, unit="images/s"):
    """Figures of the same rounds."""
    ratios = [one / other for one, other in zip(ours, theirs)]
    row = {"what": name, "ours": statistics.median(ours), "other": statistics.median(theirs), "ratio": statistics.median(ratios),
           "least": min(ratios), "most": max(ratios), "at_least": at_least}
    print(f"{name}: {row['ours']:.0f} against {row['other']:.0f} {unit}, ratio {row['ratio']:.3f} ({row['least']:.3f} to "
          f"{row['most']:.3f}); at least {at_least}", flush=True)
    return row


def busy_share(trace):
    """The part of the time from the first kernel of a profile to the last in which a kernel or a copy ran on the GPU."""
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in json.loads(pathlib.Path(trace).read_text())["traceEvents"]
                   if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    busy, end = 0, spans[0][0]
    for start, stop in spans:
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
    return busy / (end - spans[0][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1] / "build/release/bin")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--trace", type=pathlib.Path)
    parser.add_argument("--shards")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peer:
        return peer(a)
    if a.small:
        large = quick = pair = Case("resnet18", 64, 8, 20)
    elif a.device == "cpu":
        large = quick = pair = Case("resnet18", 64, 16, 40)
    else:
        large, quick, pair = Case("resnet50", 224, 256, 110), Case("resnet18", 64, 128, 400), Case("resnet50", 224, 128, 110)
    pair = Case(pair.model, pair.size, pair.batch, pair.steps, ranks=2)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        shards = a.shards or f"{folder}/t-{{000000..000007}}.tar"
        if not a.shards:
            subprocess.run([a.bin / "millrace", "fake", f"{folder}/t-%06d.tar", "--shards", "8", "--samples", "400" if a.small else "8000",
                            "--size", "96" if a.small else "400", "--classes", "100"], check=True, capture_output=True)
        from_shards, waits, cores = ["--shards", shards, "--epochs", 1000], [], []

        def loaded():
            found = millrace(a, large, *from_shards)
            waits.append(found["waiting"])
            cores.append(found["cores"])
            return found["images_per_s"]

        def synthetic(case, *more):
            return millrace(a, case, "--synthetic", *more)["images_per_s"]

        found = in_turns(a, {"shards": loaded, "synthetic": lambda: synthetic(large), "eager": lambda: torch_rate(a, large),
                             "compiled": lambda: torch_rate(a, large, True)})
        rows.append(compared(f"{large.model} from shards against --synthetic", 0.99, found["shards"], found["synthetic"]))
        rows.append({"what": "waiting for data after the first ten steps", "ours": statistics.median(waits), "at_most": 0.01})
        print(f"waiting for data after the first ten steps: {100 * rows[-1]['ours']:.2f} % (at most 1), "
              f"{statistics.median(cores):.1f} cores in all (at most 6)", flush=True)
        for other, name in ("eager", "PyTorch eager"), ("compiled", "torch.compile"):
            rows.append(compared(f"{large.model} --synthetic against {name}", 1.0, found["synthetic"], found[other]))
        if a.device == "cpu" or gpus() > 1:
            found = in_turns(a, {"ours": lambda: synthetic(pair), "theirs": lambda: torch_rate(a, pair)})
            rows.append(compared(f"{pair.model}, two ranks, --synthetic against DistributedDataParallel", 1.0, **found))
        if a.device == "cuda":
            found = in_turns(a, {"ours": lambda: synthetic(quick, "--graph"), "theirs": lambda: synthetic(quick)})
            rows.append(compared(f"{quick.model} at {quick.size} with --graph against without", 1.3, **found))
        every = 10 if a.small else 100
        longer = Case(large.model, large.size, large.batch, 2 * every + 10)
        saved = ["--checkpoint-dir", f"{folder}/c", "--checkpoint-every", every, "--overwrite"]
        found = in_turns(a, {"ours": lambda: millrace(a, longer, *from_shards, *saved)["images_per_s"],
                             "theirs": lambda: millrace(a, longer, *from_shards)["images_per_s"]})
        rows.append(compared(f"{large.model} with a checkpoint every {every} steps against without", 0.99, **found))
        if a.trace:
            profiled = Case(large.model, large.size, large.batch, 31)
            millrace(a, profiled, *from_shards, "--profile", a.trace)
            if a.device == "cuda":
                rows.append({"what": "part of ten steps in which the GPU works", "ours": busy_share(a.trace)})
                print(f"the GPU works {100 * rows[-1]['ours']:.1f} % of ten steps: {a.trace}", flush=True)
    if a.json:
        a.json.write_text(json.dumps({"device": a.device, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
