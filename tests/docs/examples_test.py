"""Every program of examples/ is run here, as its first lines say, and prints what they promise."""

import io
import json
import pathlib
import re
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402


def write_shard(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def painted(width, height, boundary):
    """An image of two classes, and its mask: the left part is dark, the right one bright."""
    classes = [[0 if x < boundary else 1 for x in range(width)] for _ in range(height)]
    ppm = b"P6 %d %d 255\n" % (width, height) + bytes(v for row in classes for c in row for v in [30 + 200 * c] * 3)
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({height}, {width}), }}"
    head = head.ljust(128 - 10 - 1) + "\n"
    npy = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
    return ppm, npy + bytes(c for row in classes for c in row)


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(harness.Folder())
        cls.images = harness.fake(cls.folder, "train", 4, 400)

    def example(self, name, *arguments, code=0, env=None):
        """What it prints, line by line; its error where it is to fail."""
        done = harness.run(f"example_{name}", *arguments, cwd=self.folder, env=env)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr if code else done.stdout.splitlines()

    def texts(self, name, count):
        return [(f"{name}{i:03}", f"text {i} of {name} " + "x" * (i * 37 % 300)) for i in range(count)]

    @staticmethod
    def sources():
        """Those without LibTorch; tests/train/own_programs_test.py runs the others."""
        return [p for p in sorted((harness.ROOT / "examples").glob("*.cc")) if "millrace/train.h" not in p.read_text()]

    def test_every_example_is_run_here(self):
        sources = {p.stem for p in self.sources()}
        self.assertEqual(sources, set(re.findall(r'self\.example\("(\w+)"', pathlib.Path(__file__).read_text())))

    def test_every_example_says_what_is_wrong(self):
        for source in self.sources():
            with self.subTest(source.stem):
                name = source.stem
                more = {"read": ["64M"], "own_stage": ["100"], "resume": ["state", "1"], "training_loop": ["1"],
                        "random_access": ["0"], "write_shards": ["none-%06d.tar", "none.json"]}.get(name, [])
                where = "stdio:missing.tar" if name == "own_source" else "missing.tar"
                # One shard that may be skipped: that nothing came is the error, with its reason.
                done = harness.run(f"example_{name}", where, *more, cwd=self.folder)
                self.assertIn(done.returncode, (1, 4), done.stderr)
                self.assertIn("missing.tar", done.stderr)

    def test_each_says_how_it_is_used(self):
        for source in self.sources():
            text = source.read_text()
            if "argc > 1" in text:
                continue
            with self.subTest(source.stem):
                done = harness.run(f"example_{source.stem}")
                [usage] = re.findall(r"^//   (example_.*)$", text, re.M)
                self.assertEqual((done.returncode, done.stderr), (2, f"usage: {usage}\n"))

    def test_keys(self):
        lines = self.example("keys", self.images)
        self.assertEqual(len(lines), 400)
        listed = json.loads(harness.run("millrace", "ls", "--json", self.images).stdout)["list"]
        self.assertEqual(sorted(lines), sorted(f"{s['key']}  jpg {s['fields']['jpg']}  cls {s['fields']['cls']}" for s in listed))

    def test_epoch(self):
        self.assertEqual(self.example("epoch", self.images), ["400 images"])

    def test_first_batch(self):
        [seconds] = self.example("first_batch", self.images)
        self.assertGreater(float(seconds), 0)

    def test_read(self):
        [line] = self.example("read", self.images, "64M")
        self.assertRegex(line, r"^\d+ MB, \d+ MB/s$")

    def test_own_stage(self):
        for shard in range(2):
            write_shard(self.folder / f"text-{shard}.tar",
                        [(f"{key}.txt", text.encode()) for key, text in self.texts(f"t{shard}-", 100)])
        lengths = [len(text) for shard in range(2) for _, text in self.texts(f"t{shard}-", 100)]
        [line] = self.example("own_stage", "text-{0..1}.tar", "1024")
        texts, sequences, full = re.fullmatch(r"(\d+) texts in (\d+) sequences, ([\d.]+) % full", line).groups()
        self.assertEqual(int(texts), 200)
        self.assertGreaterEqual(int(sequences), sum(lengths) / 1024)
        self.assertAlmostEqual(float(full), 100 * sum(lengths) / (1024 * int(sequences)), delta=0.06)
        self.assertGreater(float(full), 70)  # of 1024 bytes a text takes 320 at most
        self.assertEqual(self.example("own_stage", "text-{0..1}.tar", "1"), ["200 texts in 200 sequences, %.1f %% full" % (
            100 * sum(lengths) / 200)])

    def test_own_format(self):
        samples = [self.texts(f"l{shard}-", 2000) for shard in range(4)]
        for shard, lines in enumerate(samples):
            more = "no tab\nlast\tline without an end" if shard == 3 else ""
            (self.folder / f"lines-{shard}.tsv").write_text("".join(f"{key}\t{text}\n" for key, text in lines) + more)
        printed = self.example("own_format", "lines-{0..3}.tsv", env={"MILLRACE_READ_CHUNK": "4K", "MILLRACE_MEMORY": "64M"})
        self.assertEqual(printed[-1], "8001 samples, 1 skipped")
        known = {key: text for lines in samples for key, text in lines}
        for line in printed[:3]:
            key, text = line.split(": ", 1)
            self.assertEqual(known[key], text)
        self.assertIn("lines-3.tsv byte ", harness.run("example_own_format", "lines-3.tsv", cwd=self.folder).stderr)

    def test_what_is_own_is_resumed(self):
        for shard in range(4):
            write_shard(self.folder / f"text-{shard}.tar", [(f"t{shard}-{i}.txt", b"x" * (i * 7 % 50)) for i in range(16)])
            (self.folder / f"lines-{shard}.tsv").write_text("".join(f"l{shard}-{i}\t{'y' * (i * 37 % 700)}\n" for i in range(300)))
        done = harness.run("docs_examples_resume", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "stage: 128 samples\nstage in front of others: 128 samples\nformat: 2400 samples\n"
                         "ranks: 1200 samples, 1200 different\n")

    def test_own_source(self):
        [line] = self.example("own_source", "stdio:" + self.images)
        payload = sum(int(n) for l in self.example("keys", self.images) for n in re.findall(r" (\d+)\b", l.split("  ", 1)[1]))
        self.assertEqual(line, f"400 samples, {payload} bytes")
        # Ranges and errors, as the library sees them.
        self.assertIn("not_found: cannot open the file, at", self.example("own_source", "stdio:none.tar", code=4))
        self.assertIn("io_failed: cannot read the file, at", self.example("own_source", "stdio:.", code=4))

    def test_two_modalities(self):
        with tarfile.open(self.folder / "train-000000.tar") as tar:
            images = {m.name: tar.extractfile(m).read() for m in tar if m.name.endswith(".jpg")}
        files = []
        for name, content in images.items():
            files += [(name, content), (name.replace(".jpg", ".txt"), f"a picture of {name}".encode())]
        write_shard(self.folder / "pairs.tar", files + [("alone.jpg", content)])
        printed = self.example("two_modalities", "pairs.tar")
        self.assertEqual(printed[-1], f"{len(images)} pairs")
        self.assertEqual(len(printed), 9)
        for line in printed[:8]:
            key, caption = re.fullmatch(r'(\w+): 12288 bytes of pixels, "(.*)"', line).groups()
            self.assertEqual(caption, f"a picture of {key}.jpg")

    def test_masks(self):
        files = []
        for i in range(50):
            ppm, npy = painted(100 + i, 120, 20 + i)
            files += [(f"m{i:02}.ppm", ppm), (f"m{i:02}.npy", npy)]
        files += [("other.ppm", ppm), ("other.npy", painted(80, 120, 40)[1])]
        write_shard(self.folder / "masks.tar", files)
        samples, dark, bright = self.example("masks", "masks.tar")
        self.assertEqual(samples, "50 samples")  # and one whose mask has another size
        pixels = 0
        for line, class_, painted_as in ((dark, 0, 30), (bright, 1, 230)):
            of, n, brightness = map(int, re.fullmatch(r"class (\d): (\d+) pixels, mean brightness (\d+)", line).groups())
            self.assertEqual(of, class_)
            self.assertLessEqual(abs(brightness - painted_as), 2)  # at the border the image is blended
            pixels += n
        self.assertEqual(pixels, 50 * 64 * 64)

    def test_resume(self):
        whole = self.example("resume", self.images, "whole.json", "1000")
        self.assertEqual(whole.pop(), "end of the epoch")
        self.assertEqual(len(set(whole)), 400)
        parts = []
        for count in (1, 99, 150, 1000):
            parts += self.example("resume", self.images, "position.json", count)
        self.assertEqual(parts.pop(), "end of the epoch")
        self.assertEqual(parts, whole)
        (self.folder / "position.json").write_text("{}")
        self.assertIn("bad_state", self.example("resume", self.images, "position.json", "1", code=1))

    def test_training_loop(self):
        lines = self.example("training_loop", self.images, "4")
        parsed = [re.fullmatch(r"epoch (\d): 400 images, loss ([\d.]+), ([\d.]+) % right", l).groups() for l in lines]
        self.assertEqual([int(epoch) for epoch, _, _ in parsed], [0, 1, 2, 3])
        self.assertLess(float(parsed[-1][1]), float(parsed[0][1]))
        self.assertGreater(float(parsed[-1][2]), 20)  # of ten classes
        self.assertEqual(self.example("training_loop", self.images, "4"), lines)  # a function of seeds alone

    def test_random_access(self):
        self.assertEqual(harness.run("millrace", "index", self.images, "-o", self.folder / "train.json", "--offsets").returncode, 0)
        listed = json.loads(harness.run("millrace", "ls", "--json", self.images).stdout)["list"]
        first, *ranks = self.example("random_access", "train.json", "123")
        sizes = listed[123]["fields"]
        self.assertEqual(first, f"400 samples; number 123 is {listed[123]['key']}: jpg {sizes['jpg']} cls {sizes['cls']}")
        drawn = [re.fullmatch(r"rank \d of 2 draws 200 samples in epoch 0:((?: \d+)+) \.\.\.", l)[1].split() for l in ranks]
        self.assertEqual([len(set(d)) for d in drawn], [5, 5])
        self.assertFalse(set(drawn[0]) & set(drawn[1]))
        self.assertIn("400", self.example("random_access", "train.json", "400", code=2))

    def test_write_shards(self):
        lines = self.example("write_shards", self.images, "sized-%06d.tar", "sized.json")
        self.assertEqual(lines, [f"sized-{i:06}.tar: {n} samples" for i, n in enumerate((150, 150, 100))] + ["0 problems"])
        before, after = (json.loads(harness.run("millrace", "ls", "--json", shards, cwd=self.folder).stdout)["list"]
                         for shards in (self.images, "sized-{000000..000002}.tar"))
        self.assertEqual([s["key"] for s in after], [s["key"] for s in before])
        self.assertEqual([s["fields"]["jpg"] for s in after], [s["fields"]["jpg"] for s in before])
        self.assertEqual([s["fields"]["size.txt"] for s in after], [len(str(s["fields"]["jpg"])) for s in before])
        self.assertEqual(json.loads((self.folder / "sized.json").read_text())["name"], "sized")
        self.assertIn("exists", self.example("write_shards", self.images, "sized-%06d.tar", "sized.json", code=2))


if __name__ == "__main__":
    unittest.main()
