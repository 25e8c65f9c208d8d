"""Reading disks as a user does: every way to read gives the same bytes; bad days end with a message."""

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import run  # noqa: E402

NOBODY = 65534
ROOT_ONLY = unittest.skipUnless(os.getuid() == 0, "needs root, to become somebody else")
CAN_MOUNT = unittest.skipUnless(
    os.getuid() == 0 and os.path.exists("/dev/fuse") and (harness.BIN / "millrace-rotational").exists(),
    "needs root, /dev/fuse and libfuse3")


def limited(limits=(), user=None):
    """For preexec_fn: (resource, value) limits, and another user."""
    def apply():
        for what, value in limits:
            resource.setrlimit(what, (value, value))
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
    return apply


def run_as(*arguments, env=None, limits=(), user=None, timeout=120):
    return subprocess.run([harness.BIN / "millrace", *map(str, arguments)], text=True, errors="replace",
                          capture_output=True, timeout=timeout,
                          env=harness.CLEAN | (env or {}), preexec_fn=limited(limits, user))


def bench(*arguments, **how):
    seconds = () if "--seconds" in arguments else ("--seconds", "0.3")
    done = run_as("bench", "disk", "--json", *seconds, *arguments, **how)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@contextlib.contextmanager
def model(folder, *arguments):
    mount = tempfile.mkdtemp(prefix="millrace-mount-")
    process = harness.start("millrace-rotational", folder, mount, "--rate-mb", "2000", *arguments,
                            stdout=subprocess.PIPE, text=True)
    try:
        if "spindles" not in process.stdout.readline():
            raise unittest.SkipTest("FUSE cannot be mounted here")
        yield pathlib.Path(mount), process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()
        process.stdout.close()
        os.rmdir(mount)


@contextlib.contextmanager
def files(count, size):
    with harness.Folder() as folder:
        os.chmod(folder, 0o755)
        paths = [folder / f"file-{i:03}" for i in range(count)]
        for path in paths:
            path.write_bytes(os.urandom(size))
        yield folder, paths


class Cells(unittest.TestCase):
    def test_the_same_digest_however_it_is_read(self):
        with harness.Folder() as folder:
            os.chmod(folder, 0o755)
            shards = harness.fake(folder, "a", 3, 200)
            expected = run("millrace", "digest", shards).stdout
            user = NOBODY if os.getuid() == 0 else None  # root may lock any memory
            for io in ("auto", "pread"):
                for direct in ("on", "off"):
                    for gate in ({"MILLRACE_SPINDLES": "2"}, {"MILLRACE_SERIALIZE": "off"}):
                        for memlock in (0, resource.RLIM_INFINITY):
                            env = {"MILLRACE_IO": io, "MILLRACE_DIRECT": direct, "MILLRACE_READ_CHUNK": "70001",
                                   "MILLRACE_REGISTERED_BUFFERS": "on", **gate}
                            with self.subTest(memlock=memlock, **env):
                                limits = [(resource.RLIMIT_MEMLOCK, memlock)] if memlock == 0 else []
                                done = run_as("digest", shards, env=env, limits=limits, user=user)
                                self.assertEqual(done.stdout, expected, done.stderr)


