"""Runs with every optimizer, with averaged weights and with batches in parts: resumed, they are what an uninterrupted run is; and
models and optimizers that do not fit are refused in plain words. tests/parity/training_parity.py compares them with torch's."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import training  # noqa: E402
from tests.support.training import Job, WithShards, lines, steps  # noqa: E402

OPTIMIZERS = {"sgd": ["--nesterov", "--no-decay", "norms", "--clip-norm", 1],
              "adamw": ["--optimizer", "adamw", "--lr", 0.001, "--weight-decay", 0.05, "--betas", "0.8,0.9"],
              "lars": ["--optimizer", "lars", "--lr", 0.1, "--trust-coefficient", 0.01]}


def tensors(file):
    """The names of a safetensors file's tensors, with their values as bytes."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return {name: content[8 + length:][slice(*at["data_offsets"])]
            for name, at in json.loads(content[8:8 + length]).items() if name != "__metadata__"}


class OptimizersTest(WithShards):
    val_counts = (1, 20)
    size = 40

    def train(self, *words, code=0):
        done = training.train("--shards", self.shards, *words)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def newest(self, folder):
        return max((self.folder / folder).glob("step-*"))

    def check_resumed(self, *words, last=9):
        """Of a run that is stopped after some steps, and of one that is not: the same bytes."""
        common = ["--epochs", 2, "--schedule", "cosine", *words]
        self.train(*common, "--checkpoint-dir", self.folder / "whole", "--max-steps", last, "--overwrite")
        self.train(*common, "--checkpoint-dir", self.folder / "parts", "--max-steps", last - 5, "--overwrite")
        self.train(*common, "--checkpoint-dir", self.folder / "parts", "--max-steps", last, "--resume", "auto")
        whole, parts = self.newest("whole"), self.newest("parts")
        self.assertEqual(whole.name, parts.name)
        names = sorted(path.name for path in whole.glob("*.safetensors"))
        self.assertEqual(names, sorted(path.name for path in parts.glob("*.safetensors")))
        for name in names:
            self.assertEqual((whole / name).read_bytes(), (parts / name).read_bytes(), name)
        return whole


class ResumedOptimizers(OptimizersTest):
    def test_each_continues_exactly(self):
        for name, words in OPTIMIZERS.items():
            for model in ["--model", "trivial"], ["--model", "resnet18", "--size", 32, "--batch-size", 4]:
                with self.subTest(name, model=model[1]):
                    saved = self.check_resumed(*words, *model, "--ema-decay", 0.9)
                    self.assertIn("ema.safetensors", [path.name for path in saved.iterdir()])

    def test_what_a_model_draws_is_the_same_after_a_resume(self):
        self.check_resumed("--model", "convnext_tiny", "--size", 32, "--batch-size", 3, "--optimizer", "adamw", last=7)

    def test_the_names_of_the_state(self):
        for name, ends in (("sgd", [""]), ("adamw", [".exp_avg", ".exp_avg_sq"]), ("lars", [".momentum"])):
            self.train(*OPTIMIZERS[name], "--max-steps", 3, "--checkpoint-dir", self.folder / name)
            saved = tensors(self.newest(name) / "optimizer.safetensors")
            expected = {p + end for p in ("fc.weight", "fc.bias") for end in ends} | ({"step"} if name == "adamw" else set())
            self.assertEqual(set(saved), expected)
        self.assertEqual(int.from_bytes(tensors(self.newest("adamw") / "optimizer.safetensors")["step"], "little"), 3)

    def test_another_optimizer_is_refused(self):
        for one, other in (("sgd", "adamw"), ("adamw", "lars"), ("lars", "sgd")):
            folder = self.folder / one
            self.train(*OPTIMIZERS[one], "--max-steps", 2, "--checkpoint-dir", folder)
            said = self.train(*OPTIMIZERS[other], "--max-steps", 4, "--checkpoint-dir", folder, "--resume", "auto", code=2)
            self.assertIn(f"--optimizer {other} instead of {one}", said)

    def test_a_checkpoint_of_a_version_without_optimizers_is_resumed(self):
        folder = self.folder / "older"
        self.train("--max-steps", 4, "--checkpoint-dir", folder)
        with training.changed_meta(self.newest("older")) as meta:
            for name in ("--optimizer", "--betas", "--no-decay", "--ema-decay", "--accumulate", "--recipe", "--min-lr"):
                del meta["arguments"][name]
        said = self.train("--max-steps", 6, "--checkpoint-dir", folder, "--resume", "auto")
        self.assertNotIn("resuming with", said)
        said = self.train("--max-steps", 8, "--checkpoint-dir", folder, "--resume", "auto", "--optimizer", "adamw", code=2)
        self.assertIn("--optimizer adamw instead of sgd", said)

    def test_options_of_another_optimizer_are_refused(self):
        for words, part in ((["--betas", "0.9,0.9"], "--betas needs --optimizer adamw"),
                            (["--optimizer", "adamw", "--momentum", 0.9], "--momentum needs --optimizer sgd or lars"),
                            (["--optimizer", "adamw", "--nesterov"], "--nesterov needs --optimizer sgd or lars"),
                            (["--eps", 1e-3], "--eps needs --optimizer adamw or lars"),
                            (["--trust-coefficient", 1], "--trust-coefficient needs --optimizer lars"),
                            (["--optimizer", "adamw", "--betas", "1,0.9"], "--betas"),
                            (["--optimizer", "adamw", "--betas", "0.9"], "--betas"),
                            (["--power", 2], "--power needs --schedule polynomial"),
                            (["--schedule", "cosine", "--min-lr", 1], "--min-lr 1 is above --lr 0.01"),
                            (["--schedule", "one-cycle", "--warmup-epochs", 1], "--warmup-epochs cannot be combined"),
                            (["--optimizer", "adam"], "'adam' is not one of adamw, lars, sgd")):
            with self.subTest(words):
                self.assertIn(part, self.train(*words, "--max-steps", 1, code=2))


