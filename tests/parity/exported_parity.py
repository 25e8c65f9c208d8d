"""Modules exported by train/models/export_model.py and trained by millrace-train, beside the same modules in PyTorch: equal
losses, weights and running statistics. Also what is refused. Run it in the environment of ./setup --peers.

TEST_SIZE: of the photos' crops (32); 224 takes minutes."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import unittest
import unittest.mock
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "train/models"))
from tests.support import harness, training  # noqa: E402

try:
    import export_model
    import safetensors.torch
    import torch

    from tests.support import own_modules
except ImportError:
    torch = None

CLASSES, SIZE, BATCH = 10, 32, 16
# With a higher rate this training is chaotic: differences of 1e-7 grow by the step.
LR, MOMENTUM, DECAY = 0.005, 0.9, 1e-4
MODULES = harness.ROOT / "tests/support/own_modules.py"
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TERMS = ["--classes", CLASSES, "--size", SIZE, "--device", "cpu"]
TRAINING = [*TERMS, "--schedule", "constant", "--lr", LR, "--shuffle", 100]


def exported(name, output, *words, size=SIZE):
    """The exit code of export_model.py, and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = export_model.main([f"{MODULES}:{name}", "-o", str(output), "--size", str(size), "--classes", str(CLASSES),
                                  "--batch-size", str(BATCH), *words])
    return code, said.getvalue()


def module(name, size=SIZE):
    """The module that export_model.py exports."""
    torch.manual_seed(0)
    made = getattr(own_modules, name)
    return made(CLASSES, size) if name == "attentive" else made(CLASSES)


def images_of(batch):
    scale = 1 / (torch.tensor(DEVIATION) * 255).view(1, 3, 1, 1)
    shift = (-torch.tensor(MEAN) / torch.tensor(DEVIATION)).view(1, 3, 1, 1)
    return batch["images"].permute(0, 3, 1, 2).float() * scale + shift


def in_python(model, batches, smoothing=0.0):
    """The losses of the module trained by PyTorch on recorded batches."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images_of(batch)), batch["labels"], label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_description(package, to, **changes):
    """A copy of a package with other values in its description."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("model.json"):
                content = json.dumps(json.loads(content) | changes)
            new.writestr(name, content)
    return to


