"""Joined shards and tables: Join, samples().join(), ImageLoader(join=...), and join() of chains."""

import csv
import io
import itertools
import json
import math
import os
import pathlib
import pickle
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import URLS, Case, content, loader, mr  # noqa: E402

if mr is not None:
    import millrace.webdataset as wds

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None


def write_tar(name, files):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with tarfile.open(name, "w") as out:
        for member, text in files:
            info = tarfile.TarInfo(member)
            info.size = len(text)
            out.addfile(info, io.BytesIO(text))


class Joined(Case):
    """The shards of case.py, with a companion of captions for each, in another order in one of them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.keys = []
        for shard in range(4):
            name = f"train-{shard:06}"
            with tarfile.open(name + ".tar") as tar:
                keys = list(dict.fromkeys(m.name.split(".")[0] for m in tar if m.isfile()))
            cls.keys += keys
            write_tar(f"captions/{name}.tar", [(f"{k}.cap", f"caption of {k}".encode())
                                               for k in (reversed(keys) if shard == 2 else keys)])
            write_tar(f"holes/{name}.tar", [(f"{k}.cap", b"there") for k in keys if not k.endswith("7")])
        cls.rows = [(k, f"caption, of {k}", i % 5) for i, k in enumerate(cls.keys)]

    def test_samples(self):
        plain = list(mr.samples(URLS, seed=3, shuffle=50))
        joined = list(mr.samples(URLS, seed=3, shuffle=50).join("captions/{}.tar"))
        self.assertEqual([s["__key__"] for s in joined], [s["__key__"] for s in plain])
        for a, b in zip(plain, joined):
            self.assertEqual({**a, "cap": f"caption of {a['__key__']}".encode()}, b)

    def test_companions_in_another_order_take_no_memory_from_later_samples(self):
        keys = [f"k{i:04}" for i in range(300)]
        write_tar("order/m.tar", [(f"{k}.cls", b"1") for k in keys])
        write_tar("reversed/m.tar", [(f"{k}.cap", k.encode() * 4000) for k in reversed(keys)])
        out, _ = self.run_program("""
            samples = mr.samples("order/m.tar", memory="64MiB", lanes=1, shuffle_shards=False).join("reversed/{}.tar")
            print(sum(s["cap"] == s["__key__"].encode() * 4000 for s in samples))
        """)
        self.assertEqual(out, "300\n")

    def test_the_least_memory_that_is_accepted_is_enough(self):
        out, _ = self.run_program("""
            import io, random, re, tarfile
            signal.alarm(100)  # ends a wait that nothing would end
            def write(name, keys, extension, size):
                os.makedirs(os.path.dirname(name), exist_ok=True)
                with tarfile.open(name, "w") as tar:
                    for key in keys:
                        info = tarfile.TarInfo(f"{key}.{extension}")
                        info.size = size
                        tar.addfile(info, io.BytesIO(key.encode().ljust(size)))
            for seed in range(10):
                draw = random.Random(seed)
                keys = [f"{i:03}" for i in range(draw.choice((5, 60)))]
                write("least/m.tar", keys, "a", draw.choice((10, 30_000, 400_000)))
                write("beside/m.tar", draw.choice((keys, keys[::-1], draw.sample(keys, len(keys)))), "b",
                      draw.choice((10, 30_000, 400_000)))
                def made(memory):
                    data = mr.samples("least/m.tar", memory=memory, lanes=draw.choice((0, 1, 3)), shuffle=draw.choice((0, 0, 7)))
                    return data if draw.random() < 0.3 else data.join("beside/{}.tar")
                at = draw.getstate()
                try:
                    next(iter(made("1MiB")))
                except mr.NoMemoryError as e:
                    least = re.search(r"memory to (\\d+)MiB", str(e))
                    assert least, e
                draw.setstate(at)
                with made(least[1] + "MiB") as data:
                    got = [s for s in data]
                assert sorted(s["__key__"] for s in got) == keys, (seed, len(got))
                assert all(s.get("b", s["a"]).split() == [s["__key__"].encode()] for s in got), seed
            print("all")
        """, timeout=120)
        self.assertEqual(out, "all\n")

    def test_a_lane_without_shards_takes_no_memory(self):
        samples = list(mr.samples("train-000000.tar", memory="64MiB", lanes=8).join("captions/{}.tar"))
        self.assertEqual(len(samples), 100)

    def test_missing(self):
        whole = mr.samples(URLS, lanes=-1, shuffle_shards=False)
        with self.assertRaisesRegex(mr.MissingFieldError, "no sample of this key.*holes/train-000000.tar") as raised:
            list(whole.join("holes/{}.tar"))
        self.assertTrue(raised.exception.key.endswith("7"))
        self.assertNotIn("join_options", str(raised.exception))
        left = whole.join("holes/{}.tar", missing="skip")
        self.assertEqual([s["__key__"] for s in left], [k for k in self.keys if not k.endswith("7")])
        self.assertEqual(left.skipped()["left_out"], 40)
        alone = list(whole.join("holes/{}.tar", missing="none"))
        self.assertEqual(sum("cap" in s for s in alone), 360)
        self.assertEqual(len(alone), 400)
        with self.assertRaisesRegex(mr.NotFoundError, "nowhere/train-000000.tar"):
            list(whole.join("nowhere/{}.tar"))
        self.assertEqual(len(list(whole.join("nowhere/{}.tar", missing="none"))), 400)
        some = mr.samples(URLS, on_error=mr.skip(40)).join("holes/{}.tar")
        self.assertEqual(len(list(some)), 360)
        self.assertEqual(some.skipped()["skipped"], {"missing_field": 40})

    def test_continues_exactly(self):
        def made():
            return mr.samples(URLS, seed=5, shuffle=70).join("captions/{}.tar").join("holes/{}.tar", missing="none", fields="no")
        whole = list(made())
        for stop in (1, 57, 230, 399):
            first = made()
            head = list(itertools.islice(first, stop))
            state = json.loads(json.dumps(first.state_dict()))
            rest = made()
            rest.load_state_dict(state)
            self.assertEqual(head + list(rest), whole, stop)
        half = made()
        next(iter(half))
        self.assertEqual(list(pickle.loads(pickle.dumps(half))), whole[1:])

    def test_other_ranks_continue(self):
        def made(rank, ranks):
            return mr.samples(URLS, seed=5, shuffle=30, rank=(rank, ranks)).join("captions/{}.tar")
        given, states = [], []
        for rank in range(2):
            one = made(rank, 2)
            given += itertools.islice(one, 63)
            states.append(one.state_dict())
        for rank in range(4):
            one = made(rank, 4)
            one.load_state_dict(states)
            given += list(one)
        self.assertEqual(sorted(s["__key__"] for s in given), sorted(self.keys))
        self.assertTrue(all(s["cap"] == f"caption of {s['__key__']}".encode() for s in given))

    def test_labels_of_images(self):
        for shard in range(4):
            name = f"train-{shard:06}"
            keys = self.keys[100 * shard:100 * (shard + 1)]
            write_tar(f"labels/{name}.tar", [(f"{k}.id", str(1000 + self.keys.index(k)).encode()) for k in keys])
        batches = [content(b) for b in loader(label="id", join="labels/{}.tar", shuffle=100)]
        pairs = [p for _, labels, keys, _ in batches for p in zip(keys, labels)]
        self.assertEqual(sorted(pairs), sorted((k, 1000 + i) for i, k in enumerate(self.keys)))
        table = mr.Join({k: {"id": str(1000 + i)} for i, k in enumerate(self.keys)})
        again = [content(b) for b in loader(label="id", join=table, shuffle=100)]
        self.assertEqual(again, batches)

    def tables(self):
        with open("t.csv", "w") as out:
            out.write("key,CAP,number\n" + "".join(f'{k},"{c}",{n}\n' for k, c, n in self.rows))
        with open("t.tsv", "w") as out:
            out.write("__key__\tcap\tnumber\n" + "".join(f"{k}\t{c}\t{n}\n" for k, c, n in self.rows))
        with open("t.jsonl", "w") as out:
            out.writelines(json.dumps({"file_name": k + ".jpg", "cap": c, "number": n}) + "\n" for k, c, n in self.rows)
        names = ["t.csv", "t.tsv"]
        if pyarrow is not None:
            pyarrow.parquet.write_table(pyarrow.table({"key": self.keys, "cap": [c for _, c, _ in self.rows],
                                                       "number": [n for _, _, n in self.rows]}), "t.parquet")
            names.append("t.parquet")
        return names

    def test_tables(self):
        by_key = {k: (c.encode(), str(n).encode()) for k, c, n in self.rows}
        for name in self.tables():
            got = list(mr.samples(URLS, shuffle=20).join(name))
            self.assertEqual({s["__key__"]: (s["cap"], s["number"]) for s in got}, by_key, name)
            self.assertNotIn("number", next(iter(mr.samples(URLS).join(name, fields="cap"))))
        for s in mr.samples(URLS).join("t.jsonl", on="file_name"):
            self.assertEqual(json.loads(s["json"])["cap"].encode(), by_key[s["__key__"]][0])
        for s in mr.samples(URLS).join("t.jsonl", on="file_name", fields="cap;n*"):
            self.assertEqual((s["cap"], s["number"]), by_key[s["__key__"]])
            self.assertNotIn("json", s)

    def test_chosen_fields_are_those_of_the_main_shard(self):
        first = self.keys[0]
        def fields(*companions, **options):
            data = mr.samples(URLS, fields="cls", shuffle=20)
            for one in companions:
                data = data.join(one, missing="none", **options)
            data = pickle.loads(pickle.dumps(data))
            return {s["__key__"]: s.keys() - {"__key__", "__url__"} for s in data}[first]
        rows = {k: {"A": "1", "b": 2} for k in self.keys[:3]} | {first: {"A": "1", "c;d*": "3", "e": None}}
        self.assertEqual(fields(rows), {"cls", "a", "c;d*"})
        for name in self.tables():
            self.assertEqual(fields(name), {"cls", "cap", "number"}, name)
            self.assertEqual(fields(name, fields="n*"), {"cls", "number"}, name)
        self.assertEqual(fields(rows, "t.csv"), {"cls", "a", "c;d*", "cap", "number"})
        self.assertEqual(fields("captions/{}.tar", fields="CAP"), {"cls", "cap"})
        self.assertEqual(fields("captions/{}.tar", fields="x;c?p"), {"cls", "cap"})
        # Which fields other shards add is not known before they are read.
        for unknown in "", "*", "**":
            with self.assertRaisesRegex(mr.UsageError, r"samples\(fields='cls'\) joined with 'captions/\{\}.tar', whose fields are not "
                                        r"named; name them, join\('captions/\{\}.tar', fields='txt'\)"):
                mr.samples(URLS, fields="cls").join("captions/{}.tar", fields=unknown)
        whole = next(iter(mr.samples(URLS).join("captions/{}.tar")))
        self.assertEqual(whole.keys(), {"__key__", "__url__", "jpg", "cls", "cap"})

    def test_tables_that_lack_rows(self):
        with open("few.csv", "w") as out:
            out.write("key,cap\n" + "".join(f"{k},x\n" for k in self.keys[:10]))
        self.assertEqual(len(list(mr.samples(URLS).join("few.csv", missing="skip"))), 10)
        self.assertEqual(sum("cap" in s for s in mr.samples(URLS).join("few.csv", missing="none")), 10)
        with self.assertRaisesRegex(mr.MissingFieldError, "the table has no row of this key"):
            list(mr.samples(URLS).join("few.csv"))

    def test_bad_tables(self):
        bad = {
            "twice.csv": ("key,a\nx,1\ny,2\nx,3\n", mr.DuplicateFieldError, "row 3 has the key of one before it, at twice.csv, key x"),
            "short.csv": ("key,a\nx\n", mr.BadFieldError, "line 2 has 1 columns, and the first line 2, at short.csv"),
            "nothing.csv": ("", mr.BadFieldError, "the table is empty: it has no line with the names of columns, at nothing.csv"),
            "bool.jsonl": ('{"key": true}\n', mr.BadFieldError, "row 1: its key is a bool, at bool.jsonl; give keys as texts"),
            "nullkey.csv": ("key,a\nx,1\n,2\n", mr.BadFieldError, "row 2: its key is empty, at nullkey.csv; give it a key"),
            "folds.csv": ("key,Cap,CAP\nx,1,2\n", mr.DuplicateFieldError, "columns 'Cap' and 'CAP' both become the field 'cap', at folds"),
            "same.tsv": ("key\ta\ta\nx\t1\t2\n", mr.DuplicateFieldError, "columns 'a' and 'a' both become"),
            "keys.csv": ("key,key,a\nx,y,1\n", mr.DuplicateFieldError, "columns 'key' and 'key' both have the keys"),
            "quote.csv": ('key,a\nx,"1\n', mr.BadFieldError, "quote.csv"),
            "nokey.csv": ("name,a\nx,1\n", mr.BadFieldError, "no column 'key'.*name, a, at nokey.csv; name it by on="),
            "bad.jsonl": ('{"key": "x"}\n{"key": ', mr.BadFieldError, "row 2: .*, at bad.jsonl"),
            "list.jsonl": ("[1]\n", mr.BadFieldError, "row 1: not a JSON object, at list.jsonl"),
            "deep.jsonl": ("[" * 100_000 + "\n", mr.BadFieldError, "row 1: "),
            "null.jsonl": ('{"key": "x"}\n{"key": null}\n', mr.BadFieldError, "row 2: its key is null, at null.jsonl"),
            "objects.jsonl": ('{"key": {"a": 1}}\n', mr.BadFieldError, "row 1: its key is a dict"),
            "half.jsonl": ('{"key": "\\ud800"}\n', mr.BadFieldError, "row 1: .*surrogates"),
        }
        for name, (text, kind, said) in bad.items():
            with open(name, "w") as out:
                out.write(text)
            with self.assertRaisesRegex(kind, said) as raised:
                next(iter(mr.samples(URLS).join(name)))
            self.assertEqual((raised.exception.url, raised.exception.exit_code), (name, 5))
        with open("latin.csv", "wb") as out:
            out.write(b"key,a\nx,\xe9\n")
        with self.assertRaisesRegex(mr.BadFieldError, "not UTF-8 at byte 8, at latin.csv; convert it"):
            next(iter(mr.samples(URLS).join("latin.csv")))
        with self.assertRaisesRegex(mr.NotFoundError, "nowhere.csv; check the path") as raised:
            next(iter(mr.samples(URLS).join("nowhere.csv")))
        self.assertEqual((raised.exception.url, raised.exception.exit_code), ("nowhere.csv", 4))
        os.makedirs("folder.csv")
        with self.assertRaisesRegex(mr.UsageError, "at folder.csv; name a file"):
            next(iter(mr.samples(URLS).join("folder.csv")))
        for rows, said in (({None: {"a": "b"}}, "row 1 of the table: its key is null"), ({math.nan: {"a": "b"}}, "its key is null"),
                           ({"x": 5}, "its fields are 5, not a dict"), ({"x": {"a": {"b": object()}}}, "column 'a': "),
                           ({"x": {"a": [math.nan]}}, "column 'a': .*not JSON"), ({"x": {5: "a"}}, "column 5 is not a text")):
            with self.assertRaisesRegex(mr.BadFieldError, said):
                next(iter(mr.samples(URLS).join(rows)))
        with self.assertRaisesRegex(mr.DuplicateFieldError, "columns 'A' and 'a'"):
            next(iter(mr.samples(URLS).join({"x": {"A": "b", "a": "c"}})))

    def test_values_of_a_dict(self):
        key = self.keys[0]
        values = {"text": "\u00e9", "bytes": bytearray(b"ab"), "view": memoryview(b"cd"), "number": 5, "part": 0.5, "no": None,
                  "list": (1, [2]), "object": {"a": None}, "is": True}
        got = next(iter(mr.samples("train-000000.tar", lanes=-1, shuffle_shards=False).join({key: values}, missing="none")))
        self.assertEqual({k: got.get(k) for k in values}, {
            "text": "\u00e9".encode(), "bytes": b"ab", "view": b"cd", "number": b"5", "part": b"0.5", "no": None, "list": b"[1, [2]]",
            "object": b'{"a": null}', "is": b"true"})
        batch = next(iter(loader("train-000000.tar", label="id", join={k: {"id": "7"} for k in self.keys})))
        self.assertEqual(set(batch.labels.tolist()), {7})

    def test_long_fields_of_csv(self):
        with open("long.csv", "w") as out:
            out.write("key,cap\n" + "".join(f"{k},{'x' * 200_000}\n" for k in self.keys[:3]))
        before = csv.field_size_limit()
        got = list(mr.samples(URLS).join("long.csv", missing="skip"))
        self.assertEqual([len(s["cap"]) for s in got], [200_000] * 3)
        self.assertEqual(csv.field_size_limit(), before)
        with self.assertRaises(mr.Error):
            next(iter(mr.samples(URLS).join("http://127.0.0.1:1/t.csv")))

    @unittest.skipUnless(pyarrow, "no pyarrow in this Python")
    def test_parquet(self):
        numbers = list(range(400))
        table = pyarrow.table({
            "key": self.keys, "Text": [f"text {i}" for i in numbers], "half": [None if i % 2 else i / 2 for i in numbers],
            "box": [[i, i + 1] for i in numbers], "image": [{"bytes": b"\xff%d" % i, "path": None} for i in numbers],
            "raw": [b"\0%d" % i for i in numbers], "other": [os.urandom(50) for _ in numbers]})
        pyarrow.parquet.write_table(table, "big.parquet", row_group_size=150, use_dictionary=False, compression="none")
        wanted = {k: (f"text {i}".encode(), None if i % 2 else str(i / 2).encode(), b"[%d, %d]" % (i, i + 1), b"\xff%d" % i, b"\0%d" % i)
                  for i, k in enumerate(self.keys)}
        for name in "big.parquet", f"file://{os.getcwd()}/big.parquet":
            got = list(mr.samples(URLS, shuffle=20).join(name))
            self.assertEqual({s["__key__"]: (s["text"], s.get("half"), s["box"], s["image"], s["raw"]) for s in got}, wanted, name)
        content, other = pathlib.Path("big.parquet").read_bytes(), table["other"][0].as_py()
        at = content.index(other) - 60  # the header of its page
        pathlib.Path("hole.parquet").write_bytes(content[:at] + bytes(60) + content[at + 60:])
        first = next(iter(mr.samples(URLS).join("hole.parquet", fields="text")))  # only what is needed is read
        self.assertEqual(first["text"], wanted[first["__key__"]][0])
        pathlib.Path("short.parquet").write_bytes(content[:-20])
        pyarrow.parquet.write_table(pyarrow.table({"key": [b"a", None]}), "null.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"key": [1.0, math.nan]}), "nan.parquet")
        pyarrow.parquet.write_table(pyarrow.table([["a"], ["b"], ["c"]], ["key", "A", "a"]), "folds.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"name": ["a"]}), "nokey.parquet")
        wrong = (("hole", mr.BadFieldError, "pyarrow cannot read the table: "),
                 ("short", mr.BadFieldError, "pyarrow cannot read the table: "),
                 ("null", mr.BadFieldError, "row 2: its key is null"), ("nan", mr.BadFieldError, "row 2: its key is null"),
                 ("folds", mr.DuplicateFieldError, "columns 'A' and 'a'"), ("nokey", mr.BadFieldError, "no column 'key'"),
                 ("nowhere", mr.NotFoundError, "No such file"))
        for name, kind, said in wrong:
            with self.assertRaisesRegex(kind, f"{said}.*at {name}.parquet") as raised:
                next(iter(mr.samples(URLS).join(f"{name}.parquet")))
            self.assertEqual(raised.exception.url, f"{name}.parquet")

    def test_refused(self):
        for arguments in ({"companion": "captions.tar"}, {"companion": "{}.tar", "on": "name"},
                          {"companion": "{}.tar", "missing": "nothing"}, {"companion": 5}, {"companion": b"a.csv"},
                          {"companion": "a.csv", "on": None}, {"companion": "a.csv", "fields": ["a"]}):
            with self.assertRaises(mr.UsageError):
                mr.samples(URLS).join(**arguments)
        with self.assertRaisesRegex(mr.UsageError, "join is 5; give "):
            loader(join=5)
        with self.assertRaises(mr.UsageError):
            next(iter(mr.samples(URLS).join("pipe:cat {}.tar")))
        with self.assertRaisesRegex(mr.DuplicateFieldError, "both have the field 'jpg'"):
            next(iter(mr.samples(URLS).join("{}.tar")))

    def test_chains(self):
        chain = wds.WebDataset(URLS, shardshuffle=False).join("captions/{}.tar")
        self.assertEqual([(s["__key__"], s["cap"].decode()) for s in chain],
                         [(k, f"caption of {k}") for k in self.keys])
        chain = (wds.WebDataset(URLS, shardshuffle=100, seed=1).shuffle(50).join("captions/{}.tar")
                 .join({k: {"number.cls": str(i)} for i, k in enumerate(self.keys)})
                 .decode("rgb8").to_tuple("jpg;png", "cap", "number.cls").batched(20))
        for images, captions, numbers in wds.WebLoader(chain, batch_size=None, num_workers=2):
            self.assertEqual([f"caption of {self.keys[n]}".encode() for n in numbers], list(captions))
            self.assertEqual(images.shape[0], 20)
        with self.assertRaisesRegex(mr.UsageError, "right after WebDataset"):
            wds.WebDataset(URLS).decode("rgb8").join("captions/{}.tar")
        some = wds.WebDataset(URLS, shardshuffle=False, handler=wds.ignore_and_continue).join("holes/{}.tar")
        self.assertEqual(len(list(some)), 360)


if __name__ == "__main__":
    unittest.main()
