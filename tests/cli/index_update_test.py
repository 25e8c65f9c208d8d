"""index update: what it changes, and what it leaves as it is."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.archives import samples, write_tar  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


class IndexUpdate(unittest.TestCase):
    def test_the_copy_before_an_update_is_whole_or_not_there(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(3))
            run("millrace", "index", "create", "a.tar", "-o", "i.json", cwd=folder)
            before = (folder / "i.json").read_bytes()
            older = json.dumps({"wids_version": 1, "shardlist": []})
            (folder / "i.json.bak").write_text(older)
            # No byte of a file can be written.
            done = run("/bin/sh", "-c", f"ulimit -f 0; exec {harness.BIN / 'millrace'} index update i.json --name x", cwd=folder)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual((folder / "i.json.bak").read_text(), older)
            self.assertEqual((folder / "i.json").read_bytes(), before)
            run("millrace", "index", "update", "i.json", "--name", "x", cwd=folder)
            self.assertEqual((folder / "i.json.bak").read_bytes(), before)
            self.assertEqual(sorted(p.name for p in folder.iterdir()), ["a.tar", "i.json", "i.json.bak"])

    def test_update_and_info_of_another_shape_are_refused(self):
        with Folder() as folder:
            path = folder / "i.json"
            for shards in ([5], [{"url": 7}], {"a": 5}, 5, [{}], None):
                text = json.dumps({"wids_version": 1, "shardlist": shards})
                for option in (["--nodir"], ["--dir", "d"], ["--rebase"], ["--name", "n"]):
                    path.write_text(text)
                    done = run("millrace", "index", "update", path, *option)
                    self.assertEqual((done.returncode, done.stderr[:19]), (5, "millrace: bad_index"), done.stderr)
                    self.assertEqual(path.read_text(), text)
            path.write_text('{"wids_version": 1, "base": 5, "shardlist": [{"url": "a.tar", "nsamples": 4}]}')
            for form in ([], ["--table"], ["--json"]):
                done = run("millrace", "index", "info", path, *form)
                self.assertEqual(done.returncode, 0, done.stderr)

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

    def test_update_is_not_told_two_things(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(2))
            run("millrace", "index", "a.tar", "-o", "i.json", cwd=folder)
            for both in (["-d", "x", "-D"], ["-k", "-K"]):
                self.assertEqual(run("millrace", "index", "update", "i.json", *both, cwd=folder).returncode, 2, both)

    def test_update_knows_where_relative_shards_are(self):
        with Folder() as folder:
            for name in ("", "data"):
                (folder / name).mkdir(exist_ok=True)
                write_tar(folder / name / "x.tar", samples(1))
            run("millrace", "index", "data/x.tar", "-o", "data/i.json", cwd=folder)
            for base, whole in (("", f"file://{folder}/data"), ("http://h/d", "http://h/d")):
                self.assertEqual(run("millrace", "index", "update", "data/i.json", *(["-b", base] if base else ["-k"]), cwd=folder).returncode, 0)
                done = run("millrace", "index", "update", "data/i.json", "--rebase", cwd=folder)
                index = json.loads((folder / "data/i.json").read_text())
                self.assertEqual((index["base"], index["shardlist"][0]["url"]), (whole, "x.tar"), done.stderr)

    def test_update_takes_secrets_off_and_queries_for_no_names(self):
        with Folder() as folder:
            shards = [{"url": f"http://h/d-{i}.tar?versionId=a/b{i}", "nsamples": 1} for i in range(2)]
            for to, urls in (("http://bob:hunter2@h/x", ["http://h/x/d-0.tar?versionId=a/b0", "http://h/x/d-1.tar?versionId=a/b1"]),
                             ("/data", ["/data/d-0.tar", "/data/d-1.tar"])):
                (folder / "i.json").write_text(json.dumps({"shardlist": shards}))
                done = run("millrace", "index", "update", "i.json", "--dir", to, cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual([s["url"] for s in json.loads((folder / "i.json").read_text())["shardlist"]], urls)

    def test_update_overwrites_no_file_of_another_kind(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(2))
            for named in ("i.json.bak", "i.offsets"):
                run("millrace", "index", "create", "a.tar", "-o", "i.json", cwd=folder)
                before = (folder / "i.json").read_bytes()
                (folder / named).write_text("notes of a year")
                done = run("millrace", "index", "update", "i.json", "--dir", "all", cwd=folder)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f"at {named}", done.stderr)
                self.assertEqual((folder / named).read_text(), "notes of a year")
                self.assertEqual((folder / "i.json").read_bytes(), before)
                (folder / named).unlink()
            for copy, what, make in (("i.json.bak", "a link to i.json", lambda p: p.symlink_to("i.json")),
                                     ("i.json.bak", "a link to .", lambda p: p.symlink_to(".")),
                                     ("i.offsets.bak", "a folder", pathlib.Path.mkdir)):
                make(folder / copy)
                done = run("millrace", "index", "update", "i.json", "--name", "n", cwd=folder)
                self.assertEqual((done.returncode, (folder / "i.json").read_bytes()), (2, before), done.stderr)
                self.assertIn(f"{what} is in the place of the backup copy, at {copy}; move it away", done.stderr)
                (folder / copy).rmdir() if what == "a folder" else (folder / copy).unlink()

    def test_update_does_not_write_through_a_linked_copy(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(2))
            for name in ("i.json", "precious.json"):
                run("millrace", "index", "create", "a.tar", "-o", name, "--offsets", cwd=folder)
            for copy, precious in (("i.json.bak", "precious.json"), ("i.offsets.bak", "precious.offsets")):
                os.symlink(precious, folder / copy)
            before = {name: (folder / name).read_bytes() for name in ("precious.json", "precious.offsets", "i.json")}
            self.assertEqual(run("millrace", "index", "update", "i.json", "--dir", "all", cwd=folder).returncode, 0)
            for name in ("precious.json", "precious.offsets"):
                self.assertEqual((folder / name).read_bytes(), before[name])
            self.assertEqual((folder / "i.json.bak").read_bytes(), before["i.json"])

    def test_update_keeps_each_shards_offsets_with_it(self):
        # Of one size, and with as many samples: only the order tells which is which.
        with Folder() as folder:
            for name in ("a", "b", "all"):
                (folder / name).mkdir()
            first = [("one0.bin", b"1" * 2000), ("one0.cls", b"1"), ("one1.bin", b"1" * 10)]
            second = [("two0.bin", b"2" * 10), ("two1.bin", b"2" * 2000), ("two1.cls", b"2")]
            for path, members in (("a/x-1.tar", first), ("b/x-0.tar", second), ("all/x-1.tar", first), ("all/x-0.tar", second)):
                write_tar(folder / path, members)
            for option in ([], ["--no-md5"]):
                run("millrace", "index", "a/x-1.tar", "b/x-0.tar", "-o", "i.json", "--offsets", *option, cwd=folder)
                old = (folder / "i.offsets").read_bytes()
                done = run("millrace", "index", "update", "i.json", "--dir", "all", cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                seen = [run("millrace", "index", "sample", "i.json", i, cwd=folder) for i in range(4)]
                names = [sorted(w for w in ("one", "two", ".bin", ".cls") if w in s.stdout) for s in seen]
                self.assertEqual(names, [[".bin", "two"], [".bin", ".cls", "two"], [".bin", ".cls", "one"], [".bin", "one"]])
                self.assertIn("of every sample", run("millrace", "index", "info", "i.json", cwd=folder).stdout)
                # And the older sidecar is known to be of another order.
                (folder / "i.offsets").write_bytes(old)
                done = run("millrace", "index", "sample", "i.json", 0, cwd=folder)
                self.assertEqual((done.returncode, "another index" in done.stderr), (5, True), done.stderr)

    def test_offsets_are_there_after_an_update_without_room_and_kept_beside_the_copy(self):
        with Folder() as folder:
            for name in ("a", "b"):
                write_tar(folder / f"{name}.tar", samples(2))
            run("millrace", "index", "a.tar", "b.tar", "-o", "i.json", "--offsets", cwd=folder)
            before = {name: (folder / name).read_bytes() for name in ("i.json", "i.offsets")}
            def small():
                """As a disk that has room for the copies, and not for the new index."""
                size = len(before["i.json"])
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            command = [harness.BIN / "millrace", "index", "update", "i.json", "--dir", "/a/longer/name/of/a/folder"]
            done = subprocess.run(command, cwd=folder, env=harness.CLEAN, capture_output=True, preexec_fn=small)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertEqual({name: (folder / name).read_bytes() for name in before}, before)
            done = subprocess.run(command, cwd=folder, env=harness.CLEAN, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual({name: (folder / f"{name}.bak").read_bytes() for name in before}, before)
            self.assertNotEqual((folder / "i.json").read_bytes(), before["i.json"])
            self.assertEqual(sorted(p.name for p in folder.iterdir()),
                             ["a.tar", "b.tar", "i.json", "i.json.bak", "i.offsets", "i.offsets.bak"])

    def test_what_stands_in_the_place_of_offsets_stays_unless_it_is_a_sidecar(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(2))
            os.mkfifo(folder / "i.offsets")
            done = run("millrace", "index", "a.tar", "-o", "i.json", cwd=folder)
            self.assertEqual((done.returncode, (folder / "i.offsets").is_fifo()), (0, True), done.stderr)
            (folder / "i.offsets").unlink()
            # Through a link, which stays where a sidecar is replaced.
            (folder / "elsewhere").mkdir()
            run("millrace", "index", "a.tar", "-o", "elsewhere/i.json", "--offsets", cwd=folder)
            os.symlink("elsewhere/i.offsets", folder / "i.offsets")
            done = run("millrace", "index", "a.tar", "-o", "i.json", "--offsets", cwd=folder)
            self.assertEqual((done.returncode, (folder / "i.offsets").is_symlink()), (0, True), done.stderr)
            self.assertIn("of every sample", run("millrace", "index", "info", "i.json", cwd=folder).stdout)
            # Where it is removed, the link alone: what it leads to is the sidecar of another index.
            done = run("millrace", "index", "a.tar", "-o", "i.json", cwd=folder)
            self.assertEqual((done.returncode, os.path.lexists(folder / "i.offsets")), (0, False), done.stderr)
            self.assertTrue((folder / "elsewhere/i.offsets").exists())

    def test_update_does_not_make_two_shards_one(self):
        with Folder() as folder:
            for name in ("a", "b"):
                (folder / name).mkdir()
                write_tar(folder / name / "x.tar", samples(2))
            run("millrace", "index", "a/x.tar", "b/x.tar", "-o", "i.json", cwd=folder)
            before = (folder / "i.json").read_bytes()
            done = run("millrace", "index", "update", "i.json", "--nodir", cwd=folder)
            self.assertEqual((done.returncode, "a/x.tar and b/x.tar" in done.stderr), (2, True), done.stderr)
            self.assertEqual((folder / "i.json").read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
