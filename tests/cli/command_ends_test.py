"""Every command where its output has no room or no reader, and where it is stopped: the right exit code, one line, no
half of a document, nothing left."""

import os
import pathlib
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.command_table import (COMMANDS, LOCAL_ALONE, RIGHT_END, SECONDS, CommandTest, reading, takes,  # noqa: E402
                                         with_options)

# A small disk in a mount namespace of its own, filled to the last byte; then a command in it, and what it leaves there.
FULL_DISK = """
mount -t tmpfs -o size=64k none "$1" && cd "$1" || exit 77
head -c 70000 /dev/zero >filler 2>/dev/null
list=$2; shift 2
"$@"; code=$?
ls -A | grep -v '^filler$' >"$list"
exit $code
"""


def mounts_are_allowed():
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return done.returncode == 0


class NoRoom(CommandTest):
    def writing(self):
        """The commands that write files, with what they need; relative names, in the folder that they run in."""
        for command in COMMANDS:
            if takes(command, "PATTERN"):
                yield command, [*with_options(command, pathlib.Path()), "f-%d.tar"]
            elif any(o["name"].split(",")[-1] == "--output" for o in COMMANDS[command]["options"]):
                yield command, with_options(command, pathlib.Path()) + self.right_input(command)
        yield "ls", ["ls", "--contact-sheet", "s.png", str(self.shard)]
        yield "bench decode", [*with_options("bench decode", pathlib.Path()), "--write-crops", "c", str(self.shard)]
        shutil.copy(self.inputs / "a.json", self.output / "u.json")
        yield "index update", ["index", "update", "u.json", "--name", "n" * 5000]

    def test_files_of_limited_size(self):
        def small():  # SIGXFSZ has its default action, which would end the process
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        for command, words in self.writing():
            if command == "index update":  # its file is beyond the limit already
                continue
            for more in ([], ["--json"] if command != "ls" else []):
                with self.subTest(command, more=more):
                    done, left = self.run_it([*words, *more], preexec_fn=small)
                    self.check_failure(command, done, {4}, left)
                    self.assertIn(b"File too large", done.stderr)

    @unittest.skipUnless(shutil.which("unshare") and mounts_are_allowed(), "no mounts of its own are permitted here")
    def test_full_disk(self):
        disk, listed = self.folder / "disk", self.folder / "listed"
        disk.mkdir()
        commands = [words for _, words in self.writing() if words[:2] != ["index", "update"]]
        self.assertGreaterEqual(len(commands), 6)
        for words in commands:
            for more in ([], ["--json"] if words[0] != "ls" else []):
                with self.subTest(" ".join(words[:2]), more=more):
                    done = subprocess.run(
                        ["unshare", "-m", "--propagation", "private", "sh", "-c", FULL_DISK, "sh", disk, listed,
                         harness.BIN / "millrace", *words, *more], env=harness.CLEAN, capture_output=True, timeout=SECONDS)
                    self.check_failure(words[0], done, {4})
                    self.assertIn(b"No space left on device", done.stderr)
                    self.assertEqual(listed.read_text(), "", done.stderr)

    def test_full_stdout(self):
        for command in COMMANDS:
            if command in ("bench http", "index update") or command.startswith("cache"):
                continue
            for more in ([], ["--json"]):
                if command == "cat" and more:
                    continue  # nothing to write there: the object is on stderr
                with self.subTest(command, more=more):
                    words = with_options(command, self.output) + self.right_input(command)
                    with open("/dev/full", "wb") as full:
                        done, left = self.run_it([*words, *more], stdout=full)
                    self.check_failure(command, done, {RIGHT_END.get(command, 4)}, left, allowed=left)
                    self.assertEqual(b"cannot write to stdout" in done.stderr, command not in RIGHT_END)

    def test_full_stderr(self):
        """What cannot be told changes no exit code: of a success, of a missing input, of a wrong command line."""
        for command in COMMANDS:
            if command == "bench http" or command.startswith("cache"):
                continue
            options = with_options(command, self.output)
            end = RIGHT_END.get(command, 0)
            rows = [([*options, *self.right_input(command)], {end}), ([*options, "--no-such-option"], {2})]
            if command in reading():
                rows.append(([*options, *self.wrong_input(command, self.folder / "none.tar")], {4}))
            for words, codes in rows:
                for both in (False, True):
                    if both and codes == {end}:
                        continue  # test_full_stdout
                    with self.subTest(command, words=words, both=both), open("/dev/full", "wb") as full:
                        process = self.started(words, stdin=subprocess.DEVNULL, stderr=full,
                                               stdout=full if both else subprocess.DEVNULL)
                        self.assertIn(process.wait(SECONDS), codes)
                        self.cleared()

    def test_closed_streams(self):
        """Nothing ends up in files that take the numbers of closed streams, and all end; where what they print is
        lost, they fail."""
        def close():
            for fd in (0, 1, 2):
                os.close(fd)
        for command in COMMANDS:
            if command == "bench http" or command.startswith("cache"):
                continue
            for more in ([], ["--json"]):
                with self.subTest(command, more=more):
                    words = with_options(command, self.output) + self.right_input(command)
                    process = self.started([*words, *more], preexec_fn=close)
                    quiet = command == "index update" and not more
                    self.assertEqual(process.wait(SECONDS), 0 if quiet else RIGHT_END.get(command, 4), command)
                    for path in self.output.iterdir():
                        self.assertNotIn(b"writing", path.read_bytes()[-200:])
                    self.cleared()


