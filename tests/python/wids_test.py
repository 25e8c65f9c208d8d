"""millrace.wids: the data set and the samplers, against what wids 0.2.111 gives where it is installed."""

import contextlib
import gzip
import importlib
import io
import itertools
import json
import os
import pathlib
import pickle
import sys
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, Case, harness, mr, needs_torch  # noqa: E402

if mr is not None:
    import millrace.wids as wids

THEIRS = pathlib.Path(sys.prefix) / "wids"
original = None
if HAS_TORCH and THEIRS.is_dir():
    sys.path.append(str(THEIRS))  # the last place: a webdataset of its own is beside it
    original = importlib.import_module("wids.wids")

try:
    import numpy
    import PIL.Image
except ImportError:
    PIL = numpy = None


def plain(value):
    """A value that compares."""
    if hasattr(value, "read"):
        return value.read()
    if isinstance(value, numpy.integer):
        return int(value)
    if hasattr(value, "tobytes"):
        return getattr(value, "size", None), value.tobytes()
    return value


@contextlib.contextmanager
def place(rank, ranks):
    import torch.distributed as dist
    with unittest.mock.patch.object(dist, "is_initialized", return_value=True), \
            unittest.mock.patch.object(dist, "get_rank", return_value=rank), \
            unittest.mock.patch.object(dist, "get_world_size", return_value=ranks):
        yield


