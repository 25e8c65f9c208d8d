"""What is kept is sound: no checkpoint of weights or losses that are not finite, none missing where ranks end apart."""

import io
import json
import os
import pathlib
import signal
import struct
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import Job, WithShards, lines, steps  # noqa: E402

# The loss is finite for two steps more, and then never again.
DIVERGES = ["--lr", "1e30"]


def weights(path):
    """The numbers of a safetensors file, all of them float32, and where they begin."""
    content = path.read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    return begin, [x[0] for x in struct.iter_unpack("<f", content[begin:])]


def is_finite(x):
    return abs(x) < float("inf")


class SoundTest(WithShards):
    val_counts = (1, 40)

    def setUp(self):
        super().setUp()
        self.checkpoints = self.folder / "c"
        self.metrics = self.folder / "m.jsonl"

    def train(self, *arguments, code=0):
        done = training.train("--shards", self.shards, *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.last = done.stderr.strip().splitlines()[-1]
        return done.stderr

    def kept(self):
        return sorted(p.name for p in self.checkpoints.iterdir())

    def check_kept(self):
        for name in self.kept():
            for file in "model", "optimizer":
                numbers = weights(self.checkpoints / name / f"{file}.safetensors")[1]
                self.assertTrue(all(map(is_finite, numbers)), f"{name}/{file}")


class Diverging(SoundTest):
    def test_no_checkpoint_is_of_a_loss_or_a_weight_that_is_not_finite(self):
        where = ["--checkpoint-dir", self.checkpoints, "--max-steps", 40]
        for every in 1, 5, 1000:
            with self.subTest(every=every):
                self.train(*where, "--max-steps", 6, "--checkpoint-every", 3, "--overwrite")
                before = [n for n in self.kept() if n.startswith("step-")]
                self.train(*where, "--resume", "auto", *DIVERGES, "--checkpoint-every", every, "--log-every", 1000, code=1)
                self.assertIn("millrace: bad_state: ", self.last)
                self.assertIn(f"{before[-1] if every > 1 else 'step-0000000007'}, the last checkpoint before", self.last)
                self.assertIn("lower --lr", self.last)
                left = [n for n in self.kept() if n.startswith("step-")]
                self.assertIn(before[-1], left)
                self.assertLessEqual(left[-1], "step-0000000007")
                for aside in self.checkpoints.glob("set-aside-*"):
                    aside.rename(self.folder / f"{every}-{aside.name}")
                self.check_kept()
                if every == 1:
                    continue
                self.assertIn("the loss is not finite from step 9 on", self.last)
                # What it says is what helps.
                self.train(*where, "--resume", "auto", "--max-steps", 12)

    def test_it_is_seen_before_validation_and_at_the_end(self):
        rare = [*DIVERGES, "--log-every", 1000]
        text = self.train(*rare, "--epochs", 3, "--val-shards", self.val, code=1)
        self.assertNotIn("validation loss", text)
        self.assertIn("the loss is not finite from step 3 on (this is step 15)", self.last)
        self.assertIn("there is no earlier checkpoint", self.last)
        self.train(*rare, "--max-steps", 3, code=1)
        self.assertIn("the loss is not finite from step 3 on;", self.last)

    def test_a_line_that_is_due_tells_it_at_once_and_reports_no_such_loss(self):
        self.train(*DIVERGES, "--epochs", 3, "--metrics", self.metrics, code=1)
        self.assertIn("the loss is not finite from step 3 on;", self.last)
        self.assertEqual(sorted(steps(self.metrics)), [1, 2])
        self.assertTrue(all(map(is_finite, steps(self.metrics).values())))

    def test_the_data_that_fail_later_do_not_hide_it(self):
        bad = self.folder / "bad.tar"
        bad.write_bytes((self.data / "train-000000.tar").read_bytes()[:-30_000])
        done = training.train("--shards", self.data / "train-000001.tar", bad, "--lanes", 1, "--shuffle", 0, *DIVERGES,
                              "--log-every", 1000, "--batch-size", 2, "--checkpoint-dir", self.checkpoints)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("the state could not be saved: bad_state: the loss is not finite from step ", done.stderr)
        self.assertEqual(self.kept(), [])

    def test_all_ranks_end_by_it_together(self):
        # One rank reads its loss at each step, the other never.
        for more in ([], ["--checkpoint-dir", self.checkpoints, "--checkpoint-every", 4]):
            with self.subTest(more=more[:1]):
                job = Job(2, lambda r: ["--log-every", 0 if r == 0 else 1000],
                          ["--shards", self.shards, *DIVERGES, "--epochs", 3, *more])
                self.assertEqual(job.wait(), [1, 1], job.texts)
                self.assertEqual(job.kinds(), ["bad_state"] * 2, job.texts)
                self.assertIn("the loss is not finite from step 3 on", job.texts[1])

    def spoil(self, checkpoint, name, bad):
        """Makes a number of a whole checkpoint's weights or momentum one that is not finite."""
        file = checkpoint / f"{name}.safetensors"
        changed = bytearray(file.read_bytes())
        begin = weights(file)[0] + 400
        changed[begin:begin + 4] = struct.pack("<f", bad)
        training.replace_in_checkpoint(checkpoint, file.name, changed)
        return file

    def test_a_checkpoint_that_is_not_finite_is_passed_by(self):
        self.train("--max-steps", 9, "--checkpoint-every", 3, "--keep", 3, "--checkpoint-dir", self.checkpoints)
        old, middle, new = (self.checkpoints / name for name in self.kept())
        for path, name, bad in ((new, "model", float("nan")), (middle, "optimizer", float("-inf"))):
            spoiled = self.spoil(path, name, bad)
            self.train("--max-steps", 12, "--checkpoint-dir", self.folder / "d", "--resume", path, code=1)
            self.assertIn("is not finite: the training that saved it had diverged", self.last)
            self.assertIn(str(spoiled), self.last)
            self.assertIn("give an older checkpoint", self.last)
        resume = ["--shards", self.shards, "--max-steps", 12, "--checkpoint-dir", self.checkpoints, "--resume", "auto"]
        job = Job(2, lambda r: [], resume)
        self.assertEqual(job.wait(), [0, 0], job.texts)
        for path in new, middle:
            self.assertEqual(job.texts[0].count(f"ignoring {path}: bad_state: '"), 1, job.texts)
        for text in job.texts:
            self.assertIn(f"resumed {old} at step 3", text)
        self.assertEqual(sorted(p.name for p in (self.checkpoints / "set-aside-1").iterdir()), [middle.name, new.name])

    def test_where_no_checkpoint_is_finite_it_says_so(self):
        self.train("--max-steps", 6, "--checkpoint-every", 3, "--checkpoint-dir", self.checkpoints)
        for name in self.kept():
            spoiled = self.spoil(self.checkpoints / name, "model", float("inf"))
        self.train("--max-steps", 12, "--checkpoint-dir", self.checkpoints, "--resume", "auto", code=1)
        self.assertIn("no checkpoint there can be resumed: step-0000000006, step-0000000003; ", self.last)
        self.assertIn("is not finite: the training that saved it had diverged", self.last)
        self.assertIn(str(spoiled), self.last)

    def test_initial_weights_that_are_not_finite_are_refused(self):
        self.train("--max-steps", 4, "--checkpoint-dir", self.checkpoints)
        file = self.checkpoints / "step-0000000004/model.safetensors"
        self.train("--init-weights", file, "--max-steps", 1)
        changed = bytearray(file.read_bytes())
        changed[-4:] = struct.pack("<f", float("nan"))
        file.write_bytes(changed)
        self.train("--init-weights", file, "--max-steps", 1, code=1)
        self.assertIn("is not finite", self.last)

    def test_weights_whose_header_does_not_say_one_thing_are_refused_by_name(self):
        file = self.folder / "w.safetensors"
        self.train("--max-steps", 4, "--checkpoint-dir", self.checkpoints)
        content = (self.checkpoints / "step-0000000004/model.safetensors").read_bytes()
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header, payload = json.loads(content[8:end]), content[end:]
        first, second = sorted(header, key=lambda name: header[name]["data_offsets"])[:2]
        begin, middle = header[first]["data_offsets"]

        def check(said, changes=(), text=None, payload=payload):
            changed = json.loads(json.dumps(header))
            for name, key, value in changes:
                changed.setdefault(name, {"dtype": "F32", "shape": [1]})[key] = value
            text = (text or json.dumps(changed)).encode()
            file.write_bytes(struct.pack("<Q", len(text)) + text + payload)
            self.train("--init-weights", file, "--max-steps", 1, code=1 if said else 0)
            self.assertIn(said, self.last)

        check("")
        check("the data_offsets of '" + first, [(first, "data_offsets", [begin + 0.5, middle])])
        check("the shape of '" + first, [(first, "shape", [float(n) for n in header[first]["shape"]])])
        check("the bytes of 'extra' overlap another tensor's", [("extra", "data_offsets", [begin + 4, begin + 8])])
        check(f"4 bytes before '{first}' belong to no tensor",
              [(name, "data_offsets", [n + 4 for n in entry["data_offsets"]]) for name, entry in header.items()],
              payload=b"abcd" + payload)
        begun = {"dtype": "F32", "data_offsets": [len(payload)] * 2}
        for shape in ([0, 2**62, 2**62], [2**62, 2**62, 0], [0, 2**63 - 1]):
            check("a tensor whose bytes do not match its shape", [("extra", key, value) for key, value in (begun | {"shape": shape}).items()])
        check("2 bytes after the last tensor", payload=payload + b"xx")
        floating = next(name for name in header if header[name]["dtype"] == "F32")
        check(f"'{floating}' is of type Int in the file, and Float in the model", [(floating, "dtype", "I32")])
        check("the model lacks 'extra', which is 0 in the file", [("extra", key, value) for key, value in (begun | {"shape": [0]}).items()])
        twice = json.dumps(header)[:-1] + f', "{second}": {json.dumps(header[second])}}}'
        check(f"the key '{second}' twice", text=twice)

    def test_what_is_no_weights_is_not_read_whole(self):
        large = self.folder / "large"
        with open(large, "wb") as file:
            file.truncate(1 << 40)
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        self.train("--init-weights", self.folder, "--max-steps", 1, code=2)
        self.assertIn("usage: --init-weights names a folder, and not a file of weights, at ", self.last)
        for weights in (large, "/dev/zero", fifo):
            self.train("--init-weights", weights, "--max-steps", 1, code=1)
            self.assertIn("bad_state: not a safetensors file", self.last)
            self.assertIn(str(weights), self.last)


class UnevenRanks(SoundTest):
    """Rank 0 has 4 images, and rank 1 has 24, in batches of 2."""

    def uneven(self, bad=None):
        """The two shards; the label of rank 1's image number `bad` is none."""
        with tarfile.open(self.data / "train-000000.tar") as tar:
            members = [(m.name, tar.extractfile(m).read()) for m in tar]
        paths = [self.folder / "a.tar", self.folder / "b.tar"]
        for path, images in zip(paths, (4, 24)):
            with tarfile.open(path, "w") as tar:
                for i, (name, content) in enumerate(members[:2 * images]):
                    if images == 24 and bad == i // 2 and name.endswith(".cls"):
                        content = b"none"
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        return paths

    def job(self, shards, *more):
        job = Job(2, lambda r: [], ["--shards", *shards, "--lanes", 2, "--shuffle", 0, "--batch-size", 2,
                                    "--checkpoint-dir", self.checkpoints, "--metrics", self.metrics, *more])
        return job

    def dropped(self):
        return [lines(path)[-1]["dropped"] for path in (self.metrics, f"{self.metrics}.rank1")]

    def test_what_fails_in_the_rest_of_a_longer_rank_leaves_a_checkpoint(self):
        shards = self.uneven(bad=20)
        job = self.job(shards, "--epochs", 1)
        self.assertEqual(job.wait(), [1, 1], job.texts)
        self.assertEqual(job.kinds(), ["bad_label"] * 2)
        self.assertEqual(self.kept(), ["step-0000000002"])
        self.assertIn("the data failed: step 2 is saved in ", job.texts[0])
        job = self.job(shards, "--epochs", 1, "--resume", "auto", "--on-error", "skip")
        self.assertEqual(job.wait(), [0, 0], job.texts)
        self.assertEqual(self.dropped(), [0, 19])

    def test_a_last_step_that_ends_the_epoch_of_the_shorter_rank_drops_the_rest_once(self):
        shards = self.uneven()
        for last in 2, 4:
            job = self.job(shards, "--epochs", 3, "--max-steps", last, "--resume", "auto")
            self.assertEqual(job.wait(), [0, 0], job.texts)
            self.assertEqual((sum(self.dropped()), lines(self.metrics)[-1]["epochs"]), (20, last // 2))
        self.assertEqual([l["epoch"] for l in lines(self.metrics) if "batch" in l], [0, 0, 1, 1])

    def test_what_fails_in_the_rest_after_the_last_step_is_a_later_runs(self):
        shards = self.uneven(bad=20)
        job = self.job(shards, "--epochs", 1, "--max-steps", 2)
        self.assertEqual(job.wait(), [0, 0], job.texts)
        self.assertEqual(self.kept(), ["step-0000000002"])
        self.assertEqual(lines(self.metrics)[-1]["epochs"], 0)
        job = self.job(shards, "--epochs", 1, "--resume", "auto", "--on-error", "skip")
        self.assertEqual(job.wait(), [0, 0], job.texts)
        self.assertEqual((self.dropped(), lines(self.metrics)[-1]["epochs"]), ([0, 19], 1))

    def test_a_stop_in_the_rest_of_a_longer_rank_is_heard_and_keeps_the_place(self):
        short, long = self.uneven()
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        content = long.read_bytes()
        with tarfile.open(long) as tar:
            begins = [m.offset for m in tar][::2]  # of each image
        end = os.open(fifo, os.O_RDWR)
        shards = [short, f"pipe:cat {fifo}"]
        job = self.job(shards, "--allow-pipe", "--epochs", 1)
        os.write(end, content[:begins[9]])
        harness.wait_until(lambda: len(steps(f"{self.metrics}.rank1")) == 2 or job.ranks[1].poll() is not None)
        job.ranks[0].send_signal(signal.SIGTERM)  # which has nothing left, and waits for rank 1
        while "stopping after this step" not in (line := job.ranks[0].stderr.readline()):
            self.assertTrue(line, "it ended")
        os.write(end, content[begins[9]:begins[17]])
        self.assertEqual(job.wait(60), [143, 143], job.texts)
        self.assertEqual(self.kept(), ["step-0000000002"])
        os.close(end)
        fifo.unlink()
        fifo.write_bytes(content)
        job = self.job(shards, "--allow-pipe", "--epochs", 1, "--resume", "auto")
        self.assertEqual(job.wait(), [0, 0], job.texts)
        self.assertEqual(self.dropped(), [0, 20])
        self.assertEqual(sorted(steps(self.metrics)), [1, 2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
