"""Hostile input costs bounded memory and time: whatever a file asks for, a process stays within its budget plus a
process's own memory, and each file is decoded or reported as an error.

    ceiling_test.py --figures     prints the memory and time of each run"""

import bz2
import gzip
import json
import lzma
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import bombs, harness  # noqa: E402

MB = 1 << 20
BUDGET = 64 * MB
BESIDE = 64 * MB  # code, stacks, and memory kept by each thread
SECONDS = 30  # of CPU, for a run over several files: each may take ten


# A program's peak is never below that of the process that started it, so this one stays small.
STARTER = """
import json, os, subprocess, sys
for line in sys.stdin:
    command = json.loads(line)
    with open(command["out"], "w") as out:
        child = subprocess.Popen(command["run"], stdout=out, stderr=out)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    print(json.dumps([child.returncode, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime]), flush=True)
"""


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Ceiling(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.starter = subprocess.Popen(
            [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=harness.CLEAN | {"MILLRACE_MEMORY": str(BUDGET), "MILLRACE_CPU_THREADS": "4"})

    @classmethod
    def tearDownClass(cls):
        cls.starter.stdin.close()
        cls.starter.wait()
        cls.starter.stdout.close()

    def measured(self, program, *arguments):
        """(exit status, output, peak of resident bytes, CPU seconds) of a program with a small budget."""
        out = self.folder / "out"
        command = {"run": [str(harness.BIN / program), *map(str, arguments)], "out": str(out)}
        self.starter.stdin.write(json.dumps(command) + "\n")
        self.starter.stdin.flush()
        status, peak, seconds = json.loads(self.starter.stdout.readline())
        return status, out.read_text(errors="replace"), peak, seconds

    def setUp(self):
        context = harness.Folder()
        self.folder = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def stays_below(self, *command, exits=(0, 1), says=()):
        status, output, peak, seconds = self.measured(*command)
        if "--figures" in sys.argv:
            print(f"{peak >> 20:5} MiB {seconds:5.1f} s {self.id().split('.')[-1]}: {' '.join(map(str, command))[:70]}")
        self.assertIn(status, exits, output[:6000])
        for text in says:
            self.assertIn(text, output)
        self.assertLessEqual(peak, BUDGET + BESIDE, command)
        self.assertLess(seconds, SECONDS, command)
        return output

    def visit(self, path, how):
        """Reads an epoch of it through decode_jpeg() or map(decode_fields) and counts the skipped errors."""
        what = {"shards": [str(path)], "rank": 0, "world": 1, "lanes": 0, "from": [], "out": str(self.folder / "visit"),
                "save_every": 1 << 30, "kill_at": -1, "in_save": False, "seed": 1, "memory": BUDGET,
                "label": "none", "decode": how == "images", "fields": how == "fields"}
        self.stays_below("epoch_visitor", json.dumps(what), exits=(0,))
        return json.loads((self.folder / "visit.state").read_text())

    def images(self, files, bad):
        """All but `bad` of them are decoded, by a loader and by `verify`."""
        path = bombs.tar(self.folder / "images.tar", [(f"{i}-{name}", content) for i, (name, content) in enumerate(files)])
        output = self.stays_below("millrace", "verify", "--images", "--json", path, exits=(1 if bad else 0,))
        self.assertEqual(len(json.loads(output.splitlines()[-1])["problems"]), bad, output)
        found = self.visit(path, "images")
        self.assertEqual((found["delivered"], found["skipped"]), (len(files) - bad, bad))

    def test_texts_and_profiles_of_pngs(self):
        self.images([("a.png", bombs.png_of_texts(100)), ("b.png", bombs.png_of_texts(100, b"iTXt")),
                     ("c.png", bombs.png_of_texts(20, b"iCCP"))], 0)

    def test_interlaced_pngs(self):
        fits, giant = bombs.png(800, 700, True), bombs.png(6000, 5000, True)
        self.images([("a.png", fits)] * 6 + [("b.png", giant)] * 3, 3)

    def test_wide_pngs(self):
        self.images([("a.png", bombs.png(50_000, 80))] * 4, 0)

    def test_progressive_jpegs(self):
        fits, giant = bombs.progressive_jpeg(1200, 1000, 4), bombs.progressive_jpeg(9000, 8000)
        self.images([("a.jpg", fits)] * 6 + [("b.jpg", giant)] * 3, 3)

    def test_webps(self):
        fits, giant, codes = bombs.webp(600, 500), bombs.webp(9000, 9000), bombs.webp(1024, 1024, True)
        self.images([("a.webp", fits)] * 6 + [("b.webp", giant)] * 3 + [("c.webp", codes)] * 2, 5)

    def test_webps_take_what_their_codes_need(self):
        """Large files need not have many codes: photos have few."""
        photo, turned = bombs.webp(600, 500, more=MB), bombs.webp(600, 500, transforms=True, more=MB)
        codes = bombs.webp(1024, 1024, True, transforms=True)
        self.images([("a.webp", photo)] * 6 + [("b.webp", turned)] * 6 + [("c.webp", codes)] * 2, 2)

    def test_files_of_images_above_the_budget(self):
        path = bombs.tar(self.folder / "a.tar", [("a.png", bombs.Padded(bombs.png(64, 64), 100 * MB)) for _ in range(2)])
        self.stays_below("millrace", "verify", "--images", path, exits=(1,),
                         says=("is not checked", "raise MILLRACE_MEMORY"))

    def fields(self, fields, bad):
        path = bombs.tar(self.folder / "fields.tar", [(f"{i}.{name}", content) for i, (name, content) in enumerate(fields)])
        found = self.visit(path, "fields")
        self.assertEqual((found["delivered"], found["skipped"]), (len(fields) - bad, bad))

    def test_deep_fields(self):
        self.fields([("cbor", bombs.deep(b"\x7f", MB)), ("cbor", bombs.deep(b"\x5f", MB)), ("cbor", bombs.deep(b"\x9f", MB)),
                     ("cbor", bombs.deep(b"\xc1", MB)), ("json", bombs.deep(b"[", MB)), ("json", bombs.deep(b'{"a":', MB)),
                     ("mp", bombs.deep(b"\x91", MB)), ("mp", bombs.deep(b"\x81\xa1a", MB)),
                     ("json.gz", bombs.gz(50 * MB, b"["))], 9)

    def test_fields_with_large_trees(self):
        wide = b"[" + b"0," * MB + b"0]"
        self.fields([("json", b"[1]")] + [("json", wide)] * 3 + [("json.gz", gzip.compress(wide * 1))] * 3 +
                    [("mp", b"\xdd" + MB.to_bytes(4, "big") + bytes(MB))] * 3, 9)

    def test_compressed_fields(self):
        self.fields([("txt.gz", bombs.gz(MB * 2))] * 4 + [("txt.gz", bombs.gz(900 * MB))] * 3 +
                    [("txt.gz.gz", gzip.compress(bombs.gz(900 * MB)))] + [("npz", bombs.npz(300 * MB))] * 2 +
                    [("npz", bombs.npz(MB, 40))] * 2, 8)

    def test_compressed_archives(self):
        for name, opens in (("a.tar.gz", gzip.open), ("a.tar.xz", lzma.open)):
            path = bombs.packed_tar(self.folder / name, 800 * MB, opens)
            self.stays_below("millrace", "digest", path, exits=(0, 1, 3, 4, 5))
            self.stays_below("millrace", "verify", "--images", path)

    # Windows that each compression can claim: some fit into the budget, some do not.
    WINDOWS = {"xz": ((16, None), (24, None), (36, "1.0 GiB")), "zst": ((20, None), (24, None), (27, "128.0 MiB")),
               "lz4": ((4, None), (7, None)), "bz2": ((1, None), (9, None))}

    def windows(self, compression, samples=70):
        for code, refused in self.WINDOWS[compression]:
            paths = [bombs.window_tar(self.folder / f"{code}-{i}.tar.{compression}", samples, code) for i in range(3)]
            says = (f"needs {refused} of memory", "raise MILLRACE_MEMORY") if refused else ()
            with self.subTest(code=code):
                for command in ("verify", "digest"):
                    self.stays_below("millrace", command, *paths, exits=(1,) if refused else (0,), says=says)
                index = self.folder / f"{code}.json"
                self.stays_below("millrace", "index", "create", *paths, "-o", index, exits=(1,) if refused else (0,), says=says)
                self.stays_below("millrace", "pack", "--restart", 1, "--from-shards", *paths, "-o",
                                 self.folder / f"{code}-%d.tar", exits=(1,) if refused else (0,), says=says)

    def test_windows_of_xz(self):
        self.windows("xz")

    def test_windows_of_zstd(self):
        self.windows("zst")

    def test_windows_of_lz4(self):
        self.windows("lz4")

    def test_windows_of_bzip2(self):
        self.windows("bz2")

    def test_a_window_that_grows_and_one_within_another_stream(self):
        small = bombs.window_tar(self.folder / "small.tar.xz", 1, 16).read_bytes()
        large = bombs.window_tar(self.folder / "large.tar.xz", 70, 36).read_bytes()
        (self.folder / "grows.tar.xz").write_bytes(small + large)
        (self.folder / "inner.tar.bz2").write_bytes(bz2.compress(large))
        self.stays_below("millrace", "verify", self.folder / "grows.tar.xz", exits=(1,), says=("needs 1.0 GiB",))
        self.stays_below("millrace", "verify", self.folder / "inner.tar.bz2", exits=(1,), says=("bad_archive",))

    def test_windows_that_grow_while_other_shards_have_theirs(self):
        for small in (17, 22):  # the first takes hardly any memory
            with self.subTest(small=small):
                self.grow_from(small)

    def grow_from(self, small):
        paths = [self.folder / f"{small}-{i}.tar.zst" for i in range(6)]
        for i, path in enumerate(paths):
            parts = [bombs.window_tar(self.folder / f"{name}{i}.tar.zst", samples, window)
                     for name, samples, window in (("small", 3, small), ("large", 12, 24))]
            path.write_bytes(b"".join(part.read_bytes() for part in parts))
        for _ in range(3):
            output = self.stays_below("millrace", "verify", "--json", *paths, exits=(0,))
            self.assertEqual(json.loads(output.splitlines()[-1])["samples"], 6 * 15, output)
        index = self.folder / "i.json"
        self.stays_below("millrace", "index", "create", *paths, "-o", index, exits=(0,))
        self.assertEqual([s["nsamples"] for s in json.loads(index.read_text())["shardlist"]], [15] * 6)
        self.stays_below("millrace", "digest", *paths, exits=(0,))

    def test_indices_that_grow_when_they_are_parsed(self):
        entry, small = '{"url":"a.tar","nsamples":1}', BUDGET // 8 - MB
        many = lambda item: ",".join([item] * (small // (len(item) + 1)))  # noqa: E731
        texts = {"above": f'"more":"{"x" * 2 * small}","shardlist":[{entry}]',
                 "lists": f'"more":[{many("[]")}],"shardlist":[{entry}]',
                 "members": f'"more":[{many("{}")}],"shardlist":[{entry}]',
                 "shards": f'"shardlist":[{many(entry)}]',
                 "repeated": f'"name":"{"n" * MB}","base":"http://{"b" * MB}","shardlist":[{",".join([entry] * 2000)}]',
                 "parts": f'"datasets":[{many("[]")}]'}
        for name, text in texts.items():
            path = self.folder / f"{name}.json"
            path.write_text('{"wids_version":1,' + text + "}")
            with self.subTest(name=name):
                for command in (["index", "info"], ["index", "sample"], ["verify", "--index"], ["index", "update", "--name", "n"]):
                    is_read = command[1] == "update" and name in ("above", "repeated")  # its shards are not read
                    last = [0] if command[1] == "sample" else []
                    self.stays_below("millrace", *command, path, *last, exits=(0,) if is_read else (1, 3),
                                     says=() if is_read else ("too_large", "MILLRACE_MEMORY"))
            path.unlink()

    def test_offsets_of_many_samples(self):
        many = BUDGET // 8 - MB
        numbers = lambda n: bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14 & 127 | 128, n >> 21])  # noqa: E731
        body = b"millrace offsets 1\n" + b"\x01\x00" + numbers(many) + numbers(many + 1) + b"\x01" * (many + 1)
        (self.folder / "i.offsets").write_bytes(body + b"%08x" % crc32c(body))
        (self.folder / "i.json").write_text('{"wids_version":1,"shardlist":[{"url":"a.tar","nsamples":%d}]}' % many)
        self.stays_below("millrace", "index", "info", "--json", self.folder / "i.json", exits=(0,), says=('"offsets":true',))

    def test_many_members_and_long_names(self):
        path = bombs.tar(self.folder / "many.tar", ((f"{i % 7}/{'n' * 200}{i}.{'x' * 20}", b"") for i in range(30_000)))
        self.stays_below("millrace", "verify", "--images", path)
        self.stays_below("millrace", "digest", path, exits=(0, 1, 3, 4, 5))

    def test_hundreds_of_thousands_of_samples(self):
        for name in ("many.tar", "many.tar.gz"):
            path = bombs.empty_members(self.folder / name, 400_000)
            output = self.stays_below("millrace", "verify", "--json", path, exits=(0,))
            self.assertEqual(json.loads(output.splitlines()[-1])["samples"], 400_000)
            for offsets in ((), ("--offsets",)):
                self.stays_below("millrace", "index", "create", *offsets, path, "-o", self.folder / "i.json", exits=(0,))
            self.stays_below("millrace", "summary", "--samples", path, exits=(0,), says=("400000 samples",))
            self.stays_below("millrace", "digest", path, exits=(0,))
            self.stays_below("millrace", "tune", "--seconds", 1, path)
        self.stays_below("millrace", "pack", "--restart", 1, "--from-shards", path, "-o", self.folder / "o-%d.tar", exits=(0,))

    def test_lists_of_samples_above_the_budget(self):
        said = ("too_large: there is no room in memory to list more than", "raise MILLRACE_MEMORY")
        path = bombs.empty_members(self.folder / "long.tar.gz", 400_000, "p" * 140 + "/", 80)
        self.stays_below("millrace", "verify", path, exits=(1,), says=said)
        for command in (["index", "create", "-o", self.folder / "i.json"], ["summary", "--samples"]):
            self.stays_below("millrace", *command, path, exits=(0,))  # these do not read keys
        path = bombs.empty_members(self.folder / "many.tar.gz", 900_000)
        for command in (["index", "create", "-o", self.folder / "j.json"], ["summary", "--samples"], ["verify"]):
            self.stays_below("millrace", *command, path, exits=(1,), says=said)
        self.assertFalse((self.folder / "j.json").exists())

    def test_keys_of_many_shards(self):
        """Keys are compared with those of other shards while there is room; the place where that ends is reported."""
        paths = [bombs.empty_members(self.folder / f"{i}.tar.gz", 80_000, f"{i}-") for i in range(11)]
        output = self.stays_below("millrace", "verify", *paths, exits=(1,),
                                  says=("too_large: from here on keys are compared only with the first 786432",
                                        "880000 samples", ": 1 problem\n"))
        self.assertNotIn("duplicate_field", output)
        output = self.stays_below("millrace", "verify", *paths, paths[0], paths[0], exits=(1,))
        self.assertIn("the list names this shard more than once", output)

    @harness.needs_shared("hostile-tar")
    def test_hostile_archives(self):
        for path in sorted((harness.SHARED / "hostile-tar").iterdir()):
            self.stays_below("millrace", "verify", "--images", path, exits=(0, 1, 2, 3, 4, 5))

    @harness.needs_shared("hostile-jpeg")
    def test_hostile_jpegs(self):
        members = [(f"{i}.jpg", p.read_bytes()) for i, p in enumerate(sorted((harness.SHARED / "hostile-jpeg").iterdir()))]
        path = bombs.tar(self.folder / "images.tar", members)
        self.stays_below("millrace", "verify", "--images", path)
        self.visit(path, "images")


class Charged(unittest.TestCase):
    """A decoder's memory is charged to the memory for decoding: with less room than it was observed to take, it fails. The
    ceiling alone would show that only if everything else filled the budget."""

    NOT_COUNTED = MB  # the first bytes of each piece of work
    SLACK = 2 * MB    # tables, and pages that are counted whole

    def decoded(self, path, **how):
        line = json.dumps({"do": "decode", "file": str(path)} | how)
        done = subprocess.run([harness.BIN / "image_visitor"], input=line + "\n", capture_output=True, text=True,
                              env=harness.CLEAN, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check(self, name, content, width, height):
        with harness.Folder() as folder:
            path = folder / name
            path.write_bytes(content)
            for how in ({"crop": [width - 8, height - 8, 8, 8]}, {"size": [8, 8]}):
                with self.subTest(name=name, how=how):
                    peak = self.decoded(path, **how)["peak"]
                    self.assertGreater(peak, 4 * (self.NOT_COUNTED + self.SLACK), "too small to tell")
                    answer = self.decoded(path, work=peak - self.NOT_COUNTED - self.SLACK, **how)
                    self.assertEqual(answer.get("kind"), "too_large", f"{peak} bytes at the peak: {answer}")
                    self.assertIn("width", self.decoded(path, work=4 * peak, **how))

    def test_pngs(self):
        self.check("interlaced.png", bombs.png(2500, 2000, True), 2500, 2000)
        self.check("wide.png", bombs.png(900_000, 8), 900_000, 8)

    def test_webps(self):
        self.check("plain.webp", bombs.webp(2500, 2000), 2500, 2000)
        self.check("turned.webp", bombs.webp(2500, 2000, transforms=True), 2500, 2000)
        self.check("codes.webp", bombs.webp(1024, 1024, True), 1024, 1024)

    def test_jpegs(self):
        self.check("progressive.jpg", bombs.progressive_jpeg(5000, 4000, 2), 5000, 4000)


if __name__ == "__main__":
    unittest.main(argv=[argument for argument in sys.argv if argument != "--figures"])
