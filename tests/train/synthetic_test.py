"""--synthetic: training on batches that are made once, alone and on ranks."""

import json
import pathlib
import resource
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

    def test_memory_that_a_step_frees_is_kept_for_the_next(self):
        def faults(steps, variables):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
            done = training.train("--synthetic", "--device", "cpu", "--model", "resnet18", "--size", 64, "--batch-size", 16,
                                  "--max-steps", steps, env=variables)
            self.assertEqual(done.returncode, 0, done.stderr)
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before

        def of_eight_steps(**variables):
            return faults(10, variables) - faults(2, variables)

        as_the_user_says = of_eight_steps(MALLOC_TRIM_THRESHOLD_="131072")  # glibc's own value
        self.assertLess(3 * of_eight_steps(), as_the_user_says)

    def test_a_profile_is_of_ten_steps(self):
        trace = self.folder / "trace.json"
        run = ["--synthetic", "--model", "resnet18", "--size", 16, "--profile"]
        for steps in 40, 25:  # 25: what there was of them; the file of the first run is replaced
            done = training.train(*run, trace, "--max-steps", steps)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"the profile of a few steps is in {trace}", done.stderr)
            calls = [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") == "cpu_op"]
            of_a_step = calls.count("aten::cross_entropy_loss")
            self.assertEqual(of_a_step, min(10, steps - 20), set(calls))
        before = trace.read_bytes()
        done = training.train(*run, trace, "--max-steps", 20)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no profile is written: it begins after 20 steps", done.stderr)
        self.assertEqual(trace.read_bytes(), before)

    def test_a_profile_that_cannot_be_written(self):
        run = ["--synthetic", "--max-steps", 31, "--profile"]
        other = self.folder / "notes.txt"
        other.write_text("precious")
        for where, code, said in ((self.folder / "none/p", 4, "create the folder first"), (other, 2, "is not a profile"),
                                  (self.folder, 2, "folder"), ("s3://b/p", 2, "URL")):
            with self.subTest(where):
                done = training.train(*run, where)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(said, done.stderr)
                self.assertNotIn("images/s", done.stderr, "before the first step")
        self.assertEqual(other.read_text(), "precious")
        done = training.train(*run, "/dev/full")  # as a full disk: the steps are taken, and it is an error
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("done after 31 steps", done.stderr)
        self.assertIn("cannot write the profile", done.stderr)

    def test_of_several_ranks_the_first_writes_a_profile(self):
        trace = self.folder / "trace.json"
        job = training.Job(2, lambda r: [], ["--synthetic", "--max-steps", 40, "--profile", trace])
        self.assertEqual(job.wait(), [0, 0], job.texts)
        self.assertEqual([f"in {trace}" in text for text in job.texts], [True, False])
        self.assertIn("traceEvents", json.loads(trace.read_text()))

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
