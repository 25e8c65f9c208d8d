"""millrace-train beside PyTorch: the same initial weights and batches give the same losses.

millrace-train records the batches it trains on; a PyTorch script with torchvision's model trains on
the same ones, alone and as two processes with DistributedDataParallel on Gloo. Also: architecture and
parameter names. Run it in the environment of ./setup --peers."""

import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

try:
    import safetensors.torch
    import torch
    import torchvision
except ImportError:
    torch = None

STEPS, BATCH, SIZE, CLASSES = 20, 16, 64, 10
OPTIMIZER = dict(lr=0.001, momentum=0.9, weight_decay=1e-4)
MEAN = [0.485, 0.456, 0.406]
DEVIATION = [0.229, 0.224, 0.225]


def train_in_python(folder, rank, world):
    """What a user's PyTorch script does; writes its losses to FOLDER/python-rankR.json."""
    if world > 1:
        torch.distributed.init_process_group("gloo")
    model = torchvision.models.resnet18(num_classes=CLASSES)
    model.load_state_dict(safetensors.torch.load_file(folder / "init.safetensors"))
    model = model.to(memory_format=torch.channels_last)
    if world > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), **OPTIMIZER)
    # One multiplication and one addition, as millrace-train does it. The order matters here: at
    # random initialisation a ResNet's losses double a difference of 1e-7 at every step, so that even
    # PyTorch with one thread and with two is 0.1 apart after 20 steps.
    scale = 1 / (torch.tensor(DEVIATION) * 255).view(1, 3, 1, 1)
    shift = (-torch.tensor(MEAN) / torch.tensor(DEVIATION)).view(1, 3, 1, 1)
    losses = []
    for step in range(STEPS):
        batch = safetensors.torch.load_file(folder / f"batches{world}/rank{rank}-{step:06}.safetensors")
        images = batch["images"].permute(0, 3, 1, 2).float() * scale + shift
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), batch["labels"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    (folder / f"python{world}-rank{rank}.json").write_text(json.dumps(losses))


@unittest.skipUnless(torch, "torch, torchvision and safetensors are not installed: ./setup --peers")
class TorchParity(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.Folder())
        torch.manual_seed(0)
        model = torchvision.models.resnet18(num_classes=CLASSES)
        safetensors.torch.save_file(model.state_dict(), self.folder / "init.safetensors")
        self.shards = harness.fake(self.folder, "train", 4, 800, size=80)

    def losses_of_both(self, world):
        port = str(harness.free_port())
        batch = BATCH // world
        environment = [{"RANK": str(r), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port} if world > 1 else {} for r in range(world)]
        ours = [harness.start(
            "millrace-train", "--shards", self.shards, "--model", "resnet18", "--classes", CLASSES,
            "--size", SIZE, "--batch-size", batch, "--max-steps", STEPS, "--device", "cpu",
            "--schedule", "constant", "--lr", OPTIMIZER["lr"],
            "--init-weights", self.folder / "init.safetensors",
            "--record-batches", self.folder / f"batches{world}",
            "--metrics", self.folder / f"ours{world}.jsonl", env=e, stderr=subprocess.PIPE, text=True)
            for e in environment]
        for process in ours:
            _, text = process.communicate(timeout=600)
            self.assertEqual(process.returncode, 0, text)
        theirs = [subprocess.Popen([sys.executable, __file__, "--train", self.folder, str(r),
                                    str(world)], env=harness.CLEAN | e)
                  for r, e in enumerate(environment)]
        for process in theirs:
            self.assertEqual(process.wait(600), 0)
        pairs = []
        for rank in range(world):
            name = f"ours{world}.jsonl" + (f".rank{rank}" if rank else "")
            lines = map(json.loads, (self.folder / name).read_text().splitlines())
            ours_losses = [l["loss"] for l in lines if "batch" in l]
            python = json.loads((self.folder / f"python{world}-rank{rank}.json").read_text())
            self.assertEqual(len(ours_losses), STEPS)
            pairs.append((ours_losses, python))
        return pairs

    def check(self, world):
        for rank, (ours, python) in enumerate(self.losses_of_both(world)):
            worst = max(abs(a - b) for a, b in zip(ours, python))
            print(f"\n{world} rank(s), rank {rank}: losses {ours[0]:.6f} .. {ours[-1]:.6f}, "
                  f"largest difference to PyTorch {worst:.2e}")
            self.assertLess(worst, 1e-4)

    def test_alone(self):
        self.check(1)

    def test_two_ranks_with_distributed_data_parallel(self):
        self.check(2)

    def test_exact_epochs_of_ranks_with_different_numbers_of_batches(self):
        """Each sample of a step counts alike, whatever rank has it: as a program alone that has the batches of all ranks. Where
        the batches are alike, that is what torch's Join gives (divide_by_initial_world_size=False)."""
        world, classes, size, port = 3, 10, 16, str(harness.free_port())
        shards = harness.fake(self.folder, "uneven", 7, 110, size=size)
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * size * size, classes))
        safetensors.torch.save_file({f"fc.{n}": t for n, t in model[1].state_dict().items()}, self.folder / "linear.safetensors")
        ranks = [harness.start(
            "millrace-train", "--shards", shards, "--model", "trivial", "--classes", classes, "--size", size, "--batch-size", 4,
            "--mode", "exact", "--lanes", 3, "--epochs", 2, "--device", "cpu", "--schedule", "constant", "--lr", OPTIMIZER["lr"],
            "--init-weights", self.folder / "linear.safetensors", "--record-batches", self.folder / "uneven-batches",
            "--checkpoint-dir", self.folder / "uneven-saved", stderr=subprocess.PIPE, text=True,
            env={"RANK": str(r), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for r in range(world)]
        for process in ranks:
            _, text = process.communicate(timeout=600)
            self.assertEqual(process.returncode, 0, text)
        optimizer = torch.optim.SGD(model.parameters(), **OPTIMIZER)
        scale = 1 / (torch.tensor(DEVIATION) * 255).view(1, 3, 1, 1)
        shift = (-torch.tensor(MEAN) / torch.tensor(DEVIATION)).view(1, 3, 1, 1)
        sizes = []
        for step in range(10_000):
            files = sorted((self.folder / "uneven-batches").glob(f"rank*-{step:06}.safetensors"))
            if not files:
                break
            of_ranks = [safetensors.torch.load_file(file) for file in files]
            sizes.append([len(b["labels"]) for b in of_ranks])
            images = torch.cat([b["images"] for b in of_ranks]).permute(0, 3, 1, 2).float() * scale + shift
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), torch.cat([b["labels"] for b in of_ranks])).backward()
            optimizer.step()
        self.assertEqual(sum(map(sum, sizes)), 2 * 110)
        self.assertIn(1, map(len, sizes), "steps of one rank alone")
        saved = safetensors.torch.load_file(sorted((self.folder / "uneven-saved").glob("step-*"))[-1] / "model.safetensors")
        for name, ours in saved.items():
            worst = (ours - model[1].state_dict()[name.removeprefix("fc.")]).abs().max().item()
            print(f"\nexact epochs, {len(sizes)} steps of {world} ranks: {name} differs by at most {worst:.1e}")
            self.assertLess(worst, 1e-5)

    def test_parameter_names_and_shapes_are_torchvisions(self):
        for name in "resnet18", "resnet34", "resnet50":
            done = harness.run("millrace-train", "--shards", self.shards, "--model", name, "--size", "32",
                               "--batch-size", "2", "--max-steps", "1", "--checkpoint-dir",
                               self.folder / name, "--device", "cpu", "--classes", "17")
            self.assertEqual(done.returncode, 0, done.stderr)
            saved = next((self.folder / name).iterdir()) / "model.safetensors"
            ours = {k: tuple(v.shape) for k, v in safetensors.torch.load_file(saved).items()}
            model = getattr(torchvision.models, name)(num_classes=17)
            self.assertEqual(ours, {k: tuple(v.shape) for k, v in model.state_dict().items()})

    def test_initial_weights_have_torchvisions_distribution(self):
        harness.run("millrace-train", "--shards", self.shards, "--model", "resnet18", "--size", "32",
                    "--batch-size", "2", "--max-steps", "1", "--lr", "0", "--checkpoint-dir",
                    self.folder / "c", "--device", "cpu")
        saved = safetensors.torch.load_file(next((self.folder / "c").iterdir()) / "model.safetensors")
        for name, theirs in torchvision.models.resnet18().state_dict().items():
            if "running" in name or "num_batches" in name:
                continue
            self.assertAlmostEqual(saved[name].std(correction=0).item(), theirs.std(correction=0).item(),
                                   delta=0.1 * theirs.std(correction=0).item() + 1e-6, msg=name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_in_python(pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        unittest.main(verbosity=2)
