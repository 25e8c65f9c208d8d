"""millrace-train as a user meets it: same losses from everywhere, resuming, signals, ranks, messages."""

import fcntl
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402
from tests.support.harness import run  # noqa: E402
from tests.support.training import WithShards  # noqa: E402

MODEL = ["--model", "resnet18", "--classes", "10", "--size", "32", "--device", "cpu", "--lr", "0.01"]
TRIVIAL = ["--model", "trivial", "--classes", "10", "--size", "32", "--device", "cpu", "--lr", "0.01"]


def steps(path):
    """(step, loss) pairs of a metrics file; the last one counts where a step was taken twice."""
    return {l["step"]: l["loss"] for l in notes(path, "batch")}


def notes(path, key):
    """The lines that have `key`; a last one that is still being written is not one yet."""
    text = pathlib.Path(path).read_text()
    return [l for l in map(json.loads, text[:text.rfind("\n") + 1].splitlines()) if key in l]


class TrainTest(WithShards):
    train_counts = (6, 400)
    val_counts = (2, 100)
    size = 32

    def train(self, name, *arguments, code=0, env=None, model=MODEL, shards=None):
        metrics = self.folder / f"{name}.jsonl"
        done = run("millrace-train", "--shards", shards or self.shards, "--metrics", metrics, *model,
                   "--shuffle", 100, "--batch-size", 16, *arguments, env=env, timeout=300)
        self.assertEqual(done.returncode, code, done.stderr)
        self.stderr = done.stderr
        return metrics


