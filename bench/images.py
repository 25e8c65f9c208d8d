"""What resampling and fast decoding are worth, in figures: differences to Pillow, PSNR of `fast`, its speed on large photos.

    images.py difference SHARD... [--crops 10]     histogram over random crops of each photo, all four filters
    images.py psnr SHARD...                        fast beside exact, by how much smaller images are made
    images.py speed SHARD... [--rounds 5]          exact and fast on photos of 2000 x 1500, made of photos
    images.py memory SHARD...                      what decoding an image takes at its peak

Needs Pillow and numpy (./setup --peers), and the programs of build/release."""

import argparse
import collections
import io
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile

import numpy as np
import PIL.Image

BIN = pathlib.Path(__file__).resolve().parents[1] / "build/release/bin"
FILTERS = ["box", "bilinear", "bicubic", "lanczos"]
THEIRS = [PIL.Image.Resampling.BOX, PIL.Image.Resampling.BILINEAR, PIL.Image.Resampling.BICUBIC, PIL.Image.Resampling.LANCZOS]


def photos(shards):
    for shard in shards:
        with tarfile.open(shard) as archive:
            for member in archive:
                if member.name.endswith(".jpg"):
                    yield archive.extractfile(member).read()


class Visitor:
    """image_visitor, a line at a time."""

    def __init__(self, folder):
        self.out = str(folder / "out")
        self.process = subprocess.Popen([BIN / "image_visitor"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def decode(self, **line):
        self.process.stdin.write(json.dumps({"do": "decode", "out": self.out, "orient": False} | line) + "\n")
        self.process.stdin.flush()
        self.found = json.loads(self.process.stdout.readline())
        if "error" in self.found:
            raise SystemExit(self.found["error"])
        return np.fromfile(self.out, np.uint8)


def difference(a, folder):
    """The share of values that are 0, 1, ... away, for each filter."""
    visitor = Visitor(folder)
    draw = random.Random(1)
    found = [collections.Counter() for _ in FILTERS]
    crops = 0
    for file in photos(a.shards):
        (folder / "photo").write_bytes(file)
        photo = PIL.Image.open(io.BytesIO(file)).convert("RGB")
        for _ in range(a.crops):
            w, h = draw.randint(16, photo.width), draw.randint(16, photo.height)
            x, y = draw.randint(0, photo.width - w), draw.randint(0, photo.height - h)
            size, which = draw.randint(32, 256), crops % 4
            ours = visitor.decode(file=str(folder / "photo"), crop=[x, y, w, h], size=[size, size], filter=which)
            theirs = np.asarray(photo.crop((x, y, x + w, y + h)).resize((size, size), THEIRS[which])).reshape(-1)
            away, count = np.unique(np.abs(ours.astype(np.int16) - theirs), return_counts=True)
            found[which].update(dict(zip(away.tolist(), count.tolist())))
            crops += 1
    for name, counts in zip(FILTERS, found):
        values = sum(counts.values())
        print(f"{name:9} {values:12} values: " + ", ".join(f"{k}: {100 * n / values:.4f} %" for k, n in sorted(counts.items())))
    print(f"{crops} crops")


def psnr(a, folder):
    visitor = Visitor(folder)
    scales = [1.5, 2, 2.5, 3, 4, 6, 8, 12]
    found = collections.defaultdict(list)
    for n, file in enumerate(photos(a.shards)):
        if n % 10:
            continue
        (folder / "photo").write_bytes(file)
        width, height = PIL.Image.open(io.BytesIO(file)).size
        for scale in scales:
            line = {"file": str(folder / "photo"), "size": [max(1, round(width / scale)), max(1, round(height / scale))]}
            exact, fast = (visitor.decode(**line, fast=how).astype(float) for how in (False, True))
            error = ((exact - fast) ** 2).mean()
            found[scale].append(10 * np.log10(255 ** 2 / error) if error else np.inf)
    for scale in scales:
        each = np.array(found[scale])
        print(f"made {scale:4} times smaller: PSNR median {np.median(each):.1f} dB, worst of {len(each)} {each.min():.1f} dB")


def memory(a, folder):
    """What decoding takes at its peak beside the file, with the output of 224 x 224 (0.14 MiB); of images whose area grows and
    whose width does not."""
    def tell(file):
        (folder / "photo").write_bytes(file)
        visitor = Visitor(folder)  # whose decoder holds nothing yet
        visitor.decode(file=str(folder / "photo"), size=[224, 224])
        print("{} x {}: {:.2f} MiB".format(*PIL.Image.open(io.BytesIO(file)).size, visitor.found["peak"] / 2 ** 20))
        visitor.process.kill()

    tell(next(f for f in photos(a.shards) if PIL.Image.open(io.BytesIO(f)).size == (500, 375)))
    for width, height in ((2000, 1500), (4000, 1500), (4000, 3000), (4000, 12000)):
        file = io.BytesIO()
        PIL.Image.effect_noise((width, height), 20).convert("RGB").save(file, "JPEG", quality=50)
        tell(file.getvalue())


def large_photos(a, folder, across):
    """Photos of 2000 x 1500 in a shard, of across x across photos each: the fewer, the less detail a pixel has."""
    count = 20
    size = (2000 // across, 1500 // across)
    small = [PIL.Image.open(io.BytesIO(f)).convert("RGB").resize(size, PIL.Image.Resampling.LANCZOS)
             for _, f in zip(range(count * across ** 2), photos(a.shards))]
    with tarfile.open(folder / f"{across}.tar", "w") as archive:
        for i in range(count):
            sheet = PIL.Image.new("RGB", (2000, 1500))
            for j in range(across ** 2):
                sheet.paste(small[i * across ** 2 + j], (j % across * size[0], j // across * size[1]))
            file = io.BytesIO()
            sheet.save(file, "JPEG", quality=90)
            for name, content in ((f"{i:04}.jpg", file.getvalue()), (f"{i:04}.cls", b"0")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return folder / f"{across}.tar"


def speed(a, folder):
    """In turns; the whole photo is made 224 wide and high, and random crops of it."""
    for across in (4, 2, 1):
        shard = large_photos(a, folder, across)
        print(f"{across} x {across} photos, {shard.stat().st_size / 20e3:.0f} KB each")
        for what in ([], ["--validation"]):
            ratios, rates = [], {"exact": [], "fast": []}
            for _ in range(a.rounds):
                for mode in rates:
                    done = subprocess.run([BIN / "millrace", "bench", "decode", shard, "--mode", mode, "--rounds", "3", "--json", *what],
                                          capture_output=True, text=True, check=True)
                    rates[mode].append(json.loads(done.stdout)["images_per_s"])
                ratios.append(rates["fast"][-1] / rates["exact"][-1])
            print(f"  {'validation' if what else 'random-resized-crop'}: exact {statistics.median(rates['exact']):.0f} images/s, "
                  f"fast {statistics.median(rates['fast']):.0f}, ratio {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f} to {max(ratios):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["difference", "psnr", "speed", "memory"])
    parser.add_argument("shards", nargs="+")
    parser.add_argument("--crops", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"difference": difference, "psnr": psnr, "speed": speed, "memory": memory}[a.what](a, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
