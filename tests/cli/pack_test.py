"""pack: folders of classes, lists and other shards into shards."""

import collections
import json
import os
import pathlib
import random
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.cli.disk_test import NOBODY, run_as  # noqa: E402
from tests.support import harness  # noqa: E402
from tests.support.archives import md5, tree_of_classes, write_tar  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


class Pack(unittest.TestCase):
    def test_shards_are_those_of_shard_writer_byte_for_byte(self):
        with Folder() as folder:
            done = run("millrace", "pack", tree_of_classes(folder), "-o", folder / "o-%06d.tar", "--compat", "--max-count", 3)
            self.assertEqual(done.returncode, 0, done.stderr)
            # ShardWriter(maxcount=3) of WebDataset 1.0.2 with mtime=0.
            self.assertEqual([md5(folder / f"o-{i:06}.tar") for i in range(3)],
                             ["df32fdc98f32c0a4fdf6692cf52b39d4", "0ca6db732b22633ca96317513943b7e1",
                              "fa78cd80322170e45a806ebcee153296"])
            self.assertEqual(done.stdout.splitlines()[:3],
                             [f"# writing {folder}/o-{i:06}.tar {3 if i else 0} 0.0 GB {3 * i}" for i in range(3)])

    def test_the_same_bytes_whatever_the_threads_and_parts(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
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

    def test_classes_of_a_list_are_whole_numbers_or_names(self):
        with Folder() as folder:
            for i in (0, 2, 10):
                (folder / f"{i}.jpg").write_bytes(b"x")
            for odd in ("2.0", "-1", ".5", "2.000e+00", "2\tcaption", " +2", "99999999999999999999"):
                (folder / "list").write_text(f"0.jpg\t0\n2.jpg\t{odd}\n")
                done = run("millrace", "pack", "@list", "-o", "o.tar", cwd=folder)
                self.assertEqual((done.returncode, "line 2 has" in done.stderr), (2, True), done.stderr)
            (folder / "list").write_text("2.jpg\t2 \n10.jpg\t 10\r\n0.jpg\t0\n")
            self.assertEqual(run("millrace", "pack", "@list", "-o", "o.tar", cwd=folder).returncode, 0)
            with tarfile.open(folder / "o.tar") as shard:
                self.assertEqual({m.name: shard.extractfile(m).read() for m in shard if m.name.endswith("cls")},
                                 {"0.cls": b"0", "10.cls": b"10", "2.cls": b"2"})

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

    def test_what_cannot_be_packed_is_named(self):
        with Folder() as folder:
            self.assertIn("no such folder", run("millrace", "pack", folder / "none", "-o", "x-%d.tar").stderr)
            tree = tree_of_classes(folder)
            (tree / "c0/s0.JPG").write_bytes(b"other")
            done = run("millrace", "pack", tree, "-o", folder / "o-%d.tar")
            self.assertEqual(done.returncode, 5)
            self.assertIn("two files for the field 'jpg'", done.stderr)
            (tree / "c0/s0.JPG").unlink()
            done = run("millrace", "pack", tree, "-o", folder / "one-{0..0}.tar", "--max-count", 1)
            self.assertEqual((done.returncode, "the pattern names 1 shard, and more are needed" in done.stderr), (2, True), done.stderr)
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
            tree = tree_of_classes(folder)
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

    def test_images_without_a_byte_are_told(self):
        with Folder() as folder:
            (folder / "tree/c").mkdir(parents=True)
            (folder / "tree/c/a.jpg").write_bytes(b"x")
            (folder / "tree/c/b.jpg").write_bytes(b"")
            (folder / "tree/c/b.txt").write_bytes(b"")
            done = run("millrace", "pack", folder / "tree", "-o", folder / "t-%d.tar")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("1 image without a byte, packed all the same", done.stderr)
            self.assertIn("b.jpg", done.stderr)

    def test_a_file_that_is_listed_twice_is_named_as_that(self):
        with Folder() as folder:
            (folder / "a.jpg").write_bytes(b"x")
            (folder / "list").write_text(f"{folder}/a.jpg\n{folder}/a.jpg\n")
            done = run("millrace", "pack", f"@{folder}/list", "-o", folder / "o-%d.tar")
            self.assertEqual(done.returncode, 2)
            self.assertIn("the list names this file more than once", done.stderr)

    def test_a_seed_is_a_number_that_there_is(self):
        with Folder() as folder:
            tree_of_classes(folder)
            for seed in ("-1", "18446744073709551616", "1.5"):
                for words in (["pack", "tree", "-o", "o-%d.tar", "--shuffle", seed], ["fake", "f-%d.tar", "--seed", seed]):
                    done = run("millrace", *words, cwd=folder)
                    self.assertEqual((done.returncode, "18446744073709551615" in done.stderr), (2, True), done.stderr)

    def test_what_lies_beside_the_classes_or_leads_nowhere_is_counted(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            for name in ("Thumbs.db", ".hidden", "c0/Thumbs.db", "c0/.hidden"):
                (tree / name).write_bytes(b"x")
            (tree / "c0/loop.jpg").symlink_to("loop.jpg")
            done = run("millrace", "pack", tree, "-o", folder / "o-%d.tar", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["left_out"], ["2 hidden files", "2 files of a desktop (Thumbs.db)", "1 link to nothing"])

    def test_none_of_the_shards_is_among_what_is_packed(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            (folder / "out").mkdir()
            done = run("millrace", "pack", tree, "-o", f"{folder}/{{out,tree/c1}}/x.tar", "--max-count", 4)
            self.assertEqual((done.returncode, "tree/c1/x.tar" in done.stderr), (2, True), done.stderr)
            self.assertEqual(list((folder / "out").iterdir()), [])

    def test_images_that_stay_as_they_are_and_names_that_folders_hide_are_told(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            (tree / "c0/p.png").write_bytes(b"x")
            done = run("millrace", "pack", tree, "-o", folder / "o-%d.txt", "--resize", 8)
            self.assertIn("packed unchanged: 1 image other than JPEG", done.stdout)
            self.assertIn("o-0.txt is not named like an archive", done.stderr)

    def test_a_file_is_known_again_however_it_is_spelled(self):
        with Folder() as folder:
            (folder / "d").mkdir()
            for name in ("a.jpg", "a.json", "b.jpg"):
                (folder / "d" / name).write_bytes(b"x")
            for other in (f"{folder}/d/a.jpg", "./d/a.jpg", "d//a.jpg", "d/../d/a.jpg"):
                (folder / "list").write_text(f"d/a.jpg\t0\n{other}\t1\n")
                done = run("millrace", "pack", "@list", "-o", "o.tar", cwd=folder)
                self.assertEqual(done.returncode, 2, other)
                self.assertIn("the list names this file more than once, in lines 1 and 2", done.stderr)
            (folder / "list").write_text("d/a.jpg\t007\nd//a.json\t7\n./d/b.jpg\t0\n")
            done = run("millrace", "pack", "@list", "-o", "o.tar", "--json", cwd=folder)
            self.assertEqual((done.returncode, json.loads(done.stdout)["classes"]), (0, 2), done.stderr)
            with tarfile.open(folder / "o.tar") as shard:
                self.assertEqual(shard.getnames(), ["d/a.cls", "d/a.jpg", "d/a.json", "d/b.cls", "d/b.jpg"])
                self.assertEqual(shard.extractfile("d/a.cls").read(), b"7")

    def test_the_names_of_classes_stand_beside_a_shard_without_a_number(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            for output, classes in (("q.tar", "q-classes.txt"), ("r-{0..0}.tar", "r-classes.txt"), ("s_%d.tar", "s_classes.txt")):
                self.assertEqual(run("millrace", "pack", tree, "-o", folder / output).returncode, 0)
                self.assertTrue((folder / classes).exists(), classes)

    def test_what_is_left_out_or_has_no_class_is_named(self):
        with Folder() as folder:
            tree = tree_of_classes(folder)
            (tree / "loose.jpg").write_bytes(b"x")
            (tree / "c3a").mkdir()  # empty
            os.mkfifo(tree / "c1/pipe.jpg")
            done = run("millrace", "pack", tree, "-o", folder / "o-%03d.tar", "--resize", 8)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("left out: 1 file beside the class folders (loose.jpg)", done.stdout)
            self.assertIn("left out: 1 pipe, socket or device", done.stdout)
            self.assertIn("1 class folder without a sample, but with a label: c3a", done.stderr)
            self.assertIn(f"cannot be decoded, packed unchanged: {tree}/c0/s0.jpg", done.stdout)
            (folder / "list").write_text(f"{tree}/c0/s0.jpg\tcat\n{tree}/c1/s1.jpg\n")
            mixed = run("millrace", "pack", f"@{folder}/list", "-o", folder / "l-%03d.tar")
            self.assertEqual(mixed.returncode, 0, mixed.stderr)
            self.assertIn("1 sample of the list without a class, although others have one: ", mixed.stderr)
            self.assertIn("c1/s1", mixed.stderr)

    def test_folders_without_permission_are_named(self):
        user = NOBODY if os.getuid() == 0 else None  # root may do anything
        with Folder() as folder:
            folder.chmod(0o755)
            tree = tree_of_classes(folder)
            out, readonly, closed = folder / "out", folder / "readonly", tree / "c3"
            out.mkdir()
            out.chmod(0o777)
            readonly.mkdir()
            closed.chmod(0)
            readonly.chmod(0o555)
            try:
                done = run_as("pack", tree, "-o", out / "o-%d.tar", user=user)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertRegex(done.stderr, "^millrace: not_allowed: cannot list the folder, at .*\n$")
                self.assertIn(str(closed), done.stderr)
                self.assertEqual([*out.iterdir()], [])
                closed.chmod(0o755)
                done = run_as("pack", tree, "-o", readonly / "o-%d.tar", user=user)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertRegex(done.stderr, "^millrace: not_allowed: .*; check the permissions.*\n$")
                self.assertIn(str(readonly), done.stderr)
                self.assertEqual([*readonly.iterdir()], [])
            finally:
                closed.chmod(0o755)  # so that they can be removed
                readonly.chmod(0o755)
            self.assertEqual(run_as("pack", tree, "-o", out / "o-%d.tar", user=user).returncode, 0)

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
            self.assertRegex(done.stdout, r"scaled down: \d+ JPEGs, .* before and .* now, .* 1 cannot be decoded")
            done = run("millrace", "pack", folder / "tree", "-o", folder / "q-%d.tar", "--quality", 48)
            self.assertEqual((done.returncode, "--quality requires --resize" in done.stderr), (2, True), done.stderr)
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

    def test_restart_markers_do_not_depend_on_the_budget(self):
        with Folder() as folder:
            # The coefficients of this image are more than a small budget leaves for decoding.
            run("millrace", "fake", folder / "a.tar", "--shards", 1, "--samples", 1, "--classes", 1, "--size", 4096)
            written = []
            for memory in ("64M", "2G"):
                done = run("millrace", "pack", "--from-shards", folder / "a.tar", "-o", folder / f"{memory}-%d.tar", "--restart", 4, "--json",
                           env={"MILLRACE_MEMORY": memory})
                self.assertEqual((done.returncode, json.loads(done.stdout)["rewritten"]), (0, 1), done.stderr)
                written.append((folder / f"{memory}-0.tar").read_bytes())
            self.assertEqual(written[0], written[1])

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
            told = run("millrace", "bench", "decode", shards, "--rounds", 1).stdout
            self.assertRegex(told, r"images/s(.|\n)* times as fast")
            self.assertNotIn("limit", told)
            help_text = run("millrace", "bench", "decode", "--help").stdout
            self.assertTrue(help_text and all(c.isprintable() or c == "\n" for c in help_text))
            write_tar(folder / "b.tar", [("0.jpg", b"no image")])
            nothing = run("millrace", "bench", "decode", folder / "b.tar")
            self.assertEqual((nothing.returncode, "no_samples" in nothing.stderr), (1, True), nothing.stderr)


if __name__ == "__main__":
    unittest.main()
