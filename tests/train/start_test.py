"""What can be known at the start is told at the start: no step is trained, the kind and the exit code are right."""

import fcntl
import io
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import Job, WithShards, lines, steps  # noqa: E402


def shard(path, like, labels):
    """A shard of images with these labels; the images are those of another one."""
    with tarfile.open(like) as tar:
        jpeg = next(tar.extractfile(m).read() for m in tar.getmembers() if m.name.endswith(".jpg"))
    with tarfile.open(path, "w") as tar:
        for i, label in enumerate(labels):
            for extension, content in (("jpg", jpeg), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{i:06}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


class StartTest(WithShards):
    def setUp(self):
        super().setUp()
        self.metrics = self.folder / "metrics.jsonl"

    def refused(self, kind, code, part, *arguments, env=None):
        done = training.train("--metrics", self.metrics, *arguments, env=env, timeout=30)
        self.assertEqual(done.returncode, code, done.stderr)
        last = done.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith(f"millrace: {kind}: "), done.stderr)
        self.assertIn(part, last)
        self.assertEqual(steps(self.metrics), {}, "it trained")


class WrongStarts(StartTest):
    def test_what_is_written(self):
        cannot = "/proc/nothing"
        cases = [("--checkpoint-dir", "not_found", "the folder for checkpoints"),
                 ("--record-batches", "not_found", "cannot write batches"),
                 ("--skipped", "not_found", "cannot write the list of skipped samples"),
                 ("--metrics", "not_found", "cannot write metrics")]
        for option, kind, part in cases:
            with self.subTest(option):
                self.refused(kind, 4, part, "--shards", self.shards, option, f"{cannot}/x")
        self.refused("not_found", 4, "create the folder first", "--shards", self.shards, "--metrics",
                     self.folder / "nodir/m.jsonl")
        self.refused("not_found", 4, "decoded images", "--shards", self.shards, "--cache-decoded", "1G",
                     "--cache-decoded-dir", f"{cannot}/x")

    def test_what_is_read(self):
        text = self.folder / "text.tar"
        text.write_text("no archive " * 100)
        cases = [(["--shards", "/no.tar"], "not_found", 4, "cannot read a training shard"),
                 (["--shards", self.shards, "--val-shards", "/no.tar"], "not_found", 4, "a validation shard"),
                 (["--shards", self.shards, "--val-shards", text], "bad_archive", 5, "validation: not a tar archive"),
                 (["--shards", self.shards, "/no.tar"], "not_found", 4, "/no.tar"),
                 (["--raw", "/no"], "not_found", 4, "/no"),
                 (["--shards", self.shards, "--index", "/no.json"], "not_found", 4, "/no.json"),
                 (["--shards", self.shards, "--init-weights", "/no.safetensors"], "not_found", 4, "/no.safetensors"),
                 (["--shards", self.shards, "--resume", "/no/step-0000000001"], "not_found", 4, "no such checkpoint"),
                 (["--shards", self.shards, "--label", "json:a"], "missing_field", 1, "no field 'json'")]
        for arguments, kind, code, part in cases:
            with self.subTest(arguments[-1]):
                self.refused(kind, code, part, *arguments)

    def test_labels(self):
        for label in (10, -1, -100, 99999999999, "cat"):
            with self.subTest(label):
                bad = shard(self.folder / "bad.tar", self.data / "train-000000.tar", [1, 2, label, 3])
                self.refused("bad_label", 1, "key 000002", "--shards", bad)
                self.refused("bad_label", 1, "key 000002", "--shards", self.shards, "--val-shards", bad)
        bad = shard(self.folder / "all.tar", self.data / "train-000000.tar", [10, 11, 12])
        self.refused("bad_label", 1, "check --label and --classes", "--shards", bad, "--on-error", "skip")
        done = training.train("--shards", f"{bad}::{self.shards}", "--on-error", "skip", "--max-steps", 40)
        self.assertEqual(done.returncode, 0, done.stderr)  # which only the first shards are
        some = shard(self.folder / "some.tar", self.data / "train-000000.tar", [1, 10] * 20)
        done = training.train("--shards", some, "--on-error", "skip", "--epochs", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("skipped 20 (bad_label 20)", done.stderr)

    def test_too_little_data(self):
        index = self.folder / "i.json"
        made = harness.run("millrace", "index", self.shards, "-o", index)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.refused("usage", 2, "--batch-size 500 is more than the 120 samples", "--index", index, "--batch-size", 500)
        self.refused("usage", 2, "--batch-size 500 is more than the 120 samples", "--shards", self.shards, "--batch-size", 500)
        job = training.Job(2, lambda r: [], ["--shards", self.shards, "--lanes", 1])
        self.assertEqual(job.wait(), [2, 2], job.texts)
        self.assertIn("1 lanes for 2 ranks; use 2 lanes or more", job.texts[0])
        # Of shards on a server it is known only when an epoch is over.
        with harness.PlainServer(self.data) as server:
            done = training.train("--shards", self.shards.replace(str(self.data), server.url), "--batch-size", 500)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("no_samples", done.stderr)
        self.assertIn("lower --batch-size", done.stderr)

    def test_half_of_what_belongs_together(self):
        cases = [(["--checkpoint-every", 5], "--checkpoint-dir"), (["--keep", 3], "--checkpoint-dir"),
                 (["--grow-epochs", 2], "--grow-from"), (["--grow-from", 16], "--grow-epochs")]
        for arguments, missing in cases:
            with self.subTest(arguments=arguments):
                self.refused("usage", 2, missing, "--shards", self.shards, *arguments)
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
        self.refused("usage", 2, "RANK is not set", "--shards", self.shards, env=place)

    def test_a_pipe_is_read_once(self):
        several = ["--epochs", 2]
        for arguments, code in ((several, 2), (["--val-shards", "-", "--epochs", 1], 2), (["--epochs", 1], 0)):
            with subprocess.Popen(["cat", self.data / "train-000000.tar"], stdout=subprocess.PIPE) as shard_bytes:
                done = training.train("--shards", "-", "--metrics", self.metrics, *arguments, stdin=shard_bytes.stdout)
            self.assertEqual(done.returncode, code, done.stderr)
            if code:
                self.assertIn("can be read only once", done.stderr)
                self.assertEqual(steps(self.metrics), {}, "it trained")

    def test_links_of_class_folders(self):
        tree = self.folder / "tree"
        with tarfile.open(self.data / "train-000000.tar") as tar:
            jpeg = next(tar.extractfile(m).read() for m in tar.getmembers() if m.name.endswith(".jpg"))
        for name in ("a", "c"):
            (tree / name).mkdir(parents=True)
            for i in range(8):
                (tree / name / f"{i}.jpg").write_bytes(jpeg)
        (tree / "b").symlink_to("/nothing/b")
        self.refused("not_found", 4, "a link to nothing", "--raw", tree, "--epochs", 1)
        done = harness.run("millrace", "pack", tree, "-o", self.folder / "p-%d.tar")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("a link to nothing", done.stderr)
        (tree / "b").unlink()
        (tree / "a/lost.jpg").symlink_to("/nothing/lost.jpg")
        (tree / "a/more").symlink_to(tree / "c")
        os.mkfifo(tree / "c/pipe.jpg")
        done = training.train("--raw", tree, "--epochs", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 files left out", done.stderr)

    def test_a_shard_that_is_named_twice_is_told(self):
        for twice in (self.data / "train-000000.tar", f"{self.data}/./train-000000.tar"):
            done = training.train("--shards", self.shards, "--shards", twice, "--max-steps", 1)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("train-000000.tar is in the list of training shards more than once", done.stderr)

    def test_an_epoch_without_a_step_tells_what_was_skipped(self):
        bad = shard(self.folder / "bad.tar", self.data / "train-000000.tar", [0] + [10] * 20)
        done = training.train("--shards", bad, "--on-error", "skip", "--epochs", 1)
        self.assertEqual(done.returncode, 1, done.stderr)
        last = done.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("millrace: no_samples: "), last)
        self.assertIn("20 samples skipped", last)
        self.assertIn("bad_label", last)

    def test_a_first_shard_without_samples_is_as_a_later_one(self):
        empty, cut = self.folder / "empty.tar", self.folder / "cut.tar"
        with tarfile.open(empty, "w"):
            pass
        cut.write_bytes(b"")
        good = self.data / "train-000000.tar"
        for first, policy in ((empty, "fail"), (cut, "skip")):
            for order in ([first, good], [good, first]):
                with self.subTest(order=order):
                    shards = [word for path in order for word in ("--shards", path)]
                    done = training.train(*shards, "--on-error", policy, "--max-steps", 2)
                    self.assertEqual(done.returncode, 0, done.stderr)
        self.refused("truncated", 5, "cut.tar", "--shards", cut, "--shards", good)
        self.refused("no_samples", 1, "no sample is in the shard", "--shards", empty)

    def test_a_label_out_of_range_says_once_what_to_do(self):
        self.refused("bad_label", 1, "; set --classes to the number of classes in the data; --on-error skip, a number or",
                     "--shards", self.shards, "--classes", 2)

    def test_validation_with_fewer_shards_than_ranks(self):
        val = self.data / "train-000000.tar"
        job = Job(2, lambda r: [], ["--shards", self.shards, "--val-shards", val, "--max-steps", 2])
        self.assertEqual(job.wait(), [2, 2], job.texts)
        for text in job.texts:
            self.assertIn("validation: 1 shard cannot feed 2 ranks", text)
            self.assertIn("--val-index", text)
        index = self.folder / "v.json"
        made = harness.run("millrace", "index", "create", val, "-o", index, "--offsets")
        self.assertEqual(made.returncode, 0, made.stderr)
        job = Job(2, lambda r: [], ["--shards", self.shards, "--val-index", index, "--max-steps", 2, "--metrics",
                                    self.metrics])
        self.assertEqual(job.wait(), [0, 0], job.texts)
        self.assertEqual([l["images"] for l in lines(self.metrics) if "validation" in l], [30])

    def test_validation_where_a_ranks_only_shard_is_empty(self):
        empty = self.folder / "empty.tar"
        with tarfile.open(empty, "w"):
            pass
        val = self.data / "train-000000.tar"
        for world, shards, images in ((1, [empty, val], 30), (2, [empty, val], 30), (2, [val, empty], 30),
                                      (3, [empty, val, empty], 30), (2, [empty, empty], None)):
            with self.subTest(world=world, shards=len(shards)):
                words = [word for path in shards for word in ("--val-shards", path)]
                job = Job(world, lambda r: [], ["--shards", self.shards, *words, "--max-steps", 2, "--metrics", self.metrics,
                                                "--overwrite"])
                self.assertEqual(job.wait(), [0 if images else 1] * world, job.texts)
                if images:
                    self.assertEqual([l["images"] for l in lines(self.metrics) if "validation" in l], [images])
                else:
                    self.assertEqual(job.kinds(), ["no_samples"] * world, job.texts)

    def test_class_folders_beyond_the_classes(self):
        for name in "abc":
            (self.folder / "tree" / name).mkdir(parents=True)
            (self.folder / "tree" / name / "x.jpg").write_bytes(b"x")
        self.refused("usage", 2, "3 class folders, and --classes is 2", "--raw", self.folder / "tree", "--classes", 2)

    def test_indices(self):
        for name, samples in ("a", 80), ("b", 16):
            (self.folder / name).mkdir()
            harness.fake(self.folder / name, "x", 1, samples, size=16)
        urls = [f"{self.folder}/{name}/x-000000.tar" for name in "ab"]
        index = self.folder / "i.json"
        harness.run("millrace", "index", *urls, "-o", index)
        done = training.train("--shards", *urls, "--index", index, "--epochs", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("delivered 96", done.stderr)
        (self.folder / "other").mkdir()
        for name in "ab":
            os.rename(self.folder / name, self.folder / "other" / name)
        moved = [url.replace(f"{self.folder}/", f"{self.folder}/other/") for url in urls]
        self.refused("usage", 2, "not unique there", "--shards", *moved, "--index", index)
        self.refused("usage", 2, "does not list the shard", "--shards", self.shards, "--index", index)

    def test_an_index_from_the_network_names_no_commands(self):
        mark = self.folder / "was-run"
        for i, url in enumerate([f"pipe:touch {mark}; cat {self.data}/train-000000.tar",
                                 f"file:{self.data}/train-000000.tar"]):
            (self.folder / f"{i}.json").write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": url, "nsamples": 30}]}))
        with harness.PlainServer(self.folder) as server:
            for i in range(2):
                done = training.train("--index", f"{server.url}/{i}.json", "--allow-pipe", "--max-steps", 2, timeout=30)
                self.assertNotEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("internal", done.stderr)
        self.assertFalse(mark.exists())

    def test_places_in_a_job(self):
        for env, part in (({"MASTER_PORT": "65536", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x"}, "MASTER_PORT=65536"),
                          ({"RANK": "3", "WORLD_SIZE": "2"}, "RANK=3 of WORLD_SIZE=2"),
                          ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"), ({"RANK": "0", "WORLD_SIZE": "2"}, "nothing says where rank 0 is; set MASTER_ADDR"),
                          ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"), ({"RANK": "0"}, "WORLD_SIZE is not"),
                          ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "nothing says where rank 0 is"),
                          ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "x"}, "at which port rank 0 is; set MASTER_PORT")):
            with self.subTest(part):
                self.refused("usage", 2, part, "--shards", self.shards, env=env)


class Outputs(StartTest):
    def test_metrics_replace_nothing_else(self):
        tar = self.data / "train-000000.tar"
        before = tar.read_bytes()
        self.metrics = tar
        for extra in [], ["--overwrite"], ["--checkpoint-dir", self.folder / "c", "--resume", "auto"]:
            done = training.train("--shards", self.shards, "--max-steps", 2, "--metrics", tar, *extra)
            self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(tar.read_bytes(), before)

    def test_another_runs_list_of_skipped_samples_needs_a_word(self):
        bad = shard(self.folder / "bad.tar", self.data / "train-000000.tar", [1, 2, "cat", 3] * 8)
        skipped = self.folder / "skipped.jsonl"
        run = ["--shards", bad, "--on-error", "skip", "--skipped", skipped, "--epochs", 1]
        listed = lambda: skipped.read_text().count('"key":"000002"')  # noqa: E731
        self.assertEqual(training.train(*run).returncode, 0)
        before = skipped.read_text()
        self.refused("usage", 2, "--skipped is the file of another run", *run)
        self.assertEqual(skipped.read_text(), before)
        self.assertEqual(training.train(*run, "--overwrite").returncode, 0)
        self.assertEqual(skipped.read_text(), before)
        where = [*run, "--checkpoint-dir", self.folder / "c", "--resume", "auto"]
        self.assertEqual(training.train(*where).returncode, 0)
        self.assertEqual(listed(), 2)

    def test_outputs_are_not_written_to_urls(self):
        for option in ("--checkpoint-dir", "--metrics", "--skipped", "--record-batches", "--cache-decoded-dir"):
            with self.subTest(option):
                self.refused("usage", 2, f"the output of {option} cannot be written to a URL", "--shards", self.shards,
                             option, f"{self.folder}/s3://bucket/run", "--cache-decoded", "1M")
                self.assertFalse((self.folder / "s3:").exists())

    def test_two_outputs_are_not_one_file_or_folder(self):
        (self.folder / "link").symlink_to(self.folder)
        for a, b, path in (("--metrics", "--skipped", "a.jsonl"), ("--record-batches", "--checkpoint-dir", "d"),
                           ("--checkpoint-dir", "--cache-decoded-dir", "d")):
            for other in (self.folder / path, f"{self.folder}/./{path}", self.folder / "link" / path):
                with self.subTest(a=a, b=b, other=other):
                    self.refused("usage", 2, f"{a} and {b} are the same",
                                 "--shards", self.shards, a, self.folder / path, b, other, "--cache-decoded", "1M")
                    self.assertFalse((self.folder / path).exists())
        here = self.folder / "there.jsonl"
        here.touch()
        os.link(here, self.folder / "hard.jsonl")
        self.refused("usage", 2, "--metrics and --skipped are the same", "--shards", self.shards, "--metrics", here,
                     "--skipped", self.folder / "hard.jsonl")
        (self.folder / "dangling").symlink_to("none.jsonl")
        self.refused("usage", 2, "--metrics and --skipped are the same", "--shards", self.shards, "--metrics",
                     self.folder / "dangling", "--skipped", self.folder / "none.jsonl")
        # A device is no file that one of them would replace.
        done = training.train("--shards", self.shards, "--max-steps", 1, "--metrics", "/dev/null", "--skipped", "/dev/null")
        self.assertEqual(done.returncode, 0, done.stderr)
        # Of another rank of the job.
        job = Job(2, lambda r: [], ["--shards", self.shards, "--max-steps", 1, "--metrics", self.metrics, "--skipped",
                                    f"{self.metrics}.rank1"])
        self.assertEqual(job.wait(), [2, 2], job.texts)

    def test_a_pipe_is_waited_for_at_no_time(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        run = ["--shards", self.shards, "--epochs", 6]
        for option in (["--metrics"], ["--on-error", 5, "--skipped"]):
            done = training.train(*run, *option, fifo, timeout=60)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("start the reader of this pipe first", done.stderr)
        # A reader that has seen enough, and one that takes nothing: the run goes on without them.
        for commands in ("head -1 >/dev/null", "sleep 60"):
            with self.subTest(commands=commands):
                reader = subprocess.Popen(["sh", "-c", f"exec <{fifo}; {commands}"])
                writer = os.open(fifo, os.O_WRONLY)  # the reader is there
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
                done = training.train(*run, "--log-every", 1, "--metrics", fifo, "--json")
                os.close(writer)
                reader.kill()
                reader.wait()
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("lines of metrics could not be written", done.stderr)
                self.assertIn("lines will be missing until", done.stderr)

    def test_nothing_is_made_where_the_shards_are_wrong(self):
        self.refused("not_found", 4, "none.tar", "--shards", self.folder / "none.tar", "--record-batches",
                     self.folder / "made/b", "--cache-decoded", "1M", "--cache-decoded-dir", self.folder / "made/c")
        self.assertFalse((self.folder / "made").exists())

    def test_another_runs_metrics_need_a_word(self):
        run = ["--shards", self.shards, "--metrics", self.metrics]
        self.assertEqual(training.train(*run, "--max-steps", 3).returncode, 0)
        again = training.train(*run, "--max-steps", 2)
        self.assertEqual(again.returncode, 2, again.stderr)
        self.assertEqual(len(steps(self.metrics)), 3)
        self.assertEqual(training.train(*run, "--max-steps", 2, "--overwrite").returncode, 0)
        self.assertEqual(len(steps(self.metrics)), 2)

    def test_metrics_on_a_full_disk_are_whole_lines_and_the_run_says_so(self):
        limit = 4000
        done = training.train("--shards", self.shards, "--epochs", 3, "--metrics", self.metrics,
                              preexec_fn=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                                  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("done after 45 steps", done.stderr)
        text = self.metrics.read_text()
        self.assertTrue(text.endswith("\n") and all(json.loads(line) for line in text.splitlines()))

    def test_closed_streams(self):
        done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", harness.BIN / "millrace-train",
                               *map(str, training.TINY), "--shards", self.shards, "--max-steps", "3", "--metrics",
                               self.metrics, "--checkpoint-dir", self.folder / "c", "--json"],
                              env=harness.CLEAN | training.ALONE, timeout=60)
        self.assertEqual(done.returncode, 4)  # after the whole run: its answer is lost
        self.assertEqual(len(steps(self.metrics)), 3)
        self.assertNotIn("rank 0", self.metrics.read_text())

    def test_a_stdout_that_cannot_be_written_to_is_told(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([harness.BIN / "millrace-train", *map(str, training.TINY), "--shards", self.shards,
                                   "--max-steps", "2", "--json"], env=harness.CLEAN | training.ALONE, timeout=60,
                                  stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("io_failed: cannot write to stdout", done.stderr)

    def test_a_stderr_that_cannot_be_written_to_ends_no_run(self):
        run = [harness.BIN / "millrace-train", *map(str, training.TINY), "--log-every", "0"]
        whole = ["--shards", self.shards, "--max-steps", "5", "--checkpoint-dir", self.folder / "c"]
        for arguments, code in ((whole, 0), (["--shards", "/no.tar"], 4), (["--nope"], 2)):
            with self.subTest(arguments), open("/dev/full", "w") as full:
                done = subprocess.run([*run, *arguments], env=harness.CLEAN | training.ALONE, timeout=60, stdout=full,
                                      stderr=full)
                self.assertEqual(done.returncode, code)
        self.assertTrue((self.folder / "c/step-0000000005").is_dir())

    def test_with_json_a_failure_is_an_object(self):
        kinds = {("--shards", "/no.tar"): ("not_found", 4, {}), ("--nope",): ("usage", 2, {}),
                 ("--shards", self.shards): ("bad_setting", 2, {"MILLRACE_FOO": "1"})}
        for arguments, (kind, code, env) in kinds.items():
            with self.subTest(arguments):
                done = training.train(*arguments, "--json", env=env)
                self.assertEqual(done.returncode, code, done.stderr)
                wrong = json.loads(done.stdout.splitlines()[-1])["error"]
                self.assertEqual((wrong["kind"], wrong["exit_code"]), (kind, code))
                self.assertIn(wrong["message"], done.stderr)
        # Of a job one rank says it.
        self.assertEqual(training.train("--nope", "--json", env={"RANK": "1"}).stdout, "")

    def test_the_beginning_and_the_end_are_told(self):
        index = self.folder / "i.json"
        harness.run("millrace", "index", self.shards, "-o", index)
        done = training.train("--index", index, "--epochs", 2, "--metrics", self.metrics, "--json", "--log-every", 0,
                              "--lr", "0.5", "--lr", "0.02")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("trivial of 1,930 parameters, 10 classes on the CPU; 1 rank", "120 samples in 4 shards",
                     "15 steps an epoch, 30 to take", "epoch 0     7/15 loss", "lr 0.02", "0:00 left"):
            self.assertIn(part, done.stderr)
        end = json.loads(done.stdout.strip().splitlines()[-1])
        self.assertEqual((end["end"], end["step"], end["epochs"], end["samples"]), ("done", 30, 2, 240))
        begin = lines(self.metrics)[0]
        self.assertEqual((begin["arguments"]["--lr"], begin["arguments"]["--size"]), ("0.02", "8"))

    def test_steps_after_a_resume_with_other_batches_are_told_as_far_as_they_are_known(self):
        index = self.folder / "i.json"
        harness.run("millrace", "index", self.shards, "-o", index)
        # Of a pipe no more is known than the 7 steps of 16, of 120 samples: 112 or more, and fewer than 128.
        piped = ("--shards", f"pipe:cat {self.shards}", "--allow-pipe", "--schedule", "constant")
        for data, told in (("--index", index), "15 steps an epoch, 15 to take"), \
                          (("--shards", self.shards), "15 steps an epoch, 15 to take"), \
                          (piped, "14 or 15 steps an epoch, 14 or 15 to take"):
            with self.subTest(data):
                mine = self.folder / f"run{len(data)}{data[0]}"
                first = training.train(*data, "--batch-size", 16, "--epochs", 1, "--checkpoint-dir", mine)
                self.assertEqual(first.returncode, 0, first.stderr)
                done = training.train(*data, "--epochs", 2, "--checkpoint-dir", mine, "--resume", "auto", "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(told, done.stderr)
                self.assertEqual(json.loads(done.stdout.splitlines()[-1])["step"], 7 + 15)

    def test_help_and_misspelt_options(self):
        text = harness.run("millrace-train", "--help").stdout
        for part in ("Checkpoints:", "--batch-size IMAGES:(1 to 65536)=32", "--timeout SECONDS", "Example"):
            self.assertIn(part, text)
        for wrong, part in (("--batchsize=3", "there is no option --batchsize; did you mean --batch-size? See `millrace-train --help`"),
                            ("--lr=abc", "'abc' is not a number; use 0 or more"), ("--epochs=-1", "-1 is not 1 or more"),
                            ("--epochs=1.5", "'1.5' is not a whole number"), ("--on-error=200%", "'200%' is not a policy"),
                            ("--on-error=0.01", "'0.01' is not a policy"), ("--step-epochs=3,x", "such as 30,60,80"),
                            ("--step-epochs=5,3", "5,3 is not in ascending order; use 3,5"),
                            ("--step-epochs=3,3", "use 3"), ("--step-epochs=-1,3", "such as 30,60,80"),
                            ("--step-epochs=nan", "such as 30,60,80")):
            with self.subTest(wrong):
                self.refused("usage", 2, part, "--shards", self.shards, wrong)


if __name__ == "__main__":
    unittest.main(verbosity=2)