@unittest.skipUnless(PIL, "no numpy or Pillow in this Python")
class Wids(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        warnings.simplefilter("ignore")
        npy = io.BytesIO()
        png = io.BytesIO()
        numpy.save(npy, numpy.arange(3))
        PIL.Image.new("RGB", (4, 3), (1, 2, 3)).save(png, "png")
        with mr.ShardWriter("mixed-%d.tar", max_count=4) as out:
            for i in range(10):
                out.write({"__key__": f"m{i}", "txt": f"text {i}", "cls": i, "json": {"i": i}, "txt.gz": gzip.compress(b"packed"),
                           "npy": npy.getvalue(), "png": png.getvalue(), "bin": b"\0", "png.gz": gzip.compress(b"x")})
        done = harness.run("millrace", "index", "mixed-*.tar", "-o", "mixed.json")
        assert done.returncode == 0, done.stderr

    def test_samples(self):
        lists = [{"url": f"mixed-{i}.tar", "nsamples": n, "dataset": "d"} for i, n in enumerate((4, 4, 2))]
        os.makedirs("in", exist_ok=True)
        with open("in/based.json", "w") as out:
            json.dump({"wids_version": 1, "base": os.getcwd(), "shardlist": lists}, out)
        self.assertEqual(wids.ShardListDataset("in/based.json")[9]["__shard__"], os.path.abspath("mixed-2.tar"))
        with open("in/several.json", "w") as out:
            json.dump({"wids_version": 1, "name": "several", "shardlist": lists[:1],
                       "datasets": [{"name": "a", "shardlist": lists[1:], "base": os.getcwd()}]}, out)
        for source, options in (("mixed.json", {}), (lists, {}), ("mixed.json", {"transformations": "numpy"}),
                                ("mixed.json", {"transformations": []}), ("mixed.json", {"base": os.getcwd()}),
                                ("in/several.json", {"base": os.getcwd()}), ("in/../mixed.json", {})):
            with self.subTest(source=source, options=options):
                ours = wids.ShardListDataset(source, **options)
                self.assertEqual((len(ours), ours.lengths), (10, [4, 4, 2]))
                self.assertEqual((ours[9]["__key__"], ours[-1]["__index__"], ours[9]["__shardindex__"]), ("m9", 9, 1))
                with self.assertRaises(IndexError):
                    ours[10]
                if original is not None:
                    theirs = original.ShardListDataset(source, cache_dir="theirs", **options)
                    for i in (0, 3, 4, 9):
                        self.assertEqual({k: plain(v) for k, v in ours[i].items()}, {k: plain(v) for k, v in theirs[i].items()})
                ours.close()
        data = wids.ShardListDataset(lists, transformations=[wids.default_decoder, lambda s: s[".cls"]]).add_transform(str)
        self.assertEqual(data[7], "7")

    def test_what_is_wrong(self):
        wrong = wids.ShardListDataset([{"url": "mixed-0.tar", "nsamples": 3}])
        with self.assertRaises(mr.IntegrityError):
            wrong[0]
        with self.assertRaises(mr.BadIndexError):
            wids.ShardListDataset(io.StringIO("{}"))
        for call in (lambda: wids.ShardListDataset("mixed.json", localname=str), lambda: wids.ShardListDataset("s3://b/a.json")):
            with self.assertRaisesRegex(mr.UnsupportedError, "write "):
                call()
        with self.assertRaisesRegex(AttributeError, "write "):
            wids.LRUShards  # noqa: B018

    def test_samplers(self):
        data = wids.ShardListDataset("mixed.json")
        self.assertEqual(list(wids.ChunkedSampler(range(12), chunksize=3, shuffle=False)), list(range(12)))
        self.assertEqual(sorted(wids.ShardListSampler(data)), list(range(10)))
        for options in ({}, {"shufflefirst": True}, {"seed": 7}):
            ours, theirs = wids.ShardListSampler(data, **options), original and original.ShardListSampler(data, **options)
            for _ in range(3):
                numbers = list(ours)
                self.assertEqual(numbers, list(theirs or numbers))
        for samples, chunk, shuffle, first in itertools.product((None, 7, (2, 9)), (2, 5), (True, False), (True, False)):
            options = {"num_samples": samples, "chunksize": chunk, "shuffle": shuffle, "shufflefirst": first, "seed": 3}
            ours, theirs = wids.ChunkedSampler(data, **options), original and original.ChunkedSampler(data, **options)
            self.assertEqual(len(ours), len(theirs or ours))
            for epoch in range(2):
                numbers = list(ours)
                self.assertEqual(numbers, list(theirs or numbers))

    @needs_torch
    def test_ranks(self):
        # What wids gave, of 10 numbers in chunks of 2 on 3 ranks, in two epochs.
        wanted = [[[0, 1, 2, 3], [0, 1, 3, 2]], [[4, 5, 6, 7], [4, 5, 7, 6]], [[8, 9], [8, 9]]]
        for rank, epochs in enumerate(wanted):
            with place(rank, 3):
                sampler = wids.DistributedChunkedSampler(range(10), chunksize=2)
            self.assertEqual([list(sampler), list(sampler)], epochs)
            self.assertEqual(len(sampler), 4)
        if original is not None:
            for ranks, count, samples in itertools.product((1, 2, 4), (5, 12), (None, 7)):
                for rank in range(ranks):
                    with place(rank, ranks):
                        ours, theirs = (w.DistributedChunkedSampler(range(count), num_samples=samples, chunksize=2, seed=5)
                                        for w in (wids, original))
                    self.assertEqual((list(ours), list(ours), len(ours)), (list(theirs), list(theirs), len(theirs)))
        self.assertEqual(len(list(wids.DistributedChunkedSampler(range(10)))), 10)
        with place(1, 2):  # there, rank 0 would be taken for none
            self.assertEqual(list(wids.DistributedChunkedSampler(range(4), rank=0, shuffle=False)), [0, 1])
        self.assertEqual(list(wids.DistributedChunkedSampler(range(4), rank=1, num_replicas=2, shuffle=False)), [2, 3])

    @needs_torch
    def test_torch_takes_it(self):
        import torch
        data = wids.ShardListDataset([{"url": f"mixed-{i}.tar", "nsamples": n} for i, n in enumerate((4, 4, 2))])
        self.assertEqual(data[0][".cls"], 0)
        data.add_transform(label)
        loader = torch.utils.data.DataLoader(data, sampler=wids.ChunkedSampler(data, chunksize=4), batch_size=5, num_workers=2)
        self.assertEqual(sorted(torch.cat(list(loader)).tolist()), list(range(10)))
        self.assertEqual(pickle.loads(pickle.dumps(data))[9], 9)


def label(sample):
    return sample[".cls"]


if __name__ == "__main__":
    unittest.main()
