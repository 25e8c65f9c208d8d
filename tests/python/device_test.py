"""`device` and `dtype` of ImageLoader: floating-point images, and batches on a GPU by recorded calls, or on one where there is one."""

import itertools
import math
import pathlib
import pickle
import sys
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, Case, loader, mr, needs_torch  # noqa: E402

if HAS_TORCH:
    import torch
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ORDER = {"shuffle": 100, "seed": 3}


def has_gpu():
    return HAS_TORCH and torch.cuda.is_available()


class Numbers(Case):
    def test_numpy_gets_what_torchvision_computes(self):
        import numpy
        plain = list(loader(**ORDER))
        for dtype, off in ((numpy.float32, 1e-5), ("float32", 1e-5), ("float16", 2e-3)):
            for batch, raw in zip(loader(dtype=dtype, **ORDER), plain):
                expected = (raw.images.astype("f8") / 255 - MEAN) / STD
                self.assertEqual(batch.images.dtype, numpy.dtype(dtype))
                self.assertLess(abs(batch.images - expected).max(), off)
                self.assertEqual(batch.keys, raw.keys)
                self.assertTrue((batch.labels == raw.labels).all())
        halves = next(iter(loader(dtype="float32", mean=(0.5,) * 3, std=[0.5, 0.5, 0.25], **ORDER))).images
        self.assertLess(abs(halves - (plain[0].images.astype("f8") / 255 - 0.5) / (0.5, 0.5, 0.25)).max(), 1e-5)

    @needs_torch
    def test_torch_gets_channels_last_of_its_own(self):
        plain = next(iter(loader(output="torch", **ORDER))).images
        expected = (plain.double() / 255 - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
        for dtype, off in ((torch.float32, 1e-5), ("float16", 2e-3), (torch.bfloat16, 2e-2)):
            images = next(iter(loader(output="torch", dtype=dtype, **ORDER))).images
            self.assertEqual(str(images.dtype).removeprefix("torch."), str(dtype).removeprefix("torch."))
            self.assertTrue(images.is_contiguous(memory_format=torch.channels_last))
            self.assertLess((images - expected).abs().max().item(), off)

    def test_a_position_goes_along(self):
        data = loader(dtype="float32", **ORDER)
        first = [b.keys for b in itertools.islice(data, 3)]
        again = pickle.loads(pickle.dumps(data))
        rest = [(b.keys, b.images.dtype.name) for b in again]
        self.assertEqual(first + [keys for keys, _ in rest], [b.keys for b in loader(**ORDER)])
        self.assertEqual({name for _, name in rest}, {"float32"})

    def test_what_makes_no_sense_is_refused(self):
        for options, said in (({"dtype": "int8"}, "give one of uint8"), ({"mean": MEAN}, "dtype='float32'"),
                              ({"std": STD}, "dtype='float32'"), ({"dtype": "float32", "mean": (1, 2)}, "three numbers"),
                              ({"dtype": "float32", "std": (1, 1, 0)}, "three numbers above 0 to 1"),
                              ({"dtype": "float32", "mean": (-0.1, 1, 0)}, "three numbers from 0 to 1"),
                              ({"dtype": "float32", "mean": (123.7, 116.3, 103.5)}, "divided by 255"),
                              ({"dtype": "float32", "std": (58.4, 57.1, 57.4)}, "divided by 255"),
                              ({"dtype": "float32", "mean": ("a", 1, 2)}, "three numbers"),
                              ({"dtype": "float32", "mean": (math.nan, 1, 2)}, "three numbers"), ({"dtype": "bfloat16"}, "no such type"),
                              ({"device": "cuda"}, "with numpy"), ({"device": "tpu"}, "give 'cuda'"), ({"device": "cuda:x"}, "give 'cuda'"),
                              ({"device": 0}, "give 'cuda'")):
            with self.subTest(options), self.assertRaisesRegex(mr.UsageError, said):
                loader(**options)
        self.assertEqual(next(iter(loader(device="cpu"))).images.dtype.name, "uint8")

    def test_a_batch_that_the_gpu_did_not_take_comes_again(self):
        data, wanted = loader(dtype="float32", **ORDER), [b.keys for b in loader(**ORDER)]
        got = [next(iter(data)).keys]
        finished = data._finished
        data._finished = lambda *_: 1 / 0
        with self.assertRaises(ZeroDivisionError):
            next(iter(data))
        rest = loader(dtype="float32", **ORDER)
        rest.load_state_dict(data.state_dict())  # as a program does that ends because of the GPU
        self.assertEqual(got + [b.keys for b in rest], wanted)
        data._finished = finished
        self.assertEqual(got + [b.keys for b in data], wanted)
        self.assertEqual([b.keys for b in rest], [b.keys for b in data])

    @needs_torch
    def test_a_gpu_that_the_host_lacks_is_told_by_those_that_it_has(self):
        from millrace import _device
        for count, said in ((2, "device='cuda:9' does not exist; this host has GPUs cuda:0 to cuda:1"),
                            (1, "device='cuda:9' does not exist; this host has one GPU, cuda:0")):
            with unittest.mock.patch.multiple(torch.cuda, is_available=lambda: True, device_count=lambda: count), \
                    self.assertRaisesRegex(mr.UsageError, said):
                _device.Gpu("cuda:9")

    @needs_torch
    @unittest.skipIf(has_gpu(), "there is a GPU")
    def test_without_a_gpu_no_batch_is_lost(self):
        data = loader(output="torch", device="cuda", **ORDER)
        for _ in range(2):
            with self.assertRaisesRegex(mr.UnsupportedError, "torch finds no GPU; check nvidia-smi"):
                next(iter(data))
        self.assertIsNone(data.state_dict()["position"])


class RecordedGpu:
    """A GPU whose copies are made when they are waited for: memory that is reused too early shows."""

    def __init__(self):
        self.log, self.due = [], {}

    def pinned(self, like):
        self.log.append(f"pinned {tuple(like.shape)}")
        return torch.empty_like(like)

    def copy(self, pinned):
        event, tensor = len(self.log), torch.full_like(pinned, 77)
        self.log.append("copy")
        self.due[event] = lambda: tensor.copy_(pinned)
        return tensor, event

    def wait(self, event):
        self.log.append(f"wait {event}")
        self.due.pop(event, lambda: None)()

    def finish(self):
        for event in list(self.due):
            self.due.pop(event)()


@needs_torch
class Slots(unittest.TestCase):
    def setUp(self):
        if mr is None:
            self.skipTest("the package is not built")
        from millrace import _device
        self.gpu = RecordedGpu()
        self.move = _device.ToDevice(self.gpu)

    def test_memory_is_used_again_after_its_copy(self):
        sources = [torch.full((4, 2, 2, 3), i, dtype=torch.uint8) for i in range(10)]
        moved = []
        for i, source in enumerate(sources):
            given = source.clone()
            moved.append(self.move(images=given, labels=torch.full((4,), i)))
            given.zero_()  # the engine's memory is another batch's
        self.assertEqual(self.gpu.log[:4], ["pinned (4, 2, 2, 3)", "copy", "pinned (4,)", "copy"])
        self.assertEqual(self.gpu.log[12:16], ["wait 1", "wait 3", "copy", "copy"], "the fourth batch takes the first one's memory")
        self.assertEqual(sum(line.startswith("pinned") for line in self.gpu.log), 6)
        self.gpu.finish()
        for i, (images, labels) in enumerate(moved):
            self.assertTrue(images.equal(sources[i]), i)
            self.assertEqual(labels.tolist(), [i] * 4)

    def test_smaller_and_larger_batches(self):
        sizes = [4, 2, 1, 6, 4, 3, 6]
        moved = [self.move(images=torch.full((n, 3), n, dtype=torch.uint8))[0] for n in sizes]
        self.gpu.finish()
        for n, images in zip(sizes, moved):
            self.assertTrue(images.equal(torch.full((n, 3), n, dtype=torch.uint8)))


@unittest.skipUnless(has_gpu(), "there is no GPU here")
class OnAGpu(Case):
    def test_batches_are_those_in_memory(self):
        for dtype in "uint8", "float32":
            there = list(loader(output="torch", device="cuda", dtype=dtype, **ORDER))  # all kept, while slots are used again
            for ours, theirs in zip(there, loader(output="torch", dtype=dtype, **ORDER), strict=True):
                self.assertEqual((ours.images.device.type, ours.labels.device.type), ("cuda", "cuda"))
                self.assertTrue(ours.images.is_contiguous(memory_format=torch.channels_last))
                self.assertTrue(torch.allclose(ours.images.cpu().float(), theirs.images.float(), atol=1e-5))
                self.assertTrue(ours.labels.cpu().equal(theirs.labels))

    def test_a_device_that_is_not_there(self):
        with self.assertRaisesRegex(mr.UsageError, "cuda:99' does not exist; this host has"):
            next(iter(loader(output="torch", device="cuda:99")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
