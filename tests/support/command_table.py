"""Every command of `millrace help --json`, and its result for an input: a new command is in the tables by itself."""

import json
import os
import pathlib
import re
import subprocess
import unittest

from tests.support import harness, states

# docs/tools.md: 1 other failure, 2 wrong command line, variable or budget, 3 too many skipped, 4 a source cannot be reached or
# read, 5 integrity, 6 a peer was lost.
CODES = {1: {"no_samples", "bad_image", "missing_field", "bad_label", "too_large", "bad_state"},
         2: {"usage", "bad_setting", "no_memory", "unsupported"},
         3: {"too_many_skipped"},
         4: {"not_found", "not_allowed", "connect_failed", "untrusted", "timed_out", "cut", "http_status", "protocol",
             "io_failed", "no_descriptors"},
         5: {"changed", "truncated", "bad_archive", "duplicate_field", "bad_field", "bad_index", "integrity"},
         6: {"peer_lost"},
         7: {"device_failed"}}
KINDS = {kind: code for code, kinds in CODES.items() for kind in kinds}
SECONDS = 30
QUICK = {"MILLRACE_HTTP_ATTEMPTS": "2", "MILLRACE_HTTP_BACKOFF": "0.01"}
# How long a measurement takes, and how much it makes.
SHORT = {"bench disk": ["--seconds", "0.3"], "bench http": ["--seconds", "0.3"], "bench load": ["--seconds", "0.3", "--size", "32"],
         "bench decode": ["--rounds", "1", "--size", "32"], "tune": ["--seconds", "1"],
         "fake": ["--shards", "1", "--samples", "2", "--size", "16"]}
# Commands whose input is the host, the environment or the cache, and so has no name.
RIGHT_END = {"tune": 1}  # if not 0: the input is too small for tuning, and the command reports that
WITHOUT_INPUT = {"doctor", "env", "cache ls", "cache clean", "cache verify", "help"}
# Commands that read local files alone, not URLs.
LOCAL_ALONE = {"index update", "state show", "state move", "state skip"}
# Raw bytes: their content is not examined.
ANY_BYTES = {"cat", "bench disk", "bench http", "tune"}


def listing():
    done = harness.run("millrace", "help", "--json")
    assert done.returncode == 0, done.stderr
    return {c["command"]: c for c in json.loads(done.stdout)["commands"]}


COMMANDS = listing() if harness.BIN.joinpath("millrace").exists() else {}


def takes(command, *names):
    return any(a["name"] in names for a in COMMANDS[command]["arguments"])


def with_options(command, output):
    """What a command needs in addition to its input."""
    words = command.split() + SHORT.get(command, [])
    if command in ("index", "index create"):
        words += ["-o", str(output / "i.json")]
    if command == "pack":
        words += ["-o", str(output / "p-%d.tar")]
    if command in ("state move", "state skip"):
        words += ["--epoch" if command == "state move" else "--samples", "1", "-o", str(output / "s.json")]
    return words


def reading():
    """The commands that read their arguments."""
    return [c for c in COMMANDS if c not in WITHOUT_INPUT and c != "fake"]


# What an argument or option takes, by the word that --help shows for it: a path that is read, one that is written, or none.
READ = {"SHARD", "SHARD...", "FILE", "DIR", "PATH", "URL"}
WRITTEN = {"PATTERN", "FILE.png"}
NO_PATHS = {"", "N", "N,N,...", "PASSES", "BYTES", "PIXELS", "SAMPLES", "FIELD", "FIELDS", "OBJECTS", "TEXT", "IMAGES",
            "IMAGES/S", "K", "I/N", "SECONDS", "SEED", "FILES", "RANKS", "PARTS", "BATCHES", "INDEX", "COMMAND", "exact|fast",
            "own|library", "fields|samples", "header|decode|resize|all"}
# Files that are written, if the word does not show it.
WRITTEN_OPTIONS = {("index", "--output"), ("index create", "--output"), ("bench decode", "--write-crops"),
                   ("state move", "--output"), ("state skip", "--output")}
# A name that is written into an index unchanged and unexamined.
NAMES_ALONE = {("index", "--base"), ("index create", "--base"), ("index update", "--base"), ("index update", "--dir")}


def places():
    """(command, argument or option, whether it is written) of every path that a command takes."""
    for command, said in COMMANDS.items():
        for one in said["arguments"] + said["options"]:
            name = one["name"].split(",")[-1]
            word = one["name"] if one in said["arguments"] else one["takes"]
            assert word in READ | WRITTEN | NO_PATHS, f"{command} {name}: is {word} a path? Put it into READ, WRITTEN or NO_PATHS"
            if word in NO_PATHS or (command, name) in NAMES_ALONE:
                continue
            yield command, name, word in WRITTEN or (command, name) in WRITTEN_OPTIONS


