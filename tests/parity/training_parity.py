"""millrace-train's models, optimizers and schedules beside torchvision's and torch's own: the same scores of the same weights,
the same losses of the same batches, the same rate at every step. Run it in the environment of ./setup --peers."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, training  # noqa: E402

try:
    import safetensors.torch
    import torch
    import torchvision
except ImportError:
    torch = None

CLASSES = 10
MEAN = [0.485, 0.456, 0.406]
DEVIATION = [0.229, 0.224, 0.225]


def torchvisions(name, size, **how):
    if name == "vit_s_16":
        return torchvision.models.VisionTransformer(image_size=size, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384,
                                                    mlp_dim=1536, num_classes=CLASSES)
    return getattr(torchvision.models, name)(num_classes=CLASSES, **how)


def shapes(weights):
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def lr_of(metrics):
    return [line["lr"] for line in training.lines(metrics) if "batch" in line]


@unittest.skipUnless(torch, "torch, torchvision and safetensors are not installed: ./setup --peers")
class Parity(training.WithShards):
    train_counts = (2, 200)
    size = 40

    def ours(self, *words, **more):
        done = training.train("--shards", self.shards, "--classes", CLASSES, *words, timeout=600, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def saved(self, *words):
        """The weights of a run's last checkpoint."""
        self.ours("--checkpoint-dir", self.folder / "c", "--overwrite", *words)
        return safetensors.torch.load_file(max((self.folder / "c").glob("step-*")) / "model.safetensors")


class Models(Parity):
    # How far the scores may be apart, which the sums of a deep network are.
    SIZES = {"resnet18": 64, "resnet50": 64, "resnet101": 64, "vit_s_16": 64, "convnext_tiny": 64}

    def test_scores_are_torchvisions(self):
        for name, size in self.SIZES.items():
            with self.subTest(name), torch.no_grad():
                torch.manual_seed(3)
                model = torchvisions(name, size).eval()
                for p in model.parameters():  # a head that begins with zeros has no scores to compare
                    if p.abs().max() < 1e-4:
                        p.normal_(0, 0.1)
                for _ in range(2):
                    model.train()(torch.randn(8, 3, size, size))  # running statistics of a kind
                model.eval()
                images = torch.randn(4, 3, size, size)
                safetensors.torch.save_file(model.state_dict(), self.folder / "w.safetensors")
                safetensors.torch.save_file({"images": images}, self.folder / "i.safetensors")
                done = harness.run("model_scores", name, CLASSES, self.folder / "w.safetensors", self.folder / "i.safetensors",
                                   self.folder / "s.safetensors")
                self.assertEqual(done.returncode, 0, done.stderr)
                scores = safetensors.torch.load_file(self.folder / "s.safetensors")["scores"]
                expected = model(images)
                worst = ((scores - expected).abs() / expected.abs().max()).max().item()
                print(f"\n{name}: scores up to {expected.abs().max():.3f}, largest relative difference {worst:.1e}")
                self.assertLess(worst, 1e-5)

    def test_names_shapes_and_first_weights_are_torchvisions(self):
        for name in self.SIZES:
            with self.subTest(name):
                size = 32
                saved = self.saved("--model", name, "--size", size, "--batch-size", 2, "--max-steps", 1, "--lr", 0, "--seed", 5)
                theirs = torchvisions(name, size).state_dict()
                self.assertEqual(shapes(saved), shapes(theirs))
                for key, t in theirs.items():
                    if "running" in key or "num_batches" in key:
                        continue
                    # torchvision's trunc_normal_ gives a rare weight of -2, a hundred deviations away: erfinv(-1), cut.
                    t = t[t.abs() < 1.9] if "weight" in key else t
                    for what in (torch.mean, lambda x: torch.std(x, correction=0)):
                        spread = t.std(correction=0).item()
                        few = 4 / t.numel() ** 0.5  # standard errors
                        self.assertAlmostEqual(what(saved[key]).item(), what(t).item(), delta=1e-6 + spread * 2 * few, msg=key)

    def test_the_last_norms_begin_with_zeros(self):
        for name in "resnet18", "resnet50":
            saved = self.saved("--model", name, "--size", 32, "--batch-size", 2, "--max-steps", 1, "--lr", 0,
                               "--zero-init-last-norm")
            theirs = torchvisions(name, 32, zero_init_residual=True).state_dict()
            self.assertEqual({k for k, t in theirs.items() if "bn" in k and not t.any() and "weight" in k},
                             {k for k, t in saved.items() if "bn" in k and not t.any() and "weight" in k})


class Lars:
    """As timm's, on one tensor at a time. The order of operations is millrace-train's: a ResNet's losses double a difference of
    1e-7 at every step."""

    def __init__(self, groups, lr, momentum, trust, eps):
        self.groups, self.lr, self.momentum, self.trust, self.eps = groups, lr, momentum, trust, eps
        self.kept = {}

    def zero_grad(self):
        for group in self.groups:
            for p in group["params"]:
                p.grad = None

    @torch.no_grad() if torch else lambda f: f
    def step(self):
        for group in self.groups:
            for p in group["params"]:
                grad, decay = p.grad, group["weight_decay"]
                if decay != 0:
                    w, g = p.norm(), grad.norm()
                    ratio = self.trust * w / (g + w * decay + self.eps) if w > 0 and g > 0 else 1
                    grad = torch.add(grad, p, alpha=decay) * ratio
                self.kept[p] = self.kept[p] * self.momentum + grad if p in self.kept else grad.clone()
                p.sub_(self.kept[p] * self.lr)


