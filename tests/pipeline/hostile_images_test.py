"""Broken, odd and valid images from the test suites of other decoders: none crashes, none takes much time or memory, and each
gets the result in docs/hostile_images.md.

    hostile_images_test.py --table     prints that table; needs djpeg and Pillow"""

import json
import pathlib
import resource
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

FOLDER = harness.SHARED / "hostile-jpeg"
ADDRESS_SPACE = 1 << 30
SANITIZED = "asan" in str(harness.BIN) or "tsan" in str(harness.BIN)


def answers():
    """(name, strictly, leniently) for each file."""
    paths = sorted(p for p in FOLDER.iterdir() if p.is_file())
    lines = [{"do": "decode", "file": str(p), "lenient": how, "fill": how} for p in paths for how in (False, True)]
    done = subprocess.run(
        [harness.BIN / "image_visitor"], input="".join(json.dumps(l) + "\n" for l in lines), capture_output=True, text=True,
        env=harness.CLEAN, timeout=300,
        preexec_fn=None if SANITIZED else lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)))
    if done.returncode != 0:
        raise AssertionError(f"image_visitor ended with {done.returncode}: {done.stderr}")
    found = list(map(json.loads, done.stdout.splitlines()))
    return [(p.name, found[2 * i], found[2 * i + 1]) for i, p in enumerate(paths)]


def text(answer):
    if "error" in answer:
        return f"{answer['kind']}: {answer['error'].removeprefix('cannot decode the image: ')}".replace("|", "/")
    warned = f", {answer['warnings']} warnings" if answer["warnings"] else ""
    return f"{answer['width']} x {answer['height']}{warned}"


def libjpegs(path):
    done = subprocess.run(["djpeg", "-outfile", "/dev/null", str(path)], capture_output=True, timeout=60)
    said = done.stderr.decode("utf8", "replace").strip().splitlines()
    lines = [] if not said else [said[-1]] if len(said) == 1 else [f"{said[0]} (and {len(said) - 1} more)"]
    return lines[0] if lines else "well"


def pillows(path):
    import PIL.Image
    PIL.Image.MAX_IMAGE_PIXELS = None
    try:
        with PIL.Image.open(path) as image:
            image.convert("RGB")
            return f"{image.format} {image.width} x {image.height}"
    except Exception as wrong:  # noqa: BLE001
        return f"{type(wrong).__name__}: {str(wrong).replace(str(path), 'FILE')}"


@harness.needs_shared("hostile-jpeg")
class HostileImages(unittest.TestCase):
    def test_each_is_answered_as_the_table_says(self):
        table = {}
        for line in (harness.ROOT / "docs/hostile_images.md").read_text().splitlines():
            if line.startswith("| `"):
                cells = line.strip("|").split(" | ")
                table[cells[0].strip().strip("`")] = (cells[-2].strip(), cells[-1].strip())
        for name, strict, lenient in answers():
            self.assertEqual((text(strict), text(lenient)), table.pop(name, None), name)
            if not SANITIZED:
                self.assertLess(max(strict["seconds"], lenient["seconds"]), 1, name)
        self.assertEqual(table, {})


if __name__ == "__main__":
    if "--table" not in sys.argv:
        unittest.main()
    for name, strict, lenient in answers():
        path = FOLDER / name
        print(f"| `{name}` | {libjpegs(path)} | {pillows(path)} | {text(strict)} | {text(lenient)} |".replace("\n", " "))