class Signals(CommandTest):
    """Each command ends within seconds of a signal, with its code."""

    def each(self):
        for which in (signal.SIGTERM, signal.SIGINT):
            for more in ([], ["--json"]):
                yield which, more

    def test_while_input_is_waited_for(self):
        for command in reading():
            if not takes(command, "SHARD", "URL") or command in ("tune", "bench http"):  # which read no stdin
                continue
            for which, more in self.each():
                with self.subTest(command, signal=which, more=more):
                    specs = ["--from-shards", "-", "--restart", "1"] if command == "pack" else ["-"]
                    process = self.started([*with_options(command, self.output), *more, *specs], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    process.stdin.write(self.shard.read_bytes()[:3000])
                    process.stdin.flush()
                    stdin, process.stdin = process.stdin, None  # open until its end
                    # As any filter, these end by the signal itself where there is nothing to tell.
                    handles = command != "summary" and (more or command not in ("cat", "ls"))
                    done = self.interrupted(command, process, which, lambda: self.is_waiting(process.pid) and (
                        not handles or self.handles(process.pid, which)))
                    stdin.close()
                    if more and command in ("cat", "ls"):
                        self.assertEqual(done.returncode, 128 + which)
                        self.assertIsNotNone(self.json_of(command, done), done.args)
                    if command in ("digest", "verify"):  # what they have found so far
                        self.assertEqual(done.returncode, 128 + which)
                        self.assertIn(b'"samples"' if more else b"stopped after ", done.stdout)

    def test_while_a_server_says_nothing(self):
        """Of a shard, of a listing, of an index: the first signal ends each command that takes a URL."""
        with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            store = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
            for command in reading():
                if takes(command, "PATH") or command in LOCAL_ALONE:  # which read what is local
                    continue
                if takes(command, "FILE"):
                    rows = [self.wrong_input(command, f"{url}/i.json")]
                elif command == "pack":
                    rows = [["--from-shards", spec, "--restart", "1"] for spec in (f"{url}/x.tar", "s3://b/")]
                else:
                    rows = [[f"{url}/x.tar"], ["s3://b/"]]
                if any(o["name"] == "--index" for o in COMMANDS[command]["options"]):
                    rows.append([str(self.shard), "--index", f"{url}/i.json"])
                for row in rows:
                    for which, more in self.each():
                        with self.subTest(command, row=row, signal=which, more=more):
                            process = self.started([*with_options(command, self.output), *more, *row], store,
                                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                            self.ends_while_connected(command, process, which, server)

    def ends_while_connected(self, command, process, which, server):
        accepted = []

        def is_connected():
            if select.select([server], [], [], 0)[0]:
                accepted.append(server.accept()[0])
            return accepted and self.is_waiting(process.pid)
        try:
            self.interrupted(command, process, which, is_connected)
            self.assertTrue(accepted, process.args)
        finally:
            for connection in accepted:
                connection.close()

    def test_while_a_pipe_is_waited_for(self):
        """Opened by nobody, or by one who does not read."""
        pipe = self.inputs / "pipe"
        os.mkfifo(pipe)
        shards = self.many_shards()
        for which, more in self.each():
            process = self.started([*with_options("pack", self.output), *more, f"@{pipe}"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.interrupted("pack", process, which, lambda: self.is_waiting(process.pid))
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            try:
                process = self.started(["index", *more, "-o", str(pipe), shards], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                self.interrupted("index", process, which, lambda: self.is_full(pipe))
            finally:
                os.close(reader)

    def is_full(self, pipe):
        """Whether a pipe takes nothing more."""
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return not select.select([], [fd], [], 0)[1]
        finally:
            os.close(fd)

    def many_shards(self):
        """More than fit into a pipe when they are printed."""
        listed = self.inputs / "many"
        listed.write_text(f"{self.shard}\n" * 3000)
        return f"@{listed}"

    def test_while_nobody_reads_what_is_printed(self):
        shards = self.many_shards()
        for command, *options in (["verify", "--json"], ["verify"], ["ls"], ["index", "-o", str(self.output / "i.json")]):
            for which in (signal.SIGTERM, signal.SIGINT):
                with self.subTest(command, options=options, signal=which):
                    reader, writer = os.pipe()
                    process = self.started([command, *options, shards], stdin=subprocess.DEVNULL, stdout=writer,
                                           stderr=subprocess.DEVNULL)
                    self.addCleanup(process.kill)
                    harness.wait_until(lambda: not select.select([], [writer], [], 0)[1] or process.poll() is not None)
                    self.assertIsNone(process.poll())
                    process.send_signal(which)
                    self.assertIn(process.wait(SECONDS), (128 + which, -which))
                    self.assertEqual([name for name in self.cleared() if ".partial." in name], [])
                    os.close(reader)
                    os.close(writer)

    def test_a_second_signal_of_another_kind_ends_it_at_once(self):
        shards = self.many_shards()
        for first, second in ((signal.SIGTERM, signal.SIGHUP), (signal.SIGINT, signal.SIGTERM)):
            with self.subTest(first, second=second):
                reader, writer = os.pipe()
                process = self.started(["ls", shards], stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL)
                self.addCleanup(process.kill)
                harness.wait_until(lambda: not select.select([], [writer], [], 0)[1] or process.poll() is not None)
                process.send_signal(first)
                process.send_signal(second)
                # The first one's code where both came before it looked.
                self.assertIn(process.wait(SECONDS), (128 + first, -first, -second))
                os.close(reader)
                os.close(writer)

    def test_while_a_contact_sheet_is_drawn(self):
        for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = self.started(["ls", "--contact-sheet", str(self.output / "s.png"), "-"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            process.stdin.write(self.shard.read_bytes()[:3000])
            process.stdin.flush()
            stdin, process.stdin = process.stdin, None  # open until its end
            done = self.interrupted("ls", process, which, lambda: list(self.output.glob("*.partial.*")) and
                                    self.is_waiting(process.pid))
            self.assertEqual(done.returncode, 128 + which)  # and no partial file is left
            stdin.close()

    def test_while_measuring(self):
        large = self.inputs / "large"
        large.write_bytes(bytes(32 << 20))
        with harness.PlainServer(self.inputs) as server:
            for command, path in (("bench disk", large), ("tune", large), ("bench http", f"{server.url}/large"),
                                  ("tune", f"{server.url}/large"), ("bench load", self.shard)):
                for which, more in self.each():
                    with self.subTest(command, path=path, signal=which, more=more):
                        process = self.started([*command.split(), "--seconds", "600", *more, path],
                                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                        done = self.interrupted(command, process, which, lambda: self.handles(process.pid, which))
                        self.assertEqual(done.returncode, 128 + which)
                        if command == "tune" and not more:
                            self.assertIn(b"stopped: not every setting was tried", done.stdout)

    def test_while_ranks_are_simulated(self):
        for which in (signal.SIGTERM, signal.SIGINT):
            process = self.started(["sim", "--counts", "90x100", "--world-size", "1000000", "--nworkers", "1000000", "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            done = self.interrupted("sim", process, which, lambda: self.handles(process.pid, which))
            self.assertEqual((done.returncode, done.stdout), (128 + which, b'{"interrupted":true}\n'))

    def test_while_writing(self):
        for which, more in [*self.each(), (signal.SIGHUP, [])]:
            with self.subTest(signal=which, more=more):
                process = self.started(["fake", "--samples", "1000000", *more, str(self.output / "f-%d.tar")],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                done = self.interrupted("fake", process, which, lambda: list(self.output.glob("*.partial.*")))
                self.assertEqual(done.returncode, 128 + which)
                said = rb'{"complete":\d,"interrupted":true}\n' if more else rb"stopped: \d of 8 shards (is|are) complete(; .*)?\n"
                self.assertRegex(done.stdout, said)


if __name__ == "__main__":
    unittest.main()
