"""What a run writes is not written over by another option, or by another run."""

import json
import os
import pathlib
import shutil
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import WithShards  # noqa: E402


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


class OccupiedPlaces(WithShards):
    train_counts = (2, 40)
    val_counts = (1, 10)

    def run_of(self, folder, *more, steps=2):
        return training.train("--shards", self.shards, "--val-shards", self.val, "--max-steps", steps, "--on-error", "skip",
                              "--cache-decoded", "1M", *more)

    def words(self, folder):
        return ["--checkpoint-dir", folder / "ck", "--metrics", folder / "m.jsonl", "--skipped", folder / "s.jsonl",
                "--record-batches", folder / "b", "--cache-decoded-dir", folder / "d"]

    def test_a_link_that_has_the_name_of_a_checkpoint_is_replaced_and_leaves_nothing(self):
        first = ["--checkpoint-dir", self.folder / "ck", "--checkpoint-every", 1, "--keep", 3]
        self.assertEqual(self.run_of(self.folder, *first, steps=1).returncode, 0)
        file = self.folder / "file"
        file.write_text("precious")
        # Behind what is looked for: only a folder is a checkpoint.
        for at, target in ((2, self.folder / "nothing"), (3, file)):
            (self.folder / f"ck/step-{at:010}").symlink_to(target)
        done = self.run_of(self.folder, *first, "--resume", "auto", steps=3)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(p.name for p in (self.folder / "ck").iterdir()), [f"step-{at:010}" for at in (1, 2, 3)])
        self.assertFalse((self.folder / "ck/step-0000000003").is_symlink())
        self.assertEqual(file.read_text(), "precious")

    def test_no_file_that_a_run_wrote_is_taken_for_another_output(self):
        # With a sample that is skipped, so that the list of them is not empty.
        bad = self.data / "bad.tar"
        if not bad.exists():
            bad.write_bytes((self.data / "train-000000.tar").read_bytes().replace(b"000003.cls", b"000003.xls"))
        self.shards = f"{self.shards}::{bad}"
        first = self.folder / "first"
        first.mkdir()
        done = self.run_of(first, *self.words(first), "--overwrite", steps=7)
        self.assertEqual(done.returncode, 0, done.stderr)
        before = contents(first)
        files = [name for name, content in before.items() if content is not None]
        for part in ("train.json", "model.safetensors", "validation.json", "m.jsonl", "b/rank0", "data-rank0"):
            self.assertTrue(any(part in name for name in files), files)
        files += ["ck/.lock", "ck/step-0000000009", "ck/.partial-step-0000000009", "ck/step-0000000007/new",
                  "ck/.replaced-step-0000000009"]
        tried = 0
        for option, own in (("--metrics", "m.jsonl"), ("--skipped", "s.jsonl")):
            for name in files:
                if name == own or "/rank0-00000" in name and not name.endswith("0.safetensors"):
                    continue
                for more in (["--overwrite"], ["--checkpoint-dir", first / "ck", "--resume", "auto"]):
                    with self.subTest(option=option, name=name, more=more[0]):
                        tried += 1
                        done = self.run_of(first, option, first / name, *more, steps=9)
                        self.assertEqual(done.returncode, 2, done.stderr)
                        self.assertIn("millrace: usage: ", done.stderr)
                        self.assertEqual(contents(first), before)
        self.assertGreater(tried, 20)

    def test_folders_of_outputs_are_no_parts_of_checkpoints(self):
        first = self.folder / "first"
        first.mkdir()
        self.assertEqual(self.run_of(first, *self.words(first)).returncode, 0)
        before = contents(first)
        checkpoint = first / "ck/step-0000000002"
        (self.folder / "link").symlink_to(checkpoint)
        for option in "--record-batches", "--cache-decoded-dir", "--checkpoint-dir":
            for place in checkpoint / "x", checkpoint / "x/y", checkpoint, self.folder / "link", self.folder / "link/x":
                with self.subTest(option=option, place=place):
                    done = self.run_of(first, option, place)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertEqual(contents(first), before)

    def test_an_index_of_that_name_makes_no_checkpoint_of_its_folder(self):
        index = self.folder / "train.json"
        done = harness.run("millrace", "index", "create", self.shards, "-o", index)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = training.train("--index", index, "--max-steps", 2, "--checkpoint-dir", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "step-0000000002").is_dir())

    def test_a_copy_of_train_json_is_no_metrics_file(self):
        first = self.folder / "first"
        first.mkdir()
        self.assertEqual(self.run_of(first, *self.words(first)).returncode, 0)
        meta = first / "ck/step-0000000002/train.json"
        for extra in b"", b"\n":
            copy = self.folder / "copy.json"
            copy.write_bytes(meta.read_bytes() + extra)
            for more in ["--overwrite"], ["--checkpoint-dir", self.folder / "c", "--resume", "auto"]:
                done = self.run_of(first, "--metrics", copy, *more)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("is not a metrics file", done.stderr)
                self.assertEqual(copy.read_bytes(), meta.read_bytes() + extra)
        # What a kill left of the first line is one.
        line = (first / "m.jsonl").read_bytes().splitlines()[0]
        for end in 1, 20, len(line) // 2, len(line) - 1, len(line):
            copy.write_bytes(line[:end])
            self.assertEqual(self.run_of(first, "--metrics", copy, "--overwrite").returncode, 0)

    def test_a_file_of_another_program_is_replaced_by_no_output(self):
        file = self.folder / "theirs.json"
        step = {"step": 1, "epoch": 0, "batch": 1, "loss": 0.5, "lr": 0.1}
        for option, text in (("--skipped", '{"apiVersion":"v1","kind":"Secret","data":{"p":"precious"}}\n'),
                             ("--skipped", '{"kind":"Secret","url":"u","key":"k","message":"m"}'),
                             ("--skipped", '{"kind":"bad_image"}\n'), ("--skipped", '{"kind":"Secret",'),
                             ("--metrics", '{"epoch":0,"val_acc":0.7,"by":"another program"}\n{"epoch":1}\n'),
                             ("--metrics", json.dumps(step) + "\n"), ("--metrics", '{"accuracy":0.7}\n'),
                             ("--metrics", '{"arguments":{"--lr":1}}\n'), ("--metrics", '{"arguments":{"--lr":\n'),
                             ("--metrics", '{"resumed":true}\n'), ("--metrics", "\nprecious"), ("--skipped", "\nprecious")):
            for more in ["--overwrite"], ["--checkpoint-dir", self.folder / "c", "--resume", "auto"]:
                with self.subTest(option=option, text=text, more=more[0]):
                    file.write_text(text)
                    done = self.run_of(self.folder, option, file, *more)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn("the existing file is not a", done.stderr)
                    self.assertEqual(file.read_text(), text)

    def test_every_line_that_a_run_writes_may_be_the_first_one(self):
        bad = self.folder / "bad.tar"
        bad.write_bytes((self.data / "train-000000.tar").read_bytes().replace(b"000003.cls", b"000003.xls"))
        self.shards = f"{self.shards}::{bad}"
        common = ["--checkpoint-dir", self.folder / "ck", "--metrics", self.folder / "m.jsonl", "--skipped",
                  self.folder / "s.jsonl", "--resume", "auto"]
        for steps in 1, 8:
            done = self.run_of(self.folder, *common, steps=steps)
            self.assertEqual(done.returncode, 0, done.stderr)
        written = (self.folder / "m.jsonl").read_text().splitlines(keepends=True)
        by_kind = {next(k for k in ("begin", "batch", "end_of_epoch", "validation", "resumed", "end") if k in json.loads(l)): l
                   for l in written}
        self.assertEqual(len(by_kind), 6)
        listed = (self.folder / "s.jsonl").read_text()
        self.assertTrue(listed)
        first = self.folder / "first"
        for option, line in [("--metrics", l) for l in by_kind.values()] + [("--skipped", listed), ("--skipped", listed[:30])]:
            with self.subTest(line):
                first.write_text(line)
                done = self.run_of(self.folder, option, first, "--overwrite", steps=1)
                self.assertEqual(done.returncode, 0, done.stderr)

    def validated(self, *more, code=0, val=None, at=2):
        done = training.train("--shards", self.shards, "--val-shards", val or self.val, "--max-steps", at, *more)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_a_checkpoint_outside_of_the_folder_is_not_written_into(self):
        other, folder, name = self.folder / "other", self.folder / "ck", "step-0000000002"
        self.validated("--checkpoint-dir", other)
        for path in folder, self.folder / "linked":
            self.validated("--checkpoint-dir", path, "--overwrite")
        self.validated("--checkpoint-dir", folder, "--overwrite", at=1)
        shutil.rmtree(self.folder / "linked" / name)
        (self.folder / "linked" / name).symlink_to(other / name)
        (self.folder / "latest").symlink_to(other / name)
        aside = folder / "set-aside-1" / name
        self.assertTrue(aside.is_dir())
        anew = ["--filter", "bicubic"]  # of which the figures are others
        for place, resume, more in ((self.folder / "a", other / name, []), (self.folder / "b", self.folder / "latest", []),
                                    (self.folder / "linked", "auto", []), (folder, aside, ["--overwrite"])):
            with self.subTest(resume=resume):
                theirs = aside.parent if resume == aside else other
                before = contents(theirs)
                self.validated("--checkpoint-dir", place, "--resume", resume, *anew, *more)
                self.assertEqual(contents(theirs), before)
                self.assertFalse((place / name).is_symlink())
                told = self.validated("--checkpoint-dir", place, "--resume", "auto", *anew)
                self.assertIn(f"validated already: figures in {place / name}/validation.json", told)

    def test_a_validation_that_fails_after_a_resume_from_elsewhere_is_begun_with_again(self):
        other, folder, name = self.folder / "other", self.folder / "ck", "step-0000000002"
        self.validated("--checkpoint-dir", other)
        bad = self.folder / "bad.tar"
        content = bytearray((self.data / "val-000000.tar").read_bytes())
        with tarfile.open(self.data / "val-000000.tar") as tar:
            last = [member for member in tar if member.name.endswith(".jpg")][-1]
        content[last.offset_data:last.offset_data + 4] = bytes(4)  # images are not looked at before the run starts
        bad.write_bytes(content)
        told = self.validated("--checkpoint-dir", folder, "--resume", other / name, val=bad, code=1)
        self.assertIn(f"step 2 is saved in {folder / name}; --resume auto begins with it", told)
        told = self.validated("--checkpoint-dir", folder, "--resume", "auto", "--on-error", "skip", val=bad)
        self.assertIn(" validation loss ", told)
        # Without a folder nothing is saved, and nothing is said of it.
        told = self.validated("--resume", other / name, val=bad, code=1)
        self.assertNotIn("--resume auto", told)

    def test_an_empty_file_in_the_place_of_the_lock_serves_and_stays(self):
        folder = self.folder / "ck"
        folder.mkdir()
        (folder / ".lock").touch()
        for steps in 1, 2:
            done = training.train("--shards", self.shards, "--checkpoint-dir", folder, "--resume", "auto", "--max-steps", steps)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((folder / ".lock").read_bytes(), b"")

    def test_links_to_what_is_not_there(self):
        nowhere = self.folder / "nowhere"
        link = self.folder / "link"
        link.symlink_to(nowhere)
        for option in "--checkpoint-dir", "--record-batches", "--cache-decoded-dir":
            with self.subTest(option):
                more = ["--cache-decoded", "1M"] if option == "--cache-decoded-dir" else []
                done = training.train("--shards", self.shards, option, link, "--max-steps", 1, *more)
                if done.returncode == 0:  # or the folder is made where the link leads
                    self.assertTrue(nowhere.is_dir())
                    shutil.rmtree(nowhere)
                    continue
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("a link to nothing", done.stderr)
                self.assertTrue(os.path.islink(link) and not nowhere.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
