"""Ranks that are not alike: all go on from one state, or all refuse with one kind of error.

TEST_SEEDS: how many random jobs (6)."""

import json
import pathlib
import random
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import Job, WithShards, steps  # noqa: E402


FAULTS = ["own folders", "empty elsewhere", "damaged", "arguments", "all damaged", "none"]


class RanksTest(WithShards):
    train_counts = (8, 640)

    def job(self, world, of_rank=lambda r: [], *common, env=None):
        job = Job(world, of_rank, ["--shards", self.shards, "--lanes", 8 * world, "--mode", "resample",
                                   "--epoch-batches", 20, *common], env)
        job.wait()
        return job

    def alike(self, job):
        """All ranks done, or all with one kind and one exit code."""
        self.assertEqual(len(set(job.codes)), 1, "\n".join(job.texts))
        if job.codes[0] != 0:
            self.assertEqual(len(set(job.kinds())), 1, "\n".join(job.texts))
            self.assertNotIn(job.kinds()[0], ("internal", "peer_lost"), "\n".join(job.texts))
        return job.codes[0]


def listens(port):
    """Whether somebody listens at the port of this host, without a connection to it."""
    mark = f":{port:04X} "
    return any(mark in line.split(maxsplit=2)[1] + " " and line.split()[3] == "0A"
               for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:])


