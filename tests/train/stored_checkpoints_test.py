"""Checkpoints in an object store: what is there, kills in mid upload, refusals, going back. Needs moto: ./setup --peers.
TEST_SEEDS: how many kills at a random request (3)."""

import http.client
import http.server
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import WithShards, steps  # noqa: E402

MOTO = harness.ROOT / "build/venv/bin/moto_server"
SECRET = "canary7c3f"
# Runs what it is told, one script a line: boto3 takes a second to import.
CLIENT = """
import boto3, contextlib, io, json, pathlib, sys, traceback
s = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1', aws_access_key_id='a', aws_secret_access_key='b')
bucket = 'bucket'
def keys():
    found, more = [], {}
    while True:
        page = s.list_objects_v2(Bucket=bucket, **more)
        found += [o['Key'] for o in page.get('Contents', [])]
        if not page.get('IsTruncated'):
            return found
        more = {'ContinuationToken': page['NextContinuationToken']}
port = sys.argv[1]
for line in sys.stdin:
    script, words = json.loads(line)
    sys.argv, said = ['', port, *words], io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(script)
        failed = ''
    except Exception:
        failed = traceback.format_exc()
    print(json.dumps([said.getvalue(), failed]), flush=True)
"""


class Gate(harness.Serving):
    """Passes requests on to a store, unless `instead`, which is given the request, says status and body itself."""

    def __init__(self, port, instead):
        gate = self
        self.connections = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16

            def setup(self):
                gate.connections += 1
                super().setup()

            def do_GET(self):
                body = self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                said = instead(self)
                status, fields, content = (said[0], {}, said[1]) if said else self.passed_on(body)
                self.send_response_only(status)
                for name, value in ({"Content-Length": str(len(content))} | fields).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()

            do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

            def passed_on(self, body):
                to = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                to.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    to.putheader(name, value)
                to.endheaders(body)
                got = to.getresponse()
                content = got.read()
                to.close()
                hop = ("connection", "transfer-encoding")
                fields = {name: value for name, value in got.getheaders() if name.lower() not in hop}
                return got.status, fields, content

            def log_message(self, *_):
                pass

        super().__init__(Handler)