class Determinism(TrainTest):
    def test_same_losses_from_disk_and_http_with_any_threads_and_backend(self):
        (self.folder / "nginx").mkdir()
        with harness.Nginx(self.folder / "nginx", self.data) as server:
            remote = server.url + "/train-{000000..000005}.tar"
            cells = [("disk", None, {"MILLRACE_CPU_THREADS": "1"}),
                     ("disk", None, {"MILLRACE_CPU_THREADS": "4", "MILLRACE_READ_CHUNK": "64K"}),
                     ("disk", None, {"MILLRACE_IO": "pread", "MILLRACE_CPU_THREADS": "2"}),
                     ("http", remote, {"MILLRACE_CPU_THREADS": "2"})]
            losses = [steps(self.train(f"{i}", "--max-steps", 12, "--epochs", 1, shards=s, env=env))
                      for i, (_, s, env) in enumerate(cells)]
        self.assertEqual(len(losses[0]), 12)
        for other in losses[1:]:
            self.assertEqual(other, losses[0])

    def test_a_server_killed_and_started_five_times_changes_no_loss(self):
        common = ["--epochs", 1, "--max-steps", 24]
        whole = steps(self.train("whole", *common, model=TRIVIAL))
        (self.folder / "nginx").mkdir()
        metrics = self.folder / "http.jsonl"
        # So slow that there is always something left to read.
        with harness.Nginx(self.folder / "nginx", self.data, "limit_rate 100k;") as server:
            process = harness.start(
                "millrace-train", "--shards", server.url + "/train-{000000..000005}.tar", "--metrics", metrics, *TRIVIAL,
                "--shuffle", "100", "--batch-size", "16", *map(str, common), stderr=subprocess.PIPE, text=True,
                env={"MILLRACE_READ_CHUNK": "64K", "MILLRACE_READ_AHEAD": "1", "MILLRACE_HTTP_BACKOFF": "0.05",
                     "MILLRACE_HTTP_ATTEMPTS": "40"})  # nginx tries for seconds to listen again
            for restart in range(5):
                harness.wait_until(lambda: len(steps(metrics) if metrics.exists() else {}) > 4 * restart or process.poll() is not None, 120)
                server.kill()
                server.start()
            _, said = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("retrying in", said)
        self.assertEqual(steps(metrics), whole)

    def test_validation_counts_every_image(self):
        metrics = self.train("v", "--max-steps", 3, "--val-shards", self.val)
        result = notes(metrics, "validation")[-1]
        self.assertEqual(result["images"], 100)
        self.assertLessEqual(result["top1"], result["top5"])

    def test_a_checkpoint_is_validated_again_with_other_shards(self):
        checkpoints = self.folder / "ck"
        other = self.folder / "other-000000.tar"
        other.write_bytes((self.data / "val-000001.tar").read_bytes())
        common = ["--max-steps", 3, "--checkpoint-dir", checkpoints]

        def validated(shards, *more):
            metrics = self.train("v", *common, "--val-shards", shards, *more, model=TRIVIAL)
            return [l["images"] for l in notes(metrics, "validation")]

        self.assertEqual(validated(self.val), [100])
        for shards, expected in ((self.val, [100]), (other, [100, 50]), (other, [100, 50])):
            self.assertEqual(validated(shards, "--resume", "auto"), expected)
        figures = checkpoints / "step-0000000003/validation.json"
        self.assertIn(f"validated already: figures in {figures}\n", self.stderr)
        # What changes the figures is another validation: how images are decoded, and another shard of the same name.
        times = 1
        for options in (["--filter", "bicubic"], ["--fast-decode"], ["--lenient"], []):
            if not options:
                other.write_bytes((self.data / "val-000000.tar").read_bytes())
            times += 1
            for is_again in (False, True):
                self.assertEqual(validated(other, "--resume", "auto", *options), [100] + [50] * times, options)
                self.assertEqual("validated already" in self.stderr, is_again, options)
        # Older versions did not write of which shards it was.
        said = json.loads(figures.read_text())
        self.assertEqual(said["images"], 50)
        del said["val_shards_fingerprint"]
        figures.write_text(json.dumps(said))
        self.assertEqual(validated(other, "--resume", "auto"), [100] + [50] * (times + 1))

    def test_resample_needs_and_has_a_length(self):
        done = run("millrace-train", "--shards", self.shards, "--mode", "resample")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--epoch-batches", done.stderr)
        metrics = self.train("r", "--mode", "resample", "--epoch-batches", 5, "--epochs", 2,
                             model=TRIVIAL)
        epochs = [l["epoch"] for l in notes(metrics, "batch")]
        self.assertEqual(epochs, [0] * 5 + [1] * 5)

    def test_an_epoch_of_given_length_goes_on_where_the_last_one_stopped(self):
        whole = self.train("w", "--epochs", 1, model=TRIVIAL)
        length = len(notes(whole, "batch"))
        self.assertGreater(length, 5)
        for how in (["--epoch-batches", 3], ["--epoch-samples", 3 * 16 + 5]):
            parts = self.train("p" + how[0], *how, "--epochs", 2, model=TRIVIAL)
            self.assertEqual([l["epoch"] for l in notes(parts, "batch")], [0] * 3 + [1] * 3)
            # The second epoch does not begin the data anew.
            self.assertEqual([l["loss"] for l in notes(parts, "batch")],
                             [l["loss"] for l in notes(whole, "batch")][:6])
            self.assertEqual([(l["end_of_epoch"], l["decoded"], l["skipped"]) for l in notes(parts, "end_of_epoch")],
                             [(0, 48, {}), (1, 48, {})])
        # Broken off in the second epoch, and gone on with.
        folder = ["--epoch-batches", 3, "--epochs", 2, "--checkpoint-dir", self.folder / "c"]
        self.train("b", *folder, "--max-steps", 4, model=TRIVIAL)
        rest = self.train("b", *folder, "--resume", "auto", model=TRIVIAL)
        self.assertEqual(steps(rest), {s: l for s, l in steps(whole).items() if s <= 6})
        done = run("millrace-train", "--shards", self.shards, "--epoch-samples", 7, "--batch-size", 8,
                   *TRIVIAL)
        self.assertEqual(done.returncode, 2)
        self.assertIn("use 8 or more", done.stderr)


