"""Object stores, as users meet them: credentials, listings, errors."""

import json
import pathlib
import random
import subprocess
import sys
import time
import unittest
import xml.sax.saxutils

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import Answering, Folder, cat, run, sha  # noqa: E402

CONTENT = random.Random(7).randbytes(3_000_000)
CANARY = "canary7c3f"


class Stores(unittest.TestCase):
    def test_credentials_that_end_in_mid_run_are_renewed(self):
        issued = []

        def answer(request):
            if request.path == "/credentials":
                issued.append(f"AKIA{len(issued)}")
                ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
                return 200, {}, json.dumps({"AccessKeyId": issued[-1], "SecretAccessKey": "s", "Token": "t",
                                            "Expiration": ends}).encode()
            # The first pair of keys is refused from its second use on.
            used = [h for p, h in store.seen if "AKIA0" in h.get("Authorization", "")]
            if "AKIA0" in request.headers.get("Authorization", "") and len(used) > 1:
                return 400, {}, b"<Error><Code>ExpiredToken</Code></Error>"
            return 200, {"ETag": '"1"'}, CONTENT[:1000]

        with Answering(answer) as store:
            env = {"AWS_ENDPOINT_URL": store.url, "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{store.url}/credentials",
                   "HOME": "/nonexistent"}
            done = cat("s3://bucket/{0..3}.tar", env=env)
            self.assertEqual(done.stdout, CONTENT[:1000] * 4, done.stderr)
            self.assertEqual(len(issued), 2)

    def test_requests_made_at_once_ask_for_credentials_once(self):
        def answer(request):
            if request.path in ("/credentials", "/token"):
                return 200, {}, json.dumps({"AccessKeyId": "AKIA", "SecretAccessKey": "s", "Token": "t", "access_token": "t"}).encode()
            return 200, {"ETag": '"1"'}, CONTENT[:1000]

        with Folder() as folder:
            for scheme in ("s3", "gs"):
                with self.subTest(scheme), Answering(answer) as store:
                    (folder / "user.json").write_text(json.dumps({"refresh_token": "r", "token_uri": f"{store.url}/token"}))
                    env = {"AWS_ENDPOINT_URL": store.url, "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{store.url}/credentials",
                           "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "user.json"), "STORAGE_EMULATOR_HOST": store.url,
                           "HOME": "/nonexistent", "MILLRACE_IO_THREADS": "1"}
                    done = run("millrace", "bench", "http", f"{scheme}://bucket/{{0..31}}.tar", "--connections", 32, "--once", env=env)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    asked = [path for path, _ in store.seen]
                    self.assertEqual(len(asked), 33, asked)
                    self.assertEqual(len([path for path in asked if path in ("/credentials", "/token")]), 1)

    def test_a_token_endpoint_that_redirects_elsewhere_is_not_followed_with_the_token(self):
        def answer(request):
            return 307, {"Location": f"http://localhost:{store.port}/elsewhere"}, b""

        with Folder() as folder, Answering(answer) as store:
            (folder / "token").write_text(CANARY)
            done = cat("s3://bucket/a.tar", env={
                "AWS_ENDPOINT_URL": store.url, "AWS_ENDPOINT_URL_STS": store.url, "AWS_ROLE_ARN": "arn:x",
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "token"), "HOME": "/nonexistent"})
            self.assertIn("is not followed with a body", done.stderr.decode())
            self.assertEqual([path for path, _ in store.seen], ["/"])

    def test_google_by_a_service_account(self):
        with Folder() as folder:
            key = subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
                                 check=True, capture_output=True, text=True).stdout

            def answer(request):
                if request.path == "/token":
                    return 200, {}, json.dumps({"access_token": "tok"} | lives).encode()
                if request.headers.get("Authorization") != "Bearer tok":
                    return 401, {}, b""
                if "list-type" in request.path:
                    return 200, {}, b"<ListBucketResult><Contents><Key>d/a b.tar</Key></Contents></ListBucketResult>"
                return 200, {"ETag": '"1"'}, request.path.encode()

            with Answering(answer) as store:
                (folder / "key.json").write_text(json.dumps({
                    "type": "service_account", "client_email": "x@y", "private_key": key, "token_uri": f"{store.url}/token"}))
                env = {"GOOGLE_APPLICATION_CREDENTIALS": str(folder / "key.json"), "STORAGE_EMULATOR_HOST": store.url}
                lives = {"expires_in": 3600}
                done = cat("gs://bucket/d/*.tar", env=env)
                self.assertEqual(done.stdout, b"/bucket/d/a%20b.tar", done.stderr)
                # Some endpoints write the number as a text. What is no number counts as an hour.
                for lives in ({"expires_in": "3600"}, {"expires_in": None}, {"expires_in": [1]}, {}):
                    with self.subTest(lives):
                        store.seen.clear()
                        done = cat("gs://bucket/{0..3}.tar", env=env)
                        self.assertEqual(done.stdout, b"".join(b"/bucket/%d.tar" % i for i in range(4)), done.stderr)
                        self.assertIn([path for path, _ in store.seen].count("/token"), (1, 2))  # kept; 2: tried again

    def test_azure_by_shared_access_signature_and_by_key(self):
        import base64
        import hmac

        def answer(request):
            return 200, {"ETag": '"1"'}, request.path.encode()

        with Answering(answer) as store:
            env = {"AZURE_STORAGE_ACCOUNT": "acct", "AZURE_STORAGE_BLOB_ENDPOINT": f"{store.url}/acct",
                   "HOME": "/nonexistent"}
            done = cat("az://cont/a.tar", env=env | {"AZURE_STORAGE_SAS_TOKEN": "?sv=1&sig=abc"})
            self.assertEqual(done.stdout, b"/acct/cont/a.tar?sv=1&sig=abc", done.stderr)
            key = b"0123456789abcdef"
            done = cat("az://cont/a.tar", env=env | {"AZURE_STORAGE_KEY": base64.b64encode(key).decode()})
            _, headers = store.seen[-1]
            text = ("GET\n\n\n\n\n\n\n\n\n\n\n" + headers.get("Range", "") + f"\nx-ms-date:{headers['x-ms-date']}\n"
                    f"x-ms-version:{headers['x-ms-version']}\n/acct/acct/cont/a.tar")
            right = base64.b64encode(hmac.new(key, text.encode(), "sha256").digest()).decode()
            self.assertEqual(headers["Authorization"], f"SharedKey acct:{right}")

    def test_aistore_redirects_to_the_target_that_has_the_object(self):
        def answer(request):
            if not request.path.startswith("/v1/objects"):
                return 404, {}, b""
            if "target=" not in request.path:
                where = f"http://localhost:{store.port}{request.path}&target=1"
                return 307, {"Location": where}, b""
            if request.headers.get("Authorization") != "Bearer tok":
                return 401, {}, b""
            return 200, {"ETag": '"1"'}, request.path.encode()

        with Answering(answer) as store:
            env = {"AIS_ENDPOINT": store.url, "AIS_AUTHN_TOKEN": "tok"}
            done = cat("ais://bck/a.tar?archpath=x/y.jpg", env=env)
            self.assertEqual(done.stdout, b"/v1/objects/bck/a.tar?provider=ais&archpath=x/y.jpg&target=1", done.stderr)

    def test_hugging_face_files_and_listings(self):
        link = ""

        def answer(request):
            if request.headers.get("Authorization") != "Bearer tok":
                return 401, {}, b""
            if request.path.removeprefix("/hub").startswith("/api/"):
                if "cursor" not in request.path:
                    here = link.format(path=request.path.split("?")[0], host=request.headers["Host"])
                    return 200, {"Link": here}, json.dumps(
                        [{"type": "file", "path": "data/a.tar"}, {"type": "directory", "path": "data/x"}]).encode()
                return 200, {}, json.dumps([{"type": "file", "path": "data/b.tar"}]).encode()
            return 200, {"ETag": '"1"'}, (request.path + "\n").encode()

        with Answering(answer) as store:
            env = {"HF_ENDPOINT": store.url, "HF_TOKEN": "tok"}
            for link in ('<http://{host}{path}?cursor=2>; rel="next"', "<{path}?cursor=2>; rel=next",
                         '<{path}?cursor=0>; rel="first", <{path}?cursor=2>; title="b"; Rel = "last next"'):
                with self.subTest(link=link):
                    done = cat("hf://datasets/me/it@v1/data/*.tar", env=env)
                    self.assertEqual(done.stdout.decode().split(),
                                     [f"/datasets/me/it/resolve/v1/data/{name}.tar" for name in "ab"], done.stderr)
            for link in ("<{path}?cursor=2>; rel=next", "<http://{host}{path}?cursor=2>; rel=next"):
                done = cat("hf://datasets/me/it@v1/data/*.tar", env=env | {"HF_ENDPOINT": store.url + "/hub"})
                self.assertEqual(done.stdout.decode().split(),
                                 [f"/hub/datasets/me/it/resolve/v1/data/{name}.tar" for name in "ab"], done.stderr)
            link = '<{path}?cursor=2>; title="a, <b>; rel=next"; rel="prev"'  # the last page
            self.assertEqual(cat("hf://datasets/me/it@v1/data/*.tar", env=env).stdout.decode().split(),
                             ["/datasets/me/it/resolve/v1/data/a.tar"])
            link = "<?cursor=2>; rel=next"  # relative to the page: no server is known to send it
            self.assertIn(b"the listing continues at '?cursor=2'", cat("hf://datasets/me/it@v1/data/*.tar", env=env).stderr)

    def test_a_listing_of_ten_thousand_keys(self):
        keys = [f"train/{i:06}<&>.tar" for i in range(10_000)]

        def answer(request):
            if "list-type=2" not in request.path:
                return 200, {"ETag": '"1"'}, b"x"
            start = int(request.path.partition("continuation-token=")[2] or 0)
            page = "".join(f"<Contents><Key>{xml.sax.saxutils.escape(k)}</Key></Contents>" for k in keys[start:start + 1000])
            more = f"<NextContinuationToken>{start + 1000}</NextContinuationToken>" if start + 1000 < len(keys) else ""
            return 200, {}, f"<ListBucketResult>{page}{more}</ListBucketResult>".encode()

        with Answering(answer) as store:
            env = {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            done = run("millrace", "bench", "http", "s3://bucket/train/", "--once", "--json", env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["objects"], 10_000, done.stderr)

    def listed(self, pages, spec):
        """What `cat` makes of a store that lists these pages: the keys that are read, or what is said."""
        def answer(request):
            if "list-type=2" not in request.path:
                return 200, {"ETag": '"1"'}, (request.path.removeprefix("/bucket/") + "\n").encode()
            return 200, {}, pages.pop(0)

        with Answering(answer) as store:
            env = {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
                   "MILLRACE_HTTP_ATTEMPTS": "3", "MILLRACE_HTTP_BACKOFF": "0.01"}
            done = cat(spec, env=env)
            return done.stdout.decode().split() if done.returncode == 0 else done.stderr.decode()

    @staticmethod
    def page(*keys, more=""):
        found = "".join(f"<Contents><Key>{k}</Key></Contents>" for k in keys)
        next_one = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
        return f"<ListBucketResult>{found}{next_one}</ListBucketResult>".encode()

    def test_a_listing_is_taken_in_byte_order_each_key_once_and_what_was_asked_for_alone(self):
        pages = [self.page("p/3.tar", "p/0.tar", "other/1.tar", "../2.tar", more="t"), self.page("p/1.tar", "p/0.tar")]
        for spec in ("s3://bucket/p/", "s3://bucket/p/*.tar"):
            self.assertEqual(self.listed(list(pages), spec), ["p/0.tar", "p/1.tar", "p/3.tar"], spec)

    def test_a_prefix_stands_for_its_shards_as_a_folder_does(self):
        page = self.page("p/", "p/0.tar", "p/0.tar.md5", "p/1.tar.partial.7", "p/._0.tar", "p/sub/2.tgz", "p/.old/3.tar")
        self.assertEqual(self.listed([page], "s3://bucket/p/"), ["p/0.tar", "p/sub/2.tgz"])
        self.assertEqual(self.listed([page], "s3://bucket/p/*"), ["p/0.tar", "p/0.tar.md5"])
        said = self.listed([self.page("p/a.csv")], "s3://bucket/p/")
        self.assertIn("no archive has this prefix, at s3://bucket/p/; archives end with .tar", said)

    def test_an_error_with_status_200_in_place_of_a_listing_is_asked_again_and_told(self):
        error = b'<?xml version="1.0"?><Error><Code>SlowDown</Code></Error>'
        self.assertEqual(self.listed([error, self.page("p/0.tar")], "s3://bucket/p/"), ["p/0.tar"])
        said = self.listed([error] * 3, "s3://bucket/p/")
        self.assertIn("the store answered 200 with an error in the body: SlowDown (attempt 3 of 3)", said)

    def test_a_listing_that_goes_in_a_circle_is_not_followed(self):
        pages = [self.page("p/0.tar", more="BA"[i % 2]) for i in range(10)]
        self.assertIn("the store's listing goes in a circle", self.listed(pages, "s3://bucket/p/"))

    def test_a_summary_takes_sizes_from_the_listing(self):
        def answer(request):
            if "list-type=2" not in request.path:
                return 403, {}, b""
            shards = "".join(f"<Contents><Key>t/{i}.tar</Key><Size>{i * 1000}</Size></Contents>" for i in (1, 2, 3))
            return 200, {}, f"<ListBucketResult>{shards}</ListBucketResult>".encode()

        with Answering(answer) as store:
            env = {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            done = run("millrace", "summary", "s3://bucket/t/", env=env)
            self.assertEqual((done.returncode, done.stdout), (0, "s3://bucket/t/{1..3}.tar\t3 shards, 5.9 KiB (6000 bytes)\n"),
                             done.stderr)
            self.assertEqual(len(store.seen), 1)

    def test_verify_tells_which_shard_of_the_index_a_bucket_lacks(self):
        with Folder() as folder:
            harness.fake(folder, "a", 2, 4)
            made = run("millrace", "index", folder / "a-{000000..000001}.tar", "-o", folder / "i.json")
            self.assertEqual(made.returncode, 0, made.stderr)
            there = (folder / "a-000000.tar").read_bytes()

            def answer(request):
                if "list-type=2" not in request.path:
                    return 200, {}, there
                return 200, {}, b"<ListBucketResult><Contents><Key>a-000000.tar</Key></Contents></ListBucketResult>"

            with Answering(answer) as store:
                env = {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
                for bucket in ("s3://bucket", "s3://bucket/"):
                    done = run("millrace", "verify", "--index", folder / "i.json", bucket, env=env)
                    self.assertEqual((done.returncode, "lists a shard that is not among those given, at" in done.stdout), (1, True), done.stdout + done.stderr)

    def test_a_listing_that_fails_names_what_the_user_gave_and_what_was_asked(self):
        def answer(request):
            return 404, {}, b"<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code></Error>"

        with Answering(answer) as store:
            env = {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            for spec in ("s3://bucket/t/", "s3://bucket/t/*.tar"):
                done = run("millrace", "cat", spec, env=env)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("404 (NoSuchBucket)", done.stderr)
                self.assertIn(f" (the request: GET {store.url}/bucket", done.stderr)
                self.assertIn(f", at {spec}; check the name of the bucket or repository", done.stderr)


class Moto(unittest.TestCase):
    """A real S3 server, with real signatures: where ./setup --peers has installed it."""

    def test_signed_requests_listings_and_odd_keys(self):
        server = harness.ROOT / "build/venv/bin/moto_server"
        if not server.exists():
            self.skipTest("no moto: ./setup --peers installs it")
        port = harness.free_port()
        # From the third request on it checks signatures.
        process = subprocess.Popen([server, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            import socket

            def answers():
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    return True
                except OSError:
                    return False
            harness.wait_until(answers, 60)
            fill = ("import boto3, sys\ns = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1', "
                    "aws_access_key_id='a', aws_secret_access_key='b')\ns.create_bucket(Bucket='bucket')\n"
                    "for k in ('t/a.tar', 't/b c+ü.tar', 't/sub/d.tar', 'u/e.tar'): "
                    "s.put_object(Bucket='bucket', Key=k, Body=(k + '\\n').encode() * 100000)\n")
            subprocess.run([harness.VENV_PYTHON, "-c", fill, f"http://127.0.0.1:{port}"], check=True, env=harness.CLEAN)
            env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            for spec, keys in (("s3://bucket/t/*.tar", ["t/a.tar", "t/b c+ü.tar"]),
                               ("s3://bucket/t/", ["t/a.tar", "t/b c+ü.tar", "t/sub/d.tar"]),
                               ("s3://bucket/t/b c+ü.tar", ["t/b c+ü.tar"])):
                done = cat(spec, env=env | {"MILLRACE_HTTP_PART": "256K", "MILLRACE_HTTP_SPLIT": "3"})
                expected = b"".join((k + "\n").encode() * 100000 for k in keys)
                self.assertEqual(sha(done.stdout), sha(expected), done.stderr)
            done = cat("s3://bucket/none.tar", env=env)
            self.assertIn("404 (NoSuchKey)", done.stderr.decode())
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    unittest.main()
