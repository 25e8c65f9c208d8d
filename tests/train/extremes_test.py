"""Every numeric option of --help at its ends, and options that would have no effect: a run, or a refusal by name."""

import re
import sys
import pathlib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import WithShards  # noqa: E402

# Options that another one must go with.
WITH = {"--checkpoint-every": ["--checkpoint-dir", "CK"], "--keep": ["--checkpoint-dir", "CK"],
        "--grow-epochs": ["--grow-from", "16", "--model", "resnet18"], "--grow-from": ["--grow-epochs", "2", "--model", "resnet18"],
        "--cache-decoded-resize": ["--cache-decoded", "1M"], "--jitter-part": ["--color-jitter", "0.4,0.4,0.4,0.1"],
        "--betas": ["--optimizer", "adamw"], "--eps": ["--optimizer", "adamw"], "--trust-coefficient": ["--optimizer", "lars"],
        "--min-lr": ["--schedule", "cosine"], "--power": ["--schedule", "polynomial"], "--pct-start": ["--schedule", "one-cycle"],
        "--div-factor": ["--schedule", "one-cycle"], "--final-div-factor": ["--schedule", "one-cycle"],
        "--randaugment-ops": ["--policy", "randaugment"], "--randaugment-magnitude": ["--policy", "randaugment"],
        "--data-rank": ["--data-world", "1"], "--val-batch-size": ["--val-shards", "VAL"], "--restarts": ["--nproc", "1", "--checkpoint-dir", "CK"], "--step-epochs": ["--schedule", "step"]}
# What they take of a machine is as large as they are: the next smaller one is tried.
LARGE = {"--size": "64", "--batch-size": "32", "--classes": "10000", "--nproc": "4"}


def numeric():
    """Options with the ends of their ranges, of the help."""
    text = harness.run("millrace-train", "--help").stdout
    ends = {}
    for name, least, most in re.findall(r"^\s+(--[a-z-]+) \S+:\((\S+) (?:or more|to (\S+?))\)", text, re.M):
        ends[name] = (least, most or None)
    return ends


def with_values():
    """Options that take one, of the help."""
    text = harness.run("millrace-train", "--help").stdout
    return [name for name, unit in re.findall(r"^\s+(--[a-z0-9-]+) ([A-Z][^ a-z]*)(?: |:|$)", text, re.M)]


class Extremes(WithShards):
    train_counts = (2, 40)
    val_counts = (1, 10)

    def run_of(self, *words):
        words = [str(w).replace("CK", str(self.folder / "ck")).replace("VAL", str(self.val)) for w in words]
        done = training.train("--shards", self.shards, "--max-steps", 2, *words)
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
        self.assertNotIn("internal", done.stderr)
        if done.returncode == 1:  # a rate that is too high, or labels beyond the classes
            self.assertRegex(done.stderr, "not finite|bad_label")
        return done

    def test_every_number_at_its_ends(self):
        ends = numeric()
        self.assertGreater(len(ends), 35, ends)
        for name, (least, most) in ends.items():
            # Of a range without an end: the largest whole numbers and others, and what is beyond all.
            values = {LARGE.get(name, most)} if most else {"4611686018427387904", "3e38", "1e308"}
            if least != "0":
                values.add(least)
            for value in sorted(values):
                with self.subTest(option=name, value=value):
                    done = self.run_of(*WITH.get(name, []), name, value)
                    if done.returncode == 2 and "is not" in done.stderr:
                        self.assertIn(name, done.stderr)

    def test_an_empty_value_is_no_value(self):
        """As of "$UNSET" in a script: the option would be switched off in silence, or take the next word."""
        names = with_values()
        self.assertGreater(len(names), 60, names)
        for name in names:
            for words in [name, ""], [f"{name}="]:
                with self.subTest(words):
                    done = self.run_of(*words)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertRegex(done.stderr, f"{name}.*(is empty|has no value|'' is not)")

    def test_lists_of_numbers_at_their_ends(self):
        for words in (["--step-epochs", "0,1e308"], ["--optimizer", "adamw", "--betas", "0,0.9999999"],
                      ["--optimizer", "adamw", "--betas", "1e308,-1"], ["--color-jitter", "1e308,1e308,1e308,1e308"],
                      ["--color-jitter", "-1,-1,-1,-1"]):
            with self.subTest(words):
                self.run_of(*words)

    def test_the_smallest_images_of_which_one_is_a_batch(self):
        self.assertEqual(self.run_of("--model", "resnet18", "--size", 33, "--batch-size", 1).returncode, 0)
        self.assertEqual(self.run_of("--model", "trivial", "--size", 8, "--batch-size", 1).returncode, 0)

    def test_what_does_not_go_together_is_refused(self):
        for words, part in ((["--momentum", 0, "--nesterov"], "--nesterov needs a --momentum above 0"),
                            (["--schedule", "cosine", "--step-epochs", "1,2"], "--step-epochs needs --schedule step"),
                            (["--schedule", "constant", "--step-factor", 0.5], "--step-factor needs --schedule step"),
                            (["--randaugment-ops", 3], "--randaugment-ops needs --policy randaugment"),
                            (["--policy", "autoaugment", "--randaugment-magnitude", 3], "needs --policy randaugment"),
                            (["--jitter-part", 0.5], "--color-jitter"),
                            (["--model", "resnet18", "--size", 32, "--batch-size", 1], "--batch-size 1 cannot be combined"),
                            (["--model", "resnet18", "--size", 64, "--grow-from", 32, "--grow-epochs", 2, "--batch-size", 1],
                             "--batch-size 1 cannot be combined"),
                            (["--min-crop", 0.5, "--no-augment"], "--min-crop cannot be combined with --no-augment"),
                            (["--val-batch-size", 7], "--val-batch-size needs --val-shards or --val-index")):
            with self.subTest(words):
                done = self.run_of(*words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("millrace: usage: ", done.stderr)
                self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
