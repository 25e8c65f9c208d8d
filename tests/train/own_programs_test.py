"""Programs that train models of their own, examples/own_model.cc and own_training.cc, as users would run them."""

import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402

EPOCH = r"epoch (\d+): step (\d+), loss \d\.\d+"


class OwnPrograms(training.WithShards):
    train_counts = (4, 640)
    size = 32
    batch = 32

    def start(self, name, *arguments, env=None):
        return harness.start(f"example_{name}", *arguments, env=training.ALONE | (env or {}), cwd=self.folder,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(self, process, code=0):
        out, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, out + said)
        return out, said

    def ranks(self, world, name, *arguments, code=0):
        """What each rank of a job printed, and said on stderr."""
        place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        started = [self.start(name, *arguments, env=place | {"RANK": str(rank)}) for rank in range(world)]
        return [self.ended(process, code) for process in started]

    def epochs(self, printed):
        return [(int(epoch), int(step)) for epoch, step in re.findall(EPOCH, printed)]

    def test_a_model_of_its_own_with_all_options_of_millrace_train(self):
        self.assertLess(len((harness.ROOT / "examples/own_model.cc").read_text().splitlines()), 80)
        words = ["--shards", self.shards, "--classes", 10, "--size", self.size, "--lr", 0.05, "--checkpoint-dir", "ck",
                 "--resume", "auto"]
        _, said = self.ended(self.start("own_model", *words, "--epochs", 1))
        self.assertIn("patch-attention of", said)
        self.assertIn("done after 20 steps", said)
        for rank, (_, said) in enumerate(self.ranks(2, "own_model", *words, "--epochs", 2)):
            self.assertIn(f"rank {rank} resumed ck/step-0000000020 at step 20", said)
            self.assertIn(f"rank {rank} done after 30 steps", said)
        names = r"--model NAME:\(patch-attention, resnet18,"
        self.assertRegex(self.ended(self.start("own_model", "--help"))[0], names)
        _, said = self.ended(self.start("own_model", *words, "--grow-from", 16, "--grow-epochs", 1), code=2)
        self.assertIn("--grow-from cannot be combined with --model patch-attention", said)

    def test_a_loop_of_its_own_resumes_to_the_same_weights(self):
        whole, _ = self.ended(self.start("own_training", self.shards, 4, "whole"))
        self.assertEqual(self.epochs(whole), [(e, 20 * e) for e in (1, 2, 3, 4)])
        first, _ = self.ended(self.start("own_training", self.shards, 2, "parts"))
        rest, _ = self.ended(self.start("own_training", self.shards, 4, "parts"))
        self.assertEqual(first + rest, whole)

    def test_a_loop_of_its_own_ends_by_a_signal_and_loses_no_batch(self):
        epochs = 10_000
        for end in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            before = set(self.folder.glob("ck/step-*"))
            running = self.start("own_training", self.shards, epochs, "ck")
            harness.wait_until(lambda: set(self.folder.glob("ck/step-*")) - before or running.poll() is not None)
            running.send_signal(end)
            printed = self.epochs(self.ended(running, code=128 + end)[0])
            self.assertTrue(printed)
            self.assertEqual([step for _, step in printed], [20 * epoch for epoch, _ in printed])

    def test_a_loop_of_its_own_on_ranks(self):
        told = self.ranks(3, "own_training", self.shards, 2, "ck")
        # 640 samples of 4 shards on 12 lanes: the ranks that have more drop the rest.
        printed = self.epochs(told[0][0])
        self.assertEqual([epoch for epoch, _ in printed], [1, 2])
        self.assertEqual([out for out, _ in told[1:]], ["", ""])
        # One rank continues from there alone.
        alone, _ = self.ended(self.start("own_training", self.shards, 3, "ck"))
        self.assertEqual(self.epochs(alone), [(3, printed[-1][1] + 20)])

    def test_ranks_that_share_the_data_are_to_the_bit_as_many_as_its_parts(self):
        alone, _ = self.ended(self.start("own_training", self.shards, 2, "alone"))
        told = self.ranks(2, "own_training", self.shards, 2, "shared", 1)
        self.assertEqual(told[0][0], alone)
        weights = [(self.folder / name / "step-0000000040/model.safetensors").read_bytes() for name in ("alone", "shared")]
        self.assertEqual(*weights)
        # Two parts, each for two ranks, go on from there.
        told = self.ranks(4, "own_training", self.shards, 3, "shared", 2)
        self.assertEqual([epoch for epoch, _ in self.epochs(told[0][0])], [3])
        for _, said in self.ranks(3, "own_training", self.shards, 3, "other", 2, code=2):
            self.assertIn("--data-world 2 does not divide the 3 ranks", said)

    def test_data_of_one_rank_that_fail_end_all_ranks_with_its_error(self):
        for _, said in self.ranks(2, "own_training", "missing-{0..3}.tar", 2, "ck", code=4):
            self.assertIn("missing-", said)

    def test_it_says_how_it_is_used(self):
        out, said = self.ended(self.start("own_training"), code=2)
        self.assertEqual(said, "usage: example_own_training 'train-{000000..000003}.tar' 3 CHECKPOINTS [PARTS]\n")


if __name__ == "__main__":
    unittest.main()
