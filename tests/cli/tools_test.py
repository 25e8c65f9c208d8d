"""The shard tools: index, pack, verify, summary, sim, and what hostile archives do to them."""

import hashlib
import io
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_tar(path, members):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def samples(n, first=0, payload=100):
    return [(f"s{i:05}.{ext}", bytes([i % 251]) * payload) for i in range(first, first + n) for ext in ("bin", "cls")]


class Pack(unittest.TestCase):
    def tree(self, folder):
        """Seven classes of one sample: what the known MD5s of ShardWriter were made of."""
        for i in range(7):
            (folder / f"tree/c{i}").mkdir(parents=True)
            (folder / f"tree/c{i}/s{i}.jpg").write_bytes(b"\xff\xd8x")
            (folder / f"tree/c{i}/s{i}.json").write_text('{"i": %d}' % i)
        return folder / "tree"

    def test_shards_are_those_of_shard_writer_byte_for_byte(self):
        with Folder() as folder:
            done = run("millrace", "pack", self.tree(folder), "-o", folder / "o-%06d.tar", "--compat", "--max-count", 3)
            self.assertEqual(done.returncode, 0, done.stderr)
            # ShardWriter(maxcount=3) of WebDataset 1.0.2 with mtime=0.
            self.assertEqual([md5(folder / f"o-{i:06}.tar") for i in range(3)],
                             ["df32fdc98f32c0a4fdf6692cf52b39d4", "0ca6db732b22633ca96317513943b7e1",
                              "fa78cd80322170e45a806ebcee153296"])
            self.assertEqual(done.stdout.splitlines()[:3],
                             [f"# writing {folder}/o-{i:06}.tar {3 if i else 0} 0.0 GB {3 * i}" for i in range(3)])

    def test_the_same_bytes_whatever_the_threads_and_parts(self):
        with Folder() as folder:
            tree = self.tree(folder)
            outcomes = set()
            for name, options in {"a": ["--threads", 1], "b": ["--threads", 4]}.items():
                run("millrace", "pack", tree, "-o", folder / f"{name}-%03d.tar", "--max-count", 2, "--shuffle", 5, *options)
                outcomes.add(tuple(md5(p) for p in sorted(folder.glob(f"{name}-*.tar"))))
            for part in (1, 2, 3):
                done = run("millrace", "pack", tree, "-o", folder / "c-%03d.tar", "--max-count", 2, "--shuffle", 5,
                           "--part", f"{part}/3")
                self.assertEqual(done.returncode, 0, done.stderr)
            outcomes.add(tuple(md5(p) for p in sorted(folder.glob("c-*.tar"))))
            self.assertEqual(len(outcomes), 1)
            self.assertEqual(len(outcomes.pop()), 4)

    def test_a_run_that_was_stopped_goes_on_and_another_one_is_refused(self):
        with Folder() as folder:
            command = ["millrace", "pack", self.tree(folder), "-o", folder / "o-%03d.tar", "--max-count", 2, "--json"]
            self.assertEqual(json.loads(run(*command).stdout)["kept"], 0)
            whole = [md5(p) for p in sorted(folder.glob("o-*.tar"))]
            (folder / "o-002.tar").unlink()
            again = json.loads(run(*command).stdout)
            self.assertEqual((again["kept"], again["shards"]), (3, 4))
            self.assertEqual([md5(p) for p in sorted(folder.glob("o-*.tar"))], whole)
            other = run(*command[:-1], "--shuffle", 1)
            self.assertEqual(other.returncode, 2)
            self.assertIn("of another run", other.stderr)
            self.assertEqual(list(folder.glob("*.partial*")), [])

    def test_what_cannot_be_packed_is_named(self):
        with Folder() as folder:
            self.assertIn("no such folder", run("millrace", "pack", folder / "none", "-o", "x-%d.tar").stderr)
            tree = self.tree(folder)
            (tree / "c0/s0.JPG").write_bytes(b"other")
            done = run("millrace", "pack", tree, "-o", folder / "o-%d.tar")
            self.assertEqual(done.returncode, 5)
            self.assertIn("two files for the field 'jpg'", done.stderr)
            (folder / "list").write_text(f"{tree}/c1/s1.jpg\t17\n{tree}/c2/s2.jpg\tcat\n{tree}/gone.jpg\n")
            done = run("millrace", "pack", f"@{folder}/list", "-o", folder / "l-%d.tar")
            self.assertEqual((done.returncode, "not_found" in done.stderr), (4, True), done.stderr)
            self.assertEqual(run("millrace", "pack", tree, "-o", "x-%s.tar").returncode, 2)
            self.assertEqual(run("millrace", "pack", tree, "-o", "x-%d.tar", "--part", "3/2").returncode, 2)

    def test_images_are_scaled(self):
        with Folder() as folder:
            run("millrace", "fake", folder / "f-%d.tar", "--shards", 1, "--samples", 4, "--size", 96)
            (folder / "tree/a").mkdir(parents=True)
            with tarfile.open(folder / "f-0.tar") as tar:
                for member in tar.getmembers():
                    if member.name.endswith("jpg"):
                        (folder / "tree/a" / pathlib.Path(member.name).name).write_bytes(tar.extractfile(member).read())
            (folder / "tree/a/broken.jpg").write_bytes(b"\xff\xd8 no image")
            done = run("millrace", "pack", folder / "tree", "-o", folder / "s-%d.tar", "--resize", 48)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"\d+ JPEGs are smaller, .* before and .* now, .* 1 cannot be decoded")
            with tarfile.open(folder / "s-0.tar") as tar:
                self.assertEqual(tar.extractfile("a/broken.jpg").read(), b"\xff\xd8 no image")
            self.assertLess((folder / "s-0.tar").stat().st_size, (folder / "f-0.tar").stat().st_size)


