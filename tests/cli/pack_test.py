"""pack: folders of classes, lists and other shards into shards."""

import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.archives import md5, write_tar  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


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

    def test_what_an_overwriting_run_did_not_come_to_is_not_taken_for_its_own(self):
        with Folder() as folder:
            command = ["millrace", "pack", self.tree(folder), "-o", folder / "o-%03d.tar", "--max-count", 1, "--json"]
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
            tree = self.tree(folder)
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
            command = ["millrace", "pack", self.tree(folder), "-o", folder / "o-%d.tar", "--max-count", 3, "--json"]
            self.assertEqual(run(*command).returncode, 0)
            for shard in folder.glob("o-*.tar"):
                content = shard.read_bytes()
                shard.unlink()
                shard.write_bytes(content)  # of another time
            self.assertEqual(json.loads(run(*command).stdout)["kept"], 3)

    def test_names_that_are_one_file_are_refused(self):
        with Folder() as folder:
            tree = self.tree(folder)
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
            tree = self.tree(folder)
            pack = ["millrace", "pack", tree, "-o", folder / "t-%d.tar", "--overwrite"]
            (folder / "t-classes.txt").write_text(f"{tree}/c0/s0.jpg\tcat\n")
            for source in (tree, f"@{folder}/t-classes.txt"):
                done = run(*pack[:2], source, *pack[3:])
                self.assertEqual((done.returncode, "another file stands where" in done.stderr), (2, True), done.stderr)
            (folder / "t-classes.txt").unlink()
            (folder / ".t-0.pack.json").write_text("mine")
            done = run(*pack)
            self.assertEqual((done.returncode, "no record of shards" in done.stderr), (2, True), done.stderr)
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
            tree = self.tree(folder)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.tar").returncode, 0)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.wds", "--shuffle", 3).returncode, 0)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.tar", "--shuffle", 3).returncode, 2)
            self.assertEqual(run("millrace", "pack", tree, "-o", folder / "t-%d.tar").returncode, 0)

    def test_older_shards_behind_a_gap_are_refused(self):
        with Folder() as folder:
            tree = self.tree(folder)
            for name in ("t-2.tar", "t-12.tar", "t-3.txt", "t-x.tar", "t-07.tar"):
                write_tar(folder / name, [("k.txt", b"old")])
            pack = ["millrace", "pack", tree, "-o", folder / "t-%d.tar", "--overwrite"]
            done = run(*pack)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"2 shards of an older run would follow the 1 of this one, at {folder}/t-2.tar", done.stderr)
            self.assertIn("t-12.tar", done.stderr)
            for name in ("t-2.tar", "t-12.tar"):
                (folder / name).unlink()
            self.assertEqual(run(*pack).returncode, 0)

    def test_a_stream_is_known_to_no_later_run(self):
        with Folder() as folder:
            harness.fake(folder, "a", 2, 6)
            command = ["millrace", "pack", "--from-shards", "-", "-o", folder / "s-%d.tar", "--restart", 4]
            codes = [run(*command, stdin=(folder / f"a-{i:06}.tar").read_bytes()).returncode for i in range(2)]
            self.assertEqual(codes, [0, 2])

    def test_each_line_of_a_list_is_a_file(self):
        with Folder() as folder:
            for name in ("#1.jpg", "x/1.jpg", "y/x/1.json"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(b"x")
            (folder / "y/list").write_text("../#1.jpg\n#2.jpg\n")
            pack = ["millrace", "pack", "@list", "-o", "o.tar"]
            said = run(*pack, cwd=folder / "y")
            self.assertEqual((said.returncode, "#2.jpg" in said.stderr), (4, True), said.stderr)
            (folder / "y/list").write_text("../#1.jpg\n../x/1.jpg\nx/1.json\n")
            said = run(*pack, cwd=folder / "y")
            self.assertEqual((said.returncode, "different folders" in said.stderr), (5, True), said.stderr)

    def test_a_pipe_without_a_reader_is_an_error(self):
        with Folder() as folder:
            os.mkfifo(folder / "o-0.tar")
            done = run("millrace", "pack", self.tree(folder), "-o", folder / "o-%d.tar", "--overwrite", timeout=60)
            self.assertEqual((done.returncode, "start the reader of this pipe before" in done.stderr), (4, True), done.stderr)

    def test_a_link_keeps_pointing_at_what_is_not_there_yet(self):
        with Folder() as folder:
            (folder / "disk").mkdir()
            (folder / "o-0.tar").symlink_to("disk/shard.tar")
            self.assertEqual(run("millrace", "pack", self.tree(folder), "-o", folder / "o-%d.tar").returncode, 0)
            self.assertTrue((folder / "o-0.tar").is_symlink() and (folder / "disk/shard.tar").exists())

    def test_of_two_runs_at_once_the_one_that_began_later_writes(self):
        with Folder() as folder:
            command = ["millrace", "pack", self.tree(folder), "-o", folder / "o-%d.tar"]
            (folder / "tree/c0/s0.npy").touch()
            os.truncate(folder / "tree/c0/s0.npy", 200 << 20)
            first = harness.start(*command, stderr=subprocess.PIPE, text=True)
            harness.wait_until(lambda: any(folder.glob(".o-0.pack.json.*.1-of-1")) or first.poll() is not None)
            first.send_signal(signal.SIGSTOP)
            self.assertFalse((folder / "o-0.tar").exists(), "a larger file is needed")
            self.assertEqual(run(*command, "--max-count", 3).returncode, 0)
            whole = [md5(p) for p in sorted(folder.glob("o-*.tar"))]
            first.send_signal(signal.SIGCONT)
            said = first.communicate(timeout=60)[1]
            self.assertEqual(first.returncode, 2, said)
            self.assertIn("another run has begun to write shards of these names", said)
            self.assertEqual([md5(p) for p in sorted(folder.glob("o-*.tar"))], whole)

    def test_a_run_over_inputs_that_were_changed_is_another_one(self):
        with Folder() as folder:
            command = ["millrace", "pack", self.tree(folder), "-o", folder / "o-%03d.tar", "--max-count", 2]
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
            tree = self.tree(folder)
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
            done = run("millrace", "pack", "d", "-o", "d/c/o-%d.tar", cwd=folder / "v1")
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

    def test_what_cannot_be_packed_is_named(self):
        with Folder() as folder:
            self.assertIn("no such folder", run("millrace", "pack", folder / "none", "-o", "x-%d.tar").stderr)
            tree = self.tree(folder)
            (tree / "c0/s0.JPG").write_bytes(b"other")
            done = run("millrace", "pack", tree, "-o", folder / "o-%d.tar")
            self.assertEqual(done.returncode, 5)
            self.assertIn("two files for the field 'jpg'", done.stderr)
            (tree / "c0/s0.JPG").unlink()
            (tree / "c0/s0.cls").write_bytes(b"5")
            done = run("millrace", "pack", tree, "-o", folder / "o-%d.tar")
            self.assertEqual((done.returncode, "a class of its own, beside 0" in done.stderr), (5, True), done.stderr)
            (folder / "list").write_text(f"{tree}/c1/s1.jpg\t17\n{tree}/c1/s1.json\t4\n")
            done = run("millrace", "pack", f"@{folder}/list", "-o", folder / "l-%d.tar")
            self.assertEqual((done.returncode, "the classes 17 and 4" in done.stderr), (5, True), done.stderr)
            (folder / "list").write_text(f"{tree}/c1/s1.jpg\t17\n{tree}/c2/s2.jpg\t4\n{tree}/gone.jpg\n")
            done = run("millrace", "pack", f"@{folder}/list", "-o", folder / "l-%d.tar")
            self.assertEqual((done.returncode, "not_found" in done.stderr), (4, True), done.stderr)
            self.assertEqual(run("millrace", "pack", tree, "-o", "x-%s.tar").returncode, 2)
            self.assertEqual(run("millrace", "pack", tree, "-o", "x-%d.tar", "--part", "3/2").returncode, 2)

    def test_what_readers_leave_out_is_not_packed_and_is_told(self):
        with Folder() as folder:
            tree = self.tree(folder)
            (tree / "c0").rename(tree / "__background__")
            done = run("millrace", "pack", tree, "-o", folder / "o-%d.tar")
            self.assertEqual(done.returncode, 2)
            self.assertIn("of such a name, at " + str(tree / "__background__"), done.stderr)
            self.assertEqual(list(folder.glob("o-*")), [])
            shard = folder / "own.tar"
            with tarfile.open(shard, "w") as archive:
                for name in ("__background__/1.jpg", "__info__", "a/1.jpg", "plain"):
                    archive.addfile(tarfile.TarInfo(name))
                link = tarfile.TarInfo("b/1.jpg")
                link.type, link.linkname = tarfile.SYMTYPE, "a/1.jpg"
                archive.addfile(link)
            told = json.loads(run("millrace", "verify", shard, "--json").stdout)
            self.assertEqual({k: told[k] for k in ("samples", "meta_files", "without_extension", "not_files")},
                             {"samples": 1, "meta_files": 2, "without_extension": 1, "not_files": 1})
            self.assertIn("2 files named __x__", run("millrace", "verify", shard).stdout)
            done = run("millrace", "pack", "--from-shards", shard, "-o", folder / "r-%d.tar", "--restart", 8)
            self.assertEqual(done.returncode, 0, done.stderr)
            for told in ("2 files named __x__", "1 file without an extension", "1 link or device"):
                self.assertIn(told, done.stdout + done.stderr)

    def test_whatever_the_names_are_each_file_is_read_again_or_told(self):
        parts = ["a", "B", "é", "_", "__", ".", "..", "-", " ", "\n", "\t", "%", "%d", "{0..3}", "\\", "'", '"', "\x01", "\udcff",
                 "x" * 90, "0", "jpg", ".jpg", "cls", "::", "*", "?", "@", "~", "#", "__macosx"]

        def name(random):
            while True:
                made = "".join(random.choices(parts, k=random.randint(1, 4)))
                if made not in (".", "..") and len(os.fsencode(made)) < 200:
                    return made

        outcomes = collections.Counter()
        for seed in range(40):
            with self.subTest(seed=seed), Folder() as folder:
                draw = random.Random(seed)
                files = 0
                for _ in range(draw.randint(1, 3)):
                    below = folder / "d" / name(draw)
                    for _ in range(draw.randint(0, 2)):
                        below /= name(draw)
                    below.mkdir(parents=True, exist_ok=True)
                    for _ in range(draw.randint(1, 3)):
                        file = below / (name(draw) + draw.choice([".jpg", ".JPG", ".png", ".txt", "", ".a.b"]))
                        if not file.exists():
                            file.write_bytes(b"%d" % files)
                            files += 1
                done = run("millrace", "pack", folder / "d", "-o", folder / "o-%d.tar", "--json")
                outcomes[done.returncode] += 1
                if done.returncode != 0:
                    self.assertIn(done.returncode, (1, 2, 5), done.stderr)  # nothing to pack, or refused
                    self.assertEqual(list(folder.glob("o-*")), [])
                    continue
                told = json.loads(done.stdout)
                listed = run("millrace", "ls", *folder.glob("o-*.tar"), "--json")
                self.assertEqual(listed.returncode, 0, listed.stderr)
                samples = json.loads(listed.stdout)["list"]
                self.assertEqual(len(samples), told["samples"])
                read = sum(len(set(s["fields"]) - {"cls"}) for s in samples)
                left_out = sum(int(text.split()[0]) for text in told["left_out"] if "folder" not in text)
                hidden = sum(len(files) for top in (folder / "d").glob(".*") for _, _, files in os.walk(top))
                litter = sum(len(files) for _, _, files in os.walk(folder / "d/__macosx"))
                self.assertEqual(read + left_out + hidden + litter, files, told)
        self.assertGreater(outcomes[0], 10)
        self.assertGreater(outcomes[2], 1)

    def test_images_that_share_a_name_are_asked_about(self):
        with Folder() as folder:
            (folder / "d/c").mkdir(parents=True)
            for name in ("a.jpg", "a.png", "a.txt", "b.jpg"):
                (folder / "d/c" / name).write_bytes(name.encode())
            pack = ["millrace", "pack", folder / "d", "-o", folder / "o.tar", "--overwrite"]
            done = run(*pack)
            self.assertEqual((done.returncode, "a.png; --same-name" in done.stderr), (2, True), done.stderr)
            for how, samples in (("fields", [("c/a", ["cls", "jpg", "png", "txt"]), ("c/b", ["cls", "jpg"])]),
                                 ("samples", [("c/a", ["cls", "jpg", "txt"]), ("c/a_png", ["cls", "png"]), ("c/b", ["cls", "jpg"])])):
                self.assertEqual(run(*pack, "--same-name", how).returncode, 0)
                listed = json.loads(run("millrace", "ls", folder / "o.tar", "--json").stdout)["list"]
                self.assertEqual([(s["key"], sorted(s["fields"])) for s in listed], samples)

    def test_a_name_with_several_dots_is_a_field_of_its_image_or_a_sample_and_is_told(self):
        with Folder() as folder:
            (folder / "d/c").mkdir(parents=True)
            for name in ("a.jpg", "a.seg.png", "a.Box.json", "b.v2.jpg", "b.v2.txt"):
                (folder / "d/c" / name).write_bytes(b"x")
            (folder / "list").write_text("".join(f"{p}\t3\n" for p in sorted((folder / "d/c").iterdir())))
            for source in (folder / "d", f"@{folder}/list"):
                pack = ["millrace", "pack", source, "-o", folder / "o.tar", "--overwrite"]
                done = run(*pack)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("a.jpg or an image of its own", done.stderr)
                self.assertIn("a.seg.png; --same-name fields or --same-name samples says which", done.stderr)
                for how, fields, others, samples in (
                        ("fields", 2, 2, [("a", ["box.json", "cls", "jpg", "seg.png"]), ("b_v2", ["cls", "jpg", "txt"])]),
                        ("samples", 0, 4, [("a", ["cls", "jpg"]), ("a_seg", ["cls", "png"]), ("b_v2", ["cls", "jpg", "txt"])])):
                    done = run(*pack, "--same-name", how)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    listed = json.loads(run("millrace", "ls", folder / "o.tar", "--json").stdout)["list"]
                    found = [(pathlib.PurePath(s["key"]).name, sorted(s["fields"])) for s in listed]
                    # A file that belongs to no image is a sample of a list.
                    self.assertEqual([s for s in found if s[0] != "a_Box"], samples)
                    self.assertEqual(f"{fields} names with several dots taken for fields of images" in done.stderr, fields > 0)
                    self.assertIn(f"{others} names with several dots written with '_'", done.stderr)
            (folder / "d/c/b_v2.png").write_bytes(b"y")  # an image of its own, that would become a part of b.v2.jpg
            done = run("millrace", "pack", folder / "d", "-o", folder / "p.tar", "--same-name", "samples")
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn("two files would be one sample", done.stderr)

    def test_a_file_that_is_listed_twice_is_named_as_that(self):
        with Folder() as folder:
            (folder / "a.jpg").write_bytes(b"x")
            (folder / "list").write_text(f"{folder}/a.jpg\n{folder}/a.jpg\n")
            done = run("millrace", "pack", f"@{folder}/list", "-o", folder / "o-%d.tar")
            self.assertEqual(done.returncode, 2)
            self.assertIn("the list names this file more than once", done.stderr)

    def test_the_names_of_classes_stand_beside_a_shard_without_a_number(self):
        with Folder() as folder:
            tree = self.tree(folder)
            for output, classes in (("q.tar", "q-classes.txt"), ("r-{0..0}.tar", "r-classes.txt"), ("s_%d.tar", "s_classes.txt")):
                self.assertEqual(run("millrace", "pack", tree, "-o", folder / output).returncode, 0)
                self.assertTrue((folder / classes).exists(), classes)

    def test_what_is_left_out_or_has_no_class_is_named(self):
        with Folder() as folder:
            tree = self.tree(folder)
            (tree / "loose.jpg").write_bytes(b"x")
            (tree / "c3a").mkdir()  # empty
            os.mkfifo(tree / "c1/pipe.jpg")
            done = run("millrace", "pack", tree, "-o", folder / "o-%03d.tar", "--resize", 8)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("left out: 1 file beside the class folders (loose.jpg)", done.stdout)
            self.assertIn("left out: 1 pipe, socket or device", done.stdout)
            self.assertIn("1 class folder without a sample, with a label all the same: c3a", done.stderr)
            self.assertIn(f"cannot be decoded, packed as it is: {tree}/c0/s0.jpg", done.stdout)
            (folder / "list").write_text(f"{tree}/c0/s0.jpg\tcat\n{tree}/c1/s1.jpg\n")
            mixed = run("millrace", "pack", f"@{folder}/list", "-o", folder / "l-%03d.tar")
            self.assertEqual(mixed.returncode, 0, mixed.stderr)
            self.assertIn("1 sample of the list without a class, although others have one: ", mixed.stderr)
            self.assertIn("c1/s1", mixed.stderr)

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
            self.assertRegex(done.stdout, r"made smaller: \d+ JPEGs, .* before and .* now, .* 1 cannot be decoded")
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
            self.assertEqual((again.returncode, "0 shards (2 were there already)" in again.stdout), (0, True), again.stdout)
            other = run("millrace", "pack", "--from-shards", shards, "-o", folder / "r-%06d.tar", "--restart", 3)
            self.assertEqual((other.returncode, "--overwrite" in other.stderr), (2, True), other.stderr)

    def test_a_shard_without_samples_is_written_without_any(self):
        with Folder() as folder:
            for i in range(5):
                write_tar(folder / f"a-{i}.tar", [] if i in (0, 2, 4) else [(f"{i}.txt", b"text")])
            command = ["millrace", "pack", "--from-shards", folder / "a-{0..4}.tar", "-o", folder / "o-%d.tar", "--restart", 4, "--json"]
            done = run(*command)
            self.assertEqual((done.returncode, json.loads(done.stdout)["written"]), (0, 5), done.stderr)
            for i in range(5):
                with tarfile.open(folder / f"o-{i}.tar") as written:
                    self.assertEqual(written.getnames(), [f"{i}.txt"] if i in (1, 3) else [])
            again = run(*command)
            self.assertEqual((again.returncode, json.loads(again.stdout)["kept"]), (0, 5), again.stderr)
            # Killed before the last.
            (folder / "o-4.tar").unlink()
            again = run(*command)
            self.assertEqual((again.returncode, json.loads(again.stdout)["written"]), (0, 1), again.stderr)
            self.assertTrue((folder / "o-4.tar").exists())
            nothing = run("millrace", "pack", "--from-shards", folder / "a-0.tar", "-o", folder / "n-%d.tar", "--restart", 4)
            self.assertEqual((nothing.returncode, "no_samples" in nothing.stderr), (1, True), nothing.stderr)

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


if __name__ == "__main__":
    unittest.main()
