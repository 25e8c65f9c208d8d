"""millrace.webdataset: the chain, against what webdataset gives where it is installed."""

import io
import json
import pathlib
import pickle
import sys
import threading
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, URLS, Case, harness, mr, needs_torch  # noqa: E402

if mr is not None:
    import millrace.webdataset as wds

try:
    import webdataset as original
except ImportError:
    original = None
try:
    import numpy
    import PIL.Image
except ImportError:
    PIL = numpy = None


def plain(item):
    """An item as a value that compares."""
    if isinstance(item, dict):
        return {k: plain(v) for k, v in item.items() if k not in ("__url__", "__local_path__")}
    if isinstance(item, (list, tuple)):
        return [plain(v) for v in item]
    if hasattr(item, "numpy"):
        item = item.numpy()
    if hasattr(item, "tobytes"):
        return (str(getattr(item, "dtype", "")), tuple(getattr(item, "shape", getattr(item, "size", ()))), item.tobytes())
    return item


@unittest.skipUnless(original, "no webdataset in this Python")
class AsOriginal(Case):
    """Each chain gives the items that webdataset's gives, in the same order where nothing is shuffled."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        warnings.simplefilter("ignore")
        with mr.ShardWriter("text-%d.tar", max_count=16) as out:
            for i in range(64):
                npy = io.BytesIO()
                numpy.save(npy, numpy.arange(i, i + 3, dtype="f4"))
                out.write({"__key__": f"t{i:03}", "txt": f"text {i}", "cls": i, "npy": npy.getvalue(),
                           "json": {"i": i}, "seg.txt": "s", "bin": b"\0\xff"})

    def both(self, urls, *chains, **options):
        for chain in chains:
            ours, theirs = ([plain(i) for i in chain(w, w.WebDataset(urls, shardshuffle=False, **options))]
                            for w in (wds, original))
            self.assertEqual(len(ours), len(theirs))
            self.assertEqual(ours, theirs)
            self.assertTrue(ours)

    def test_samples(self):
        self.both("text-{0..3}.tar", lambda w, d: d, lambda w, d: d.decode(), lambda w, d: d.map(lambda s: s["__key__"]))
        self.both(URLS, lambda w, d: d.to_tuple("jpg;png", "cls"), lambda w, d: d.to_tuple("jpg cls __key__"))
        self.both(["text-1.tar", "text-0.tar"], lambda w, d: d)

    def test_stages(self):
        self.both(
            "text-{0..3}.tar",
            lambda w, d: d.decode().to_tuple("npy", "cls", "txt").batched(10),
            lambda w, d: d.decode().to_tuple("npy", "cls").batched(10, partial=False),
            lambda w, d: d.decode().to_tuple("npy", "cls").batched(10).unbatched(),
            lambda w, d: d.listed(7).unlisted(),
            lambda w, d: d.select(lambda s: s["__key__"].endswith("3")),
            lambda w, d: d.decode().map_dict(cls=lambda c: -c, txt=len),
            lambda w, d: d.decode().to_tuple("txt", "cls").map_tuple(len, None),
            lambda w, d: d.decode().to_tuple("txt", "cls").map_tuple(str.upper),
            lambda w, d: d.rename(text="missing;txt", label="cls"),
            lambda w, d: d.rename(text="txt", __key__="__key__", keep=False),
            lambda w, d: d.slice(5), lambda w, d: d.slice(3, 40, 5),
            lambda w, d: d.map(lambda s: None if s["cls"] == b"7" else s),
            lambda w, d: d.compose(lambda items: (i["cls"] for i in items)),
            lambda w, d: d.repeat(2), lambda w, d: d.with_epoch(100), lambda w, d: d.repeat(nbatches=70),
            lambda w, d: d.decode(w.handle_extension("seg.txt", len)) if hasattr(w, "handle_extension")
            else d.decode(w.autodecode.handle_extension("seg.txt", len)),
            lambda w, d: d.decode(only="cls"))

    def test_handlers(self):
        def halved(s):
            if int(s["cls"]) % 2:
                raise ValueError("odd")
            return s["cls"]
        for name in ("ignore_and_continue", "ignore_and_stop", "warn_and_stop"):
            self.both("text-{0..3}.tar", lambda w, d, n=name: d.map(halved, handler=getattr(w, n)))
        self.assertEqual(len(list(wds.WebDataset("text-0.tar", shardshuffle=False).map(halved, wds.warn_and_continue))), 8)
        with self.assertRaisesRegex(ValueError, "odd"):
            list(wds.WebDataset("text-0.tar", shardshuffle=False).map(halved))

    def test_pipelines(self):
        def made(w):
            return w.DataPipeline(w.SimpleShardList("text-{0..3}.tar"), w.split_by_node, w.split_by_worker,
                                  w.tarfile_to_samples(), w.decode(), w.to_tuple("txt", "cls"), w.batched(6))
        self.assertEqual([plain(i) for i in made(wds)], [plain(i) for i in made(original)])

    @unittest.skipUnless(PIL, "no Pillow in this Python")
    def test_images(self):
        for kind in ("rgb8", "rgb", "pil", "l8", "rgba8", "torchrgb8", "torchrgb", "torchl8"):
            if kind.startswith("torch"):
                if not HAS_TORCH:
                    continue
            ours, theirs = ([next(iter(w.WebDataset(URLS, shardshuffle=False).decode(kind)))["jpg"]] for w in (wds, original))
            a, b = plain(ours)[0], plain(theirs)[0]
            self.assertEqual(a[:2], b[:2], kind)
            difference = numpy.abs(numpy.asarray(ours[0], "f8") - numpy.asarray(theirs[0], "f8"))
            self.assertLessEqual(float(difference.max()), 3 if difference.max() > 1 else 3 / 255, kind)  # another IDCT

    @harness.needs_shared("webdataset-real")
    def test_real_shards(self):
        shards = sorted((harness.SHARED / "webdataset-real").rglob("*.tar"))
        self.assertGreater(len(shards), 5)
        for shard in shards:
            with self.subTest(shard=shard.name):
                self.both(str(shard), lambda w, d: d)

    def test_arrays_of_the_program_are_no_images(self):
        made = wds.WebDataset(URLS, shardshuffle=False).map(lambda s: {**s, "features": numpy.ones((4, 5, 6), "f8")})
        features = next(iter(made.decode("rgb")))["features"]
        self.assertEqual((features.shape, str(features.dtype), float(features.max())), ((4, 5, 6), "float64", 1.0))

    def test_writers(self):
        sample = {"__key__": "a/b", "txt": "t", "cls": 3, "json": {"x": 1}, "npy": numpy.arange(3), "bin": b"\1"}
        for make in (lambda: wds.TarWriter("one.tar"), lambda: wds.ShardWriter("many-%d.tar", maxcount=1)):
            with make() as out:
                out.write(sample)
        for name in ("one.tar", "many-0.tar"):
            read, = original.WebDataset(name, shardshuffle=False).decode()
            self.assertEqual((read["__key__"], read["txt"], read["cls"], read["json"], read["bin"], read["npy"].tolist()),
                             ("a/b", "t", 3, {"x": 1}, b"\1", [0, 1, 2]))


class Chains(Case):
    def test_shuffles_are_a_function_of_the_seed(self):
        def keys(**options):
            data = wds.WebDataset(URLS, shardshuffle=100, **options).shuffle(100)
            return [[s["__key__"] for s in data] for _ in range(2)]
        first = keys(seed=3)
        self.assertEqual(first, keys(seed=3))
        self.assertNotEqual(first, keys(seed=4))
        self.assertNotEqual(first[0], first[1])
        self.assertEqual(sorted(first[0]), sorted(first[1]))
        buffered = wds.WebDataset(URLS, shardshuffle=False).map(lambda s: s["__key__"]).shuffle(50, seed=1)
        self.assertEqual(list(buffered), list(buffered))
        self.assertEqual(sorted(buffered), sorted(first[0]))

    def test_a_loop_that_was_left_begins_again(self):
        data = wds.WebDataset(URLS, shardshuffle=False).map(lambda s: s["__key__"])
        self.assertEqual(next(iter(data)), next(iter(data)))
        self.assertEqual(len(list(data)), 400)

    def test_loops_at_once_are_refused(self):
        data = wds.WebDataset(URLS, shardshuffle=False).map(lambda s: s["__key__"])
        for loops in (data, wds.WebLoader(data, batch_size=None), wds.WebLoader(data, batch_size=None).with_epoch(1000)):
            first = iter(loops)
            next(first)
            second = iter(loops)
            next(second)
            if loops.nsamples < 0:
                with self.assertRaisesRegex(mr.UsageError, "another loop over this .* has begun"):
                    list(first)
            self.assertEqual(len(list(second)), 399 if loops.nsamples < 0 else 999)

    def test_an_iterator_that_is_not_asked_has_no_thread(self):
        before = threading.active_count()
        for _ in range(5):
            iter(wds.WebLoader(wds.WebDataset(URLS, shardshuffle=False), batch_size=None))
        self.assertEqual(threading.active_count(), before)

    def test_epochs_continue(self):
        data = wds.WebDataset(URLS, shardshuffle=False).map(lambda s: s["__key__"]).with_epoch(150)
        self.assertEqual(len(set([*data, *data])), 300)
        failures = [RuntimeError("once")]

        def failing(sample):
            if failures and sample["__key__"].endswith("50"):
                raise failures.pop()
            return sample
        data = wds.WebDataset(URLS, shardshuffle=False).map(failing).with_epoch(100)
        with self.assertRaisesRegex(RuntimeError, "once"):
            list(data)
        self.assertEqual([len(list(data)) for _ in range(2)], [100, 100])  # none is empty
        resampled = wds.WebDataset(URLS, resampled=True, seed=1).shuffle(100).with_epoch(250).with_length(250)
        self.assertEqual((len(list(resampled)), len(list(resampled)), len(resampled)), (250, 250, 250))

    def test_a_loader_works_on_its_own_thread(self):
        data = (wds.WebDataset(URLS, shardshuffle=100, seed=1).shuffle(100).decode("rgb8").to_tuple("jpg", "cls")
                .map_tuple(lambda image: image.mean(), None).batched(64))
        wanted = [plain(b) for b in data]
        with wds.WebLoader(data, batch_size=None, num_workers=2) as loader:
            self.assertEqual([plain(b) for b in loader], wanted)
            for _ in loader:  # left: the next loop begins again
                break
            self.assertEqual(sum(len(b[1]) for b in loader), 400)
        failing = wds.WebLoader(data.map(lambda b: 1 // 0), batch_size=None)
        with self.assertRaises(ZeroDivisionError):
            list(failing)

    @needs_torch
    def test_torch_takes_a_chain(self):
        import torch
        data = wds.WebDataset(URLS, shardshuffle=False).decode("torchrgb8").to_tuple("jpg", "cls")
        self.assertIsInstance(data, torch.utils.data.IterableDataset)
        for workers in (0, 2):
            batches = list(torch.utils.data.DataLoader(data, batch_size=40, num_workers=workers))
            self.assertEqual((len(batches), tuple(batches[0][0].shape)), (10, (40, 3, 32, 32)))
            self.assertEqual(sum(len(b[1]) for b in batches), 400)
        mixed = wds.WebLoader(data, batch_size=40, num_workers=2)
        self.assertEqual(tuple(next(iter(mixed))[0].shape), (40, 3, 32, 32))
        self.assertEqual(len(list(pickle.loads(pickle.dumps(data)))), 400)

    def test_mixes(self):
        a = wds.WebDataset("train-000000.tar", shardshuffle=False).map(lambda s: "a")
        b = wds.WebDataset("train-000001.tar", shardshuffle=False).map(lambda s: "b")
        mixed = list(wds.RandomMix([a, b], probs=[0.8, 0.2], longest=True, seed=1))
        self.assertEqual((mixed.count("a"), mixed.count("b")), (100, 100))
        self.assertGreater(mixed[:50].count("a"), 30)
        self.assertEqual(list(wds.RoundRobin([a, b]))[:4], ["a", "b", "a", "b"])
        self.assertLess(len(list(wds.RandomMix([a, b], seed=1))), 200)

    def test_bad_samples_go_to_the_handlers(self):
        with mr.ShardWriter("bad-%d.tar") as out:
            for i, s in enumerate(mr.samples(URLS)):
                out.write(s if i % 100 else {"__key__": s["__key__"], "jpg": b"no image", "cls": b"1"})
        data = wds.WebDataset("bad-0.tar", shardshuffle=False)
        self.assertEqual(len(list(data.decode("rgb8", handler=wds.ignore_and_continue))), 396)
        self.assertEqual(len(list(data.decode("rgb8", handler=wds.ignore_and_stop))), 0)
        with self.assertRaises(mr.BadImageError):
            list(data.decode("rgb8"))
        gone = wds.WebDataset(["train-000000.tar", "gone.tar"], shardshuffle=False, handler=wds.ignore_and_continue)
        self.assertEqual(len(list(gone)), 100)

    def test_ranks(self):
        keys = []
        for rank in range(2):
            out, _ = self.run_program(f"""
                os.environ.update(RANK="{rank}", WORLD_SIZE="2")
                import json, millrace.webdataset as wds
                try:
                    wds.WebDataset({URLS!r}, shardshuffle=False)
                except ValueError as e:
                    assert "nodesplitter" in str(e)
                data = wds.WebDataset({URLS!r}, shardshuffle=False, nodesplitter=wds.split_by_node)
                print(json.dumps([s["__key__"] for s in data]))
                """)
            keys.append(json.loads(out))
        self.assertEqual(len(set(keys[0]) | set(keys[1])), 400)

    def test_ranks_without_a_common_seed_read_different_samples(self):
        for shuffled in ("", ".shuffle(100)", ".shuffle(100, seed=int(os.environ['RANK']))"):
            keys = []
            for rank in range(2):
                out, _ = self.run_program(f"""
                    os.environ.update(RANK="{rank}", WORLD_SIZE="2")
                    import json, millrace.webdataset as wds
                    data = wds.WebDataset({URLS!r}, shardshuffle=100, nodesplitter=wds.split_by_node){shuffled}
                    print(json.dumps([s["__key__"] for s in data]))
                    """)
                keys += json.loads(out)
            self.assertEqual((len(keys), len(set(keys))), (400, 400), shuffled)

    @needs_torch
    def test_epochs_of_worker_processes_differ(self):
        import torch
        data = wds.WebDataset(URLS, shardshuffle=100).shuffle(100).map(lambda s: s["__key__"])
        through = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2)
        first, second = list(through), list(through)
        self.assertNotEqual(first, second)
        self.assertEqual((len(set(first)), len(set(second))), (400, 400))

    def test_what_is_not_offered_says_what_to_write(self):
        data = wds.WebDataset(URLS, shardshuffle=False)
        for call in (data.mcached, data.lmdb_cached, data.xdecode, data.rename_keys, data.extract_keys, data.log_keys,
                     lambda: data.decode(pre=len), lambda: wds.WebDataset(URLS, select_files=len),
                     lambda: wds.WebDataset(URLS, nodesplitter=len), lambda: wds.WebLoader(data, shuffle=True)):
            with self.assertRaisesRegex(mr.UnsupportedError, "is not offered; write "):
                call()
        for name in ("gopen", "wids", "Cached"):
            with self.assertRaisesRegex(AttributeError, "is not offered; write "):
                getattr(wds, name)


if __name__ == "__main__":
    unittest.main()
