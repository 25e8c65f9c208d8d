"""The learning rate of every step is that of its schedule, however the length of the first epoch is known."""

import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import Job, WithShards, lines  # noqa: E402

LR = 0.1
SCHEDULES = {"constant": ["--schedule", "constant"],
             "warm-up": ["--schedule", "constant", "--warmup-epochs", "1.5"],
             "cosine": ["--schedule", "cosine"],
             "warm cosine": ["--schedule", "cosine", "--warmup-epochs", "0.5"],
             "warm linear": ["--schedule", "linear", "--warmup-epochs", "0.5", "--min-lr", "0.02"],
             "step": ["--schedule", "step", "--step-epochs", "0.5,1,1.25", "--step-factor", "0.5"],
             "late step": ["--schedule", "step", "--step-epochs", "1"]}
WITHOUT_LENGTH = ("constant", "late step")  # whose rate is one in the first epoch
EPOCHS = 2


def option(words, name, default):
    return words[words.index(name) + 1] if name in words else default


def rate(words, epoch):
    warm = float(option(words, "--warmup-epochs", 0))
    if epoch < warm:
        return LR * (0.01 + 0.99 * epoch / warm)
    schedule = option(words, "--schedule", "step")
    if schedule == "cosine":
        return LR * (1 + math.cos(math.pi * min((epoch - warm) / (EPOCHS - warm), 1))) / 2
    if schedule == "linear":
        least = float(option(words, "--min-lr", 0))
        return least + (LR - least) * (1 - min((epoch - warm) / (EPOCHS - warm), 1))
    at = [float(n) for n in option(words, "--step-epochs", "30,60,80").split(",")] if schedule == "step" else []
    return LR * float(option(words, "--step-factor", 0.1)) ** sum(epoch >= n for n in at)


