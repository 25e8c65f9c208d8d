"""--synthetic: training on batches that are made once, alone and on ranks."""

import json
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402


class Synthetic(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.Folder())

    def test_it_takes_its_steps_and_says_how_fast(self):
        metrics = self.folder / "m.jsonl"
        done = training.train("--synthetic", "--max-steps", 20, "--metrics", metrics, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((found["step"], found["samples"], found["end"]), (20, 160, "done"))
        losses = training.steps(metrics)
        self.assertEqual(sorted(losses), list(range(1, 21)))
        self.assertLess(losses[20], losses[1], "the same batches again and again are learnt")

    def test_on_two_ranks_and_ended_by_a_signal(self):
        job = training.Job(2, lambda r: ["--metrics", self.folder / f"{r}"], ["--synthetic", "--max-steps", 10_000_000])
        harness.wait_until(lambda: training.taken(self.folder / "0") > 3)
        job.ranks[1].send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(), [143, 143], job.texts)

    def test_a_loss_that_is_not_finite_is_an_error(self):
        done = training.train("--synthetic", "--max-steps", 20, "--lr", "1e30")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("not finite from step", done.stderr)

    def test_what_it_does_not_use_is_refused(self):
        for more, said in ((["--shards", "x.tar"], "--shards"), (["--checkpoint-dir", "c"], "--checkpoint-dir"),
                           (["--mode", "exact"], "--mode exact")):
            with self.subTest(said):
                done = training.train("--synthetic", "--max-steps", 2, *more)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"--synthetic cannot be combined with {said}", done.stderr)
        done = training.train("--synthetic")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--max-steps", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
