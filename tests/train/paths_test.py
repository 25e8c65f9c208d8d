"""Paths that are not UTF-8: a run in such folders does what the same run does in others."""

import json
import os
import pathlib
import shutil
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.training import Job, WithShards, steps  # noqa: E402

LATIN1 = os.fsdecode(b"d\xe9p\xf4t")


class Bytes(WithShards):
    train_counts = (4, 160)
    val_counts = (2, 20)

    def setUp(self):
        super().setUp()
        self.plain = self.place("plain")
        self.odd = self.place(LATIN1)

    def place(self, name):
        """The same inputs under another name, and a folder for outputs."""
        place = self.folder / name
        shutil.copytree(self.data, place / f"{name}-in")
        for kind, shards in ("train", self.shards), ("val", self.val):
            # Made elsewhere: an index cannot name such shards, but finds them by the names of their files.
            made = harness.run("millrace", "index", "create", shards, "-o", self.folder / f"{kind}.json", "--offsets")
            self.assertEqual(made.returncode, 0, made.stderr)
            for end in "json", "offsets":
                shutil.copy(self.folder / f"{kind}.{end}", place / f"{name}-{kind}.{end}")
        return place

    def words(self, place):
        """Each option that takes a path."""
        name = place.name
        paths = {"--shards": f"{name}-in/train-{{000000..000003}}.tar", "--index": f"{name}-train.json",
                 "--val-shards": f"{name}-in/val-{{000000..000001}}.tar", "--val-index": f"{name}-val.json",
                 "--metrics": f"{name}-m.jsonl", "--skipped": f"{name}-skipped.jsonl", "--checkpoint-dir": f"{name}-ck",
                 "--record-batches": f"{name}-batches", "--cache-decoded-dir": f"{name}-decoded"}
        return [str(word) for option, path in paths.items() for word in (option, place / path)] + [
            "--cache-decoded", "64M", "--on-error", "skip", "--checkpoint-every", "3", "--keep", "3", "--epochs", "9"]

    def run_in(self, place, world, *more):
        job = Job(world, lambda r: [], [*self.words(place), *more])
        job.wait()
        return job

    def outcome(self, place, world):
        name = place.name
        files = [place / (f"{name}-m.jsonl" + (f".rank{r}" if r else "")) for r in range(world)]
        kept = sorted(os.listdir(place / f"{name}-ck"))
        whose = {json.loads((place / f"{name}-ck" / c / "train.json").read_text())["run"] for c in kept
                 if c.startswith("step-")}
        return {"losses": [steps(f) for f in files], "kept": kept, "runs": len(whose),
                "files": sorted(str(p.relative_to(place)).replace(name, "NAME") for p in place.rglob("*"))}

    def test_a_run_and_its_resumption(self):
        for world in 1, 2:
            for place in self.plain, self.odd:
                for path in list(place.iterdir()):
                    if path.suffix not in (".json", ".offsets") and not path.name.endswith("-in"):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
            for at, more in enumerate((["--max-steps", "4"], ["--resume", "auto", "--max-steps", "7"],
                                       ["--resume", "CK/step-0000000007", "--max-steps", "8"],
                                       ["--resume", "CK/step-0000000008/", "--max-steps", "8"],
                                       ["--resume", "auto", "--max-steps", "9"])):
                with self.subTest(world=world, start=at):
                    for place in self.plain, self.odd:
                        job = self.run_in(place, world, *[w.replace("CK", str(place / f"{place.name}-ck")) for w in more])
                        self.assertEqual(job.codes, [0] * world, "\n".join(job.texts))
                        self.assertNotIn("in the way", "".join(job.texts))
                    self.assertEqual(self.outcome(self.odd, world), self.outcome(self.plain, world))
                    self.assertEqual(self.outcome(self.odd, world)["runs"], 1)
                    self.assertNotIn("set-aside-1", self.outcome(self.odd, world)["kept"])

    def with_labels_in(self, extension):
        path = self.folder / "odd.tar"
        with tarfile.open(self.data / "train-000000.tar") as source, tarfile.open(path, "w") as out:
            for member in source.getmembers():
                content = source.extractfile(member)
                member.name = member.name.replace(".cls", "." + extension)
                out.addfile(member, content)
        return path

    def test_values_that_are_not_utf8_are_the_same_on_all_ranks(self):
        shard = self.with_labels_in(LATIN1)
        words = ["--shards", shard, "--shards", shard, "--on-error", "skip"]
        for world in 1, 2:
            folder = self.folder / f"c{world}"
            for start in ["--max-steps", "1"], ["--resume", "auto", "--max-steps", "2"]:
                job = Job(world, lambda r: [], [*words, "--checkpoint-dir", folder, "--label", LATIN1, *start])
                self.assertEqual(job.wait(), [0] * world, job.texts)
                self.assertNotIn("resuming with", job.texts[0])
        other = os.fsdecode(b"d\xeap\xf4t")
        job = Job(2, lambda r: ["--label", other if r else LATIN1], [*words, "--max-steps", "1"])
        self.assertEqual(job.wait(), [2, 2], job.texts)
        self.assertIn("not started alike: --label", job.texts[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
