"""index: what it writes, what it reads, and samples by number."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.archives import md5, samples, write_tar  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402


class Index(unittest.TestCase):
    def test_it_is_what_widsindex_writes(self):
        with Folder() as folder:
            write_tar(folder / "b.tar", samples(3))
            write_tar(folder / "a.tar", samples(5, 100))
            done = run("millrace", "index", "create", "b.tar", "a.tar", "-o", "i.json", cwd=folder)
            self.assertEqual(done.stdout, "setting name to b\nb.tar\na.tar\n", done.stderr)
            self.assertRegex(done.stderr, r"(?m)^wrote i.json: 2 shards, \d+ samples$")
            done = run("millrace", "index", "a.tar", cwd=folder)
            self.assertIn("wrote shardindex.json: 1 shard, 5 samples\n", done.stderr)
            self.assertNotIn("sidecar", run("millrace", "help", "--json").stdout)
            told = json.loads(run("millrace", "index", "a.tar", "-o", "o.json", "--offsets", "--json", cwd=folder).stdout)
            self.assertEqual((told["index"], told["offsets"]), ("o.json", "o.offsets"))
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
                run("millrace", "index", spec, "--compat", "-o", folder / "i.json", cwd=harness.SHARED / name)
                self.assertEqual((folder / "i.json").read_bytes(),
                                 (harness.SHARED / name / f"{name}-index.json").read_bytes())

    def test_one_beside_its_shards_is_read_from_anywhere(self):
        with Folder() as folder:
            (folder / "ds").mkdir()
            write_tar(folder / "ds" / "a.tar", samples(3))
            write_tar(folder / "b.tar", samples(2, 10))
            done = run("millrace", "index", "create", "ds/a.tar", "b.tar", "-o", "ds/i.json", "--offsets", cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            names = [s["url"] for s in json.loads((folder / "ds" / "i.json").read_text())["shardlist"]]
            self.assertEqual(sorted(names), ["../b.tar", "a.tar"])
            for where, index in ((folder, "ds/i.json"), (folder / "ds", "i.json"), ("/", folder / "ds" / "i.json")):
                verified = run("millrace", "verify", "--index", index, cwd=where)
                self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
            verified = run("millrace", "verify", "ds/a.tar", "b.tar", "--index", "ds/i.json", cwd=folder)
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
            run("millrace", "index", "create", "ds/a.tar", "-o", "ds/i.json", "--compat", cwd=folder)
            self.assertEqual(json.loads((folder / "ds" / "i.json").read_text())["shardlist"][0]["url"], "ds/a.tar")

    def test_shards_are_found_in_it_however_they_are_spelled_and_wherever_they_lie(self):
        with Folder() as folder:
            for name in ("ds", "copy", "ds/b"):
                (folder / name).mkdir()
            write_tar(folder / "ds/a-0.tar", samples(3))
            write_tar(folder / "ds/a-1.tar", samples(2, 10))
            self.assertEqual(run("millrace", "index", "a-{0..1}.tar", "-o", "i.json", cwd=folder / "ds").returncode, 0)
            for name in ("a-0.tar", "a-1.tar"):
                (folder / "copy" / name).write_bytes((folder / "ds" / name).read_bytes())
            ds, index = folder / "ds", ["--index", folder / "ds/i.json", "--json"]
            for spelled in ("a-{0..1}.tar", "./a-{0..1}.tar", f"{folder}/ds/a-{{0..1}}.tar", f"file:{ds}/a-{{0..1}}.tar", "../copy/a-{0..1}.tar"):
                done = run("millrace", "verify", spelled, *index, cwd=ds)
                self.assertEqual((done.returncode, json.loads(done.stdout)["ok"]), (0, True), f"{spelled} {done.stdout}")
                done = run("millrace", "summary", spelled, *index, cwd=ds)
                self.assertEqual((done.returncode, json.loads(done.stdout)["samples"]), (0, 5), done.stderr)
            # A copy is compared with what the index says, and one of two of a name is none that can be told.
            write_tar(folder / "copy/a-1.tar", samples(2, 20))
            done = run("millrace", "verify", folder / "copy/a-1.tar", *index)
            self.assertEqual((done.returncode, "its MD5 is" in done.stdout), (1, True), done.stdout)
            both = ["verify", folder / "ds/b/a-0.tar", folder / "copy/a-0.tar", *index]
            (folder / "ds/b/a-0.tar").write_bytes((folder / "ds/a-0.tar").read_bytes())
            done = run("millrace", *both)
            self.assertEqual((done.returncode, done.stdout.count("its file name is not unique")), (1, 2), done.stdout)

    def test_one_that_is_a_link_has_its_offsets_beside_its_target(self):
        with Folder() as folder:
            (folder / "sub").mkdir()
            (folder / "l.json").symlink_to("i.json")
            for count in (3, 5):
                write_tar(folder / "a.tar", samples(count))
                done = run("millrace", "index", "a.tar", "-o", "l.json", "--offsets", cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(sorted(p.name for p in folder.iterdir()), ["a.tar", "i.json", "i.offsets", "l.json", "sub"])
                for name in ("i.json", "l.json"):
                    table = json.loads(run("millrace", "index", "info", name, "--json", cwd=folder).stdout)["indices"][0]
                    self.assertEqual((table["samples"], table["offsets"]), (count, True), name)
            (folder / "l.offsets").write_bytes((folder / "i.offsets").read_bytes())  # as beside a link of older versions
            write_tar(folder / "a.tar", samples(4))
            done = run("millrace", "index", "a.tar", "-o", "l.json", cwd=folder)
            self.assertEqual((done.returncode, "which belonged to the previous index" in done.stderr), (0, True), done.stderr)
            self.assertEqual(sorted(folder.glob("*.offsets")), [])
            run("millrace", "index", "a.tar", "-o", "l.json", "--offsets", cwd=folder)
            self.assertEqual(run("millrace", "index", "update", "l.json", "-d", "sub", cwd=folder).returncode, 0)
            (folder / "a.tar").rename(folder / "sub/a.tar")
            for name in ("i.json", "l.json"):
                done = run("millrace", "index", "sample", name, 3, cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(run("millrace", "verify", "--index", name, cwd=folder).returncode, 0)

    def test_two_that_are_written_at_once_are_not_mixed(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(3))
            os.mkfifo(folder / "slow")
            index = ["index", "create", "-o", "i.json", "--offsets"]
            for there in (False, True):
                slow = harness.start("millrace", *index, "--allow-pipe", "pipe:cat slow", "--compat", cwd=folder, stderr=subprocess.PIPE,
                                     stdout=subprocess.DEVNULL)
                self.addCleanup(slow.kill)
                with harness.writer_of_pipe(folder / "slow") as writer:  # it is read, so the partial file is there
                    for words in ([*index, "a.tar"], *([["index", "update", "i.json", "--name", "n"]] if there else [])):
                        done = run("millrace", *words, cwd=folder)
                        self.assertEqual((done.returncode, "another run is changing the index, at i.json" in done.stderr), (2, True), done.stderr)
                    writer.write((folder / "a.tar").read_bytes())
                said = slow.communicate(timeout=60)[1]
                self.assertEqual(slow.returncode, 0, said)
                self.assertEqual(len(json.loads((folder / "i.json").read_text())["shardlist"]), 1)
                self.assertEqual(run("millrace", *index, "a.tar", cwd=folder).returncode, 0)

    def test_nothing_is_written_over_or_left_behind(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(3))
            before = (folder / "a.tar").read_bytes()
            for output in ("a.tar", "nowhere/i.json"):
                done = run("millrace", "index", "create", "a.tar", "-o", output, cwd=folder)
                self.assertNotEqual(done.returncode, 0, output)
                self.assertNotIn("internal", done.stderr)
            self.assertEqual((folder / "a.tar").read_bytes(), before)
            run("millrace", "index", "create", "a.tar", "-o", "i.json", "--offsets", cwd=folder)
            again = run("millrace", "index", "create", "a.tar", "-o", "i.json", cwd=folder)
            self.assertIn("removed i.offsets", again.stderr)
            (folder / "b.offsets").write_text("notes")
            self.assertEqual(run("millrace", "index", "create", "a.tar", "-o", "b.json", cwd=folder).returncode, 2)
            (folder / "cut.tar").write_bytes(before[:1200])
            cut = run("millrace", "index", "create", "cut.tar", "-o", "c.json", "--offsets", cwd=folder)
            self.assertEqual(cut.returncode, 5, cut.stderr)
            self.assertEqual(sorted(p.name for p in folder.iterdir()), ["a.tar", "b.offsets", "cut.tar", "i.json"])

    def test_secrets_stay_out_of_it_and_commands_out_of_downloaded_ones(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(3))
            with harness.PlainServer(folder) as server:
                url = f"{server.url}/a.tar".replace("http://", "http://user:secret@") + "?token=hidden&v=1"
                done = run("millrace", "index", "create", url, "-o", "i.json", cwd=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads((folder / "i.json").read_text())["shardlist"][0]["url"], f"{server.url}/a.tar?v=1")
                self.assertIn("removed from the URLs", done.stderr)
                mark = folder / "was-run"
                for name, content in (("pipe", {"shardlist": [{"url": f"pipe:touch {mark}", "nsamples": 1}]}),
                                      ("part", {"datasets": [{"source_url": f"pipe:touch {mark}"}]}),
                                      ("local", {"shardlist": [{"url": f"file://{folder}/a.tar", "nsamples": 3}]}),
                                      ("shape", {"datasets": [1]})):
                    (folder / f"{name}.json").write_text(json.dumps({"wids_version": 1, **content}))
                    done = run("millrace", "index", "sample", f"{server.url}/{name}.json", 0, env={"MILLRACE_ALLOW_PIPE": "1"})
                    self.assertEqual((done.returncode, "bad_index" in done.stderr, mark.exists()), (5, True, False), done.stderr)

    def test_commands_are_not_written_into_it(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(3))
            for shard in ("pipe:cat a.tar #Bearer-secret", "PIPE:cat a.tar #Bearer-secret"):
                arguments = ("index", "create", "--allow-pipe", shard, "-o", "i.json")
                done = run("millrace", *arguments, cwd=folder)
                self.assertEqual((done.returncode, os.path.exists(folder / "i.json")), (2, False), done.stderr)
                self.assertIn("an index does not list commands", done.stderr)
                self.assertNotIn("Bearer", done.stdout + done.stderr)
                self.assertEqual(run("millrace", *arguments, "--compat", cwd=folder).returncode, 0)
                self.assertEqual(json.loads((folder / "i.json").read_text())["shardlist"][0]["url"], shard)
                (folder / "i.json").unlink()

    def test_a_missing_shard_is_told_of_with_what_helps(self):
        with Folder() as folder:
            done = run("millrace", "index", "missing.tar", "-o", "i.json", cwd=folder)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("missing.tar", done.stderr)
            self.assertNotIn("lists all", done.stderr)

    def test_one_that_was_downloaded_reads_and_runs_nothing_however_that_is_written(self):
        with Folder() as folder:
            (folder / "given").mkdir()
            write_tar(folder / "a.tar", samples(3))
            write_tar(folder / "given/b.tar", samples(3))
            mark = folder / "was-run"
            with harness.PlainServer(folder) as server:
                for url in (f"FILE://{folder}/a.tar", f"File:{folder}/a.tar", f"PIPE://x/bin/sh -c 'touch {mark}'",
                            f"Pipe:touch {mark}", "http+unix://%2Frun%2Fx.sock/a.tar", "HTTP+UNIX://%2Frun%2Fx.sock/a"):
                    (folder / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": url, "nsamples": 3}]}))
                    done = run("millrace", "index", "sample", f"{server.url}/i.json", 0, env={"MILLRACE_ALLOW_PIPE": "1"})
                    self.assertEqual((done.returncode, "bad_index" in done.stderr, mark.exists()), (5, True, False), done.stderr)
                for url, code in (("b.tar", 0), ("../a.tar", 5), ("../given/b.tar", 0), ("%2e%2e/a.tar", 5)):
                    (folder / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": url, "nsamples": 3}]}))
                    done = run("millrace", "verify", "--index", f"{server.url}/i.json", "--base", f"file://{folder}/given")
                    self.assertEqual(done.returncode, code, url + done.stdout + done.stderr)

    def test_what_is_secret_in_a_url_is_neither_printed_nor_written(self):
        with Folder() as folder:
            write_tar(folder / "x-0.tar", samples(3))
            before = set(folder.iterdir())
            with harness.PlainServer(folder) as server:
                url = server.url.replace("http://", "http://user:canary@")
                url += "/x-0.tar?shard=1&Signature=canary&sig=canary&auth_key=canary&q-signature=canary"
                for command in (["index", "create", "-o", "i.json", "--offsets", "--base", url], ["index", "info", "i.json"],
                                ["summary"], ["summary", "--samples"], ["verify"], ["ls"], ["digest"],
                                ["pack", "-o", "o-%02d.tar", "--restart", 4, "--overwrite", "--from-shards"]):
                    shards = [] if "info" in command else [url]
                    for form in ([], ["--json"]):
                        done = run("millrace", *command, *shards, *form, cwd=folder, env={"MILLRACE_LOG": "debug"})
                        self.assertEqual(done.returncode, 0, (command, done.stderr))
                        self.assertNotIn("canary", done.stdout + done.stderr, command)
                made = set(folder.iterdir()) - before
                self.assertGreater(len(made), 3)
                for path in made:
                    self.assertNotIn(b"canary", path.read_bytes(), path)
                self.assertEqual(json.loads((folder / "i.json").read_text())["shardlist"][0]["url"], f"{server.url}/x-0.tar?shard=1")

    def test_a_name_that_json_cannot_hold_is_refused(self):
        with Folder() as folder:
            path = folder / os.fsdecode(b"\xff-0.tar")
            write_tar(path, samples(1))
            done = subprocess.run([harness.BIN / "millrace", "index", "create", path, "-o", folder / "i.json"],
                                  env=harness.CLEAN, capture_output=True, timeout=60)
            self.assertEqual((done.returncode, b"not UTF-8" in done.stderr), (2, True), done.stderr)
            self.assertFalse((folder / "i.json").exists())

    def test_a_shard_that_is_named_twice_is_told(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(2))
            for command in (["index", "-o", "i.json"], ["summary"]):
                for other in ("a.tar", "./a.tar", f"file:{folder}/a.tar"):
                    done = run("millrace", *command, "a.tar", other, cwd=folder)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn("named more than once", done.stderr)
                self.assertNotIn("named more", run("millrace", *command, "a.tar", cwd=folder).stderr)

    def test_the_description_is_no_output(self):
        with Folder() as folder:
            write_tar(folder / "a.tar", samples(2))
            run("millrace", "index", "create", "a.tar", "-o", "x.json", cwd=folder)
            before = (folder / "x.json").read_bytes()
            done = run("millrace", "index", "create", "a.tar", "-i", "x.json", "-o", "x.json", cwd=folder)
            self.assertEqual((done.returncode, (folder / "x.json").read_bytes()), (2, before), done.stderr)
            (folder / "a.tar").write_text("no archive, which is found out by who reads it")
            self.assertIn("nothere", run("millrace", "index", "a.tar", "-i", "nothere", cwd=folder).stderr)

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
            done = run("millrace", "index", "sample", "i.json", "1e3", cwd=folder)
            self.assertEqual(done.returncode, 2)
            self.assertIn("'1e3' is not a whole number", done.stderr)
            # An archive, whatever its bytes look like, is not called an index that is nested too deep.
            (folder / "brackets.tar").write_bytes((folder / "a.tar").read_bytes() + b"[" * 300)
            for words in (("index", "update", "brackets.tar", "--name", "n"), ("index", "sample", "brackets.tar", 0),
                          ("verify", "--index", "brackets.tar", "a.tar")):
                done = run("millrace", *words, cwd=folder)
                self.assertEqual(done.returncode, 5, done.stderr)
                self.assertIn("it is not a JSON object", done.stderr)
                self.assertIn("`millrace index create`", done.stderr)
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
            self.assertEqual((done.returncode, "includes other indices" in done.stderr), (5, True), done.stderr)

    def test_a_base_may_be_a_pattern(self):
        with Folder() as folder:
            write_tar(folder / "part-a.tar", samples(2))
            (folder / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": "a", "nsamples": 2}]}))
            for base in (f"{folder}/part-%s.tar", f"{folder}/part-{{}}.tar"):
                done = run("millrace", "verify", "--index", folder / "i.json", "--base", base, cwd="/")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_what_is_no_index_is_refused(self):
        with Folder() as folder:
            for text in ("[]", "{", '{"wids_version": 2}', '{"wids_version": 1, "shardlist": []}',
                         '{"wids_version": 1, "shardlist": [{"url": "a"}]}',
                         '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": -1}]}',
                         '{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": "5"}]}'):
                (folder / "i.json").write_text(text)
                done = run("millrace", "index", "info", folder / "i.json")
                self.assertEqual((done.returncode, done.stderr[:19]), (5, "millrace: bad_index"), text)


if __name__ == "__main__":
    unittest.main()