class Restart(unittest.TestCase):
    def listed(self, shard):
        done = run("millrace", "ls", "--json", shard)
        return [(s["key"], s["fields"]) for s in json.loads(done.stdout)["list"]]

    def test_shards_are_written_again_with_restart_markers(self):
        with Folder() as folder:
            shards = harness.fake(folder, "a", 2, 20)
            done = run("millrace", "pack", "--from-shards", shards, "-o", folder / "r-%06d.tar", "--restart", 2, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            self.assertEqual((report["samples"], report["shards"], report["rewritten"], report["not_rewritten"]), (20, 2, 20, 0))
            for i in range(2):
                before, after = self.listed(folder / f"a-{i:06}.tar"), self.listed(folder / f"r-{i:06}.tar")
                self.assertEqual([k for k, _ in before], [k for k, _ in after])
                self.assertEqual([f["cls"] for _, f in before], [f["cls"] for _, f in after])
                self.assertNotEqual(before, after)
            self.assertEqual(run("millrace", "verify", "--images", folder / "r-{000000..000001}.tar").returncode, 0)
            again = run("millrace", "pack", "--from-shards", shards, "-o", folder / "r-%06d.tar", "--restart", 2)
            self.assertEqual((again.returncode, "--overwrite" in again.stderr), (2, True), again.stderr)

    def test_what_is_no_jpeg_stays_as_it_is_and_is_counted(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", [("0.jpg", b"no image"), ("0.cls", b"1"), ("1.txt", b"text")])
            done = run("millrace", "pack", "--from-shards", folder / "a.tar", "-o", folder / "r-%06d.tar", "--restart", 4, "--json")
            report = json.loads(done.stdout)
            self.assertEqual((report["rewritten"], report["not_rewritten"]), (0, 1))
            self.assertEqual(run("millrace", "digest", folder / "r-000000.tar").stdout,
                             run("millrace", "digest", folder / "a.tar").stdout)

    def test_folders_are_packed_with_them_as_well(self):
        with Folder() as folder:
            harness.fake(folder, "a", 1, 3)
            with tarfile.open(folder / "a-000000.tar") as tar:
                files = {m.name: tar.extractfile(m).read() for m in tar if m.name.endswith(".jpg")}
            (folder / "tree/c").mkdir(parents=True)
            for name, content in files.items():
                (folder / "tree/c" / name).write_bytes(content)
            done = run("millrace", "pack", folder / "tree", "-o", folder / "p-%06d.tar", "--restart", 1, "--json")
            self.assertEqual(json.loads(done.stdout)["rewritten"], 3, done.stderr)
            with tarfile.open(folder / "p-000000.tar") as tar:
                for member in tar:
                    if member.name.endswith(".jpg"):
                        self.assertIn(b"\xff\xdd\x00\x04\x00\x01", tar.extractfile(member).read())

    def test_wrong_uses_are_refused(self):
        for arguments in ((), ("somewhere", "--from-shards", "a.tar"), ("--from-shards", "a.tar"),
                          ("--from-shards", "a.tar", "--restart", 4, "--shuffle", 1)):
            done = run("millrace", "pack", *arguments, "-o", "x-%06d.tar")
            self.assertEqual((done.returncode, done.stderr[:15]), (2, "millrace: usage"), done.stderr)

    def test_bench_decode(self):
        with Folder() as folder:
            shards = harness.fake(folder, "a", 1, 20)
            for options in ((), ("--validation",), ("--stage", "resize"), ("--stage", "decode", "--mode", "fast"), ("--threads", 2),
                            ("--huffman", "library")):
                done = run("millrace", "bench", "decode", shards, "--size", 32, "--rounds", 1, "--json", *options)
                report = json.loads(done.stdout.splitlines()[-1])
                self.assertEqual((report["samples"], report["failed"]), (20, 0), done.stderr)
                self.assertGreater(report["images_per_s"], 0)
            self.assertIn("images/s", run("millrace", "bench", "decode", shards, "--rounds", 1).stdout)
            help_text = run("millrace", "bench", "decode", "--help").stdout
            self.assertTrue(help_text and all(c.isprintable() or c == "\n" for c in help_text))
            write_tar(folder / "b.tar", [("0.jpg", b"no image")])
            nothing = run("millrace", "bench", "decode", folder / "b.tar")
            self.assertEqual((nothing.returncode, "no_samples" in nothing.stderr), (1, True), nothing.stderr)


class Index(unittest.TestCase):
    def test_it_is_what_widsindex_writes(self):
        with Folder() as folder:
            write_tar(folder / "b.tar", samples(3))
            write_tar(folder / "a.tar", samples(5, 100))
            done = run("millrace", "index", "create", "b.tar", "a.tar", "-o", "i.json", cwd=folder)
            self.assertEqual(done.stdout, "setting name to b\nb.tar\na.tar\n", done.stderr)
            entries = [{"url": f"{n}.tar", "md5sum": md5(folder / f"{n}.tar"), "nsamples": count,
                        "filesize": (folder / f"{n}.tar").stat().st_size} for n, count in (("a", 5), ("b", 3))]
            expected = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": entries, "name": "b"}
            self.assertEqual((folder / "i.json").read_text(), json.dumps(expected, indent=2))
            table = run("millrace", "index", "info", "-t", "i.json", cwd=folder).stdout.splitlines()
            self.assertEqual(table[0], "file\tname\tnbytes\tnsamples\tbase\tlast\tdatasets")
            size = sum(e["filesize"] for e in entries)
            self.assertEqual(table[1], f"i.json\tb\t{size}\t8\tNone\tb.tar\t0")

    @harness.needs_shared("imagenet-sample")
    def test_real_indices_are_written_byte_for_byte(self):
        for name, spec in (("imagenet-sample", "imagenet-sample-{000000..000006}.tar"),):
            with Folder() as folder:
                run("millrace", "index", spec, "-o", folder / "i.json", cwd=harness.SHARED / name)
                self.assertEqual((folder / "i.json").read_bytes(),
                                 (harness.SHARED / name / f"{name}-index.json").read_bytes())

    def test_update_changes_what_it_is_told_to_alone(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(1))
            run("millrace", "index", "create", "a.tar", "-o", "i.json", cwd=folder)
            before = json.loads((folder / "i.json").read_text())
            run("millrace", "index", "update", "i.json", "-n", "foo", "-d", "http://h/x", cwd=folder)
            after = json.loads((folder / "i.json").read_text())
            self.assertEqual(after["name"], "foo")
            self.assertEqual(after["shardlist"][0]["url"], "http://h/x/a.tar")
            self.assertNotIn("keep", after)  # which widsindex sets to false whatever it is told
            self.assertEqual(json.loads((folder / "i.json.bak").read_text()), before)
            run("millrace", "index", "update", "i.json", "--rebase", cwd=folder)
            self.assertEqual(json.loads((folder / "i.json").read_text())["base"], "http://h/x")

    def test_samples_by_number_with_and_without_offsets_here_and_over_http(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(5))
            write_tar(folder / "b.tar", samples(4, 5) + [("x" * 150 + ".bin", b"long name")])
            for offsets in ([], ["--offsets"]):
                run("millrace", "index", "create", "a.tar", "b.tar", "-o", "i.json", *offsets, cwd=folder)
                self.assertEqual((folder / "i.offsets").exists(), bool(offsets))
                with harness.PlainServer(folder) as server:
                    for index in ("i.json", f"{server.url}/i.json"):
                        done = run("millrace", "index", "sample", index, 7, "-c", "bin", cwd=folder)
                        self.assertEqual(done.stdout, chr(7) * 100, done.stderr)
                        lines = run("millrace", "index", "sample", index, 9, cwd=folder).stdout
                        self.assertIn("x" * 150, lines)
            self.assertEqual(run("millrace", "index", "sample", "i.json", 10, cwd=folder).returncode, 2)
            (folder / "i.offsets").write_bytes((folder / "i.offsets").read_bytes()[:-9] + b"x" * 9)
            self.assertEqual(run("millrace", "index", "sample", "i.json", 1, cwd=folder).returncode, 5)

    def test_nested_indices_and_bases(self):
        with Folder() as folder:
            (folder / "deep").mkdir()
            write_tar(folder / "deep/a.tar", samples(2))
            write_tar(folder / "b.tar", samples(3, 2))
            run("millrace", "index", "create", "a.tar", "-o", "i.json", cwd=folder / "deep")
            whole = {"wids_version": 1, "shardlist": [{"url": "b.tar", "nsamples": 3}],
                     "datasets": [{"source_url": "deep/i.json"},
                                  {"base": str(folder), "shardlist": [{"url": "b.tar", "nsamples": 3}]}]}
            (folder / "all.json").write_text(json.dumps(whole))
            keys = [run("millrace", "index", "sample", folder / "all.json", i).stdout for i in range(8)]
            self.assertEqual([k.split("'")[1] for k in keys], [f"s{i:05}" for i in (2, 3, 4, 0, 1, 2, 3, 4)])
            twice = {"wids_version": 1, "datasets": [{"source_url": "all.json"}]}
            (folder / "twice.json").write_text(json.dumps(twice))
            done = run("millrace", "index", "sample", folder / "twice.json", 0)
            self.assertEqual((done.returncode, "includes others itself" in done.stderr), (5, True), done.stderr)

    def test_what_is_no_index_is_refused(self):
        with Folder() as folder:
            for text in ("[]", "{", '{"wids_version": 2}', '{"wids_version": 1, "shardlist": []}',
                         '{"wids_version": 1, "shardlist": [{"url": "a"}]}',
                         '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": -1}]}',
                         '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": "5"}]}'):
                (folder / "i.json").write_text(text)
                done = run("millrace", "index", "info", folder / "i.json")
                self.assertEqual((done.returncode, done.stderr[:19]), (5, "millrace: bad_index"), text)


class Summary(unittest.TestCase):
    def test_names_as_patterns_whose_expansion_is_the_names(self):
        rng = random.Random(3)
        for _ in range(50):
            names = set()
            for _ in range(rng.randint(1, 4)):
                stem = rng.choice(["a-", "b", "x{y}-", "dir.2/c_", ""])
                width = rng.choice([0, 0, 3, 6])
                for n in rng.sample(range(1500), rng.randint(1, 30)):
                    names.add(f"{stem}{n:0{width}}{rng.choice(['.tar', '.tar', '.tgz'])}")
            done = run("millrace", "summary", "-", stdin="\n".join(sorted(names)))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.expand(done.stdout.split()), sorted(names))

    def expand(self, patterns):
        try:
            import braceexpand
        except ImportError:
            self.skipTest("no braceexpand: ./setup --peers installs it")
        return sorted(n for p in patterns for n in braceexpand.braceexpand(p))

    def test_the_seeds_use(self):
        names = "".join(f"imagenet-train-{i:06}.tar\n" for i in range(1282)) + \
            "".join(f"imagenet-val-{i:06}.tar\n" for i in range(50))
        self.assertEqual(run("millrace", "summary", stdin=names).stdout,
                         "imagenet-train-{000000..001281}.tar\nimagenet-val-{000000..000049}.tar\n")
        with Folder() as folder:
            for i in range(3):
                write_tar(folder / f"a-{i}.tar", samples(4))
            done = run("millrace", "summary", folder / "a-{0..2}.tar", "--samples", "--json")
            found = json.loads(done.stdout)
            self.assertEqual((found["shards"], found["samples"], found["bytes"]), (3, 12, 3 * 10240), done.stderr)


class Verify(unittest.TestCase):
    def test_what_is_wrong_is_listed(self):
        with Folder() as folder:
            run("millrace", "fake", folder / "f-%d.tar", "--shards", 2, "--samples", 20, "--size", 32)
            run("millrace", "index", folder / "f-{0..1}.tar", "-o", folder / "i.json", "--offsets")
            good = run("millrace", "verify", "--index", folder / "i.json", "--images")
            self.assertEqual((good.returncode, "all is well" in good.stdout), (0, True), good.stdout + good.stderr)
            data = bytearray((folder / "f-1.tar").read_bytes())
            data[700] ^= 0xFF  # in the payload of the first file
            (folder / "f-1.tar").write_bytes(data)
            bad = run("millrace", "verify", "--index", folder / "i.json", "--images")
            self.assertEqual(bad.returncode, 1)
            self.assertIn("its MD5 is", bad.stdout)
            (folder / "f-1.tar").write_bytes((folder / "f-0.tar").read_bytes()[:-20000])
            bad = run("millrace", "verify", folder / "f-{0..1}.tar", "--json")
            problems = json.loads(bad.stdout)["problems"]
            self.assertTrue(any(p.startswith("truncated") for p in problems), problems)
            self.assertTrue(any("the key is in" in p for p in problems), problems)

    def test_files_of_a_sample_that_do_not_stand_together(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", [("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3"), ("c.x", b"4"), ("c.x", b"5")])
            done = run("millrace", "verify", folder / "a.tar")
            self.assertEqual(done.returncode, 1)
            self.assertIn("do not stand together", done.stdout)
            self.assertIn("two members with the extension 'x'", done.stdout)


class Simulator(unittest.TestCase):
    """What simdist.py printed under WebDataset 0.1.62, row by row."""

    TEN = "90x10"
    UNEVEN = "95,88,91,103,87,90,99,101,85,93"

    def rows(self, counts, *options):
        done = run("millrace", "sim", "--counts", counts, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        ranks = [line.partition(": ")[2] for line in lines if line.startswith("rank ")]
        return ranks, any(line == "SUCCESS: same batches in all workers" for line in lines)

    def test_every_row(self):
        def of(*counts):
            return [f"[(10, {n})]" for n in counts]
        for counts, options, ranks, same in (
                (self.TEN, "", of(36, 27, 27), False),
                (self.TEN, "--nbatches 26", of(26, 26, 26), True),
                (self.TEN, "--nbatches 32 --dsrepeat 2", of(32, 32, 32), True),
                (self.TEN, "--nbatches 32 --repeat 2", of(32, 32, 32), True),
                (self.TEN, "--partial", of(36, 27, 27), False),
                (self.TEN, "--nworkers 0", of(36, 27, 27), False),
                (self.TEN, "--size 4 --nworkers 4", of(27, 27, 18, 18), False),
                (self.TEN, "--size 11 --nworkers 1", of(*[9] * 10) + ["[]"], False),
                (self.TEN, "--batch-size 64 --size 2 --nworkers 2", ["[(64, 6)]"] * 2, True),
                (self.TEN, "--size 0", [], True),
                ("90x9", "", of(27, 27, 27), True),
                (self.UNEVEN, "", of(37, 26, 26), False),
                (self.UNEVEN, "--nbatches 26", of(26, 26, 26), True),
                (self.UNEVEN, "--nbatches 32 --dsrepeat 2", of(32, 32, 32), True),
                (self.UNEVEN, "--dsrepeat 2", of(74, 52, 52), False),
                (self.UNEVEN, "--partial", ["[(10, 37), (9, 1), (3, 1), (8, 1)]", "[(10, 26), (8, 1), (7, 1), (1, 1)]",
                                            "[(10, 26), (5, 1), (1, 1)]"], False),
                (self.UNEVEN, "--dsrepeat 2 --partial",
                 ["[(10, 74), (9, 2), (3, 2), (8, 2)]", "[(10, 52), (8, 2), (7, 2), (1, 2)]",
                  "[(10, 52), (5, 2), (1, 2)]"], False)):
            self.assertEqual(self.rows(counts, *options.split()), (ranks, same), f"{counts} {options}")

    def test_parameters_and_splits(self):
        done = run("millrace", "sim", "--counts", self.TEN, "--showsplits")
        self.assertTrue(done.stdout.startswith("parameters:\n\tworldsize 3\n\tnworkers 3\n\tnshards 10\n\tpartial False\n"
                                               "\tnbatches 999999\n\tloader-repeat 1\n\tdataset-repeat 1\n\nrank 0: "))
        lines = done.stderr.splitlines()
        self.assertEqual([line.split("len=")[1] for line in lines if "node" in line], list("444333333"))
        self.assertEqual([line.split("len=")[1] for line in lines if "worker" in line][:3], list("211"))

    def test_shards_are_counted_and_own_modes_shown(self):
        with Folder() as folder:
            for i in range(10):
                write_tar(folder / f"a-{i}.tar", samples(9))
            done = json.loads(run("millrace", "sim", folder / "a-{0..9}.tar", "--batch-size", 3, "--json").stdout)
            self.assertEqual(done["ranks"], [[[3, 12]], [[3, 9]], [[3, 9]]])
            modes = {m["mode"]: m for m in done["millrace"]}
            self.assertEqual(sum(modes["exact"]["batches"]), 30)
            self.assertEqual(modes["equal, dropping"]["batches"], [10, 10, 10])
        self.assertEqual(run("millrace", "sim").returncode, 2)


@harness.needs_shared("hostile-tar")
class HostileArchives(unittest.TestCase):
    """Archives from the test suites of other readers, with memory for nothing that a header announces."""

    def pythons(self, path):
        """The files that Python's tarfile reads, or its error."""
        try:
            with tarfile.open(path, "r|*") as tar:
                return [(m.name, m.size) for m in tar if m.isreg()], None
        except Exception as wrong:  # noqa: BLE001
            return None, f"{type(wrong).__name__}: {wrong}"

    def libarchives(self, path):
        done = subprocess.run(["bsdtar", "-tf", str(path)], capture_output=True, timeout=60)
        return f"{len(done.stdout.splitlines())} names" if done.returncode == 0 else done.stderr.decode("utf8", "replace").splitlines()[-1]

    def ours(self, path):
        limit = 3 << 30
        sanitized = "asan" in str(harness.BIN) or "tsan" in str(harness.BIN)
        return subprocess.run(
            [harness.BIN / "millrace", "verify", path, "--json"], capture_output=True, timeout=60,
            env=harness.CLEAN | {"MILLRACE_MEMORY": "64M"},
            preexec_fn=None if sanitized else lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))

    def test_none_crashes_hangs_or_takes_memory(self):
        differing = []
        for path in sorted((harness.SHARED / "hostile-tar").iterdir()):
            done = self.ours(path)
            self.assertIn(done.returncode, (0, 1), f"{path.name}: {done.stderr}")
            found = json.loads(done.stdout)
            names, wrong = self.pythons(path)
            if "--table" in sys.argv:
                print(f"{path.name} | {self.libarchives(path)} | {wrong or f'{len(names)} files'} | "
                      f"{found['samples']} samples, {'; '.join(p.split(', at ')[0] for p in found['problems']) or 'well'}")
            # What Python reads to its end without a word is well here too, or a difference with a reason.
            if names is not None and found["problems"]:
                differing.append(path.name)
        # Versions of Python differ among themselves.
        self.assertLessEqual(set(differing), set(DIFFERENCES))


SPARSE = "sparse files are expanded there and refused by name here"
SILENT = "Python ends the archive here in silence"
GLOBAL = "a global header that names every file to come is heeded there, refused here"
# What Python's tarfile reads without a word, and millrace does not.
DIFFERENCES = {
    "commons-compress--COMPRESS-553-fail.tar": SILENT,
    "commons-compress--archive_with_trailer.tar": SILENT,
    "commons-compress--pax_gnu_sparse.tar": SPARSE,
    "go-fuzz-corpus--tar__corpus__a251024759be6a5d4ad453a6aac2f4de926988d5-4": SILENT,
    "go-tar--gnu-nil-sparse-hole.tar": SPARSE,
    "go-tar--pax-global-records.tar": GLOBAL,
    "go-tar--pax-nil-sparse-data.tar": SPARSE,
    "go-tar--pax-nil-sparse-hole.tar": SPARSE,
    "go-tar--pax-nul-path.tar": "a name with a zero byte is cut there, refused here",
    "go-tar--sparse-formats.tar": SPARSE,
    "libarchive--test_read_format_tar_acl_oob_read.tar": "pax records that are not well formed are passed over there",
    "libarchive--test_read_format_tar_timestamp_overflow.tar": "a size that begins with a zero byte is 0 there",
    "node-tar--fixtures__tars__bad-cksum.tar": SILENT,
    "node-tar--fixtures__tars__global-header.tar": GLOBAL,
    "tar-rs--sparse-1.tar": SPARSE,
    "tar-rs--sparse.tar": SPARSE,
    "tokio-tar--diff-014-unterminated-pax.tar": "pax records that are not well formed are passed over there",
}


if __name__ == "__main__":
    if "--table" in sys.argv:
        unittest.main(argv=[sys.argv[0], "HostileArchives"])
    unittest.main()
