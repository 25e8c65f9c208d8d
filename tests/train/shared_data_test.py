"""Ranks that share parts of the data, --data-world and --data-rank: those of one part read the same samples, and count as one."""

import collections
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import lines, steps  # noqa: E402

SAMPLES = 300


class SharedData(training.WithShards):
    train_counts = (10, SAMPLES)
    val_counts = (2, 30)

    def job(self, world, *common, parts=None, numbers=None, own=lambda rank: ()):
        """A job whose ranks have finished. `parts`: --data-world; `numbers`: the --data-rank of each rank."""
        if parts is not None:
            common = ["--data-world", parts, *common]
        job = training.Job(world, lambda r: [*(["--data-rank", numbers[r]] if numbers else []), *own(r)],
                           ["--shards", self.shards, *common])
        job.wait()
        return job

    def ended(self, *job, code=0, **terms):
        done = self.job(*job, **terms)
        self.assertEqual(set(done.codes), {code}, "\n".join(done.texts))
        return done

    def keys(self, metrics, ranks):
        """The keys that each of these ranks has trained on, by epoch."""
        out = []
        for rank in ranks:
            of = collections.defaultdict(list)
            for line in lines(f"{metrics}.rank{rank}" if rank else metrics):
                if "batch" in line:
                    of[line["epoch"]] += line["keys"]
            out.append(of)
        return out

    def test_ranks_that_read_the_same_are_to_the_bit_one_rank(self):
        for name, more in (("equal", ["--model", "resnet18", "--size", 16, "--epochs", 1, "--max-steps", 12]),
                           ("exact", ["--mode", "exact", "--epochs", 2, "--clip-norm", 0.5, "--ema-decay", 0.9, "--accumulate", 2])):
            with self.subTest(name):
                weights, losses = [], []
                for ranks, parts in (1, None), (2, 1):
                    folder, metrics = self.folder / f"{name}{ranks}", self.folder / f"{name}{ranks}.jsonl"
                    self.ended(ranks, *more, "--checkpoint-dir", folder, "--metrics", metrics, parts=parts)
                    newest = sorted(folder.glob("step-*"))[-1]
                    weights.append((newest / "model.safetensors").read_bytes())
                    losses.append(steps(metrics))
                    self.assertEqual(sorted(p.name for p in newest.glob("data-rank*")), ["data-rank0.json"])
                self.assertEqual(losses[0], losses[1])
                self.assertEqual(weights[0], weights[1])

    def test_each_sample_is_trained_on_once_by_the_ranks_of_its_part(self):
        metrics = self.folder / "m.jsonl"
        for numbers, first in ((None, (0, 2)), ([0, 1, 0, 1], (0, 1)), ([1, 0, 0, 1], (1, 0))):
            with self.subTest(numbers):
                self.ended(4, "--mode", "exact", "--epochs", 2, "--metrics", metrics, "--metrics-keys", "--overwrite", "--lanes", 8,
                           "--checkpoint-dir", self.folder / "ck", parts=2, numbers=numbers)
                of_ranks = self.keys(metrics, range(4))
                parts = numbers or [0, 0, 1, 1]
                for rank in range(4):
                    self.assertEqual(of_ranks[rank], of_ranks[first[parts[rank]]])
                for epoch in 0, 1:
                    both = of_ranks[first[0]][epoch] + of_ranks[first[1]][epoch]
                    self.assertEqual((len(both), len(set(both))), (SAMPLES, SAMPLES))
                newest = sorted((self.folder / "ck").glob("step-*"))[-1]
                self.assertEqual(len(list(newest.glob("data-rank*"))), 2)
        # As two ranks: the same average, but for the order in which numbers are added.
        alone = self.folder / "two.jsonl"
        self.ended(2, "--mode", "exact", "--epochs", 2, "--metrics", alone, "--metrics-keys", "--lanes", 8)
        shared, two = steps(metrics), steps(f"{alone}.rank1")  # rank 0 has part 1
        self.assertEqual(list(shared), list(two))
        for step, loss in two.items():
            self.assertAlmostEqual(shared[step], loss, 5)

    def test_resumed_with_other_parts_each_sample_is_trained_on_once(self):
        for mode in "exact", "equal":
            with self.subTest(mode):
                folder = self.folder / mode
                seen, step = [], 0
                for leg, (ranks, parts, numbers, first) in enumerate(((4, 2, None, (0, 2)), (2, None, None, (0, 1)),
                                                                      (4, 2, [1, 0, 1, 0], (0, 1)), (2, 1, None, (0,)),
                                                                      (4, 4, None, range(4)), (1, None, None, (0,)))):
                    metrics = self.folder / f"{mode}{leg}.jsonl"
                    step += 3
                    last = ["--epochs", 1] if leg == 5 else ["--epochs", 1, "--max-steps", step]
                    self.ended(ranks, "--mode", mode, *last, "--lanes", 8, "--checkpoint-dir", folder, "--resume", "auto",
                               "--batch-size", 4, "--metrics", metrics, "--metrics-keys", parts=parts, numbers=numbers)
                    for of in self.keys(metrics, first):
                        seen += of[0]
                self.assertEqual(len(seen), len(set(seen)), "a sample twice")
                self.assertLessEqual(SAMPLES - len(seen), 0 if mode == "exact" else 3)

    def test_figures_count_each_sample_once(self):
        figures = []
        for ranks, parts in (2, None), (4, 2):
            metrics = self.folder / f"v{ranks}.jsonl"
            place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
            words = ["--shards", self.shards, "--val-shards", self.val, "--epochs", 1, "--mode", "exact", "--json", "--metrics", metrics,
                     *(["--data-world", parts] if parts else [])]
            started = [training.start(*words, env=place | {"RANK": str(r)}, stdout=subprocess.PIPE) for r in range(ranks)]
            out = [process.communicate(timeout=120) for process in started]
            self.assertEqual([p.returncode for p in started], [0] * ranks, out)
            total = json.loads(out[0][0])
            figures.append((total["samples"], total["delivered"], total["dropped"], total["data_world"], total["validation_images"],
                            round(total["validation_loss"], 5)))
            self.assertIn("(16 in all)", out[0][1])
            if parts:
                self.assertIn("4 ranks, 2 for each part of the data; batches of 8 (16 in all)", out[0][1])
        self.assertEqual(figures[0], figures[1])
        self.assertEqual(figures[0][:3], (SAMPLES, SAMPLES, 0))
        self.assertEqual(figures[0][4], 30)

    def test_ranks_that_one_process_starts(self):
        metrics = self.folder / "m.jsonl"
        done = training.train("--shards", self.shards, "--nproc", 4, "--data-world", 2, "--metrics", metrics, "--metrics-keys",
                              "--max-steps", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        of_ranks = self.keys(metrics, range(4))
        self.assertEqual([of_ranks.index(of) for of in of_ranks], [0, 0, 2, 2])
        begun = [lines(f"{metrics}.rank{r}" if r else metrics)[0] for r in range(4)]
        self.assertEqual([(b["rank"], b["data_rank"], b["data_world"]) for b in begun], [(0, 0, 2), (1, 0, 2), (2, 1, 2), (3, 1, 2)])

    def test_what_cannot_be_shared_is_refused_by_name(self):
        for ranks, parts, numbers, what in (
                (4, 3, None, "--data-world 3 does not divide the 4 ranks"),
                (2, 4, None, "--data-world 4 does not divide the 2 ranks"),
                (4, 2, [0, 0, 0, 1], "3 of the 4 ranks have --data-rank 0, and with --data-world 2 it has to be 2"),
                (2, 2, [1, 1], "0 of the 2 ranks have --data-rank 0"),
                (2, 2, [2, 0], "--data-rank 2 is not below --data-world 2")):
            with self.subTest(what):
                done = self.ended(ranks, "--max-steps", 1, parts=parts, numbers=numbers, code=2) if numbers != [2, 0] else self.job(
                    1, parts=parts, numbers=numbers)
                for text in done.texts:
                    self.assertIn(f"usage: {what}", text.replace("rank 0: ", ""))
        done = self.ended(2, "--max-steps", 1, own=lambda r: ["--data-world", 1 + r], code=2)
        self.assertIn("the ranks were not started alike: --data-world", done.texts[1])
        for words, what in ((["--data-rank", 0], "--data-rank requires --data-world"),
                            (["--nproc", 2, "--data-world", 2, "--data-rank", 0], "--data-rank is one rank's, and --nproc starts several"),
                            (["--synthetic", "--data-world", 1], "--synthetic cannot be combined with --data-world")):
            shards = [] if "--synthetic" in words else ["--shards", self.shards]
            done = training.train(*shards, "--max-steps", 1, *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(what, done.stderr)

    def test_ranks_of_a_part_that_read_other_samples_end(self):
        other = self.folder / "other"
        other.mkdir()
        harness.fake(other, "train", *self.train_counts, size=self.size, seed=5)
        moved = {"MILLRACE_REWRITE": f"{self.data}/={other}/"}
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        started = [training.start("--shards", self.shards, "--data-world", 1, "--epochs", 3, env=place | {"RANK": str(r)} | (moved if r else {}))
                   for r in (0, 1)]
        texts = [process.communicate(timeout=120)[1] for process in started]
        self.assertEqual([p.returncode for p in started], [5, 5], texts)
        for text in texts:
            self.assertIn("integrity: ranks of one --data-rank have read other samples", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
