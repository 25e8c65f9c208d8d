"""Every command with every kind of wrong input: the exit code of the table in docs/tools.md, exactly one
`millrace: KIND: ...` line on failure and never `internal`, an end within seconds, one JSON object on the last line with
--json, and no stray file."""

import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.command_table import (ANY_BYTES, CODES, COMMANDS, LOCAL_ALONE, QUICK, SECONDS, WITHOUT_INPUT,  # noqa: E402
                                         CommandTest, reading, takes, with_options)


class Table(CommandTest):
    def test_every_command_is_in_the_table(self):
        self.assertGreaterEqual(len(COMMANDS), 22)
        for command, said in COMMANDS.items():
            self.assertIn("--json", [o["name"].split(",")[-1] for o in said["options"]], command)
            self.assertTrue(said["meaning"], command)

    def test_the_exit_codes_are_those_of_the_table(self):
        text = (harness.ROOT / "docs/tools.md").read_text()
        for code, words in ((1, "other failure"), (2, "command line, variable or budget wrong"), (3, "more samples failed"),
                            (4, "a source cannot be reached or read"), (5, "integrity: "), (6, "a peer process was lost")):
            self.assertIn(f"\n| {code} | {words}", text)
        header = (harness.ROOT / "engine/base/error.h").read_text()
        for kinds in CODES.values():
            for kind in kinds:
                self.assertIn(f"  {kind},", header)

    def test_options_have_a_group_a_unit_and_a_default_and_commands_an_example(self):
        for command, said in COMMANDS.items():
            with self.subTest(command):
                text = harness.run("millrace", "help", *command.split()).stdout
                self.assertIn("Example", text)
                for option in said["options"]:
                    if option["name"] == "--help":
                        continue
                    self.assertNotIn(option["group"].lower(), ("", "options"), option)
                    self.assertNotEqual(option["takes"], "X", option)  # a bare number without its unit
                    self.assertTrue(option["meaning"][0].islower() or option["meaning"][0].isupper() or
                                    option["meaning"][0] in "-'", option)

    def test_commands_that_read_shards_list_the_variables(self):
        known = {v["name"] for v in json.loads(harness.run("millrace", "env", "--json").stdout)["variables"]}
        for command, said in COMMANDS.items():
            with self.subTest(command):
                reads = any(argument["name"] == "SHARD" for argument in said["arguments"])
                self.assertEqual(bool(said["variables"]), reads)
                self.assertLessEqual(set(said["variables"]), known)
                text = harness.run("millrace", "help", *command.split()).stdout
                self.assertEqual(reads, "\nVariables (" in text)
                for variable in said["variables"]:
                    self.assertIn(variable, text)

    def test_it_works(self):
        """The cells below fail for their own reason: with the right input all commands end well."""
        (self.folder / "cache").mkdir(mode=0o700)
        for command in COMMANDS:
            with self.subTest(command):
                if command == "bench http":
                    continue  # reads servers: below
                cache = {"MILLRACE_CACHE": str(self.folder / "cache")} if command.startswith("cache") else {}
                self.works(command, with_options(command, self.output) + self.right_input(command), env=cache)
        with harness.PlainServer(self.inputs) as server:
            self.works("bench http", [*with_options("bench http", self.output), f"{server.url}/a-000000.tar"])

    def test_no_argument(self):
        for command in COMMANDS:
            if command in WITHOUT_INPUT or command == "summary":  # which reads names on stdin
                continue
            with self.subTest(command):
                self.fails(command, command.split(), {2})

    def test_unknown_option(self):
        for command in COMMANDS:
            with self.subTest(command):
                self.fails(command, [*command.split(), "--jsn"], {2})
                done, _ = self.run_it([*command.split(), "--jsn"])
                self.assertIn(b"did you mean --json?", done.stderr)

    def test_an_empty_value_is_no_value(self):
        """As of "$UNSET" in a script: the option would be switched off in silence, or take the next word."""
        for command, said in COMMANDS.items():
            if command == "help":  # knows no such command
                continue
            tried = [(o["name"].split(",")[-1], o["takes"]) for o in said["options"] if o["takes"]]
            for name, words in [*((o, [o, ""]) for o, _ in tried), *((f"{o}=", [f"{o}="]) for o, _ in tried if o.startswith("--")),
                                *((a["name"], [""]) for a in said["arguments"][:1])]:
                with self.subTest(command=command, of=name):
                    done, _ = self.run_it([*command.split(), *words])
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertRegex(done.stderr.decode(), f"{name}.*(is empty|has no value|'' is not|not in)")

    def test_missing_file(self):
        for command in reading():
            with self.subTest(command):
                words = with_options(command, self.output) + self.wrong_input(command, self.folder / "none.tar")
                self.fails(command, words, {2} if command == "bench http" else {4})  # which reads servers alone

    def test_folder_without_shards(self):
        (self.inputs / "empty").mkdir()
        for command in reading():
            with self.subTest(command):
                words = with_options(command, self.output) + self.wrong_input(command, self.inputs / "empty")
                # A file is wanted, or a folder of classes: the command line is wrong. Else there are no shards in it.
                self.fails(command, words, {2} if takes(command, "FILE", "DIR") else {4})

    def not_shards(self, path, codes):
        for command in reading():
            if command in ANY_BYTES or command == "summary" or takes(command, "DIR"):
                continue
            with self.subTest(command):
                self.fails(command, with_options(command, self.output) + self.wrong_input(command, path), codes(command))

    def test_empty_file(self):
        (self.inputs / "empty.tar").write_bytes(b"")
        self.not_shards(self.inputs / "empty.tar", lambda command: {1} if command == "verify" or command.startswith("state ") else {5})

    def test_not_a_tar(self):
        (self.inputs / "page.tar").write_text("<!DOCTYPE html><html><title>Log in</title></html>\n" * 40)
        self.not_shards(self.inputs / "page.tar", lambda command: {1} if command == "verify" or command.startswith("state ") else {5})

    @unittest.skipUnless(os.getuid() == 0 and shutil.which("setpriv"), "needs root and setpriv: root reads everything")
    def test_unreadable(self):
        nobody = pwd.getpwnam("nobody")
        secret = self.inputs / "secret.tar"
        shutil.copy(self.shard, secret)
        shutil.copy(self.inputs / "a.json", self.inputs / "secret.json")
        shutil.copytree(self.inputs / "tree", self.inputs / "secret.d")
        for path in secret, self.inputs / "secret.json", self.inputs / "secret.d":
            os.chmod(path, 0)
        os.chmod(self.output, 0o777)
        probe = subprocess.run(["setpriv", "--reuid", str(nobody.pw_uid), "--clear-groups", "test", "-x",
                                str(harness.BIN / "millrace")])
        if probe.returncode != 0:
            self.skipTest("nobody may not run the programs of this build")
        for command in reading():
            with self.subTest(command):
                path = secret if not takes(command, "FILE", "DIR") else \
                    self.inputs / ("secret.json" if takes(command, "FILE") else "secret.d")
                if command in ("summary", "bench http"):  # opens nothing; reads servers alone
                    continue
                self.fails(command, with_options(command, self.output) + self.wrong_input(command, path), {4},
                           user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[])

    def test_404(self):
        with harness.PlainServer(self.inputs) as server:
            for command in reading():
                if takes(command, "DIR", "PATH") or command in LOCAL_ALONE:
                    continue
                with self.subTest(command):
                    words = with_options(command, self.output) + self.wrong_input(command, server.url + "/none.tar")
                    self.fails(command, words, {4})

    def test_secrets_of_a_url_are_in_nothing_that_is_printed_or_written(self):
        canary = "c4n4ry"
        with harness.PlainServer(self.inputs) as server:
            at = server.url.replace("http://", f"http://us:{canary}@")
            for command in reading():
                if takes(command, "DIR", "PATH") or command in LOCAL_ALONE | {"cat"}:  # which gives the bytes alone
                    continue
                for name in ("a.json" if takes(command, "FILE") else "a-000000.tar", "none.tar"):
                    for more in ([], ["--json"]):
                        with self.subTest(command, name=name, more=more):
                            words = with_options(command, self.output) + \
                                self.wrong_input(command, f"{at}/{name}?sig={canary}")
                            process = self.started([*words, *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                   stderr=subprocess.PIPE)
                            printed = b"".join(process.communicate(timeout=60))
                            written = b"".join(p.read_bytes() for p in self.output.rglob("*") if p.is_file())
                            self.cleared()
                            self.assertNotIn(canary.encode(), printed + written)

    def test_secrets_in_an_index_are_in_nothing_that_is_printed_or_made_of_it(self):
        """URLs of its shards, of its base and of what it includes, and URLs where numbers should stand."""
        canary = "c4n4ry"
        with harness.PlainServer(self.inputs) as server:
            at = server.url.replace("http://", f"http://us:{canary}@")
            url = f"{at}/a-000000.tar?sig={canary}"
            entry = {"url": url, "nsamples": 6}
            wrong = f"{at}/{'long' * 50}?sig={canary}"
            index = {"wids_version": 1, "name": "n", "shardlist": [entry]}
            rows = {"whole": index,
                    "relative": index | {"base": f"{at}/", "shardlist": [entry | {"url": f"a-000000.tar?sig={canary}"}]},
                    "gone": index | {"shardlist": [entry | {"url": f"{at}/none.tar?sig={canary}"}]},
                    "folders": index | {"shardlist": [entry, entry | {"url": f"{at}/other/b.tar?sig={canary}"}]},
                    "count": index | {"shardlist": [entry | {"nsamples": wrong}]},
                    "counts": index | {"shardlist": [entry | {"filesize": [wrong, wrong]}]},
                    "version": index | {"wids_version": wrong},
                    "included": index | {"datasets": [{"source_url": f"{at}/none.json?sig={canary}"}]},
                    "scheme": index | {"shardlist": [entry | {"url": f"ftp://us:{canary}@host/a.tar?sig={canary}"}]}}
            commands = [["info"], ["info", "--table"], ["sample", "0"], ["update", "--rebase"], ["update", "--nodir"],
                        ["update", "--dir", f"{at}/d?sig={canary}"], ["update", "--base", f"{at}/?sig={canary}"]]
            for name, made in rows.items():
                for command, *options in commands:
                    for more in ([], ["--json"]):
                        file = self.output / "i.json"
                        file.write_text(json.dumps(made))
                        self.without(canary, ["index", command, file, *options, *more])
                for words in (["verify", "--index"], ["verify", "--json", self.shard, "--index"]):
                    file.write_text(json.dumps(made))
                    self.without(canary, [*words, file])

    def without(self, canary, words):
        """Runs it: the canary is not printed, and in nothing of the index that is new. A value that is quoted is cut."""
        with self.subTest(" ".join(map(str, words))):
            file = self.output / "i.json"
            before = file.read_bytes()
            done = subprocess.run([harness.BIN / "millrace", *words], cwd=self.output, env=harness.CLEAN | QUICK,
                                  capture_output=True, timeout=SECONDS)
            self.assertNotIn(canary.encode(), done.stdout + done.stderr)
            self.assertNotIn(b"long" * 30, done.stdout + done.stderr)
            was, is_now = json.loads(before), json.loads(file.read_bytes())
            self.assertTrue(is_now.get("base") == was.get("base") or canary not in is_now["base"])
            for one, other in zip(sorted(s["url"] for s in was["shardlist"]), (s["url"] for s in is_now["shardlist"])):
                self.assertTrue(one == other or canary not in other, other)
            self.assertLessEqual(set(self.cleared()), {"i.json", "i.json.bak"})

    def test_control_bytes_of_an_index_move_no_cursor(self):
        forged = "a\x1b[2K\rb\x9bc"
        index = {"wids_version": 1, "name": forged, "info": f"one\n{forged}", "base": f"/{forged}",
                 "shardlist": [{"url": str(self.shard), "nsamples": 6}, {"url": f"{forged}.tar", "nsamples": 1}]}
        file = self.inputs / f"{forged}.json"
        file.write_text(json.dumps(index))
        for words in (["info"], ["info", "--table"], ["sample"]):
            done, _ = self.run_it(["index", *words, file] + (["0"] if words == ["sample"] else []))
            self.assertEqual(done.returncode, 0, done.stderr)
            for byte in ("\x1b", "\r", "\x9b"):
                self.assertNotIn(byte, (done.stdout + done.stderr).decode("utf8"), done.args)
            if words == ["info"]:
                self.assertIn(rb"info: one" + b"\n" + rb"a\x1b[2K\x0db\xc2\x9bc", done.stdout)

    def test_name_that_is_not_utf8(self):
        name = os.fsencode(str(self.inputs)) + b"/sh\xff\xe9.tar"
        shutil.copy(self.shard, name)
        for command in reading():
            if not takes(command, "SHARD", "PATH", "URL") or command in ("pack", "bench http"):
                continue
            words = [*with_options(command, self.output), name]
            with self.subTest(command):
                if command in ("index", "index create"):  # JSON cannot name it
                    self.fails(command, words, {2})
                else:
                    self.works(command, words)


@unittest.skipUnless((harness.BIN / "millrace-train").exists(), "millrace-train is not built here")
class Trainer(CommandTest):
    """The same of millrace-train; what it checks at its start is in tests/train/start_test.py."""

    program = "millrace-train"
    options = ["--model", "trivial", "--classes", "10", "--size", "8", "--batch-size", "2", "--epochs", "1", "--device", "cpu"]

    def refused(self, words, codes, **options):
        for more in ([], ["--json"]):
            done, left = self.run_it([*words, *more], **options)
            self.check_failure("millrace-train", done, codes, left)
            if more:
                self.assertEqual(json.loads(done.stdout)["error"]["exit_code"], done.returncode)
            else:
                self.assertEqual(done.stdout, b"", done.args)

    def test_every_wrong_input(self):
        (self.inputs / "empty").mkdir()
        (self.inputs / "empty.tar").write_bytes(b"")
        (self.inputs / "page.tar").write_text("<!DOCTYPE html><html><title>Log in</title></html>\n" * 40)
        self.refused([], {2})
        self.refused(["--jsn"], {2})
        for name, codes in (("none.tar", {4}), ("empty", {4}), ("empty.tar", {5}), ("page.tar", {5})):
            with self.subTest(name):
                self.refused([*self.options, "--shards", self.inputs / name], codes)
        with harness.PlainServer(self.inputs) as server:
            self.refused([*self.options, "--shards", f"{server.url}/none.tar"], {4})

    def test_it_works(self):
        self.works("millrace-train", [*self.options, "--shards", self.shard])


if __name__ == "__main__":
    unittest.main()