class Accumulating(OptimizersTest):
    # Without normalisation over the batch.
    MODEL = ["--model", "vit_s_16", "--size", 32, "--batch-size", 8, "--optimizer", "adamw", "--lr", 1e-4, "--eps", 1e-3]

    def losses(self, *words, world=1):
        metrics = self.folder / "m.jsonl"
        job = Job(world, lambda r: [], ["--shards", self.shards, *self.MODEL, "--max-steps", 6, "--metrics", metrics, "--overwrite",
                                        "--log-every", 0, "--metrics-keys", *words])
        job.wait()
        self.assertEqual(job.codes, [0] * world, "\n".join(job.texts))
        return steps(metrics), training.trained_keys(metrics, world)

    def test_a_step_of_parts_is_a_step_of_the_whole(self):
        for world in 1, 2:
            whole, keys = self.losses(world=world)
            for parts in 2, 3, 8:
                with self.subTest(world=world, parts=parts):
                    others, same_keys = self.losses("--accumulate", parts, world=world)
                    self.assertEqual(keys, same_keys)
                    self.assertEqual(len(others), 6)
                    worst = max(abs(whole[s] - others[s]) for s in whole)
                    self.assertLess(worst, 2e-5)

    def test_mixed_images(self):
        whole, _ = self.losses("--mixup", 0.5)
        others, _ = self.losses("--mixup", 0.5, "--accumulate", 4)
        self.assertLess(max(abs(whole[s] - others[s]) for s in whole), 2e-5)

    def test_it_is_resumed_exactly(self):
        self.check_resumed("--model", "resnet18", "--size", 40, "--batch-size", 6, "--accumulate", 3, last=7)

    def test_more_parts_than_images(self):
        self.assertIn("--accumulate 9 is more parts than --batch-size 8 has images", self.train("--accumulate", 9, code=2))
        said = self.train("--accumulate", 8, "--model", "resnet18", "--size", 32, code=2)
        self.assertIn("--accumulate 8 of --batch-size 8 cannot be combined with --model resnet18", said)