class BenchDisk(unittest.TestCase):
    def test_json(self):
        with files(3, 1 << 20) as (folder, _):
            figures, _ = bench(folder, "--streams", 2)
            for key in ("bytes", "seconds", "mb_per_s", "cpu_seconds", "cpu_s_per_gb", "reads", "depth", "seeks_avoided",
                        "figure", "limit", "cached_before", "mb_per_s_over_time", "devices"):
                self.assertIn(key, figures)
            self.assertGreater(figures["bytes"], 0)
            self.assertEqual((figures["files"], figures["file_bytes"], figures["streams_served"]), (3, 3 << 20, 2))

    def test_files_are_named_in_every_way(self):
        with files(12, 4096) as (folder, paths):
            (folder / "list").write_text("".join(f"{p}\n" for p in paths[:5]))
            for names, count in ((["file-{000..003}"], 4), (["file-{002,011}"], 2), (["file-01*"], 2), (["file-00*", "file-{010..011}"], 12),
                                 (["@", "file-005"], 6)):
                specs = [f"@{folder}/list" if name == "@" else folder / name for name in names]
                with self.subTest(names):
                    figures, _ = bench(*specs, "--seconds", "0.1")
                    self.assertEqual((figures["files"], figures["file_bytes"]), (count, count * 4096))

    def test_a_cached_figure_is_not_called_a_disks(self):
        with files(1, 1 << 20) as (folder, _):
            figures, _ = bench(folder, env={"MILLRACE_DIRECT": "off"})
            self.assertIn(figures["figure"], ("page cache", "memory"))
            said = run("millrace", "bench", "disk", folder, "--seconds", "0.2", env={"MILLRACE_DIRECT": "off"}).stdout
            self.assertIn("NOT ", said)

    def test_random_reads(self):
        with files(2, 1 << 20) as (folder, _):
            figures, _ = bench(folder, "--random", "64K", "--streams", 4)
            self.assertGreater(figures["reads"]["count"], 0)

    def test_ten_thousand_streams_are_all_served(self):
        streams = 10_000
        with files(10, 1 << 16) as (folder, _):
            for seconds in (20, 60, 180):  # a busy machine takes longer
                figures, _ = bench(folder, "--streams", streams, "--seconds", seconds, timeout=seconds + 120,
                                   env={"MILLRACE_MEMORY": "64M", "MILLRACE_READ_CHUNK": "64K"},
                                   limits=[(resource.RLIMIT_NOFILE, 12_000)])
                if figures["streams_served"] == streams:
                    break
            self.assertEqual(figures["streams_served"], streams)

    def test_ctrl_c_ends_with_the_report(self):
        with files(1, 1 << 20) as (folder, _):
            for which in (signal.SIGINT, signal.SIGTERM):
                p = harness.start("millrace", "bench", "disk", folder, "--seconds", "1000", "--json",
                                  stdout=subprocess.PIPE, text=True)
                harness.wait_until(lambda: cpu_ticks(p.pid) > 5)
                p.send_signal(which)
                out, _ = p.communicate(timeout=30)
                self.assertEqual(p.returncode, 128 + which)
                self.assertTrue(json.loads(out.splitlines()[-1])["interrupted"])

    def test_tune_says_what_it_tried_in_turns(self):
        with files(2, 9 << 20) as (folder, _):
            done = run("millrace", "tune", folder, "--seconds", "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("MILLRACE_READ_DEPTH=8", done.stdout)
            self.assertRegex(done.stdout, r"export MILLRACE_|no setting helps")
            self.assertRegex(done.stdout, r"\d to \d")
            found = json.loads(run("millrace", "tune", folder, "--seconds", "1", "--json").stdout.splitlines()[-1])
            self.assertGreater(len(found["trials"]), 8)
            # Each family is compared with figures that are in the table.
            self.assertGreaterEqual(sum(not t["variable"] for t in found["trials"]), 4)
            self.assertEqual(done.stdout.count("as set now") + done.stdout.count("with what gained so far"), 4)
            for trial in found["trials"]:
                self.assertIn(trial["turns"], (3, 9))  # 9: what seemed to gain, and what it is compared with
                self.assertTrue(trial["turns"] == 9 or not trial["kept"], trial)
                self.assertLessEqual(trial["mb_per_s_least"], trial["mb_per_s"])
                self.assertLessEqual(trial["mb_per_s"], trial["mb_per_s_most"])
                self.assertIn(trial["from"], ("disk", "page cache", "mixed", "memory"))
                # A loader lives on one I/O thread.
                self.assertNotEqual(trial["variable"], "MILLRACE_IO_THREADS")

    def test_tune_prints_no_table_where_there_is_nothing_to_measure(self):
        done = run("millrace", "tune", "/no/such")
        self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)

    def test_tune_says_that_there_is_too_little_data(self):
        with files(1, 36) as (folder, _):
            done = run("millrace", "tune", folder, "--seconds", "2")
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            self.assertIn("millrace: no_samples: too little data to tune by: 36 B", done.stderr)
            told = json.loads(run("millrace", "tune", folder, "--seconds", "2", "--json").stdout)
            self.assertEqual(told["error"]["kind"], "no_samples")

    def test_tune_says_that_it_was_stopped(self):
        with files(2, 9 << 20) as (folder, _):
            running = harness.start("millrace", "tune", folder, "--seconds", "600", stdout=subprocess.PIPE, text=True)
            running.stdout.readline()
            running.send_signal(signal.SIGINT)
            said = running.communicate(timeout=60)[0]
            self.assertIn("stopped: not every setting was tried", said)
            self.assertNotIn("no setting helps", said)

    def test_doctor_shows_what_a_path_lies_on(self):
        with files(1, 10) as (folder, _):
            found = json.loads(run("millrace", "doctor", folder, "--json").stdout)
            self.assertEqual(len(found["storage"]), 1)
            self.assertIn("in_the_way", found)
            shown = run("millrace", "doctor", folder, env={"MILLRACE_SPINDLES": "4"}).stdout
            self.assertIn("gate ", shown)
            little = run("millrace", "doctor", folder, env={"MILLRACE_SPINDLES": "4", "MILLRACE_MEMORY": "64M"}).stdout
            self.assertIn("MILLRACE_MEMORY) limits", little)

    def test_doctor_looks_at_the_cache(self):
        with harness.Folder() as folder:
            (folder / "file").write_bytes(b"")
            (folder / "to_nothing").symlink_to(folder / "gone")
            (folder / "shared").mkdir()
            (folder / "shared").chmod(0o777)
            for cache, says in ((folder / "file" / "in", "Not a directory"), (folder / "to_nothing", "No such file or directory"),
                                (folder / "shared", "other users may write to the cache's folder"),
                                (folder, "less than MILLRACE_CACHE_FREE"), (folder / "new", "less than MILLRACE_CACHE_FREE")):
                with self.subTest(cache):
                    env = {"MILLRACE_CACHE": str(cache), "MILLRACE_CACHE_FREE": "1000T"}
                    done = run("millrace", "doctor", folder, "--json", env=env)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertTrue(any(says in line for line in json.loads(done.stdout)["in_the_way"]), done.stdout)
            env = {"MILLRACE_CACHE": str(folder / "new"), "MILLRACE_CACHE_FREE": "0"}
            self.assertNotIn("cache", run("millrace", "doctor", folder, env=env).stdout.partition("in the way")[2])
            self.assertEqual(sorted(p.name for p in folder.iterdir()), ["file", "shared", "to_nothing"])

    def test_doctor_takes_files_as_other_commands_do_and_shows_each_storage_once(self):
        with files(12, 10) as (folder, paths):
            (folder / "list").write_text("".join(f"{p}\n" for p in paths))
            (folder / "odd{0..1}").write_bytes(b"")
            expected = json.loads(run("millrace", "doctor", paths[0], "--json").stdout)["storage"]
            self.assertEqual(len(expected), 1)
            for names in ([folder / "file-0*"], [folder / "file-{000..011}"], [f"@{folder}/list"], [f"{folder}/"],
                          [folder, *paths], [folder / "odd{0..1}"]):
                with self.subTest(names):
                    done = run("millrace", "doctor", *names, "--json")
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertEqual(json.loads(done.stdout)["storage"], expected)
            for name, code, says in ((folder / "file-{011..012}", 4, f"no such file, at {folder}/file-012"),
                                     (folder / "none*", 4, "no file matches"),
                                     (folder / ("long" * 64), 4, "io_failed: cannot look at the file, at"),
                                     ("http://127.0.0.1:1/a.tar", 2, "doctor looks at the disks of local files, at http://")):
                done = run("millrace", "doctor", name)
                self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
                self.assertIn(says, done.stderr)


