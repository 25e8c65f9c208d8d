"""What is left of a job when a part of it is gone: a request to end still ends it in time, and a host that stands still is noticed."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import children_of  # noqa: E402

AT_MOST = 10  # seconds from a request to end


class Gone(training.WithShards):
    train_counts = (6, 480)

    def start(self, *words, env=None):
        process = training.start("--shards", self.shards, "--epochs", 100_000, "--checkpoint-dir", self.folder / "c", "--resume", "auto",
                                 "--metrics", self.folder / "m.jsonl", *words, env=env)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def trains(self, *processes, more=5):
        """Waits until the job has taken some more steps."""
        until = training.taken(self.folder / "m.jsonl") + more
        harness.wait_until(lambda: training.taken(self.folder / "m.jsonl") >= until or any(p.poll() is not None for p in processes))
        self.assertEqual([p.poll() for p in processes], [None] * len(processes))

    def checkpoints(self):
        return sorted(p.name for p in self.folder.glob("c/step-*"))

    def ranks(self, world, *words):
        place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        return [self.start("--timeout", 60, *words, env=place | {"RANK": str(r)}) for r in range(world)]

    def texts_of_ended(self, processes, timeout):
        out = []
        for process in processes:
            try:
                out.append(process.communicate(timeout=timeout)[1])
            except subprocess.TimeoutExpired:
                self.fail(f"it did not end within {timeout} s")
        return out

    def test_ranks_end_without_saving_when_asked_while_another_is_gone(self):
        for number in signal.SIGTERM, signal.SIGUSR2:
            for gone in 2, 0:
                with self.subTest(number.name, gone=gone):
                    ranks = self.ranks(3)
                    self.trains(*ranks)
                    left = [rank for rank in ranks if rank is not ranks[gone]]
                    before = self.checkpoints()
                    ranks[gone].kill()
                    ranks[gone].wait()
                    asked = time.monotonic()
                    for rank in left:
                        rank.send_signal(number)
                    said = self.texts_of_ended(left, AT_MOST)
                    self.assertLess(time.monotonic() - asked, AT_MOST)
                    for rank in left:
                        self.assertIn(rank.returncode, (6, 128 + number), said)
                    ranks[gone].communicate()
                    # One that had begun before the end of the rank may be there.
                    self.assertLessEqual(len(set(self.checkpoints()) - set(before)), 1)
                    self.assertEqual(list(self.folder.glob("c/*.partial*")), [])

    def test_a_starter_ends_without_saving_when_asked_while_a_rank_is_gone(self):
        for number in signal.SIGTERM, signal.SIGUSR2:
            with self.subTest(number.name):
                starter = self.start("--nproc", 3, "--restarts", 5)
                harness.wait_until(lambda: len(children_of(starter.pid)) == 3 or starter.poll() is not None)
                self.trains(starter)
                os.kill(children_of(starter.pid)[2], signal.SIGKILL)
                asked = time.monotonic()
                starter.send_signal(number)
                [said] = self.texts_of_ended([starter], AT_MOST)
                self.assertLess(time.monotonic() - asked, AT_MOST)
                self.assertEqual(starter.returncode, 128 + number, said)
                self.assertNotIn("restart 1", said)

    def hosts(self, *words):
        """Two starters, as on two hosts, with their ranks."""
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        starters = [self.start("--nproc", 2, "--timeout", 8, *words, env=place | {"RANK": str(host)}) for host in (0, 1)]
        harness.wait_until(lambda: all(len(children_of(s.pid)) == 2 or s.poll() is not None for s in starters))
        self.trains(*starters)
        return starters, [children_of(s.pid) for s in starters]

    def stopped(self, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

    def test_a_host_that_stands_still_is_noticed_by_the_other(self):
        for still in 0, 1:
            with self.subTest(still=still):
                starters, ranks = self.hosts()
                self.stopped(starters[still].pid, *ranks[still])
                [said] = self.texts_of_ended([starters[1 - still]], 60)
                self.assertEqual(starters[1 - still].returncode, 6, said)
                self.assertIn("peer_lost", said)
                starters[still].kill()  # its ranks end with it, once they run again
                for pid in ranks[still]:
                    os.kill(pid, signal.SIGKILL)
                starters[still].communicate()

    def test_a_starter_that_stands_still_is_noticed_when_its_ranks_do_not_come_again(self):
        for still in 0, 1:
            with self.subTest(still=still):
                starters, ranks = self.hosts("--restarts", 1)
                self.stopped(starters[still].pid)
                os.kill(ranks[1 - still][0], signal.SIGKILL)
                [said] = self.texts_of_ended([starters[1 - still]], 60)
                self.assertEqual(starters[1 - still].returncode, 6, said)
                self.assertIn("restart 1 of 1", said)
                starters[still].kill()
                starters[still].communicate()


if __name__ == "__main__":
    unittest.main(verbosity=2)
