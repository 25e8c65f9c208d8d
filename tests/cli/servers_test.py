"""Servers that are not what they are taken for, names that are not found, and what users read then."""

import json
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.cli.network_test import CANARY, certificate  # noqa: E402
from tests.support import harness  # noqa: E402
from tests.support.fault_server import FaultServer  # noqa: E402
from tests.support.harness import Answering, Folder, Nginx, cat, run  # noqa: E402

CONTENT = random.Random(8).randbytes(1_000_000)
PATIENT = {"MILLRACE_HTTP_ATTEMPTS": "6", "MILLRACE_HTTP_BACKOFF": "0.5"}


class Mistakes(unittest.TestCase):
    """What the first request shows is said at once, not after six attempts."""

    def said(self, *arguments, env=None, code=4):
        done = cat(*arguments, env=PATIENT | (env or {}))
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn(b"attempt", done.stderr)
        self.assertNotIn(b"retrying in", done.stderr)
        return done.stderr.decode()

    def test_https_to_a_port_without_tls(self):
        with Folder() as folder, Nginx(folder, folder) as server:
            said = self.said(f"https://127.0.0.1:{server.port}/a.tar")
            self.assertIn("does not speak TLS", said)
            self.assertIn("write http://", said)

    def test_http_to_a_port_with_tls(self):
        with Folder() as folder:
            (folder / "a.tar").write_bytes(CONTENT)
            tls = certificate(folder, "self")
            port = harness.free_port()
            with Nginx(folder, folder, f"listen 127.0.0.1:{port} ssl; ssl_certificate {tls[0]}; ssl_certificate_key {tls[1]};"):
                said = self.said(f"http://127.0.0.1:{port}/a.tar")
                self.assertIn("this port speaks TLS", said)
                self.assertIn("write https://", said)

    def test_a_port_that_is_none(self):
        for url in ("http://127.0.0.1:99999/a.tar", "http://127.0.0.1:0/a.tar", "http://127.0.0.1:8a/a.tar"):
            self.assertIn("from 1 to 65535", self.said(url, code=2))

    def test_an_authority_that_is_not_there(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            said = self.said(f"https://127.0.0.1:{server.port}/plain/a.tar", env={"MILLRACE_CA_FILE": "/no/such.pem"}, code=2)
        self.assertIn("MILLRACE_CA_FILE cannot be read, at /no/such.pem (No such file or directory)", said)

    def test_bench_http_of_a_file(self):
        with Folder() as folder:
            (folder / "a.tar").write_bytes(CONTENT)
            done = run("millrace", "bench", "http", folder / "a.tar", "--seconds", "1")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("not an object on a server", done.stderr)

    def test_secrets_are_in_no_error_and_in_no_list_of_variables(self):
        for url in (f"http://us:{CANARY}/x@host/a", f"http://us:a/{CANARY}@host/a", f"http:/us:{CANARY}@host/a"):
            self.assertNotIn(CANARY, cat(url).stderr.decode())
        env = {"MILLRACE_HTTP_HEADERS": f"Authorization: Bearer {CANARY}|X-Other: {CANARY}",
               "MILLRACE_REWRITE": f"s3://b/=http://us:{CANARY}@h/b/;gs://c/=http://h/?sig={CANARY}"}
        for variable, url in (("AIS_ENDPOINT", "ais://b/a.tar"), ("HF_ENDPOINT", "hf://datasets/a/b/a.tar"),
                              ("AWS_ENDPOINT_URL", "s3://b/a.tar"), ("AZURE_STORAGE_BLOB_ENDPOINT", "az://c/a.tar")):
            said = cat(url, env={variable: f"AccountKey={CANARY}", "AZURE_STORAGE_ACCOUNT": "a"}).stderr.decode()
            self.assertIn(f"usage: {variable} is not an http: or https: URL", said)
            self.assertNotIn(CANARY, said)
        plain = run("millrace", "env", env=env).stdout
        listed = run("millrace", "env", "--json", env=env).stdout
        for out in (plain, listed):
            self.assertNotIn(CANARY, out)
            self.assertIn("Authorization: ...|X-Other: ...", out)
            self.assertIn("s3://b/=http://h/b/", out)
        self.assertEqual(run("millrace", "env", env={"MILLRACE_HTTP_HEADERS": "X"}).returncode, 0)
        for rules in (f"https://x/=https://us:{CANARY};s@h/", f"https://us:p={CANARY}@h/=https://x/", f"a=b;https://us:p;{CANARY}@h/=c"):
            self.assertNotIn(CANARY, run("millrace", "env", env={"MILLRACE_REWRITE": rules}).stdout)
        for rules in (f"a:/=pipe:curl -H x;{CANARY}", f"a:/=pipe:cat;{CANARY}=b", f"a:/=PIPE:cat;b;{CANARY}", f"pipe:cat;{CANARY}=b",
                      f"a:/=http://h/?sig=x;{CANARY}=y", f"a:/=/mnt/b?x;{CANARY}", f"a:/=http://h/b#x;{CANARY}",
                      f"a:/=http://h/b%3Fsig=x;{CANARY}"):
            listed = run("millrace", "env", env={"MILLRACE_REWRITE": f"gs://c/=/mnt/c/;{rules}"}).stdout
            self.assertNotIn(CANARY, listed, rules)
            self.assertRegex(listed, r"gs://c/=/mnt/c/;.*;\.\.\.\s", rules)
        self.assertIn("a:/=http://h:80/", run("millrace", "env", env={"MILLRACE_REWRITE": "a:/=http://h:80/"}).stdout)

    def test_secrets_are_in_no_usage_error_and_in_no_setting_that_is_refused(self):
        url = f"http://us:{CANARY}@host/x.tar?X-Amz-Signature={CANARY}"
        for words in ([url], ["cache", "ls", url], ["env", url], ["bench", url], ["bench", "http", "--connections", url],
                      ["bench", "http", f"--connections={url}"], ["help", url], ["sim", url], ["ls", "--contact-sheet", url, "x"],
                      ["verify", "--require", f"{url},", "x.tar"], ["env", f"--{url}"], ["cat", f"http//us:{CANARY}@host/x"]):
            done = run("millrace", *words, "--json")
            self.assertNotEqual(done.returncode, 0, words)
            self.assertNotIn(CANARY, done.stdout + done.stderr, words)
        said = run("millrace", "cache", "ls", url).stderr
        self.assertIn("does not take the argument 'http://host/x.tar?...'; see `millrace cache ls --help`", said)
        for name in ("MEMORY", "HTTP_CONNECTIONS", "LOG", "REWRITE"):
            done = run("millrace", "cat", "x", env={f"MILLRACE_{name}": url})
            self.assertNotEqual(done.returncode, 0, name)
            self.assertNotIn(CANARY, done.stderr, name)
        for name in ("CACHE", "HTTP_TOKENS", "REWRITE"):
            for more in ([], ["--json"]):
                done = run("millrace", "env", *more, env={f"MILLRACE_{name}": url})
                self.assertIn("http://host/x.tar?...", done.stdout, name)
                self.assertNotIn(CANARY, done.stdout, name)

    def test_few_descriptors_are_waited_for(self):
        if harness.has_ubsan():
            self.skipTest("UBSan's check of virtual calls needs descriptors of its own")
        with Folder() as folder:
            for i in range(60):
                (folder / f"{i}.tar").write_bytes(CONTENT)
            with Nginx(folder, folder) as server:
                # One I/O thread's own connections, and what those of four keep from each other.
                for threads in ("1", "4"):
                    # Who waited for a connection's patience to end would outlast the run.
                    env = harness.CLEAN | {"MILLRACE_IO_THREADS": threads, "MILLRACE_HTTP_CONNECT_TIMEOUT": "600"}
                    done = subprocess.run(
                        [harness.BIN / "millrace", "bench", "http", f"{server.url}/{{0..59}}.tar", "--connections", "60",
                         "--once", "--json"], env=env, capture_output=True, text=True, timeout=120,
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (26, 26)))
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(json.loads(done.stdout.splitlines()[-1])["bytes"], 60 * len(CONTENT))