class Rates(WithShards):
    train_counts = (6, 203)

    def setUp(self):
        super().setUp()
        self.index = self.folder / "i.json"
        made = harness.run("millrace", "index", self.shards, "-o", self.index)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.metrics = self.folder / "m.jsonl"

    def run_of(self, words, world=1):
        job = Job(world, lambda r: [], [*words, "--lr", LR, "--epochs", EPOCHS, "--metrics", self.metrics, "--overwrite"])
        job.wait()
        return job

    def taken(self):
        return [(l["epoch"], l["batch"], l["lr"]) for l in lines(self.metrics) if "batch" in l]

    def check(self, words, world=1):
        """Of each step: the formula, with the length that the epoch turned out to have."""
        job = self.run_of(words, world)
        self.assertEqual(job.codes, [0] * world, "\n".join(job.texts))
        taken = self.taken()
        lengths = [sum(epoch == e for epoch, _, _ in taken) for e in range(EPOCHS)]
        # Later epochs of shards without an index are taken to be as long as the one before.
        known = [lengths[0], lengths[1] if "--index" in words else lengths[0]]
        for epoch, batch, lr in taken:
            expected = rate(words, epoch + min((batch - 1) / known[epoch], 1))
            self.assertAlmostEqual(lr, expected, delta=1e-12 + 1e-9 * LR, msg=f"epoch {epoch} batch {batch} of {known}")
        return lengths

    def test_every_schedule_with_every_length(self):
        lengths = {"counted": [], "index": ["--index", self.index], "batches": ["--epoch-batches", 9],
                   "samples": ["--epoch-samples", 88], "index and batches": ["--index", self.index, "--epoch-batches", 9]}
        for schedule, words in SCHEDULES.items():
            for how, more in lengths.items():
                with self.subTest(schedule=schedule, how=how):
                    took = self.check(["--shards", self.shards, *words, *more])
                    self.assertEqual(took, {"counted": [25, 25], "index": [25, 25], "samples": [11, 11]}.get(how, [9, 9]))

    def test_ranks_of_unequal_shares(self):
        for world in 2, 3:
            for words in SCHEDULES["warm cosine"], SCHEDULES["step"]:
                for how in [], ["--lanes", 4], ["--index", self.index], ["--epoch-batches", 5]:
                    with self.subTest(world=world, words=words[1], how=how):
                        self.check(["--shards", self.shards, *words, *how], world)

    def test_of_unknown_length_what_needs_it_is_refused(self):
        with harness.PlainServer(self.data) as server:
            remote = self.shards.replace(str(self.data), server.url)
            for schedule, words in SCHEDULES.items():
                with self.subTest(schedule=schedule):
                    self.metrics.unlink(missing_ok=True)
                    folder = self.folder / schedule
                    job = self.run_of(["--shards", remote, *words, "--checkpoint-dir", folder])
                    if schedule in WITHOUT_LENGTH:
                        self.assertEqual(job.codes, [0], job.texts)
                        continue
                    self.assertEqual((job.codes, job.kinds()), ([2], ["usage"]), job.texts)
                    said = job.texts[0].splitlines()[-1]
                    for part in (next(w for w in reversed(words) if w in said), "--index", "--epoch-samples", "--epoch-batches"):
                        self.assertIn(part, said)
                    self.assertFalse(self.metrics.exists() or folder.exists(), "it wrote")
            self.check(["--shards", remote, *SCHEDULES["warm cosine"], "--epoch-batches", 9])
            self.check(["--shards", remote, *SCHEDULES["warm cosine"], "--index", self.index])

    def test_where_no_index_can_be_none_is_named(self):
        with open(self.data / "train-000000.tar", "rb") as file:
            done = training.train("--shards", f"pipe:cat {self.data}/train-000000.tar", "--allow-pipe", "--schedule", "cosine")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertNotIn("--index", done.stderr)
            self.assertIn("--epoch-batches", done.stderr)
            done = training.train("--shards", "-", "--epochs", 1, "--warmup-epochs", 0.5, stdin=file)
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_resumed_first_epoch_has_the_length_that_it_had(self):
        words = ["--shards", self.shards, *SCHEDULES["warm cosine"]]
        self.check(words)
        whole = self.taken()
        for at in 3, 25, 30:
            folder = self.folder / f"c{at}"
            self.metrics.unlink()
            common = [*words, "--lr", LR, "--epochs", EPOCHS, "--metrics", self.metrics, "--checkpoint-dir", folder,
                      "--resume", "auto"]
            for more in ["--max-steps", at], []:
                done = training.train(*common, *more)
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.taken(), whole)

    def test_a_resumed_run_has_the_length_that_it_is_given(self):
        words = ["--shards", self.shards, *SCHEDULES["cosine"], "--lr", LR, "--epochs", EPOCHS, "--metrics", self.metrics,
                 "--resume", "auto"]
        for n, (size, length) in enumerate(((8, 40), (24, 20), (8, 7))):
            with self.subTest(size=size, length=length):
                self.metrics.unlink(missing_ok=True)
                common = [*words, "--checkpoint-dir", self.folder / f"c{n}"]
                for more in (["--epoch-batches", 20, "--max-steps", 5], ["--epoch-batches", length, "--batch-size", size]):
                    done = training.train(*common, *more)
                    self.assertEqual(done.returncode, 0, done.stderr)
                resumed = self.taken()[5:]
                self.assertEqual([b for e, b, _ in resumed if e == 1], list(range(1, length + 1)))
                for epoch, batch, lr in resumed:
                    expected = rate(SCHEDULES["cosine"], epoch + min((batch - 1) / length, 1))
                    self.assertAlmostEqual(lr, expected, delta=1e-12, msg=f"epoch {epoch} batch {batch} of {length}")

    def test_after_the_first_epoch_its_length_is_known(self):
        with harness.PlainServer(self.data) as server:
            remote = self.shards.replace(str(self.data), server.url)
            common = ["--shards", remote, "--epochs", EPOCHS, "--metrics", self.metrics, "--checkpoint-dir",
                      self.folder / "c", "--resume", "auto", "--lr", LR]
            for more, code in ((["--max-steps", 25], 0), (["--max-steps", 30, *SCHEDULES["cosine"]], 0)):
                done = training.train(*common, *more)
                self.assertEqual(done.returncode, code, done.stderr)
        second = [(b, lr) for e, b, lr in self.taken() if e == 1]
        self.assertEqual(len(second), 5)
        for batch, lr in second:
            self.assertAlmostEqual(lr, rate(SCHEDULES["cosine"], 1 + (batch - 1) / 25), delta=1e-12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
