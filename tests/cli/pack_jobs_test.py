"""pack: what a job leaves for a later run, and takes from an earlier one."""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.archives import md5, tree_of_classes, write_tar  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


class PackJobs(unittest.TestCase):
    def test_a_run_that_was_stopped_goes_on_and_another_one_is_refused(self):
        with Folder() as folder:
            command = ["millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%03d.tar", "--max-count", 2, "--json"]
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

    def test_what_an_overwriting_run_did_not_come_to_is_not_taken_for_its_own(self):
        with Folder() as folder:
            command = ["millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%03d.tar", "--max-count", 1, "--json"]
            self.assertEqual(run(*command).returncode, 0)
            for image in (folder / "tree").glob("*/*.jpg"):
                image.write_bytes(b"\xff\xd8y")  # as long as it was
            self.assertEqual(json.loads(run(*command, "--overwrite", "--part", "1/2").stdout)["written"], 4)
            for more in ([], ["--part", "2/2"]):
                done = run(*command, *more)
                self.assertEqual((done.returncode, "of another run" in done.stderr), (2, True), done.stderr)
            self.assertEqual(json.loads(run(*command, "--part", "1/2").stdout)["kept"], 4)
            self.assertEqual(json.loads(run(*command, "--overwrite", "--part", "2/2").stdout)["written"], 3)
            self.assertEqual(json.loads(run(*command).stdout)["kept"], 7)
            new = [*command[:4], folder / "n-%03d.tar", *command[5:]]
            self.assertEqual(run(*new).returncode, 0)
            self.assertEqual([md5(p) for p in sorted(folder.glob("o-*.tar"))], [md5(p) for p in sorted(folder.glob("n-*.tar"))])
            # Also of the same job: what it reads may have been replaced on its server.
            self.assertEqual(json.loads(run(*command, "--overwrite").stdout)["written"], 7)
            [written] = folder.glob(".o-000.pack.json.*.1-of-1")
            self.assertEqual(list(folder.glob(".o-000.pack.json.*")), [written])
            about, *lines = written.read_text().splitlines(True)
            lines = [about, *sorted(lines, key=lambda line: json.loads(line)["shard"])]  # threads list theirs when they are whole
            self.assertEqual(len(lines), 8)
            written.write_text("".join(lines[:4]) + lines[4][:20])  # killed, and power lost, after three
            self.assertEqual(run(*command).returncode, 2)
            for i in range(3, 7):
                (folder / f"o-{i:03}.tar").unlink()
            done = run(*command)
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout)
            self.assertEqual((told["kept"], told["written"]), (3, 4))
            self.assertEqual(json.loads(run(*command).stdout)["kept"], 7)

    def test_a_shard_that_the_job_did_not_write_is_never_taken_for_its_own_nor_replaced(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            harness.fake(folder, "src", 2, 6)
            sources = sorted(folder.glob("src-*.tar"))
            jobs = {"plain": [tree], "restart": [tree, "--restart", 4], "resize": [tree, "--resize", 8],
                    "shards": ["--from-shards", *sources, "--restart", 4]}

            def others(shard):
                write_tar(shard, [("k.txt", b"mine")])

            def appended(shard):
                with tarfile.open(shard, "a") as archive:
                    archive.addfile(tarfile.TarInfo("more.txt"))

            def flipped(shard):
                content = bytearray(shard.read_bytes())
                content[600] ^= 1
                shard.write_bytes(content)

            def faked(shard):
                self.assertEqual(run("millrace", "fake", folder / "o-%d.tar", "--shards", 2, "--samples", 4, "--overwrite").returncode, 0)

            changes = {"others": others, "appended": appended, "flipped": flipped, "faked": faked,
                       "empty": lambda shard: shard.write_bytes(b"")}
            for job, arguments in jobs.items():
                for name, change in changes.items():
                    with self.subTest(job=job, change=name):
                        for left in [*folder.glob("o-*"), *folder.glob(".o-*")]:
                            left.unlink()
                        command = ["millrace", "pack", *arguments, "-o", folder / "o-%d.tar"]
                        command += [] if job == "shards" else ["--max-count", 4]
                        self.assertEqual(run(*command).returncode, 0)
                        change(folder / "o-1.tar")
                        before = md5(folder / "o-1.tar")
                        done = run(*command)
                        self.assertEqual((done.returncode, "of another run" in done.stderr), (2, True), done.stderr)
                        self.assertEqual(md5(folder / "o-1.tar"), before)

    def test_shards_that_were_copied_are_known_by_their_bytes(self):
        with Folder() as folder:
            command = ["millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%d.tar", "--max-count", 3, "--json"]
            self.assertEqual(run(*command).returncode, 0)
            for shard in folder.glob("o-*.tar"):
                content = shard.read_bytes()
                shard.unlink()
                shard.write_bytes(content)  # of another time
            self.assertEqual(json.loads(run(*command).stdout)["kept"], 3)

    def test_names_of_what_shards_are_not_are_refused(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            for name in ("o-%03d.tar.gz", "o-{0..9}.tgz", "o-%d.tar.zst", "o-%6d.tar", "-", "s3://bucket/o-%d.tar", "http://h/o-{0..9}.tar"):
                for command in (["pack", tree, "-o"], ["fake"]):
                    with self.subTest(name, command=command[0]):
                        before = sorted(os.listdir(folder))
                        done = run("millrace", *command, name, cwd=folder)
                        self.assertEqual(done.returncode, 2, done.stderr)
                        self.assertEqual(sorted(os.listdir(folder)), before)
            for command in (["pack", tree, "-o"], ["fake"]):
                for overwrite in ([], ["--overwrite"]):
                    done = run("millrace", *command, tree, *overwrite)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn("has the name of a folder", done.stderr)

    def test_a_file_that_appears_while_it_works_is_not_replaced(self):
        with Folder() as folder:
            harness.fake(folder, "src", 1, 2)
            os.mkfifo(folder / "fifo")
            for overwrite in ([], ["--overwrite"]):
                for shard in folder.glob("o-*"):
                    shard.unlink()
                process = harness.start("millrace", "pack", "--from-shards", f"pipe:cat {folder}/fifo", "--restart", 4,
                                        *overwrite, "-o", folder / "o-%d.tar", env={"MILLRACE_ALLOW_PIPE": "1"},
                                        stderr=subprocess.PIPE, text=True)
                harness.wait_until(lambda: harness.has_written(folder, ".o-0.pack.json.*"))
                (folder / "o-0.tar").write_bytes(b"of another")
                (folder / "fifo").write_bytes((folder / "src-000000.tar").read_bytes())
                _, said = process.communicate(timeout=60)
                self.assertEqual((process.returncode, "another run has written the shard in the meantime" in said), (2, True), said)
                self.assertEqual((folder / "o-0.tar").read_bytes(), b"of another")
                for record in folder.glob(".o-0.pack.json*"):
                    record.unlink()

    def test_the_room_of_what_a_killed_run_left_is_there_for_the_next(self):
        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
        gone = subprocess.Popen(["true"])
        gone.wait()
        with Folder() as folder:
            tree = tree_of_classes(folder)
            harness.fake(folder, "src", 1, 2)
            restart = ["pack", "--from-shards", folder / "src-000000.tar", "--restart", 4, "-o"]
            for name, command in (("packed", ["pack", tree, "-o"]), ("restarted", restart), ("fake", ["fake"])):
                left = folder / f"{name}-0.tar.partial.{gone.pid}"
                left.write_bytes(b"x" * 5000)
                words = [harness.BIN / "millrace", *map(str, command), folder / f"{name}-{{0..0}}.tar"]
                done = subprocess.run(words, env=harness.CLEAN, preexec_fn=small, capture_output=True, timeout=60)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertFalse(left.exists(), command)

    def test_fake_that_failed_says_how_to_go_on(self):
        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
        with Folder() as folder:  # one sample, and two
            words = ["fake", str(folder / "f-%d.tar"), "--shards", "2", "--samples", "3", "--size", "256"]
            done = subprocess.run([harness.BIN / "millrace", *words], env=harness.CLEAN, preexec_fn=small, capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("1 shard is complete: run it again with --overwrite", done.stderr)
            self.assertEqual(run("millrace", *words).returncode, 2)
            self.assertEqual(run("millrace", *words, "--overwrite").returncode, 0)

    def test_names_that_are_one_file_are_refused(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            run("millrace", "fake", folder / "a-{0..2}.tar", "--samples", 6)
            for command in (["pack", tree, "-o"], ["fake"], ["pack", "--restart", 4, "--from-shards", folder / "a-{0..2}.tar", "-o"]):
                for pattern in ("x-{0,1,1}.tar", "x-{0,1}.tar::./x-1.tar", "{x-0,x-1,./x-0}.tar"):
                    done = run("millrace", *command, pattern, "--overwrite", cwd=folder)
                    self.assertEqual((done.returncode, "twice" in done.stderr), (2, True), done.stderr)
            self.assertEqual(list(folder.glob("x-*")), [])
            write_tar(folder / "real.tar", [("k.txt", b"text")])
            for i in range(2):
                (folder / f"y-{i}.tar").symlink_to("real.tar")
            done = run("millrace", "pack", tree, "-o", folder / "y-%d.tar", "--max-count", 4, "--overwrite")
            self.assertEqual((done.returncode, "would be one file" in done.stderr), (2, True), done.stderr)

    def test_what_it_reads_and_what_is_not_its_own_is_not_replaced(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            pack = ["millrace", "pack", tree, "-o", folder / "t-%d.tar", "--overwrite"]
            (folder / "t-classes.txt").write_text(f"{tree}/c0/s0.jpg\tcat\n")
            for source in (tree, f"@{folder}/t-classes.txt"):
                done = run(*pack[:2], source, *pack[3:])
                self.assertEqual((done.returncode, "another file stands where" in done.stderr), (2, True), done.stderr)
            (folder / "t-classes.txt").unlink()
            (folder / ".t-0.pack.json").write_text("mine")
            done = run(*pack)
            self.assertEqual((done.returncode, "another file has the name of the record" in done.stderr), (2, True), done.stderr)
            self.assertEqual((folder / ".t-0.pack.json").read_text(), "mine")
            (folder / ".t-0.pack.json").unlink()
            self.assertEqual(run(*pack).returncode, 0)
            # The classes of a job are replaced with its shards, and go with them.
            (tree / "c0").rename(tree / "k0")
            self.assertEqual(run(*pack[:-1]).returncode, 2)
            self.assertEqual(run(*pack).returncode, 0)
            self.assertIn("k0", (folder / "t-classes.txt").read_text())
            (folder / "list").write_text("".join(f"{tree}/c{i}/s{i}.jpg\t{i}\n" for i in range(1, 7)))
            self.assertEqual(run(*pack[:2], f"@{folder}/list", *pack[3:]).returncode, 0)
            self.assertFalse((folder / "t-classes.txt").exists())
            # Tars may be packed like any other file.
            (folder / "list").write_text(f"{folder}/t-0.tar\n")
            done = run(*pack[:2], f"@{folder}/list", *pack[3:])
            self.assertEqual((done.returncode, "one of the inputs" in done.stderr), (2, True), done.stderr)

    def test_shards_of_another_extension_are_another_job_s(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.tar").returncode, 0)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.wds", "--shuffle", 3).returncode, 0)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.tar", "--shuffle", 3).returncode, 2)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.tar").returncode, 0)

    def test_older_shards_behind_a_gap_are_refused(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            for name in ("t-2.tar", "t-12.tar", "t-3.txt", "t-x.tar", "t-07.tar"):
                write_tar(folder / name, [("k.txt", b"old")])
            pack = ["millrace", "pack", tree, "-o", folder / "t-%d.tar", "--overwrite"]
            done = run(*pack)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"2 shards of an older run would follow those of this one, at {folder}/t-2.tar", done.stderr)
            self.assertIn("t-12.tar", done.stderr)
            for name in ("t-2.tar", "t-12.tar"):
                (folder / name).unlink()
            self.assertEqual(run(*pack).returncode, 0)

    def test_older_shards_in_numbered_folders_are_refused(self):
        with Folder() as folder:
            for i in range(3):
                (folder / f"n{i}").mkdir()
                write_tar(folder / f"n{i}/t.tar", [("k.txt", b"old")])
            done = run("millrace", "pack", tree_of_classes(folder), "-o", folder / "n%d/t.tar", "--overwrite")
            self.assertEqual(done.returncode, 2)
            self.assertIn("2 shards of an older run would follow", done.stderr)

    def test_a_stream_is_known_to_no_later_run(self):
        with Folder() as folder:
            harness.fake(folder, "a", 2, 6)
            command = ["millrace", "pack", "--from-shards", "-", "-o", folder / "s-%d.tar", "--restart", 4]
            codes = [run(*command, stdin=(folder / f"a-{i:06}.tar").read_bytes()).returncode for i in range(2)]
            self.assertEqual(codes, [0, 2])

    def test_a_pipe_without_a_reader_is_an_error(self):
        with Folder() as folder:
            os.mkfifo(folder / "o-0.tar")
            done = run("millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%d.tar", "--overwrite", timeout=60)
            self.assertEqual((done.returncode, "start the reader of this pipe first" in done.stderr), (4, True), done.stderr)

    def test_a_link_keeps_pointing_at_what_is_not_there_yet(self):
        with Folder() as folder:
            (folder / "disk").mkdir()
            (folder / "o-0.tar").symlink_to("disk/shard.tar")
            self.assertEqual(run("millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%d.tar").returncode, 0)
            self.assertTrue((folder / "o-0.tar").is_symlink() and (folder / "disk/shard.tar").exists())

    def test_while_a_run_writes_another_one_is_refused_but_for_other_parts_of_its_job(self):
        with Folder() as folder:
            command = ["millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%d.tar", "--max-count", 4]
            first = self.stopped(folder, folder / "tree/c0/s0.npy",
                                 lambda: harness.start(*command, "--part", "1/2", stderr=subprocess.PIPE, text=True),
                                 lambda: harness.has_written(folder, ".o-0.pack.json.*.1-of-2"),
                                 lambda: (folder / "o-0.tar").exists())
            there = sorted(folder.glob(".o-*"))
            for other in (["--max-count", 3], ["--part", "1/2"], ["--overwrite"], ["--part", "1/2", "--overwrite"], ["--shuffle", 1, "--overwrite"]):
                done = run(*command, *other)
                self.assertEqual((done.returncode, "another run is writing shards of these names" in done.stderr), (2, True), done.stderr)
                self.assertEqual(sorted(folder.glob(".o-*")), there)
            self.assertEqual(run(*command, "--part", "2/2").returncode, 0)
            first.send_signal(signal.SIGCONT)
            said = first.communicate(timeout=60)[1]
            self.assertEqual(first.returncode, 0, said)
            done = run(*command, "--json")
            self.assertEqual((done.returncode, json.loads(done.stdout)["kept"]), (0, 2), done.stderr)

    def stopped(self, folder, large, start, has_begun, is_late):
        """The job that start() begins, stopped when has_begun() says so. Where is_late(), or where it has ended, it begins
        anew with a larger file: a busy host may have been elsewhere meanwhile."""
        there = {p: p.read_bytes() for p in folder.glob("o-*")}
        large.touch()
        for size in (400 << 20, 1600 << 20, 6400 << 20):
            os.truncate(large, size)
            first = start()
            self.addCleanup(first.kill)
            harness.wait_until(lambda: has_begun() or first.poll() is not None)
            first.send_signal(signal.SIGSTOP)
            if first.poll() is None and not is_late():
                return first
            first.send_signal(signal.SIGCONT)
            first.communicate(timeout=60)
            for left in [*folder.glob("o-*"), *folder.glob(".o-*")]:
                left.unlink()
            for path, content in there.items():
                path.write_bytes(content)
        self.fail("the job is too fast to be stopped")

    def stopped_run(self, folder, large, has_begun, *more, is_late=lambda: False):
        """A job that is stopped when has_begun() says so, before the shard with this large file is there."""
        tree = tree_of_classes(folder)
        self.assertTrue((tree / large).with_suffix(".jpg").exists(), "a large file of no sample is left out")
        command = ["millrace", "pack", tree, "--threads", 1, "--overwrite"]
        start = lambda: harness.start(*command, "-o", folder / "o-%d.tar", *more, stderr=subprocess.PIPE, text=True)  # noqa: E731
        return self.stopped(folder, tree / large, start, has_begun, is_late), command

    def test_a_run_of_another_pattern_does_not_replace_what_a_living_one_has_written(self):
        with Folder() as folder:
            first, command = self.stopped_run(folder, "c3/s3.npy", (folder / "o-1.tar").exists, "--max-count", 1, is_late=(folder / "o-3.tar").exists)
            written = md5(folder / "o-1.tar")
            done = run(*command, "-o", folder / "o-{1..9}.tar", "--max-count", 1)
            self.assertEqual((done.returncode, "another run is writing shards of these names" in done.stderr), (2, True), done.stderr)
            self.assertEqual(md5(folder / "o-1.tar"), written)
            first.send_signal(signal.SIGCONT)
            said = first.communicate(timeout=60)[1]
            self.assertEqual(first.returncode, 0, said)
            self.assertEqual(run(*command, "-o", folder / "o-{1..9}.tar", "--max-count", 1).returncode, 0)

    def test_fake_does_not_replace_what_a_living_run_has_written(self):
        with Folder() as folder:
            first, _ = self.stopped_run(folder, "c3/s3.npy", (folder / "o-1.tar").exists, "--max-count", 1, is_late=(folder / "o-3.tar").exists)
            written = md5(folder / "o-1.tar")
            for pattern, more in (("o-%d.tar", ["--overwrite"]), ("o-{1..1}.tar", ["--overwrite"]), ("o-%d.tar", []), ("o-{1..1}.tar", [])):
                done = run("millrace", "fake", folder / pattern, "--shards", 3 if "%" in pattern else 1, "--samples", 3, *more)
                self.assertEqual((done.returncode, "another run is writing shards of these names" in done.stderr), (2, True), done.stderr)
            self.assertEqual(md5(folder / "o-1.tar"), written)
            first.send_signal(signal.SIGCONT)
            said = first.communicate(timeout=60)[1]
            self.assertEqual(first.returncode, 0, said)

    def test_what_a_run_of_another_pattern_has_written_meanwhile_stays(self):
        for older in (False, True):
            with self.subTest(older=older), Folder() as folder:
                if older:
                    harness.fake(folder, "f", 1, 4)
                    for i in range(2):
                        shutil.copy(folder / "f-000000.tar", folder / f"o-{i}.tar")
                first, command = self.stopped_run(
                    folder, "c0/s0.npy", lambda: harness.has_written(folder, ".o-0.pack.json.*"), "--max-count", 4,
                    is_late=lambda: harness.has_written(folder, "o-0.tar", 100 << 20))
                done = run(*command, "-o", folder / "o-{1..4}.tar", "--max-count", 2)
                self.assertEqual(done.returncode, 0, done.stderr)
                written = md5(folder / "o-1.tar")
                first.send_signal(signal.SIGCONT)
                said = first.communicate(timeout=60)[1]
                self.assertEqual((first.returncode, "another run has written the shard in the meantime, at " in said), (2, True), said)
                self.assertEqual(md5(folder / "o-1.tar"), written)

    def test_all_parts_may_begin_at_once(self):
        with Folder() as folder:
            command = ["millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%d.tar", "--max-count", 1]
            older = [*command, "--shuffle", 3, "--max-count", 2]
            for overwrite in ([], ["--overwrite"]):
                for _ in range(10):
                    for left in [*folder.glob("o-*"), *folder.glob(".o-*")]:
                        left.unlink()
                    if overwrite:
                        self.assertEqual(run(*older).returncode, 0)
                    parts = [harness.start(*command, *overwrite, "--part", f"{part}/4", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                             for part in range(1, 5)]
                    said = [part.communicate(timeout=60)[1] for part in parts]
                    self.assertEqual([part.returncode for part in parts], [0] * 4, said)
                    done = run(*command, "--json")
                    self.assertEqual((done.returncode, json.loads(done.stdout)["kept"]), (0, 7), done.stderr)

    def test_of_two_runs_that_begin_at_once_one_writes_at_most(self):
        with Folder() as folder:
            one = ["millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%d.tar", "--max-count", 3]
            shutil.copytree(folder / "tree", folder / "other")
            (folder / "other/c3").rename(folder / "other/k3")
            jobs = [one, [*one[:2], folder / "other", *one[3:]]]
            for _ in range(40):
                for left in [*folder.glob("o-*"), *folder.glob(".o-*")]:
                    left.unlink()
                begun = [harness.start(*job, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for job in jobs]
                codes = tuple(process.wait(timeout=60) for process in begun)
                self.assertIn(codes, {(0, 2), (2, 0), (2, 2)})
                if 0 not in codes:
                    self.assertEqual([*folder.glob("o-*")], [])
                    continue
                winner = codes.index(0)
                written = [md5(p) for p in sorted(folder.glob("o-*.tar"))]
                self.assertEqual("c3" in (folder / "o-classes.txt").read_text(), winner == 0)
                again = [run(*job, "--json") for job in jobs]
                self.assertEqual(tuple(done.returncode for done in again), codes)
                self.assertEqual(json.loads(again[winner].stdout)["kept"], 3)
                self.assertEqual([md5(p) for p in sorted(folder.glob("o-*.tar"))], written)

    def test_a_run_over_inputs_that_were_changed_is_another_one(self):
        with Folder() as folder:
            command = ["millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%03d.tar", "--max-count", 2]
            self.assertEqual(run(*command).returncode, 0)
            changed = folder / "tree/c3/s3.json"
            about = changed.stat()
            changed.write_text('{"i": 9}')  # as long as it was
            self.assertEqual(changed.stat().st_size, about.st_size)
            other = run(*command)
            self.assertEqual((other.returncode, "of another run" in other.stderr), (2, True), other.stderr)
            self.assertEqual(run(*command, "--overwrite").returncode, 0)

    def test_another_folder_of_files_that_look_the_same_is_another_run(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            other = folder / "other"
            shutil.copytree(tree, other)  # with the times
            output = ["-o", folder / "o-%03d.tar", "--max-count", 2]
            self.assertEqual(run("millrace", "pack", tree, *output).returncode, 0)
            done = run("millrace", "pack", other, *output)
            self.assertEqual((done.returncode, "of another run" in done.stderr), (2, True), done.stderr)

    def test_relative_paths_are_of_their_folder(self):
        with Folder() as folder:
            for version in ("v1", "v2"):
                (folder / version / "d/c").mkdir(parents=True)
                (folder / version / "d/c/1.txt").write_text(version)
                os.utime(folder / version / "d/c/1.txt", (0, 0))
            codes = [run("millrace", "pack", "d", "-o", folder / "o-%d.tar", cwd=folder / v).returncode for v in ("v1", "v1", "v2")]
            self.assertEqual(codes, [0, 0, 2])
            (folder / "v1/link").symlink_to("d")
            for output in ("d/c/o-%d.tar", "link/c/o-%d.tar"):
                done = run("millrace", "pack", "d", "-o", output, cwd=folder / "v1")
                self.assertEqual((done.returncode, "among the files that are packed" in done.stderr), (2, True), done.stderr)
            self.assertEqual(run("millrace", "pack", "d", "-o", "d/o-%d.tar", cwd=folder / "v1").returncode, 0)

    def test_shards_of_other_urls_or_times_are_another_run(self):
        with Folder() as folder:
            for name in ("a.tar", "b.tar", "c.tar"):
                write_tar(folder / name, [(f"{name[0]}.txt", name[:1].encode())])

            def answer(request):
                name = "abc"[int(request.path.partition("shard=")[2] or 0)]
                return 200, {"ETag": f'"{name}"'}, (folder / f"{name}.tar").read_bytes()

            with harness.Answering(answer) as server:
                command = ["millrace", "pack", "-o", folder / "o-%02d.tar", "--restart", 4, "--from-shards"]
                self.assertEqual(run(*command, f"{server.url}/get?shard=1").returncode, 0)
                other = run(*command, f"{server.url}/get?shard=2")
                self.assertEqual((other.returncode, "of another run" in other.stderr), (2, True), other.stderr)
                again = run(*command, f"{server.url}/get?shard=1")
                self.assertEqual((again.returncode, "already" in again.stdout), (0, True), again.stderr)
            for source in (str(folder / "a.tar"), f"file://{folder}/a.tar"):
                command = ["millrace", "pack", "-o", folder / "p-%02d.tar", "--restart", 4, "--overwrite", "--from-shards", source]
                self.assertEqual(run(*command).returncode, 0)
                content = (folder / "a.tar").read_bytes()
                (folder / "a.tar").write_bytes(content)  # another time
                command.remove("--overwrite")
                other = run(*command)
                self.assertEqual((other.returncode, "of another run" in other.stderr), (2, True), other.stderr)


if __name__ == "__main__":
    unittest.main()
