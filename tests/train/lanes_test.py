"""A run that is resumed with other lanes, or on other ranks: each sample of the epoch comes once."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.training import Job, WithShards, lines  # noqa: E402

SAMPLES = 60


def images_in(path):
    """Of a file of a recorded batch: the images, as bytes."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    images = json.loads(content[8:start])["images"]
    begin, end = images["data_offsets"]
    size = (end - begin) // images["shape"][0]
    return [content[start + at:start + at + size] for at in range(begin, end, size)]


class Lanes(WithShards):
    train_counts = (7, SAMPLES)

    def run_of(self, world, lanes, *more):
        job = Job(world, lambda r: [], [
            "--shards", self.shards, "--lanes", lanes, "--batch-size", 1, "--shuffle", 10, "--no-augment", "--epochs", 1,
            "--checkpoint-dir", self.at / "c", "--resume", "auto", "--record-batches", self.at / "b", "--metrics",
            self.at / "m.jsonl", *more])
        job.wait()
        return job

    def check_once(self, *starts, more=()):
        """Runs one after the other, each (ranks, lanes, steps in all); the last one ends the epoch."""
        self.at = self.folder / "-".join(f"{w}x{l}" for w, l, _ in starts)
        self.at.mkdir()
        for world, lanes, steps in starts:
            job = self.run_of(world, lanes, *more, *(["--max-steps", steps] if steps else []))
            self.assertEqual(job.codes, [0] * world, "\n".join(job.texts))
        seen = [image for path in sorted((self.at / "b").iterdir()) for image in images_in(path)]
        self.assertEqual(len(set(seen)), len(seen), "a sample came twice")
        last = [lines(self.at / ("m.jsonl" + (f".rank{r}" if r else "")))[-1] for r in range(starts[-1][0])]
        self.assertEqual(len(seen) + sum(line["dropped"] for line in last), SAMPLES)

    def test_lanes_that_ranks_cannot_share_evenly_are_told(self):
        for lanes, mode, is_told in ((3, "equal", True), (4, "equal", False), (3, "exact", False)):
            with self.subTest(lanes=lanes, mode=mode):
                job = Job(2, lambda r: [], ["--shards", self.shards, "--lanes", lanes, "--mode", mode, "--max-steps", 1])
                job.wait()
                self.assertEqual(job.codes, [0, 0], job.texts)
                told = f"{lanes} lanes cannot be divided evenly among 2 ranks"
                self.assertEqual([told in text for text in job.texts], [is_told, False])

    def test_other_lanes_on_as_many_ranks(self):
        for world in 1, 2, 3, 4:
            for then, now in ((2, 3), (3, 1)):
                with self.subTest(world=world, lanes=(then * world, now * world)):
                    self.check_once((world, then * world, 4), (world, now * world, None))

    def test_other_lanes_on_other_ranks_and_back(self):
        for starts in (((2, 8, 3), (3, 9, 6), (2, 8, None)), ((3, 4, 3), (3, 5, 6), (3, 4, None)),
                       ((2, 8, 3), (2, 12, 6), (2, 8, 9), (2, 6, None)), ((4, 8, 2), (1, 12, 5), (4, 12, None))):
            with self.subTest(starts=starts):
                self.check_once(*starts)

    def test_what_an_index_leaves_out_of_a_resumed_epoch_is_counted_once(self):
        index = self.folder / "i.json"
        made = harness.run("millrace", "index", "create", self.shards, "-o", index)
        self.assertEqual(made.returncode, 0, made.stderr)
        # Lanes that leave out four, none, and five of the samples.
        for starts in (((1, 8, 5), (1, 2, None)), ((1, 2, 5), (1, 8, None)), ((1, 8, 5), (1, 8, None)),
                       ((1, 8, 5), (1, 2, 9), (1, 11, None)), ((2, 8, 3), (1, 11, 8), (2, 2, None))):
            with self.subTest(starts=starts):
                self.check_once(*starts, more=["--index", index])

    def test_what_cannot_be_resumed_so_names_the_option_and_the_number(self):
        # One rank has two of the three shards, and the other is in its next pass before.
        common = ["--shards", self.shards.replace("6}", "2}"), "--epoch-batches", 100, "--batch-size", 1, "--shuffle", 0,
                  "--checkpoint-dir", self.folder / "c", "--resume", "auto", "--prefetch", 1]
        for lanes, steps, code in ((2, 12, 0), (4, 13, 1), (2, 13, 0)):
            job = Job(2, lambda r: [], [*common, "--lanes", lanes, "--max-steps", steps])
            self.assertEqual(job.wait(), [code] * 2, job.texts)
            if code == 0:
                continue
            self.assertEqual(job.kinds(), ["bad_state"] * 2)
            self.assertIn("(--lanes 2)", job.texts[0])
            self.assertNotIn("shard_list_options", job.texts[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