class Resuming(TrainTest):
    model = ["16" if word == "32" else word for word in MODEL]  # some hundred steps are taken here

    def test_killed_in_mid_epoch_it_goes_on_with_the_same_losses(self):
        common = ["--epochs", 2, "--schedule", "cosine"]
        whole = steps(self.train("whole", *common, model=self.model))
        self.assertEqual(len(whole), 50)
        killed = self.folder / "killed.jsonl"
        arguments = ["--shards", self.shards, "--metrics", killed, *self.model, "--shuffle", 100,
                     "--batch-size", 16, *common, "--checkpoint-dir", self.folder / "c",
                     "--checkpoint-every", 7, "--resume", "auto"]
        for kill_at in 10, 30:
            process = harness.start("millrace-train", *arguments, stderr=subprocess.DEVNULL)
            harness.wait_until(lambda: process.poll() is not None or killed.exists() and max(steps(killed), default=0) >= kill_at, 300)
            self.assertIsNone(process.poll(), "it ended before it was killed")
            process.kill()
            process.wait()
        with open(killed, "a") as file:
            file.write('{"step": 31, "lo')  # killed while it wrote
        done = run("millrace-train", *arguments, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("resumed", done.stderr)
        self.assertEqual(steps(killed), whole)

    def test_signals_end_it_after_the_step_with_its_report_and_state(self):
        whole = steps(self.train("whole", "--epochs", 2, model=self.model))
        for sent, code in (signal.SIGINT, 130), (signal.SIGTERM, 143):
            with self.subTest(signal=sent):
                metrics = self.folder / f"{code}.jsonl"
                folder = self.folder / f"c{code}"
                arguments = ["--shards", self.shards, "--metrics", metrics, *self.model, "--shuffle", 100,
                             "--batch-size", 16, "--epochs", 2, "--checkpoint-dir", folder,
                             "--resume", "auto"]
                process = harness.start("millrace-train", *arguments, stderr=subprocess.PIPE,
                                        text=True)
                harness.wait_until(lambda: process.poll() is not None or metrics.exists() and steps(metrics), 300)
                self.assertIsNone(process.poll())
                process.send_signal(sent)
                _, text = process.communicate(timeout=30)
                self.assertEqual(process.returncode, code, text)
                self.assertIn("stopped after", text)
                self.assertEqual(len(list(folder.iterdir())), 1)
                done = run("millrace-train", *arguments, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(steps(metrics), whole)

    def test_a_stop_does_not_wait_for_whoever_reads_stderr(self):
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writing, bytes(4096))  # nobody takes a line
        process = harness.start("millrace-train", "--shards", self.shards, *TRIVIAL, "--epochs", 100000, stderr=writing)

        def is_held():
            call = pathlib.Path(f"/proc/{process.pid}/syscall").read_text().split()  # of the first thread: number, arguments
            return call[:2] == ["1", "0x2"]  # write() to stderr
        harness.wait_until(lambda: process.poll() is not None or is_held())
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        self.assertIn(process.wait(20), (130, 143))
        os.close(reading)
        os.close(writing)

    def test_a_stop_also_ends_a_wait_for_data(self):
        (self.folder / "fifo").mkdir()
        with harness.Folder() as folder:
            (folder / "nginx").mkdir()
            with harness.Nginx(folder / "nginx", self.data, "limit_rate 1;") as server:
                process = harness.start("millrace-train", "--shards", server.url + "/train-000000.tar",
                                        *TRIVIAL, stderr=subprocess.PIPE, text=True,
                                        env={"MILLRACE_LOG": "debug",
                                             "MILLRACE_HTTP_PROGRESS_TIMEOUT": "0.2"})
                process.stderr.readline()  # it waits, and has said so
                process.send_signal(signal.SIGINT)
                _, text = process.communicate(timeout=20)
                self.assertEqual(process.returncode, 130, text)

    def test_a_checkpoint_of_another_plan_is_refused(self):
        self.train("a", "--max-steps", 3, "--checkpoint-dir", self.folder / "c", model=TRIVIAL)
        self.train("b", "--max-steps", 5, "--resume", "auto", "--checkpoint-dir", self.folder / "c",
                   "--seed", 9, model=TRIVIAL, code=2)
        self.assertIn("--seed 9 instead of 0", self.stderr)


class Ranks(TrainTest):
    def ranks(self, name, world, *arguments, model=TRIVIAL, shards=None, batch=8):
        """Runs a job by plain environment variables; the metrics files by rank."""
        port = str(harness.free_port())
        processes = []
        for rank in range(world):
            processes.append(harness.start(
                "millrace-train", "--shards", shards or self.shards, *model, "--shuffle", 100,
                "--batch-size", batch, "--metrics", self.folder / f"{name}.jsonl", *arguments,
                env={"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE, text=True))
        texts = [p.communicate(timeout=300)[1] for p in processes]
        for process, text in zip(processes, texts):
            self.assertEqual(process.returncode, 0, text)
        self.stderr = "".join(texts)
        return [self.folder / (f"{name}.jsonl" + (f".rank{r}" if r else "")) for r in range(world)]

    def test_two_ranks_with_half_the_batch_are_one_with_all_of_it(self):
        alone = steps(self.ranks("one", 1, "--max-steps", 20, batch=16)[0])
        halves = [steps(f) for f in self.ranks("two", 2, "--max-steps", 20, batch=8)]
        self.assertEqual(len(alone), 20)
        for step, loss in alone.items():
            mean = (halves[0][step] + halves[1][step]) / 2
            self.assertAlmostEqual(mean, loss, delta=1e-4 * max(1, loss), msg=f"step {step}")

    def test_ranks_with_unequal_data_take_equally_many_steps(self):
        uneven = harness.fake(self.folder, "uneven", 3, 100)  # three shards for two ranks
        files = self.ranks("u", 2, "--epochs", 2, shards=uneven, batch=4)
        self.assertEqual(len(steps(files[0])), len(steps(files[1])))
        self.assertIn("dropped, because another rank had none left", self.stderr)
        # All 100 samples of both epochs are accounted for.
        ends = [notes(f, "end")[-1] for f in files]
        self.assertEqual(sum(e["delivered"] + e["dropped"] for e in ends), 200)
        self.assertEqual([e["delivered"] for e in ends], [e["samples"] for e in ends])

    def test_an_index_makes_ranks_equal_beforehand(self):
        uneven = harness.fake(self.folder, "uneven", 3, 100)
        made = run("millrace", "index", uneven, "-o", self.folder / "i.json", "--offsets")
        self.assertEqual(made.returncode, 0, made.stderr)
        files = self.ranks("x", 2, "--epochs", 2, "--index", self.folder / "i.json", shards=uneven, batch=4)
        self.assertEqual(len(steps(files[0])), len(steps(files[1])))
        self.assertNotIn("another rank had none left", self.stderr)
        self.assertIn("leaving out 4 of 100 samples in each epoch", self.stderr)

    def test_class_folders_instead_of_shards(self):
        for shard in sorted(self.data.glob("train-*.tar")):
            with tarfile.open(shard) as tar:
                files = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}
            for name, content in files.items():
                key, _, extension = name.rpartition(".")
                if extension == "jpg":
                    folder = self.folder / "tree" / files[f"{key}.cls"].decode()
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{key}.jpg").write_bytes(content)
        done = run("millrace-train", "--raw", self.folder / "tree", *TRIVIAL, "--batch-size", 16, "--max-steps", 5,
                   "--metrics", self.folder / "raw.jsonl", timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(steps(self.folder / "raw.jsonl")), 5)

    def test_a_job_goes_on_with_other_ranks(self):
        alone = steps(self.ranks("one", 1, "--max-steps", 20, batch=16)[0])
        where = ["--checkpoint-dir", self.folder / "c", "--resume", "auto"]
        self.ranks("two", 2, "--max-steps", 10, *where, batch=8)
        rest = steps(self.ranks("rest", 1, "--max-steps", 20, *where, batch=16)[0])
        self.assertEqual(sorted(rest), list(range(11, 21)))
        for step, loss in rest.items():
            self.assertAlmostEqual(alone[step], loss, delta=1e-3 * max(1, loss), msg=f"step {step}")

    def test_a_resnet_trains_under_torchrun(self):
        torchrun = harness.ROOT / "build/venv/bin/torchrun"
        done = subprocess.run(
            [torchrun, "--no-python", "--nproc-per-node", "2", "--master-port",
             str(harness.free_port()), harness.BIN / "millrace-train", "--shards", self.shards, *MODEL,
             "--batch-size", "8", "--max-steps", "4", "--shuffle", "50", "--metrics",
             self.folder / "t.jsonl", "--val-shards", self.val],
            env=harness.CLEAN, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(steps(self.folder / "t.jsonl.rank1")), 4)
        self.assertNotIn("Grad strides", done.stderr)
        self.assertEqual(notes(self.folder / "t.jsonl", "validation")[-1]["images"], 100)

    def test_a_killed_rank_ends_the_other_with_code_6(self):
        text = self.one_killed()
        self.assertIn("; there is no checkpoint to resume from", text)
        self.assertNotIn("--resume", text)

    def test_a_killed_rank_before_the_first_checkpoint_leaves_none_to_resume_from(self):
        text = self.one_killed("--checkpoint-dir", self.folder / "c", "--resume", "auto").splitlines()[-1]
        self.assertIn("; no checkpoint was saved yet: start again", text)
        self.assertNotIn("--resume", text)

    def one_killed(self, *arguments):
        """Kills one of two ranks in an epoch that does not end; what the other one says."""
        port = str(harness.free_port())
        processes = [harness.start(
            "millrace-train", "--shards", self.shards, *TRIVIAL, "--batch-size", 8, "--epoch-batches", 1_000_000,
            "--metrics", self.folder / "k.jsonl", *arguments,
            env={"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port}, stderr=subprocess.PIPE, text=True) for r in range(2)]
        metrics = self.folder / "k.jsonl"
        harness.wait_until(lambda: processes[0].poll() is not None or metrics.exists() and len(steps(metrics)) >= 5, 300)
        self.assertIsNone(processes[0].poll())
        processes[1].kill()
        _, text = processes[0].communicate(timeout=60)
        processes[1].communicate()
        self.assertEqual(processes[0].returncode, 6, text)
        self.assertIn("peer_lost", text)
        return text


class Messages(TrainTest):
    def check(self, code, parts, *arguments, **options):
        done = run("millrace-train", *arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        last = done.stderr.strip().splitlines()[-1]
        for part in parts:
            self.assertIn(part, last)

    def damaged(self, name, change):
        """The first shard with one member changed."""
        source = str(self.data / "train-000000.tar")
        target = self.folder / "bad.tar"
        with tarfile.open(source) as old, tarfile.open(target, "w") as new:
            for info in old:
                content = old.extractfile(info).read()
                if info.name == name:
                    content = change(content)
                    info.size = len(content)

                new.addfile(info, io.BytesIO(content))
        return target

    def test_usage(self):
        self.check(2, ["usage", "no data: give --shards, --index or --raw"])
        self.check(2, ["usage", "--bogus"], "--shards", "x", "--bogus")
        self.check(2, ["usage", "--policy: 'grey' is not one of", "trivialaugment"], "--shards", "x", "--policy", "grey")
        help_text = run("millrace-train", "--help").stdout
        self.assertTrue(help_text and all(c.isprintable() or c == "\n" for c in help_text))
        self.assertNotIn("{false}", help_text)
        self.check(2, ["usage", "--model"], "--shards", "x", "--model", "vgg")
        self.check(2, ["bad_setting", "MILLRACE_IO"], "--shards", "x", env={"MILLRACE_IO": "?"})
        self.check(2, ["usage", "--no-augment cannot be combined with augmentations"], "--shards", "x", "--no-augment", "--gray", "0.2")
        self.check(2, ["usage", "--init-weights names the momenta", "model.safetensors"], "--shards", "x",
                   "--init-weights", "ckpt/step-0000000001/optimizer.safetensors")
        self.check(2, ["usage", "--grow-from cannot be combined with --mode resample"], "--shards", self.shards,
                   "--mode", "resample", "--epoch-batches", 2, "--grow-from", 16, "--grow-epochs", 3)
        self.check(2, ["usage", "--grow-from cannot be combined with --model trivial"], "--shards", self.shards, *TRIVIAL,
                   "--grow-from", 16, "--grow-epochs", 3)
        self.check(2, ["usage", "RANK=3 of WORLD_SIZE=2"], "--shards", "x",
                   env={"RANK": "3", "WORLD_SIZE": "2"})

    def test_decoding_on_a_gpu_that_is_not_there(self):
        options = ["--shards", self.shards, *TRIVIAL, "--max-steps", 1, "--gpu-decode", 0.5]
        self.check(2, ["unsupported", "cannot decode on the device", "leave out --gpu-decode"], *options)
        self.check(2, ["usage", "--gpu-decode cannot be combined with --mixup or --cutmix"], *options, "--mixup", 0.2)
        self.check(2, ["usage", "--gpu-decode cannot be combined with augmentations of pixels"], *options, "--gray", 0.2)

    def test_missing_shard(self):
        self.check(4, ["not_found", "/no.tar"], "--shards", "/no.tar", *TRIVIAL)

    def test_bad_jpeg_and_bad_label(self):
        bad = self.damaged("00000005.jpg", lambda c: c[:200])
        self.check(1, ["bad_image", "bad.tar", "key 00000005"], "--shards", bad, *TRIVIAL)
        bad = self.damaged("00000005.cls", lambda c: b"cat")
        self.check(1, ["bad_label", "'cat'", "key 00000005"], "--shards", bad, *TRIVIAL)
        done = run("millrace-train", "--shards", bad, *TRIVIAL, "--on-error", "1", "--epochs", "1",
                   "--batch-size", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("skipped 1 (bad_label 1)", done.stderr)
        self.assertIn("key 00000005", done.stderr)
        self.check(3, ["too_many_skipped", "bad_label"], "--shards", bad, *TRIVIAL, "--on-error", "1",
                   "--epochs", "2", "--batch-size", "8")

    def test_too_little_memory(self):
        large = ["224" if word == "32" else word for word in TRIVIAL]
        self.check(2, ["no_memory", "MILLRACE_MEMORY="], "--shards", self.shards, *large,
                   "--batch-size", "400", env={"MILLRACE_MEMORY": "32M"})

    def test_no_gpu(self):
        if pathlib.Path("/proc/driver/nvidia").exists():
            self.skipTest("there is a GPU")
        self.check(2, ["unsupported", "no GPU"], "--shards", self.shards, "--device", "cuda")


if __name__ == "__main__":
    unittest.main(verbosity=2)
