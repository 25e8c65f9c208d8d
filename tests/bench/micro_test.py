"""The micro-benchmarks: that each one runs, and what bench/micro/run says of their times."""
import importlib.machinery
import importlib.util
import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ["MILLRACE_TEST_BIN"]) / "micro_bench"


def load_runner():
    loader = importlib.machinery.SourceFileLoader("micro_run", str(ROOT / "bench/micro/run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("micro_run", loader))
    loader.exec_module(module)
    return module


runner = load_runner()


@unittest.skipUnless(PROGRAM.exists(), "micro_bench is of release builds")
class Micro(unittest.TestCase):
    def test_each_runs_and_has_a_time(self):
        times = runner.one_round(PROGRAM, ".", 0.001)
        for part in ("tar_headers", "grouping", "shuffling", "state_to_json", "jpeg_to_slot", "resample", "parse_url",
                     "http_transfer", "queue_between_threads", "channel_between_coroutines", "offload_of_nothing"):
            self.assertTrue(any(name.startswith(part) for name in times), part)
        self.assertTrue(all(time > 0 for time in times.values()), times)

    def test_a_pattern_that_matches_nothing_is_an_error(self):
        with self.assertRaisesRegex(SystemExit, "no benchmark matches 'no_such_part'"):
            runner.one_round(PROGRAM, "no_such_part", 0.001)


class Verdicts(unittest.TestCase):
    def test_a_difference_within_the_noise_is_none(self):
        self.assertEqual(runner.verdict(1.1, 0.2), "same")
        self.assertEqual(runner.verdict(1.01, 0), "same")

    def test_a_difference_beyond_it_is_told(self):
        self.assertEqual(runner.verdict(2.0, 0.2), "2.00 x the time")
        self.assertEqual(runner.verdict(0.5, 0.2), "2.00 x as fast")

    def test_the_noise_is_that_of_the_middle_half(self):
        middle, noise = runner.median_and_noise([90, 95, 100, 105, 1000])
        self.assertEqual(middle, 100)
        self.assertAlmostEqual(noise, 0.1)
        self.assertEqual(runner.median_and_noise([7]), (7, 0))


if __name__ == "__main__":
    unittest.main()