class Quoted(unittest.TestCase):
    """What is in variables is not shown where it may be a secret."""

    def test_secrets_in_the_place_of_any_variable_are_not_quoted(self):
        schemes = {"AWS": "s3://b/k", "GOOGLE": "gs://b/k", "STORAGE": "gs://b/k", "GCE": "gs://b/k", "AZURE": "az://c/k",
                   "AIS": "ais://b/k", "HF": "hf://datasets/o/n/k"}
        listed = json.loads(run("millrace", "env", "--json").stdout)
        quiet = {"MILLRACE_HTTP_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent",
                 "AZURE_STORAGE_ACCOUNT": "account", "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
                 "AZURE_STORAGE_BLOB_ENDPOINT": "http://127.0.0.1:9", "AIS_ENDPOINT": "http://127.0.0.1:9", "HF_ENDPOINT": "http://127.0.0.1:9"}
        with Folder() as folder:
            for name in [*listed["also_read"], *(v["name"] for v in listed["variables"])]:
                url = schemes.get(name.split("_")[0], "http://127.0.0.1:9/k")
                for value in (f"http://us:{CANARY}@127.0.0.1:9/x?sig={CANARY}", f"https://127.0.0.1:9/?sig={CANARY}"):
                    env = quiet | {name: value}
                    if name == "AZURE_STORAGE_ACCOUNT":
                        del env["AZURE_STORAGE_BLOB_ENDPOINT"]
                    done = run("millrace", "cat", url, "--json", env=env, cwd=folder)
                    with self.subTest(name=name, value=value):
                        self.assertNotIn(CANARY, done.stdout + done.stderr)
                        self.assertEqual([*folder.iterdir()], [])

    def test_secrets_in_the_place_of_their_files_names_are_not_quoted(self):
        listed = json.loads(run("millrace", "env", "--json").stdout)
        names = [n for n in [*listed["also_read"], *(v["name"] for v in listed["variables"])]
                 if re.search("(?<!PRO)FILE|CRED|TOKEN|KEY|CERT|NETRC|SECRET|SAS|PASS", n)]
        self.assertGreater(len(names), 15, names)
        more = {"MILLRACE_HTTP_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent",
                "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/",
                "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
                "AZURE_STORAGE_ACCOUNT": "account", "AZURE_STORAGE_BLOB_ENDPOINT": "http://127.0.0.1:9", "HF_ENDPOINT": "http://127.0.0.1:9",
                "AIS_ENDPOINT": "http://127.0.0.1:9"}
        pem = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"
        for name in names:
            for value in (CANARY, f"eyJ/{CANARY}=", pem, json.dumps({"type": "service_account", "private_key": pem})):
                env = more | {name: f"127.0.0.1={value}" if name.endswith("HTTP_TOKENS") and "eyJ" not in value else value}
                urls = {"AWS": "s3://b/k", "GOOGLE": "gs://b/k", "AZURE": "az://c/k", "AIS": "ais://b/k", "HF": "hf://datasets/o/n/k"}
                for words in (["env"], ["env", "--json"], ["cat", urls.get(name.split("_")[0], "https://127.0.0.1:9/k")],
                              ["cat", "--json", "http://127.0.0.1:9/k"]):
                    done = run("millrace", *words, env=env)
                    with self.subTest(name=name, value=value, words=words):
                        self.assertNotIn(CANARY, done.stdout + done.stderr)