class Optimizers(Parity):
    STEPS, BATCH, SIZE = 10, 8, 32

    def groups(self, model, decay, norms_decay):
        few = [p for p in model.parameters() if p.dim() <= 1]
        return [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
                {"params": few, "weight_decay": decay if norms_decay else 0}]

    def both(self, name, words, make, clip=None, smoothing=0):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = torchvisions(name, self.SIZE)
        safetensors.torch.save_file(model.state_dict(), self.folder / "init.safetensors")
        metrics = self.folder / f"{name}.jsonl"
        batches = self.folder / f"batches-{name}"
        self.ours("--model", name, "--size", self.SIZE, "--batch-size", self.BATCH, "--max-steps", self.STEPS, "--schedule",
                  "constant", "--init-weights", self.folder / "init.safetensors", "--record-batches", batches, "--metrics", metrics,
                  "--log-every", 0, *words)
        ours = [line["loss"] for line in training.lines(metrics) if "batch" in line]
        model = model.to(memory_format=torch.channels_last)
        optimizer = make(model)
        scale = 1 / (torch.tensor(DEVIATION) * 255).view(1, 3, 1, 1)
        shift = (-torch.tensor(MEAN) / torch.tensor(DEVIATION)).view(1, 3, 1, 1)
        theirs = []
        for file in sorted(batches.iterdir()):
            batch = safetensors.torch.load_file(file)
            optimizer.zero_grad()
            images = batch["images"].permute(0, 3, 1, 2).float() * scale + shift
            loss = torch.nn.functional.cross_entropy(model(images), batch["labels"], label_smoothing=smoothing)
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            theirs.append(loss.item())
        self.assertEqual(len(ours), self.STEPS)
        worst = max(abs(a - b) for a, b in zip(ours, theirs))
        print(f"\n{name} {' '.join(map(str, words))}: losses {ours[0]:.6f} .. {ours[-1]:.6f}, largest difference {worst:.1e}")
        self.assertLess(worst, 1e-4)
        self.assertGreater(abs(ours[0] - ours[-1]), 1e-3, "it did not train")

    def check(self, words, make, **more):
        for name in "resnet18", "vit_s_16":
            with self.subTest(name):
                self.both(name, words, make, **more)

    def test_sgd(self):
        self.check(["--lr", 0.001, "--weight-decay", 1e-3, "--nesterov", "--label-smoothing", 0.1],
                   lambda m: torch.optim.SGD(m.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-3, nesterov=True), smoothing=0.1)

    def test_adamw(self):
        self.check(["--optimizer", "adamw", "--lr", 2e-5, "--weight-decay", 0.05, "--betas", "0.9,0.98", "--eps", 1e-3,
                    "--no-decay", "norms", "--clip-norm", 1],
                   lambda m: torch.optim.AdamW(self.groups(m, 0.05, False), lr=2e-5, betas=(0.9, 0.98), eps=1e-3), clip=1)

    def test_lars(self):
        self.check(["--optimizer", "lars", "--lr", 0.005, "--weight-decay", 1e-4, "--no-decay", "norms", "--trust-coefficient",
                    0.002], lambda m: Lars(self.groups(m, 1e-4, False), 0.005, 0.9, 0.002, 1e-8))


class Schedules(Parity):
    LR, EPOCHS, STEPS = 0.1, 4, 10  # steps of an epoch

    def check(self, words, make, warm=0):
        metrics = self.folder / "m.jsonl"
        self.ours("--lr", self.LR, "--epochs", self.EPOCHS, "--epoch-batches", self.STEPS, "--metrics", metrics, "--overwrite",
                  "--lr", self.LR, "--batch-size", 4, "--warmup-epochs", warm, *words)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=self.LR)
        rates = torch.optim.lr_scheduler
        schedule = make(optimizer, rates)
        if warm:
            first = rates.LinearLR(optimizer, start_factor=0.01, total_iters=warm * self.STEPS)
            schedule = rates.SequentialLR(optimizer, [first, schedule], [warm * self.STEPS])
        expected = []
        for _ in range(self.EPOCHS * self.STEPS):
            expected.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        got = lr_of(metrics)
        self.assertEqual(len(got), len(expected))
        for step, (a, b) in enumerate(zip(got, expected)):
            self.assertLess(abs(a - b), 1e-12 * self.LR + 1e-12 * b, f"{words} step {step}: {a} instead of {b}")

    def test_each_is_torchs(self):
        steps = self.EPOCHS * self.STEPS
        for warm in 0, 1:
            rest = steps - warm * self.STEPS
            cases = {
                "constant": ([], lambda o, r: r.ConstantLR(o, factor=1)),
                "step": (["--step-epochs", f"{warm + 0.5},{warm + 2}", "--step-factor", 0.3],
                         lambda o, r: r.MultiStepLR(o, [5, 20], 0.3)),
                "cosine": (["--min-lr", 0.004], lambda o, r: r.CosineAnnealingLR(o, rest, 0.004)),
                "linear": (["--min-lr", 0.01], lambda o, r: r.LinearLR(o, 1, 0.1, rest)),
                "polynomial": (["--power", 2.5], lambda o, r: r.PolynomialLR(o, rest, 2.5)),
                "one-cycle": (["--pct-start", 0.4, "--div-factor", 20, "--final-div-factor", 500],
                              lambda o, r: r.OneCycleLR(o, self.LR, steps, pct_start=0.4, div_factor=20, final_div_factor=500))}
            for name, (words, make) in cases.items():
                if name == "one-cycle" and warm:
                    continue
                with self.subTest(name, warm=warm):
                    self.check(["--schedule", name, *words], make, warm)


if __name__ == "__main__":
    unittest.main(verbosity=2)
