"""Exact epochs: each sample is trained on once, also in batches that are smaller and by ranks that have more than others."""

import collections
import pathlib
import shutil
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402

BATCH = 4


class ExactEpochs(training.WithShards):
    train_counts = (7, 108)  # of three ranks, one has three shards, the others two
    val_counts = (3, 17)

    def setUp(self):
        super().setUp()
        self.metrics = self.folder / "m.jsonl"

    def words(self, *more):
        return ["--shards", self.shards, "--mode", "exact", "--batch-size", BATCH, "--metrics", self.metrics, "--metrics-keys",
                "--epochs", 2, *more]

    def train(self, world, *more):
        job = training.Job(world, lambda r: [], self.words(*more))
        self.assertEqual(job.wait(), [0] * world, job.texts)

    def check_epochs(self, epochs=2):
        trained = training.trained_keys(self.metrics)
        self.assertEqual(sorted(trained), list(range(epochs)))
        for epoch, keys in trained.items():
            self.assertEqual({n for n in collections.Counter(keys).values()}, {1}, f"of epoch {epoch}")
            self.assertEqual(len(keys), self.train_counts[1], f"of epoch {epoch}")

    def steps_of(self, rank, epoch=0):
        path = f"{self.metrics}.rank{rank}" if rank else self.metrics
        return [line for line in training.lines(path) if "batch" in line and line["epoch"] == epoch]

    def test_alone_the_last_batch_is_smaller(self):
        self.shards = harness.fake(self.folder, "t", 3, 30, size=16)
        self.train(1)
        for epoch in 0, 1:
            self.assertEqual([len(s["keys"]) for s in self.steps_of(0, epoch)], [4] * 7 + [2])
        for keys in training.trained_keys(self.metrics).values():
            self.assertEqual(len(set(keys)), 30)

    def test_ranks_have_different_numbers_of_batches(self):
        self.train(3, "--val-shards", self.val, "--lanes", 3)
        self.check_epochs()
        counts = [len(self.steps_of(rank)) for rank in range(3)]
        self.assertEqual(sorted(counts), [8, 8, 12], "batches of 4, of 31, 31 and 46 samples")
        validated = [line for line in training.lines(self.metrics) if line.get("validation")]
        self.assertEqual([v["images"] for v in validated], [17, 17])

    def test_with_places_in_an_index_the_ranks_have_the_same_number(self):
        index = self.folder / "i.json"
        done = harness.run("millrace", "index", "create", "--offsets", self.shards, "-o", index)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.train(4, "--index", index, "--lanes", 4)
        self.check_epochs()
        self.assertEqual({len(self.steps_of(rank)) for rank in range(4)}, {7}, "batches of 4, of 27 samples each")

    def test_class_folders(self):
        shard = harness.fake(self.folder, "t", 1, 11, size=16).replace("{000000..000000}", "000000")
        with tarfile.open(shard) as tar:
            images = [m for m in tar if m.name.endswith(".jpg")]
            for i, member in enumerate(images):
                (self.folder / f"raw/{i % 2}").mkdir(parents=True, exist_ok=True)
                (self.folder / f"raw/{i % 2}" / member.name).write_bytes(tar.extractfile(member).read())
        words = ["--raw", self.folder / "raw", "--mode", "exact", "--batch-size", BATCH, "--metrics", self.metrics,
                 "--metrics-keys", "--epochs", 2]
        job = training.Job(2, lambda r: [], words)
        self.assertEqual(job.wait(), [0, 0], job.texts)
        for keys in training.trained_keys(self.metrics).values():
            self.assertEqual(len(keys), 11)
            self.assertEqual(len(set(keys)), 11)

    def test_resumed_where_a_rank_has_none_left(self):
        """Within the rest, by the same ranks: the same losses; by others: each sample once."""
        whole = self.folder / "whole.jsonl"
        self.train(3, "--lanes", 3, "--metrics", whole)
        # Two ranks have 8 batches in an epoch, the third has 12.
        for step, worlds in ((7, [3]), (8, [3, 1]), (9, [5]), (10, [3, 1, 5]), (11, [1]), (12, [3, 5]), (13, [1])):
            begun = self.folder / f"{step}"
            self.metrics = self.folder / f"{step}.jsonl"
            self.train(3, "--lanes", 3, "--max-steps", step, "--checkpoint-dir", begun)
            of_ranks = {of: pathlib.Path(f"{self.metrics}{of}").read_text() for of in ("", ".rank1", ".rank2")}
            for world in worlds:
                with self.subTest(step=step, world=world):
                    self.metrics = self.folder / f"{step}-{world}.jsonl"
                    for of, text in of_ranks.items():
                        pathlib.Path(f"{self.metrics}{of}").write_text(text)
                    saved = shutil.copytree(begun, self.folder / f"{step}-{world}")
                    self.train(world, "--lanes", 3 if world == 3 else 15, "--checkpoint-dir", saved, "--resume", "auto")
                    self.check_epochs()
                    if world == 3:
                        self.assertEqual([training.steps(f"{self.metrics}{of}") for of in of_ranks],
                                         [training.steps(f"{whole}{of}") for of in of_ranks])

    def test_what_cannot_be_combined_is_refused(self):
        done = training.train(*self.words("--epoch-batches", 3))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--mode exact", done.stderr)
        done = training.train(*self.words("--model", "resnet18", "--size", 32))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("may be of one", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