class Averages(OptimizersTest):
    def test_they_are_validated_and_are_none_of_the_trained(self):
        common = ["--max-steps", 10, "--val-shards", self.val, "--lr", 0.05]
        figures, trained = {}, {}
        for name, words in (("none", []), ("ema", ["--ema-decay", 0.8])):
            metrics = self.folder / f"{name}.jsonl"
            self.train(*common, *words, "--metrics", metrics, "--checkpoint-dir", self.folder / name)
            figures[name] = next(line["loss"] for line in lines(metrics) if "validation" in line and "top1" in line)
            trained[name] = steps(metrics)
        self.assertEqual(trained["none"], trained["ema"])
        self.assertNotEqual(figures["none"], figures["ema"])
        saved = self.newest("ema")
        self.assertEqual((saved / "model.safetensors").read_bytes(), (self.newest("none") / "model.safetensors").read_bytes())
        self.assertFalse((self.newest("none") / "ema.safetensors").exists())
        # The average alone is what was validated.
        metrics = self.folder / "alone.jsonl"
        self.train("--val-shards", self.val, "--init-weights", saved / "ema.safetensors", "--max-steps", 1, "--lr", 0, "--metrics",
                   metrics)
        alone = next(line["loss"] for line in lines(metrics) if "validation" in line and "top1" in line)
        self.assertAlmostEqual(alone, figures["ema"], delta=1e-9)

    def test_each_step_keeps_its_part(self):
        import array
        self.train("--max-steps", 5, "--ema-decay", 0.75, "--checkpoint-every", 1, "--keep", 9, "--checkpoint-dir", self.folder / "c",
                   "--lr", 0.05)
        average = None
        for folder in sorted((self.folder / "c").glob("step-*")):
            weights, saved = (array.array("f", tensors(folder / f"{name}.safetensors")["fc.weight"]) for name in ("model", "ema"))
            if average:
                expected = [0.75 * a + 0.25 * w for a, w in zip(average, weights)]
                self.assertLess(max(abs(e - s) for e, s in zip(expected, saved)), 1e-6)
                self.assertGreater(max(abs(a - w) for a, w in zip(saved, weights)), 1e-6)
            average = saved

    def test_a_resume_without_it_or_with_a_new_one_is_told(self):
        common = ["--checkpoint-dir", self.folder / "c", "--resume", "auto"]
        self.train(*common, "--max-steps", 3)
        said = self.train(*common, "--max-steps", 5, "--ema-decay", 0.5)
        self.assertIn("resuming with --ema-decay 0.5 instead of 0", said)
        self.assertTrue((self.newest("c") / "ema.safetensors").exists())
        self.assertIn("resuming with --ema-decay 0 instead of 0.5", self.train(*common, "--max-steps", 7))
        self.assertFalse((self.newest("c") / "ema.safetensors").exists())

    def test_a_damaged_one_is_not_resumed(self):
        self.train("--checkpoint-dir", self.folder / "c", "--max-steps", 3, "--ema-decay", 0.5)
        file = self.newest("c") / "ema.safetensors"
        whole = bytearray(file.read_bytes())
        training.replace_in_checkpoint(self.newest("c"), file.name, bytes(whole[:-4] + b"\0\0\xc0\x7f"))  # NaN
        said = self.train("--checkpoint-dir", self.folder / "c", "--max-steps", 5, "--ema-decay", 0.5, "--resume", "auto", code=1)
        self.assertIn("is not finite", said)


class WrongModels(OptimizersTest):
    def test_sizes_and_options_that_do_not_fit(self):
        for words, part in ((["--model", "vit_s_16", "--size", 40], "--model vit_s_16 does not take images of 40 pixels"),
                            (["--model", "vit_s_16", "--size", 40], "multiple of 16"),
                            (["--model", "vit_s_16", "--size", 64, "--grow-from", 32, "--grow-epochs", 2],
                             "--grow-from cannot be combined with --model vit_s_16, which takes images of one size"),
                            (["--model", "convnext_tiny", "--size", 24], "use 32 pixels or more"),
                            (["--model", "vit_s_16", "--size", 32, "--zero-init-last-norm"],
                             "--zero-init-last-norm cannot be combined with --model vit_s_16"),
                            (["--model", "resnet18", "--init-weights", "w", "--zero-init-last-norm"],
                             "--zero-init-last-norm cannot be combined with --init-weights")):
            with self.subTest(words):
                said = self.train(*words, "--max-steps", 1, "--checkpoint-dir", self.folder / "c", code=2)
                self.assertIn(part, said)
                self.assertFalse((self.folder / "c").exists())

    def test_weights_of_another_size_are_refused(self):
        self.train("--model", "vit_s_16", "--size", 32, "--max-steps", 1, "--checkpoint-dir", self.folder / "c", "--batch-size", 2)
        said = self.train("--model", "vit_s_16", "--size", 48, "--max-steps", 1, "--batch-size", 2, "--init-weights",
                          self.newest("c") / "model.safetensors", code=1)
        self.assertIn("encoder.pos_embedding", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
