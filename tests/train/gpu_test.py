"""millrace-train on a GPU: run by bench/gpu.sh on a machine that has one; elsewhere it says that it skips."""

import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import training  # noqa: E402


def has_gpu():
    tool = shutil.which("nvidia-smi")
    return bool(tool) and "GPU" in subprocess.run([tool, "-L"], capture_output=True, text=True).stdout


@unittest.skipUnless(has_gpu(), "there is no GPU here")
class OnAGpu(training.WithShards):
    val_counts = (2, 40)

    def losses(self, device, *more):
        """Of all steps of a run, by step."""
        metrics = self.folder / f"{len(list(self.folder.iterdir()))}.jsonl"
        done = training.train("--shards", self.shards, "--val-shards", self.val, "--epochs", 2, "--device", device, "--no-amp",
                              "--metrics", metrics, *more, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return training.steps(metrics)

    def test_the_losses_are_those_of_the_cpu(self):
        for model in "trivial", "resnet18":
            with self.subTest(model):
                words = ["--model", model, "--size", 40, "--lr", 0.001]
                ours, theirs = self.losses("cuda", *words), self.losses("cpu", *words)
                self.assertEqual(list(ours), list(theirs), "every step has its line")
                for step in ours:
                    self.assertAlmostEqual(ours[step], theirs[step], delta=0.02, msg=f"step {step}")

    def test_saved_in_the_background_and_resumed_it_goes_on_as_unbroken(self):
        whole = self.losses("cuda")
        saved = ["--checkpoint-dir", self.folder / "c", "--resume", "auto", "--checkpoint-every", 3]
        begun = self.losses("cuda", *saved, "--max-steps", 10)
        rest = self.losses("cuda", *saved)
        for step, loss in (begun | rest).items():
            self.assertAlmostEqual(loss, whole[step], delta=1e-3, msg=f"step {step}")
        self.assertEqual(list(begun | rest), list(whole))

    def test_amp_and_graphs_train(self):
        for more in (["--amp"], ["--amp", "--graph"]):
            with self.subTest(more):
                losses = list(self.losses("cuda", *more).values())
                self.assertLess(sum(losses[-5:]), sum(losses[:5]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
