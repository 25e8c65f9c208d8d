"""The same training by millrace-train and by PyTorch with torchvision's decoder and transforms: accuracies side by side.

    accuracy.py 'train-*.tar' 'val-*.tar' --classes 10 [--epochs 10] [--size 128] [--seeds 2]

ResNet-18 from its first weights, SGD with a cosine, random-resized-crop and flip; validation by resize and centre crop. The
PyTorch side holds all files in memory, so that only decoding and transforms differ. Needs ./setup --peers."""

import argparse
import glob
import json
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import time

import torch
import torchvision
from torchvision.transforms import v2

BIN = pathlib.Path(__file__).resolve().parents[1] / "build/release/bin"
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def shards_of(pattern):
    found = sorted(glob.glob(pattern))
    if not found:
        sys.exit(f"accuracy.py: no file matches {pattern}; it is a pattern with *, not with braces")
    return found


def samples(shards):
    out = []
    for shard in shards:
        with tarfile.open(shard) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}
        for name, content in files.items():
            if name.endswith(".jpg"):
                out.append((torch.frombuffer(bytearray(content), dtype=torch.uint8), int(files[name[:-4] + ".cls"])))
    return out


def by_torchvision(a, seed):
    torch.manual_seed(seed)
    random.seed(seed)
    train, val = samples(a.train), samples(a.val)
    crop = v2.Compose([v2.RandomResizedCrop(a.size, antialias=True), v2.RandomHorizontalFlip()])
    centre = v2.Compose([v2.Resize(a.size * 256 // 224, antialias=True), v2.CenterCrop(a.size)])
    normal = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)])
    model = torchvision.models.resnet18(num_classes=a.classes).to(memory_format=torch.channels_last)
    decay = dict(lr=a.lr, momentum=0.9, weight_decay=1e-4)
    optimizer = torch.optim.SGD(model.parameters(), **decay)
    steps = len(train) // a.batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * a.epochs)

    def batch(items, transform):
        decoded = [transform(torchvision.io.decode_jpeg(f, torchvision.io.ImageReadMode.RGB)) for f, _ in items]
        images = normal(torch.stack(decoded)).contiguous(memory_format=torch.channels_last)
        return images, torch.tensor([label for _, label in items])

    for _ in range(a.epochs):
        model.train()
        random.shuffle(train)
        for s in range(steps):
            images, labels = batch(train[s * a.batch:(s + 1) * a.batch], crop)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    hits = 0
    with torch.no_grad():
        for s in range(0, len(val), a.batch):
            images, labels = batch(val[s:s + a.batch], centre)
            hits += (model(images).argmax(1) == labels).sum().item()
    return hits / len(val)


def by_millrace(a, seed, folder):
    metrics = folder / f"{seed}.jsonl"
    command = [BIN / "millrace-train", "--shards", *a.train, "--val-shards", *a.val,
               "--model", "resnet18", "--classes", a.classes, "--size", a.size, "--batch-size", a.batch, "--epochs", a.epochs,
               "--lr", a.lr, "--schedule", "cosine", "--seed", seed, "--device", "cpu", "--metrics", metrics]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"accuracy.py: millrace-train ended with {done.returncode}:\n{done.stderr}")
    found = [json.loads(line) for line in metrics.read_text().splitlines() if "validation" in line]
    return found[-1]["top1"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="a glob pattern of shards with .jpg and .cls")
    parser.add_argument("val", help="another one")
    for name, kind, value in (("classes", int, 10), ("epochs", int, 10), ("size", int, 128), ("batch", int, 32),
                              ("lr", float, 0.05), ("seeds", int, 2)):
        parser.add_argument(f"--{name}", type=kind, default=value)
    a = parser.parse_args()
    a.train, a.val = shards_of(a.train), shards_of(a.val)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(a.seeds):
            for name, run in (("millrace", lambda: by_millrace(a, seed, pathlib.Path(folder))),
                              ("torchvision", lambda: by_torchvision(a, seed))):
                begin = time.monotonic()
                accuracy = run()
                print(f"seed {seed}, {name}: top-1 {100 * accuracy:.1f} %, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
