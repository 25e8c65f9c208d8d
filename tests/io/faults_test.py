"""Every network fault that a server on loopback can simulate, against `millrace cat`: the bytes are right, or the
message is; a run that outlasts its timers is killed. Run with --table to see what was delivered for each."""

import hashlib
import pathlib
import random
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.fault_server import FaultServer  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402

CONTENT = random.Random(7).randbytes(1_000_000)
RIGHT = hashlib.sha256(CONTENT).hexdigest()
HOW = {"MILLRACE_HTTP_ATTEMPTS": "4", "MILLRACE_HTTP_BACKOFF": "0.05", "MILLRACE_LOG": "quiet"}
# Where a server stops; a busy machine takes longer to answer.
SHORT = {"MILLRACE_HTTP_FIRST_BYTE_TIMEOUT": "0.5", "MILLRACE_HTTP_PROGRESS_TIMEOUT": "0.5"}

# row of the list of faults, path, expected result: "ok", or the kind of the error and a part of its text; the most
# requests. How long each wait may take is tested in simulated time (tests/io/http/deadlines_test.cc).
CASES = [
    (1, "truncate/70000", "ok", 15),
    (1, "cutat/300000", ("cut", "attempt 4 of 4"), 5),
    (2, "reset/70000", "ok", 40),
    (3, "reset/-1", ("cut", "attempt 4 of 4"), 4),
    (3, "close", ("cut", "attempt 4 of 4"), 4),
    (3, "idleclose", "ok", 1),
    (4, "stall/0/2", "ok", 3),
    (4, "stall/100000/2", "ok", 3),
    (4, "stall/0/99", ("timed_out", "attempt 4 of 4"), 4),
    (5, "slow/2000", "ok", 1),
    (6, "drop/0.3", "ok", 60),
    (10, "503/2", "ok", 3),
    (10, "429/1?ra=1", "ok", 2),
    (10, "503/1?ra=date", "ok", 2),
    (10, "500/2", "ok", 3),
    (10, "502/1", "ok", 2),
    (10, "504/1", "ok", 2),
    (10, "408/1", "ok", 2),
    (10, "503/99", ("http_status", "503 (attempt 4 of 4)"), 4),
    (11, "404/99", ("not_found", "404"), 1),
    (11, "403/99", ("not_allowed", "403"), 1),
    (11, "410/99", ("not_found", "410"), 1),
    (12, "s3err200", "ok", 2),
    (13, "norange", "ok", 1),
    (13, "norange/300000", "ok", 3),
    (14, "badrange", ("protocol", "asked for bytes"), 2),
    (14, "norangehdr", ("protocol", "asked for bytes"), 2),
    (14, "shortrange", "ok", 25),
    (14, "multirange", ("protocol", "multipart"), 2),
    (14, "badtotal", ("changed", "changed"), 5),
    (15, "shiftbody", "ok", 2),
    (15, "shiftbody/always", ("integrity", "Repr-Digest".lower()), 2),
    (16, "changed/100000", ("changed", "changed"), 5),
    (17, "noetag", "ok", 2),
    (17, "weaketag", "ok", 2),
    (17, "novalidator", "ok", 2),  # nothing was given out by then: starts again
    (18, "chunked", "ok", 1),
    (18, "chunkcut", "ok", 3),
    (18, "badchunk", "ok", 3),
    (19, "nolen", "ok", 1),
    (20, "gzip", ("protocol", "Content-Encoding"), 1),
    (21, "duplen", ("protocol", "not HTTP/1.1"), 4),
    (21, "extra", "ok", 1),
    (21, "interim", "ok", 1),
    (21, "hugeheader", ("protocol", "not HTTP/1.1"), 4),
    (21, "longline", ("protocol", "not HTTP/1.1"), 4),
    (21, "garbage", ("protocol", "not HTTP/1.1"), 4),
    (22, "redirectloop", ("protocol", "more than 5 redirects"), 6),
    (22, "redirectchain/4", "ok", 6),
    (22, "redirectchain/6", ("protocol", "more than 5 redirects"), 6),
    (23, "redirectfile", ("protocol", "'file:'"), 1),
]


def cat(url, env=None):
    begun = time.monotonic()
    variables = harness.CLEAN | HOW | (SHORT if "/stall/" in url else {}) | (env or {})
    done = subprocess.run([harness.BIN / "millrace", "cat", url], env=variables, capture_output=True, timeout=60)
    return done, time.monotonic() - begun


def kind(done):
    text = done.stderr.decode()
    return text.split(": ")[1] if text.startswith("millrace: ") and done.returncode != 0 else ""


def with_name(path):
    fault, question, query = path.partition("?")
    return f"/{fault}/a.tar{question}{query}"


