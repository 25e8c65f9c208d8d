"""What commands do with images: contact sheets, and the benchmark of a whole loader."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import run  # noqa: E402


def visit(line):
    done = run("image_visitor", stdin=json.dumps(line) + "\n")
    return json.loads(done.stdout)


class ContactSheet(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.Folder())
        harness.fake(self.folder, "a", 1, 20, size=64)
        self.shard = self.folder / "a-000000.tar"

    def sheet(self, *arguments, code=0):
        done = run("millrace", "ls", "--contact-sheet", self.folder / "s.png", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        pixels = self.folder / "s.rgb"
        found = visit({"do": "decode", "file": str(self.folder / "s.png"), "out": str(pixels)})
        return done, found["width"], found["height"], pixels.read_bytes()

    def test_the_first_images_by_rows(self):
        done, width, height, pixels = self.sheet(self.shard, "--tiles", 10, "--tile-size", 32)
        self.assertEqual((width, height), (8 * 34 + 2, 2 * 34 + 2))
        self.assertEqual((done.stdout, done.stderr), ("", f"millrace: 10 tiles in {self.folder}/s.png\n"))
        # The third tile of the second row is beyond the tenth: paper.
        at = ((34 + 2) * width + 2 * 34 + 2) * 3
        self.assertEqual(set(pixels[at:at + 32 * 3]), {255})

    def test_no_more_samples_than_asked_for(self):
        done, _, _, _ = self.sheet(self.shard, "-n", 3)
        self.assertEqual((done.stdout, done.stderr), ("", f"millrace: 3 tiles in {self.folder}/s.png\n"))

    def test_augmented_ones_depend_on_the_seed(self):
        def sheet(*more):
            return self.sheet(self.shard, "--tile-size", 32, "--augmented", *more)[3]
        self.assertEqual(sheet("--seed", 1), sheet("--seed", 1))
        self.assertNotEqual(sheet("--seed", 1), sheet("--seed", 2))

    def test_what_cannot_be_decoded_is_black_and_told_of(self):
        import tarfile
        with tarfile.open(self.folder / "b.tar", "w") as archive:
            (self.folder / "x").write_bytes(b"GIF89a and so on")
            archive.add(self.folder / "x", "one.jpg")
            (self.folder / "y").write_bytes(b"0")
            archive.add(self.folder / "y", "one.cls")
        done, width, _, pixels = self.sheet(self.folder / "b.tar", "--tile-size", 16, code=1)
        self.assertIn("the image is a GIF", done.stderr)
        self.assertEqual(pixels[(2 * width + 2) * 3], 0)

    def test_tiles_are_within_the_memory(self):
        done = run("millrace", "ls", "--contact-sheet", self.folder / "s.png", self.shard, "--tiles", 40, "--tile-size", 1024,
                   env={"MILLRACE_MEMORY": "200M"})
        self.assertEqual((done.returncode, sorted(p.name for p in self.folder.iterdir())), (2, ["a-000000.tar"]), done.stderr)
        self.assertIn("40 tiles of 1024 x 1024 pixels take 120.0 MiB, more than half of the memory (200.0 MiB); lower --tiles "
                      "or --tile-size, or set MILLRACE_MEMORY to at least 241M", done.stderr)
        self.sheet(self.shard, "--tiles", 4096, "--tile-size", 1024, "-n", 1)

    def test_a_signal_ends_it_while_the_picture_is_written(self):
        (self.folder / "out").mkdir()
        process = harness.start("millrace", "ls", "--contact-sheet", self.folder / "out/s.png", *[self.shard] * 3, "--tiles", 56,
                                "--tile-size", 1024, stderr=subprocess.PIPE)
        try:
            harness.wait_until(lambda: process.poll() is not None or
                               harness.has_written(self.folder / "out", "*.partial.*"))
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
        self.assertEqual((process.returncode, said, list((self.folder / "out").iterdir())),
                         (143, b"millrace: stopped: no contact sheet was written\n", []))

    def test_wrong_flags(self):
        for arguments in (["--tiles", 3], ["--contact-sheet", "s.png", "--json"], ["--contact-sheet", "s.png", "--tiles", 0]):
            self.assertEqual(run("millrace", "ls", self.shard, *arguments).returncode, 2, arguments)
        done = run("millrace", "ls", "--contact-sheet", self.folder / "x.jpg", self.shard)
        self.assertEqual((done.returncode, done.stdout, (self.folder / "x.jpg").exists()), (2, "", False), done.stderr)
        self.assertIn("x.jpg' is not the name of a PNG; give it a name that ends with .png", done.stderr)
        done = run("millrace", "ls", self.shard, "--contact-sheet", "/no/such/folder/s.png")
        self.assertEqual(done.returncode, 4)
        self.assertIn("cannot make the contact sheet, at /no/such/folder/s.png", done.stderr)


class BenchLoad(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(harness.Folder())
        cls.shards = harness.fake(cls.folder, "a", 2, 200, size=96)

    def load(self, *arguments):
        done = run("millrace", "bench", "load", self.shards, "--size", 64, "--batch", 20, "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_stages_pool_and_a_verdict(self):
        found = self.load("--seconds", 1, "--threads", 2)
        self.assertEqual([s["name"] for s in found["stages"]][-4:], ["decode_jpeg", "on_error", "batch", "prefetch"])
        self.assertEqual(found["pool_threads"], 2)
        self.assertGreater(found["samples"], 0)
        self.assertAlmostEqual(found["samples_per_s"], found["samples"] / found["seconds"], places=3)
        for stage in found["stages"]:
            times = stage["busy"] + stage["waiting_input"] + stage["waiting_output"]
            self.assertAlmostEqual(times, found["seconds"], delta=0.25 * found["seconds"], msg=stage)
        self.assertIn(found["limit"], ("decoding", "reading", "spine", "host"))
        self.assertTrue(found["verdict"].startswith("limited by "), found["verdict"])
        if found["limit"] in ("decoding", "reading"):  # a percentage says of what it is
            self.assertRegex(found["verdict"], r"for \d+ % of their time")

    def test_a_consumer_takes_no_more_than_it_is_told_to(self):
        found = self.load("--seconds", 2, "--rate", 100)
        # A batch of 20 may come at the very end.
        self.assertLessEqual(found["samples"], 100 * found["seconds"] + 20)
        self.assertLess(found["waiting"], 1)
        self.assertTrue(found["verdict"])

    def test_a_loader_that_is_stuck_is_no_fast_one(self):
        shard = self.folder / "a-000000.tar"
        os.mkfifo(self.folder / "stuck")
        held = os.open(self.folder / "stuck", os.O_RDWR)  # nothing comes, and it does not end
        self.addCleanup(os.close, held)
        done = run("millrace", "bench", "load", "--allow-pipe", f"pipe:head -c {shard.stat().st_size // 2} {shard}; cat {self.folder}/stuck",
                   "--lanes", 1, "--size", 64, "--batch", 20, "--seconds", 1, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        self.assertGreater(found["waiting"], 0.5, found)
        self.assertEqual(found["limit"], "reading", found)
        [decoding] = [s for s in found["stages"] if s["name"] == "decode_jpeg"]
        self.assertGreater(decoding["waiting_input"], found["seconds"] / 2)

    def test_images_that_a_decoder_is_not_measured_with_are_told_of(self):
        import tarfile
        with tarfile.open(self.folder / "mixed.tar", "w") as archive, tarfile.open(self.folder / "a-000000.tar") as photos:
            photo = photos.extractfile(next(m for m in photos if m.name.endswith("jpg"))).read()
            for name in ("a.jpg", "b.png", "c.webp", "d.txt"):
                (self.folder / "x").write_bytes(photo)
                archive.add(self.folder / "x", name)
        found = json.loads(run("millrace", "bench", "decode", self.folder / "mixed.tar", "--rounds", 1, "--json").stdout)
        self.assertEqual((found["samples"], found["others"]), (1, 2))
        said = run("millrace", "bench", "decode", self.folder / "mixed.tar", "--rounds", 1).stdout
        self.assertIn("left out  2 samples with images other than JPEG", said)

    def test_shards_that_are_not_there_are_named(self):
        done = run("millrace", "bench", "load", self.folder / "none.tar")
        self.assertEqual(done.returncode, 4)
        self.assertIn("no such file, at", done.stderr)
        self.assertIn("none.tar", done.stderr)

    def test_kept_images_are_told_of(self):
        done = run("millrace", "bench", "load", self.shards, "--size", 32, "--seconds", 1, "--cache-decoded", "64M")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("200 decoded images in 5.", done.stderr)
        self.assertIn("waits for input", done.stdout)
        done = run("millrace", "bench", "load", self.shards, "--cache-decoded", "many")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_ctrl_c_ends_it_with_its_report(self):
        process = harness.start("millrace", "bench", "load", self.shards, "--seconds", "600", "--cache-decoded", "64M",
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stderr.readline()  # the first epoch is over
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertIn("images/s", said)


if __name__ == "__main__":
    unittest.main()
