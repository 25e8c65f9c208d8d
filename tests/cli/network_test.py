"""TLS, proxies, secrets and `pipe:`, as users meet them."""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.fault_server import FaultServer  # noqa: E402
from tests.support.harness import Folder, Nginx, cat, sha  # noqa: E402

CONTENT = random.Random(7).randbytes(3_000_000)
CANARY = "canary7c3f"


def certificate(folder, name, subject="localhost", days="30", issuer=None, extra=()):
    """A key and a certificate; self-signed without an issuer."""
    key, cert, request = (folder / f"{name}.{end}" for end in ("key", "pem", "csr"))
    def openssl(*command):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    names = f"subjectAltName=DNS:{subject}" + (",IP:127.0.0.1" if subject == "localhost" else "")
    if issuer is None:
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", days, "-keyout", key, "-out", cert, "-subj",
                f"/CN={subject}", "-addext", names, *extra)
        return cert, key
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={subject}")
    (folder / "ext").write_text(names)
    if days == "past":  # `openssl x509` of OpenSSL 3.0 cannot date back
        (folder / "index").write_text("")
        (folder / "serial").write_text("01")
        (folder / "ca.cnf").write_text(
            f"[ca]\ndefault_ca=c\n[c]\ndatabase={folder}/index\nserial={folder}/serial\nnew_certs_dir={folder}\n"
            "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
        openssl("ca", "-batch", "-config", folder / "ca.cnf", "-cert", issuer[0], "-keyfile", issuer[1], "-in", request,
                "-out", cert, "-startdate", "20200101000000Z", "-enddate", "20200201000000Z", "-extfile", folder / "ext",
                "-notext")
    else:
        openssl("x509", "-req", "-in", request, "-CA", issuer[0], "-CAkey", issuer[1], "-CAcreateserial", "-out", cert,
                "-days", days, "-extfile", folder / "ext")
    return cert, key


class Tls(unittest.TestCase):
    def test_an_own_authority_and_the_four_messages(self):
        with Folder() as folder:
            authority = certificate(folder, "ca", "our authority", extra=("-addext", "keyUsage=keyCertSign"))
            trusting = {"MILLRACE_CA_FILE": str(authority[0])}
            good = certificate(folder, "good", issuer=authority)
            cases = [("good", good, trusting, None),
                     ("untrusted", good, {}, "is untrusted"),
                     ("expired", certificate(folder, "old", days="past", issuer=authority), trusting, "has expired"),
                     ("wrong host", certificate(folder, "other", "elsewhere.example", issuer=authority), trusting,
                      "is for another host"),
                     ("self-signed", certificate(folder, "self"), trusting, "is self-signed")]
            for name, tls, env, message in cases:
                with self.subTest(name), FaultServer({"a.tar": CONTENT}, tls=tls) as server:
                    done = cat(f"{server.url}/plain/a.tar", env=env)
                    if message is None:
                        self.assertEqual(sha(done.stdout), sha(CONTENT), done.stderr)
                        continue
                    self.assertEqual(done.returncode, 4)
                    self.assertIn("untrusted: the certificate", done.stderr.decode())
                    self.assertIn(message, done.stderr.decode())
                    self.assertEqual(done.stdout, b"")

    def test_a_cut_without_goodbye_is_resumed_and_a_downgrade_refused(self):
        with Folder() as folder:
            tls = certificate(folder, "self")
            with FaultServer({"a.tar": CONTENT}, tls=tls) as server:
                env = {"MILLRACE_CA_FILE": str(tls[0])}
                self.assertEqual(sha(cat(f"{server.url}/truncate/1000000/a.tar", env=env).stdout), sha(CONTENT))
                done = cat(f"{server.url}/redirectdown/a.tar", env=env)
                self.assertIn("from https to http", done.stderr.decode())

    def test_connections_made_at_once_read_the_certificates_once(self):
        """From a pipe, which gives them once."""
        with Folder() as folder:
            tls, pipe = certificate(folder, "self"), folder / "pipe"
            os.mkfifo(pipe)
            objects = {f"{i}.tar": CONTENT for i in range(8)}
            with FaultServer(objects, tls=tls) as server:
                urls = [f"{server.url}/plain/{name}" for name in objects]
                process = harness.start("millrace", "bench", "http", *urls, "--connections", 8, "--once",
                                        env={"MILLRACE_CA_FILE": str(pipe), "MILLRACE_IO_THREADS": "1"}, stdout=subprocess.DEVNULL)
                self.addCleanup(process.kill)
                with harness.writer_of_pipe(pipe) as writer:
                    writer.write(tls[0].read_bytes())
                self.assertEqual(process.wait(60), 0)

    def test_a_client_certificate_is_shown(self):
        with Folder() as folder:
            tls = certificate(folder, "self")
            mine = certificate(folder, "mine", "me")
            (folder / "a.tar").write_bytes(CONTENT)
            port = harness.free_port()
            extra = (f"listen 127.0.0.1:{port} ssl; ssl_certificate {tls[0]}; ssl_certificate_key {tls[1]}; "
                     f"ssl_client_certificate {mine[0]}; ssl_verify_client on;")
            with Nginx(folder, folder, extra):
                env = {"MILLRACE_CA_FILE": str(tls[0])}
                self.assertEqual(cat(f"https://127.0.0.1:{port}/a.tar", env=env).returncode, 4)
                env |= {"MILLRACE_CLIENT_CERT": str(mine[0]), "MILLRACE_CLIENT_KEY": str(mine[1])}
                self.assertEqual(sha(cat(f"https://127.0.0.1:{port}/a.tar", env=env).stdout), sha(CONTENT))


@unittest.skipUnless(shutil.which("tinyproxy"), "no tinyproxy: ./setup --peers installs it")
class Proxy(unittest.TestCase):
    def test_http_and_https_by_a_real_proxy(self):
        with Folder() as folder:
            port = harness.free_port()
            log = folder / "log"
            (folder / "conf").write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 60\nLogFile \"{log}\"\nLogLevel Info\n"
                                         f"PidFile \"{folder}/pid\"\nMaxClients 50\nBasicAuth us {CANARY}\n")
            proxy = subprocess.Popen(["tinyproxy", "-d", "-c", folder / "conf"], stdout=subprocess.DEVNULL)
            try:
                harness.wait_until(lambda: log.exists() and "Accepting" in log.read_text() or
                                   log.exists() and "listen" in log.read_text().lower(), 20)
                tls = certificate(folder, "self")
                by = f"http://us:{CANARY}@127.0.0.1:{port}"
                env = {"http_proxy": by, "https_proxy": by, "MILLRACE_CA_FILE": str(tls[0])}
                for encrypted in (None, tls):
                    with FaultServer({"a.tar": CONTENT}, tls=encrypted) as server:
                        done = cat(f"{server.url}/truncate/1000000/a.tar", env=env)
                        self.assertEqual(sha(done.stdout), sha(CONTENT), done.stderr)
                        seen = log.read_text()
                        self.assertIn(f"127.0.0.1:{server.port}", seen)
                        direct = cat(f"{server.url}/plain/a.tar", env=env | {"no_proxy": "127.0.0.1"})
                        self.assertEqual(sha(direct.stdout), sha(CONTENT))
                done = cat(f"{server.url}/plain/a.tar", env=env | {"https_proxy": f"http://us:wrong@127.0.0.1:{port}"})
                self.assertIn("not_allowed: the proxy", done.stderr.decode())
            finally:
                proxy.kill()
                proxy.wait()


