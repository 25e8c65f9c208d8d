"""Ranks that come and go: after any loss, with more ranks or fewer, each sample of an epoch is trained on once.

TEST_RESTARTS: how many ranks are killed under each rendezvous of torchrun (3)."""

import collections
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import children_of  # noqa: E402

TORCHRUN = harness.ROOT / "build/venv/bin/torchrun"


class WithTorchrun(training.WithShards):
    """Runs of which every sample of an epoch is trained on once, whatever becomes of their ranks."""

    train_counts = (12, 960)

    def setUp(self):
        super().setUp()
        self.metrics, self.saved = self.folder / "m.jsonl", self.folder / "c"

    def words(self, *more):
        return ["--shards", self.shards, "--epochs", 3, "--lanes", 12, "--checkpoint-dir", self.saved, "--resume", "auto",
                "--checkpoint-every", 4, "--metrics", self.metrics, "--metrics-keys", "--timeout", 30, *more]

    def torchrun(self, *options, words):
        command = [TORCHRUN, "--no-python", *options, harness.BIN / "millrace-train", *training.TINY, "--batch-size", 4, *words]
        # docs/scale.md: agents that join later need it.
        env = harness.CLEAN | training.ALONE | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = subprocess.Popen([str(word) for word in command], env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.stderr.closed:
            return
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


class Elastic(WithTorchrun):
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


@unittest.skipIf(not TORCHRUN.exists(), "no torchrun")
class Agents(WithTorchrun):
    """Two agents of torchrun, as on two hosts, with a rank each. In exact epochs: whatever the numbers of ranks, no sample is dropped."""

    def agent(self, *options, hosts="1:2", epochs=1, more=()):
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job", "--local-addr", "127.0.0.1"]
        # How long the first ranks wait for more, and after how many seconds of silence an agent counts as dead.
        quick = ["--rdzv-conf", "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=10", "--monitor-interval", 0.1]
        return self.torchrun("--nnodes", hosts, "--nproc-per-node", 1, *where, *quick, *options,
                             words=self.words("--mode", "exact", "--epochs", epochs, *more))

    def setUp(self):
        super().setUp()
        self.port = harness.free_port()

    def agents(self, *options, **how):
        """The one with the rendezvous first."""
        first = self.agent(*options, **how)
        harness.wait_until(lambda: first.poll() is not None or self.is_served())
        return first, self.agent(*options, **how)

    def is_served(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def ends(self, *agents, timeout=180):
        """Exit codes and messages."""
        said = [agent.communicate(timeout=timeout)[1] for agent in agents]
        return [agent.returncode for agent in agents], said

    def rank_of(self, agent):
        harness.wait_until(lambda: agent.poll() is not None or children_of(agent.pid))
        return children_of(agent.pid)[0]

    def test_a_rank_is_killed(self):
        agents = self.agents("--max-restarts", 2, hosts=2, epochs=3)
        for agent in reversed(agents):
            self.steps_more(agents[0], 5)
            os.kill(self.rank_of(agent), signal.SIGKILL)
            harness.wait_until(lambda: agents[0].poll() is not None or self.starts() > 1)
        codes, said = self.ends(*agents)
        self.assertEqual(codes, [0, 0], said)
        self.check_epochs(3)

    def test_the_cause_is_told(self):
        agents = self.agents("--max-restarts", 0, hosts=2, epochs=1000)
        self.steps_more(agents[0], 5)
        os.kill(self.rank_of(agents[1]), signal.SIGKILL)
        codes, said = self.ends(*agents)
        self.assertEqual(codes, [1, 1], said)
        killed = "Signal 9 (SIGKILL)"
        self.assertTrue(any(killed in text for text in said), said)
        [other] = [text for text in said if killed not in text]
        self.assertRegex(other, r"exitcode *: 6 ")
        self.assertRegex(other, r"rank [01] is gone")

    def test_an_agent_is_killed_with_its_rank(self):
        agents = self.agents("--max-restarts", 3, epochs=3)
        self.steps_more(agents[0], 5)
        self.end(agents[1])
        codes, said = self.ends(agents[0])
        self.assertEqual(codes, [0], said)
        self.assertIn("rank 0 of 1, by torchrun", said[0])
        self.check_epochs(3)

    def test_a_rank_is_stopped(self):
        agents = self.agents("--max-restarts", 3, hosts=2, epochs=3, more=["--timeout", 10])
        self.steps_more(agents[0], 5)
        os.kill(self.rank_of(agents[1]), signal.SIGSTOP)
        codes, said = self.ends(*agents)
        self.assertEqual(codes, [0, 0], said)
        self.check_epochs(3)

    def test_an_agent_joins_late(self):
        first = self.agent("--max-restarts", 3, epochs=8)  # long enough for a slow start of the other
        self.steps_more(first, 5)
        late = self.agent("--max-restarts", 3, epochs=8)
        codes, said = self.ends(first, late)
        self.assertEqual(codes, [0, 0], said)
        self.assertIn("rank 0 of 1, by torchrun", said[0])
        self.assertIn("of 2, by torchrun", said[1])
        self.check_epochs(8)

    def test_both_are_told_to_end(self):
        agents = self.agents("--max-restarts", 3, hosts=2, epochs=3)
        self.steps_more(agents[0], 5)
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        codes, said = self.ends(*agents, timeout=60)
        self.assertNotIn(0, codes, said)
        self.assertIn("stopped after", "".join(said))
        self.port = harness.free_port()
        codes, said = self.ends(*self.agents("--max-restarts", 3, hosts=2, epochs=3))
        self.assertEqual(codes, [0, 0], said)
        self.check_epochs(3)

    def starts(self):
        return sum("begin" in line for line in training.lines(self.metrics))


if __name__ == "__main__":
    unittest.main()
