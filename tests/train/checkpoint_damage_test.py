"""Checkpoints that are damaged, or of a stranger. TEST_SEEDS: how many random faults (6)."""

import os
import pathlib
import random
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import training  # noqa: E402
from tests.support.checkpoints import CheckpointTest, named  # noqa: E402


class Damage(CheckpointTest):
    def test_cut_and_flipped_files_are_passed_over_or_harmless(self):
        self.train("--max-steps", 8, "--checkpoint-every", 4)
        newest = self.checkpoints / named(8)[0]
        files = {p.name: p.read_bytes() for p in newest.iterdir()}
        whole = self.folder / "whole"
        shutil.copytree(self.checkpoints, whole)
        cuts = [(name, size) for name, content in files.items() for size in (0, 1, len(content) // 2, len(content) - 1)]
        faults = [("cut", *c) for c in random.Random(0).sample(cuts, 4)]
        faults += [("flip", name, len(content) - 9) for name, content in files.items()]  # in payloads, where there are
        for seed in training.seeds(6, "TEST_SEEDS"):
            draw = random.Random(seed)
            name = draw.choice(sorted(files))
            faults.append((draw.choice(["cut", "flip"]), name, draw.randrange(len(files[name]))))
        faults.append(("gone", "train.json", 0))
        for kind, name, where in faults:
            with self.subTest(kind=kind, name=name, where=where):
                shutil.rmtree(self.checkpoints)
                shutil.copytree(whole, self.checkpoints)
                target = newest / name
                if kind == "cut":
                    target.write_bytes(files[name][:where])
                elif kind == "flip":
                    changed = bytearray(files[name])
                    changed[where] ^= 1 << (where % 8)
                    target.write_bytes(changed)
                else:
                    target.unlink()
                self.train("--resume", newest, "--max-steps", 9, code=None if kind == "flip" else 5)
                self.train("--resume", "auto", "--max-steps", 9)
                if "ignoring" in self.stderr:
                    self.assertIn(f"{named(4)[0]} at step 4", self.stderr)
                    self.assertIn("set-aside-1", self.kept())
                else:
                    self.assertEqual((kind, name), ("flip", "train.json"))  # of a blank between two tokens

    def train(self, *arguments, code=0, **options):
        if code is not None:
            return super().train(*arguments, code=code, **options)
        done = training.train("--shards", self.shards, "--checkpoint-dir", self.folder / "d", "--epochs", 2, *arguments)
        self.assertIn(done.returncode, (0, 5), done.stderr)
        shutil.rmtree(self.folder / "d", ignore_errors=True)
        return done

    def test_numbers_that_no_run_has_and_files_of_another_size_are_damage(self):
        self.train("--max-steps", 8, "--checkpoint-every", 4)
        newest = self.checkpoints / named(8)[0]
        whole = self.folder / "whole"
        shutil.copytree(newest, whole)
        for name, value in (("world_size", -1), ("world_size", 2**31 - 1), ("epoch", -3), ("samples", 2**63 - 1), ("step", 2**63 - 1),
                            ("batch_size", 2**31), ("epoch_batches", 2**47), ("batch_in_epoch", -1)):
            with self.subTest(name, value=value):
                with training.changed_meta(newest) as meta:
                    meta[name] = value
                self.train("--resume", newest, "--max-steps", 9, code=5)
                self.assertRegex(self.stderr, "integrity: the checkpoint is damaged: (its|no epoch has as many images)")
                shutil.rmtree(newest)
                shutil.copytree(whole, newest)
        os.truncate(newest / "model.safetensors", 1 << 40)  # more than memory
        self.train("--resume", "auto", "--max-steps", 9)
        self.assertIn("the checkpoint is damaged: more bytes instead of ", self.stderr)
        self.assertIn(f"{named(4)[0]} at step 4", self.stderr)

    def test_a_state_beyond_the_memory_of_the_run_is_refused_with_what_to_raise(self):
        self.train("--max-steps", 4)
        forged = b'{"records":{"lanes":[' + b"1," * 2_000_000 + b"1]}}"
        training.replace_in_checkpoint(self.checkpoints / named(4)[0], "data-rank0.json", forged)
        self.train("--resume", "auto", "--max-steps", 9, env={"MILLRACE_MEMORY": "80M"}, code=2)
        last = self.stderr.splitlines()[-1]
        for part in ("no_memory: the saved state: parsed, its ", "data-rank0.json", "raise MILLRACE_MEMORY"):
            self.assertIn(part, last)

    def test_where_none_is_whole_it_says_so(self):
        self.train("--max-steps", 8, "--checkpoint-every", 4)
        (self.checkpoints / named(4)[0] / "train.json").unlink()
        (self.checkpoints / named(8)[0] / "model.safetensors").write_bytes(b"")
        self.train("--resume", "auto", "--max-steps", 9, code=5)
        last = self.stderr.splitlines()[-1]
        for part in ("integrity: no checkpoint there can be resumed: step-0000000008, step-0000000004; ",
                     "the newest: the checkpoint is damaged: 0 bytes instead of ", "step-0000000008/model.safetensors",
                     "start over with --overwrite instead of --resume"):
            self.assertIn(part, last)
        self.assertEqual(self.kept(), named(4, 8))
        self.train("--overwrite", "--max-steps", 3)
        self.assertEqual(self.kept(), ["set-aside-1", *named(3)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
