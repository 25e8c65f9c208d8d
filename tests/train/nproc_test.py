"""Ranks of a host that millrace-train starts itself, watches and restarts: --nproc, --restarts.

TEST_KILLS: how many ranks are killed (8)."""

import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import children_of, steps  # noqa: E402


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class LocalRanks(training.WithShards):
    train_counts = (6, 480)

    def start(self, *arguments, env=None):
        process = training.start("--shards", self.shards, *arguments, env=env, stdout=subprocess.PIPE)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def ended(self, process, code=0, timeout=120):
        out, said = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, code, said)
        return out, said

    def checkpoints(self):
        return sorted(self.folder.glob("c/step-*"))

    def ranks_of(self, process, count):
        """Their processes, once they train."""
        harness.wait_until(lambda: len(children_of(process.pid)) == count or process.poll() is not None)
        return children_of(process.pid)

    def test_ranks_of_one_host(self):
        out, said = self.ended(self.start("--nproc", 3, "--max-steps", 5, "--json"))
        [line] = out.splitlines()
        self.assertEqual((json.loads(line)["world_size"], json.loads(line)["step"]), (3, 5))
        for rank in range(3):
            self.assertIn(f"[{rank}] rank {rank} done after 5 steps", said)
        self.assertEqual({line[:4] for line in said.splitlines()}, {"[0] ", "[1] ", "[2] "})

    def test_two_hosts(self):
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        hosts = [self.start("--nproc", 2, "--restarts", 2, "--epochs", 100000, "--max-steps", 300, "--checkpoint-dir",
                            self.folder / "c", "--checkpoint-every", 10, "--metrics", self.folder / "m.jsonl", "--lanes", 8,
                            "--mode", "resample", "--epoch-batches", 1000, env=place | {"RANK": str(host)}) for host in (0, 1)]
        harness.wait_until(lambda: self.checkpoints() or any(host.poll() is not None for host in hosts))
        # The ranks of the other host know of it some steps later.
        seen = training.taken(self.folder / "m.jsonl") + 5
        harness.wait_until(lambda: training.taken(self.folder / "m.jsonl") >= seen or any(h.poll() is not None for h in hosts))
        os.kill(children_of(hosts[1].pid)[0], signal.SIGKILL)
        said = [self.ended(host)[1] for host in hosts]
        self.assertIn("host 1 of 2, by RANK and WORLD_SIZE", said[1])
        self.assertIn("rank 2 was killed by SIGKILL: restart 1 of 2, from the newest checkpoint", said[1])
        self.assertRegex(said[0], r"(each rank|rank [01]) ended with exit code 6: restart 1 of 2")
        self.assertEqual(sum(text.count("resumed ") for text in said), 4, said)
        self.assertEqual(sorted(steps(self.folder / "m.jsonl")), list(range(1, 301)))

    def test_ranks_killed_at_any_moment_change_no_loss(self):
        kills = int(os.environ.get("TEST_KILLS", "8"))
        run = ["--nproc", 3, "--epochs", 3 + kills // 4, "--checkpoint-every", 7, "--lanes", 6]
        whole = self.folder / "whole.jsonl"
        self.ended(self.start(*run, "--checkpoint-dir", self.folder / "whole", "--metrics", whole))
        metrics = self.folder / "m.jsonl"
        log = self.folder / "log"  # a pipe would be full
        with open(log, "wb") as to:
            process = harness.start("millrace-train", *training.TINY, "--shards", self.shards, *run, "--restarts", kills,
                                    "--checkpoint-dir", self.folder / "c", "--metrics", metrics, env=training.ALONE, stderr=to)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        draw = random.Random(1)
        sent = 0
        while sent < kills and process.poll() is None:
            # From the very start of the processes on, or after some more steps.
            until = training.taken(metrics) + draw.choice([0, 0, 1, 5, 20])
            harness.wait_until(lambda: process.poll() is not None or
                               (training.taken(metrics) >= until and len(children_of(process.pid)) == 3))
            ranks = children_of(process.pid)
            if len(ranks) == 3:
                os.kill(draw.choice(ranks), signal.SIGKILL)
                harness.wait_until(lambda: process.poll() is not None or not set(ranks) & set(children_of(process.pid)))
                sent += 1
        process.wait(600)
        said = log.read_text()
        self.assertEqual(process.returncode, 0, said)
        self.assertGreaterEqual(len(re.findall("was killed by SIGKILL: restart", said)), min(kills, 3), said)
        for rank in "", ".rank1", ".rank2":
            self.assertEqual(steps(f"{metrics}{rank}"), steps(f"{whole}{rank}"), rank)

    def test_signals_are_the_ranks(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP):
            with self.subTest(number.name):
                process = self.start("--nproc", 2, "--restarts", 5, "--epochs", 100000, "--checkpoint-every", 5, "--resume", "auto",
                                     "--checkpoint-dir", self.folder / "c")
                before = set(self.checkpoints())
                harness.wait_until(lambda: set(self.checkpoints()) - before or process.poll() is not None)
                process.send_signal(signal.SIGUSR1)
                process.send_signal(number)
                said = self.ended(process, 128 + number)[1]
                self.assertEqual(said.count("stopped after"), 2, said)
                self.assertNotIn("restart", said)

    def test_its_own_death_ends_the_ranks(self):
        process = self.start("--nproc", 2, "--epochs", 100000, "--checkpoint-every", 5, "--checkpoint-dir", self.folder / "c")
        harness.wait_until(self.checkpoints)
        ranks = self.ranks_of(process, 2)
        process.kill()
        harness.wait_until(lambda: not any(is_running(rank) for rank in ranks))
        process.communicate(timeout=20)

    def test_descriptors_of_the_user_are_the_ranks(self):
        for number in 3, 4, 5:
            lines = self.folder / f"m{number}"
            words = " ".join(shlex.quote(str(w)) for w in (
                harness.BIN / "millrace-train", *training.TINY, "--shards", self.shards, "--nproc", 1, "--max-steps", 5,
                "--metrics", f"/dev/fd/{number}"))
            done = subprocess.run(["bash", "-c", f"{words} {number}>{lines}"], env=harness.CLEAN | training.ALONE, capture_output=True,
                                  text=True, timeout=100)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(steps(lines)), 5, number)

    def test_what_cannot_succeed_is_not_tried_again(self):
        folder = ["--checkpoint-dir", self.folder / "c"]
        for words, code, what in (
                (["--nproc", 2, "--restarts", 3], 2, "--restarts requires --checkpoint-dir"),
                (["--restarts", 3, *folder], 2, "--restarts requires --nproc"),
                (["--nproc", 2, "--restarts", 3, *folder, "--classes", 3], 1, "ended with exit code 1\n"),
                (["--nproc", 2, "--restarts", 3, *folder, "--val-shards", "none.tar"], 4, "ended with exit code 4\n")):
            with self.subTest(what):
                said = self.ended(self.start(*words), code)[1]
                self.assertIn(what, said)
                self.assertNotIn(": restart", said)
        said = self.ended(self.start("--nproc", 2, env={"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1"}), 2)[1]
        self.assertIn("--nproc cannot be combined with torchrun", said)

    def test_a_failure_is_told_whichever_look_finds_it(self):
        for calls in 100, 101:  # all lines have come by then; of two looks a round the next would be either
            with self.subTest(calls):
                process = self.start("--nproc", 1, "--val-shards", "none.tar",
                                     env={"LD_PRELOAD": str(harness.BIN / "late_end.so"), "LATE_END": str(calls)})
                self.assertIn("rank 0 ended with exit code 4\n", self.ended(process, 4)[1])

    def test_what_could_be_read_before_is_tried_again(self):
        last = self.folder / "last.tar"
        last.write_bytes((self.data / "train-000005.tar").read_bytes())
        process = self.start("--nproc", 1, "--restarts", 2, "--checkpoint-dir", self.folder / "c", "--checkpoint-every", 1, "--lanes", 1,
                             "--epochs", 100_000, "--shards", last)
        harness.wait_until(lambda: self.checkpoints() or process.poll() is not None)
        last.unlink()
        said = self.ended(process, 4)[1]
        self.assertIn("rank 0 ended with exit code 4: restart 1 of 2, from the newest checkpoint\n", said)
        self.assertIn("rank 0 ended with exit code 4, after 1 restart\n", said)

    def test_a_stopped_rank_does_not_hold_up_the_end(self):
        process = self.start("--nproc", 2, "--epochs", 100_000, "--checkpoint-dir", self.folder / "c", "--checkpoint-every", 5)
        harness.wait_until(self.checkpoints)
        os.kill(self.ranks_of(process, 2)[1], signal.SIGSTOP)
        # The third request, each half a second after the one before at least, ends any rank.
        harness.wait_until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT))
        self.ended(process, 128 + signal.SIGINT)

    def test_a_rank_that_does_not_end_is_named(self):
        process = self.start("--nproc", 2, "--epochs", 100_000, "--checkpoint-dir", self.folder / "c", "--checkpoint-every", 5)
        harness.wait_until(self.checkpoints)
        killed, stopped = self.ranks_of(process, 2)
        os.kill(stopped, signal.SIGSTOP)
        os.kill(killed, signal.SIGKILL)
        said = next(line for line in process.stderr if " still " in line)
        self.assertRegex(said, "rank [01] still runs, asked to end 10 s ago; one may be writing a checkpoint, and what still runs in 110 s is killed")
        os.kill(stopped, signal.SIGKILL)
        self.ended(process, 128 + signal.SIGKILL)

    def test_one_request_to_end_may_come_twice(self):
        """timeout(1) signals a process, and then its group."""
        for number in (signal.SIGINT, signal.SIGTERM):
            for how in [], ["--nproc", 2]:
                with self.subTest(number.name, how=how):
                    before = set(self.checkpoints())
                    process = self.start("--epochs", 100_000, "--checkpoint-dir", self.folder / "c", "--checkpoint-every", 5, "--keep", 9,
                                         "--resume", "auto", *how)
                    harness.wait_until(lambda: set(self.checkpoints()) - before or process.poll() is not None)
                    process.send_signal(number)
                    os.kill(process.pid, number)
                    self.assertNotIn(": ended at once", self.ended(process, 128 + number)[1])

    def test_a_stderr_that_nobody_reads_holds_up_no_signal(self):
        reading, writing = os.pipe()
        process = harness.start("millrace-train", *training.TINY, "--shards", self.shards, "--nproc", 2, "--epochs", 100_000,
                                "--log-every", 0, env=training.ALONE, stderr=writing)
        os.close(writing)
        self.addCleanup(os.close, reading)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        ranks = self.ranks_of(process, 2)

        def is_held():
            call = pathlib.Path(f"/proc/{ranks[0]}/syscall").read_text().split()  # of the first thread: number, arguments
            return call[:2] == ["1", "0x2"]  # write() to stderr
        harness.wait_until(is_held, 120)
        harness.wait_until(lambda: process.poll() is not None or process.send_signal(signal.SIGTERM))
        self.assertEqual(process.wait(), 128 + signal.SIGTERM)

    def test_a_stderr_that_nobody_reads_holds_up_no_restart(self):
        reading, writing = os.pipe()
        process = harness.start("millrace-train", *training.TINY, "--shards", self.shards, "--nproc", 1, "--restarts", 2, "--epochs",
                                100_000, "--checkpoint-dir", self.folder / "c", "--log-every", 0, env=training.ALONE, stderr=writing)
        os.close(writing)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        [first] = self.ranks_of(process, 1)

        def is_held():
            call = pathlib.Path(f"/proc/{first}/syscall").read_text().split()
            return call[:2] == ["1", "0x2"]
        harness.wait_until(is_held, 120)
        os.kill(first, signal.SIGKILL)
        harness.wait_until(lambda: process.poll() is not None or set(children_of(process.pid)) - {first}, 60)
        os.kill(self.ranks_of(process, 1)[0], signal.SIGKILL)
        read = []
        with open(reading, errors="replace") as text:
            for line in text:
                read.append(line)
                if "restart 2 of 2" in line:
                    process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 128 + signal.SIGTERM)
        self.assertNotIn("restart 1 of 2", "".join(read))
        self.assertRegex("".join(read), r"millrace: \d+ lines dropped, because nobody read stderr for 20 s")

    def test_a_stderr_that_nobody_reads_holds_up_no_success(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x")
        os.set_blocking(writing, True)
        process = harness.start("millrace-train", *training.TINY, "--shards", self.shards, "--nproc", 2, "--max-steps", 2,
                                env=training.ALONE, stderr=writing)
        os.close(writing)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.assertEqual(process.wait(90), 0)

    def test_a_checkpoint_that_is_asked_for_is_saved_once(self):
        log, metrics = self.folder / "log", self.folder / "m.jsonl"
        with open(log, "wb") as to:
            process = harness.start("millrace-train", *training.TINY, "--shards", self.shards, "--nproc", 3, "--epochs", 100_000,
                                    "--checkpoint-dir", self.folder / "c", "--keep", 100, "--metrics", metrics, env=training.ALONE,
                                    stderr=to)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        harness.wait_until(self.checkpoints)
        for asked in (1, 2, 3):
            process.send_signal(signal.SIGUSR1)
            harness.wait_until(lambda: log.read_text().count("SIGUSR1: step ") >= asked or process.poll() is not None)
            until = training.taken(metrics) + 5
            harness.wait_until(lambda: training.taken(metrics) >= until or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 128 + signal.SIGTERM)
        self.assertEqual(log.read_text().count("SIGUSR1: step "), 3)

    def test_the_last_lines_wait_for_their_reader(self):
        reading, writing = os.pipe()
        process = harness.start("millrace-train", *training.TINY, "--shards", self.shards, "--nproc", 2, "--epochs", 100_000,
                                "--log-every", 0, env=training.ALONE, stderr=writing)
        os.close(writing)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        ranks = self.ranks_of(process, 2)
        os.kill(ranks[1], signal.SIGKILL)
        harness.wait_until(lambda: not any(is_running(rank) for rank in ranks))
        with open(reading, errors="replace") as lines:
            said = lines.read()
        self.assertEqual(process.wait(60), 128 + signal.SIGKILL)
        self.assertIn("rank 1 was killed by SIGKILL", said.splitlines()[-1])

    def test_a_checkpoint_that_is_written_while_a_rank_dies_counts(self):
        """Its weights take a while to write, in the background."""
        process = self.start("--nproc", 2, "--restarts", 1, "--model", "resnet18", "--size", 33, "--batch-size", 2, "--max-steps", 6,
                             "--checkpoint-dir", self.folder / "c", "--checkpoint-every", 2)
        harness.wait_until(lambda: list(self.folder.glob("c/.partial-step-*")) or self.checkpoints() or process.poll() is not None)
        os.kill(children_of(process.pid)[1], signal.SIGKILL)
        _, said = self.ended(process)
        self.assertIn("restart 1 of 1, from the newest checkpoint", said)
        self.assertEqual(len(re.findall(r"rank [01] resumed \S+step-0000000002 ", said)), 2, said)
        self.assertFalse(list(self.folder.glob("c/set-aside*")))

    def test_a_restart_before_anything_is_saved_begins_as_at_first(self):
        """Not with an older run's checkpoint, which --overwrite sets aside."""
        folder = ["--checkpoint-dir", self.folder / "c"]
        self.ended(self.start("--max-steps", 30, *folder))
        process = self.start("--nproc", 2, "--restarts", 1, "--max-steps", 20, "--overwrite", *folder)
        os.kill(self.ranks_of(process, 2)[0], signal.SIGKILL)  # it loads
        said = self.ended(process)[1]
        self.assertIn("restart 1 of 1, with nothing saved yet", said)
        self.assertNotIn("resumed", said)
        self.assertEqual([folder.name for folder in self.checkpoints()], ["step-0000000020"])


if __name__ == "__main__":
    unittest.main()