def cpu_ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


class BadDays(unittest.TestCase):
    def assert_message(self, done, code, *parts):
        self.assertEqual(done.returncode, code, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_what_is_no_file(self):
        with files(1, 10) as (folder, _):
            self.assert_message(run("millrace", "cat", folder), 4, "no archive is in this folder", str(folder))
            self.assert_message(run("millrace", "cat", folder / "none"), 4, "no such file", str(folder / "none"))
            self.assert_message(run("millrace", "bench", "disk", folder / "none"), 4, str(folder / "none"))
            self.assert_message(run("millrace", "bench", "disk", folder, "--random", "5"), 2, "multiple of 4K")
            self.assert_message(run("millrace", "bench", "disk", "/dev/null"), 2, "/dev/null")

    def test_links_that_lead_in_a_circle(self):
        with files(1, 10) as (folder, _):
            loop = folder / "loop.tar"
            loop.symlink_to("loop.tar")
            out = folder / "out-%d.tar"
            for words in (["cat", loop], ["cat", f"{loop}/"], ["cat", f"{loop}/*.tar"], ["cat", f"{folder}/*p.tar/a.tar"], ["verify", loop], ["summary", loop],
                          ["index", "create", loop, "-o", folder / "i.json"], ["bench", "disk", loop],
                          ["pack", "--restart", "1", "--from-shards", loop, "-o", out]):
                with self.subTest(words):
                    done = run("millrace", *words)
                    self.assertEqual(done.returncode, 4, done.stderr)
                    self.assertIn("io_failed: ", done.stderr + done.stdout)
                    self.assertIn("(Too many levels of symbolic links); its links lead in a circle", done.stderr + done.stdout)

    def test_folders_that_name_nothing(self):
        with files(1, 10) as (folder, _):
            (folder / "outer/inner").mkdir(parents=True)
            self.assert_message(run("millrace", "cat", folder / "outer"), 4, "no archive is in this folder", "FOLDER/*/*.tar")
            self.assert_message(run("millrace", "cat", f"{folder}/none/"), 4, "not_found", "; check the path")
            self.assert_message(run("millrace", "cat", f"{folder}/none/*.tar"), 4, "no file matches", "; check the path")

    @ROOT_ONLY
    def test_no_permission(self):
        with files(1, 10) as (_, paths):
            paths[0].chmod(0o600)
            self.assert_message(run_as("cat", paths[0], user=NOBODY), 4, "no permission to read", str(paths[0]))

    @ROOT_ONLY
    def test_a_folder_without_permission_below_is_named(self):
        with files(1, 10) as (folder, _):
            (folder / "closed").mkdir(0o700)
            self.assert_message(run_as("bench", "disk", folder, user=NOBODY), 4, str(folder / "closed"))

    def test_few_descriptors_mean_fewer_streams_and_no_error(self):
        with files(100, 1 << 16) as (folder, _):
            # However slow the machine, all are served in the end.
            for seconds in 0.3, 3, 30:
                figures, said = bench(folder, "--streams", 100, "--seconds", seconds,
                                      limits=[(resource.RLIMIT_NOFILE, 40)])
                self.assertEqual(said, "")
                if figures["streams_served"] == 100:
                    return
            self.fail(f"{figures['streams_served']} of 100 streams were served in {seconds} s")

    @ROOT_ONLY
    def test_little_locked_memory(self):
        with files(1, 8 << 20) as (folder, paths):
            done = run_as("cat", paths[0], env={"MILLRACE_REGISTERED_BUFFERS": "on"}, user=NOBODY,
                          limits=[(resource.RLIMIT_MEMLOCK, 64 << 10)])
            self.assertEqual(done.returncode, 0, done.stderr)
            if "io_uring is refused" not in done.stderr:
                self.assertEqual(done.stderr.count("locked memory ran out"), 1, done.stderr)

    def cat_through_gate(self, path, gate_dir, **how):
        env = {"MILLRACE_SPINDLES": "1", "MILLRACE_GATE_DIR": str(gate_dir)}
        done = subprocess.run([harness.BIN / "millrace", "cat", path], capture_output=True, timeout=120,
                              env=harness.CLEAN | env, preexec_fn=limited(**how))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, path.read_bytes())
        return done.stderr.decode()

    def test_gate_folders(self):
        with files(1, 1 << 20) as (folder, paths):
            self.assertEqual(self.cat_through_gate(paths[0], folder / "new"), "")
            self.assertTrue(list((folder / "new").glob("millrace-gate-*")))
            self.assertIn("within this process only", self.cat_through_gate(paths[0], paths[0]))

    @ROOT_ONLY
    def test_gate_folders_of_others(self):
        with files(1, 1 << 20) as (folder, paths):
            closed = folder / "closed"
            closed.mkdir(mode=0o755)  # root's
            self.assertIn("MILLRACE_GATE_DIR", self.cat_through_gate(paths[0], closed, user=NOBODY))
            shared = folder / "shared"
            self.assertEqual(self.cat_through_gate(paths[0], shared), "")  # made by root
            self.assertEqual(self.cat_through_gate(paths[0], shared, user=NOBODY), "")

    def test_a_closed_pipe_ends_cat_quietly(self):
        with files(1, 32 << 20) as (_, paths):
            done = subprocess.run(["bash", "-c", 'trap "" PIPE; "$0" cat "$1" | head -c 10 | wc -c; echo ${PIPESTATUS[0]}',
                                   harness.BIN / "millrace", paths[0]], text=True, capture_output=True, env=harness.CLEAN)
            self.assertEqual(done.stderr, "")
            self.assertEqual(done.stdout.split(), ["10", "141"])


