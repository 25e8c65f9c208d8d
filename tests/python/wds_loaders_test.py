"""millrace.webdataset's WebLoader, against torch's DataLoader where it is installed."""

import collections
import io
import pathlib
import sys
import threading
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, URLS, Case, mr, needs_torch, optional, plain  # noqa: E402

wds, original, numpy = (optional(name) for name in ("millrace.webdataset", "webdataset", "numpy"))


class Loaders(Case):
    def test_loops_at_once_over_a_loader_are_refused(self):
        data = wds.WebDataset(URLS, shardshuffle=False).map(lambda s: s["__key__"])
        for loops in (data, wds.WebLoader(data, batch_size=None), wds.WebLoader(data, batch_size=None).with_epoch(1000)):
            first = iter(loops)
            next(first)
            second = iter(loops)
            next(second)
            if loops is data:  # each has a reader of its own, as there
                self.assertEqual(len(list(first)), 399)
            elif loops.nsamples < 0:
                with self.assertRaisesRegex(mr.UsageError, "another loop over this .* has begun"):
                    list(first)
            self.assertEqual(len(list(second)), 399 if loops.nsamples < 0 else 999)

    def test_an_iterator_that_is_not_asked_has_no_thread(self):
        before = threading.active_count()
        for _ in range(5):
            iter(wds.WebLoader(wds.WebDataset(URLS, shardshuffle=False), batch_size=None))
        self.assertEqual(threading.active_count(), before)

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

    @unittest.skipUnless(original and HAS_TORCH, "no webdataset or no torch in this Python")
    def test_a_loader_gives_what_that_of_torch_gives(self):
        def typed(item):
            if isinstance(item, dict):
                return {k: typed(v) for k, v in item.items()}
            if isinstance(item, (list, tuple)):
                return type(item), [typed(v) for v in item]
            return type(item), plain(item)
        with mr.ShardWriter("numbers-%d.tar", overwrite=True) as out:
            for i in range(10):
                npy = io.BytesIO()
                numpy.save(npy, numpy.arange(i, i + 3, dtype="f4"))
                out.write({"__key__": f"t{i:03}", "txt": f"text {i}", "cls": i, "npy": npy.getvalue()})
        chains = {"tuples": lambda d: d.to_tuple("npy", "cls", "txt"), "batches": lambda d: d.to_tuple("npy", "cls", "txt").batched(4),
                  "dicts": lambda d: d.map(lambda s: {k: s[k] for k in ("npy", "cls", "txt")}),
                  "dicts in batches": lambda d: d.map(lambda s: {k: s[k] for k in ("npy", "cls")}).batched(4),
                  "lists as batches": lambda d: d.to_tuple("npy", "cls").listed(4), "bytes": lambda d: d.map(lambda s: s["txt"].encode())}
        for name, chain in chains.items():
            for options in ({"batch_size": None}, {}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True},
                            {"batch_size": 4, "collate_fn": len}, {"batch_size": None, "collate_fn": type}):
                if "batch" in name and options.get("batch_size", 1):
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("error", UserWarning)
                    made = [[typed(i) for i in w.WebLoader(chain(w.WebDataset("numbers-0.tar", shardshuffle=False).decode()), **options)]
                            for w in (wds, original)]
                self.assertEqual(made[0], made[1], (name, options))
                self.assertTrue(made[0])

    @needs_torch
    def test_what_a_loader_makes_stays_as_it_is(self):
        pair = collections.namedtuple("pair", "a b")
        with wds.WebLoader([1, 2, 3], batch_size=2, collate_fn=lambda items: {"items": items}, pin_memory=True) as loader:
            self.assertEqual(list(loader), [{"items": [1, 2]}, {"items": [3]}])
        with unittest.mock.patch("torch.cuda.is_available", lambda: True), \
                wds.WebLoader([pair(1, 2)], batch_size=None, pin_memory=True) as loader:
            self.assertEqual(list(loader), [pair(1, 2)])
        with wds.WebLoader([1, 2, 3], batch_size=None, collate_fn=lambda item: None) as loader:
            self.assertEqual(list(loader), [None] * 3)

    def test_a_loop_is_of_the_process_that_began_it(self):
        out, _ = self.run_program("""
            import millrace.webdataset as wds
            loop = iter(wds.WebLoader(range(100), batch_size=None, prefetch_factor=1))
            next(loop)
            if not os.fork():
                try:
                    list(loop)
                except mr.UsageError as e:
                    print(e, flush=True)
                os._exit(0)
            os.wait()
            """)
        self.assertIn("the thread of this loop is in the process that was forked; begin a loop in each process", out)

    def test_the_length_of_a_loader(self):
        def length(batch_size, drop_last=False):
            return len(wds.WebLoader(range(10), batch_size=batch_size, collate_fn=len, drop_last=drop_last))
        self.assertEqual([length(None), length(1), length(4), length(4, True)], [10, 10, 3, 2])
        loader = wds.WebLoader(range(10), batch_size=4, collate_fn=list)
        self.assertEqual(len(loader.with_length(7)), 7)
        for unknown in (loader.unlisted(), loader.with_epoch(5), loader.repeat(2)):
            with self.assertRaisesRegex(TypeError, r"set it by with_length\(n\)"):
                len(unknown)
        with self.assertRaisesRegex(mr.UsageError, r"drop_last=True\); write .batched\(64, partial=False\)"):
            length(None, True)

    def test_a_loader_without_torch(self):
        out, _ = self.run_program(f"""
            sys.modules["torch"] = None  # as where it is not installed
            import millrace.webdataset as wds
            data = wds.WebDataset({URLS!r}, shardshuffle=False).decode("rgb8").to_tuple("jpg", "cls").batched(40)
            for images, labels in wds.WebLoader(data, batch_size=None):
                pass
            print(type(images).__name__, type(labels).__name__)
            print(next(iter(wds.WebLoader([1, 2, 3], batch_size=2, collate_fn=sum))))
            try:
                wds.WebLoader(data)
            except mr.UsageError as e:
                print(e)
            """)
        self.assertEqual(out.splitlines()[:2], ["ndarray ndarray", "3"])
        self.assertRegex(out.splitlines()[2], r"^usage: WebLoader\(batch_size=1\) without torch, which collates; give batch_size=None, ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
