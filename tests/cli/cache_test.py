"""The cache of fetched objects, as users and other processes meet it."""

import base64
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.fault_server import FaultServer  # noqa: E402
from tests.support.harness import Folder, cat, run, sha  # noqa: E402

CONTENT = random.Random(7).randbytes(3_000_000)


class Cache(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.path = self.folder.__enter__()
        self.env = {"MILLRACE_CACHE": str(self.path / "cache"), "MILLRACE_CACHE_FREE": "0", "MILLRACE_HTTP_SPLIT": "off"}
        self.addCleanup(self.folder.__exit__)

    def gets(self, server):
        return [r for r in server.requests() if r.get("method") == "GET"]

    def entry(self):
        return next(p for p in (self.path / "cache").iterdir() if len(p.name) == 64)

    def test_the_second_time_nothing_is_fetched(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            for _ in range(2):
                self.assertEqual(sha(cat(f"{server.url}/plain/a.tar", env=self.env).stdout), sha(CONTENT))
            self.assertEqual(len(self.gets(server)), 1)
            url = f"{server.url}/plain/a.tar"
        # The server is away: what was seen last serves.
        done = cat(url, env=self.env)
        self.assertEqual(sha(done.stdout), sha(CONTENT), done.stderr)
        self.assertIn("reading cached copies", done.stderr.decode())

    def test_a_server_that_is_away_is_waited_for_once(self):
        """Of many cached objects, the first one alone makes all attempts, and one line tells of all."""
        names = [f"{i}.tar" for i in range(5)]
        env = self.env | {"MILLRACE_HTTP_BACKOFF": "0.001"}
        with FaultServer({name: CONTENT[:1000] + name.encode() for name in names}) as server:
            urls = [f"{server.url}/plain/{name}" for name in names]
            whole = cat(*urls, env=env).stdout
        asked = []
        with socket.create_server(("127.0.0.1", int(urls[0].split(":")[2].split("/")[0]))) as listener:
            def refuse():
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    asked.append(1)
                    connection.close()
            refusing = threading.Thread(target=refuse, daemon=True)
            refusing.start()
            done = cat(*urls, env=env | {"MILLRACE_HTTP_ATTEMPTS": "4"})
            listener.shutdown(socket.SHUT_RDWR)
            refusing.join(60)
        self.assertEqual(sha(done.stdout), sha(whole), done.stderr)
        self.assertEqual(done.stderr.decode().count("reading cached copies"), 1, done.stderr)
        self.assertLessEqual(len(asked), 5, done.stderr)  # and none for the other four

    def test_a_server_without_ranges_that_tells_a_digest_is_asked_once(self):
        body = CONTENT[:2000]
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        fields = {"ETag": '"1"', "Repr-Digest": f"sha-256=:{digest}:"}
        with harness.Answering(lambda request: (200, fields, body)) as server:
            for _ in range(2):
                done = cat(f"{server.url}/a.tar", env=self.env)
                self.assertEqual(sha(done.stdout), sha(body), done.stderr)
            self.assertLessEqual(len(server.seen), 3, server.seen)  # its head each time, and the object once

    def test_eight_processes_fetch_one_cold_shard_once(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            url = f"{server.url}/slow/6000/a.tar"
            readers = [subprocess.Popen([harness.BIN / "millrace", "cat", url], env=harness.CLEAN | self.env,
                                        stdout=subprocess.PIPE) for _ in range(8)]
            for reader in readers:
                self.assertEqual(sha(reader.communicate(timeout=60)[0]), sha(CONTENT))
            self.assertEqual(len(self.gets(server)), 1)

    def test_a_flipped_byte_is_healed(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            url = f"{server.url}/plain/a.tar"
            cat(url, env=self.env)
            with open(self.entry(), "r+b") as file:
                file.seek(1_500_000)
                byte = file.read(1)
                file.seek(1_500_000)
                file.write(bytes([byte[0] ^ 1]))
            checked = run("millrace", "cache", "ls", env=self.env)
            self.assertIn("/plain/a.tar", checked.stdout)
            done = cat(url, env=self.env)
            self.assertEqual(sha(done.stdout), sha(CONTENT))
            self.assertIn("is damaged at byte 1048576", done.stderr.decode())
            self.assertEqual(len(self.gets(server)), 2)
            self.assertEqual(run("millrace", "cache", "verify", env=self.env).returncode, 0)

    def test_a_listing_changes_nothing_and_verify_tells_and_leaves_what_is_not_the_caches(self):
        cache = self.path / "cache"
        with FaultServer({"a.tar": CONTENT, "b.tar": CONTENT[::-1]}) as server:
            cat(f"{server.url}/plain/a.tar", env=self.env)
            damaged = self.entry()
            cat(f"{server.url}/plain/b.tar", env=self.env)
        with open(damaged, "r+b") as file:
            file.seek(-20, os.SEEK_END)
            file.write(b"X")
        other = cache / ("a" * 64)
        other.write_text("a blob of another program, which names its files by digests as well")
        before = {p.name: p.read_bytes() for p in cache.iterdir()}
        listed = run("millrace", "cache", "ls", env=self.env)
        self.assertEqual((listed.returncode, listed.stdout.count("damaged, or a file of another program")), (0, 2), listed.stdout)
        self.assertEqual({p.name: p.read_bytes() for p in cache.iterdir()}, before)
        checked = run("millrace", "cache", "verify", "--json", env=self.env)
        told = json.loads(checked.stdout.splitlines()[-1])
        self.assertEqual((checked.returncode, told["damaged"], told["left"]), (5, 1, 1), checked.stdout)
        self.assertEqual({p.name for p in cache.iterdir()}, before.keys() - {damaged.name})
        checked = run("millrace", "cache", "verify", env=self.env)
        self.assertEqual((checked.returncode, other.name in checked.stdout), (5, True), checked.stdout)
        self.assertEqual(run("millrace", "cache", "clean", "--all", env=self.env).returncode, 0)
        self.assertEqual([p.name for p in cache.iterdir()], [other.name])
        other.unlink()
        self.assertEqual(run("millrace", "cache", "verify", env=self.env).returncode, 0)
        for name in ("foo", "a" * 64 + ".txt", "b" * 64 + ".seen"):
            (cache / name).write_text("of another program")
            checked = run("millrace", "cache", "verify", env=self.env)
            self.assertEqual((checked.returncode, f"another program: {name}; not removed" in checked.stdout), (5, True), checked.stdout)
            self.assertTrue((cache / name).exists())
            (cache / name).unlink()

    def test_kill_9_while_it_fills(self):
        chance = random.Random(3)
        with FaultServer({"a.tar": CONTENT}) as server:
            url = f"{server.url}/slow/20000/a.tar"
            for _ in range(int(os.environ.get("MILLRACE_TEST_KILLS", "20"))):
                reader = subprocess.Popen([harness.BIN / "millrace", "cat", url], env=harness.CLEAN | self.env,
                                          stdout=subprocess.PIPE)
                got = reader.stdout.read(chance.randrange(1, 1_500_000))
                reader.send_signal(signal.SIGKILL)
                got += reader.stdout.read()
                reader.wait()
                reader.stdout.close()
                self.assertTrue(CONTENT.startswith(got))
                if any(len(p.name) == 64 for p in (self.path / "cache").iterdir()):
                    run("millrace", "cache", "clean", "--all", env=self.env)
            self.assertEqual(sha(cat(url, env=self.env).stdout), sha(CONTENT))
            self.assertEqual(run("millrace", "cache", "verify", env=self.env).returncode, 0)

    @unittest.skipUnless(os.getuid() == 0, "mounting a small disk needs root")
    def test_a_full_disk_and_a_read_only_one_are_streamed_past(self):
        with FaultServer({"a.tar": CONTENT}) as server:
            small = self.path / "small"
            small.mkdir()
            for options, notices in ("size=2m", 0), ("size=20m,ro", 1), ("size=20m,nr_inodes=3", 1):
                subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", small], check=True)
                try:
                    done = cat(f"{server.url}/plain/a.tar", env=self.env | {"MILLRACE_CACHE": str(small / "c")})
                    self.assertEqual(sha(done.stdout), sha(CONTENT), done.stderr)
                    self.assertEqual(done.stderr.decode().count("reading without a cache"), notices, done.stderr)
                    self.assertFalse(list(small.glob("c/*.part")))
                finally:
                    subprocess.run(["umount", small], check=True)

    def test_an_object_larger_than_the_cache_is_streamed_and_drives_nobody_out(self):
        with FaultServer({"a.tar": CONTENT[:1_000_000], "b.tar": CONTENT}) as server:
            env = self.env | {"MILLRACE_CACHE_SIZE": "2M"}
            for name, content in ("a", CONTENT[:1_000_000]), ("b", CONTENT):
                self.assertEqual(sha(cat(f"{server.url}/plain/{name}.tar", env=env).stdout), sha(content))
            found = json.loads(run("millrace", "cache", "ls", "--json", env=env).stdout)
            self.assertEqual([e["url"][-5:] for e in found["entries"]], ["a.tar"])

    def test_two_urls_with_one_base_name(self):
        with FaultServer({"a.tar": CONTENT}) as one, FaultServer({"a.tar": CONTENT[::-1]}) as two:
            for _ in range(2):
                self.assertEqual(sha(cat(f"{one.url}/plain/a.tar", env=self.env).stdout), sha(CONTENT))
                self.assertEqual(sha(cat(f"{two.url}/plain/a.tar", env=self.env).stdout), sha(CONTENT[::-1]))

    def test_what_was_used_least_recently_goes_first(self):
        names = {f"{c}.tar": CONTENT for c in "abcd"}
        with FaultServer(names) as server:
            env = self.env | {"MILLRACE_CACHE_SIZE": "10M"}
            for c in "abcd":
                cat(f"{server.url}/plain/{c}.tar", env=env)
            found = json.loads(run("millrace", "cache", "ls", "--json", env=env).stdout)
            self.assertEqual(sorted(e["url"][-5:] for e in found["entries"]), ["b.tar", "c.tar", "d.tar"])

    def test_files_of_named_folders_are_cached_as_well(self):
        far = self.path / "far"
        far.mkdir()
        (far / "a.tar").write_bytes(CONTENT)
        env = self.env | {"MILLRACE_CACHE_PATHS": f"{far}/"}
        self.assertEqual(sha(cat(far / "a.tar", env=env).stdout), sha(CONTENT))
        self.assertEqual(self.entry().stat().st_uid, os.getuid())
        (far / "a.tar").write_bytes(CONTENT[::-1])
        self.assertEqual(sha(cat(far / "a.tar", env=env).stdout), sha(CONTENT[::-1]))

    def test_files_whose_names_are_not_utf8_are_cached_each_by_its_own(self):
        harness.fake(self.path, "a", 2, 4)
        far = os.fsencode(self.path) + b"/f\xe9r"
        os.mkdir(far)
        # Names that would be one if the bytes that are no UTF-8 were replaced.
        files = {far + b"/sh\xff.tar": self.path / "a-000000.tar", far + b"/sh\xe9.tar": self.path / "a-000001.tar"}
        env = self.env | {"MILLRACE_CACHE_PATHS": os.fsdecode(far + b"/")}
        for file, plain in files.items():
            shutil.copy(plain, file)
            expected = run("millrace", "digest", plain).stdout
            for _ in range(2):
                done = run("millrace", "digest", os.fsdecode(file), env=env)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""))
        found = json.loads(run("millrace", "cache", "ls", "--json", env=env).stdout)
        self.assertEqual([e["complete"] for e in found["entries"]], [True, True], found)
        self.assertEqual(run("millrace", "cache", "verify", env=env).returncode, 0)

    def test_a_file_in_its_place_is_refused(self):
        (self.path / "cache").write_text("a file")
        with FaultServer({"a.tar": CONTENT}) as server:
            done = cat(f"{server.url}/plain/a.tar", env=self.env)
            self.assertEqual((done.returncode, done.stdout, server.requests()), (2, b"", []))
            self.assertRegex(done.stderr.decode(), "MILLRACE_CACHE.* is not a folder, at .*/cache; name a folder")

    def test_a_folder_that_is_a_link_or_anothers_is_not_used(self):
        (self.path / "link").symlink_to("/tmp")
        with FaultServer({"a.tar": CONTENT}) as server:
            done = cat(f"{server.url}/plain/a.tar", env=self.env | {"MILLRACE_CACHE": str(self.path / "link")})
            self.assertEqual(sha(done.stdout), sha(CONTENT))
            self.assertIn("not a folder", done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
