"""millrace.ImageLoader and millrace.samples: batches, samples, errors."""

import errno
import gzip
import importlib
import io
import json
import math
import os
import pathlib
import pickle
import sys
import tarfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import URLS, Case, content, loader, mr, needs_torch  # noqa: E402


class Batches(Case):
    def test_images_share_the_engines_memory(self):
        with loader(shuffle=100) as data:
            batch = next(iter(data))
            images, labels = batch
            self.assertEqual((images.shape, str(images.dtype), images.strides[-1]), ((50, 32, 32, 3), "uint8", 1))
            self.assertEqual((labels.shape, str(labels.dtype)), ((50,), "int64"))
            self.assertFalse(images.flags.owndata)
            images[:] = 7
        self.assertEqual(int(batch.images[49, 31, 31, 2]), 7)  # valid after the loader is closed

    def test_pixels_and_labels_are_those_of_the_engine(self):
        whole = {s["__key__"]: s for s in mr.samples(URLS, decode=True)}
        batch = next(iter(loader(train=False, size=32, resize=32)))
        for image, label, key in zip(batch.images, batch.labels, batch.keys):
            self.assertEqual(image.tobytes(), whole[key]["jpg"].tobytes())
            self.assertEqual(int(label), int(whole[key]["cls"]))

    @needs_torch
    def test_torch_gets_channels_last_views(self):
        import torch
        batch = next(iter(loader(output="torch")))
        numpy = next(iter(loader()))
        self.assertEqual(tuple(batch.images.shape), (50, 3, 32, 32))
        self.assertTrue(batch.images.is_contiguous(memory_format=torch.channels_last))
        self.assertTrue((batch.images.permute(0, 2, 3, 1).numpy() == numpy.images).all())
        self.assertEqual(batch.labels.dtype, torch.int64)

    def test_changes_are_made(self):
        plain = next(iter(loader()))
        changed = next(iter(loader(augment=mr.Augment(policy="trivialaugment", gray=0.5, erase=0.5))))
        self.assertEqual(plain.keys, changed.keys)
        self.assertNotEqual(plain.images.tobytes(), changed.images.tobytes())

    def test_the_rest_of_a_batch(self):
        self.assertEqual([len(b.labels) for b in loader(batch_size=150)], [150, 150, 100])
        self.assertEqual([len(b.labels) for b in loader(batch_size=150, drop_last=True)], [150, 150])

    def test_decoded_images_are_kept(self):
        with loader(cache_decoded="32MiB") as data, loader() as other:
            for _ in range(2):
                self.assertEqual([content(b) for b in data], [content(b) for b in other])


def packed_badly(numpy):
    """An npz whose array is cut."""
    whole = io.BytesIO()
    numpy.savez_compressed(whole, a=numpy.random.default_rng(0).random((40, 3)).T)
    damaged = bytearray(whole.getvalue())
    damaged[200:260] = bytes(60)
    return bytes(damaged)


