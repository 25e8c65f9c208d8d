"""What commands write: nothing over files of another kind or inputs, whole or not there, resumable, without leavings."""

import itertools
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tarfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def tree(folder, classes=2, files=20, size=3000):
    for c in range(classes):
        (folder / f"tree/class{c}").mkdir(parents=True)
        for i in range(files):
            (folder / f"tree/class{c}/{i:04}.jpg").write_bytes(bytes([c, i % 251]) * (size // 2))
    return folder / "tree"


class Overwriting(unittest.TestCase):
    def test_a_copy_or_a_new_version_has_the_mode_of_its_original(self):
        for mode in 0o600, 0o640, 0o444, 0o755:
            for before in None, 0o666:
                with self.subTest(mode=oct(mode), before=before), Folder() as folder:
                    harness.fake(folder, "a", 2, 4)
                    made = run("millrace", "index", "create", folder / "a-000000.tar", "-o", folder / "i.json", "--offsets")
                    self.assertEqual(made.returncode, 0, made.stderr)
                    kept = {name: (folder / name).read_bytes() for name in ("i.json", "i.offsets")}
                    for name in kept:
                        (folder / name).chmod(mode)
                        if before:
                            (folder / f"{name}.bak").touch()
                            (folder / f"{name}.bak").chmod(before)
                    done = run("millrace", "index", "update", folder / "i.json", "-d", "/elsewhere")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in folder.glob("i.*")}
                    self.assertEqual(modes, {name + end: oct(mode) for name in kept for end in ("", ".bak")})
                    self.assertEqual({name: (folder / f"{name}.bak").read_bytes() for name in kept}, kept)

    def test_no_command_writes_over_an_input_or_another_kind_of_file(self):
        with Folder() as folder:
            harness.fake(folder, "a", 2, 4)
            first, second = folder / "a-000000.tar", folder / "a-000001.tar"
            photo = folder / "photo.png"
            photo.write_bytes(b"not a PNG, and precious")
            package = folder / "package.json"
            package.write_text('{"name": "my-app", "shards": []}')
            before = {p: p.read_bytes() for p in folder.iterdir()}
            for words in (["ls", "--contact-sheet", first, second], ["ls", "--contact-sheet", photo, second],
                          ["ls", "--contact-sheet", folder / "x.jpg", second],
                          ["index", "create", "-o", first, second], ["index", "create", "-o", first, first],
                          ["index", "create", "-o", package, second], ["index", "-o", package, second],
                          ["fake", folder / "a-%06d.tar", "--shards", 1], ["fake", photo, "--overwrite"],
                          ["bench", "decode", "--rounds", 1, "--write-crops", first, second],
                          ["bench", "decode", "--rounds", 1, "--write-crops", second, second],
                          ["pack", "--from-shards", first, "-o", folder / "a-%06d.tar", "--restart", 1, "--overwrite"]):
                done = run("millrace", *words)
                self.assertEqual((done.returncode, "millrace: usage: " in done.stderr), (2, True), f"{words} {done.stderr}")
                self.assertEqual({p: p.read_bytes() for p in folder.iterdir()}, before, words)
            done = run("millrace", "fake", folder / "a-%06d.tar", "--shards", 2, "--samples", 2, "--overwrite")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotEqual(first.read_bytes(), before[first])

    def test_what_a_killed_update_has_begun_the_next_one_removes(self):
        with Folder() as folder:
            harness.fake(folder, "a", 1, 2)
            run("millrace", "index", "create", folder / "a-000000.tar", "-o", folder / "i.json")
            for name in ("i.json", "i.offsets", "i.json.bak", "i.offsets.bak"):
                (folder / f"{name}.partial.1").write_text("half")
            self.assertEqual(run("millrace", "index", "update", folder / "i.json", "--name", "n").returncode, 0)
            self.assertEqual(names(folder), ["a-000000.tar", "i.json", "i.json.bak"])

    def test_a_file_that_is_standard_input_is_an_input(self):
        with Folder() as folder:
            harness.fake(folder, "a", 1, 4)
            shard = folder / "a-000000.tar"
            before = shard.read_bytes()
            with open(shard, "rb") as stdin:
                done = subprocess.run([harness.BIN / "millrace", "pack", "--from-shards", "-", "--restart", "4", "-o", shard,
                                       "--overwrite"], stdin=stdin, env=harness.CLEAN, capture_output=True, timeout=60)
            self.assertEqual((done.returncode, b"the output is one of the inputs" in done.stderr), (2, True), done.stderr)
            self.assertEqual(shard.read_bytes(), before)

    def test_an_output_is_a_path_and_no_url(self):
        with Folder() as folder:
            harness.fake(folder, "a", 1, 4)
            tree(folder, 1, 1)
            before = names(folder)
            for output in ("file:o.{}", "FILE:///o.{}", "pipe:cat >o.{}", "-"):
                for words in (["pack", "tree", "-o", output.format("tar")], ["index", "a-000000.tar", "-o", output.format("json")],
                              ["fake", output.format("tar")], ["ls", "--contact-sheet", output.format("png"), "a-000000.tar"]):
                    done = run("millrace", *words, cwd=folder)
                    self.assertEqual((done.returncode, names(folder)), (2, before), done.stderr)
                    self.assertRegex(done.stderr, "; (name|give it a name) ")

    def test_fewer_shards_than_before_leave_none_of_the_old_ones_among_them(self):
        with Folder() as folder:
            harness.fake(folder, "a", 4, 8)
            tree = folder / "tree/c"
            tree.mkdir(parents=True)
            (tree / "s.jpg").write_bytes(b"x")
            before = {p: p.read_bytes() for p in folder.glob("a-*")}
            for words in (["fake", folder / "a-%06d.tar", "--shards", 2, "--samples", 2],
                          ["pack", folder / "tree", "-o", folder / "a-%06d.tar"]):
                done = run("millrace", *words, "--overwrite")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("of an older run would follow", done.stderr)
                self.assertIn("a-000003.tar", done.stderr)
                self.assertEqual({p: p.read_bytes() for p in folder.glob("a-*")}, before)
            for i in (2, 3):
                (folder / f"a-{i:06}.tar").unlink()
            done = run("millrace", "fake", folder / "a-%06d.tar", "--shards", 2, "--samples", 2, "--overwrite")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_of_two_living_fakes_the_second_is_refused_and_changes_nothing(self):
        with Folder() as folder:
            harness.fake(folder, "a", 2, 4)
            before = {p: p.read_bytes() for p in folder.iterdir()}
            command = ["millrace", "fake", folder / "a-%06d.tar", "--shards", 2]
            first = harness.start(*command, "--samples", 10**9, "--overwrite", stderr=subprocess.PIPE)
            self.addCleanup(first.communicate)
            self.addCleanup(first.kill)
            harness.wait_until(lambda: list(folder.glob("*.partial.*")) or first.poll() is not None)
            for more in ([], ["--overwrite"]):
                done = run(*command, "--samples", 2, *more)
                self.assertEqual((done.returncode, "another run is writing shards of these names" in done.stderr), (2, True), done.stderr)
                self.assertEqual(names(folder), sorted([*(p.name for p in before), f"a-000000.tar.partial.{first.pid}"]))
            tree(folder, 1, 1)
            done = run("millrace", "pack", folder / "tree", "-o", folder / "a-%06d.tar", "--overwrite")
            self.assertEqual((done.returncode, "another run is writing shards of these names" in done.stderr), (2, True), done.stderr)
            self.assertEqual({p: p.read_bytes() for p in before}, before)
            first.send_signal(signal.SIGINT)
            first.wait(timeout=60)
            self.assertEqual(run(*command, "--samples", 2, "--overwrite").returncode, 0)

    def test_a_shard_has_the_name_of_one(self):
        with Folder() as folder:
            for name in ("x.json", "x-%d.png", "x.tar.gz"):
                done = run("millrace", "fake", folder / name, "--samples", 2)
                self.assertEqual((done.returncode, names(folder)), (2, []), done.stderr)

    def test_two_names_of_one_new_file_are_refused(self):
        """Through a link to a folder, and by two links to what is not there yet: one shard would replace the other."""
        with Folder() as folder:
            source = tree(folder, 2, 4, 300)
            harness.fake(folder, "in", 2, 4)
            spec = f"{folder}/in-{{000000..000001}}.tar"
            (folder / "a").mkdir()
            os.symlink("a", folder / "b")
            for name in ("l-0.tar", "l-1.tar"):
                os.symlink("one.tar", folder / name)
            for names in ("{a,b}/x.tar", "l-{0..1}.tar", "l-%d.tar"):
                for words in (["pack", source, "--max-count", 4, "-o", folder / names],
                              ["pack", "--from-shards", spec, "--restart", 1, "-o", folder / names],
                              ["fake", folder / names, "--samples", 4, *(["--shards", 2] if "%" in names else [])]):
                    for more in ([], ["--overwrite"]):
                        with self.subTest(names=names, words=words, more=more):
                            done = run("millrace", *words, *more)
                            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                            self.assertIn("two shards would be one file", done.stderr)
                            self.assertEqual(list((folder / "a").glob("*.tar")), [])
                            self.assertFalse((folder / "one.tar").exists())

    def test_its_own_outputs_are_replaced(self):
        with Folder() as folder:
            harness.fake(folder, "a", 1, 4)
            (folder / "bare.json").write_text('{"shardlist": []}')
            for words in (["ls", "--contact-sheet", folder / "s.png", folder / "a-000000.tar"],
                          ["index", "create", "-o", folder / "i.json", folder / "a-000000.tar"],
                          ["index", "create", "-o", folder / "bare.json", folder / "a-000000.tar"],
                          ["bench", "decode", "--rounds", 1, "--size", 32, "--write-crops", folder / "c", folder / "a-000000.tar"]):
                for _ in range(2):
                    done = run("millrace", *words)
                    self.assertEqual(done.returncode, 0, done.stderr)


class Resuming(unittest.TestCase):
    def killed(self, words, folder, shards):
        """Starts it and kills it when it has written so many shards; what it left is there."""
        process = harness.start("millrace", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        harness.wait_until(lambda: process.poll() is not None or
                           len([p for p in folder.glob("o-*.tar")]) >= shards and list(folder.glob("*.partial.*")))
        process.kill()
        process.wait()

    def test_pack_and_repack_are_resumed_to_the_same_bytes_and_leave_nothing(self):
        with Folder() as folder:
            harness.fake(folder, "in", 6, 600, size=128)
            spec = f"{folder}/in-{{000000..000005}}.tar"
            source = tree(folder, 3, 400, 40000)
            for name, words in (("repack", ["pack", "--from-shards", spec, "--restart", 1]),
                                ("pack", ["pack", source, "--max-count", 200, "--threads", 1])):
                whole, out = folder / f"{name}-whole", folder / name
                whole.mkdir()
                out.mkdir()
                self.assertEqual(run("millrace", *words, "-o", whole / "o-%d.tar").returncode, 0)
                self.killed([*words, "-o", out / "o-%d.tar"], out, 2)
                # As another host's, or an earlier run's, would be.
                (out / "o-0.tar.partial.999999").write_bytes(b"left")
                done = run("millrace", *words, "-o", out / "o-%d.tar", "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertGreater(json.loads(done.stdout)["kept"], 0, name)
                # But for the lists of shards, which hold times.
                self.assertEqual({p.name: p.read_bytes() for p in out.iterdir() if "-of-" not in p.name},
                                 {p.name: p.read_bytes() for p in whole.iterdir() if "-of-" not in p.name})
                other = run("millrace", *words[:-1], "7", "-o", out / "o-%d.tar")
                self.assertEqual((other.returncode, "of another run" in other.stderr), (2, name == "repack"), other.stderr) \
                    if name == "repack" else None

    def test_an_interrupted_pack_says_how_to_go_on(self):
        with Folder() as folder:
            harness.fake(folder, "in", 20, 1000, size=128)
            spec = f"{folder}/in-{{000000..000019}}.tar"
            for which, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
                process = harness.start("millrace", "pack", "--from-shards", spec, "--restart", 1, "-o", folder / "o-%d.tar",
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                line = process.stdout.readline()
                process.send_signal(which)
                said, wrong = process.communicate(timeout=60)
                self.assertIn("o-", line)
                self.assertEqual(process.returncode, code, said + wrong)
                self.assertIn("the same command resumes", said)
                self.assertEqual([n for n in names(folder) if ".partial" in n], [])

    def test_secrets_are_in_no_written_file(self):
        with Folder() as folder:
            (folder / "served").mkdir()
            (folder / "out").mkdir()
            harness.fake(folder / "served", "a", 1, 4)
            with harness.PlainServer(folder / "served") as server:
                url = server.url.replace("http://", "http://me:canary@") + "/a-000000.tar?token=canary"
                for words in (["pack", "--from-shards", url, "--restart", 1, "-o", folder / "out/o-%d.tar"],
                              ["ls", "--contact-sheet", folder / "out/s.png", url], ["ls", "--json", url], ["verify", "--json", url]):
                    done = run("millrace", *words)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertNotIn("canary", done.stdout + done.stderr)
            for path in (folder / "out").iterdir():
                self.assertNotIn(b"canary", path.read_bytes(), path.name)


class Packing(unittest.TestCase):
    def test_the_classes_are_written_and_what_is_left_out_is_told(self):
        with Folder() as folder:
            source = tree(folder, 2, 2)
            (source / "class0/gone.jpg").symlink_to("/no/such/file")
            (source / "class0/.hidden.jpg").write_bytes(b"x")
            (source / "class0/Thumbs.db").write_bytes(b"x")
            (source / "class1/README").write_bytes(b"x")
            done = run("millrace", "pack", source, "-o", folder / "train-%03d.tar", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            self.assertEqual(found["samples"], 4)
            self.assertEqual(found["left_out"], ["1 file without an extension", "1 hidden file",
                                                 "1 file of a desktop (Thumbs.db)", "1 link to nothing"])
            self.assertEqual((folder / "train-classes.txt").read_text(), "class0\nclass1\n")
            self.assertIn("the samples are sorted by class; --shuffle SEED mixes them", done.stderr)
            plain = run("millrace", "pack", source, "-o", folder / "again-%03d.tar")
            self.assertRegex(plain.stdout, r"again-000\.tar: 4 samples, [\d.]+ [KMG]?i?B")
            self.assertNotIn("# writing", plain.stdout)
            mixed = run("millrace", "pack", source, "-o", folder / "mixed-%03d.tar", "--shuffle", 1)
            self.assertEqual((mixed.returncode, "sorted" in mixed.stdout + mixed.stderr), (0, False), mixed.stderr)

    def test_among_images_files_of_no_image_are_left_out_and_told(self):
        with Folder() as folder:
            source = tree(folder, 2, 2)
            for name in ("class0/notes.txt", "class1/license.md", "class0/0000.txt", "class1/0001.json"):
                (source / name).write_bytes(b"{}")
            done = run("millrace", "pack", source, "-o", folder / "a-%d.tar", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            self.assertEqual((found["samples"], found["left_out"]), (4, [f"2 files that belong to no image ({source}/class0/notes.txt, ...)"]))
            with tarfile.open(folder / "a-0.tar") as tar:
                self.assertEqual(len(tar.getnames()), 10)  # of each sample the image and its class, of two another field
                self.assertFalse([n for n in tar.getnames() if "notes" in n or "license" in n])
            told = run("millrace", "pack", source, "-o", folder / "b-%d.tar")
            self.assertIn("left out: 2 files that belong to no image", told.stdout)
            for image in source.rglob("*.jpg"):
                image.unlink()
            done = run("millrace", "pack", source, "-o", folder / "c-%d.tar", "--json")  # a tree of texts
            self.assertEqual((json.loads(done.stdout)["samples"], json.loads(done.stdout)["left_out"]), (4, []))

    def test_names_of_classes_in_a_list_become_numbers(self):
        with Folder() as folder:
            source = tree(folder, 2, 1)
            (folder / "list").write_text(f"{source}/class0/0000.jpg\ttench\n{source}/class1/0000.jpg\tgoldfish\n")
            done = run("millrace", "pack", f"@{folder}/list", "-o", folder / "l-%d.tar")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((folder / "l-classes.txt").read_text(), "goldfish\ntench\n")
            with tarfile.open(folder / "l-0.tar") as tar:
                labels = [tar.extractfile(m).read() for m in tar if m.name.endswith(".cls")]
            self.assertEqual(labels, [b"1", b"0"])
            (folder / "list").write_text(f"{source}/class0/0000.jpg\ttench\n{source}/class1/0000.jpg\t3\n")
            self.assertEqual(run("millrace", "pack", f"@{folder}/list", "-o", folder / "m-%d.tar").returncode, 2)

    def test_a_pattern_with_braces_and_a_number_is_refused(self):
        with Folder() as folder:
            done = run("millrace", "pack", tree(folder), "-o", folder / "{a,b}-%d.tar")
            self.assertEqual(done.returncode, 2, done.stderr)


class Words(unittest.TestCase):
    def test_unknown_words_are_named_with_the_nearest(self):
        for words, parts in ((["lss", "x"], ["'lss'", "did you mean ls?"]), (["ls", "--jsno", "x"], ["--jsno", "--json"]),
                             (["bench", "dsk"], ["'dsk'", "did you mean disk?"]),
                             (["sim", "--size", "3"], ["no option --size: it is now called --world-size"])):
            done = run("millrace", *words)
            self.assertEqual(done.returncode, 2)
            for part in parts:
                self.assertIn(part, done.stderr)

    def test_help(self):
        for words in (["help"], ["help", "bench", "disk"], ["--help"], ["bench", "disk", "--help"]):
            done = run("millrace", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLessEqual(max(len(line) for line in done.stdout.splitlines()), 100)
        self.assertEqual(run("millrace", "help", "bench", "dsk").returncode, 2)
        for command in json.loads(run("millrace", "help", "--json").stdout)["commands"]:
            self.assertIn("xample", run("millrace", *command["command"].split(), "--help").stdout, command["command"])

    def test_the_page_of_the_programs_names_each_command(self):
        rows = {}
        for words, text in re.findall(r"^\| `millrace ([^`]*)` \| (.*)", (harness.ROOT / "docs/tools.md").read_text(), re.M):
            *first, last = itertools.takewhile(lambda w: re.match(r"[a-z|\\]+$", w), words.split())
            rows |= {" ".join([*first, one.strip("\\")]): text for one in last.split("|")}
        found = {c["command"] for c in json.loads(run("millrace", "help", "--json").stdout)["commands"]}
        # A row may name the parts of its command in its text: index create.
        parts = {c for c in found - set(rows) if c.split()[-1] in rows.get(c.split()[0], "")}
        self.assertEqual(set(rows) | parts, found)

    def test_the_last_one_of_an_option_wins(self):
        with Folder() as folder:
            done = run("millrace", "fake", folder / "x-%d.tar", "--shards", 1, "--samples", 3, "--samples", 2, "--json")
            self.assertEqual(json.loads(done.stdout)["samples"], 2, done.stderr)

    def test_errors_are_objects_with_json(self):
        for words in (["ls", "/no/such.tar"], ["ls", "--bogus", "x"]):
            done = run("millrace", *words, "--json")
            said = json.loads(done.stdout)["error"]
            self.assertEqual(said["exit_code"], done.returncode)
            self.assertIn(said["message"], done.stderr)

    def test_control_characters_of_keys_stay_off_the_terminal(self):
        with Folder() as folder:
            with tarfile.open(folder / "a.tar", "w") as tar:
                tar.addfile(tarfile.TarInfo("a\x1b[2J\n\t\x9bz.txt"))
            done = run("millrace", "ls", folder / "a.tar")
            self.assertEqual(done.stdout, "a\\x1b[2J\\x0a\\x09\\xc2\\x9bz\t0\ttxt:0\n")

    def test_what_is_no_archive_is_called_by_its_name(self):
        with Folder() as folder:
            for text, part in (("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
                               ("<!DOCTYPE html><title>Log in</title>" * 30, "an HTML or XML page"),
                               ("hello\n", 'a text file that begins with "hello"')):
                (folder / "a.tar").write_text(text)
                done = run("millrace", "ls", folder / "a.tar")
                self.assertEqual((done.returncode, part in done.stderr), (5, True), done.stderr)

    def test_a_folder_needs_no_slash(self):
        with Folder() as folder:
            harness.fake(folder, "a", 2, 4)
            self.assertEqual(run("millrace", "digest", folder).stdout, run("millrace", "digest", f"{folder}/").stdout)


class Summaries(unittest.TestCase):
    def test_what_is_missing_is_told(self):
        with Folder() as folder:
            harness.fake(folder, "a", 2, 4)
            done = run("millrace", "summary", f"{folder}/a-{{000000..000004}}.tar", "--json")
            self.assertEqual((done.returncode, len(json.loads(done.stdout)["problems"])), (4, 3), done.stderr)
            with harness.PlainServer(folder) as server:
                self.assertEqual(run("millrace", "summary", server.url + "/none.tar").returncode, 4)
                self.assertIn("HTTP cannot list folders: name the shards", run("millrace", "summary", server.url + "/none/").stderr)
                done = run("millrace", "summary", server.url + "/a-000000.tar", "--samples", "--json")
                size = (folder / "a-000000.tar").stat().st_size
                self.assertEqual((json.loads(done.stdout)["bytes"], json.loads(done.stdout)["samples"]), (size, 2), done.stderr)
                done = run("millrace", "summary", server.url + "/a-000000.tar")
                self.assertIn("size not known", done.stdout)
            run("millrace", "index", "create", "a-000000.tar", "-o", "i.json", cwd=folder)
            done = run("millrace", "summary", "a-000001.tar", "--index", "i.json", cwd=folder)
            self.assertEqual((done.returncode, "does not list" in done.stderr), (5, True), done.stderr)
            done = run("millrace", "summary", "a-000000.tar", "--samples", "--index", "i.json", cwd=folder)
            self.assertEqual((done.returncode, "--index excludes --samples" in done.stderr), (2, True), done.stderr)
            done = run("millrace", "summary", "--json", stdin="a-0.tar\na-1.tar\n")
            self.assertEqual(json.loads(done.stdout)["patterns"][0]["pattern"], "a-{0..1}.tar")
            for more in ([], ["--json"]):
                done = run("millrace", "summary", *more, stdin="".join(f"http://me:hush@h/a-{i}.tar?token=hush\n" for i in range(3)))
                self.assertEqual((done.returncode, "a-{0..2}.tar" in done.stdout, "hush" in done.stdout), (0, True, False), done.stdout)

    def test_a_shard_without_samples_or_fields_is_not_well(self):
        with Folder() as folder:
            with tarfile.open(folder / "none.tar", "w") as tar:
                tar.addfile(tarfile.TarInfo("README"))
            done = run("millrace", "verify", folder / "none.tar")
            self.assertEqual(done.returncode, 1)
            self.assertIn("no samples", done.stdout)
            self.assertIn("1 file without an extension", done.stdout)
            harness.fake(folder, "a", 1, 4)
            shard = folder / "a-000000.tar"
            self.assertEqual(run("millrace", "verify", shard, "--require", "png;jpg,cls").returncode, 0)
            done = run("millrace", "verify", shard, "--require", "jpg,json")
            self.assertEqual(done.returncode, 1)
            self.assertIn("4 of 4 samples without a field 'json'", done.stdout)
            self.assertEqual(run("millrace", "verify", shard, folder / "gone.tar").returncode, 4)
            for empty in ("", ",", "jpg,,cls", ";"):
                done = run("millrace", "verify", shard, "--require", empty)
                self.assertEqual((done.returncode, "empty" in done.stderr), (2, True), f"{empty!r} {done.stderr}")
            for never in ("JPG", ".jpg", "jpg, cls", "jpg;png ,cls"):
                done = run("millrace", "verify", shard, "--require", never)
                self.assertEqual((done.returncode, "a field that no sample can have" in done.stderr), (2, True), f"{never!r} {done.stderr}")

    def test_a_shard_that_is_named_twice_is_one_problem(self):
        with Folder() as folder:
            harness.fake(folder, "a", 1, 20)
            shard = folder / "a-000000.tar"
            done = run("millrace", "verify", shard, shard)
            self.assertEqual((done.returncode, len(done.stdout.splitlines())), (1, 2), done.stdout)
            self.assertIn("the list names this shard more than once", done.stdout)
            done = run("millrace", "index", shard, shard, "-o", folder / "i.json")
            self.assertEqual((done.returncode, "is named more than once" in done.stderr), (0, True), done.stderr)

    def test_an_image_that_memory_has_no_room_for_is_a_problem(self):
        with Folder() as folder:
            # Around a quarter of the budget, which is what files that are looked at have: memory is charged in pages.
            sizes = [(32 << 20) + more for more in (-4096, -1, 0, 1, 100, 1000, 2000, 3000, 4000, 4096, 1 << 20)]
            with open(folder / "a.tar", "wb") as out:
                for i, size in enumerate(sizes):
                    info = tarfile.TarInfo(f"{i:02}.jpg")
                    info.size = size
                    out.write(info.tobuf() + b"\xff\xd8")
                    out.seek(-(-size // 512) * 512 - 2, os.SEEK_CUR)
                out.write(bytes(1024))
            done = run("millrace", "verify", "--images", folder / "a.tar", env={"MILLRACE_MEMORY": str(128 << 20)})
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"{len(sizes)} problems", done.stdout)
            self.assertIn("too_large: a file of 33.0 MiB is not checked", done.stdout)
            self.assertIn("MILLRACE_MEMORY", done.stdout)


class Progress(unittest.TestCase):
    """On a terminal long work shows how far it is, and Ctrl-C ends it with what was found."""

    def interrupted(self, words, shown_as):
        """What it printed before it was interrupted, once a progress line of this form was shown."""
        main, side = pty.openpty()
        process = subprocess.Popen([harness.BIN / "millrace", *words], stdout=subprocess.PIPE, stderr=side, env=harness.CLEAN)
        os.close(side)
        shown = b""
        deadline = time.monotonic() + 30
        while not re.search(shown_as, shown) and time.monotonic() < deadline:
            if select.select([main], [], [], 1)[0]:
                shown += os.read(main, 4096)
        self.assertRegex(shown, shown_as)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
        os.close(main)
        self.assertIn(process.returncode, (130, -signal.SIGINT))
        return said.decode(errors="replace")

    def test_every_long_command_shows_how_far_it_is_and_what_was_found_before_ctrl_c(self):
        with Folder() as folder:
            harness.fake(folder, "a", 1, 400, size=64)
            (folder / "large").write_bytes(bytes(32 << 20))
            (folder / "bad.tar").write_bytes((folder / "a-000000.tar").read_bytes()[:5000])
            (folder / "nginx").mkdir()
            with harness.Nginx(folder / "nginx", folder, "limit_rate 20k;") as server:
                slow = server.url + "/a-000000.tar"
                said = self.interrupted(["verify", folder / "bad.tar", slow], rb"verify: \d+ %, 1 of 2 shards, .* MB/s, .* left")
                self.assertIn("truncated", said)
                self.assertIn("stopped after 1 shard", said)
                for words, shown_as, found in (
                        (["digest", slow], rb"digest: .* MB/s, 1 s", "stopped after"),
                        (["summary", "--samples", slow], rb"summary: .* MB/s", "stopped after 0 of 1 shard"),
                        (["index", "create", "-o", folder / "i.json", slow], rb"index: .* MB/s", "no index was written"),
                        (["pack", "--from-shards", slow, "--restart", "1", "-o", folder / "p-%d.tar"], rb"pack: ", "resumes"),
                        (["sim", slow], rb"sim: .* MB/s", ""),
                        (["cat", slow], rb"cat: .* MB/s", ""),
                        (["bench", "http", server.url + "/large"], rb"bench http: \d+ %, .* left", "rate "),
                        (["bench", "disk", folder / "large"], rb"bench disk: \d+ %, .* left", "rate "),
                        (["tune", "--seconds", "20", folder / "large"], rb"tune: \d+ %, .* left", "not every setting was tried")):
                    with self.subTest(words[0]):
                        self.assertIn(found, self.interrupted(words, shown_as))


if __name__ == "__main__":
    unittest.main()
