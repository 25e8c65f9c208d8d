"""Ranks that come and go: after any loss, with more ranks or fewer, each sample of an epoch is trained on once.

TEST_RESTARTS: how many ranks are killed under each rendezvous of torchrun (3)."""

import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import children_of  # noqa: E402

TORCHRUN = harness.ROOT / "build/venv/bin/torchrun"


class Elastic(training.WithShards):
    train_counts = (12, 960)

    def setUp(self):
        super().setUp()
        self.metrics, self.saved = self.folder / "m.jsonl", self.folder / "c"

    def words(self, *more):
        return ["--shards", self.shards, "--epochs", 3, "--lanes", 12, "--checkpoint-dir", self.saved, "--resume", "auto",
                "--checkpoint-every", 4, "--metrics", self.metrics, "--metrics-keys", "--timeout", 30, *more]

    def torchrun(self, *options, words):
        command = [TORCHRUN, "--no-python", *options, harness.BIN / "millrace-train", *training.TINY, "--batch-size", 4, *words]
        process = subprocess.Popen([str(word) for word in command], env=harness.CLEAN | training.ALONE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        for pid in [*children_of(process.pid), process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate()

    def steps_more(self, process, count):
        until = training.taken(self.metrics) + count
        harness.wait_until(lambda: training.taken(self.metrics) >= until or process.poll() is not None, 120)

    def check_epochs(self, epochs=3):
        """Each key of the shards once an epoch."""
        trained = training.trained_keys(self.metrics)
        self.assertEqual(sorted(trained), list(range(epochs)))
        for epoch, keys in trained.items():
            counts = collections.Counter(keys)
            self.assertEqual({key: n for key, n in counts.items() if n > 1}, {}, f"trained on twice in epoch {epoch}")
            self.assertEqual(len(counts), self.train_counts[1], f"of epoch {epoch}")

    @unittest.skipIf(not TORCHRUN.exists(), "no torchrun")
    def test_restarts_of_torchrun(self):
        restarts = int(os.environ.get("TEST_RESTARTS", "3"))
        draw = random.Random(2)
        for how in (["--master-port", harness.free_port()], ["--standalone"]):
            with self.subTest(how[0]):
                self.metrics, self.saved = self.folder / f"m{how[0]}.jsonl", self.folder / f"c{how[0]}"
                process = self.torchrun("--nproc-per-node", 2, "--max-restarts", restarts, "--monitor-interval", 0.1, *how,
                                        words=self.words("--epochs", 2 + restarts // 4))
                for _ in range(restarts):
                    self.steps_more(process, draw.choice([1, 3, 10]))
                    ranks = children_of(process.pid)
                    if process.poll() is not None or not ranks:
                        break
                    os.kill(draw.choice(ranks), signal.SIGKILL)
                    harness.wait_until(lambda: process.poll() is not None or not set(ranks) & set(children_of(process.pid)))
                text = process.communicate(timeout=300)[1]
                self.assertEqual(process.returncode, 0, text[-3000:])
                self.assertEqual(len(re.findall(r"rank 0 of 2, by torchrun", text)), restarts + 1, text[-3000:])
                self.check_epochs(2 + restarts // 4)

    def test_other_numbers_of_ranks_in_one_epoch(self):
        taken = 0
        for world, more in ((1, 40), (2, 20), (3, 20), (1, 10_000)):
            taken += more
            job = training.Job(world, lambda r: [], ["--batch-size", 4, *self.words("--epochs", 1, "--max-steps", taken)])
            self.assertEqual(job.wait(), [0] * world, job.texts)
        self.check_epochs(1)

    def test_agents_of_torchrun_that_count_their_restarts_apart(self):
        place = {"TORCHELASTIC_RUN_ID": "x"}
        job = training.Job(2, lambda r: [], self.words("--max-steps", 2), env=place)
        self.assertEqual(job.wait(), [0, 0], job.texts)
        port = str(harness.free_port())
        place |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [training.start(*self.words("--max-steps", 4), env=place | {"RANK": str(r), "TORCHELASTIC_RESTART_COUNT": str(3 * r)})
                 for r in (0, 1)]
        said = [rank.communicate(timeout=60)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)

    @unittest.skipIf(os.geteuid() != 0 or not shutil.which("ip"), "needs root and iproute2, for a network namespace")
    def test_a_host_that_is_gone_is_noticed(self):
        """Two hosts with a link: one is this one, whose name stands for itself alone."""
        name, here, there = f"millrace-{os.getpid()}", f"mra{os.getpid()}", f"mrb{os.getpid()}"
        for command in (f"ip netns add {name}", f"ip link add {here} type veth peer name {there} netns {name}",
                        f"ip addr add 10.93.7.1/24 dev {here}", f"ip link set {here} up",
                        f"ip -n {name} addr add 10.93.7.2/24 dev {there}", f"ip -n {name} link set {there} up"):
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode != 0:
                self.skipTest(f"{command}: {done.stderr.strip()}")
            made = command.split(" type ")[0].split()
            if "add" in made[:3] and "addr" not in made:
                self.addCleanup(subprocess.run, [*made[:2], "del", made[3]])
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.93.7.1", "MASTER_PORT": str(harness.free_port()), "OMP_NUM_THREADS": "1"}
        words = [harness.BIN / "millrace-train", *training.TINY, *self.words("--epochs", 100_000, "--timeout", 300)]
        ranks = []
        for rank, inside in enumerate(([], ["ip", "netns", "exec", name])):
            ranks.append(subprocess.Popen([str(word) for word in [*inside, *words]], stderr=subprocess.PIPE, text=True,
                                          env=harness.CLEAN | place | {"RANK": str(rank), "PATH": os.environ["PATH"]}))
            self.addCleanup(lambda process=ranks[-1]: process.poll() is None and process.kill())
        self.steps_more(ranks[0], 20)
        subprocess.run(["ip", "link", "set", here, "down"], check=True)
        for rank, process in enumerate(ranks):
            said = process.communicate(timeout=30)[1]  # not the 300 s of --timeout
            self.assertEqual(process.returncode, 6, said)
            self.assertIn(f"rank {1 - rank} is gone; see rank {1 - rank}'s messages", said)


if __name__ == "__main__":
    unittest.main()