@unittest.skipUnless(torch, "torch and safetensors are not installed: ./setup --peers")
class ExportedParity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # That of the build may lack OpenMP; export_model.py finds one then.
        cls.enterClassContext(unittest.mock.patch.dict(os.environ))
        os.environ.pop("CXX", None)
        cls.folder = cls.enterClassContext(harness.Folder())
        cls.shards = harness.fake(cls.folder, "train", 4, 1200, size=40)
        cls.val = harness.fake(cls.folder, "val", 1, 50, size=40)
        for name in "attentive", "plain", "dropping":
            code, said = exported(name, cls.folder / f"{name}.pt2")
            assert code == 0, said

    def train(self, model, name, *words, env=None, code=0, data=None):
        """A run of millrace-train; its lines of metrics, or what it said."""
        metrics = self.folder / f"{name}.jsonl"
        done = harness.run("millrace-train", "--shards", data or self.shards, "--model", self.folder / model,
                           "--metrics", metrics, *words, env=training.ALONE | {"OMP_NUM_THREADS": "1"} | (env or {}), timeout=600)
        self.assertEqual(done.returncode, code, done.stderr)
        return [json.loads(line) for line in metrics.read_text().splitlines()] if code == 0 else done.stderr

    def batches(self, folder, steps, rank=0):
        return [safetensors.torch.load_file(self.folder / folder / f"rank{rank}-{s:06}.safetensors") for s in range(steps)]

    def losses(self, lines):
        return [line["loss"] for line in lines if "batch" in line]

    def assert_near(self, ours, theirs, bound, what):
        worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        print(f"\n{what}: losses {ours[0]:.6f} .. {ours[-1]:.6f}, largest difference to PyTorch {worst:.2e}")
        self.assertLess(worst, bound)

    def test_losses_statistics_and_scores_are_pytorchs(self):
        steps = 50
        lines = self.train("attentive.pt2", "alone", *TRAINING, "--batch-size", BATCH, "--max-steps", steps,
                           "--record-batches", self.folder / "alone", "--checkpoint-dir", self.folder / "ck-alone",
                           "--val-shards", self.val, "--val-batch-size", 7)
        model = module("attentive").train()
        self.assert_near(self.losses(lines), in_python(model, self.batches("alone", steps)), 1e-4, "alone")
        saved = safetensors.torch.load_file(self.folder / f"ck-alone/step-{steps:010}/model.safetensors")
        self.assertEqual(saved.keys(), model.state_dict().keys())
        for name, tensor in model.state_dict().items():
            self.assertLess((saved[name].float() - tensor.float()).abs().max().item(), 1e-4, name)
        self.assertEqual(saved["norm.num_batches_tracked"].item(), steps)
        # Validation: its images, recorded by a run that does not change them. The last batch is of one image.
        done = harness.run("millrace-train", "--shards", self.val, "--model", "trivial", *TERMS, "--no-augment", "--epochs", 1,
                           "--batch-size", 10, "--lr", 0, "--record-batches", self.folder / "val", env=training.ALONE)
        self.assertEqual(done.returncode, 0, done.stderr)
        model.load_state_dict(saved)
        total = 0
        with torch.no_grad():
            for batch in self.batches("val", 5):
                scores = model.eval()(images_of(batch))
                total += torch.nn.functional.cross_entropy(scores, batch["labels"], reduction="sum").item()
        validation = next(line for line in lines if "validation" in line)
        self.assertEqual(validation["images"], 50)
        self.assertAlmostEqual(validation["loss"], total / 50, delta=1e-5)

    @harness.needs_shared("imagenette224")
    def test_photos(self):
        """An exported module with attention, and the model of examples/own_model.cc, beside the same in PyTorch."""
        steps, size = 50, int(os.environ.get("TEST_SIZE", SIZE))
        photos = harness.SHARED / "imagenette224/imagenette224-train-{000000..000005}.tar"
        words = ["--classes", CLASSES, "--size", size, "--device", "cpu", "--schedule", "constant", "--lr", LR, "--shuffle", 500,
                 "--batch-size", BATCH, "--max-steps", steps]
        model = module("attentive", size).train()
        exported_for = self.folder / "attentive.pt2"
        if size != SIZE:
            exported_for = self.folder / f"attentive-{size}.pt2"
            self.assertEqual(exported("attentive", exported_for, size=size)[0], 0)
        lines = self.train(exported_for.name, "photos", *words, "--record-batches", self.folder / "photos", data=photos)
        self.assert_near(self.losses(lines), in_python(model, self.batches("photos", steps)), 1e-3, f"photos of {size}, exported")
        model = own_modules.PatchAttention(CLASSES, size)
        safetensors.torch.save_file(model.state_dict(), self.folder / "own.safetensors")
        done = harness.run("example_own_model", *words, "--shards", photos, "--init-weights", self.folder / "own.safetensors",
                           "--metrics", self.folder / "own.jsonl", "--record-batches", self.folder / "own", timeout=600,
                           env=training.ALONE)
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = self.losses(training.lines(self.folder / "own.jsonl"))
        self.assert_near(ours, in_python(model, self.batches("own", steps)), 1e-4, f"photos of {size}, own_model.cc")

    def test_label_smoothing_and_batches_of_another_size(self):
        lines = self.train("plain.pt2", "smooth", *TRAINING, "--batch-size", 5, "--max-steps", 10, "--label-smoothing", 0.1,
                           "--record-batches", self.folder / "smooth", "--checkpoint-dir", self.folder / "ck-smooth")
        model = module("plain")
        theirs = in_python(model, self.batches("smooth", 10), smoothing=0.1)
        self.assert_near(self.losses(lines), theirs, 1e-4, "smoothing, 5 images")
        saved = safetensors.torch.load_file(self.folder / "ck-smooth/step-0000000010/model.safetensors")
        self.assertEqual(saved.keys(), model.state_dict().keys())
        self.assertTrue(torch.equal(saved["frozen.weight"], model.frozen.weight))
        # A state dict of Python to start from.
        safetensors.torch.save_file(module("attentive").state_dict(), self.folder / "other.safetensors")
        said = self.train("plain.pt2", "wrong-weights", *TRAINING, "--init-weights", self.folder / "other.safetensors", code=1)
        self.assertIn("the file lacks 'first.weight'", said)
        safetensors.torch.save_file(model.state_dict(), self.folder / "init.safetensors")
        again = self.train("plain.pt2", "started", *TRAINING, "--batch-size", 5, "--max-steps", 2, "--label-smoothing", 0.1,
                           "--init-weights", self.folder / "init.safetensors", "--record-batches", self.folder / "started")
        self.assert_near(self.losses(again), in_python(model, self.batches("started", 2), smoothing=0.1), 1e-4, "init")

    def test_mixed_images(self):
        losses = self.losses(self.train("plain.pt2", "mixed", *TRAINING, "--batch-size", BATCH, "--max-steps", 3, "--mixup", 0.2))
        self.assertEqual(len(losses), 3)

    def test_two_ranks_are_one_process_with_both_batches(self):
        steps = 20
        port = str(harness.free_port())
        started = [harness.start(
            "millrace-train", "--shards", self.shards, "--model", self.folder / "plain.pt2", *TRAINING, "--batch-size", BATCH // 2,
            "--max-steps", steps, "--metrics", self.folder / "two.jsonl", "--record-batches", self.folder / "two",
            "--checkpoint-dir", self.folder / "ck-two", stderr=subprocess.PIPE, text=True,
            env={"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"})
            for rank in range(2)]
        for process in started:
            _, said = process.communicate(timeout=600)
            self.assertEqual(process.returncode, 0, said)
        of_ranks = [self.losses(training.lines(self.folder / name)) for name in ("two.jsonl", "two.jsonl.rank1")]
        both = [{key: torch.cat([a[key], b[key]]) for key in a}
                for a, b in zip(self.batches("two", steps), self.batches("two", steps, rank=1))]
        model = module("plain")
        self.assert_near([(a + b) / 2 for a, b in zip(*of_ranks)], in_python(model, both), 1e-5, "two ranks")
        saved = safetensors.torch.load_file(self.folder / f"ck-two/step-{steps:010}/model.safetensors")
        for name, tensor in model.state_dict().items():
            self.assertLess((saved[name] - tensor).abs().max().item(), 1e-5, name)

    def test_a_resumed_run_gives_the_same_losses_wherever_the_file_is(self):
        whole = self.losses(self.train("attentive.pt2", "whole", *TRAINING, "--batch-size", BATCH, "--max-steps", 20))
        words = [*TRAINING, "--batch-size", BATCH, "--checkpoint-dir", self.folder / "ck", "--resume", "auto"]
        first = self.losses(self.train("attentive.pt2", "first", *words, "--max-steps", 8))
        (self.folder / "moved.pt2").write_bytes((self.folder / "attentive.pt2").read_bytes())
        lines = self.train("moved.pt2", "rest", *words, "--max-steps", 20)
        self.assertEqual(first + self.losses(lines), whole)
        self.assertIn("own_modules.py:attentive", lines[0]["arguments"]["--model"])
        said = self.train("plain.pt2", "other", *words, "--max-steps", 30, code=2)
        self.assertRegex(said, r"--model .*:plain \w+ instead of .*:attentive \w+")

    def test_dropout_draws_in_each_step(self):
        few = harness.fake(self.folder, "few", 1, BATCH, size=32)
        words = [*TERMS, "--lr", 0, "--schedule", "constant", "--no-augment", "--batch-size", BATCH, "--epochs", 4]
        self.assertEqual(len({round(x, 4) for x in self.losses(self.train("plain.pt2", "still", *words, data=few))}), 1)
        drawn = self.losses(self.train("dropping.pt2", "drawn", *words, data=few))
        self.assertEqual(len({round(x, 4) for x in drawn}), 4)
        self.assertEqual(self.losses(self.train("dropping.pt2", "drawn-again", *words, data=few)), drawn)

    def refused(self, model, said, *words, code=2, terms=TERMS):
        told = self.train(model, "refused", *terms, "--max-steps", 1, *words, code=code)
        self.assertIn(said, told)
        self.assertEqual(len(told.splitlines()), 1, told)

    def test_other_terms_are_refused(self):
        for option, value in ("--size", 64), ("--classes", 20):
            terms = [value if i > 0 and TERMS[i - 1] == option else word for i, word in enumerate(TERMS)]
            exported_for = TERMS[TERMS.index(option) + 1]
            self.refused("plain.pt2", f"the model was exported for {option} {exported_for}, not {value}", terms=terms)
        few = "1 image at a time: exported models train on 2 or more"
        self.refused("plain.pt2", few, "--batch-size", 1)
        self.refused("plain.pt2", few, "--batch-size", 7, "--accumulate", 4)
        self.refused("plain.pt2", "--grow-from cannot be combined", "--grow-from", 16, "--grow-epochs", 1)
        for changes, said, code in (({"torch": "2.10.0"}, "the model was exported by torch 2.10.0, and this", 2),
                                    ({"device": "cuda"}, "the model was exported for --device cuda, not cpu", 2),
                                    ({"cpu": ["avx", "avx9000"]}, "a processor with avx9000, which this one lacks", 2),
                                    ({"format": 99}, "another version of millrace's export_model.py", 2),
                                    ({"gradients": ["elsewhere"]}, "the model's description is damaged", 1),
                                    ({"size": "x"}, "the model's description is damaged", 1),
                                    ({"buffers": ["elsewhere"]}, "the model lacks 'elsewhere'", 1)):
            with self.subTest(said):
                with_description(self.folder / "plain.pt2", self.folder / "other.pt2", **changes)
                self.refused("other.pt2", said, code=code)

    def test_damaged_files_are_refused(self):
        whole = (self.folder / "plain.pt2").read_bytes()
        broken = self.folder / "broken.pt2"
        self.refused("nowhere.pt2", "--model names a file that cannot be read", code=4)
        for content in b"", b"not a package", whole[:len(whole) // 2], whole[:-100]:
            broken.write_bytes(content)
            self.refused("broken.pt2", "the model is damaged, or not a .pt2 file", code=1)
        with zipfile.ZipFile(self.folder / "plain.pt2") as archive:
            name = next(n for n in archive.namelist() if n.endswith("model.safetensors"))
            start = archive.getinfo(name).header_offset
        broken.write_bytes(whole[:start + 2000] + bytes(b ^ 255 for b in whole[start + 2000:start + 2010]) + whole[start + 2010:])
        self.refused("broken.pt2", "the model is damaged", code=1)
        with zipfile.ZipFile(broken, "w") as archive:
            archive.writestr("a/version", "3")
            archive.writestr("a/data", "x")
        self.refused("broken.pt2", "export_model.py did not make this file", code=1)
        os.remove(broken)
        broken.mkdir()
        self.refused("broken.pt2", "--model is not a regular file")

    def test_what_cannot_be_exported_is_refused_in_plain_words(self):
        out = self.folder / "never.pt2"
        for name, said in (("without_gradient", "'unused' took no part in the loss"),
                           ("with_scalar", "'factor' is a scalar, which the compiler would make a constant"),
                           ("tied", "'same' and '1.weight' are one parameter"),
                           ("with_other_scores", f"the model's output is {BATCH} x {CLASSES + 1}; in training it has to be"),
                           ("deciding", "torch.export cannot take the model's training step"),
                           ("stepping", "training changes the buffer 'count', a scalar"),
                           ("nothing", "gave an object of type int; it has to be a torch.nn.Module"),
                           ("absent", "has no 'absent'")):
            with self.subTest(name):
                code, told = exported(name, out)
                self.assertEqual(code, 2, told)
                self.assertIn(said, told)
                self.assertNotIn("Traceback", told)
        self.assertIn("has to end in .pt2", exported("plain", self.folder / "x.zip")[1])
        with unittest.mock.patch.dict(os.environ, {"CXX": "no-such-compiler"}):
            self.assertIn("no C++ compiler (no-such-compiler)", exported("plain", out)[1])
        with unittest.mock.patch.dict(os.environ, {"CXX": "g++ -nostdinc"}):
            self.assertIn("the C++ compiler g++ -nostdinc has no OpenMP: ", exported("plain", out)[1])
        self.assertFalse(out.exists())
        self.assertEqual(list(self.folder.glob(".export-*")), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
