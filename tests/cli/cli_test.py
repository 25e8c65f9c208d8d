"""millrace as a user meets it: what it prints, and its exit codes."""

import bz2
import ctypes
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.fault_server import FaultServer  # noqa: E402
from tests.support.harness import run  # noqa: E402


def digest_of(samples):
    """The digest of (key, {extension: bytes}), as the manual defines it."""
    h = hashlib.sha256()
    for key, fields in samples:
        h.update(key.encode() + b"\0")
        for extension in sorted(fields):
            content = fields[extension]
            h.update(extension.encode() + b"\0" + len(content).to_bytes(8, "little") + content)
    return h.hexdigest()


def write_tar(path, members, **options):
    with tarfile.open(path, "w", **options) as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))


class Messages(unittest.TestCase):
    """Each is one line with kind, where, and what to do; and the exit code of the contract."""

    def check(self, code, parts, *arguments, program="millrace", **options):
        done = run(program, *arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        last = done.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("millrace: "), last)
        for part in parts:
            self.assertIn(part, last)
        return done

    def test_usage(self):
        self.check(2, ["usage", "--bogus", "--help"], "ls", "--bogus", "x")
        self.check(2, ["usage", "needs a command"])
        self.check(2, ["usage", "SHARD is required"], "digest")
        self.check(2, ["usage", "braces do not balance", "a{0..3"], "ls", "a{0..3")
        self.check(2, ["usage", "not a pattern", "%06d"], "fake", "x-%s.tar")
        self.check(2, ["usage", "'frob' is not a command"], "frob", "--json")
        self.check(2, ["usage", "'frob' is not a command"], "help", "frob", "--json")
        self.check(2, ["usage", "did you mean --base? See `millrace ls --help`"], "ls", "--bsae", "x")
        self.assertNotIn("did you mean", self.check(2, ["no option --nope"], "ls", "--nope", "x").stderr)

    def test_numbers(self):
        for option, value, said in (("--rate", "0", "0 is not a number above 0"), ("--rate", "-1", "-1 is not a number above 0"),
                                    ("--rate", "nan", "nan is not a number above 0"), ("--seconds", "x", "'x' is not a number"),
                                    ("--threads", "0", "0 is not 1 to 1024"), ("--threads", "1.5", "'1.5' is not a whole number"),
                                    ("--cache-decoded", "8", "8 bytes hold no decoded image")):
            self.check(2, ["usage: ", said], "bench", "load", option, value, "/no/such.tar")
        self.check(2, ["usage: --seconds: 0 is not 0.1 to 86400"], "bench", "disk", "--seconds", "0", "/no/such")

    def test_closed_input(self):
        for command, words in (("ls", ["-"]), ("summary", [])):
            done = subprocess.run([harness.BIN / "millrace", command, *words], preexec_fn=lambda: os.close(0),
                                  capture_output=True, text=True, env=harness.CLEAN, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
            self.assertIn("Bad file descriptor", done.stderr)

    def test_closed_output(self):
        with harness.Folder() as folder:
            harness.fake(folder, "a", 1, 4)
            said = "millrace: io_failed: cannot write to stdout (Bad file descriptor)\n"
            for words in (("cat", folder / "a-000000.tar"), ("digest", folder / "a-000000.tar"),
                          ("ls", "--json", folder / "a-000000.tar"), ("ls", folder / "a-000000.tar"), ("help",), ("--version",),
                          ("ls", "--help")):
                done = subprocess.run([harness.BIN / "millrace", *words], preexec_fn=lambda: os.close(1),
                                      capture_output=True, text=True, env=harness.CLEAN, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (4, said), words)
                with open("/dev/full", "wb") as full:
                    done = subprocess.run([harness.BIN / "millrace", *words], stdout=full, stderr=subprocess.PIPE, text=True,
                                          env=harness.CLEAN, timeout=60)
                self.assertEqual(done.returncode, 4, words)
                self.assertIn("cannot write to stdout (No space left on device)", done.stderr)

    def test_variables(self):
        self.check(2, ["bad_setting", "MILLRACE_MEMROY", "did you mean MILLRACE_MEMORY"],
                   "env", env={"MILLRACE_MEMROY": "1G"})
        self.assertNotIn("did you mean", self.check(2, ["MILLRACE_FOO is not a variable"], "env", env={"MILLRACE_FOO": "1"}).stderr)
        self.check(2, ["bad_setting", "MILLRACE_IO", "auto|uring|pread"],
                   "env", env={"MILLRACE_IO": "fast"})

    def test_names_that_are_no_shards(self):
        with harness.Folder() as folder:
            (folder / "d.tar").mkdir()
            self.check(2, ["usage: this is a folder, not a file", "d.tar", "write a / at its end"], "ls", folder / "d.tar")
            self.check(2, ["usage: this is a folder, not a list of shards", "needs no @"], "ls", f"@{folder}")
        self.check(2, ["usage: the braces expand to more than", "name fewer"], "ls", "{1..1000000000}.tar")
        self.check(2, ["usage", "'x' is not a number of samples"], "ls", "-n", "x", "a.tar")

    def test_a_dead_proxy_is_called_one(self):
        proxy = f"http://127.0.0.1:{harness.free_port()}"
        for variable in ("http_proxy", "all_proxy"):
            self.check(4, ["connect_failed", f"the proxy ({variable}) cannot be reached", proxy[7:], "http://h/a.tar"],
                       "ls", "http://h/a.tar", env={variable: proxy, "MILLRACE_HTTP_ATTEMPTS": "1"})

    def test_a_stall_is_told_of_with_its_url(self):
        with FaultServer({"a.tar": bytes(10240)}) as server:
            url = f"{server.url}/stall/0/1/a.tar"
            done = run("millrace", "cat", url, env={"MILLRACE_HTTP_FIRST_BYTE_TIMEOUT": "0.2", "MILLRACE_HTTP_BACKOFF": "0.01"})
            self.assertEqual(done.returncode, 0, done.stderr)
            told = [line for line in done.stderr.splitlines() if "retrying in" in line]
            self.assertTrue(told and all(url in line for line in told), done.stderr)

    def test_missing_file(self):
        for command in "ls", "digest", "cat":
            done = self.check(4, ["not_found", "/no/such.tar"], command, "/no/such.tar")
            self.assertTrue(done.stderr.endswith("; check the path\n"), done.stderr)
            self.check(4, ["/no/such-0.tar", "; check the path and the brace range"], command, "/no/such-{0..1}.tar")

    def test_refused_connection(self):
        port = harness.free_port()
        self.check(4, ["connect_failed", f"127.0.0.1:{port}", "attempt 3 of 3"], "ls",
                   f"http://127.0.0.1:{port}/a.tar",
                   env={"MILLRACE_HTTP_ATTEMPTS": "3", "MILLRACE_HTTP_BACKOFF": "0.01"})

    def test_404(self):
        with harness.Folder() as folder, harness.PlainServer(folder) as server:
            self.check(4, ["not_found", "404", server.url + "/a.tar"], "ls", server.url + "/a.tar")

    def test_secrets_stay_out(self):
        url = f"http://user:canary@127.0.0.1:{harness.free_port()}/a.tar?token=canary"
        done = run("millrace", "ls", url, env={"MILLRACE_HTTP_ATTEMPTS": "2", "MILLRACE_LOG": "debug",
                                               "MILLRACE_HTTP_BACKOFF": "0.01"})
        self.assertEqual(done.returncode, 4)
        self.assertNotIn("canary", done.stdout + done.stderr)

    def test_truncated_archive(self):
        with harness.Folder() as folder:
            write_tar(folder / "a.tar", [("a.txt", b"x" * 5000), ("b.txt", b"y" * 5000)])
            content = (folder / "a.tar").read_bytes()
            (folder / "a.tar").write_bytes(content[:8000])
            done = self.check(5, ["truncated", "a.tar byte 8000", "key b.txt"], "ls", folder / "a.tar")
            self.assertEqual(done.stdout, "a\t0\ttxt:5000\n")  # the whole sample before it

    def test_not_an_archive(self):
        with harness.Folder() as folder:
            (folder / "a.tar").write_text("<html>" + "no tar" * 200)
            self.check(5, ["bad_archive", "not a tar archive", "byte 0"], "digest", folder / "a.tar")

    def test_unknown_scheme(self):
        self.check(2, ["unsupported", "gopher:", "supports"], "ls", "gopher://bucket/a.tar")

    def test_full_output(self):
        with open("/dev/full", "w") as full, harness.Folder() as folder:
            spec = harness.fake(folder, "a", 1, 20)
            for command in "cat", "ls":
                done = subprocess.run([harness.BIN / "millrace", command, spec], stdout=full,
                                      stderr=subprocess.PIPE, text=True, env=harness.CLEAN)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("stdout", done.stderr)


def lzw(data):
    """As compress(1) writes it, but that no code stands for more than a byte."""
    out, held, bits = bytearray(b"\x1f\x9d\x90"), 0, 0
    for i, byte in enumerate(data):
        held |= byte << bits
        bits += min(16, max(9, (i + 256).bit_length()))
        out += (held & (1 << bits // 8 * 8) - 1).to_bytes(bits // 8, "little")
        held, bits = held >> bits // 8 * 8, bits % 8
    return bytes(out) + bytes([held])


class Reading(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.Folder())
        self.members = [(f"d/{i:04}.{e}", f"{i}.{e}".encode() * (i % 50)) for i in range(300)
                        for e in ("txt", "cls")]
        write_tar(self.folder / "a.tar", self.members)
        samples = [(f"d/{i:04}", {e: f"{i}.{e}".encode() * (i % 50) for e in ("txt", "cls")})
                   for i in range(300)]
        self.expected = f"300 samples\n{digest_of(samples)}\n"

    def digest(self, *arguments, **options):
        done = run("millrace", "digest", *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_files_that_a_pattern_names_are_files_whatever_they_are_called(self):
        with harness.Folder() as folder:
            (folder / "pipe:x").mkdir()
            (folder / "stdin").mkdir()
            for i, name in enumerate(("pipe:touch was-run.tar", "stdin/-", "file:b.tar", "b.tar", "pipe:x/c.tar")):
                write_tar(folder / name, [(f"k{i}.txt", b"text")])
            for below, pattern, samples in (("", "*.tar", 3), ("", "*/*", 2), ("", "*run.tar", 1), ("", "./*.tar", 3), ("stdin", "*", 1)):
                done = run("millrace", "digest", pattern, "--allow-pipe", "--json", cwd=folder / below)
                self.assertEqual((done.returncode, json.loads(done.stdout)["samples"]), (0, samples), done.stderr)
            self.assertFalse(any(p.name.startswith("was-run") for p in folder.iterdir()))

    def test_each_compression(self):
        content = (self.folder / "a.tar").read_bytes()
        for name, packed in (("a.tar.gz", gzip.compress), ("a.tar.bz2", bz2.compress), ("a.tar.xz", lzma.compress), ("a.tar.Z", lzw)):
            (self.folder / name).write_bytes(packed(content))
            self.assertEqual(self.digest(self.folder / name), self.expected, name)

    def test_digest_from_everywhere(self):
        path = self.folder / "a.tar"
        self.assertEqual(self.digest(path), self.expected)
        self.assertEqual(self.digest(f"file:{path}"), self.expected)
        self.assertEqual(self.digest(path, env={"MILLRACE_IO": "pread"}), self.expected)
        self.assertEqual(self.digest(path, env={"MILLRACE_READ_CHUNK": "64K"}), self.expected)
        (self.folder / "list").write_text(f"# shards\n{path}\n")
        self.assertEqual(self.digest(f"@{self.folder}/list"), self.expected)
        (self.folder / "a.tgz").write_bytes(gzip.compress(path.read_bytes()))
        self.assertEqual(self.digest(self.folder / "a.tgz"), self.expected)
        with harness.PlainServer(self.folder) as server:
            self.assertEqual(self.digest(server.url + "/a.tar"), self.expected)
            self.assertEqual(self.digest(server.url + "/a.tgz"), self.expected)

    def test_stdin_as_pipe_and_as_file(self):
        content = (self.folder / "a.tar").read_bytes()
        piped = run("millrace", "digest", "-", stdin=content)
        self.assertEqual(piped.stdout.decode(), self.expected)
        with open(self.folder / "a.tar") as file:
            redirected = subprocess.run([harness.BIN / "millrace", "digest", "-"], stdin=file,
                                        capture_output=True, text=True, env=harness.CLEAN)
        self.assertEqual(redirected.stdout, self.expected)
        twice = run("millrace", "digest", "-", "-", stdin=content)
        self.assertEqual(twice.returncode, 2, twice.stderr)
        self.assertIn("a pipe, which can be read only once", twice.stderr.decode())

    def test_every_tar_format(self):
        names = [("n" * 90 + "/" + "m" * 90 + f"{i}.txt", b"x" * i) for i in range(1, 20)]
        for name, form in ("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), \
                ("pax", tarfile.PAX_FORMAT):
            write_tar(self.folder / f"{name}.tar", names, format=form)
            samples = [(n[:-4], {"txt": c}) for n, c in names]
            self.assertEqual(self.digest(self.folder / f"{name}.tar"),
                             f"{len(names)} samples\n{digest_of(samples)}\n", name)

    def test_ls_json_has_offsets_that_lead_to_the_samples(self):
        done = run("millrace", "ls", "--json", self.folder / "a.tar")
        listed = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(listed["samples"], 300)
        with tarfile.open(self.folder / "a.tar") as archive:
            offsets = [m.offset for m in archive if m.name.endswith(".txt")]
        self.assertEqual([s["offset"] for s in listed["list"]], offsets)
        self.assertEqual(listed["list"][7]["fields"], {"txt": 5 * 7, "cls": 5 * 7})

    def test_json_lists_come_as_they_are_read(self):
        """A list is not kept until its end: half of an archive makes the most of its list, and damage closes it."""
        content = (self.folder / "a.tar").read_bytes()
        with subprocess.Popen([harness.BIN / "millrace", "ls", "--json", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=harness.CLEAN) as process:
            self.addCleanup(process.kill)
            stopper = threading.Timer(60, process.kill)
            stopper.start()
            process.stdin.write(content[:len(content) // 2])
            process.stdin.flush()
            begin = process.stdout.read(8000)  # more than a header, while the rest is not sent
            self.assertEqual(begin.count(b'"offset"') > 50, True, begin)
            process.stdin.close()
            lines = (begin + process.stdout.read()).splitlines()
            self.assertEqual(process.wait(), 5)
            stopper.cancel()
        self.assertEqual(len(lines), 2)
        self.assertGreater(len(json.loads(lines[0])["list"]), 100)
        self.assertEqual(json.loads(lines[1])["error"]["kind"], "truncated")
        missing = run("millrace", "ls", "--json", self.folder / "none.tar")
        self.assertEqual([list(json.loads(line)) for line in missing.stdout.splitlines()], [["error"]])
        well = json.loads(run("millrace", "verify", "--json", self.folder / "a.tar").stdout)
        self.assertEqual((well["problems"], well["ok"], well["samples"]), ([], True, 300))

    def test_damage_ends_it_or_is_gone_on_behind_and_told_of(self):
        path = self.folder / "a.tar"
        content = bytearray(path.read_bytes())
        with tarfile.open(path) as archive:
            headers = [m.offset for m in archive]
        # Both files of one sample, and one of another. The sample before each may be half of one, for all one knows.
        for member in (100, 101, 400):
            content[headers[member]:headers[member] + 300] = b"?" * 300
        (self.folder / "damaged.tar").write_bytes(content)
        damaged = run("millrace", "ls", self.folder / "damaged.tar")
        self.assertEqual((damaged.returncode, len(damaged.stdout.splitlines())), (5, 49), damaged.stderr)
        for command in ("ls", "digest"):
            done = run("millrace", command, "--resync", "--json", self.folder / "damaged.tar")
            self.assertEqual(done.returncode, 5)
            self.assertEqual(json.loads(done.stdout.splitlines()[-1])["samples"], 296, done.stderr)
            self.assertIn("skipped 3", done.stderr.splitlines()[-1])
            self.assertIn(f"byte {headers[100]}", done.stderr)
            self.assertIn(f"byte {headers[400]}", done.stderr)
            for key in ("d/0049", "d/0199", "d/0200"):
                self.assertIn(f"key {key}", done.stderr)

    def test_cat(self):
        content = (self.folder / "a.tar").read_bytes()
        done = subprocess.run([harness.BIN / "millrace", "cat", self.folder / "a.tar",
                               self.folder / "a.tar"], capture_output=True, env=harness.CLEAN)
        self.assertEqual(done.stdout, content * 2)

    def test_a_closed_pipe_ends_quietly(self):
        big = self.folder / "big"
        with open(big, "wb") as out:
            out.truncate(50_000_000)
        process = harness.start("millrace", "cat", big, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
        process.stdout.read(10)
        process.stdout.close()
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()
        self.assertEqual(process.wait(20), -signal.SIGPIPE)

    def test_a_reader_that_has_enough_ends_it_with_a_code_of_the_table(self):
        done = subprocess.run(["sh", "-c", f"{harness.BIN}/millrace fake {self.folder}/many.tar --shards 1 --samples 6000 --size 8 "
                               f">/dev/null && {{ {harness.BIN}/millrace ls {self.folder}/many.tar; echo $? >&2; }} | head -1"],
                              capture_output=True, text=True, env=harness.CLEAN, timeout=60)
        code = done.stderr.strip()
        self.assertEqual((len(done.stdout.splitlines()), code), (1, "141"))
        self.assertIn(f"\n| {code} | ended", (harness.ROOT / "docs/tools.md").read_text())

    def test_ctrl_c_ends_at_once(self):
        process = harness.start("millrace", "digest", "-", stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdin.write((self.folder / "a.tar").read_bytes()[:5000])
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        self.assertIn(process.wait(5), (-signal.SIGINT, 130))
        for pipe in process.stdin, process.stdout, process.stderr:
            pipe.close()

    def test_a_killed_server_is_waited_for_and_gone_on_with_at_the_byte(self):
        big = self.folder / "big.tar"
        write_tar(big, [(f"{i:03}.bin", bytes([i]) * 400_000) for i in range(100)])
        (self.folder / "nginx").mkdir()
        with harness.Nginx(self.folder / "nginx", self.folder, "limit_rate 20m;") as server:
            process = harness.start("millrace", "digest", server.url + "/big.tar",
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env={"MILLRACE_HTTP_BACKOFF": "0.05", "MILLRACE_HTTP_ATTEMPTS": "40", "MILLRACE_LOG": "debug"})
            # The line about the first retry says that the crash was noticed in mid-body.
            server.kill()
            line = process.stderr.readline().decode()
            server.start()
            out, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
            self.assertIn("retrying in", line)
            self.assertEqual(out.decode(), self.digest(big))


def refuse_io_uring():
    """In a child before exec: io_uring_setup fails with EPERM, as in a container with seccomp."""
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte),
                    ("k", ctypes.c_uint)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]

    load_number, jump_if_equal, answer = 0x20, 0x15, 0x06
    io_uring_setup, allow, eperm = 425, 0x7FFF0000, 0x00050000 | 1
    filters = (Filter * 4)(Filter(load_number, 0, 0, 0), Filter(jump_if_equal, 0, 1, io_uring_setup),
                           Filter(answer, 0, 0, eperm), Filter(answer, 0, 0, allow))
    program = Program(4, filters)
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) or \
            libc.prctl(set_seccomp, filter_mode, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


class WithoutIoUring(unittest.TestCase):
    def digest(self, shards, **env):
        return subprocess.run([harness.BIN / "millrace", "digest", shards], text=True,
                              capture_output=True, env=harness.CLEAN | env, preexec_fn=refuse_io_uring)

    def test_the_same_bytes_with_one_notice_or_a_refusal_where_it_was_demanded(self):
        with harness.Folder() as folder:
            shards = harness.fake(folder, "a", 3, 100)
            refused = self.digest(shards)
            self.assertEqual(refused.returncode, 0, refused.stderr)
            self.assertEqual(refused.stdout, run("millrace", "digest", shards).stdout)
            self.assertEqual(len(refused.stderr.splitlines()), 1, refused.stderr)
            self.assertIn("io_uring is refused (EPERM)", refused.stderr)
            demanded = self.digest(shards, MILLRACE_IO="uring")
            self.assertEqual(demanded.returncode, 2, demanded.stderr)
            self.assertIn("MILLRACE_IO=auto", demanded.stderr)


class Environment(unittest.TestCase):
    def test_env_lists_every_variable(self):
        listed = json.loads(run("millrace", "env", "--json", env={"MILLRACE_MEMORY": "1G"}).stdout)
        by_name = {v["name"]: v for v in listed["variables"]}
        self.assertEqual(by_name["MILLRACE_MEMORY"]["value"], "1G")
        self.assertTrue(by_name["MILLRACE_MEMORY"]["set"])
        text = run("millrace", "env").stdout
        for name, variable in by_name.items():
            self.assertIn(name, text)
            self.assertIn(variable["group"], text)

    def test_the_document_of_variables_is_what_env_prints(self):
        done = run("millrace", "env", "--markdown", env={"MILLRACE_MEMORY": "1G", "HF_TOKEN": "secret"})
        self.assertEqual(done.stdout, (harness.ROOT / "docs/variables.md").read_text(), "millrace env --markdown > docs/variables.md")

    def test_ranges_are_numbers_in_json_and_as_one_writes_them_in_text(self):
        variables = json.loads(run("millrace", "env", "--json").stdout)["variables"]
        for v in variables:
            for end in (v["least"], v["most"]):
                if v["type"] in ("choice", "text"):
                    self.assertIsNone(end, v)
                else:
                    self.assertIsInstance(end, (int, float), v)
            self.assertNotRegex(v["range"], r"\de\+", v)
        memory = next(v for v in variables if v["name"] == "MILLRACE_MEMORY")
        self.assertEqual((memory["least"], memory["most"], memory["range"]), (1 << 24, 1 << 40, "auto|16M to 1T"))
        self.assertNotRegex(run("millrace", "env").stdout, r"\de\+")

    def test_doctor(self):
        found = json.loads(run("millrace", "doctor", "--json").stdout)
        self.assertGreaterEqual(found["cpus"], 1)
        self.assertIn("io_uring", run("millrace", "doctor").stdout)


class RealShards(unittest.TestCase):
    GOLDEN = {  # reference digests of WebDataset's own test data
        "compressed": "3bed62e1eeda8d23322129ae41706d64c64b7554344900676c36196c02b581cd",
        "mpdata": "8ace9fc1e4410af5d3486567f572d09c1474d1077b4c52859d3297bcec6dfc93",
        "testgz": "5ee258af608b7a1fabf9f46f61e28b8154c07e6623cd6e10d82b04f18b3f26f6",
    }

    @harness.needs_shared("webdataset-real")
    def test_digests(self):
        for name, expected in self.GOLDEN.items():
            shard = harness.SHARED / "webdataset-real" / f"webdataset--{name}.tar"
            done = run("millrace", "digest", shard)
            self.assertEqual(done.stdout.split()[-1], expected, name)

    @harness.needs_shared("hostile-tar")
    def test_hostile_archives_neither_crash_nor_hang(self):
        for shard in sorted((harness.SHARED / "hostile-tar").iterdir()):
            with self.subTest(shard=shard.name):
                done = subprocess.run([harness.BIN / "millrace", "ls", shard], timeout=20,
                                      capture_output=True, env=harness.CLEAN)
                self.assertIn(done.returncode, (0, 1, 5), done.stderr)
                if done.returncode:
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