class Samples(Case):
    def test_are_dicts_of_bytes(self):
        with tarfile.open(self.folder / "train-000000.tar") as tar:
            files = {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
        seen = {f"{s['__key__']}.{k}": s[k] for s in mr.samples("train-000000.tar") for k in ("jpg", "cls")}
        self.assertEqual(seen, files)

    def test_samples_that_were_taken_ahead_take_no_memory_from_later_ones(self):
        for size, count in ((700_000, 60), (20_000, 300), (12_000_000, 8)):
            with tarfile.open("large.tar", "w") as tar:
                for i in range(count):
                    info = tarfile.TarInfo(f"k{i:04}.bin")
                    info.size = size
                    tar.addfile(info, io.BytesIO(bytes([i % 251]) * size))
            out, _ = self.run_program(f"""
                samples = mr.samples("large.tar", memory="{'256MiB' if size > 10**6 else '64MiB'}", lanes=1, threads=1)
                print(sum(s["bin"] == bytes([int(s["__key__"][1:]) % 251]) * {size} for s in samples))
            """)
            self.assertEqual(out, f"{count}\n")

    def test_fields_order_and_position(self):
        data = mr.samples(URLS, fields="cls", shuffle_shards=False)
        keys, states = [], []
        for s in data:
            self.assertEqual(s.keys(), {"__key__", "__url__", "cls"})
            keys.append(s["__key__"])
            states.append(data.state_dict() if len(keys) % 37 == 0 else None)
        for taken, state in enumerate(states, 1):
            if state is not None:
                other = mr.samples(URLS, fields="cls", shuffle_shards=False)
                other.load_state_dict(state)
                self.assertEqual([s["__key__"] for s in other], keys[taken:])

    def test_names_may_be_any_bytes(self):
        def tar(path, *names):
            with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin1") as out:
                for name in names:
                    member = tarfile.TarInfo(name)
                    member.size = 1
                    out.addfile(member, io.BytesIO(b"1"))
            return path
        folder = os.fsdecode(b"caf\xe9")
        os.mkdir(folder)
        shard = tar(f"{folder}/a.tar", "caf\xe9.jpg", "caf\xe9.\xe9x")
        read, = mr.samples(shard)
        self.assertEqual(read, {"__key__": "caf\udce9", "__url__": shard, "jpg": b"1", "\udce9x": b"1"})
        for fails in (loader(shard, label="none"), mr.samples(shard, decode=True)):
            with self.assertRaisesRegex(mr.BadImageError, "key caf"):
                next(iter(fails))
        with mr.ShardWriter("bytes-%d.tar") as out:
            out.write(read)
        self.assertEqual(next(iter(mr.samples("bytes-0.tar")))["__key__"], "caf\udce9")
        for name, refused in (("pattern", lambda: mr.ShardWriter(f"{folder}/%d.tar")), ("report", lambda: mr.skip(1, report=f"{folder}/r")),
                              ("companion", lambda: mr.Join(f"{folder}/{{}}.tar")), ("fields", lambda: mr.samples(shard, fields="\udce9x"))):
            with self.assertRaisesRegex(mr.UsageError, f"{name} is .*, which is not UTF-8 at "):
                refused()
        made = tar("reserved.tar", "a.__key__", "a.jpg")
        with self.assertRaisesRegex(mr.DuplicateFieldError, "__key__, at reserved.tar byte 0, key a; give it another"):
            next(iter(mr.samples(made)))

    def test_fields_are_decoded_by_extension(self):
        self.assertEqual(mr.decode_field("cls", b"7"), 7)
        self.assertEqual(mr.decode_field("json", b'{"a": [1]}'), {"a": [1]})
        self.assertEqual(mr.decode_field("txt", "\u00e9".encode()), "\u00e9")
        self.assertEqual(mr.decode_field("bin", b"\0\1"), b"\0\1")
        self.assertEqual(mr.decode_field("cls", b"%d" % 2**70), 2**70)
        documents = (b'{"width": 1, "height": 2}', b'{"a": 18446744073709551616}', b'{"a": -9223372036854775809}', b'"\\ud800"', b"[]")
        for text in documents:
            self.assertEqual(repr(mr.decode_field("json", text)), repr(json.loads(text)))
        self.assertEqual(repr(mr.decode_field("json.gz", gzip.compress(b"[NaN, -Infinity]"))), "[nan, -inf]")
        # {"emb": b"\0\1", "n": nan, "l": [null, true, 2**64-1, -5, "\u00e9"]}, and a nested one
        packed = (b"\x83\xa3emb\xc4\x02\x00\x01\xa1n\xcb\x7f\xf8" + bytes(6) + b"\xa1l\x95\xc0\xc3\xcf" + b"\xff" * 8 + b"\xfb\xa2\xc3\xa9")
        self.assertEqual(repr(mr.decode_field("mp", packed)), repr({"emb": b"\0\1", "n": math.nan, "l": [None, True, 2**64 - 1, -5, "\u00e9"]}))
        self.assertEqual(mr.decode_field("msgpack", b"\x81\xa1a\x92\x80\x90"), {"a": [{}, []]})
        self.assertEqual(mr.decode_field("cbor", b"\xa1aa\x43abc"), {"a": b"abc"})
        wrong = {"cls": b"seven", "json": b"{", "jsn": b"[" * 100_000, "mp": b"\xd4\x05\x00", "msg": b"\x91", "cbor": b"\xff", "npy": b"\x93NUMPY",
                 "npz": b"PK", "txt": b"\xff", "txt.gz": b"no gzip"}
        for name, damaged in wrong.items():
            with self.assertRaises(mr.BadFieldError, msg=name) as caught:
                mr.decode_field(name, damaged)
            self.assertNotIn("\n", str(caught.exception))

    def test_arrays_that_only_numpy_has_are_read_by_it(self):
        numpy = importlib.import_module("numpy")
        for made in (numpy.arange(6).reshape(2, 3).T, numpy.array(["a", "bc"]), numpy.array([1.5], ">f4"), numpy.array(3),
                     numpy.array([(1, 2.0)], "i4,f8"), numpy.array(["2026-01-01"], "datetime64[D]")):
            out = io.BytesIO()
            numpy.save(out, made)
            got = mr.decode_field("npy", out.getvalue())
            self.assertEqual((got.dtype, got.shape, got.tolist()), (made.dtype, made.shape, made.tolist()))
        out = io.BytesIO()
        numpy.save(out, numpy.array([object()]), allow_pickle=True)
        with self.assertRaisesRegex(mr.BadFieldError, "not npy: .*pickle"):
            mr.decode_field("npy", out.getvalue())
        packed = io.BytesIO()
        numpy.savez_compressed(packed, a=numpy.arange(6).reshape(2, 3).T, b=numpy.array(["x"]))
        got = mr.decode_field("npz", packed.getvalue())
        self.assertEqual({name: a.tolist() for name, a in got.items()}, {"a": [[0, 3], [1, 4], [2, 5]], "b": ["x"]})

    def test_arrays_are_not_taken_at_their_word(self):
        numpy = importlib.import_module("numpy")
        for shape in (1 << 45,), (-1,), (1 << 62, 4), (2,):
            claims = io.BytesIO()
            numpy.lib.format.write_array_header_1_0(claims, {"descr": ">f4", "fortran_order": False, "shape": shape})
            with self.assertRaisesRegex(mr.BadFieldError, "not npy: .*does not match its shape"):
                mr.decode_field("npy", claims.getvalue() + bytes(4))
        bomb = io.BytesIO()
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as file:
            numpy.lib.format.write_array_header_1_0(file, {"descr": ">f4", "fortran_order": False, "shape": (300 << 18,)})
            for _ in range(300):
                file.write(bytes(1 << 20))
        with self.assertRaisesRegex(mr.TooLargeError, "npz of more than 256 MiB unpacked"):
            mr.decode_field("npz", bomb.getvalue())
        with self.assertRaisesRegex(mr.BadFieldError, "not npz"):
            mr.decode_field("npz", packed_badly(numpy))


class Errors(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with mr.ShardWriter("bad-%d.tar") as out:
            for i, s in enumerate(mr.samples(URLS)):
                out.write(s if i % 100 else {"__key__": s["__key__"], "jpg": b"no image", "cls": b"1"})

    def test_are_classes_by_kind(self):
        with self.assertRaises(mr.NotFoundError) as caught:
            next(iter(loader("nowhere.tar")))
        e = caught.exception
        self.assertIsInstance(e, FileNotFoundError)
        self.assertEqual((e.kind, e.url, e.exit_code, e.skippable), ("not_found", "nowhere.tar", 4, True))
        self.assertTrue(str(e).startswith("not_found: no such file, at nowhere.tar"), e)
        for same in e, pickle.loads(pickle.dumps(e)):
            self.assertEqual((same.errno, same.strerror, same.filename), (errno.ENOENT, os.strerror(errno.ENOENT), "nowhere.tar"))
            self.assertEqual((str(same), same.kind), (str(e), "not_found"))
        with self.assertRaises(mr.BadImageError) as caught:
            for _ in loader("bad-0.tar"):
                pass
        self.assertEqual((caught.exception.kind, bool(caught.exception.key)), ("bad_image", True))
        for wrong in ({"epoch": "sometimes"}, {"rank": (3, 2)}, {"size": 0}, {"threads": 0}, {"output": "jax"},
                      {"memory": "much"}):
            with self.assertRaises(ValueError, msg=wrong):
                next(iter(loader(**wrong)))

    def test_wrong_arguments_are_named_as_python_names_them(self):
        for wrong in ({"batch_size": None}, {"batch_size": 5.5}, {"batch_size": 0}, {"batch_size": 2**40}, {"size": "s"}, {"size": 0},
                      {"seed": -1}, {"seed": 2**64}, {"seed": None}, {"shuffle": -1}, {"shuffle": 0.5}, {"rank": 5}, {"rank": None},
                      {"rank": (0.5, 2)}, {"rank": (0, 0)}, {"rank": (2, 2)}, {"lanes": "x"}, {"lanes": -2}, {"threads": None},
                      {"threads": 10**6}, {"held": 0}, {"prefetch": 0}, {"on_error": 0.5}, {"label": None}, {"label": ""},
                      {"images": 5}, {"classes": -1}, {"augment": {}}, {"train": "no"},
                      {"drop_last": None}, {"allow_pipe": "no"}, {"epoch_samples": 100.5}, {"epoch": None}):
            name, = wrong
            with self.assertRaises(mr.UsageError, msg=wrong) as caught:
                next(iter(loader(**wrong)))
            said = str(caught.exception)
            self.assertIn("the number of ranks" if wrong == {"rank": (0, 0)} else name, said)
            self.assertNotRegex(said, "_options|incompatible function")
        for wrong in ({"batch_size": 0, "epoch_samples": 100}, {"rank": (0, 0), "epoch_samples": 100}):
            with self.assertRaises(mr.UsageError):
                next(iter(loader(**wrong)))
        for shards in (None, 5, b"train-000000.tar", [b"train-000000.tar"], [], [5]):
            with self.assertRaisesRegex(mr.UsageError, "shards"):
                loader(shards)
        for most in ("x", True, -1, 1.5, float("nan")):
            with self.assertRaises(mr.UsageError, msg=most):
                mr.skip(most)
        for options in {"memory": -5}, {"memory": 1.5}:
            with self.assertRaises(mr.UsageError, msg=options):
                loader(**options)
        for options in {"policy": None}, {"ops": "x"}, {"gray": "x"}:
            with self.assertRaises(mr.UsageError, msg=options):
                mr.Augment(**options)
        with self.assertRaisesRegex(mr.NoMemoryError, r"^no_memory: the loader needs .*; set memory to \d+MiB or more "
                                    r"\(MILLRACE_MEMORY=\d+M\), or lower lanes \(of an ImageLoader also batch_size\)$"):
            next(iter(loader(memory="1MiB")))
        with self.assertRaisesRegex(mr.UsageError, "^usage: train is 'no'; give True or False$"):
            loader(train="no")

    def test_options_of_augment_are_named_as_python_names_them(self):
        for name, wrong in {"jitter": 2, "brightness": -1, "hue": 0.7, "gray": 1.5, "blur": 2, "erase": -1, "flip": 3}.items():
            with self.assertRaises(mr.UsageError) as caught:
                mr.Augment(**{name: wrong})  # told where it is made
            self.assertRegex(str(caught.exception), f"; {name} takes ")

    def test_what_was_skipped_is_told_as_python_names_it(self):
        with tarfile.open("bad-label.tar", "w") as out:
            for name, data in ("a.jpg", next(iter(mr.samples(URLS)))["jpg"]), ("a.txt", b"no number"):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                out.addfile(entry, io.BytesIO(data))
        data = loader("bad-label.tar", label="txt", on_error=mr.skip(report="report.jsonl"))
        self.assertEqual(list(data), [])
        for said in data.skipped()["messages"][0], pathlib.Path("report.jsonl").read_text():
            self.assertIn("label names the field", said)
            self.assertNotIn("decode_options", said)

    def test_a_path_is_no_name_of_an_option(self):
        for name in "gaussian_blur.0001.tar", "crop_options.flip.tar":
            with self.assertRaises(mr.NotFoundError) as caught:
                next(iter(mr.samples(name)))
            self.assertIn(f"at {name}", str(caught.exception))

    def test_a_loaders_repr_has_no_secrets(self):
        for url in "https://me:hush@h/a.tar?sig=hush", "pipe:curl -H hush http://h/a.tar":
            for data in mr.samples(url), loader(url), mr.samples([url, "b.tar"]):
                self.assertNotIn("hush", repr(data))

    def test_shards_of_a_generator_and_of_paths(self):
        data = loader(pathlib.Path(f"train-{i:06}.tar") for i in range(4))
        self.assertEqual(sum(len(b.labels) for b in pickle.loads(pickle.dumps(data))), 400)
        self.assertEqual(sum(1 for _ in mr.samples(f"train-{i:06}.tar" for i in range(2))), 200)

    def test_counts_are_of_what_the_loop_was_given(self):
        write = [(f"{i:04}", "x" if i % 4 == 0 else None) for i in range(64)]
        with tarfile.open("mixed.tar", "w") as tar, tarfile.open("train-000000.tar") as good:
            members = [(m.name, good.extractfile(m).read()) for m in good if m.name.endswith(".jpg")]
            for i, (key, bad) in enumerate(write):
                for name, of in ((f"{key}.jpg", b"no image" if bad else members[i][1]), (f"{key}.cls", b"1")):
                    info = tarfile.TarInfo(name)
                    info.size = len(of)
                    tar.addfile(info, io.BytesIO(of))
        data = loader("mixed.tar", batch_size=8, on_error=mr.skip(), prefetch=4)
        for epoch in range(1, 4):
            for step, _ in enumerate(data, 1):
                said = data.skipped()
                self.assertEqual(said["delivered"], 48 * (epoch - 1) + 8 * step)
                self.assertLessEqual(said["skipped"]["bad_image"], 16 * epoch)
            said = data.skipped()
            self.assertEqual((said["delivered"], said["skipped"], said["lost"]), (48 * epoch, {"bad_image": 16 * epoch}, 0))

    def test_a_loop_that_goes_on_after_errors_counts_them(self):
        data, given, failed = loader("bad-0.tar", batch_size=5), 0, 0
        while data.epoch == 0:
            try:
                for batch in data:
                    given += len(batch.labels)
            except mr.Error:
                failed += 1
        self.assertGreater(failed, 0)
        said = data.skipped()
        self.assertEqual((said["delivered"], sum(said["skipped"].values())), (given, failed))

    def test_epoch_samples_are_the_length_of_an_epoch(self):
        for rank, most, drop, wanted in (((0, 1), 100, False, 100), ((0, 1), 100, True, 96), ((1, 2), 100, False, 50), ((0, 1), 5, False, 5)):
            data = loader(batch_size=16, epoch_samples=most, drop_last=drop, rank=rank)
            self.assertEqual([sum(len(b.labels) for b in data) for _ in range(2)], [wanted] * 2)
            self.assertEqual(len(data), wanted // 16 if drop else -(-wanted // 16))

    def test_are_skipped_and_counted(self):
        data = loader("bad-0.tar", on_error=mr.skip(4))
        self.assertEqual(sum(len(b.labels) for b in data), 396)
        counts = data.skipped()
        self.assertEqual((counts["delivered"], counts["skipped"]), (396, {"bad_image": 4}))
        for name in counts:
            self.assertIn(f'"{name}"', mr.ImageLoader.skipped.__doc__)
        self.assertEqual(len(counts["messages"]), 4)
        data.close()
        self.assertEqual(data.skipped(), counts)
        with self.assertRaisesRegex(mr.TooManySkippedError, r"; mr.skip\(report=FILE\) lists the skipped samples$") as caught:
            list(loader("bad-0.tar", on_error=mr.skip(3)))
        self.assertEqual(caught.exception.hint, "mr.skip(report=FILE) lists the skipped samples")
        with self.assertRaises(mr.TooManySkippedError):
            list(loader("bad-0.tar", on_error=mr.skip(0.001)))

    def test_notices_are_as_many_as_wanted(self):
        program = """
            mr.set_log_level(%r)
            print(sum(len(b.labels) for b in L("bad-0.tar", on_error=mr.skip(4))))
            """
        for level, notices in (("notice", 4), ("quiet", 0)):
            out, err = self.run_program(program % level)
            self.assertEqual((out, err.count("millrace: skipped: bad_image")), ("396\n", notices), err)
        with self.assertRaises(mr.UsageError):
            mr.set_log_level("loud")

    def test_the_loop_may_fail(self):
        data = loader()
        with self.assertRaises(ZeroDivisionError):
            for _ in data:
                1 // 0
        self.assertEqual(sum(len(b.labels) for b in data), 350)  # continues
        data.close()
        with self.assertRaisesRegex(mr.UsageError, "closed"):
            next(iter(data))


if __name__ == "__main__":
    unittest.main()
