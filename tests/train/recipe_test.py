"""--recipe: values of options from a file, which those of the command line go before; and the recipes of this repository."""

import json
import os
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import WithShards, lines  # noqa: E402

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "recipes"


class Recipes(WithShards):
    size = 40

    def run_of(self, *words, code=0):
        """What the run said; its arguments are those that it recorded."""
        metrics = self.folder / "m.jsonl"
        done = training.train("--max-steps", 1, "--metrics", metrics, "--overwrite", *words)
        self.assertEqual(done.returncode, code, done.stderr)
        self.arguments = lines(metrics)[0]["arguments"] if code == 0 else {}
        return done.stderr

    def recipe(self, content):
        file = self.folder / "r.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    def test_its_values_count_unless_the_command_line_has_others(self):
        file = self.recipe({"shards": [self.shards], "momentum": 0.5, "schedule": "step", "step-epochs": [3, 4.5], "nesterov": True,
                            "augment": False, "amp": False, "weight-decay": 1e-7, "epochs": 7})
        self.run_of("--recipe", file, "--epochs", 5)
        expected = {"--momentum": "0.5", "--schedule": "step", "--step-epochs": "3,4.5", "--nesterov": "true", "--augment": "false",
                    "--epochs": "5"}
        self.assertEqual({name: self.arguments[name] for name in expected}, expected)
        self.assertEqual(float(self.arguments["--weight-decay"]), 1e-7)
        # A flag can be taken back, a list is replaced, and what has lost its effect is left.
        self.run_of("--nesterov=false", f"--recipe={file}", "--schedule", "cosine", "--augment", "--shards", self.shards)
        self.assertEqual([self.arguments[name] for name in ("--nesterov", "--augment", "--schedule")], ["", "", "cosine"])
        self.assertEqual(self.arguments["--shards"], self.shards)

    def test_what_is_wrong_with_it_is_said(self):
        for content, part in (({"momentun": 0.5}, "there is no option 'momentun'"), ({"momentun": 0.5}, "did you mean 'momentum'?"),
                              ({"--lr": 0.5}, "did you mean 'lr'?"), ({"recipe": "other.json"}, "a recipe cannot name another one"),
                              ({"lr": True}, "the value of 'lr' is true or false, and it is not a flag"),
                              ({"nesterov": 1}, "the value of 'nesterov' is not true or false"),
                              ({"lr": None}, "the value of 'lr' is not text, a number"), ({"index": ""}, "'index' has an empty value"),
                              ({"betas": [0.9, 0.99]}, "--betas needs --optimizer adamw, at "),
                              ({"schedule": "cosine", "step-epochs": [30]}, "--step-epochs needs --schedule step, at "), ({"lr": {}}, "the value of 'lr'"),
                              ("[1]", "it is not a JSON object, at "), ('{"lr": 1e999}', "it is not a JSON object: number overflow"),
                              ('{"lr": ' + "[" * 200_000 + "]" * 200_000 + "}", "it is nested deeper than 200 levels"),
                              (" " * (1 << 20) + "{}", "it has more than 1 MiB"),
                              ('{\n  "lr": 1\n  "epochs": 3}', "it is not a JSON object: line 3, column 10: "),
                              ('{\n  "lr": 1,\n   "epoch": 3}', "line 3, column 4: there is no option 'epoch'"),
                              ('{"epochs": 1e-1}', "r.json, line 1, column 2"), ('{"epochs": 2.5}', "'2.5' is not a whole number"),
                              ('{"lr": 1,\n "lr": 2}', "line 2, column 2: it has 'lr' twice"),
                              ('{"lr": 1, "lr": 2}', "it has 'lr' twice"), ({"momentum": 2}, "2 is not 0 to 1, at ")):
            with self.subTest(str(content)[:80].strip()):
                said = self.run_of("--shards", self.shards, "--recipe", self.recipe(content), code=2)
                self.assertIn(part, said)
                self.assertIn("r.json", said)
        self.assertIn("not_found", self.run_of("--shards", self.shards, "--recipe", self.folder / "none.json", code=4))

    def test_whole_numbers_may_be_written_with_an_exponent(self):
        self.run_of("--shards", self.shards, "--recipe", self.recipe('{"epochs": 1e1, "momentum": 1.0, "weight-decay": 5e-5}'))
        self.assertEqual([self.arguments[name] for name in ("--epochs", "--momentum")], ["10", "1"])
        self.assertEqual(float(self.arguments["--weight-decay"]), 5e-5)

    def test_it_may_be_a_pipe_which_is_read_once(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for content, more, code, part in (({"lr": 0.03}, [], 0, ""), ({"momentum": 2}, [], 2, f"{pipe}, line 1, column 2"),
                                          ({"lr": 0.03}, ["--nproc", 2], 2, "--recipe is not a file that each rank")):
            writer = threading.Thread(target=pipe.write_text, args=(json.dumps(content),))
            writer.start()
            said = self.run_of("--shards", self.shards, "--recipe", pipe, *more, code=code)
            writer.join()
            self.assertIn(part, said)

    def test_ranks_that_a_process_starts_read_it_too(self):
        file = self.recipe({"nproc": 2, "lr": 0.03, "max-steps": 2})
        self.run_of("--shards", self.shards, "--recipe", file)
        self.assertEqual((self.arguments["--nproc"], lines(self.folder / "m.jsonl")[0]["world_size"]), ("2", 2))

    def test_those_of_this_repository(self):
        files = sorted(RECIPES.glob("*.json"))
        self.assertEqual([file.name for file in files], ["resnet50-16-epochs.json", "resnet50-90-epochs.json", "vit-s.json"])
        for file in files:
            with self.subTest(file.name):
                recipe = json.loads(file.read_text())
                metrics = self.folder / "own.jsonl"
                small = {"size": 32, "batch-size": 2, "grow-from": 0, "lr": 0}
                words = [w for name, value in small.items() if name in recipe for w in (f"--{name}", str(value))]
                done = harness.run("millrace-train", "--shards", self.shards, "--recipe", file, "--classes", 10, "--device", "cpu",
                                   "--max-steps", 1, "--metrics", metrics, "--overwrite", *words)
                self.assertEqual(done.returncode, 0, done.stderr)
                said = lines(metrics)[0]["arguments"]
                for name, value in recipe.items():
                    if name in small:
                        continue
                    values = [str(v) for v in value] if isinstance(value, list) else [str(value)]
                    got = said["--" + name].split(",")
                    same = lambda a, b: a.lower() == b.lower() or float(a) == float(b)  # noqa: E731
                    self.assertTrue(len(got) == len(values) and all(map(same, got, values)), f"{name}: {got} {values}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
