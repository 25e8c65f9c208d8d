"""millrace.IndexedDataset, millrace.ShardWriter, and the command line tools of the package."""

import ast
import inspect
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import PACKAGES, URLS, Case, harness, mr  # noqa: E402

if mr:
    from millrace import _core


class Indexed(Case):
    def test_samples_by_number_and_key(self):
        wanted = list(mr.samples(URLS, shuffle_shards=False, lanes=-1))
        with mr.IndexedDataset("train.json") as data:
            self.assertEqual(len(data), 400)
            for i in (0, 1, 99, 100, 399, -1, -400):
                self.assertEqual(data[i], wanted[i])
            for sample in wanted[::57]:
                self.assertEqual(data[sample["__key__"]], sample)
                self.assertEqual(wanted[data.find(sample["__key__"], "jpg")], sample)
            self.assertEqual(list(data), wanted)
            for wrong in (400, -401):
                with self.assertRaises(IndexError):
                    data[wrong]
            for wrong in ("nothing", ""):
                with self.assertRaises(KeyError):
                    data[wrong]
            with self.assertRaises(TypeError):
                data[1.5]
            again = pickle.loads(pickle.dumps(data))
        self.assertEqual(again[7], wanted[7])
        with self.assertRaisesRegex(mr.UsageError, "closed"):
            data[0]

    def test_what_is_neither_number_nor_key_is_refused(self):
        data = mr.IndexedDataset("train.json")
        for which, instead in ((slice(1, 3), r"range\(\*s.indices\(len\(ds\)\)\)"), (None, r"ds\[3\] or ds\['"), (1.5, r"not by 1.5: write ds\[3\]"),
                               (True, "not by True"), (b"key", "not by b'key'"), ([1, 2], r"not by \[1, 2\]")):
            with self.assertRaisesRegex(TypeError, instead):
                data[which]
        s = slice(-3, None)
        self.assertEqual([data[i]["__key__"] for i in range(*s.indices(len(data)))], [data[i]["__key__"] for i in (397, 398, 399)])
        for key in 3, None, b"key":
            with self.assertRaisesRegex(TypeError, r"the key is .*: give a text.*ds\[number\]"):
                data.find(key)
        with self.assertRaisesRegex(mr.UsageError, "first is 5; give a text"):
            data.find("key", 5)
        key = data[7]["__key__"]
        self.assertEqual((data.find(key, "JPG"), data.find(key)), (7, 7))
        self.assertEqual((key in data, "7" in data, 7 in data), (True, False, False))

    def test_errors(self):
        with self.assertRaises(mr.NotFoundError):
            len(mr.IndexedDataset("nowhere.json"))
        (self.folder / "wrong.json").write_text("{}")
        with self.assertRaises(mr.BadIndexError):
            len(mr.IndexedDataset("wrong.json"))
        done = harness.run("millrace", "index", "train-*.tar", "-o", "plain.json", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        plain = mr.IndexedDataset("plain.json")
        self.assertEqual(plain[3]["__key__"], mr.IndexedDataset("train.json")[3]["__key__"])
        with self.assertRaisesRegex(mr.UnsupportedError, "--offsets"):
            plain.find("0")


class Writer(Case):
    def test_what_it_writes_is_read(self):
        samples = [{"__key__": f"k{i}", "txt": f"t{i}", "cls": i, "json": {"i": [i]}, "bin": bytes([i])} for i in range(5)]
        with mr.ShardWriter("out-%d.tar", max_count=2) as out:
            for s in samples:
                out.write(s)
        self.assertEqual([(s["path"], s["samples"]) for s in out.shards], [("out-0.tar", 2), ("out-1.tar", 2), ("out-2.tar", 1)])
        read = list(mr.samples("out-{0..2}.tar", shuffle_shards=False, lanes=-1))
        self.assertEqual([s["__key__"] for s in read], [s["__key__"] for s in samples])
        for before, after in zip(samples, read):
            self.assertEqual({k: mr.decode_field(k, after[k]) for k in ("txt", "cls", "json", "bin")},
                             {k: before[k] for k in ("txt", "cls", "json", "bin")})

    def test_threads_write_at_once(self):
        wanted = {f"t{t}-{i}": bytes([t]) * 5000 for t in range(6) for i in range(200)}
        failed = []
        with mr.ShardWriter("threads-%d.tar", max_count=50) as out:
            def write(t):
                try:
                    for i in range(200):
                        out.write({"__key__": f"t{t}-{i}", "bin": wanted[f"t{t}-{i}"]})
                        out.shards
                except Exception as e:
                    failed.append(e)
            threads = [threading.Thread(target=write, args=(t,)) for t in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((failed, len(out.shards)), ([], 24))
        self.assertEqual({s["__key__"]: s["bin"] for s in mr.samples("threads-{0..23}.tar")}, wanted)

    def test_refuses_what_readers_would_not_read(self):
        out = mr.ShardWriter("refused-%d.tar")
        self.addCleanup(out.close)
        for wrong in ({"txt": "x"}, {"__key__": "a.b", "txt": "x"}, {"__key__": "a"}, {"__key__": "a", "npy": object()},
                      {"__key__": "a", "json": [float("nan")]}, {"__key__": "a", "txt": "\ud800"}):
            with self.assertRaises(mr.UsageError):
                out.write(wrong)
        with self.assertRaises(ValueError), mr.ShardWriter("broken-%d.tar") as broken:
            broken.write({"__key__": "a", "txt": "x"})
            raise ValueError
        self.assertFalse((self.folder / "broken-0.tar").exists())


class Tools(Case):
    def test_the_package_brings_the_programs(self):
        done = subprocess.run([sys.executable, "-m", "millrace", "ls", "train-000000.tar"], cwd=self.folder, text=True,
                              capture_output=True, env=harness.CLEAN | {"PYTHONPATH": PACKAGES})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 100)
        done = subprocess.run([sys.executable, "-m", "millrace", "ls", "nowhere.tar"], cwd=self.folder, text=True,
                              capture_output=True, env=harness.CLEAN | {"PYTHONPATH": PACKAGES})
        self.assertEqual(done.returncode, 4)

    def test_help_says_what_a_user_asks(self):
        for thing in (mr, mr.ImageLoader, mr.samples, mr.IndexedDataset, mr.ShardWriter, mr.Augment, mr.skip, mr.Batch):
            self.assertGreater(len(thing.__doc__.split()), 30, thing)

    def test_arguments_that_are_wrong_are_named(self):
        wrong = {"pattern is 5": lambda: mr.ShardWriter(5), "max_count is 10000.0": lambda: mr.ShardWriter("a-%d.tar", max_count=1e4),
                 "max_size is 0": lambda: mr.ShardWriter("a-%d.tar", max_size=0), "index is 5": lambda: mr.IndexedDataset(5),
                 "start_shard is '1'": lambda: mr.ShardWriter("a-%d.tar", start_shard="1"),
                 "cache is 5": lambda: mr.IndexedDataset("train.json", cache=5), "cache is 6": lambda: mr.samples(URLS, cache=6),
                 "report is 5": lambda: mr.samples(URLS, on_error=mr.skip(report=5)),
                 "shards is a set, whose order .*; give a list: sorted": lambda: mr.samples({"train-000000.tar"}),
                 "shards is a dict; give a path": lambda: mr.samples({"a": 1}),
                 "'cls', a str.; give an extension and its bytes": lambda: mr.decode_field("cls", "7")}
        for said, call in wrong.items():
            with self.assertRaisesRegex(mr.UsageError, said):
                call()

    def test_each_kind_of_error_has_a_class_and_a_stub(self):
        stubs = (harness.ROOT / "python/millrace/errors.pyi").read_text()
        for kind in _core.kinds():
            name = "".join(p.capitalize() for p in kind.split("_")) + "Error"
            self.assertEqual(getattr(mr, name).kind, kind)
            self.assertIn(f"\nclass {name}(Error", stubs)

    def test_stubs_name_the_arguments_that_may_be_named(self):
        stubs = ast.parse((harness.ROOT / "python/millrace/errors.pyi").read_text())
        ours = {f.name: [a.arg for a in f.args.args + f.args.kwonlyargs] for f in stubs.body if isinstance(f, ast.FunctionDef)}
        for name, arguments in ours.items():
            self.assertEqual(arguments, list(inspect.signature(getattr(mr.errors, name)).parameters), name)
        core = ast.parse((harness.ROOT / "python/millrace/_core.pyi").read_text())
        owners = [(_core, core.body), *((getattr(_core, c.name), c.body) for c in core.body if isinstance(c, ast.ClassDef))]
        for owner, body in owners:
            for f in (f for f in body if isinstance(f, ast.FunctionDef)):
                signature = getattr(owner, f.name).__doc__.partition("\n")[0]
                named = [a.arg for a in f.args.args if a.arg != "self"]
                self.assertEqual("/)" in signature, bool(f.args.posonlyargs), (owner, f.name))
                for name in named:
                    self.assertRegex(signature, rf"\b{name}: ", (owner, f.name))

    def test_errors_of_python_have_what_those_of_the_engine_have(self):
        with mr.ShardWriter("no-image-%d.tar") as out:
            for key in "ab":
                out.write({"__key__": key, "jpg": b"no image", "cls": 1})
        (self.folder / "no.tar").write_bytes(b"no archive" * 100)
        engine = {"usage": lambda: _core.check_epoch("x"), "not_found": lambda: _core.read_object("nowhere"), "stopped": None,
                  "bad_field": lambda: mr.decode_field("cls", b"x"), "bad_state": lambda: _core.check_state("{"),
                  "bad_index": lambda: len(mr.IndexedDataset("train-000000.tar")), "bad_archive": lambda: list(mr.samples("no.tar")),
                  "bad_image": lambda: list(mr.samples("no-image-0.tar", decode=True)),
                  "no_memory": lambda: list(mr.ImageLoader("train-000000.tar", 4, memory="1MiB")),
                  "too_many_skipped": lambda: list(mr.ImageLoader("no-image-0.tar", 1, on_error=mr.skip(1))),
                  "missing_field": lambda: list(mr.samples("train-000000.tar").join({"x": {"a": "b"}})),
                  "not_allowed": lambda: list(mr.samples("pipe:cat x", allow_pipe=False))}
        for kind, raises in engine.items():
            ours = mr.errors.error(kind, "what happened", url="s3://me:secret@b/a.tar?sig=1", key="k", hint="do this")
            self.assertEqual((ours.url, ours.key, ours.hint), ("s3://b/a.tar?...", "k", "do this"))
            self.assertEqual(str(ours), f"{kind}: what happened, at s3://b/a.tar?..., key k; do this")
            if raises is None:
                continue
            with self.assertRaises(mr.Error) as caught:
                raises()
            theirs = caught.exception
            self.assertEqual((type(ours), ours.kind, ours.exit_code), (type(theirs), theirs.kind, theirs.exit_code))
        self.assertEqual(mr.NotFoundError.exit_code, 4)
        text = (harness.ROOT / "engine/base/error.cc").read_text()  # of the kinds that no call here raises
        codes = {**dict.fromkeys(re.findall(r"case errc::(\w+):", text[text.index("is_read_failure"):text.index("int exit_code")]), 4)}
        for cases, code in re.findall(r"((?:\s+case errc::\w+:)+)\s+return (\d+);", text[text.index("int exit_code"):]):
            codes.update(dict.fromkeys(re.findall(r"errc::(\w+)", cases), int(code)))
        for kind in _core.kinds():
            self.assertEqual(mr.errors.error(kind, "x").exit_code, codes.get(kind, 1), kind)

    def test_urls_in_errors_have_no_secrets(self):
        for url, shown in (("a?b@c.tar", "a?b@c.tar"), ("http://h:80/a.tar", "http://h:80/a.tar"),
                           ("http://u:p@h/a@b.tar#x", "http://h/a@b.tar?..."), ("http://u:p/w@h/a.tar", "http://h/a.tar"),
                           ("http://u:p?w@h", "http://h"), ("http://[::1]:80/a", "http://[::1]:80/a"),
                           ("http://h:80/a@b", "http://h:80/a@b")):
            self.assertEqual(mr.errors.redacted(url), shown)
        self.assertEqual(str(mr.errors.error("usage", "two\nlines")), "usage: two lines")


if __name__ == "__main__":
    unittest.main()
