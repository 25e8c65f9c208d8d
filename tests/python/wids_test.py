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
    from millrace import _spec

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
        with self.assertRaisesRegex(mr.UnsupportedError, "write "):
            wids.ShardListDataset("mixed.json", localname=str)
        documents = {"not JSON": "{", "not a JSON object": "[]", "lists no shards": '{"wids_version": 1}', "lacks 'wids_version'": "{}",
                     "'shardlist' is not a list": '{"wids_version": 1, "shardlist": 5}',
                     "shard 0 has no 'url'": '{"wids_version": 1, "shardlist": [5]}',
                     "'datasets' is not": '{"wids_version": 1, "datasets": [5]}',
                     "'nsamples' of shard 0 is None": '{"wids_version": 1, "shardlist": [{"url": "a.tar"}]}'}
        for said, text in documents.items():
            pathlib.Path("wrong.json").write_text(text)
            with self.assertRaisesRegex(mr.BadIndexError, f"{said}.*, at wrong.json; give what `millrace index") as raised:
                wids.ShardListDataset("wrong.json")
            self.assertEqual((raised.exception.url, raised.exception.exit_code), ("wrong.json", 5))
        with self.assertRaisesRegex(mr.NotFoundError, "at nowhere.json; check the path"):
            wids.ShardListDataset("nowhere.json")
        for shards in ([], (), iter([])):
            with self.assertRaisesRegex(mr.UsageError, "an empty list of shards; give "):
                wids.ShardListDataset(shards)
        with self.assertRaisesRegex(mr.BadIndexError, "'nsamples' of shard 0 is nan"):
            wids.ShardListDataset([{"url": "a.tar", "nsamples": float("nan")}])
        with self.assertRaisesRegex(AttributeError, "write "):
            wids.LRUShards  # noqa: B018

    def test_fields_that_are_damaged_name_their_sample(self):
        with mr.ShardWriter("damaged-%d.tar") as out:
            out.write({"__key__": "a", "json": b"{", "jpg": b"no image"})
        for kind, left_out, said in ((mr.BadFieldError, ".jpg", "field '.json': not JSON"),
                                     (mr.BadImageError, ".json", "field '.jpg': Pillow")):
            def some(sample):
                return wids.default_decoder({k: v for k, v in sample.items() if k != left_out})
            with self.assertRaisesRegex(kind, f"{said}.*, at damaged-0.tar, key a") as raised:
                wids.ShardListDataset([{"url": "damaged-0.tar", "nsamples": 1}], transformations=some)[0]
            self.assertEqual((raised.exception.key, raised.exception.url), ("a", "damaged-0.tar"))
        with self.assertRaisesRegex(mr.UsageError, "the format 'jpeg'; give 'PIL' or 'numpy'"):
            wids.default_decoder({}, "jpeg")

    def test_documents_by_url(self):
        part = {"wids_version": 1, "shardlist": [{"url": f"../mixed-{i}.tar", "nsamples": n} for i, n in enumerate((4, 4, 2))]}
        whole = {"wids_version": 1, "name": "whole", "datasets": [{"source_url": "in/part.json", "name": "p"}]}
        os.makedirs("web/in", exist_ok=True)
        pathlib.Path("web/in/part.json").write_text(json.dumps(part))
        pathlib.Path("web/whole.json").write_text(json.dumps(whole))
        for i in range(3):
            os.link(f"mixed-{i}.tar", f"web/mixed-{i}.tar")
        root, refused = self.folder / "web", []

        def answer(request):
            if request.path.endswith(".json") and request.path not in refused:  # the engine tries again
                refused.append(request.path)
                return 503, {}, b"later"
            file = root / request.path.lstrip("/")
            return (200, {}, file.read_bytes()) if file.exists() else (404, {}, b"")
        with harness.Answering(answer) as server:
            data = wids.ShardListDataset(f"{server.url}/whole.json", transformations=[])
            self.assertEqual([s["url"] for s in data.shards], [f"{server.url}/mixed-{i}.tar" for i in range(3)])
            self.assertEqual((len(data), data[9]["__key__"], data[9]["__shard__"]), (10, "m9", f"{server.url}/mixed-2.tar"))
            data.close()
            pathlib.Path("web/whole.json").write_text(json.dumps({**whole, "datasets": [{"source_url": "file:in/part.json"}]}))
            with self.assertRaisesRegex(mr.BadIndexError, "names 'file:in/part.json', which is not on the network"):
                wids.ShardListDataset(f"{server.url}/whole.json")
        self.assertEqual(sorted(refused), ["/in/part.json", "/whole.json"])
        stored = {"s3://b/d/whole.json": json.dumps(whole), "s3://b/d/in/part.json": json.dumps(part)}
        with unittest.mock.patch.object(_spec._core, "read_object", lambda url: stored[url].encode()):
            data = wids.ShardListDataset("s3://b/d/whole.json")
        self.assertEqual([s["url"] for s in data.shards], [f"s3://b/d/mixed-{i}.tar" for i in range(3)])

    def test_samplers(self):
        data = wids.ShardListDataset("mixed.json")
        self.assertEqual(list(wids.ChunkedSampler(range(12), chunksize=3, shuffle=False)), list(range(12)))
        for wrong in (0, -3):
            with self.assertRaisesRegex(mr.UsageError, f"chunksize is {wrong}; give a whole number from 1 to "):
                wids.ChunkedSampler(range(12), chunksize=wrong)
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