class CommandTest(unittest.TestCase):
    program = "millrace"

    def setUp(self):
        self.folder = self.enterContext(harness.Folder())
        os.chmod(self.folder, 0o755)
        self.output = self.folder / "out"
        self.output.mkdir(mode=0o777)
        self.inputs = self.folder / "in"
        self.inputs.mkdir()
        self.shard = pathlib.Path(harness.fake(self.inputs, "a", 1, 6).replace("{000000..000000}", "000000"))
        done = harness.run("millrace", "index", "create", "a-000000.tar", "-o", "a.json", "--offsets", cwd=self.inputs)
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.inputs / "tree/one").mkdir(parents=True)
        (self.inputs / "tree/one/x.txt").write_text("x")
        (self.inputs / "position.json").write_text(states.BEGIN)

    def right_input(self, command):
        if command.startswith("state "):
            return [str(self.inputs / "position.json")]
        if takes(command, "FILE"):
            return [str(self.inputs / "a.json")] + (["0"] if takes(command, "INDEX") else [])
        if takes(command, "DIR"):
            return [str(self.inputs / "tree")]
        if takes(command, "PATTERN"):
            return [str(self.output / "f-%d.tar")]
        return [] if command in WITHOUT_INPUT else [str(self.shard)]

    def wrong_input(self, command, path):
        return [str(path)] + (["0"] if takes(command, "INDEX") else [])

    def started(self, words, env=None, **popen):
        return subprocess.Popen([str(harness.BIN / self.program), *map(os.fsdecode, words)], cwd=self.output,
                                env=harness.CLEAN | QUICK | (env or {}), **popen)

    def cleared(self):
        """The names in the output folder."""
        left = sorted(p.name for p in self.output.iterdir())
        for path in self.output.iterdir():
            path.unlink()
        return left

    def run_it(self, words, stdout=subprocess.PIPE, **options):
        """Runs it in the output folder, and also returns the folder's content."""
        process = self.started(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, **options)
        try:
            out, wrong = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(process.args, process.returncode, out, wrong), self.cleared()

    def json_of(self, command, done):
        """The object on the last line; None if nothing was printed."""
        text = ((done.stderr if command == "cat" else done.stdout) or b"").decode("utf8")
        if command == "cat" and not text.rstrip().endswith("}"):
            return None
        if not text:
            return None
        self.assertTrue(text.endswith("\n"), f"half a line: {done.args} {text!r}")
        found = json.loads(text.splitlines()[-1])
        self.assertIsInstance(found, dict, f"{done.args} {text!r}")
        return found

    def check_failure(self, command, done, codes, left=(), allowed=()):
        """The exit code, one line with the reason, and no file left."""
        stderr = done.stderr.decode("utf8", "replace")
        where = f"{command}: {done.args}: {stderr}"
        self.assertIn(done.returncode, codes, where)
        kinds = [line.split(": ")[1] for line in stderr.splitlines()
                 if line.startswith("millrace: ") and line.split(": ")[1] in KINDS.keys() | {"internal", "stopped"}]
        if command != "verify":  # which lists on stdout
            self.assertEqual([KINDS.get(kind, kind) for kind in kinds], [done.returncode], where)
        self.assertNotIn("internal:", stderr, where)
        self.assertEqual([name for name in left if name not in allowed], [], where)

    def fails(self, command, words, codes, **options):
        """With and without --json, which says the same as stderr, in one object."""
        done, left = self.run_it(words, **options)
        self.check_failure(command, done, codes, left)
        done, left = self.run_it([*words, "--json"], **options)
        self.check_failure(command, done, codes, left)
        found = self.json_of(command, done)
        self.assertIsNotNone(found, f"{done.args}: nothing on stdout")
        if "error" in found:
            self.assertEqual(set(found["error"]), {"kind", "message", "exit_code"})
            self.assertEqual((found["error"]["exit_code"], KINDS[found["error"]["kind"]]), (done.returncode, done.returncode))
            self.assertIn(found["error"]["kind"], done.stderr.decode("utf8", "replace"))
        else:
            self.assertTrue(found.get("problems"), f"{done.args}: {found}")

    def works(self, command, words, **options):
        end = RIGHT_END.get(command, 0)
        done, _ = self.run_it(words, **options)
        self.assertEqual(done.returncode, end, f"{done.args} {done.stderr}")
        done, _ = self.run_it([*words, "--json"], **options)
        self.assertEqual(done.returncode, end, f"{done.args} {done.stderr}")
        found = self.json_of(command, done)
        self.assertIsNotNone(found, done.args)
        self.assertEqual("error" in found, end != 0, found)

    def handles(self, pid, which):
        """Whether the process has installed its handler of the signal. Its count of threads would not show that: sanitizers
        have threads of their own."""
        try:
            caught = re.search(r"^SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1]
        except OSError:
            return True
        return bool(int(caught, 16) >> (which - 1) & 1)

    def is_waiting(self, pid):
        """Whether all of the process's threads sleep: it has read all its input."""
        try:
            states = {pathlib.Path(p, "stat").read_text().rpartition(")")[2].split()[0]
                      for p in pathlib.Path(f"/proc/{pid}/task").iterdir()}
        except OSError:
            return True
        return states <= {"S"}

    def interrupted(self, command, process, which, ready):
        """Sends the signal once `ready()` holds: the process ends by it within seconds, and leaves no partial output."""
        self.addCleanup(process.kill)
        harness.wait_until(lambda: process.poll() is not None or ready())
        if process.poll() is None:
            process.send_signal(which)
        out, wrong = process.communicate(timeout=SECONDS)
        done = subprocess.CompletedProcess(process.args, process.returncode, out, wrong)
        self.assertIn(done.returncode, (128 + which, -which), f"{done.args} {wrong}")
        self.assertNotIn(b"internal:", wrong)
        if "--json" in done.args:
            found = self.json_of(command, done)
            if done.returncode > 0 and found is not None:
                self.assertIs(found.get("interrupted"), True, f"{done.args} {found}")
        left = self.cleared()
        if done.returncode > 0:  # else the signal itself ended it
            self.assertEqual([name for name in left if ".partial." in name], [], done.args)
        return done