class Secrets(unittest.TestCase):
    def test_netrc_tokens_and_urls_show_who_asks_and_stay_at_home(self):
        import base64
        basic = "Basic " + base64.b64encode(f"us:{CANARY}".encode()).decode()
        with Folder() as folder, FaultServer({"a.tar": CONTENT}) as server:
            (folder / "netrc").write_text(f"machine 127.0.0.1 login us password {CANARY}\n")
            (folder / "token").write_text(CANARY + "\n")
            here = f"127.0.0.1:{server.port}"
            cases = [(f"http://{here}", basic, {"MILLRACE_NETRC": str(folder / "netrc")}),
                     (f"http://us:{CANARY}@{here}", basic, {}),
                     (f"http://{here}", f"Bearer {CANARY}", {"MILLRACE_HTTP_TOKENS": f"127.0.0.1={folder}/token"}),
                     (f"http://{here}", CANARY, {"MILLRACE_HTTP_HEADERS": f"Authorization: {CANARY}"})]
            for base, expected, env in cases:
                with self.subTest(expected=expected):
                    server.authorization = expected
                    env = env | {"MILLRACE_LOG": "debug", "MILLRACE_CACHE": str(folder / "cache")}
                    done = cat(f"{base}/needauth/a.tar", env=env)
                    self.assertEqual(sha(done.stdout), sha(CONTENT), done.stderr)
                    # Another host by name: nothing of it goes there.
                    server.log.clear()
                    again = cat(f"{base}/redirectother/a.tar", env=env)
                    self.assertEqual(sha(again.stdout), sha(CONTENT), again.stderr)
                    seen = [r for r in server.requests("/plain/") if "method" in r]
                    self.assertTrue(seen)
                    self.assertTrue(all(CANARY not in r["head"] and r["authorization"] is None for r in seen))
                    failed = cat(f"{base}/404/9/a.tar?token={CANARY}", env=env)
                    self.assertIn("not_found", failed.stderr.decode())
                    for out in (done, again, failed):
                        self.assertNotIn(CANARY, out.stderr.decode())
            found = subprocess.run(["grep", "-ra", CANARY, folder / "cache"], capture_output=True, text=True)
            self.assertEqual(found.stdout, "")
            self.assertFalse([p for p in (folder / "cache").iterdir() if CANARY in p.name])

    def test_a_token_that_is_written_anew_is_read_anew(self):
        with Folder() as folder, FaultServer({"a.tar": CONTENT, "b.tar": CONTENT}) as server:
            (folder / "token").write_text("one")
            server.authorization = "Bearer two"
            env = {"MILLRACE_HTTP_TOKENS": f"127.0.0.1={folder}/token"}
            self.assertIn("not_allowed", cat(f"{server.url}/needauth/a.tar", env=env).stderr.decode())
            (folder / "token").write_text("two")
            self.assertEqual(cat(f"{server.url}/needauth/a.tar", env=env).returncode, 0)


