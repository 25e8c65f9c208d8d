"""What a run tells of its samples, steps and failures: on stderr, in its metrics, and by --json."""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import Job, WithShards, lines, steps  # noqa: E402


def last_object(stdout):
    return json.loads(stdout.strip().splitlines()[-1])


class ToldTest(WithShards):
    val_counts = (2, 40)

    def setUp(self):
        super().setUp()
        self.metrics = self.folder / "metrics.jsonl"

    def train(self, *arguments, code=0, **options):
        done = training.train("--shards", self.shards, "--json", *arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.end = last_object(done.stdout) if done.stdout else {}
        self.stderr = done.stderr
        return done


class Validation(ToldTest):
    def bad_labels(self):
        """How many labels of the validation shards are beyond two classes."""
        labels = []
        for path in sorted(self.data.glob("val-*.tar")):
            with tarfile.open(path) as tar:
                labels += [int(tar.extractfile(m).read()) for m in tar if m.name.endswith(".cls")]
        return sum(label > 1 for label in labels), len(labels)

    def test_samples_skipped_are_told_on_all_three(self):
        bad, all_of_them = self.bad_labels()
        self.assertGreater(bad, 0)
        few = ["--raw", self.folder / "tree", "--classes", 2, "--val-shards", self.val, "--on-error", "skip"]
        self.class_folders()
        done = training.train(*few, "--epochs", 2, "--batch-size", 4, "--json", "--metrics", self.metrics)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = [l for l in done.stderr.splitlines() if " validation loss " in l]
        self.assertEqual(len(told), 2)
        for line in told:
            self.assertIn(f"of {all_of_them - bad} images", line)
            self.assertIn(f"skipped {bad} (bad_label {bad})", line)
        self.assertEqual([l["skipped"] for l in lines(self.metrics) if "validation" in l], [{"bad_label": bad}] * 2)
        end = last_object(done.stdout)
        self.assertEqual((end["validation_skipped"], end["validation_images"], end["skipped"]), (bad, all_of_them - bad, 0))
        # Listed once, not after every epoch.
        self.assertEqual(done.stderr.count("skipped in validation: bad_label"), bad)

    def class_folders(self):
        """Two class folders with the images of a shard."""
        with tarfile.open(self.data / "train-000000.tar") as tar:
            images = [tar.extractfile(m).read() for m in tar if m.name.endswith(".jpg")]
        for i, image in enumerate(images):
            folder = self.folder / "tree" / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.jpg").write_bytes(image)

    def test_ranks_tell_the_sum(self):
        bad, all_of_them = self.bad_labels()
        self.class_folders()
        job = Job(2, lambda r: [], ["--raw", self.folder / "tree", "--classes", 2, "--val-shards", self.val, "--on-error",
                                    "skip", "--epochs", 1, "--batch-size", 4, "--metrics", self.metrics])
        self.assertEqual(job.wait(), [0, 0], job.texts)
        self.assertIn(f"of {all_of_them - bad} images", job.texts[0])
        self.assertIn(f"skipped {bad} (bad_label {bad})", job.texts[0])

    def test_no_image_is_an_error(self):
        bad = self.folder / "bad.tar"
        with tarfile.open(bad, "w") as tar:
            for name, content in ("0.jpg", b"no image"), ("0.cls", b"0"):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        few = ["--on-error", "skip", "--max-steps", 2]
        self.train("--val-shards", bad, *few, code=1)
        self.assertIn("no_samples: validation: no image is left: delivered 0, skipped 1 (bad_image 1)", self.stderr)
        job = Job(2, lambda r: [], ["--shards", self.shards, "--val-shards", bad, "--val-shards", bad, *few])
        self.assertEqual(job.wait(), [1, 1], job.texts)
        empty = self.folder / "empty.tar"
        with tarfile.open(empty, "w"):
            pass
        self.train("--val-shards", empty, "--metrics", self.metrics, code=1)
        self.assertIn("no_samples: validation: no sample is in the shard", self.stderr)
        self.assertEqual(lines(self.metrics), [], "it trained")

    def test_a_failure_says_that_it_is_of_the_validation_and_where_the_step_is_saved(self):
        bad = self.folder / "val-cut.tar"
        bad.write_bytes((self.data / "val-000000.tar").read_bytes()[:20_000])
        self.train("--val-shards", self.data / "val-000001.tar", "--val-shards", bad, "--epochs", 1, "--checkpoint-dir",
                   self.folder / "c", code=5)
        self.assertEqual(self.end["error"]["kind"], "truncated")
        self.assertIn("truncated: validation: ", self.stderr)
        step = f"{self.folder}/c/step-0000000015"
        self.assertIn(f"the validation failed: step 15 is saved in {step}; --resume auto begins with it", self.stderr)
        job = Job(2, lambda r: [], ["--shards", self.shards, "--val-shards", self.data / "val-000001.tar", "--val-shards",
                                    bad, "--epochs", 1])
        self.assertEqual(job.wait(), [5, 5], job.texts)
        self.assertEqual(job.kinds(), ["truncated"] * 2)


class Ends(ToldTest):
    def test_where_the_last_step_is_saved_is_told(self):
        checkpoints = self.folder / "c"
        self.train("--max-steps", 3, "--checkpoint-dir", checkpoints)
        self.assertIn(f"\ndone: step 3 is saved in {checkpoints}/step-0000000003\n", self.stderr)
        for more, told in (["--checkpoint-dir", checkpoints, "--resume", "auto"], "is saved in .*/step-[0-9]*; --resume auto continues"), \
                          ([], "nothing is saved without --checkpoint-dir"):
            process = training.start("--shards", self.shards, "--epochs", 100000, "--metrics", self.metrics, *more)
            self.addCleanup(process.kill)
            harness.wait_until(lambda: training.taken(self.metrics) > 4 or process.poll() is not None)
            process.terminate()
            said = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 143, said)
            self.assertRegex(said, f"\nstopped by SIGTERM[:;] .*{told}")
            self.metrics.unlink()

    def test_the_last_loss_is_of_the_last_step(self):
        run = ["--epochs", 1, "--shuffle", 50]
        self.train(*run, "--log-every", 1000)
        told = self.end["last_loss"]
        self.train(*run, "--metrics", self.metrics)
        losses = steps(self.metrics)
        self.assertEqual(told, losses[15])
        self.assertNotEqual(told, losses[1])
        self.assertEqual(self.end["last_loss"], told)

    def test_a_last_step_that_ends_an_epoch_completes_it(self):
        run = ["--epochs", 2, "--batch-size", 16, "--val-shards", self.val]  # 7 steps of 120 samples
        self.train(*run, "--metrics", self.metrics)
        told = lambda key: [(l[key] if key != "validation" else l["epoch"], l["step"])  # noqa: E731
                            for l in lines(self.metrics) if key in l]
        unbroken = steps(self.metrics), told("end_of_epoch"), told("validation")
        self.assertEqual(unbroken[1:], ([(0, 7), (1, 14)],) * 2)
        self.metrics.unlink()
        for step in 7, 14:
            self.train(*run, "--metrics", self.metrics, "--checkpoint-dir", self.folder / "c", "--resume", "auto",
                       "--max-steps", step)
            self.assertEqual((self.end["step"], self.end["epochs"]), (step, step // 7))
            self.assertEqual((self.end["delivered"], self.end["dropped"]), (112, 8))
            self.assertEqual((told("end_of_epoch")[-1], told("validation")[-1]), ((step // 7 - 1, step),) * 2)
        self.assertEqual((steps(self.metrics), told("end_of_epoch"), told("validation")), unbroken)
        # Within an epoch the batch that was looked at is not this run's.
        self.train(*run, "--max-steps", 6)
        self.assertEqual((self.end["epochs"], self.end["delivered"], self.end["samples"]), (0, 96, 96))

    def test_nothing_left_to_do_is_told(self):
        run = ["--epochs", 1, "--checkpoint-dir", self.folder / "c", "--resume", "auto"]
        self.train(*run)
        self.assertNotIn("nothing is left to do", self.stderr)
        self.train(*run)
        self.assertIn("nothing is left to do: step 15 of ", self.stderr)
        self.assertIn("raise --epochs or --max-steps", self.stderr)
        self.assertNotIn("last_loss", self.end)


    def test_an_epoch_without_a_step_is_an_error_after_a_resume_too(self):
        # Nobody knows how many samples there are.
        piped = [a for path in sorted(self.data.glob("train-*.tar")) for a in ("--shards", f"pipe:cat {path}")]
        run = [*piped, "--allow-pipe", "--checkpoint-dir", self.folder / "c", "--resume", "auto", "--json"]
        train = lambda *more: training.train(*run, *more)  # noqa: E731
        done = train("--epochs", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = train("--epochs", 2, "--batch-size", 500)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("no_samples: an epoch without a single step", done.stderr.splitlines()[-1])
        # All steps of the epoch were taken before, with what is left of it in no batch.
        for size in (16, 500):
            shutil.rmtree(self.folder / "c")
            self.assertEqual(train("--epochs", 1, "--max-steps", 14).returncode, 0)
            done = train("--epochs", 1, "--batch-size", size)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((last_object(done.stdout)["epochs"], last_object(done.stdout)["step"]), (1, 14))

    def test_what_an_index_leaves_out_is_dropped(self):
        index = self.folder / "index.json"
        made = harness.run("millrace", "index", "create", self.shards, "-o", index)
        self.assertEqual(made.returncode, 0, made.stderr)
        # 120 samples for 7 lanes: one is left out of each epoch, and 7 of the rest are no batch.
        self.train("--index", index, "--lanes", 7, "--epochs", 2)
        self.assertIn("leaving out 1 of 120 samples in each epoch", self.stderr)
        self.assertEqual((self.end["delivered"], self.end["dropped"]), (224, 16))
        self.assertIn("dropped 16", self.stderr)


class Refused(ToldTest):
    def test_a_bad_sample_says_how_to_train_without_it(self):
        few = ["--classes", 2, "--epochs", 1]  # of ten
        self.train(*few, code=1)
        self.assertIn("bad_label", self.stderr.splitlines()[-1])
        self.assertIn("--on-error skip", self.stderr.splitlines()[-1])
        Validation.class_folders(self)
        image = sorted((self.folder / "tree/a").iterdir())[0]
        image.write_bytes(b"no image")
        done = training.train("--raw", self.folder / "tree", "--classes", 2, "--epochs", 1)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("bad_image", done.stderr.splitlines()[-1])
        self.assertIn("--on-error skip", done.stderr.splitlines()[-1])
        # In the list, training and validation are told apart.
        listed = self.folder / "skipped.jsonl"
        done = training.train("--raw", self.folder / "tree", "--classes", 2, "--epochs", 1, "--batch-size", 4, "--on-error",
                              "skip", "--skipped", listed, "--val-shards", self.val)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({(l["kind"], l["of"]) for l in lines(listed)}, {("bad_image", "training"), ("bad_label", "validation")})

    def test_batches_are_recorded_in_a_folder_of_their_own(self):
        folder = self.folder / "rb"
        checkpoints = ["--checkpoint-dir", self.folder / "c"]
        self.train("--record-batches", folder, "--max-steps", 4, *checkpoints)
        names = [f"rank0-{i:06}.safetensors" for i in range(4)]
        self.assertEqual(sorted(p.name for p in folder.iterdir()), names)
        before = (folder / names[0]).read_bytes()
        self.train("--record-batches", folder, "--max-steps", 2, code=2)
        self.assertIn("--record-batches is a folder that is not empty", self.stderr)
        # A resumed run adds to them, and replaces none.
        self.train("--record-batches", folder, "--max-steps", 6, "--resume", "auto", *checkpoints)
        self.assertEqual(len(list(folder.iterdir())), 6)
        back = ["--resume", self.folder / "c/step-0000000004", "--overwrite", *checkpoints]
        self.train("--record-batches", folder, "--max-steps", 6, *back, code=2)
        self.assertIn("--record-batches would overwrite rank0-000004.safetensors", self.stderr)
        self.assertEqual((folder / names[0]).read_bytes(), before)

    def test_another_list_of_shards_is_a_wrong_argument(self):
        run = ["--checkpoint-dir", self.folder / "c", "--epochs", 2]
        self.train(*run, "--max-steps", 3)
        self.train(*run, "--resume", "auto", "--shards", self.data / "val-000000.tar", code=2)
        self.assertIn("usage: the checkpoint was saved with another list of shards", self.stderr)

    def test_a_shard_that_was_replaced_is_not_read_on(self):
        made = ["--shuffle", 0, "--lanes", 1, "--epochs", 1, "--checkpoint-dir", self.folder / "c"]
        pattern = harness.fake(self.folder, "own", 2, 80, size=16)
        run = lambda *more: training.train("--shards", pattern, *made, *more)  # noqa: E731
        self.assertEqual(run("--max-steps", 3).returncode, 0)
        for old in self.folder.glob("own-*.tar"):
            old.unlink()
        harness.fake(self.folder, "own", 2, 80, size=16, seed=9)
        again = run("--resume", "auto")
        self.assertEqual(again.returncode, 5, again.stderr)
        self.assertIn("changed: ", again.stderr)
        self.assertIn("the shard was replaced since the state was saved", again.stderr)
        again = run("--resume", "auto", "--on-error", "skip")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("(changed ", again.stderr)

    def test_a_missing_shard_is_treated_alike_on_disk_and_on_a_server(self):
        with harness.PlainServer(self.data) as server:
            for missing in (self.data / "no.tar", f"{server.url}/no.tar"):
                with self.subTest(missing):
                    self.train("--shards", missing, code=4)
                    self.assertIn("not_found", self.stderr)
                    self.train("--shards", missing, "--epochs", 1, "--on-error", "skip")
                    self.assertIn("(not_found ", self.stderr)
        self.train("--shards", self.data / "no.tar", code=4)
        self.assertIn("--on-error", self.stderr.splitlines()[-1])

    def test_a_shard_that_went_away_before_a_resume_counts_once(self):
        run = ["--epochs", 1, "--checkpoint-dir", self.folder / "c", "--shuffle", 60]
        pattern = harness.fake(self.folder, "own", 4, 400, size=16)
        train = lambda *more: training.train("--shards", pattern, "--json", *run, *more)  # noqa: E731
        self.assertEqual(train("--max-steps", 15).returncode, 0)
        (self.folder / "own-000001.tar").unlink()
        # Its hundred samples are at most what is missing of it.
        done = train("--resume", "auto", "--on-error", 100)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 shard could not be read whole in this epoch", done.stderr)
        self.assertNotIn("gave no sample", done.stderr)
        self.assertEqual(done.stderr.count("rank 0 skipped: not_found: "), 1, done.stderr)
        self.assertIn(" more; the file of --skipped lists all", done.stderr)
        end = last_object(done.stdout)
        self.assertGreater(end["skipped"], 1)
        self.assertLessEqual(end["skipped"] + end["lost"], 100)
        self.assertEqual(end["incomplete_shards"], 1)

    def test_a_missing_shard_counts_alike_in_the_policy_and_at_the_end(self):
        pattern = harness.fake(self.folder, "own", 4, 400, size=16)
        made = harness.run("millrace", "index", pattern, "-o", self.folder / "i.json", "--offsets")
        self.assertEqual(made.returncode, 0, made.stderr)
        (self.folder / "own-000001.tar").unlink()
        for how in ([], ["--index", self.folder / "i.json", "--lanes", 7]):
            with self.subTest(how=how[:1]):
                run = ["--shards", pattern, "--epochs", 1, "--json", *how, "--on-error"]
                done = training.train(*run, 200)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("1 shard gave no sample in this epoch", done.stderr)
                self.assertEqual(done.stderr.count("rank 0 skipped: not_found: "), 1, done.stderr)
                end = last_object(done.stdout)
                missing = end["skipped"] + end["lost"]
                self.assertAlmostEqual(missing, 100, delta=8)
                self.assertIn(f", lost {end['lost']}", done.stderr)
                self.assertEqual(training.train(*run, missing).returncode, 0)
                self.assertEqual(training.train(*run, missing - 1).returncode, 3)

    def test_values_that_are_too_few(self):
        for wrong in ("0.4,0.4", "0.4", "0.4,0.4,0.4,0.1,0", "a,b,c,d"):
            self.train("--color-jitter", wrong, code=2)
            self.assertIn(f"--color-jitter: '{wrong}' is not 4 numbers, B,C,S,H", self.stderr)
        self.train("--color-jitter", "0.4,0.4,0.4,0.1", "--max-steps", 2)

    def test_help_and_version_that_cannot_be_written(self):
        for asked in "--help", "--version":
            with self.subTest(asked), open("/dev/full", "w") as full:
                done = subprocess.run([harness.BIN / "millrace-train", asked], env=harness.CLEAN, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=30)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("cannot write to stdout", done.stderr)

    def test_a_folder_of_checkpoints_names_its_newest(self):
        self.train("--max-steps", 2, "--checkpoint-dir", self.folder / "c")
        self.train("--resume", self.folder / "c", "--max-steps", 3, code=2)
        self.assertIn(f"its newest is {self.folder}/c/step-0000000002: give that one", self.stderr)
        self.assertNotIn("--checkpoint-dir", self.stderr.splitlines()[-1])

    def test_files_that_are_no_samples_are_left_out_of_class_folders(self):
        tree = self.folder / "tree"
        Validation.class_folders(self)
        (tree / "a/notes.txt").write_text("not an image")
        (tree / "loose.jpg").write_text("in no class folder")
        done = training.train("--raw", tree, "--classes", 2, "--epochs", 1, "--batch-size", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 files left out, being no image, in no class folder, ", done.stderr)


    def test_other_class_folders_are_refused_and_named(self):
        tree = self.folder / "tree"
        Validation.class_folders(self)
        run = ["--raw", tree, "--classes", 5, "--epochs", 1, "--batch-size", 4, "--checkpoint-dir", self.folder / "c",
               "--resume", "auto"]
        done = training.train(*run, "--max-steps", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        (tree / "_empty").mkdir()
        (tree / "__MACOSX").mkdir()
        done = training.train(*run)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("1 class folder without a sample, but with a label: _empty", done.stderr)
        self.assertIn("_empty here and not in the checkpoint", done.stderr)
        other = self.folder / "other"
        shutil.copytree(tree, other)
        (other / "_empty").rmdir()
        job = Job(2, lambda r: ["--raw", tree if r else other], ["--classes", 5, "--epochs", 1, "--batch-size", 4])
        self.assertEqual(job.wait(), [2, 2], job.texts)
        self.assertIn("_empty here and not on rank 0", job.texts[1])


class Joining(ToldTest):
    def joining(self, address, rank=0):
        done = training.train("--shards", self.shards, "--timeout", 3, "--json", timeout=60,
                              env={"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": address,
                                   "MASTER_PORT": str(self.port)})
        self.assertEqual(done.returncode, 6, done.stderr)
        return done

    def test_where_nobody_comes_the_place_is_named(self):
        self.port = harness.free_port()
        done = self.joining("127.0.0.1")
        for part in (f"peer_lost: rank 0 of 2: joining the job at 127.0.0.1:{self.port} failed", "start all 2 ranks"):
            self.assertIn(part, done.stderr)
        self.assertNotIn("--resume", done.stderr)
        self.assertEqual(last_object(done.stdout)["error"]["kind"], "peer_lost")
        done = self.joining("127.0.0.1", rank=1)
        self.assertIn("start rank 0 too", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_a_host_that_is_not_known_is_told(self):
        self.port = harness.free_port()
        done = self.joining("nohost.invalid")
        self.assertIn(f"at nohost.invalid:{self.port} failed (no such host: ", done.stderr)
        self.assertIn("set MASTER_ADDR to the host of rank 0", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
