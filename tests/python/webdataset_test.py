"""millrace.webdataset: the chain, against what webdataset gives where it is installed."""

import gzip
import importlib
import io
import itertools
import json
import os
import pathlib
import pickle
import shutil
import sys
import tarfile
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, URLS, Case, harness, mr, needs_torch, optional, plain  # noqa: E402

wds, original, numpy = (optional(name) for name in ("millrace.webdataset", "webdataset", "numpy"))


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
            lambda w, d: itertools.islice(d.repeat(0), 70), lambda w, d: itertools.islice(d.repeat(-1), 70),
            lambda w, d: itertools.islice(d.with_epoch(0), 70), lambda w, d: d.with_epoch(9, nbatches=7),
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

    def test_sources(self):
        def doubled(items):
            for item in items:
                yield item
                yield item
        for made in (lambda w: w.DataPipeline(lambda: iter([1, 2, 3]), w.map(lambda x: x + 1)),
                     lambda w: w.DataPipeline([w.SimpleShardList("text-{0..3}.tar"), w.tarfile_to_samples()], w.slice(3)),
                     lambda w: w.DataPipeline(w.SimpleShardList("text-{0..3}.tar"), w.slice(2), w.tarfile_samples),
                     lambda w: w.DataPipeline(w.SimpleShardList("text-{0..3}.tar", seed=5), w.tarfile_to_samples()),
                     lambda w: w.DataPipeline(w.SimpleShardList("text-{0..3}.tar"), doubled, w.split_by_node, w.split_by_worker,
                                              w.tarfile_to_samples()),
                     lambda w: w.DataPipeline(w.shardspec("text-0.tar::text-2.tar"), w.tarfile_samples, w.non_empty),
                     lambda w: w.DataPipeline(w.SimpleShardList([str(i) for i in range(20)]), w.detshuffle(4, seed=1)),
                     lambda w: w.SimpleShardList("a-{00..12..3}.tar", seed=17),
                     lambda w: w.ResampledShards("a-{0..9}.tar", 20, deterministic=True, worker_seed=lambda: 1),
                     lambda w: w.FluidWrapper(w.RoundRobin([w.MockDataset((1,), 3), w.MockDataset((2,), 2)])).slice(5),
                     lambda w: w.repeatedly([[[1, 1], [2, 2]]] * 3, nsamples=10)):
            theirs = [plain(i) for i in made(original)]
            self.assertEqual([plain(i) for i in made(wds)], theirs)
            self.assertTrue(theirs)
        for w in (wds, original):
            self.assertEqual(len(list(w.DataPipeline(w.SimpleShardList("text-{0..3}.tar"), w.resampled(9), w.tarfile_samples))), 144)
            with self.assertRaises(ValueError):
                list(w.DataPipeline(w.SimpleShardList("text-0.tar"), lambda items: iter([]), w.non_empty))

    def test_folders_of_shards(self):
        for w, folder in ((wds, "ours/"), (original.shardlists, "theirs/")):
            for mode, left in (("keep", ["text-0.tar._done_", "text-1.tar._done_"]), ("unlink", [])):
                shutil.rmtree(folder, ignore_errors=True)
                os.mkdir(folder)
                for name in ("text-0.tar", "text-1.tar"):
                    shutil.copy(name, folder)
                shards = w.DirectoryShardList(folder, pattern="*.tar", poll=None, mode=mode, select="oldest")
                package = wds if w is wds else original
                self.assertEqual(len(list(package.DataPipeline(shards, package.tarfile_samples))), 32)
                self.assertEqual(sorted(os.listdir(folder)), left)

    def test_names_of_shards(self):
        os.environ.update(WDS_B="x{0..1}", WDS_C="${B}y")
        for text in ("p-${B}.tar::q-{a,b}.tar::r${C}", "{000000..00009}", "{01..10..3}", "{1..-2}", "{c..a}", "{{a,b},c}", "a{b}c",
                     r"\{a,b\}", "x{1..3}y{a,b}z", "{a,b{1..2}}", "x{,y}", "{}", "{ab..cd}", "{-05..5}", "{a..c}{{1..2}}"):
            self.assertEqual(wds.expand_urls(text), original.shardlists.expand_urls(text), text)
        with self.assertRaisesRegex(ValueError, "not closed"):
            wds.expand_urls("a{1..2")
        with self.assertRaisesRegex(ValueError, "set WDS_D"):
            wds.expand_urls("${D}")

    def test_patterns(self):
        self.both(
            "text-{0..3}.tar",
            lambda w, d: d.extract_keys("*.txt", "cls;*.cls", duplicate_is_error=False),
            lambda w, d: d.extract_keys("cls", "*.gone", ignore_missing=True),
            lambda w, d: d.rename_keys(label="cls", text="*txt", keep_unselected=True, duplicate_is_error=False),
            lambda w, d: d.rename_keys(("label", "cls"), must_match=False),
            lambda w, d: d.xdecode(cls=lambda stream: int(stream.read()), npy=False, must_decode=False),
            lambda w, d: d.xdecode(("*.cls", lambda s: s.read(1)), ("*.json", False), defaults=[], must_decode=False).mcached())
        self.both("text-0.tar", lambda w, d: d.compose(w.associate({"t003": {"more": 1}})),
                  lambda w, d: d.compose(w.pipelinefilter(lambda items, n: (i for i in items for _ in range(n)))(2)))
        for w in (wds, original):
            for wrong in (dict(x="gone"), dict(x="*t*")):
                with self.assertRaises(ValueError):
                    list(w.WebDataset("text-0.tar", shardshuffle=False).rename_keys(**wrong))
        list(wds.WebDataset("text-0.tar", shardshuffle=False).log_keys("keys"))
        with open("keys") as keys:
            self.assertEqual(keys.read().splitlines()[:2], ["0\tNone\tNone\tt000", "1\tNone\tNone\tt001"])
        kept = wds.WebDataset("text-0.tar", shardshuffle=False).map(lambda s: s["__key__"]).mcached()
        self.assertEqual(list(kept), list(kept))
        self.assertEqual(len(kept.stage(2).cached), 16)

    def test_decoders(self):
        with mr.ShardWriter("packed-%d.tar") as out:
            for i in range(3):
                out.write({"__key__": f"p{i}", "txt.gz": gzip.compress(b"text"), "x.gz": gzip.compress(b"bytes"), "cls": i, "y": b"y"})

        def told(key, data):
            return (key, len(data)) if key in (".y", ".x") else None
        self.both(
            "packed-0.tar",
            lambda w, d: d.decode(told), lambda w, d: d.decode(told, only="y cls"), lambda w, d: d.decode(only=["cls"]),
            lambda w, d: d.decode(pre=[]), lambda w, d: d.decode(post=[]), lambda w, d: d.decode(told, post=[told]),
            lambda w, d: d.decode(w.handle_extension("y", len), w.handle_extension("cls", len)),
            lambda w, d: d.decode(lambda key, data: w.Continue(".cls", b"7") if key == ".y" else None),
            lambda w, d: d.map(w.Decoder([w.gzfilter, told])))
        for w in (wds, original):
            with self.assertRaises(w.DecodingError) as raised:
                list(w.WebDataset("packed-0.tar", shardshuffle=False).decode(lambda key, data: 1 // 0))
            self.assertEqual((raised.exception.key, raised.exception.k), ("p0", next(k for k in raised.exception.sample if k[0] != "_")))
            self.assertIsInstance(raised.exception.__cause__, ZeroDivisionError)
            with self.assertRaises(w.DecodingError):
                list(w.WebDataset("packed-0.tar", shardshuffle=False).rename(cls="y").decode())
            batch, = w.DataPipeline(lambda: iter([(1, "a"), (2, "b")]), w.batched(2))
            self.assertIsInstance(batch, tuple)

    @unittest.skipUnless(optional("PIL"), "no Pillow in this Python")
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

    def test_batches_of_what_does_not_fit(self):
        def batches(items, **options):
            return list(wds.DataPipeline(lambda: iter(items), wds.batched(4, **options)))
        a, b = numpy.zeros((4, 5, 3), "u1"), numpy.zeros((4, 6, 3), "u1")
        hint = r"; resize or crop them to one size by \.map\(\) before \.batched\(\), or give it a collation_fn \(None: lists\)"
        of_tuples = r"a batch of arrays of different shapes in place 1 of its tuples: \(4, 5, 3\), \(4, 6, 3\)" + hint
        with self.assertRaisesRegex(mr.UsageError, of_tuples):
            batches([(0, a), (1, a), (2, b)])
        with self.assertRaisesRegex(mr.UsageError, r"in field 'jpg': \(4, 5, 3\), \(4, 6, 3\)" + hint):
            batches([{"jpg": a}, {"jpg": b}])
        with self.assertRaisesRegex(mr.UsageError, r": \(0,\), \(1,\), \(2,\), \(3,\) and 1 more;"):
            list(wds.DataPipeline(lambda: ((numpy.zeros(i),) for i in range(5)), wds.batched(5)))
        for wrong in ([(a, 1), (a,)], [{"x": 1}, {"y": 1}], [{"x": 1}, {"x": 1, "y": 1}], [(1,), {0: 1}]):
            with self.assertRaisesRegex(mr.UsageError, "a batch of items with different fields: "):
                batches(wrong)
        with self.assertRaisesRegex(mr.UsageError, "a batch of items of type int, not tuples or dicts"):
            batches([1, 2])
        self.assertEqual(batches([(0, a), (1, b)], collation_fn=None), [[(0, a), (1, b)]])
        self.assertEqual(plain(batches([(0, a), (1, a)])), plain([(numpy.arange(2), numpy.stack([a, a]))]))
        for wrong in ([([1, 2], [1])], [{"x": [1], "y": [1, 2]}]):
            with self.assertRaisesRegex(mr.UsageError, "of a batch whose fields have "):
                list(wds.DataPipeline(lambda: iter(wrong), wds.unbatched()))

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
        last = list(wds.RandomMix([b, a, b], probs=[0, 0.5, 0], longest=True))
        self.assertEqual(last, ["a"] * 100 + ["b"] * 200)  # as there
        self.assertEqual(list(wds.RandomMix([a, b], probs=(1, 0))), ["a"] * 100)
        for probs, why in (([0.5], "of 2 data sets with 1 probs; give one number"), ([1, 2, 3], "of 2 data sets with 3 probs"),
                           ([1, -1], r"probs\[1\] of RandomMix is -1; give numbers from 0 on"), ([float("nan"), 1], r"probs\[0\]"),
                           ([0, 0], "are all 0; give a number above 0")):
            with self.assertRaisesRegex(mr.UsageError, why):
                wds.RandomMix([a, b], probs)
        with self.assertRaisesRegex(mr.UsageError, "p of rsample is 50; p of rsample takes 0 to 1"):
            a.rsample(50)

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

    def test_errors_are_of_the_classes_that_programs_catch(self):
        with open("train-000000.tar", "rb") as whole, open("cut.tar", "wb") as cut:
            cut.write(whole.read()[:5000])
        with self.assertRaises(tarfile.ReadError) as raised:
            list(wds.WebDataset("cut.tar", shardshuffle=False))
        self.assertIsInstance(raised.exception, mr.errors.TruncatedError)
        self.assertIn("cut.tar", raised.exception.url)
        met = []
        list(wds.WebDataset("cut.tar", shardshuffle=False, handler=lambda e: met.append(e) or True))
        self.assertIsInstance(met[0], tarfile.ReadError)
        shards = wds.SimpleShardList(["cut.tar", "train-000001.tar"])
        for handler, count in ((wds.ignore_and_continue, 100), (wds.ignore_and_stop, 0)):
            for stages in ([], [lambda items: items]):  # by the engine, and one shard after the other
                data = wds.DataPipeline(shards, *stages, wds.tarfile_to_samples(handler))
                self.assertEqual(len([s for s in data if s["__url__"] == "train-000001.tar"]), count, stages)

    def test_variables_that_are_no_numbers_are_named(self):
        with unittest.mock.patch.dict(os.environ, {"WDS_SEED": "x", "RANK": "y", "WORLD_SIZE": "2", "WORKER": "0", "NUM_WORKERS": ""}):
            with self.assertRaisesRegex(mr.BadSettingError, "WDS_SEED is 'x'; give a whole number"):
                wds.WebDataset(URLS, nodesplitter=wds.split_by_node)
            with self.assertRaisesRegex(mr.BadSettingError, "RANK is 'y'"):
                wds.utils.pytorch_worker_info()
            os.environ["RANK"] = "0"
            with self.assertRaisesRegex(mr.BadSettingError, "NUM_WORKERS is ''"):
                wds.utils.pytorch_worker_info()

    def test_a_command_that_is_not_allowed_is_told_as_the_engine_does(self):
        with self.assertRaisesRegex(mr.NotAllowedError, "; set MILLRACE_ALLOW_PIPE=1 where you trust it") as raised:
            wds.TarWriter("pipe:cat > x.tar")
        self.assertEqual((raised.exception.exit_code, raised.exception.hint), (4, "set MILLRACE_ALLOW_PIPE=1 where you trust it"))

    def test_loops_within_loops(self):
        data = wds.WebDataset("train-000000.tar", shardshuffle=False).map(lambda s: s["__key__"])
        keys = list(data)
        self.assertEqual([(a, b) for a, b in zip(data, data)], list(zip(keys, keys)))
        self.assertEqual(sorted(wds.RoundRobin([data, data])), sorted(keys + keys))
        half = iter(data)
        next(half)
        self.assertEqual(list(data), keys)
        self.assertEqual(list(half), keys[1:])

    @needs_torch
    def test_more_workers_than_shards(self):
        import torch
        data = wds.DataPipeline(wds.SimpleShardList("train-{000000..000001}.tar"), wds.split_by_worker, wds.tarfile_to_samples(),
                                wds.map(lambda s: s["__key__"]))
        self.assertEqual(len(set(torch.utils.data.DataLoader(data, batch_size=None, num_workers=3))), 200)
        mixed = wds.RandomMix([data, data], longest=True)
        self.assertEqual(len(list(torch.utils.data.DataLoader(mixed, batch_size=None, num_workers=3))), 400)
        stepwise = wds.DataPipeline(wds.SimpleShardList("train-{000000..000001}.tar"), lambda items: items, wds.split_by_worker,
                                    wds.tarfile_to_samples(), wds.map(lambda s: s["__key__"]))
        self.assertEqual(len(list(torch.utils.data.DataLoader(stepwise, batch_size=None, num_workers=3))), 200)
        checked = wds.WebDataset("train-000000.tar", shardshuffle=False)
        with self.assertRaises(ValueError):
            list(torch.utils.data.DataLoader(checked, batch_size=None, num_workers=2))

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

    def test_modules_have_the_names_of_theirs(self):
        for name in ("autodecode.ImageHandler", "filters.default_collation_fn", "handlers.warn_and_continue", "mix.RandomMix",
                     "shardlists.expand_urls", "tenbin.encode_buffer", "utils.pytorch_worker_info", "writer.TarWriter"):
            module, what = name.split(".")
            self.assertTrue(callable(getattr(importlib.import_module(f"millrace.webdataset.{module}"), what)), name)
            self.assertIs(getattr(wds, module), sys.modules[f"millrace.webdataset.{module}"])
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
        for call in (lambda: wds.tarfile_to_samples(select_files=len), lambda: wds.WebDataset(URLS, select_files=len),
                     lambda: wds.TarWriter("http://host/a.tar"), lambda: wds.shardspec("a.yaml"),
                     lambda: wds.WebDataset(URLS, nodesplitter=len), lambda: wds.WebLoader(data, shuffle=True)):
            with self.assertRaisesRegex(mr.UnsupportedError, "is not offered; write "):
                call()
        for name in ("gopen", "wids", "torch_loads"):
            with self.assertRaisesRegex(AttributeError, "is not offered; write "):
                getattr(wds, name)


if __name__ == "__main__":
    unittest.main()
