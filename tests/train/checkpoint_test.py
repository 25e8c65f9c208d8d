"""Checkpoints: folders that are used again, kills and signals at random points.
TEST_SEEDS: how many random faults of each kind (6)."""

import contextlib
import fcntl
import io
import json
import os
import pathlib
import random
import resource
import select
import shutil
import signal
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.checkpoints import CheckpointTest, named  # noqa: E402
from tests.support.training import Job, lines, steps  # noqa: E402


class Folders(CheckpointTest):
    def test_a_used_folder_is_refused_without_a_word_of_what_is_meant(self):
        self.train("--max-steps", 8, "--checkpoint-every", 4)
        self.train("--max-steps", 3, code=2)
        self.assertIn("holds 2 checkpoints of an earlier run", self.stderr)
        self.assertEqual(self.kept(), named(4, 8))
        self.train("--max-steps", 3, "--overwrite")
        self.assertEqual(self.kept(), ["set-aside-1", *named(3)])
        self.assertEqual(sorted(p.name for p in (self.checkpoints / "set-aside-1").iterdir()), named(4, 8))

    def test_a_lock_of_another_program_is_neither_taken_nor_removed(self):
        self.checkpoints.mkdir(exist_ok=True)
        precious = self.folder / "precious"
        precious.write_text("precious")
        for make in (lambda lock: lock.write_text("precious"), lambda lock: lock.symlink_to(precious)):
            lock = self.checkpoints / ".lock"
            make(lock)
            self.train("--max-steps", 1, code=2)
            self.assertIn("another program's file is in the place of a run's lock", self.stderr)
            self.assertEqual((lock.read_text(), precious.read_text()), ("precious", "precious"))
            lock.unlink()
        self.train("--max-steps", 1)
        self.assertEqual(self.kept(), named(1))

    def test_another_programs_lines_are_no_half_ones(self):
        metrics = self.folder / "m.json"
        theirs = '{"epoch": 3, "accuracy": 0.5}'
        metrics.write_text(theirs)
        self.train("--max-steps", 1, "--resume", "auto", "--metrics", metrics, code=2)
        self.assertIn("not a metrics file", self.stderr)
        self.assertEqual(metrics.read_text(), theirs)
        self.train("--max-steps", 2, "--metrics", self.folder / "mine.json", "--overwrite")
        mine = (self.folder / "mine.json").read_text()
        for end, kept in ((theirs, theirs + "\n"), (mine[:40], ""), ("", "")):
            metrics.write_text(mine + end)
            self.train("--max-steps", 3, "--resume", "auto", "--metrics", metrics)
            self.assertTrue(metrics.read_text().startswith(mine + kept + '{"'), metrics.read_text())
            training.lines(metrics)
            shutil.rmtree(self.checkpoints)

    def test_going_back_sets_the_newer_ones_aside_and_loses_nothing(self):
        self.train("--max-steps", 12, "--checkpoint-every", 4, "--keep", 3)
        self.assertEqual(self.kept(), named(4, 8, 12))
        back = ["--resume", f"{self.checkpoints}/{named(4)[0]}/", "--max-steps", 10, "--checkpoint-every", 2]
        self.train(*back, code=2)
        self.assertEqual(self.kept(), named(4, 8, 12))
        self.train(*back, "--overwrite")
        # Two are kept, and what it was resumed from.
        self.assertEqual(self.kept(), ["set-aside-1", *named(4, 8, 10)])
        self.train("--resume", "auto", "--max-steps", 11)
        self.assertIn("step-0000000010 at step 10", self.stderr)

    def test_what_another_run_wrote_stays(self):
        self.train("--max-steps", 4)
        other = self.folder / "other"
        shutil.copytree(self.checkpoints, other)
        for name in "step-1", "step-best", "notes", "step-00000000007":
            (other / name).mkdir()
        (other / "step-0000000001").mkdir()  # no checkpoint in it
        self.checkpoints = other
        self.train("--resume", "auto", "--max-steps", 20, "--checkpoint-every", 2, "--keep", 1)
        self.assertEqual(self.kept(), sorted(["notes", "step-00000000007", "step-1", "step-best", *named(1, 4, 20)]))

    def test_what_was_moved_and_linked_back_is_resumed_from_and_stays(self):
        self.train("--max-steps", 12, "--checkpoint-every", 4, "--keep", 3)
        archive = self.folder / "archive"
        (self.checkpoints / named(12)[0]).rename(archive)
        (self.checkpoints / named(12)[0]).symlink_to(archive)
        # By the link's name, and by what it leads to: nothing is set aside.
        for at in ("auto", archive):
            self.train("--resume", at, "--max-steps", 12)
            self.assertNotIn("in the way", self.stderr)
            self.assertEqual(self.kept(), named(4, 8, 12))
        self.train("--resume", "auto", "--max-steps", 14)
        self.assertIn("resumed " + str(self.checkpoints / named(12)[0]), self.stderr)
        self.assertEqual(self.kept(), named(12, 14))
        self.assertTrue((archive / "train.json").exists())

    def test_what_others_put_into_a_checkpoint_stays(self):
        self.train("--max-steps", 4)
        for name in ("evaluation.txt", "plots/loss.png"):
            (self.checkpoints / named(4)[0] / name).parent.mkdir(exist_ok=True)
            (self.checkpoints / named(4)[0] / name).write_text("precious")
        self.train("--resume", "auto", "--max-steps", 16, "--checkpoint-every", 4)
        self.assertEqual(self.kept(), named(4, 12, 16))  # one is resumed from
        self.train("--resume", "auto", "--max-steps", 20, "--keep", 1)
        left = self.checkpoints / f"left-of-{named(4)[0]}"
        self.assertEqual(self.kept(), [left.name, *named(16, 20)])
        self.assertEqual(sorted(p.name for p in left.iterdir()), ["evaluation.txt", "plots"])
        self.assertEqual((left / "plots/loss.png").read_text(), "precious")
        self.assertEqual(self.stderr.count(f"{left} has files of a removed checkpoint"), 1)

    def test_files_that_have_the_names_of_checkpoints_stay(self):
        self.train("--max-steps", 4)
        for name in (named(5)[0], ".partial-" + named(6)[0]):
            (self.checkpoints / name).write_text(name)
        self.train("--resume", "auto", "--max-steps", 7, "--checkpoint-every", 1, "--keep", 9)
        self.assertEqual(self.kept(), ["left-of-" + n for n in named(5, 6)] + named(4, 5, 6, 7))
        self.assertEqual((self.checkpoints / f"left-of-{named(5)[0]}").read_text(), named(5)[0])
        self.assertEqual((self.checkpoints / f"left-of-{named(6)[0]}").read_text(), ".partial-" + named(6)[0])
        self.assertEqual(self.stderr.count("had the name of a checkpoint but is not one"), 2)

    def test_a_validation_that_is_no_file_is_none(self):
        self.train("--max-steps", 4)
        for make in (os.mkfifo, os.mkdir):
            make(self.checkpoints / named(4)[0] / "validation.json")
            self.train("--resume", "auto", "--max-steps", 5, "--keep", 9, timeout=60)
            self.assertIn("step-0000000004 at step 4", self.stderr)
            self.assertNotIn("ignoring", self.stderr)
            shutil.rmtree(self.checkpoints / named(5)[0])
            (make is os.mkfifo) and (self.checkpoints / named(4)[0] / "validation.json").unlink()

    def test_a_folder_of_checkpoints_is_told_from_one_of_them(self):
        self.train("--max-steps", 8, "--checkpoint-every", 4)
        self.train("--max-steps", 9, "--resume", self.checkpoints, code=2)
        self.assertIn("this is a folder of checkpoints, not one of them", self.stderr)
        self.assertIn(str(self.checkpoints / named(8)[0]), self.stderr)

    def test_a_checkpoint_is_no_folder_of_checkpoints(self):
        self.train("--max-steps", 2)
        one = pathlib.Path(shutil.copytree(self.checkpoints / named(2)[0], self.folder / "copy"))  # as state skip gives it
        before = sorted(one.iterdir())
        for more in ([], ["--resume", "auto"]):
            self.train("--max-steps", 4, "--checkpoint-dir", one, *more, code=2)
            self.assertIn("this is a checkpoint, not a folder of checkpoints", self.stderr)
        self.assertEqual(sorted(one.iterdir()), before)

    def test_leavings_go_when_the_next_one_is_whole(self):
        (self.checkpoints / ".partial-step-0000000003").mkdir(parents=True)
        (self.checkpoints / ".partial-step-0000000003" / "model.safetensors").write_text("half")
        self.train("--max-steps", 5)
        self.assertEqual(self.kept(), named(5))

    def test_other_arguments_are_told_or_refused(self):
        self.train("--max-steps", 4)
        self.train("--resume", "auto", "--max-steps", 6, "--batch-size", 4, "--lr", "0.02")
        self.assertIn("resuming with --batch-size 4 instead of 8, --lr 0.02 instead of 0.01", self.stderr)
        index = self.folder / "i.json"
        self.assertEqual(harness.run("millrace", "index", self.shards, "-o", index).returncode, 0)
        for other in (["--seed", 4], ["--shuffle", 0], ["--classes", 12], ["--mode", "resample", "--epoch-batches", 5],
                      ["--epoch-samples", 80], ["--index", index]):
            self.train("--resume", "auto", "--max-steps", 8, *other, code=2)
            self.assertIn(f"{other[0]} {other[1]} instead of", self.stderr)

    def test_a_model_of_another_shape_is_named_with_both(self):
        self.train("--max-steps", 2)
        weights = self.checkpoints / named(2)[0] / "model.safetensors"
        done = training.train("--shards", self.shards, "--init-weights", weights, "--size", 16, "--max-steps", 1)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("'fc.weight' is 10 x 192 in the file, and 10 x 768 in the model", done.stderr)
        self.assertIn(str(weights), done.stderr)

    def test_a_full_disk_leaves_whole_checkpoints_alone(self):
        self.train("--max-steps", 4)
        limit = 3000  # bytes: less than the model
        done = training.train("--shards", self.shards, "--checkpoint-dir", self.checkpoints, "--resume", "auto",
                              "--max-steps", 8,
                              preexec_fn=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                                  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("io_failed", done.stderr)
        self.assertEqual(self.kept(), named(4))


class TwoRuns(CheckpointTest):
    def test_one_run_at_a_time_writes_into_a_folder_and_a_metrics_file(self):
        metrics = self.folder / "m.jsonl"
        first = training.start("--shards", self.shards, "--epochs", 100000, "--checkpoint-dir", self.checkpoints,
                               "--metrics", metrics)
        self.addCleanup(first.kill)
        harness.wait_until(lambda: training.taken(metrics) > 2 or first.poll() is not None)
        for more in (["--resume", "auto"], ["--overwrite"]):
            self.train("--max-steps", 1, *more, code=4)
            self.assertIn(f"another run writes its checkpoints here (process {first.pid} of host ", self.stderr)
            self.assertEqual([n for n in self.kept() if n.startswith("set-aside")], [])
            done = training.train("--shards", self.shards, "--checkpoint-dir", self.folder / "other", "--metrics", metrics,
                                  "--max-steps", 1, *more)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("another run writes its metrics here", done.stderr)
        before = training.taken(metrics)
        harness.wait_until(lambda: training.taken(metrics) > before or first.poll() is not None)
        first.kill()  # which lifts the locks
        first.communicate()
        self.train("--max-steps", 5, "--overwrite", "--metrics", metrics)
        self.assertEqual([n for n in self.kept() if n.startswith(".")], [])


class Failures(CheckpointTest):
    def bad_in_the_middle(self):
        """Shards of which the second one has a bad label half way."""
        bad = self.folder / "bad.tar"
        with tarfile.open(self.data / "train-000001.tar") as old, tarfile.open(bad, "w") as new:
            for i, info in enumerate(members := old.getmembers()):
                content = old.extractfile(info).read()
                if info.name.endswith(".cls") and i >= len(members) // 2:
                    content = b"cat"
                    info.size = len(content)
                new.addfile(info, io.BytesIO(content))
        return ["--shards", self.data / "train-000000.tar", "--shards", bad, "--shuffle", 0, "--epochs", 1]

    def test_the_state_before_data_that_fail_is_saved(self):
        shards = self.bad_in_the_middle()
        whole, metrics = self.folder / "whole.jsonl", self.folder / "m.jsonl"
        done = training.train(*shards, "--on-error", "skip", "--metrics", whole)
        self.assertEqual(done.returncode, 0, done.stderr)
        arguments = [*shards, "--checkpoint-dir", self.checkpoints, "--metrics", metrics]
        for policy, code, kind in (("fail", 1, "bad_label"), ("2", 3, "too_many_skipped")):
            done = training.train(*arguments, "--on-error", policy, "--resume", "auto")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(f"millrace: {kind}: ", done.stderr.splitlines()[-1])
        self.assertTrue(steps(metrics))
        self.assertIn(named(max(steps(metrics)))[0], self.kept())
        done = training.train(*arguments, "--on-error", "skip", "--resume", "auto")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(steps(metrics), steps(whole))

    def test_data_that_fail_after_the_last_step_are_a_later_runs(self):
        shards = self.bad_in_the_middle()
        whole = training.train(*shards, "--checkpoint-dir", self.folder / "whole")
        self.assertEqual(whole.returncode, 1, whole.stderr)
        last = int(max(p.name for p in (self.folder / "whole").iterdir()).split("-")[1])
        done = training.train(*shards, "--checkpoint-dir", self.checkpoints, "--max-steps", last)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.kept(), named(last))

    def test_too_many_skipped_at_the_end_of_an_epoch_are_told_by_the_run_whose_last_step_ends_it(self):
        # 30 of 120 samples have no label that counts.
        run = ["--checkpoint-dir", self.checkpoints, "--epochs", 1, "--on-error", "10%"]
        done = training.train(*self.bad_in_the_middle(), *run, "--max-steps", 11)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(self.kept(), named(11))

    def test_the_data_of_one_rank_end_all_alike_with_a_checkpoint(self):
        metrics = self.folder / "m.jsonl"
        job = Job(2, lambda r: [], [*self.bad_in_the_middle(), "--lanes", 2, "--checkpoint-dir", self.checkpoints,
                                    "--metrics", metrics])
        codes = job.wait()
        self.assertEqual(codes, [1, 1], job.texts)
        self.assertEqual(job.kinds(), ["bad_label", "bad_label"], job.texts)
        self.assertIn(named(max(steps(metrics)))[0], self.kept())

    def test_a_stop_takes_no_step_after_the_one_under_way(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        process = training.start("--shards", self.shards, "--epochs", 100000, "--metrics", pipe)
        self.addCleanup(process.kill)
        text = b""
        while b'"batch":' not in text:
            self.assertIsNone(process.poll())
            if select.select([reader], [], [], 0.1)[0]:
                text += os.read(reader, 1 << 16)
        # A step ends with its line: while that does not fit into the pipe, the step is under way.
        writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while os.write(writer, b"\n"):
                pass
        os.close(writer)
        proc = pathlib.Path(f"/proc/{process.pid}")

        def is_held():
            call = (proc / "syscall").read_text().split()  # of the first thread: number and arguments, or "running"
            # poll(), which nothing but the metrics calls there, and restart_syscall(), where a stop interrupted it.
            return call[0] in ("7", "271", "219")
        harness.wait_until(lambda: process.poll() is not None or is_held())
        process.send_signal(signal.SIGTERM)
        while "stopping after this step" not in (line := process.stderr.readline()):
            self.assertTrue(line, "it ended")
        text += os.read(reader, 1 << 16)
        taken = text.count(b'"batch":')
        while process.poll() is None:
            if select.select([reader], [], [], 0.1)[0]:
                text += os.read(reader, 1 << 16)
        self.assertEqual(process.returncode, 143)
        while piece := os.read(reader, 1 << 16):
            text += piece
        self.assertEqual(json.loads(text.splitlines()[-1])["step"], taken + 1)


class Kills(CheckpointTest):
    def test_kills_and_signals_anywhere_change_no_loss(self):
        unbroken = self.folder / "unbroken.jsonl"
        done = training.train("--shards", self.shards, "--val-shards", self.val, "--epochs", 3, "--metrics", unbroken)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = steps(unbroken)
        self.assertGreater(len(expected), 100)
        for seed in training.seeds(6, "TEST_SEEDS"):
            with self.subTest(seed=seed):
                self.broken_run(random.Random(seed), self.folder / f"{seed}", expected)

    def broken_run(self, draw, folder, expected):
        folder.mkdir()
        metrics, checkpoints = folder / "m.jsonl", folder / "c"
        arguments = ["--shards", self.shards, "--val-shards", self.val, "--epochs", 3, "--metrics", metrics,
                     "--checkpoint-dir", checkpoints, "--checkpoint-every", draw.choice([3, 10, 1000]), "--resume", "auto"]
        codes = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR2: 140}
        for _ in range(3):
            sent = draw.choice([*codes, signal.SIGUSR1])
            at = training.taken(metrics) + draw.randrange(40)
            process = training.start(*arguments)
            harness.wait_until(lambda: process.poll() is not None or training.taken(metrics) > at)
            process.send_signal(sent)
            if sent == signal.SIGUSR1:
                text = process.communicate(timeout=60)[1]
                self.assertEqual(process.returncode, 0, text)
                break
            text = process.communicate(timeout=60)[1]
            self.assertIn(process.returncode, (codes[sent], 0), text)
        done = training.train(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(steps(metrics), expected)
        self.assertEqual({l["epoch"] for l in lines(metrics) if "validation" in l}, {0, 1, 2})
        left = sorted(p.name for p in checkpoints.iterdir())
        self.assertTrue(all(name.startswith("step-") for name in left), left)
        self.assertLessEqual(len(left), 3)
        self.assertEqual(left[-1], named(max(expected))[0])

    def test_usr1_saves_and_goes_on_and_term_still_ends_it(self):
        metrics = self.folder / "m.jsonl"
        process = training.start("--shards", self.shards, "--epochs", 100000, "--metrics", metrics, "--checkpoint-dir",
                                 self.checkpoints)
        harness.wait_until(lambda: training.taken(metrics) > 2)
        process.send_signal(signal.SIGUSR1)
        harness.wait_until(lambda: self.checkpoints.exists() and list(self.checkpoints.glob("step-*")))
        before = training.taken(metrics)
        harness.wait_until(lambda: training.taken(metrics) > before)
        process.send_signal(signal.SIGTERM)
        text = process.communicate(timeout=30)[1]
        self.assertEqual(process.returncode, 143, text)

    def running(self, **popen):
        """A run without an end, under way, and its metrics."""
        metrics = self.folder / "m.jsonl"
        metrics.unlink(missing_ok=True)  # of an earlier one
        process = training.start("--shards", self.shards, "--epochs", 100000, "--metrics", metrics, "--checkpoint-dir",
                                 self.checkpoints, "--log-every", 0, **popen)
        self.addCleanup(process.kill)
        harness.wait_until(lambda: training.taken(metrics) > 2 or process.poll() is not None)
        self.assertIsNone(process.poll())
        return process, metrics

    def test_a_reader_that_is_gone_and_a_hangup_lose_nothing(self):
        for sent, code in (signal.SIGINT, 130), (signal.SIGHUP, 129):
            with self.subTest(sent):
                process, metrics = self.running()
                process.stderr.close()  # as `2>&1 | tee log` where Ctrl-C ends both
                process.send_signal(sent)
                self.assertEqual(process.wait(30), code)
                end = lines(metrics)[-1]
                self.assertEqual(end["end"], "stopped")
                self.assertIn(named(end["step"])[0], self.kept())
                shutil.rmtree(self.checkpoints)

    def test_under_nohup_a_hangup_ends_nothing(self):
        process, metrics = self.running(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        before = training.taken(metrics)
        harness.wait_until(lambda: training.taken(metrics) > before + 2 or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 143)

    def test_an_interrupted_last_validation_is_done_after_resuming(self):
        metrics = self.folder / "m.jsonl"
        arguments = ["--shards", self.shards, "--max-steps", 5, "--metrics", metrics, "--checkpoint-dir", self.checkpoints]
        (self.folder / "nginx").mkdir()
        # So slow that validation does not end: its second shard comes at a byte a second.
        with harness.Nginx(self.folder / "nginx", self.data, "limit_rate 1;") as server:
            process = training.start(*arguments, "--val-shards", self.val, server.url + "/val-000000.tar")
            harness.wait_until(lambda: (self.checkpoints / named(5)[0]).exists())
            process.send_signal(signal.SIGINT)
            text = process.communicate(timeout=30)[1]
        self.assertEqual(process.returncode, 130, text)
        self.assertIn("validation was interrupted", text)
        done = training.train(*arguments, "--val-shards", self.val, "--resume", "auto")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(l["epoch"], l["images"]) for l in lines(metrics) if "validation" in l], [(0, 40)])
        done = training.train(*arguments, "--val-shards", self.val, "--resume", "auto")
        self.assertEqual(len([l for l in lines(metrics) if "validation" in l]), 1)
        self.assertEqual(sorted(steps(metrics)), [1, 2, 3, 4, 5])


if __name__ == "__main__":
    unittest.main(verbosity=2)