class DifferingRanks(RanksTest):
    def resumed_steps(self, world, name):
        files = [self.folder / (f"{name}.jsonl" + (f".rank{r}" if r else "")) for r in range(world)]
        return [sorted(steps(f)) for f in files]

    def test_what_ranks_see_of_checkpoints_makes_no_difference(self):
        for seed in training.seeds(6, "TEST_SEEDS"):
            draw = random.Random(seed)
            world = draw.choice([2, 2, 3, 4, 8]) if seed else 8
            fault = FAULTS[seed % len(FAULTS)]
            with self.subTest(seed=seed, world=world, fault=fault):
                self.one(world, fault, draw, f"s{seed}")

    def one(self, world, fault, draw, name):
        folders = [self.folder / f"{name}-{r}" for r in range(world)]
        own = lambda r: ["--checkpoint-dir", folders[r]]  # noqa: E731
        shared = lambda r: ["--checkpoint-dir", folders[0]]  # noqa: E731
        where = own if fault == "own folders" else shared
        first = self.job(world, where, "--checkpoint-every", 3, "--max-steps", 8)
        self.assertEqual(first.codes, [0] * world, "\n".join(first.texts))
        kept = sorted(p.name for p in folders[0].iterdir())
        self.assertEqual(kept, ["step-0000000006", "step-0000000008"])
        expected = 8
        extra = lambda r: []  # noqa: E731
        odd = draw.randrange(world)
        if fault == "empty elsewhere":
            where = lambda r: ["--checkpoint-dir", folders[r] if r else folders[0]]  # noqa: E731
        elif fault in ("damaged", "all damaged"):
            for step in (8,) if fault == "damaged" else (6, 8):
                target = folders[0] / f"step-{step:010}" / draw.choice(
                    ["model.safetensors", "train.json", f"data-rank{world - 1}.json", "optimizer.safetensors"])
                whole = target.read_bytes()
                target.write_bytes(whole[:draw.randrange(len(whole))])
            expected = 6 if fault == "damaged" else None
        elif fault == "arguments":
            extra = lambda r: draw_arguments if r == odd else []  # noqa: E731
            draw_arguments = draw.choice([["--seed", 5], ["--batch-size", 4], ["--max-steps", 9]])
            expected = None
        second = self.job(world, lambda r: [*where(r), "--metrics", self.folder / f"{name}.jsonl", "--max-steps", 12,
                                            *extra(r)], "--checkpoint-every", 3, "--resume", "auto")
        code = self.alike(second)
        if expected is None:
            self.assertNotEqual(code, 0)
            return
        self.assertEqual(code, 0, "\n".join(second.texts))
        for taken in self.resumed_steps(world, name):
            self.assertEqual(taken, list(range(expected + 1, 13)))
        if fault == "damaged":
            self.assertIn("ignoring", "".join(second.texts))

    def test_other_lists_or_arguments_are_refused_at_the_start_by_all(self):
        for own in (["--shards", self.shards.replace("{000000..000007}", "{000000..000006}")], ["--seed", "3"],
                    ["--batch-size", "4"], ["--checkpoint-dir", self.folder / "c"]):
            with self.subTest(own=own[0]):
                job = self.job(2, lambda r: own if r else [], "--max-steps", 3)
                self.assertEqual((self.alike(job), job.kinds()[0]), (2, "usage"), job.texts)
                self.assertIn("not started alike", job.texts[0])

    def test_an_error_of_one_rank_at_the_start_is_that_of_all(self):
        job = self.job(2, lambda r: ["--record-batches", "/dev/null/x"] if r else [], "--max-steps", 3)
        self.assertEqual(self.alike(job), 4, job.texts)
        self.assertIn("rank 1: cannot write batches", job.texts[0])

    def test_a_signal_to_one_rank_ends_all_with_its_code(self):
        for sent, code in (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR2, 140):
            with self.subTest(signal=sent):
                folder = self.folder / f"c{code}"
                metrics = self.folder / f"{code}.jsonl"
                job = Job(2, lambda r: [], ["--shards", self.shards, "--epochs", 100000, "--metrics", metrics,
                                            "--checkpoint-dir", folder])
                harness.wait_until(lambda: training.taken(metrics) > 2)
                job.ranks[1].send_signal(sent)
                self.assertEqual(job.wait(60), [code, code], job.texts)
                self.assertEqual(len(list(folder.iterdir())), 1)

    def test_the_object_of_a_job_is_of_all_its_ranks(self):
        metrics = self.folder / "all.jsonl"
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        ranks = [training.start("--shards", self.shards, "--max-steps", 5, "--metrics", metrics, "--json", "--timeout", 60,
                                env=place | {"RANK": rank}, stdout=subprocess.PIPE) for rank in ("0", "1")]
        said = [process.communicate(timeout=120) for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0, 0], said)
        self.assertEqual(said[1][0], "")
        job = json.loads(said[0][0].splitlines()[-1])
        own = [training.lines(path)[-1] for path in (metrics, f"{metrics}.rank1")]
        self.assertEqual((job["samples"], job["step"], job["world_size"]), (2 * 5 * 8, 5, 2))
        for key in ("samples", "delivered", "dropped", "bytes_read"):
            self.assertEqual(job[key], own[0][key] + own[1][key], key)
        self.assertEqual(job["sources"]["bytes_read"], job["bytes_read"])
        self.assertAlmostEqual(job["samples_per_s"], own[0]["samples_per_s"] + own[1]["samples_per_s"])
        self.assertEqual(job["waiting"], max(one["waiting"] for one in own))

    def test_joining_heeds_timeout_and_signals(self):
        env = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        for rank in "0", "1":  # the one that listens, and one that asks for it
            done = training.train("--shards", self.shards, "--timeout", 3, env=env | {"RANK": rank}, timeout=30)
            self.assertEqual(done.returncode, 6, done.stderr)
            place, error = done.stderr.splitlines()  # without torch's stack trace
            self.assertIn(f"rank {rank} of 2, by RANK and WORLD_SIZE; rank 0 is at 127.0.0.1:{env['MASTER_PORT']}", place)
            self.assertIn("peer_lost", error)
        with self.subTest("who is not of the job"):
            for other, what in (({"WORLD_SIZE": "3", "RANK": "2"}, "the world size is 3 here, and 2 on rank 0"),
                                ({"WORLD_SIZE": "2", "RANK": "0"}, "give each its own rank")):
                env["MASTER_PORT"] = str(harness.free_port())
                first = training.start("--shards", self.shards, "--timeout", 60, env=env)
                harness.wait_until(lambda: listens(int(env["MASTER_PORT"])) or first.poll() is not None)
                done = training.train("--shards", self.shards, "--timeout", 60, env=env | other, timeout=30)
                self.assertIn(what, done.stderr)
                self.assertIn(done.returncode, (2, 6), done.stderr)
                first.terminate()
                first.communicate(timeout=20)
        with self.subTest("a rank twice"):
            env["MASTER_PORT"] = str(harness.free_port())
            ranks = [training.start("--shards", self.shards, "--timeout", 60, env=env | {"WORLD_SIZE": "3", "RANK": rank})
                     for rank in ("0", "1", "1")]
            harness.wait_until(lambda: any(process.poll() is not None for process in ranks[1:]))
            one_of_two = next(process for process in ranks[1:] if process.poll() is not None)
            self.assertIn("another process is rank 1 of this job too", one_of_two.communicate()[1])
            self.assertEqual(one_of_two.returncode, 2)
            for process in ranks:
                process.terminate()
                process.communicate(timeout=20)
        with self.subTest("a rank that is killed and started again while others wait"):
            env["MASTER_PORT"] = str(harness.free_port())
            def rank_of_three(rank):
                return training.start("--shards", self.shards, "--timeout", 60, "--max-steps", 2,
                                      env=env | {"WORLD_SIZE": "3", "RANK": rank})
            first, killed = rank_of_three("0"), rank_of_three("1")
            harness.wait_until(lambda: listens(int(env["MASTER_PORT"])))
            harness.wait_until(lambda: "waits for the other ranks" in killed.stderr.readline())
            killed.kill()
            killed.communicate()
            for process in (first, rank_of_three("1"), rank_of_three("2")):
                said = process.communicate(timeout=60)[1]
                self.assertEqual(process.returncode, 0, said)
        env["MASTER_PORT"] = str(harness.free_port())
        process = training.start("--shards", self.shards, "--timeout", 300, env=env)
        # It catches the signal and listens: /proc says when.
        status = pathlib.Path(f"/proc/{process.pid}/status")
        harness.wait_until(lambda: "SigBlk:\t0000000000004a0" in status.read_text() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 143, text)


class Restarts(RanksTest):
    def test_torchrun_restarts_a_job_after_a_kill(self):
        torchrun = harness.ROOT / "build/venv/bin/torchrun"
        metrics, folder = self.folder / "m.jsonl", self.folder / "c"
        process = subprocess.Popen(
            [torchrun, "--no-python", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port",
             str(harness.free_port()), harness.BIN / "millrace-train", *map(str, training.TINY), "--shards", self.shards,
             "--epochs", "100000", "--max-steps", "400", "--checkpoint-dir", folder, "--checkpoint-every", "20",
             "--resume", "auto", "--timeout", "30", "--metrics", metrics],
            env=harness.CLEAN | training.ALONE, stderr=subprocess.PIPE, text=True)
        harness.wait_until(lambda: list(folder.glob("step-*")), 120)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        subprocess.run(["kill", "-9", children[-1]], check=True)
        _, text = process.communicate(timeout=200)
        self.assertEqual(process.returncode, 0, text[-3000:])
        self.assertEqual(text.count("resumed"), 2, text[-3000:])
        self.assertEqual(sorted(steps(metrics)), list(range(1, 401)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
