"""A run that is resumed with another value of an option: the difference is refused, or it is told and takes effect, or by
contract it changes nothing. Each option of `millrace-train --help` is tried: a new one needs a row in VALUES where no other
value follows from its range, and is told or refused unless FREE has a reason."""

import concurrent.futures
import dataclasses
import itertools
import pathlib
import re
import shutil
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402
from tests.support.training import WithShards, lines, steps  # noqa: E402

SAVED_AT, LAST = 4, 20  # steps; an epoch has 15
OPTION = re.compile(r"  (?P<name>--[a-z0-9-]+)(?P<off>,--no-[a-z-]+)?"
                    r"(?: (?P<unit>(?:auto\|)?[A-Z][^ :=]*)(?: \.\.\.)?(?::\((?P<range>[^)]*)\))?(?:=(?P<default>\S+))?)?"
                    r"(?: (?:Needs|Excludes): --\S+)*(?: .*)?")
REPEATED = {"--shards", "--val-shards"}

# No other value of these changes what is trained: the losses are compared.
FREE = {
    "--allow-pipe": "what may be read",
    "--base": "a place: the shards of the list are compared by their names",
    "--cache-decoded": "memory for speed",
    "--cache-decoded-dir": "a place",
    "--checkpoint-dir": "a place",
    "--checkpoint-every": "how often is saved",
    "--data-rank": "who reads what: the parts of the data are those of the checkpoint",
    "--data-world": "the same",
    "--device": "no GPU is shown to the runs here; on one, sums are rounded otherwise",
    "--index": "a place: what is in it is compared",
    "--init-weights": "a run begins with them; a resumed one has those of its checkpoint",
    "--json": "report",
    "--keep": "how many checkpoints are kept",
    "--log-every": "report",
    "--max-steps": "where this run ends",
    "--metrics": "report",
    "--metrics-keys": "report",
    "--nproc": "who starts the ranks: their number is not compared",
    "--restarts": "what is done after a failure",
    "--on-error": "what ends a run; nothing is damaged here",
    "--overwrite": "what is replaced",
    "--prefetch": "memory for speed",
    "--profile": "report",
    "--raw": "a place: names of images are compared",
    "--recipe": "a place: the values of options are compared",
    "--record-batches": "report",
    "--resume": "what is resumed from, by another name",
    "--shards": "places: lists are compared as they are expanded",
    "--skipped": "report",
    "--timeout": "how long ranks wait for each other",
    "--val-batch-size": "validation",
    "--val-index": "validation",
    "--val-shards": "validation",
    "--zero-init-last-norm": "a run begins with it; a resumed one has the weights of its checkpoint",
}
# Told, and of no effect on these data.
UNSEEN = {
    "--amp": "autocast is of GPUs",
    "--cudnn-benchmark": "of GPUs",
    "--deterministic": "of GPUs",
    "--ema-decay": "the average takes no part in training",
    "--fill-truncated": "no image is cut",
    "--label": "the field that auto finds",
    "--lenient": "no image is damaged",
    "--resync": "no shard is damaged",
    "--tf32": "of GPUs",
}
# Refused before a checkpoint is looked at.
ELSEWHERE = {"--gpu-decode": "cannot decode on the device", "--graph": "--graph cannot be combined with --device cpu",
             "--synthetic": "--synthetic cannot be combined with --shards"}
# What names the difference, where that is not the option.
NAMED_AS = {"--base": "another list of shards", "--raw": "another list of shards", "--shards": "another list of shards"}

