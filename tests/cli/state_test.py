"""millrace state: what it shows of saved positions, and runs that are resumed from those it has edited."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, states, training  # noqa: E402
from tests.support.harness import Folder, run  # noqa: E402
from tests.support.training import ALONE, TINY  # noqa: E402


def shown(path):
    done = run("millrace", "state", "show", path, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class StateTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(Folder())

    def edited(self, *words, code=0):
        done = run("millrace", "state", *words, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def refused(self, *words, code=2, kind="usage", why=""):
        """With and without --json: one line, no new file."""
        before = self.contents()
        for more in ([], ["--json"]):
            done = self.edited(*words, *more, code=code)
            self.assertTrue(done.stderr.startswith(f"millrace: {kind}: "), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(why, done.stderr)
            if more:
                self.assertEqual(json.loads(done.stdout)["error"]["kind"], kind)
        self.assertEqual(self.contents(), before)

    def contents(self):
        return {p.relative_to(self.folder): p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}


class OwnStates(StateTest):
    """Positions of examples/resume.cc."""

    def setUp(self):
        super().setUp()
        self.spec = harness.fake(self.folder, "a", 8, 400, size=16)
        self.keys = self.read("whole.json", 1000)[:-1]  # and the end of the epoch
        self.assertEqual(len(self.keys), 400)

    def read(self, state, samples):
        done = run("example_resume", self.spec, state, samples, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stderr
        return done.stdout.splitlines()

    def test_show(self):
        self.read("p.json", 150)
        found = shown(self.folder / "p.json")
        self.assertEqual((found["epoch"], found["given"], found["given_is_exact"]), (0, 150, True))
        self.assertEqual((found["lanes_in_all"], len(found["lanes"])), (8, 8))
        self.assertEqual((found["loader_mode"], found["shuffled"], found["redistributed"]), ("exact", True, False))
        self.assertEqual((found["skipped"], found["ranks"], found["passes_over"]), (0, None, None))
        self.assertEqual(found["held"], sum(lane["held"] for lane in found["lanes"]))
        self.assertGreater(found["held"], 0)
        self.assertEqual({lane["epoch"] for lane in found["lanes"]}, {0})
        self.assertTrue(any(lane["shard"] is not None and lane["offset"] > 0 for lane in found["lanes"]))
        text = self.edited("show", "p.json").stdout
        self.assertIn("epoch 0, 150 samples given of it", text)
        self.assertIn("8 lanes, loader mode exact, shuffled shards", text)
        self.assertEqual(len(text.split("failed\n")[1].splitlines()), 8)

    def test_show_of_what_python_has_saved(self):
        self.read("s.json", 30)
        position = (self.folder / "s.json").read_text()
        (self.folder / "python.json").write_text(json.dumps({"millrace": 1, "epoch": 0, "position": position}))
        mine, of_python = shown(self.folder / "s.json"), shown(self.folder / "python.json")
        mine.pop("file", None), of_python.pop("file", None)
        self.assertEqual(of_python, mine)

    def test_skip(self):
        before = self.read("p.json", 150)
        for n in (1, 40):
            with self.subTest(n):
                done = self.edited("skip", "p.json", "--samples", n, "-o", f"after{n}.json", "--json")
                self.assertEqual(json.loads(done.stdout), {"file": "p.json", "output": f"after{n}.json", "epoch": 0, "samples": n,
                                                           "to_the_end": False})
                self.assertEqual(shown(self.folder / f"after{n}.json")["passes_over"]["epoch"], 0)
                self.assertIn("to skip: ", self.edited("show", f"after{n}.json").stdout)
                self.assertEqual(before + self.keys[150:150 + n] + self.read(f"after{n}.json", 1000)[:-1], self.keys)
                self.assertIn(f"epoch 0: passed over {n} sample", self.said)
                self.assertIsNone(shown(self.folder / f"after{n}.json")["passes_over"])

    def test_skip_ends_with_the_epoch(self):
        self.read("p.json", 150)
        self.edited("skip", "p.json", "--samples", 10**6, "-o", "after.json")
        self.assertEqual(self.read("after.json", 1000), ["end of the epoch"])
        self.assertIn("epoch 0: passed over 250 samples: it ended within the stretch", self.said)

    def test_move(self):
        for position, given in (("p.json", 150), ("whole.json", 400)):
            self.read(position, 150)
            done = self.edited("move", position, "--epoch", 0, "-o", f"begin-{position}", "--json")
            self.assertEqual(json.loads(done.stdout), {"file": position, "output": f"begin-{position}", "epoch": 0})
            found = shown(self.folder / f"begin-{position}")
            self.assertEqual((found["epoch"], found["given"], found["held"]), (0, 0, 0))
            self.assertEqual(self.read(f"begin-{position}", 1000)[:-1], self.keys)
        self.edited("move", "p.json", "--epoch", 1, "-o", "next.json")
        self.assertEqual(self.read("next.json", 1000), ["end of the epoch"])  # the run has one epoch

    def test_what_is_there_is_kept(self):
        self.read("p.json", 50)
        (self.folder / "note.json").write_text("precious")
        for words in (["move", "p.json", "--epoch", 0], ["skip", "p.json", "--samples", 1]):
            self.edited(*words, "-o", "o.json", "--overwrite")
            self.refused(*words, "-o", "o.json", why="--overwrite")
            self.refused(*words, "-o", "p.json", "--overwrite", why="the output is the input")
            self.refused(*words, "-o", "./p.json", why="the output is the input")
            self.refused(*words, "-o", "note.json", "--overwrite", why="not a saved state")
            self.refused(*words, "-o", self.folder, "--overwrite", why="folder")
            self.refused(*words, "-o", "http://h/o.json")
            self.refused(*words, "-o", "none/o.json", code=4, kind="not_found")
            self.edited(*words, "-o", "o.json", "--overwrite")
        os.link(self.folder / "p.json", self.folder / "same.json")
        self.refused("move", "p.json", "--epoch", 0, "-o", "same.json", "--overwrite", why="the output is the input")

    def test_of_one_rank_no_stretch_is_known(self):
        (self.folder / "rank.json").write_text(states.text_of(
            {"lane0/cursor": [0, 0, 0, 0], "lanes": [0, 0, 0, 0, 0], "lanes_base": [0], "lanes_epoch": [0], "plan": [1, 0, 2, 0, 1]}))
        self.assertEqual((len(shown(self.folder / "rank.json")["lanes"]), shown(self.folder / "rank.json")["lanes_in_all"]), (1, 2))
        self.refused("skip", "rank.json", "--samples", 1, "-o", "o.json", code=1, kind="bad_state", why="1 of 2 lanes")
        self.edited("move", "rank.json", "--epoch", 2, "-o", "o.json")

    def test_what_is_no_state_is_told(self):
        whole = (self.folder / "whole.json").read_text()
        rows = {"empty": "", "foreign": '{"name": "my-app"}', "cut": whole[:-9], "changed": whole.replace("lanes_base", "lanes_bose"),
                "older": states.text_of({"plan": [1, 0, 1, 0, 1]}, version=1), "bare": states.text_of({}),
                "numbers": states.text_of({"plan": [1, 0, 1, 0, 1], "lanes_epoch": [2**60]})}
        for name, text in rows.items():
            (self.folder / f"{name}.json").write_text(text)
            for words in (["show"], ["move", "--epoch", 0, "-o", "o"], ["skip", "--samples", 1, "-o", "o"]):
                with self.subTest(name, words=words):
                    self.refused(*words, f"{name}.json", code=1, kind="bad_state", why=f"{name}.json")
        records = json.loads(states.BEGIN)["records"] | {"ends_held of rank 0 of 1": []}
        (self.folder / "no_ends.json").write_text(states.text_of(records))
        self.refused("skip", "--samples", 1, "-o", "o", "no_ends.json", code=1, kind="bad_state", why="ends_held")
        self.refused("show", "none.json", code=4, kind="not_found", why="none.json")
        self.refused("show", self.folder, why="neither a checkpoint nor a folder of checkpoints")
        self.refused("show", "http://h/p.json", why="path")

    def test_refused_in_plain_words(self):
        base = {"lane0/cursor": [0, 0, 0, 0], "lanes": [0, 0, 0, 0, 0], "lanes_base": [0], "lanes_epoch": [0]}
        for name, more, why in (("mix", {"lane0/mix": [1, 0, 0, 0], "plan": [1, 0, 1, 0, 1]}, "the sources of a mix"),
                                ("drawn", {"plan": [1, 0, 1, 1, 1]}, "endless epoch"),
                                ("own", {"pairs": [3], "plan": [1, 0, 1, 0, 1]}, "a stage of the program has the record pairs"),
                                ("counted", {"epochs_of of rank 0 of 1": [0], "plan": [1, 0, 1, 0, 1]}, "epochs of their own")):
            (self.folder / f"{name}.json").write_text(states.text_of(base | more))
            self.refused("move", f"{name}.json", "--epoch", 1, "-o", "o.json", kind="unsupported", why=why)
        for wrong in (["move", "--epoch", -1], ["skip", "--samples", 0], ["skip", "--samples", 2**60], ["move", "--epoch", "x"]):
            self.refused(*wrong, "whole.json", "-o", "o.json")


@unittest.skipUnless((harness.BIN / "millrace-train").exists(), "millrace-train is not built here")
class Checkpoints(StateTest):
    def setUp(self):
        super().setUp()
        self.spec = harness.fake(self.folder, "a", 8, 384, size=8)

    def train(self, *more, code=0, ranks=1):
        words = [*TINY, "--shards", self.spec, "--epochs", 2, "--seed", 3, *more]
        if ranks > 1:
            words += ["--nproc", ranks]
        done = run("millrace-train", *words, cwd=self.folder, env=ALONE, timeout=300)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def keys(self, name, ranks=1):
        """The keys trained on, by step, over all ranks."""
        out = {}
        for rank in range(ranks):
            path = self.folder / (f"{name}.rank{rank}" if rank else name)
            for line in map(json.loads, path.read_text().splitlines()):
                if "batch" in line:
                    out.setdefault(line["step"], []).extend(line["keys"])
        return out

    def test_one_rank(self):
        self.train("--checkpoint-dir", "c", "--checkpoint-every", 10, "--keep", 100, "--metrics", "m", "--metrics-keys")
        steps = self.keys("m")
        self.assertEqual(len(steps), 96)
        source = self.folder / "c/step-0000000010"
        before = self.contents()
        found = shown(source)
        self.assertEqual((found["given"], found["epoch"], found["ranks"]), (80, 0, 1))
        self.assertEqual(found["checkpoint"] | {"run": ""}, {"step": 10, "run": "", "epoch": 0, "batch_in_epoch": 10, "epoch_batches": 48,
                                                            "samples": 80, "batch_size": 8, "world_size": 1})
        self.assertEqual(shown(self.folder / "c")["checkpoint"]["step"], 96)
        self.assertIn("step: 10 of run ", self.edited("show", source).stdout)

        # Four batches later, in the same order; the next epoch is whole.
        self.edited("skip", source, "--samples", 32, "-o", "s/step-0000000010")
        self.assertEqual(self.contents() | before, self.contents(), "the source is changed")
        self.assertEqual(shown(self.folder / "s")["checkpoint"]["batch_in_epoch"], 14)
        done = self.train("--checkpoint-dir", "s", "--resume", "auto", "--metrics", "after", "--metrics-keys")
        self.assertIn("epoch 0: passed over 32 samples", done.stderr)
        after = self.keys("after")
        self.assertEqual([after[step] for step in range(11, 93)], [steps[step] for step in range(15, 97)])

        # The second epoch from its beginning, with the weights of step 10.
        self.edited("move", "c/step-0000000010", "--epoch", 1, "-o", "m1")
        found = shown(self.folder / "m1")
        self.assertEqual((found["epoch"], found["given"], found["held"]), (1, 0, 0))
        self.assertEqual((found["checkpoint"]["epoch"], found["checkpoint"]["batch_in_epoch"], found["checkpoint"]["step"]), (1, 0, 10))
        self.assertEqual((self.folder / "m1/model.safetensors").read_bytes(), (source / "model.safetensors").read_bytes())
        self.train("--resume", "m1", "--metrics", "moved", "--metrics-keys")
        moved = self.keys("moved")
        self.assertEqual([moved[step] for step in range(11, 59)], [steps[step] for step in range(49, 97)])

    def test_two_ranks_and_one(self):
        self.train("--checkpoint-dir", "c", "--checkpoint-every", 5, "--keep", 100, "--metrics", "m", "--metrics-keys", ranks=2)
        steps = self.keys("m", 2)
        self.edited("skip", "c/step-0000000005", "--samples", 48, "-o", "s/step-0000000005")
        skipped = {key for step in (6, 7, 8) for key in steps[step]}
        self.assertEqual(len(skipped), 48)
        for ranks in (2, 1):
            with self.subTest(ranks=ranks):
                self.train("--resume", "s/step-0000000005", "--epochs", 1, "--metrics", f"r{ranks}", "--metrics-keys", ranks=ranks)
                trained = [key for keys in self.keys(f"r{ranks}", ranks).values() for key in keys]
                self.assertEqual(len(set(trained)), len(trained))
                expected = {key for step, keys in steps.items() if 9 <= step <= 24 for key in keys}
                self.assertEqual(set(trained), expected)

    def test_outputs_are_whole_and_nothing_of_others_is_replaced(self):
        self.train("--checkpoint-dir", "c", "--max-steps", 3)
        words = ["move", "c", "--epoch", 0]
        (self.folder / "mine").mkdir()
        (self.folder / "mine/note").write_text("precious")
        (self.folder / "mine/train.json").write_text("{}")  # as an index may be named
        (self.folder / "file").write_text("precious")
        (self.folder / "mine/state").write_text("{")
        self.refused("show", "mine/state", code=1, kind="bad_state", why="the saved state")
        self.refused(*words, "-o", "mine", why="exists already")
        self.refused(*words, "-o", "mine", "--overwrite", why="not a checkpoint")
        self.refused(*words, "-o", "file", "--overwrite", why="not a checkpoint")
        self.refused(*words, "-o", "c/step-0000000003", "--overwrite", why="the output is the input")
        self.edited(*words, "-o", "o/step-0000000003/")
        self.refused(*words, "-o", "o/step-0000000003", why="--overwrite")
        self.edited("skip", "c", "--samples", 8, "-o", "o/step-0000000003", "--overwrite")
        self.assertEqual(sorted(p.name for p in (self.folder / "o").iterdir()), ["step-0000000003"])
        self.train("--checkpoint-dir", "o", "--resume", "auto", "--epochs", 1)
        damaged = self.folder / "c/step-0000000003/model.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:-1])
        for edit in (["show", "c"], ["skip", "c", "--samples", 1, "-o", "x"]):
            self.refused(*edit, code=5, kind="integrity", why="model.safetensors")
        shutil.rmtree(self.folder / "c/step-0000000003")
        (self.folder / "c/step-0000000003").mkdir()
        self.refused("show", "c", code=5, kind="integrity", why="train.json")

    def test_a_strangers_checkpoint_names_no_file_elsewhere(self):
        self.train("--checkpoint-dir", "c", "--max-steps", 3)
        foreign = self.folder / "download/c/step-0000000003"
        (self.folder / "precious").write_bytes(b"mine")
        for name in ("../../precious", "/etc/passwd", "..", ".hidden", "", "a/b", "nul\0"):
            with self.subTest(name):
                shutil.rmtree(foreign, ignore_errors=True)
                shutil.copytree(self.folder / "c/step-0000000003", foreign)
                (self.folder / "download/precious").write_bytes(b"theirs")
                with training.changed_meta(foreign) as meta:
                    meta["files"][name] = {"bytes": 6, "crc32c": training.crc32c(b"theirs")}
                before = self.contents()
                for words in (["show"], ["move", "--epoch", 0, "-o", "o/s"], ["skip", "--samples", 1, "-o", "o/s"]):
                    self.refused(*words, foreign, code=5, kind="integrity", why="which is not a valid file name")
                self.assertEqual(self.contents(), before)

    def test_a_full_disk_leaves_nothing(self):
        self.train("--checkpoint-dir", "c", "--max-steps", 2)
        before = self.contents()
        done = subprocess.run(["/bin/sh", "-c", f"ulimit -f 1; exec {harness.BIN / 'millrace'} state move c --epoch 0 -o o/x"],
                              cwd=self.folder, env=harness.CLEAN, capture_output=True, text=True)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(self.contents(), before)


if __name__ == "__main__":
    unittest.main()
