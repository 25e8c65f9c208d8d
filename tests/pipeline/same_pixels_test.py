"""An image's pixels depend only on its file and the options: not on what the decoder did before, nor on the contents of memory
that it allocates or has freed."""

import json
import pathlib
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

MOST_PIXELS = 2_000_000


def visit(lines, filled_with):
    """The output of image_visitor for each, in one process where glibc fills allocated and freed memory with a byte."""
    done = subprocess.run([harness.BIN / "image_visitor"], input="".join(json.dumps(l) + "\n" for l in lines), capture_output=True,
                          text=True, env=harness.CLEAN | {"MALLOC_PERTURB_": str(filled_with)}, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"image_visitor ended with {done.returncode}: {done.stderr}")
    return list(map(json.loads, done.stdout.splitlines()))


def views(line, found):
    """The whole image and parts of it, at full size and smaller, exactly and fast."""
    width, height = found["width"], found["height"]
    middle = [width // 4, height // 3, max(1, width // 2), max(1, height // 3)]
    smaller = [max(1, middle[2] * 2 // 5), max(1, middle[3] * 2 // 5)]
    for fast in (False, True):
        for crop in ({}, {"crop": middle, "size": middle[2:]}, {"crop": middle, "size": smaller}):
            yield line | crop | {"fast": fast, "orient": False}


class SamePixels(unittest.TestCase):
    def check(self, files):
        lines = [{"do": "decode", "file": str(f), "lenient": True, "fill": True, "orient": False} for f in files]
        decoded = [(l, a) for l, a in zip(lines, visit(lines, 0), strict=True) if a.get("width", MOST_PIXELS) * a.get("height", 1) < MOST_PIXELS]
        wanted = [v for l, a in decoded for v in views(l, a)]
        forwards = visit(wanted, 1)
        backwards = visit(wanted[::-1], 170)[::-1]
        told = ("kind", "error", "width", "height", "warnings", "hash")
        for view, a, b in zip(wanted, forwards, backwards, strict=True):
            self.assertEqual({k: a.get(k) for k in told}, {k: b.get(k) for k in told}, view)
        return len(decoded)

    def test_of_its_own_images(self):
        folder = self.enterContext(harness.Folder())
        for size in (61, 160):
            harness.run("millrace", "fake", folder / f"{size}.tar", "--samples", "4", "--size", str(size))
            with tarfile.open(folder / f"{size}.tar") as archive:
                archive.extractall(folder / str(size), filter="data")
        corpus = (harness.ROOT / "tests/fuzz/corpus/image").iterdir()
        self.assertGreater(self.check(sorted([*folder.glob("*/*.jpg"), *corpus])), 10)

    @harness.needs_shared("imagenet-sample")
    def test_of_photos(self):
        folder = self.enterContext(harness.Folder())
        with tarfile.open(harness.SHARED / "imagenet-sample/imagenet-sample-000000.tar") as archive:
            photos = [m for m in archive if m.name.endswith(".jpg")][:24]
            archive.extractall(folder, photos, filter="data")
        self.assertGreater(self.check(sorted(folder.rglob("*.jpg"))), 20)

    @harness.needs_shared("hostile-jpeg")
    def test_of_hostile_ones(self):
        self.assertGreater(self.check(sorted((harness.SHARED / "hostile-jpeg").iterdir())), 100)


if __name__ == "__main__":
    unittest.main()