ADAMW, LARS = {"--optimizer": "adamw", "--lr": 0.001}, {"--optimizer": "lars", "--lr": 0.1}
CYCLE = {"--schedule": "one-cycle"}
RESNET = {"--model": "resnet18", "--size": 16}
JITTER = "0.4,0.4,0.4,0.1"
# What both runs are given, and the other value, or several options' values.
VALUES = {
    "--accumulate": lambda t: [(RESNET, 4)],
    "--base": lambda t: [({"--shards": "train-{000000..000003}.tar", "--base": t.data}, t.copy)],
    "--batch-size": lambda t: [({}, 5)],
    "--betas": lambda t: [(ADAMW, "0.5,0.9")],
    "--cache-decoded": lambda t: [({}, "1M"), ({"--cache-decoded": "1M"}, "2M")],
    "--cache-decoded-dir": lambda t: [({"--cache-decoded": "1M"}, t.common / "decoded")],
    "--cache-decoded-resize": lambda t: [({"--cache-decoded": "1M"}, 10)],
    "--checkpoint-dir": lambda t: [({}, {"--checkpoint-dir": t.common / "elsewhere", "--resume": t.saved})],
    "--clip-norm": lambda t: [({}, 0.01)],
    "--color-jitter": lambda t: [({}, JITTER)],
    "--data-rank": lambda t: [({"--data-world": 1}, 0)],
    "--data-world": lambda t: [({}, 1)],
    "--device": lambda t: [({}, "auto")],
    "--div-factor": lambda t: [(CYCLE, 5)],
    "--eps": lambda t: [(ADAMW, 1e-3), (LARS, 0.1)],
    "--epoch-batches": lambda t: [({}, 5), ({"--epoch-batches": 5, "--epochs": 5, "--schedule": "cosine"}, 7)],
    "--epoch-samples": lambda t: [({}, 40), ({"--epoch-samples": 40, "--epochs": 5, "--schedule": "cosine"}, 56)],
    "--epochs": lambda t: [({"--schedule": "cosine"}, 4)],
    "--final-div-factor": lambda t: [(CYCLE, 2)],
    "--grow-epochs": lambda t: [(RESNET | {"--size": 96, "--grow-from": 32, "--grow-epochs": 1}, 2)],
    "--grow-from": lambda t: [(RESNET | {"--size": 96, "--grow-from": 32, "--grow-epochs": 1}, 64)],
    "--index": lambda t: [({}, t.index), ({"--index": t.index}, t.copy / "i.json")],
    "--init-weights": lambda t: [({}, t.weights)],
    "--jitter-part": lambda t: [({"--color-jitter": JITTER}, 0.5)],
    "--label": lambda t: [({}, "cls")],
    "--max-steps": lambda t: [({}, 12)],
    "--metrics": lambda t: [({}, t.common / "other.jsonl")],
    "--min-lr": lambda t: [({"--schedule": "cosine"}, 0.005)],
    "--mode": lambda t: [({"--epoch-batches": 5}, "resample"), ({}, "exact")],
    "--no-decay": lambda t: [({"--weight-decay": 0.1}, "norms")],
    "--on-error": lambda t: [({}, "skip")],
    "--overwrite": lambda t: [({}, {"--overwrite": True, "--resume": t.saved})],
    "--optimizer": lambda t: [({}, "adamw"), (ADAMW, "sgd")],
    "--pct-start": lambda t: [(CYCLE, 0.6)],
    "--power": lambda t: [({"--schedule": "polynomial"}, 2)],
    "--randaugment-magnitude": lambda t: [({"--policy": "randaugment"}, 25)],
    "--randaugment-ops": lambda t: [({"--policy": "randaugment"}, 5)],
    "--raw": lambda t: [({"--shards": None, "--raw": t.tree}, t.copy / "tree")],
    "--recipe": lambda t: [({}, t.recipe)],
    "--profile": lambda t: [({}, t.common / "trace.json")],
    "--record-batches": lambda t: [({}, t.common / "batches")],
    "--restarts": lambda t: [({"--nproc": 1}, 1)],
    "--resume": lambda t: [({}, {"--resume": t.saved, "--checkpoint-dir": None})],
    "--schedule": lambda t: [({}, "cosine")],
    "--shards": lambda t: [({}, [t.data / f"train-{i:06}.tar" for i in range(4)]),
                           ({}, [t.data / f"train-{i:06}.tar" for i in range(3)])],
    "--shuffle": lambda t: [({}, 100), ({}, 0)],
    "--size": lambda t: [({}, 16), (RESNET, 32)],
    "--skipped": lambda t: [({}, t.common / "skipped.jsonl")],
    "--step-epochs": lambda t: [({}, "0.5")],
    "--step-factor": lambda t: [({"--step-epochs": "0.5"}, 0.5)],
    "--trust-coefficient": lambda t: [(LARS, 0.1)],
    "--val-batch-size": lambda t: [({"--val-shards": t.val}, 5)],
    "--val-index": lambda t: [({"--val-shards": t.val}, t.val_index)],
    "--val-shards": lambda t: [({}, t.val)],
    "--weight-decay": lambda t: [({}, 0.1), (ADAMW, 5), (LARS, 5)],
    "--zero-init-last-norm": lambda t: [(RESNET, True)],
}


def options():
    """Of --help, by name."""
    text = harness.run("millrace-train", "--help").stdout
    found = [OPTION.fullmatch(line) for line in text.splitlines() if line.startswith("  --")]
    assert all(found), f"a line of --help that is not understood, the {found.index(None)}th option"
    return {m["name"]: m for m in found if m["name"] != "--version"}


