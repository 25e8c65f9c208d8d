"""Random-resized-crops of JPEGs by one thread, beside torchvision, Pillow and DALI: the same crops.

    build/venv/bin/python bench/decode.py SHARDS [--restarts SHARDS] [--rounds 5] [--dali PYTHON]

`millrace bench decode` says which crops it took, and measures itself beside bare libjpeg-turbo and FFCV's way (whole
image, fast transform, areas averaged); the others decode the same crops of the same files in memory, to 224 x 224,
antialiased. In turns; medians. `--restarts`: the same shards with restart runs. `--dali`: the interpreter of an
environment that has nvidia-dali (no GPU is needed): build/venv/dali/bin/python. Needs bench/peers/setup."""

import argparse
import io
import json
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import harness  # noqa: E402

SIZE = 224

DALI = """
import sys, tarfile, time
import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

crops = [tuple(map(int, line.split())) for line in open(sys.argv[1])]
files = []
for shard in sys.argv[2:]:
    with tarfile.open(shard) as tar:
        files += [np.frombuffer(tar.extractfile(m).read(), dtype=np.uint8) for m in tar if m.name.endswith(".jpg")]
BATCH = 50
count = len(files) // BATCH

def batches(of):
    return lambda i: of[i % count * BATCH:(i % count + 1) * BATCH]

@pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, prefetch_queue_depth=1)
def crop():
    jpegs = fn.external_source(batches(files))
    anchors = fn.external_source(batches([np.array([y, x], dtype=np.int32) for x, y, w, h, _ in crops]))
    shapes = fn.external_source(batches([np.array([h, w], dtype=np.int32) for x, y, w, h, _ in crops]))
    images = fn.decoders.image_slice(jpegs, start=anchors, shape=shapes, axis_names="HW", output_type=types.RGB,
                                      adjust_orientation=False)
    images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.flip(images, horizontal=fn.external_source(batches([np.int32(f) for *_, f in crops])))

pipe = crop()
pipe.build()
pipe.run()
start = time.perf_counter()
for _ in range(count):
    pipe.run()
print(count * BATCH / (time.perf_counter() - start))
"""


def photos(shards):
    files = []
    for shard in shards:
        with tarfile.open(shard) as tar:
            files += [tar.extractfile(m).read() for m in tar if m.name.endswith(".jpg")]
    return files


def rate(decode, files, crops):
    start = time.perf_counter()
    for file, crop in zip(files, crops):
        decode(file, *crop)
    return len(files) / (time.perf_counter() - start)


def with_torchvision():
    import torch
    import torchvision
    from torchvision.transforms.v2 import functional
    torch.set_num_threads(1)

    def decode(file, x, y, width, height, flip):
        image = torchvision.io.decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8),
                                           mode=torchvision.io.ImageReadMode.RGB)
        image = functional.resized_crop(image, y, x, height, width, [SIZE, SIZE], antialias=True)
        return functional.horizontal_flip(image) if flip else image
    return decode


def with_pillow():
    import PIL.Image

    def decode(file, x, y, width, height, flip):
        image = PIL.Image.open(io.BytesIO(file)).convert("RGB")
        image = image.resize((SIZE, SIZE), PIL.Image.BILINEAR, box=(x, y, x + width, y + height))
        return image.transpose(PIL.Image.FLIP_LEFT_RIGHT) if flip else image
    return decode


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("shards", nargs="+")
    options.add_argument("--restarts", nargs="*", default=[], help="the same shards with restart runs")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--dali", help="an interpreter with nvidia-dali")
    o = options.parse_args()
    files = photos(o.shards)
    torchvision, pillow = with_torchvision(), with_pillow()
    found = {}

    def add(name, images_per_s):
        found.setdefault(name, []).append(images_per_s)

    with tempfile.TemporaryDirectory() as folder:
        crops_file = pathlib.Path(folder) / "crops"

        def bench(name, shards, *flags):
            done = harness.run("millrace", "bench", "decode", *shards, "--rounds", 1, "--json", "--write-crops", crops_file, *flags)
            if done.returncode != 0:
                raise RuntimeError(done.stderr)
            report = json.loads(done.stdout.splitlines()[-1])
            add(name, report["images_per_s"])
            return report

        for _ in range(o.rounds):
            if o.restarts:
                bench("millrace, restart runs", o.restarts)
            report = bench("millrace", o.shards)
            add("bare libjpeg-turbo, the same regions", report["limit_images_per_s"])
            add("whole image, fast transform, areas (FFCV's way)", report["whole_images_per_s"])
            crops = [tuple(map(int, line.split())) for line in crops_file.read_text().splitlines()]
            if len(crops) != len(files):
                raise RuntimeError(f"{len(files)} photos, {len(crops)} crops: some cannot be decoded")
            add("torchvision decode_jpeg, resized_crop", rate(torchvision, files, crops))
            add("Pillow", rate(pillow, files, crops))
            if o.dali:
                done = subprocess.run([o.dali, "-c", DALI, crops_file, *o.shards], capture_output=True, text=True)
                if done.returncode != 0:
                    raise RuntimeError(done.stderr[-2000:])
                add("DALI on the CPU", float(done.stdout.split()[-1]))
    rates = {name: statistics.median(of) for name, of in found.items()}
    print(f"{len(files)} photos, medians of {o.rounds}\n\n| | images/s | millrace / it |\n|---|---|---|")
    for name, images_per_s in rates.items():
        print(f"| {name} | {images_per_s:,.0f} | {rates['millrace'] / images_per_s:.2f} |")


if __name__ == "__main__":
    main()
