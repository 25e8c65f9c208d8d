"""What a run says of options without effect, of shards that are not those of its checkpoint, and of a folder that is gone."""

import pathlib
import sys
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class Remarks(training.WithShards):
    train_counts = (6, 120)

    def names(self, *numbers):
        return [word for n in numbers for word in ("--shards", self.data / f"train-{n:06}.tar")]

    def train(self, *words, code=0):
        done = training.train(*words, env=NO_GPU)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_shards_that_are_gone_or_new_since_the_checkpoint_are_named(self):
        saved = ["--checkpoint-dir", self.folder / "c", "--resume", "auto"]
        self.train(*self.names(0, 1, 2, 3, 4, 5), *saved, "--max-steps", 2)
        of = "the checkpoint was saved with another list of shards: "
        # Those that are gone may come back.
        for numbers, code, said in (((0, 1, 2, 3, 5), 4, rf"{of}1 of its 6 is gone \(\S*train-000004.tar\);"),
                                    ((0,), 4, rf"{of}5 of its 6 are gone \(\S*train-000001.tar, \S*2.tar, \S*3.tar, \.\.\.\);"),
                                    ((0, 1, 2, 3, 4, 5, 0), 2, rf"{of}1 is new \(\S*train-000000.tar\);"),
                                    ((1, 0, 2, 3, 4, 5), 2, f"{of}the same ones, in another order;")):
            with self.subTest(numbers):
                told = self.train(*self.names(*numbers), *saved, code=code)
                self.assertRegex(told, said)
                self.assertIn("by the same names in the same order", told)
                self.assertIn("--init-weights CHECKPOINT/model.safetensors", told)
        (self.data / "new.tar").write_bytes((self.data / "train-000000.tar").read_bytes())
        told = self.train(*self.names(0, 1, 2, 3, 4), "--shards", self.data / "new.tar", *saved, code=2)
        self.assertRegex(told, rf"{of}1 of its 6 is gone \(\S*train-000005.tar\), 1 is new \(\S*new.tar\)")

    def test_options_of_gpus_are_without_effect_on_a_cpu(self):
        run = ["--shards", self.shards, "--max-steps", 1]
        for words, said in ((["--tf32"], "--tf32 has no effect"), (["--amp"], "--amp has no effect"),
                            (["--deterministic"], "--deterministic has no effect"),
                            (["--amp", "--tf32"], "--tf32 and --amp have no effect: training is on the CPU"), ([], ""), (["--no-amp"], "")):
            with self.subTest(words):
                told = self.train(*run, *words)
                self.assertEqual(told.count("no effect"), 1 if said else 0, told)
                self.assertIn(said, told)

    def test_a_warm_up_that_training_ends_within_is_told(self):
        for words, ends in ((["--epochs", 2, "--warmup-epochs", 3], "2"), (["--warmup-epochs", 1, "--max-steps", 3], "0.2"),
                            (["--epochs", 2, "--warmup-epochs", 2], ""), (["--epochs", 2, "--warmup-epochs", 1], "")):
            with self.subTest(words):
                told = self.train("--shards", self.shards, *words)
                self.assertEqual("is longer than the training" in told, bool(ends), told)
                if ends:
                    self.assertIn(f"which ends after {ends}: the learning rate does not reach --lr 0.01", told)

    def test_a_folder_that_is_moved_away_ends_the_run_as_a_failed_write_does(self):
        folder = self.folder / "c"
        process = training.start("--shards", self.shards, "--epochs", 100_000, "--checkpoint-dir", folder, "--checkpoint-every", 5)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        harness.wait_until(lambda: list(folder.glob("step-*")) or process.poll() is not None)
        folder.rename(self.folder / "elsewhere")
        said = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 4, said)
        self.assertIn(f"io_failed: the folder of checkpoints was moved or removed, or its lock, while the run wrote there, at {folder}", said)
        self.assertIn("move it back, and resume with --resume auto", said)
        self.assertFalse(folder.exists())
        (self.folder / "elsewhere").rename(folder)
        self.assertIn("resumed", self.train("--shards", self.shards, "--checkpoint-dir", folder, "--resume", "auto", "--max-steps", 1))

    def test_a_small_file_of_a_model_has_no_large_description(self):
        file = self.folder / "m.pt2"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/version", "3")
            archive.writestr("a/extra/millrace/model.json", b" " * (64 << 20))
        self.assertLess(file.stat().st_size, 1 << 20)
        told = self.train("--shards", self.shards, "--model", file, "--max-steps", 1, code=1)
        self.assertIn(f"its extra/millrace/model.json has {64 << 20} bytes, more than {file.stat().st_size}, at {file}", told)


if __name__ == "__main__":
    unittest.main(verbosity=2)
