"""millrace-train on a GPU: run by bench/gpu.sh on a machine that has one; elsewhere it says that it skips."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402


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

    def assert_alike(self, ours, theirs, delta):
        self.assertEqual(list(ours), list(theirs), "every step has its line")
        for step in ours:
            self.assertAlmostEqual(ours[step], theirs[step], delta=delta, msg=f"step {step}")

    def test_the_losses_are_those_of_the_cpu(self):
        self.assert_alike(self.losses("cuda"), self.losses("cpu"), 0.005)
        # A step of a residual network makes a rounding error a hundred times as large, on one CPU with another instruction set too: rates
        # at which they hardly move, or not at all.
        for words in (["--model", "resnet18", "--size", 40, "--lr", 1e-5], ["--model", "resnet50", "--size", 64, "--lr", 0],
                      ["--model", "vit_s_16", "--size", 32, "--lr", 1e-5], ["--model", "convnext_tiny", "--size", 32, "--lr", 1e-5]):
            with self.subTest(words):
                words += ["--max-steps", 4]
                self.assert_alike(self.losses("cuda", *words), self.losses("cpu", *words), 0.005)

    def test_what_changes_steps_does_on_both(self):
        adamw = ["--optimizer", "adamw", "--lr", 0.001, "--clip-norm", 1, "--ema-decay", 0.9, "--no-decay", "norms"]
        for words in (adamw, ["--optimizer", "lars", "--accumulate", 3, "--schedule", "cosine"],
                      ["--mixup", 0.2, "--cutmix", 1, "--seed", 3],
                      ["--mode", "exact", "--label-smoothing", 0.1, "--schedule", "one-cycle"], ["--nesterov", "--no-augment"]):
            with self.subTest(words):
                self.assert_alike(self.losses("cuda", *words), self.losses("cpu", *words), 0.005)

    def test_saved_in_the_background_and_resumed_it_goes_on_as_unbroken(self):
        for more in ([], ["--graph"], ["--optimizer", "adamw", "--ema-decay", 0.99],
                     ["--model", "resnet18", "--size", 40]):
            more = [*more, "--deterministic"]
            with self.subTest(more):
                whole = self.losses("cuda", *more)
                saved = [*more, "--checkpoint-dir", self.folder / "".join(map(str, more)), "--resume", "auto",
                         "--checkpoint-every", 3]
                begun = self.losses("cuda", *saved, "--max-steps", 10)
                rest = self.losses("cuda", *saved)
                self.assertEqual(begun | rest, whole)

    def test_a_graph_changes_nothing(self):
        # Batches in the background allocate pinned memory while the step is recorded.
        for words in ([], ["--optimizer", "adamw", "--clip-norm", 1, "--ema-decay", 0.9, "--schedule", "cosine"],
                      ["--accumulate", 2, "--nesterov"], ["--mode", "exact", "--optimizer", "lars"], ["--model", "resnet18", "--size", 40]):
            with self.subTest(words):
                words = [*words, "--deterministic", "--prefetch", 8, "--checkpoint-dir", self.folder / f"g{len(words)}",
                         "--overwrite", "--checkpoint-every", 1]
                self.assertEqual(self.losses("cuda", *words, "--graph"), self.losses("cuda", *words))

    def test_amp_and_graphs_train(self):
        for more in (["--amp"], ["--amp", "--graph"], ["--tf32"], ["--no-cudnn-benchmark"]):
            with self.subTest(more):
                losses = list(self.losses("cuda", *more).values())
                self.assertLess(sum(losses[-5:]), sum(losses[:5]))

    def test_a_signal_saves_and_it_goes_on(self):
        metrics, words = self.folder / "m", ["--device", "cuda", "--epochs", 100000, "--checkpoint-dir", self.folder / "s"]
        run = training.start("--shards", self.shards, *words, "--metrics", metrics)
        harness.wait_until(lambda: training.taken(metrics) > 20)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 143, run.stderr.read())
        last = max(training.steps(metrics))
        done = training.train("--shards", self.shards, *words, "--resume", "auto", "--max-steps", last + 5, "--metrics", metrics)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"at step {last}", done.stderr)

    def test_more_than_its_memory_is_told(self):
        done = training.train("--synthetic", "--max-steps", 3, "--device", "cuda", "--model", "resnet50", "--size", 1024,
                              "--batch-size", 2048, "--no-cudnn-benchmark")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("millrace: no_memory: ", done.stderr)
        self.assertIn("--batch-size", done.stderr)

    def test_two_ranks_do_not_share_one(self):
        job = training.Job(2, lambda r: [], ["--synthetic", "--max-steps", 2, "--device", "cuda"],
                           {"CUDA_VISIBLE_DEVICES": "0"})
        self.assertEqual(job.wait(), [2, 2], job.texts)
        self.assertIn("ranks 0 and 1 have the same GPU", job.texts[0])

    def test_a_profile_has_its_kernels(self):
        trace = self.folder / "trace.json"
        self.losses("cuda", "--profile", trace)
        kinds = {e.get("cat") for e in json.loads(trace.read_text())["traceEvents"]}
        self.assertLessEqual({"cpu_op", "kernel", "gpu_memcpy", "cuda_runtime"}, kinds)

    def test_a_model_exported_for_it(self):
        """Beside the same module exported for the CPU."""
        made = {}
        for device, more in ("cpu", []), ("cuda", []), ("cuda", ["--amp"]):
            made[device + "".join(more)] = file = self.folder / f"{len(made)}.pt2"
            own = harness.ROOT / "tests/support/own_modules.py"
            done = subprocess.run([sys.executable, harness.ROOT / "train/models/export_model.py", f"{own}:attentive", "-o", file,
                                   "--size", "32", "--classes", "10", "--batch-size", "8", "--device", device, *more],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        words = ["--size", 32, "--lr", 0.005]
        theirs = self.losses("cpu", "--model", made["cpu"], *words)
        self.assert_alike(self.losses("cuda", "--model", made["cuda"], *words), theirs, 0.02)
        self.assert_alike(self.losses("cuda", "--model", made["cuda--amp"], *words), theirs, 0.2)

    def test_jpegs_that_it_decodes(self):
        words = ["--size", 14, "--no-augment", "--lr", 0.001]
        done = training.train("--synthetic", "--max-steps", 1, "--device", "cuda", "--gpu-decode", 1)
        if "this build has no nvJPEG" in done.stderr or "cannot be loaded" in done.stderr:
            self.skipTest(done.stderr)
        self.assert_alike(self.losses("cuda", "--gpu-decode", 0.5, *words), self.losses("cuda", *words), 0.2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