class UnixSocket(unittest.TestCase):
    def test_a_server_behind_a_socket(self):
        with Folder() as folder:
            (folder / "a.tar").write_bytes(CONTENT)
            with Nginx(folder, folder, f"listen unix:{folder}/x.sock;"):
                name = str(folder / "x.sock").replace("/", "%2F")
                self.assertEqual(sha(cat(f"http+unix://{name}/a.tar").stdout), sha(CONTENT))


class Pipe(unittest.TestCase):
    def test_only_where_allowed_and_the_native_url_is_told(self):
        done = cat("pipe:curl -s -L http://h/a.tar")
        self.assertEqual(done.returncode, 4)
        self.assertIn("use http://h/a.tar", done.stderr.decode())
        with Folder() as folder:
            (folder / "a").write_bytes(CONTENT)
            done = cat("--allow-pipe", f"pipe:cat {folder}/a")
            self.assertEqual(sha(done.stdout), sha(CONTENT))
            self.assertIn("gives the same bytes without a process", done.stderr.decode())

    def test_a_command_that_fails_after_all_its_bytes(self):
        done = cat("pipe:echo hello; echo 'no such bucket' >&2; exit 3", env={"MILLRACE_ALLOW_PIPE": "1"})
        self.assertEqual((done.returncode, done.stdout), (4, b"hello\n"))
        self.assertIn("status 3, saying 'no such bucket'", done.stderr.decode())

    def test_its_secrets_are_not_told(self):
        for blank in " ", "\t":
            command = f"curl -s -u bob:S3CRET --fail http://127.0.0.1:{harness.free_port()}/a.tar?sig=S3CRET".replace(" ", blank)
            said = cat("--allow-pipe", f"pipe:{command}").stderr.decode()
            self.assertIn("gives the same bytes without a process", said)
            self.assertNotIn("S3CRET", said)
        done = cat("--allow-pipe", "pipe:get; echo 'cannot get https://bob:S3CRET@h/x.tar?sig=S3CRET' >&2; exit 3")
        self.assertIn("saying 'cannot get https://h/x.tar", done.stderr.decode())
        self.assertNotIn("S3CRET", done.stderr.decode())

    def test_a_command_that_hangs_and_its_children_are_killed(self):
        mark = f"10{os.getpid()}"
        done = cat("--allow-pipe", f"pipe:sleep {mark} & sleep {mark}", env={"MILLRACE_READ_TIMEOUT": "0.3"})
        self.assertIn("timed_out: the command writes no data", done.stderr.decode())
        self.assertEqual(subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True).stdout, b"")

    def test_it_is_killed_when_its_reader_has_seen_enough(self):
        mark = f"11{os.getpid()}"
        command = f"pipe:yes; sleep {mark}"
        reader = subprocess.Popen(f"'{harness.BIN}/millrace' cat --allow-pipe '{command}' | head -c 100", shell=True,
                                  env=harness.CLEAN, stdout=subprocess.DEVNULL)
        self.assertEqual(reader.wait(30), 0)
        harness.wait_until(lambda: subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True).stdout == b"", 20)


if __name__ == "__main__":
    unittest.main()
