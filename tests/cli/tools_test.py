"""The other shard tools: verify, summary, sim, and what hostile archives do to them."""

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
from tests.support.archives import samples, write_tar  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


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

    def test_a_path_with_two_colons_can_be_given_back(self):
        with Folder() as folder:
            for i in range(2):
                write_tar(folder / f"x::y%41-{i}.tar", samples(2))
            done = run("millrace", "summary", "*.tar", cwd=folder)
            pattern = done.stdout.split("\t")[0]
            self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout + done.stderr)
            listed = run("millrace", "ls", pattern, cwd=folder)
            self.assertEqual((listed.returncode, len(listed.stdout.splitlines())), (0, 4), listed.stderr)

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


class Listing(unittest.TestCase):
    def test_a_pattern_passes_over_no_folder_that_is_not_mounted(self):
        with Folder() as folder:
            (folder / "all/here").mkdir(parents=True)
            harness.fake(folder / "all/here", "a", 1, 2)
            self.assertEqual(run("millrace", "ls", f"{folder}/all/*/*.tar").returncode, 0)
            os.symlink("/nowhere/at/all", folder / "all/there")
            done = run("millrace", "ls", f"{folder}/all/*/*.tar")
            self.assertEqual((done.returncode, f"{folder}/all/there" in done.stderr), (4, True), done.stderr)


    def test_names_that_are_not_utf8_stay_apart(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", [("a.\udcff", b"1"), ("a.\udcfe", b"22")])
            run("millrace", "index", "a.tar", "-o", "i.json", cwd=folder)
            for words in (["ls", "a.tar", "--json"], ["index", "sample", "i.json", 0, "--json"]):
                done = run("millrace", *words, cwd=folder)
                self.assertEqual((done.returncode, done.stdout.count("\\\\xff"), done.stdout.count("\\\\xfe")), (0, 1, 1), done.stdout)


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

    def test_a_shard_of_the_index_that_is_not_there_is_told(self):
        with Folder() as folder:
            shards = harness.fake(folder, "f", 3, 6)
            run("millrace", "index", shards, "-o", folder / "i.json")
            (folder / "f-000001.tar").rename(folder / "f-000001.part")
            (folder / "list").write_text(f"{folder}\n")
            for named in ([folder], [f"{folder}/"], [folder / "f-*.tar"], [f"{folder}::"], [f"@{folder}/list"],
                          ["--base", folder.parent, folder.name]):
                done = run("millrace", "verify", "--index", folder / "i.json", *named)
                self.assertEqual((done.returncode, "lists a shard that is not among those given, at" in done.stdout), (1, True), done.stdout)
                self.assertIn("f-000001.tar", done.stdout)
            done = run("millrace", "verify", "--index", folder / "i.json", folder / "f-000000.tar")
            self.assertEqual((done.returncode, "2 shards of the index not checked" in done.stdout), (0, True), done.stdout)
            done = run("millrace", "verify", "--index", folder / "i.json", folder / "f-000000.tar", "--json")
            self.assertEqual(json.loads(done.stdout)["missing"], 2)
            (folder / "f-000001.part").rename(folder / "f-000001.tar")
            run("millrace", "index", *sorted(folder.glob("f-*.tar")), folder / "f-000000.tar", "-o", folder / "twice.json")
            done = run("millrace", "verify", "--index", folder / "twice.json", folder, "--json")
            self.assertEqual((done.returncode, json.loads(done.stdout)["missing"]), (0, 0), done.stdout)

    def test_a_stretch_that_is_missing_between_members_is_found_by_the_index_alone(self):
        with Folder() as folder:
            harness.fake(folder, "f", 1, 6)
            shard = folder / "f-000000.tar"
            run("millrace", "index", shard, "-o", folder / "i.json")
            whole = shard.read_bytes()
            with tarfile.open(shard) as archive:
                begins = [m.offset for m in archive]
            for first, last, found in ((2, 4, 5), (3, 5, 6), (0, 2, 5), (10, 12, 5)):  # members
                with self.subTest(first=first, last=last):
                    shard.write_bytes(whole[:begins[first]] + whole[(begins + [begins[-1] + 1024])[last]:])
                    done = run("millrace", "verify", shard)
                    self.assertEqual((done.returncode, f" {found} samples" in done.stdout), (0, True), done.stdout)
                    done = run("millrace", "verify", "--index", folder / "i.json")
                    self.assertEqual(done.returncode, 1, done.stdout)
                    self.assertIn(f"integrity: {shard.stat().st_size} bytes, the index says {len(whole)}, at {shard}", done.stdout)
                    self.assertIn("its MD5 is", done.stdout)

    def test_images_of_formats_that_are_not_decoded_are_listed(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", [("a.gif", b"GIF89a" + bytes(20)), ("a.cls", b"1"), ("b.seg.bmp", b"BM" + bytes(20))])
            self.assertEqual(run("millrace", "verify", folder / "a.tar").returncode, 0)
            found = run("millrace", "verify", folder / "a.tar", "--images")
            self.assertEqual((found.returncode, "a GIF" in found.stdout, "a BMP" in found.stdout), (1, True, True), found.stdout)

    def test_of_problems_without_end_the_first_are_listed_and_the_others_counted(self):
        with Folder() as folder:
            header = tarfile.TarInfo("a.txt")
            header.type = b"S"  # sparse: refused
            (folder / "s.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) * 50_000 + bytes(1024))
            found = run("millrace", "verify", folder / "s.tar", "--json")
            problems = json.loads(found.stdout)["problems"]
            self.assertEqual(found.returncode, 1, found.stderr)
            self.assertLess(len(problems), 1100)
            self.assertTrue(any("more problems" in p for p in problems), problems[-3:])

    def test_of_repeated_keys_as_well(self):
        with Folder() as folder:
            for name in ("a.tar", "b.tar"):
                write_tar(folder / name, [(f"{i}.txt", b"") for i in range(1_234)])
            found = run("millrace", "verify", folder / "a.tar", folder / "b.tar")
            self.assertEqual(found.returncode, 1)
            self.assertEqual(found.stdout.count("the key is in"), 1_000)
            self.assertIn("duplicate_field: 234 more duplicate keys, at", found.stdout)
            self.assertIn(": 1001 problems\n", found.stdout)

    def test_a_shard_without_samples_is_named(self):
        with Folder() as folder:
            write_tar(folder / "empty.tar", [])
            for command in ("ls", "digest"):
                done = run("millrace", command, folder / "empty.tar")
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"no sample is in the shard, at {folder / 'empty.tar'}", done.stderr)

    def test_a_missing_shard_is_one_problem(self):
        with Folder() as folder:
            harness.fake(folder, "f", 2, 8)
            run("millrace", "index", folder / "f-{000000..000001}.tar", "-o", folder / "i.json")
            (folder / "f-000001.tar").unlink()
            done = run("millrace", "verify", "--index", folder / "i.json", "--json")
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertEqual(len(json.loads(done.stdout)["problems"]), 1, done.stdout)

    def test_what_is_no_file_cannot_be_read(self):
        with Folder() as folder:
            (folder / "a.tar").mkdir()
            (folder / "empty").write_bytes(b"")
            for name in (folder / "a.tar", "/dev/null", "ftp://127.0.0.1/a.tar"):
                done = run("millrace", "verify", name, "--json")
                self.assertEqual(done.returncode, 4, (name, done.stderr))
            self.assertEqual(run("millrace", "verify", folder / "empty").returncode, 1)

    def test_files_of_a_sample_that_do_not_stand_together(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", [("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3"), ("c.x", b"4"), ("c.x", b"5")])
            done = run("millrace", "verify", folder / "a.tar")
            self.assertEqual(done.returncode, 1)
            self.assertIn("not adjacent", done.stdout)
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
                (self.TEN, "--world-size 4 --nworkers 4", of(27, 27, 18, 18), False),
                (self.TEN, "--world-size 11 --nworkers 1", of(*[9] * 10) + ["[]"], False),
                (self.TEN, "--batch-size 64 --world-size 2 --nworkers 2", ["[(64, 6)]"] * 2, True),
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
            # Without an index the ranks stop with the first of them, as millrace-train does.
            exact, unknown = modes["exact"], modes["equal, unknown"]
            self.assertEqual(unknown["batches"], [min(exact["batches"])] * 3)
            # An index of offsets deals the samples of few shards, for which --mode exact has as many batches as there can be.
            for offsets in ([], ["--offsets"]):
                run("millrace", "index", "create", folder / "a-{0..9}.tar", "-o", folder / "i.json", *offsets)
                said = json.loads(run("millrace", "sim", "--index", folder / "i.json", "--batch-size", 3, "--json").stdout)
                by_shards = [m for m in said["millrace"] if m["mode"] == "exact"]
                self.assertEqual(by_shards[0]["batches"] == exact["batches"], not offsets)
                self.assertEqual(sum(by_shards[0]["batches"]), 30)
                if offsets:
                    self.assertEqual(by_shards[0]["batches"], [10, 10, 10])
            self.assertEqual((unknown["samples"], unknown["dropped"]), (9 * min(exact["batches"]), 90 - 9 * min(exact["batches"])))
            said = run("millrace", "sim", folder / "a-{0..9}.tar").stdout
            self.assertIn("uses 'equal, dropping' with --index, and 'equal, unknown' without", said)
        self.assertEqual(run("millrace", "sim").returncode, 2)

    def test_memory_does_not_grow_with_the_samples(self):
        with Folder() as folder:
            rows = [{"url": f"a-{i}.tar", "nsamples": 400_000_000} for i in range(7)]
            (folder / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": rows}))
            words = ["millrace", "sim", "--index", folder / "i.json", "--lanes", 4, "--world-size", 4, "--json"]
            sanitized = "asan" in str(harness.BIN) or "tsan" in str(harness.BIN)
            done = subprocess.run([str(harness.BIN / words[0]), *map(str, words[1:])], env=harness.CLEAN, capture_output=True, text=True,
                                  preexec_fn=None if sanitized else lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)))
            self.assertIn("equal, dropping", done.stdout, done.stderr)

    def test_of_an_index_the_shards_that_are_named(self):
        with Folder() as folder:
            for i in range(4):
                write_tar(folder / f"a-{i}.tar", samples(9 + i))
            self.assertEqual(run("millrace", "index", "a-{0..3}.tar", "-o", "i.json", cwd=folder).returncode, 0)
            sim = ["millrace", "sim", "--index", "i.json", "--world-size", 1, "--nworkers", 1, "--batch-size", 1, "--json"]
            for shards, count in ((["./a-1.tar", folder / "a-3.tar"], 22), ([], 42)):
                done = run(*sim, *shards, cwd=folder)
                self.assertEqual((done.returncode, json.loads(done.stdout)["ranks"]), (0, [[[1, count]]]), done.stderr)
            done = run(*sim, "b.tar", cwd=folder)
            self.assertEqual((done.returncode, "the index does not list this shard" in done.stderr), (5, True), done.stderr)

    def test_too_many_counts_are_refused(self):
        done = run("millrace", "sim", "--counts", "1x9999999,1,1")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--counts names more than 10000000 shards", done.stderr)

    def test_equal_lanes_leave_out_what_does_not_go_round(self):
        done = json.loads(run("millrace", "sim", "--counts", "1500", "--world-size", 1, "--lanes", 8, "--batch-size", 1,
                              "--json").stdout)
        modes = {m["mode"]: m for m in done["millrace"]}
        self.assertEqual([modes["equal, dropping"][k] for k in ("samples", "dropped")], [1496, 4])
        self.assertEqual([modes["equal, repeating"][k] for k in ("samples", "repeated")], [1504, 4])

    def test_lanes_that_the_ranks_cannot_share_are_refused(self):
        counts = ["--counts", "90x10", "--world-size", 2]
        for lanes in (3, -2):
            done = run("millrace", "sim", *counts, "--lanes", lanes)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(f"--lanes {lanes} cannot be divided evenly among 2 ranks", done.stderr)
        self.assertIn("millrace, 4 lanes", run("millrace", "sim", *counts, "--lanes", 4).stdout)
        done = run("millrace", "sim", "--lanes", 3)
        self.assertEqual((done.returncode, "usage: no shards; name shards" in done.stderr), (2, True), done.stderr)

    def test_no_rank_and_no_batch_are_no_success(self):
        self.assertEqual(run("millrace", "sim", "--counts", "90x10", "--world-size", 0).returncode, 2)
        none = run("millrace", "sim", "--counts", "5x4", "--world-size", 2, "--batch-size", 64)
        self.assertIn("FAILED: no batch in any worker", none.stdout)
        self.assertNotIn("SUCCESS", none.stdout)


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
            self.assertIn(done.returncode, (0, 1, 4), f"{path.name}: {done.stderr}")
            found = json.loads(done.stdout)
            names, wrong = self.pythons(path)
            if "--table" in sys.argv:
                print(f"{path.name} | {self.libarchives(path)} | {wrong or f'{len(names)} files'} | "
                      f"{found['samples']} samples, {'; '.join(p.split(', at ')[0] for p in found['problems']) or 'well'}")
            # What Python reads to its end without a word is well here too, or a difference with a reason.
            problems = [p for p in found["problems"] if not p.startswith("no_samples")]
            if names is not None and problems:
                differing.append(path.name)
        # Versions of Python differ among themselves.
        self.assertLessEqual(set(differing), set(DIFFERENCES))


SPARSE = "sparse files are expanded there and refused by name here"
SILENT = "Python ends the archive here in silence"
ENDLESS = "Python takes the end of the file for the end of an archive that lacks its end blocks"
GLOBAL = "a global header that names every file to come is heeded there, refused here"
# What Python's tarfile reads without a word, and millrace does not.
DIFFERENCES = {
    "commons-compress--COMPRESS-553-fail.tar": SILENT,
    "commons-compress--archive_with_trailer.tar": SILENT,
    "commons-compress--pax_gnu_sparse.tar": SPARSE,
    "go-fuzz-corpus--tar__corpus__a251024759be6a5d4ad453a6aac2f4de926988d5-4": SILENT,
    "go-tar--gnu-multi-hdrs.tar": ENDLESS,
    "go-tar--gnu-nil-sparse-hole.tar": SPARSE,
    "go-tar--nil-uid.tar": ENDLESS,
    "go-tar--pax-bad-mtime-file.tar": ENDLESS,
    "go-tar--pax-global-records.tar": GLOBAL,
    "go-tar--pax-multi-hdrs.tar": ENDLESS,
    "go-tar--pax-nil-sparse-data.tar": SPARSE,
    "go-tar--pax-nil-sparse-hole.tar": SPARSE,
    "go-tar--pax-nul-path.tar": "a name with a zero byte is cut there, refused here",
    "go-tar--pax-pos-size-file.tar": ENDLESS,
    "go-tar--sparse-formats.tar": SPARSE,
    "go-tar--ustar-file-reg.tar": ENDLESS,
    "libarchive--test_read_format_tar_acl_oob_read.tar": "pax records that are not well formed are passed over there",
    "libarchive--test_read_format_tar_timestamp_overflow.tar": "a size that begins with a zero byte is 0 there",
    "node-tar--fixtures__tars__bad-cksum.tar": SILENT,
    "node-tar--fixtures__tars__global-header.tar": GLOBAL,
    "node-tar--fixtures__tars__long-pax.tar": ENDLESS,
    "tar-rs--empty_filename.tar": ENDLESS,
    "tar-rs--sparse-1.tar": SPARSE,
    "tar-rs--sparse.tar": SPARSE,
    "tar-stream--gnu-long-path.tar": ENDLESS,
    "tokio-tar--diff-014-unterminated-pax.tar": "pax records that are not well formed are passed over there",
}


if __name__ == "__main__":
    if "--table" in sys.argv:
        unittest.main(argv=[sys.argv[0], "HostileArchives"])
    unittest.main()