@CAN_MOUNT
class Model(unittest.TestCase):
    """On the model of rotational disks, a FUSE file system."""

    def test_the_same_digest_through_the_gate(self):
        with harness.Folder() as folder:
            shards = harness.fake(folder, "a", 3, 200)
            expected = run("millrace", "digest", shards).stdout
            for order in ("fifo", "elevator"):
                with model(folder, "--order", order, "--spindles", "3") as (mount, _):
                    shown = shards.replace(str(folder), str(mount))
                    for direct in ("on", "off"):
                        done = run("millrace", "digest", shown, env={"MILLRACE_SPINDLES": "3", "MILLRACE_DIRECT": direct})
                        self.assertEqual(done.stdout, expected, done.stderr)

    def test_eio_in_the_middle_names_path_and_offset(self):
        with files(1, 8 << 20) as (folder, paths):
            with model(folder, "--fail", f"{paths[0].name}:{5 << 20}") as (mount, _):
                path = mount / paths[0].name
                for spindles in ({}, {"MILLRACE_SPINDLES": "1"}):
                    done = subprocess.run([harness.BIN / "millrace", "cat", path], capture_output=True, timeout=60,
                                          env=harness.CLEAN | spindles)
                    self.assertEqual(done.returncode, 4)
                    self.assertEqual(done.stdout, paths[0].read_bytes()[:4 << 20])
                    said = done.stderr.decode()
                    self.assertIn(f"{path} byte {5 << 20}", said)
                    self.assertIn("Input/output error", said)

    def test_a_hung_device_is_named_and_the_other_goes_on(self):
        with files(2, 32 << 20) as (folder, paths), model(folder) as (hung, process), model(folder) as (well, _):
            process.send_signal(signal.SIGUSR1)
            self.assertIn("hung", process.stdout.readline())
            env = {"MILLRACE_READ_TIMEOUT": "1", "MILLRACE_SPINDLES": "1"}
            stuck = harness.start("millrace", "cat", hung / paths[0].name, env=env, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
            done = subprocess.run([harness.BIN / "millrace", "cat", well / paths[1].name], capture_output=True, timeout=60,
                                  env=harness.CLEAN | env)
            self.assertEqual(done.stdout, paths[1].read_bytes(), done.stderr)
            said = stuck.stderr.readline()
            self.assertIn("returned nothing for 1 s", said)
            self.assertIn(str(hung / paths[0].name), said)
            stuck.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGUSR2)  # the kernel lets nobody go before
            stuck.communicate(timeout=60)
            self.assertEqual(stuck.returncode, -signal.SIGINT)

    def test_ctrl_c_while_a_device_hangs(self):
        with files(1, 32 << 20) as (folder, _), model(folder) as (mount, process):
            process.send_signal(signal.SIGUSR1)
            self.assertIn("hung", process.stdout.readline())
            p = harness.start("millrace", "bench", "disk", mount, "--seconds", "1000", stdout=subprocess.PIPE, text=True)
            harness.wait_until(lambda: "mr-pread" in thread_names(p.pid))
            p.send_signal(signal.SIGINT)
            # The report is there; a thread is still in the kernel, which lets nobody go before.
            self.assertTrue(any(line.startswith("limit") for line in iter(p.stdout.readline, "")))
            process.send_signal(signal.SIGUSR2)
            p.communicate(timeout=30)
            self.assertEqual(p.returncode, 130)


def thread_names(pid):
    return " ".join(t.read_text() for t in pathlib.Path(f"/proc/{pid}/task").glob("*/comm"))


if __name__ == "__main__":
    unittest.main()