class Faults(unittest.TestCase):
    def try_all(self, env, show=False, allowance=1):
        for row, path, expected, most_requests in CASES:
            with self.subTest(path=path, **env), FaultServer({"a.tar": CONTENT}) as server:
                done, seconds = cat(server.url + with_name(path), env)
                requests = len([r for r in server.requests() if "method" in r])
                digest = hashlib.sha256(done.stdout).hexdigest()
                if show:
                    said = "the right bytes" if digest == RIGHT and done.returncode == 0 else \
                        f"exit {done.returncode}: {done.stderr.decode().strip().replace(str(server.port), 'PORT')}"
                    print(f"| {row} | `/{path}/` | {said} | {seconds:.2f} s | {requests} |", flush=True)
                if expected == "ok":
                    self.assertEqual((done.returncode, digest), (0, RIGHT), done.stderr.decode())
                else:
                    self.assertEqual(kind(done), expected[0], done.stderr.decode())
                    self.assertIn(expected[1], done.stderr.decode())
                    self.assertIn(f"http://127.0.0.1:{server.port}", done.stderr.decode())
                    # The bytes given out before are the object's beginning, never anything else.
                    self.assertTrue(CONTENT.startswith(done.stdout) or path.startswith("shiftbody"))
                self.assertLessEqual(requests, most_requests * allowance)

    def test_one_stream(self):
        self.try_all({"MILLRACE_HTTP_SPLIT": "off"})

    def test_a_stalled_server_is_left_by_our_timer(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            cat(server.url + "/stall/0/1/a.tar")
            harness.wait_until(lambda: any("client_gone_in_stall" in r for r in server.requests()), 10)

    def test_truncations_cost_exactly_the_requests_they_must(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            cat(server.url + "/truncate/70000/a.tar", {"MILLRACE_HTTP_SPLIT": "off"})
            self.assertEqual(len(server.requests()), -(-len(CONTENT) // 70_000))

    def test_a_body_that_ends_too_early_without_a_length_is_no_whole_archive(self):
        with Folder() as folder:
            harness.fake(folder, "s", 1, 100)
            shard = (folder / "s-000000.tar").read_bytes()
            with FaultServer({"a.tar": shard}) as server:
                done = run("millrace", "digest", f"{server.url}/nolencut/100000/a.tar", env=HOW)
                self.assertEqual(done.returncode, 5, done.stderr)
                self.assertIn("truncated", done.stderr)

    def test_unreachable_and_unknown_hosts(self):
        done, _ = cat(f"http://127.0.0.1:{harness.free_port()}/a.tar")
        self.assertEqual(kind(done), "connect_failed")
        done, _ = cat("http://no-such-host.invalid/a.tar")
        self.assertEqual(kind(done), "connect_failed")
        self.assertIn("cannot find the address", done.stderr.decode())


class Parts(unittest.TestCase):
    """Recoverable faults with the object fetched in parallel parts."""

    def test_the_bytes_are_right(self):
        env = {"MILLRACE_HTTP_SPLIT": "4", "MILLRACE_HTTP_PART": "128K"}
        for path in ("plain", "truncate/70000", "reset/70000", "stall/50000/2", "drop/0.3", "503/2", "s3err200", "norange",
                     "shiftbody", "noetag", "extra", "interim", "redirectchain/4"):
            with self.subTest(path=path), FaultServer({"a.tar": CONTENT}) as server:
                done, _ = cat(f"{server.url}/{path}/a.tar", env)
                self.assertEqual(hashlib.sha256(done.stdout).hexdigest(), RIGHT, done.stderr.decode())

    def test_versions_never_mix(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            done, _ = cat(f"{server.url}/changed/50000/a.tar", {"MILLRACE_HTTP_SPLIT": "4", "MILLRACE_HTTP_PART": "128K"})
            self.assertEqual(kind(done), "changed", done.stderr.decode())
            self.assertTrue(CONTENT.startswith(done.stdout))


class RandomCuts(unittest.TestCase):
    """A hundred shards whose transfers are cut at random give the same bytes, with few requests."""

    def test_the_digest_is_the_same_and_the_requests_are_bounded(self):
        shards = {f"s{i}.tar": random.Random(i).randbytes(300_000) for i in range(100)}
        right = hashlib.sha256(b"".join(shards.values())).hexdigest()
        for chance in (0.01, 0.1, 0.3):
            with self.subTest(chance=chance), FaultServer(shards, seed=int(100 * chance)) as server:
                done, _ = cat(f"{server.url}/drop/{chance}/s{{0..99}}.tar",
                                    {"MILLRACE_HTTP_SPLIT": "off", "MILLRACE_HTTP_ATTEMPTS": "50"})
                self.assertEqual(hashlib.sha256(done.stdout).hexdigest(), right, done.stderr.decode()[-500:])
                parts = sum(-(-len(s) // 65536) for s in shards.values())
                self.assertLessEqual(len(server.requests()), len(shards) + 1.5 * parts * chance / (1 - chance) + 10)


if __name__ == "__main__":
    if "--table" in sys.argv:
        print("| row | injected | what was delivered | time | requests |\n|---|---|---|---|---|")
        Faults().try_all({"MILLRACE_HTTP_SPLIT": "off"}, show=True)
    else:
        unittest.main()