def other_number(said, limits):
    """One within the range that is not `said`."""
    least, most = (limits.replace(" or more", " to 1e9").split(" to ") + [""])[:2]
    for tried in (said * 2, 0.5, 0.25, float(least) + 1):
        is_whole = not any("." in x for x in (least, most)) and float(most) > 1
        if tried != said and float(least) <= tried <= float(most) and (tried == int(tried) or not is_whole):
            return int(tried) if tried == int(tried) else tried
    raise AssertionError(f"no other number than {said} in {limits}")


def as_words(given):
    """A command line of {option: value}: None is left out, a flag is True or False."""
    out = []
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool):
            out += [name if value else name.replace("--", "--no-")]
            continue
        for each in value if isinstance(value, list) else [value]:
            out += [name, each]
    return out


@dataclasses.dataclass
class Case:
    option: str
    base: dict
    other: dict

    def __str__(self):
        return f"{self.base} {self.other}"


class ResumedOptions(WithShards):
    val_counts = (1, 40)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.common = cls.enterClassContext(harness.Folder())
        cls.copy = cls.common / "copy"
        cls.index, cls.val_index = cls.data / "i.json", cls.data / "v.json"
        for shards, index in (cls.shards, cls.index), (cls.val, cls.val_index):
            made = harness.run("millrace", "index", "create", shards, "-o", index)
            assert made.returncode == 0, made.stderr
        cls.recipe = cls.common / "recipe.json"
        cls.recipe.write_text('{"momentum": 0.9, "lr": 0.5}')  # a rate is given beside it
        cls.tree = cls.data / "tree"
        for path in sorted(cls.data.glob("train-*.tar")):
            with tarfile.open(path) as tar:
                found = {m.name: tar.extractfile(m).read() for m in tar}
            for name in (n for n in found if n.endswith(".jpg")):
                folder = cls.tree / found[name[:-3] + "cls"].decode()
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name.replace("/", "_")).write_bytes(found[name])
        shutil.copytree(cls.data, cls.copy)
        cls.numbers = itertools.count()
        cls.begun = {}  # what options begin with: the folder of checkpoints, what was said, and the losses when resumed
        cls.saved = cls.common / "saved/step-0000000004"
        shutil.copytree(cls.beginning({})[0], cls.saved.parent)
        cls.weights = cls.common / "w.safetensors"
        shutil.copy(cls.beginning({"--seed": 7})[0] / cls.saved.name / "model.safetensors", cls.weights)

    @classmethod
    def run_of(cls, given):
        """(what is done, its first line of metrics, its losses)"""
        metrics = cls.common / f"{next(cls.numbers)}.jsonl"
        given = {"--shards": cls.shards, "--epochs": 2, "--log-every": 0, "--metrics": metrics} | given
        done = training.train(*as_words(given), env={"CUDA_VISIBLE_DEVICES": ""})
        found = lines(given["--metrics"])
        return done, found[0] if found else {}, steps(given["--metrics"])

    @classmethod
    def resumed(cls, folder, given):
        """From a copy of the folder of checkpoints."""
        mine = cls.common / f"c{next(cls.numbers)}"
        shutil.copytree(folder, mine)
        return cls.run_of({"--checkpoint-dir": mine, "--resume": "auto", "--max-steps": LAST} | given)

    @classmethod
    def beginning(cls, base):
        key = str(base)
        if key not in cls.begun:
            folder = cls.common / f"begun{next(cls.numbers)}"
            done, begin, _ = cls.run_of({"--checkpoint-dir": folder, "--max-steps": SAVED_AT} | base)
            assert done.returncode == 0, done.stderr
            done, _, losses = cls.resumed(folder, base)
            assert done.returncode == 0 and "resuming with" not in done.stderr, done.stderr
            assert len(losses) > 5, losses
            cls.begun[key] = folder, begin["arguments"], losses
        return cls.begun[key]

    def cases(self):
        said = self.beginning({})[1]
        for name, m in options().items():
            if name in VALUES:
                for base, other in VALUES[name](self):
                    yield Case(name, base, other if isinstance(other, dict) else {name: other})
            elif m["unit"] is None:
                yield Case(name, {}, {name: not m["off"]})
            elif m["unit"] == "NAME":
                yield Case(name, {}, {name: next(n for n in m["range"].split(", ") if n not in (said[name], "none"))})
            else:
                self.assertTrue(m["range"], f"{name} is new: VALUES needs another value of it")
                yield Case(name, {}, {name: other_number(float(said[name]), m["range"])})

    def test_options_are_known_and_recorded(self):
        known = options()
        self.assertGreater(len(known), 60)
        self.assertEqual(set(self.beginning({})[1]), set(known))
        for table in FREE, UNSEEN, ELSEWHERE, VALUES:
            self.assertLessEqual(set(table), set(known), "a row of no option")

    def outcome(self, case):
        folder, _, expected = self.beginning(case.base)
        done, _, losses = self.resumed(folder, case.base | case.other)
        return case, done, losses, expected

    def test_another_value_is_refused_or_told_or_changes_nothing(self):
        cases = list(self.cases())
        for case in cases:
            self.beginning(case.base)
        named, seen = set(), set()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for case, done, losses, expected in pool.map(self.outcome, cases):
                with self.subTest(str(case)):
                    self.check(case, done, losses, expected, named, seen)
        self.assertEqual(set(UNSEEN) & seen, set(), "they have an effect")
        self.assertEqual({c.option for c in cases} - named, {o for o in FREE if o not in named}, "FREE")

    def check(self, case, done, losses, expected, named, seen):
        option, said = case.option, done.stderr
        if option in ELSEWHERE:
            self.assertEqual(done.returncode, 2, said)
            self.assertIn(ELSEWHERE[option], said)
            named.add(option)
            return
        at = r"(?:resuming with|saved with other arguments:) .*?" + re.escape(option) + r" \S+ instead of \S+"
        is_told = re.search(at, said) is not None or NAMED_AS.get(option, "\0") in said
        if is_told and done.returncode != 0:
            named.add(option)
            self.assertIn(done.returncode, (1, 2, 4), said)  # weights that do not fit, arguments, shards that are gone
            self.assertEqual(losses, {}, "it trained")
            return
        self.assertEqual(done.returncode, 0, said)
        both = {s: l for s, l in expected.items() if s in losses}
        self.assertGreater(len(both), 5)
        is_same = losses == both
        if is_told:
            named.add(option)
            (seen.add(option) if not is_same else self.assertIn(option, UNSEEN, "it is told, and does nothing"))
            return
        self.assertIn(option, FREE, f"ignored in silence: {said}")
        self.assertTrue(is_same, f"{FREE[option]}: {losses} instead of {expected}")

    def test_a_default_that_is_given_is_no_difference(self):
        own = {"--model", "--classes", "--size", "--batch-size", "--device", "--lr", "--shuffle", "--epochs", "--log-every"}
        given = {}
        for name, m in options().items():
            if name not in own and (m["default"] or m["off"]):
                given[name] = m["default"] or True
        del given["--epoch-batches"], given["--epoch-samples"]  # 0 says that they are not given
        needs = {"--grow-from", "--grow-epochs", "--cache-decoded-resize", "--checkpoint-every", "--jitter-part", "--randaugment-ops",
                 "--randaugment-magnitude", "--val-batch-size", "--betas", "--eps", "--trust-coefficient", "--min-lr", "--power",
                 "--pct-start", "--div-factor", "--final-div-factor"}  # another option
        given = {name: value for name, value in given.items() if name not in needs}
        self.assertGreater(len(given), 25)
        folder, _, expected = self.beginning({})
        done, _, losses = self.resumed(folder, {"--max-steps": LAST} | given | {"--max-steps": LAST})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("resuming with", done.stderr)
        self.assertEqual(losses, expected)

    def test_seeds_beyond_what_a_double_tells_apart_are_others(self):
        seed = 2**53
        folder = self.beginning({"--seed": seed})[0]
        done, _, losses = self.resumed(folder, {"--seed": seed + 1})
        self.assertEqual((done.returncode, losses), (2, {}), done.stderr)
        self.assertIn(f"--seed {seed + 1} instead of {seed}", done.stderr)

    def test_an_option_that_the_saving_version_did_not_have_is_told(self):
        older = self.common / "older"
        shutil.copytree(self.beginning({})[0], older)
        with training.changed_meta(older / self.saved.name) as meta:
            del meta["arguments"]["--gray"], meta["arguments"]["--nesterov"]
        done, _, losses = self.resumed(older, {})
        self.assertNotIn("resuming with", done.stderr)
        self.assertEqual(losses, self.beginning({})[2], done.stderr)
        done, _, losses = self.resumed(older, {"--gray": 0.5, "--nesterov": True})
        self.assertIn("resuming with --gray 0.5 instead of 0, --nesterov true instead of false", done.stderr)
        self.assertNotEqual(losses, self.beginning({})[2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
