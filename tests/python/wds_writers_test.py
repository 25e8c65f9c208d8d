"""millrace.webdataset's writers, against webdataset's where it is installed."""

import gzip
import io
import os
import pathlib
import shutil
import sys
import tarfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import Case, mr, optional  # noqa: E402

wds, original, numpy = (optional(name) for name in ("millrace.webdataset", "webdataset", "numpy"))


@unittest.skipUnless(original, "no webdataset in this Python")
class Writers(Case):
    def test_writers(self):
        sample = {"__key__": "a/b", "txt": "t", "cls": 3, "json": {"x": 1}, "npy": numpy.arange(3), "bin": b"\1"}
        for make in (lambda: wds.TarWriter("one.tar"), lambda: wds.ShardWriter("many-%d.tar", maxcount=1)):
            with make() as out:
                out.write(sample)
        for name in ("one.tar", "many-0.tar"):
            read, = original.WebDataset(name, shardshuffle=False).decode()
            self.assertEqual((read["__key__"], read["txt"], read["cls"], read["json"], read["bin"], read["npy"].tolist()),
                             ("a/b", "t", 3, {"x": 1}, b"\1", [0, 1, 2]))

    def test_what_cannot_be_encoded_names_its_field_and_its_sample(self):
        wrong = ({"txt": None}, {"json": {1, 2}}, {"json": {"n": numpy.int64(1)}}, {"txt": "\ud800"}, {"pyd": lambda: 0}, {"cls": object()})
        for made in wds.TarWriter("wrong.tar"), wds.ShardWriter("wrong-%d.tar"), mr.ShardWriter("mine-%d.tar"):
            with made as out:
                for fields in wrong[:-1] if made.__module__.endswith("webdataset.writer") else wrong:
                    with self.assertRaisesRegex(mr.Error, rf"'{next(iter(fields))}'.*key k7"):
                        out.write({"__key__": "k7", **fields})
                out.write({"__key__": "good", "cls": numpy.int64(3)})
        for shard in "wrong.tar", "wrong-0.tar", "mine-0.tar":
            self.assertEqual([(s["__key__"], s["cls"]) for s in mr.samples(shard)], [("good", b"3")])
        with self.assertRaisesRegex(mr.UsageError, "'txt.gz' .*not compressed, key a; compress it"):
            mr.ShardWriter("gz-%d.tar").write({"__key__": "a", "txt.gz": "text"})
        with self.assertRaisesRegex(mr.UsageError, "__key__ is .*half a character at 1"):
            mr.ShardWriter("half-%d.tar").write({"__key__": "a\ud800", "txt": "a"})
        for wrong_name in ({"__key__": b"k", "txt": "a"}, {"txt": "a"}, {"__key__": "k", 5: "a"}):
            with self.assertRaises(mr.UsageError), wds.TarWriter("names.tar") as out:
                out.write(wrong_name)

    def test_arguments_are_looked_at_before_the_file(self):
        pathlib.Path("kept.tar").write_bytes(b"kept")
        for options in ({"compress": "zst"}, {"format": "tar"}, {"format": 77}, {"encoder": "3"}):
            with self.assertRaisesRegex(mr.UsageError, f"{next(iter(options))} is "):
                wds.TarWriter("kept.tar", **options)
        self.assertEqual(pathlib.Path("kept.tar").read_bytes(), b"kept")
        with self.assertRaisesRegex(mr.UsageError, "post is '3'"):
            wds.ShardWriter("kept-%d.tar", post="3")

    def test_threads_share_a_writer(self):
        for make in (lambda: wds.TarWriter("threads.tar")), (lambda: wds.ShardWriter("threads-%d.tar", maxcount=50)):
            with make() as out:
                def write(of, out=out):
                    for i in range(100):
                        out.write({"__key__": f"k{of}-{i:03}", "a": b"a", "b": b"b" * i})
                threads = [threading.Thread(target=write, args=(of,)) for of in range(4)]
                for one in threads:
                    one.start()
                for one in threads:
                    one.join()
            if isinstance(out, wds.ShardWriter):
                self.assertEqual((out.fname, out.count, out.total), ("threads-7.tar", 50, 400))
        for shards in "threads.tar", "threads-{0..7}.tar":
            got = [(s["__key__"], len(s["a"]), len(s["b"])) for s in mr.samples(shards)]
            self.assertEqual(sorted(got), [(f"k{of}-{i:03}", 1, i) for of in range(4) for i in range(100)])

    def test_a_generator_that_is_left_completes_its_shard(self):
        def rows():
            with mr.ShardWriter("left-off-%d.tar") as out:
                for i in range(10):
                    out.write({"__key__": f"k{i}", "txt": "x"})
                    yield i
        for i in rows():
            if i == 4:
                break
        self.assertEqual(sum(1 for _ in mr.samples("left-off-0.tar")), 5)

    def test_views_are_written_whole(self):
        numbers = memoryview(numpy.arange(3, dtype="i4"))
        for out in wds.TarWriter("views.tar", encoder=False), wds.ShardWriter("views-%d.tar", encoder=False):
            with out:
                out.write({"__key__": "a", "bin": numbers})
                self.assertEqual(getattr(out, "size", 12), 12)
        for name in "views.tar", "views-0.tar":
            self.assertEqual(next(iter(mr.samples(name)))["bin"], bytes(numbers))

    def test_shards_are_counted_as_there(self):
        for options in ({"maxcount": 4}, {"maxsize": 30}, {"maxcount": 2.5, "start_shard": 3}, {"maxsize": float("inf")}):
            told = []
            for w, folder in ((wds, "ours"), (original, "theirs")):
                shutil.rmtree(folder, ignore_errors=True)
                os.makedirs(folder)
                posted, now = [], []
                out = w.ShardWriter(f"{folder}/c-%d.tar", post=posted.append, verbose=0, mtime=0, compress=False, **options)
                for i in range(9):
                    out.write({"__key__": f"k{i}", "txt": "x" * 10, "cls": i})
                    now.append((out.fname, out.shard, out.count, out.size, out.total, len(posted)))
                out.close()
                told.append([out.total, out.fname, now, posted])
            self.assertEqual(str(told[0]), str(told[1]).replace("theirs", "ours"), options)
        as_it_is = {"user": "bigdata", "mode": 0o444, "mtime": None, "format": "USTAR_FORMAT"}
        with wds.ShardWriter("c-{10..19}.tar", maxcount=1, start_shard=2, **as_it_is) as out:
            for key in "ab":
                out.write({"__key__": key, "txt": "x"})
            self.assertEqual((out.fname, out.shard), ("c-13.tar", 4))
        self.assertEqual(out.fname, "c-13.tar")
        self.assertTrue(os.path.exists(out.fname))
        posted = []
        shutil.copy("c-13.tar", "older-1.tar")
        with self.assertRaisesRegex(mr.UsageError, "1 shard of an older run"), wds.ShardWriter("older-%d.tar", post=posted.append) as out:
            out.write({"__key__": "a", "txt": "x"})
        self.assertEqual(posted, ["older-0.tar"])

    def test_what_a_writer_of_shards_does_not_offer(self):
        for pattern, options, line in (
                ("a-%03d.tar", {"mtime": 5}, "wds.TarWriter('a-000.tar', mtime=5)"), ("a-%d.tar.gz", {}, "wds.TarWriter('a-0.tar.gz')"),
                ("a-{10..12}.tgz", {"mode": 0o600}, "wds.TarWriter('a-10.tgz', mode=384)"),
                ("a-%d.tar", {"opener": lambda name: open(name, "wb"), "compress": "xz"},
                 "opener('a-0.tar') as stream, wds.TarWriter(stream, compress='xz')")):
            with self.assertRaises(mr.UnsupportedError) as raised:
                wds.ShardWriter(pattern, **options)
            self.assertIn(f"is not offered; write `with {line} as out:` for each shard", str(raised.exception))
            exec(f"with {line} as out:\n out.write({{'__key__': 'a', 'txt': 'x'}})", {"wds": wds, **options})
            with tarfile.open(line.split("'")[1]) as tar:
                self.assertEqual(tar.getnames(), ["a.txt"])
        with self.assertRaisesRegex(TypeError, "has no argument 'max_count'; did you mean 'maxcount'?"):
            wds.ShardWriter("a-%d.tar", max_count=3)
        with self.assertRaisesRegex(mr.UsageError, "maxsize is nan; give a whole number"):
            wds.ShardWriter("a-%d.tar", maxsize=float("nan"))
        with wds.ShardWriter("none-%d.tar") as out:
            with self.assertRaisesRegex(AttributeError, "next_stream of webdataset is not offered; write `with wds.TarWriter"):
                out.next_stream()
            with self.assertRaisesRegex(AttributeError, "'ShardWriter' object has no attribute 'nosuch'"):
                out.nosuch

    def test_names_of_any_length(self):
        names = ["a", "k" * 96, "k" * 97, "k" * 200, "d/" * 60 + "x", "d/" * 300 + "x", "\u043a" * 48, "\u043a" * 49, "\u043a" * 400]
        with wds.TarWriter("names.tar") as out, wds.TarWriter("old.tar", mtime=-1, format="USTAR_FORMAT") as old:
            for name in names:
                out.write({"__key__": name, "txt": name})
                with self.assertRaisesRegex(mr.UsageError, "write another '__key__'"):
                    out.write({"__key__": name, "bin": b"", "txt\ud800": b""})  # nothing of it
            old.write({"__key__": names[-1], "txt": "x"})
        for read in (wds, original):
            got = list(read.WebDataset("names.tar", shardshuffle=False).decode())
            self.assertEqual([(s["__key__"], s["txt"], len(s.keys() - {"__local_path__"})) for s in got], [(n, n, 3) for n in names])
        with tarfile.open("old.tar") as tar:
            self.assertEqual([(m.name, m.mtime) for m in tar], [(names[-1] + ".txt", -1)])
        short, wanted = [n for n in names if len(n.encode()) <= 96] + [names[4]], io.BytesIO()
        with wds.TarWriter("short.tar") as out, tarfile.open(fileobj=wanted, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
            for name in short:
                out.write({"__key__": name, "txt": name})
                member = tarfile.TarInfo(name + ".txt")
                member.size, member.mode, member.uname, member.gname = len(name.encode()), 0o444, "bigdata", "bigdata"
                tar.addfile(member, io.BytesIO(name.encode()))
        with open("short.tar", "rb") as file:
            self.assertEqual(file.read(), wanted.getvalue())

    @unittest.skipUnless(optional("PIL"), "no Pillow in this Python")
    def test_encoders(self):
        pixels = numpy.arange(48, dtype="u1").reshape(4, 4, 3)
        sample = {"__key__": "a", "ten": [numpy.arange(3.0), numpy.zeros((0, 2), "f4")], "tb": numpy.arange(6, dtype="u4")[:4],
                  "pyd": {"x": 1}, "txt.gz": "text", "bin.gz": b"b", "json.gz": [1], "html": "<p>", "png": pixels,
                  "ppm": pixels / 255, "npz": {"a": numpy.arange(2)}, "_meta": "kept", "__rest__": "left"}
        if "uint32" not in original.tenbin.long_to_short:  # misspelt there
            del sample["tb"]
        contents = []
        for w in (wds, original):
            with w.TarWriter("encoded.tar", mtime=0, keep_meta=True) as out:
                out.write(sample)
            with tarfile.open("encoded.tar") as tar:
                contents.append({m.name: tar.extractfile(m).read() for m in tar})
        self.assertEqual(contents[0].keys(), contents[1].keys())
        for name, content in contents[0].items():
            theirs = contents[1][name]
            if name.endswith(".gz"):  # its head has the time
                content, theirs = gzip.decompress(content), gzip.decompress(theirs)
            if not name.endswith((".npz", ".ppm")):  # a time as well; rounded here, cut off there
                self.assertEqual(content, theirs, name)
        for w in (wds, original):
            with w.TarWriter("own.tar.bz2", encoder={"cls": lambda x: b"own"}, mtime=0) as out:
                out.write({"__key__": "a", "cls": 1})
            with w.TarWriter("function.tar", encoder=lambda s: {**s, "cls": b"made"}, compress=True) as out:
                out.write({"__key__": "a", "cls": 1})
            for name, wanted in (("own.tar.bz2", b"own"), ("function.tar", b"made")):
                self.assertEqual([s["cls"] for s in wds.WebDataset(name, shardshuffle=False)], [wanted])
            for wrong in ({"cls": 1}, {"__key__": "a", "png": pixels * 2.0}):
                with self.assertRaises(ValueError), w.TarWriter("wrong.tar") as out:
                    out.write(wrong)
        arrays, infos = wds.tenbin.decode_buffer(original.tenbin.encode_buffer(sample["ten"], ["a", "b"]), infos=True)
        self.assertEqual(([a.shape for a in arrays], infos), ([(3,), (0, 2)], ["a", "b"]))
        for wrong in (b"x" * 64, wds.tenbin.encode_buffer([arrays[0]])[:90], wds.tenbin.encode_buffer([arrays[0]])[:80]):
            with self.assertRaises(ValueError):
                wds.tenbin.decode_buffer(wrong)


if __name__ == "__main__":
    unittest.main(verbosity=2)