@unittest.skipUnless(MOTO.exists(), "no moto: ./setup --peers installs it")
class StoredCheckpoints(WithShards):
    train_counts = (8, 480)
    one_at_a_time = threading.Lock()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = harness.free_port()
        cls.server = subprocess.Popen([MOTO, "-p", str(cls.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.server.wait)
        cls.addClassCleanup(cls.server.kill)

        def answers():
            try:
                socket.create_connection(("127.0.0.1", cls.port), 1).close()
                return True
            except OSError:
                return False
        harness.wait_until(answers, 60)
        cls.client = subprocess.Popen([harness.VENV_PYTHON, "-c", CLIENT, f"http://127.0.0.1:{cls.port}"], env=harness.CLEAN,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.client.communicate)

    def setUp(self):
        super().setUp()
        self.boto("s.create_bucket(Bucket=bucket)\nfor k in keys(): s.delete_object(Bucket=bucket, Key=k)\n"
                  "for u in s.list_multipart_uploads(Bucket=bucket).get('Uploads', []):\n"
                  "    s.abort_multipart_upload(Bucket=bucket, Key=u['Key'], UploadId=u['UploadId'])\n")
        self.url = "s3://bucket/runs/one"

    def boto(self, script, *arguments):
        with self.one_at_a_time:  # gates call this from threads of their own
            self.client.stdin.write(json.dumps([script, list(map(str, arguments))]) + "\n")
            self.client.stdin.flush()
            said, failed = json.loads(self.client.stdout.readline())
        self.assertEqual(failed, "")
        return said

    def objects(self):
        """The keys by checkpoint."""
        found = {}
        for key in json.loads(self.boto("print(json.dumps(keys()))")):
            begin, _, name = key.rpartition("/")
            found.setdefault(begin.removeprefix("runs/one/"), set()).add(name)
        return found

    def env(self, port=None, **more):
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}", "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": SECRET, "MILLRACE_HTTP_BACKOFF": "0.01"} | more

    def train(self, *arguments, code=0, port=None, **env):
        done = training.train("--shards", self.shards, "--epochs", 4, *arguments, env=self.env(port, **env))
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn(SECRET, done.stderr + done.stdout)
        self.stderr = done.stderr
        return done

    def gate(self, instead):
        return self.enterContext(Gate(self.port, instead))

    FILES = {"model.safetensors", "optimizer.safetensors", "data-rank0.json", "train.json", "shards.txt", "claim"}

    def test_a_run_is_resumed_as_if_it_had_not_ended(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train("--max-steps", 14, "--metrics", whole, "--metrics-keys")
        stored = ["--checkpoint-dir", self.url, "--checkpoint-every", 3, "--metrics", parts, "--metrics-keys"]
        self.train(*stored, "--max-steps", 8)
        self.assertEqual(self.objects(), {f"step-{n:010}": self.FILES for n in (6, 8)})
        self.train("--checkpoint-dir", self.url, "--max-steps", 9, code=2)
        self.assertIn("holds 2 checkpoints of an earlier run", self.stderr)
        self.train(*stored, "--max-steps", 14, "--resume", "auto", "--keep", 1)
        self.assertEqual(steps(parts), steps(whole))
        self.assertEqual(training.trained_keys(parts), training.trained_keys(whole))
        # What it was resumed from stays.
        self.assertEqual(set(self.objects()), {"step-0000000008", "step-0000000014"})
        shown = harness.run("millrace", "state", "show", self.url, env=self.env())
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("step-0000000014", shown.stdout)
        # A copy in a folder is a checkpoint, too.
        copy = self.folder / "copy"
        copy.mkdir()
        self.boto("for k in keys():\n    if '/step-0000000014/' in k:\n"
                  "        s.download_file(bucket, k, str(pathlib.Path(sys.argv[2]) / k.rsplit('/')[-1]))\n", copy)
        self.train("--resume", copy, "--max-steps", 15, "--checkpoint-dir", self.folder / "local")
        self.assertIn("at step 14", self.stderr)

    def test_validation_is_added_and_not_repeated(self):
        val = harness.fake(self.folder, "val", 1, 40, seed=1)
        stored = ["--checkpoint-dir", self.url, "--val-shards", val, "--max-steps", 5]
        self.train(*stored)
        self.assertEqual(self.objects(), {"step-0000000005": self.FILES | {"validation.json"}})
        self.train(*stored, "--resume", "auto")
        self.assertIn("validated already", self.stderr)

    def test_a_kill_in_mid_upload_leaves_the_one_before(self):
        reached, held = threading.Event(), threading.Event()
        self.addCleanup(held.set)

        def hold(request):
            if "step-0000000004/model" in request.path and "partNumber=2" in request.path:
                reached.set()
                held.wait()
            return None
        gate = self.gate(hold)
        big = ["--shards", self.shards, "--model", "resnet18", "--size", 33, "--batch-size", 2, "--lanes", 1]
        stored = ["--checkpoint-dir", self.url, "--checkpoint-every", 2]
        metrics = ["--metrics-keys", "--metrics"]
        whole = self.folder / "whole"
        self.assertEqual(training.train(*big, *metrics, whole, "--max-steps", 6).returncode, 0)
        parts = self.folder / "parts"
        process = training.start(*big, *stored, *metrics, parts, "--max-steps", 6, env=self.env(gate.port))
        try:
            self.assertTrue(reached.wait(120))
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        found = self.objects()
        self.assertEqual(found["step-0000000002"], self.FILES)
        self.assertNotIn("train.json", found.get("step-0000000004", ()))
        done = training.train(*big, *stored, *metrics, parts, "--max-steps", 6, "--resume", "auto", env=self.env())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("at step 2", done.stderr)
        self.assertEqual(training.trained_keys(parts), training.trained_keys(whole))
        # The remains of the upload may be another run's: they stay, are named, and do not count. What counts is whole.
        self.assertIn("step-0000000004 of uploads that did not end", done.stderr)
        left = self.objects()
        self.assertNotIn("train.json", left.pop("step-0000000004"))
        self.assertEqual(left, {name: self.FILES for name in ("step-0000000002", "step-0000000004-2", "step-0000000006")})

    def test_a_kill_at_any_request_leaves_a_checkpoint_that_is_resumed_exactly(self):
        whole = self.folder / "whole"
        self.train("--max-steps", 11, "--metrics", whole)
        for seed in training.seeds(3, "TEST_SEEDS"):
            chosen = random.Random(seed)
            url, parts = f"{self.url}/{seed}", self.folder / f"parts{seed}"
            # After the two requests of the check at the start; a checkpoint takes four, and removing one as many.
            at, is_passed_on = chosen.randrange(3, 24), chosen.random() < 0.5
            reached, killed, count = threading.Event(), threading.Event(), itertools.count(1)
            self.addCleanup(killed.set)

            def hold(request):
                if request.command not in ("PUT", "DELETE") or next(count) != at:
                    return None
                if is_passed_on:
                    request.passed_on(request.body)
                reached.set()
                killed.wait()
                return 500, b""
            gate = self.gate(hold)
            stored = ["--shards", self.shards, "--epochs", 4, "--checkpoint-dir", url, "--checkpoint-every", 2, "--max-steps", 11,
                      "--metrics", parts]
            process = training.start(*stored, env=self.env(gate.port))
            self.assertTrue(reached.wait(120), (seed, at))
            process.kill()
            process.communicate()
            killed.set()
            done = training.train(*stored, *(["--resume", "auto"] if parts.exists() else []), env=self.env())
            self.assertEqual(done.returncode, 0, (seed, at, done.stderr))
            self.assertEqual(steps(parts), steps(whole), (seed, at))
            found = {name: files for name, files in self.objects().items() if name.startswith(f"{seed}/step")}
            whole_ones = {frozenset(files) for files in found.values() if "train.json" in files}
            self.assertEqual(whole_ones, {frozenset(self.FILES)}, (seed, at))

    def test_a_store_that_fails_ends_all_ranks(self):
        for status, body, code, said in ((403, b"<Error><Code>AccessDenied</Code></Error>", 4, "403 (AccessDenied)"),
                                         (500, b"", 4, "the server answered 500")):
            gate = self.gate(lambda r, s=status, b=body: (s, b) if r.command == "PUT" and "model" in r.path else None)
            self.train("--nproc", 2, "--checkpoint-dir", f"{self.url}/{status}", "--max-steps", 4, port=gate.port, code=code,
                       MILLRACE_HTTP_ATTEMPTS="2")
            self.assertIn(said, self.stderr)
            self.assertIn(f"{self.url}/{status}/step-0000000004/model.safetensors", self.stderr)
        gate = self.gate(lambda r: (403, b"") if r.command == "PUT" else None)
        self.train("--checkpoint-dir", self.url, "--max-steps", 4, port=gate.port, code=4)
        self.assertIn(f"{self.url}/.trial-", self.stderr)  # before the first step

    def test_what_cannot_be_written_is_refused_by_name(self):
        for url, said in (("http://127.0.0.1/x", "use a folder, or a store: s3://, gs://, az://"),
                          ("hf://datasets/a/b", "millrace does not write to hf://"),
                          ("ais://bucket/x", "millrace does not write to ais://"), ("s3:///x", "names no bucket"),
                          ("s3://bucket/x?versionId=1", "nor a '?'"),
                          ("s3:/bucket/x", "write s3://bucket/x, or ./s3:/bucket/x for a folder"),
                          ("s3://me:hidden@bucket/x", "neither a password")):
            self.train("--checkpoint-dir", url, "--max-steps", 1, code=2)
            self.assertIn(said, self.stderr)
            self.assertNotIn("hidden", self.stderr)

    def test_going_back_sets_the_newer_ones_aside(self):
        stored = ["--checkpoint-dir", self.url, "--checkpoint-every", 3]
        self.train(*stored, "--max-steps", 9, "--keep", 3)
        back = [*stored, "--resume", f"{self.url}/step-0000000003", "--max-steps", 7, "--keep", 3]
        self.train(*back, code=2)
        self.assertIn("--overwrite sets them aside", self.stderr)
        before = self.objects()
        self.train(*back, "--overwrite")
        after = self.objects()
        for name in ("step-0000000006", "step-0000000009"):
            self.assertEqual(after[name], before[name] | {"set-aside"})
        self.assertEqual(set(after) - set(before), {"step-0000000006-2", "step-0000000007"})
        self.train(*stored, "--resume", "auto", "--max-steps", 10)
        self.assertIn("step-0000000007 at step 7", self.stderr)

    def test_the_checkpoint_to_go_back_to_may_be_spelled_otherwise(self):
        stored = ["--checkpoint-dir", "s3://bucket/runs/one//", "--checkpoint-every", 3, "--keep", 4]
        self.train(*stored, "--max-steps", 6)
        self.train(*stored, "--resume", "S3://bucket/runs/one/step-0000000003/", "--max-steps", 5, "--overwrite")
        aside = {name for name, files in self.objects().items() if "set-aside" in files}
        self.assertEqual(aside, {"step-0000000006"})

    def test_a_kill_while_they_are_set_aside_leaves_the_beginning_of_the_run(self):
        stored = ["--checkpoint-dir", self.url, "--checkpoint-every", 2]
        self.train(*stored, "--max-steps", 8, "--keep", 4)
        reached, killed = threading.Event(), threading.Event()
        self.addCleanup(killed.set)
        count = itertools.count(1)

        def hold(request):
            if request.command == "PUT" and "/set-aside" in request.path and next(count) == 3:
                reached.set()
                killed.wait()
                return 500, b""
            return None
        gate = self.gate(hold)
        process = training.start("--shards", self.shards, "--epochs", 4, *stored, "--max-steps", 5, "--overwrite",
                                 env=self.env(gate.port))
        self.assertTrue(reached.wait(120))
        process.kill()
        process.communicate()
        killed.set()
        counting = [name for name, files in self.objects().items() if "set-aside" not in files]
        self.assertEqual(sorted(counting), ["step-0000000002", "step-0000000004"])
        self.train(*stored, "--resume", "auto", "--max-steps", 5)
        self.assertIn("step-0000000004 at step 4", self.stderr)

    def test_what_else_is_below_the_prefix_is_not_listed_and_connections_are_shared(self):
        self.boto("for i in range(3): s.put_object(Bucket=bucket, Key=f'runs/one/data/{i}', Body=b'')")
        asked = []
        gate = self.gate(lambda r: asked.append((r.command, r.path)))
        self.train("--checkpoint-dir", self.url, "--checkpoint-every", 2, "--max-steps", 8, "--keep", 1, port=gate.port)
        listings = [path for _, path in asked if "list-type=2" in path]
        self.assertTrue(listings)
        for path in listings:
            self.assertIn("prefix=runs%2Fone%2Fstep-", path)
        # The check at the start, and for each of four checkpoints its writing and the removal of an older one.
        self.assertLess(gate.connections, 16, asked)
        self.assertGreater(len(asked), 60)

    def test_a_damaged_one_is_passed_over(self):
        stored = ["--checkpoint-dir", self.url, "--checkpoint-every", 3]
        self.train(*stored, "--max-steps", 6)
        self.boto("k = [k for k in keys() if 'step-0000000006/model' in k][0]\n"
                  "b = bytearray(s.get_object(Bucket=bucket, Key=k)['Body'].read())\nb[-1] ^= 1\n"
                  "s.put_object(Bucket=bucket, Key=k, Body=bytes(b))")
        self.train(*stored, "--max-steps", 7, "--resume", f"{self.url}/step-0000000006", code=5)
        self.assertIn("checksum differs", self.stderr)
        self.train(*stored, "--max-steps", 7, "--resume", "auto")
        self.assertIn("step-0000000003 at step 3", self.stderr)
        self.assertIn("set-aside", self.objects()["step-0000000006"])

    def test_another_run_there_ends_this_one(self):
        other = "s3://bucket/runs/other"
        self.train("--checkpoint-dir", other, "--max-steps", 5)
        copied = threading.Event()

        def copy(request):
            if request.command == "PUT" and "one/step-0000000003/train.json" in request.path:
                self.boto("for k in keys():\n    if '/other/' in k:\n        s.copy_object(Bucket=bucket, "
                          "CopySource={'Bucket': bucket, 'Key': k}, Key=k.replace('/other/', '/one/'))\n")
                copied.set()
            return None
        gate = self.gate(copy)
        self.train("--checkpoint-dir", self.url, "--checkpoint-every", 3, "--max-steps", 9, port=gate.port, code=2)
        self.assertTrue(copied.is_set())
        self.assertIn("another run writes its checkpoints here", self.stderr)
        self.assertIn(f"{self.url}/step-0000000005", self.stderr)

    def test_what_others_have_there_stays(self):
        name = "runs/one/step-0000000003/model.safetensors"
        self.boto("s.put_object(Bucket=bucket, Key=sys.argv[2], Body=b'mine')", name)
        self.train("--checkpoint-dir", self.url, "--max-steps", 3, "--keep", 1)
        self.assertEqual(self.boto("print(s.get_object(Bucket=bucket, Key=sys.argv[2])['Body'].read().decode())", name), "mine\n")
        self.assertEqual(self.objects(), {"step-0000000003": {"model.safetensors"}, "step-0000000003-2": self.FILES})

    def test_two_processes_of_a_run_leave_whole_checkpoints(self):
        stored = ["--checkpoint-dir", self.url, "--checkpoint-every", 2, "--keep", 1, "--max-steps", 6]
        for held_at in ("model", "train.json"):
            self.setUp()
            reached, go_on = threading.Event(), threading.Event()
            self.addCleanup(go_on.set)

            def hold(request, at=held_at, reached=reached, go_on=go_on):
                if request.command == "PUT" and f"step-0000000006/{at}" in request.path:
                    reached.set()
                    go_on.wait()
                return None
            gate = self.gate(hold)
            first = training.start("--shards", self.shards, "--epochs", 4, *stored, env=self.env(gate.port))
            self.assertTrue(reached.wait(120))
            self.train(*stored, "--resume", "auto")
            go_on.set()
            said = first.communicate(timeout=120)
            self.assertIn(first.returncode, (0, 2), said)
            for files in self.objects().values():
                if "train.json" in files:
                    self.assertEqual(files, self.FILES)
            self.train(*stored[:-1], 7, "--resume", "auto")
            self.assertIn("at step 6", self.stderr)

    def test_ranks_are_started_again_from_the_store(self):
        reached, killed = threading.Event(), threading.Event()
        self.addCleanup(killed.set)

        def hold(request):
            if request.command == "PUT" and "step-0000000009/model" in request.path:  # the one before is saved
                reached.set()
                killed.wait()
            return None
        gate = self.gate(hold)
        metrics = self.folder / "m"
        process = training.start("--shards", self.shards, "--nproc", 2, "--restarts", 1, "--checkpoint-dir", self.url,
                                 "--checkpoint-every", 3, "--max-steps", 15, "--metrics", metrics, "--lanes", 2, "--timeout", 60,
                                 env=self.env(gate.port))
        try:
            self.assertTrue(reached.wait(120))
            for rank in training.children_of(process.pid):
                os.kill(rank, signal.SIGKILL)
            killed.set()
            told = process.communicate(timeout=120)[1]
        finally:
            process.terminate()
        self.assertEqual(process.returncode, 0, told)
        self.assertIn("from the newest checkpoint", told)
        self.assertIn("step-0000000006 at step 6", told)
        self.assertEqual(set(steps(metrics)), set(range(1, 16)))


if __name__ == "__main__":
    unittest.main()