@unittest.skipUnless((harness.BIN / "slow_names.so").exists(), "slow_names.so is not built here")
class Names(unittest.TestCase):
    env = {"LD_PRELOAD": str(harness.BIN / "slow_names.so")}

    def asked(self, host, **env):
        done = cat(f"http://{host}/a.tar", env=self.env | env)
        self.assertEqual(done.returncode, 4)
        return done.stderr.decode()

    def test_a_resolver_that_never_answers_ends_by_its_deadline(self):
        said = self.asked("never.test", MILLRACE_HTTP_ATTEMPTS="3", MILLRACE_HTTP_CONNECT_TIMEOUT="0.3")
        self.assertIn("timed_out: no address for never.test in time (attempt 3 of 3)", said)
        self.assertEqual(said.count("slow_names: asked"), 1)  # the one that is under way is waited for

    def test_and_by_a_stop(self):
        for program in (["cat"], ["bench", "http"]):
            process = harness.start("millrace", *program, "http://never.test/a.tar", env=self.env | {
                "MILLRACE_HTTP_CONNECT_TIMEOUT": "600"}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
            self.assertIn(b"asked", process.stderr.readline())
            process.send_signal(signal.SIGTERM)
            process.wait(60)  # long before the look-up's deadline
            process.stderr.close()

    def test_a_name_that_is_not_there_is_asked_for_once(self):
        said = self.asked("gone.test", MILLRACE_HTTP_ATTEMPTS="6")
        self.assertEqual(said.count("slow_names: asked"), 1)
        self.assertIn("connect_failed: cannot find the address of gone.test", said)
        self.assertNotIn("attempt", said)

    def test_one_that_is_not_there_for_the_moment_is_asked_for_again(self):
        said = self.asked("later.test", MILLRACE_HTTP_ATTEMPTS="3")
        self.assertEqual(said.count("slow_names: asked"), 3)
        self.assertIn("attempt 3 of 3", said)

    def test_a_name_is_found_while_another_is_not(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            done = run("millrace", "bench", "http", "http://never.test/a.tar",
                       f"http://inside.test:{server.port}/plain/a.tar", "--connections", "2", "--once",
                       env=self.env | harness.IMPATIENT)
            self.assertEqual(done.returncode, 4)
            self.assertTrue(server.requests("/plain/"))


class Redirects(unittest.TestCase):
    def test_none_from_outside_to_what_is_private(self):
        """The server outside is played by a proxy."""
        seen = []

        def answer(request):
            outside = request.path.startswith("http://public.test/")
            if not outside:
                seen.append(request.headers["Host"])
            request.send_response(302 if outside else 200)
            if outside:
                request.send_header("Location", location)
            request.send_header("Content-Length", "0" if outside else "6")
            request.end_headers()
            if not outside:
                request.wfile.write(b"secret")

        with Answering(answer) as server:
            hosts = ["127.0.0.1", "localhost", "localhost.", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]"]
            env = {"http_proxy": f"http://127.0.0.1:{server.port}", "MILLRACE_HTTP_ATTEMPTS": "1"}
            if (harness.BIN / "slow_names.so").exists():
                hosts.append("inside.test")
                env["LD_PRELOAD"] = Names.env["LD_PRELOAD"]
            for host in hosts:
                location = f"http://{host}:{server.port}/latest/"
                env["no_proxy"] = host.strip("[]").rstrip(".")
                done = cat("http://public.test/a.tar", env=env)
                self.assertIn(b"private address", done.stderr, host)
                self.assertEqual((done.returncode, done.stdout, seen), (4, b"", []))
            location = f"http://inside.test:{server.port}/latest/" if "inside.test" in hosts else f"http://127.1:{server.port}/"
            done = cat("http://public.test/a.tar", env=env | {
                "MILLRACE_HTTP_PRIVATE_REDIRECTS": "on", "no_proxy": location.split("/")[2].split(":")[0]})
            self.assertEqual(done.stdout, b"secret", done.stderr)


class Unnamed(unittest.TestCase):
    """A server with ranges that says nothing by which to know an object's version."""

    def setUp(self):
        self.size = 40 << 20
        self.log = []
        self.now = b"1"
        self.after_first = None

    def answer(self, request):
        first, last = 0, self.size - 1
        wanted = request.headers.get("Range")
        if wanted:
            first, last = (int(n) if n else last for n in wanted.removeprefix("bytes=").split("-"))
            last = min(last, self.size - 1)
        content = self.now
        self.log.append((request.command, wanted, content))
        if request.command == "GET" and self.after_first:
            self.now = self.after_first
        request.send_response(206 if wanted else 200)
        if wanted:
            request.send_header("Content-Range", f"bytes {first}-{last}/{self.size}")
        request.send_header("Content-Length", str(last - first + 1))
        request.end_headers()
        try:
            if request.command == "GET":
                request.wfile.write(content * (last - first + 1))
        except OSError:
            pass  # it has seen enough

    def test_an_object_that_is_replaced_while_it_is_read_comes_as_one(self):
        with Answering(self.answer) as server:
            self.after_first = b"2"
            done = cat(f"http://127.0.0.1:{server.port}/a.tar")
            self.assertEqual((done.returncode, done.stdout == b"2" * self.size), (0, True), done.stderr)
            self.assertEqual([wanted for _, wanted, _ in self.log][1:], [None])

    def test_and_is_not_cached(self):
        with Answering(self.answer) as server, Folder() as folder:
            for self.now in (b"1", b"2"):
                done = cat(f"http://127.0.0.1:{server.port}/a.tar", env={"MILLRACE_CACHE": str(folder / "cache")})
                self.assertEqual(done.stdout == self.now * self.size, True, done.stderr)


if __name__ == "__main__":
    unittest.main()
