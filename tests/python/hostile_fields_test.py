"""Fields that lie about themselves: decode_field() gives a value or an error of the package, soon, and in memory that is bounded."""

import gzip
import inspect
import io
import json
import pathlib
import random
import struct
import sys
import textwrap
import tracemalloc
import unittest
import warnings
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import Case, mr, optional  # noqa: E402

numpy = optional("numpy")
core = mr and mr._core


def npy(descr="'>i4'", shape="(2,)", order="False", content=b"", version=(1, 0), header=None):
    """A file of numpy's whose header says this, written by hand: numpy would not."""
    text = (header if header is not None else f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}").encode("latin1")
    text += b" " * ((-11 - len(text)) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(text)) + text + content


def npz(method=zipfile.ZIP_DEFLATED, **arrays):
    """The bytes of a zip archive of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(name + ".npy", content)
    return out.getvalue()


def damaged(whole, rng, begin=0):
    """The same with a few bytes changed, put in or taken away, or cut."""
    out = bytearray(whole)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(begin, max(begin + 1, len(out)))
        how = rng.random()
        if how < 0.7:
            out[at:at + 1] = bytes([rng.choice(b"0123456789(){}[]',:-<>|iufOSUVTMmc \"\\\x00\xff*+.ejxb_\x1f\x80\xc4\xdf\x9b\xbb")])
        elif how < 0.8:
            out[at:at] = bytes([rng.randrange(256)])
        elif how < 0.9:
            del out[at:at + rng.randrange(20)]
        else:
            del out[at:]
    return bytes(out)


@unittest.skipUnless(numpy, "no numpy in this Python")
class HostileFields(Case):
    def decode(self, extension, content):
        """The value, or the error of the package; other exceptions fail the test."""
        try:
            return mr.decode_field(extension, content)
        except (mr.BadFieldError, mr.errors.TooLargeError) as error:
            self.assertNotIn("\n", str(error))
            return error

    def test_arrays_of_elements_without_bytes_are_refused(self):
        many, wrong = f"({10**18},)", []
        for descr in ("'|V0'", "'|S0'", "'<U0'", "[]", "('<i4', (0,))", "('|S0', (3,))", "[('a', '|V0')]", "[('a', '<i4', (0,))]", "''"):
            wrong += [npy(descr, many), npy(descr, f"({2**70},)"), npy(descr, "(3,)")]
        for part in ("'|S0'", "'|V0'", "'<i4', (0,)", f"'|S0', ({2**30},)", f"'|V0', ({2**30},)"):  # beside one that has bytes
            wrong.append(npy(f"[('a', {part}), ('b', '<i4')]", "(2,)", content=bytes(8)))
        program = f"""
            import resource
            signal.alarm(50)  # numpy would go through them without an end, and see no other signal
            for content in {wrong!r}:
                for name, field in ("npy", content), ("npz", npz(a=content)):
                    try:
                        sys.exit(f"{{name}} {{content[:120]}} is {{mr.decode_field(name, field)!r}}")
                    except mr.BadFieldError:
                        pass
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20, "more than 1 GiB"
            """
        begin = "import io, zipfile\n" + inspect.getsource(npz)
        self.run_program(textwrap.indent(begin, " " * 12) + program)
        for descr in "'|S0'", "'<U0'", "'<i4'":  # of none nothing is claimed
            self.assertEqual(mr.decode_field("npy", npy(descr, "(0,)")).size, 0)

    def test_headers_of_arrays_that_are_no_headers(self):
        cases = {"too large a number": npy(shape=f"(0, {2**70})"), "a negative one": npy(shape=f"(0, -{2**70})"),
                 "too large a product": npy(shape=f"(0, {2**62}, {2**62})"), "a type of other files": npy("'T'", content=bytes(16)),
                 "too many dimensions": npy(shape="(" + "1," * 65 + ")", content=bytes(4)), "a number": npy("5"), "nothing": npy("None"),
                 "an empty field": npy("[()]"), "an empty tuple": npy("()"), "a dict": npy("{'names': ['a'], 'formats': ['<i4']}"),
                 "bytes": npy("b'<i4'"), "a name twice": npy("[('a', '<i4'), ('a', '<i4')]", "(1,)", content=bytes(8)),
                 "objects": npy("'|O'", "(1,)", content=bytes(8)),
                 "objects within": npy("[('a', [('b', '|O')])]", "(1,)", content=bytes(8)),
                 "brackets": npy(header="(" * 5000), "minus signs": npy(header="-" * 9000 + "1"), "no dict": npy(header="5"),
                 "a zero byte": npy(header="{\0}"), "what has no hash": npy(header="{[]: 1}"), "a unit of time": npy("'<M8[foo]'"),
                 "a lower version": npy(version=(0, 0)), "nothing at all": b"", "the magic alone": b"\x93NUMPY",
                 "a large sub-array": npy(f"('<i4', ({2**40},))", "(1,)")}
        for name, content in cases.items():
            with self.subTest(name), self.assertRaisesRegex(mr.BadFieldError, "^bad_field: not npy: .*[^ ]$"):
                mr.decode_field("npy", content)
            with self.subTest(name), self.assertRaises(mr.BadFieldError):
                mr.decode_field("npz", npz(a=content))
        for content in (npy("[('a', '<i4'), ('b', '>f8', (2,))]", "(1,)", content=bytes(20)), npy("'<M8[ns]'", content=bytes(16)),
                        npy("'<U3'", "(1,)", content="abc".encode("utf-32-le"))):
            self.assertEqual(mr.decode_field("npy", content).tobytes(), numpy.load(io.BytesIO(content)).tobytes())
        self.assertEqual(mr.decode_field("npy", npy("('<i4', (3,))", content=bytes(24))).shape, (2, 3))

    def test_npz_by_methods_that_numpy_does_not_write(self):
        out = io.BytesIO()
        numpy.save(out, numpy.arange(3, dtype=">i4"))
        for method in zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA:  # zipfile unpacks all of those, whatever it is asked for
            with self.assertRaisesRegex(mr.BadFieldError, rf"member 'a.npy' is compressed by method {method}; write it by numpy.savez_c"):
                mr.decode_field("npz", npz(method, a=out.getvalue()))
        for method in zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED:
            self.assertEqual(mr.decode_field("npz", npz(method, a=out.getvalue()))["a"].tolist(), [0, 1, 2])

    def test_damaged_fields_are_values_or_errors_of_the_package(self):
        rng = random.Random(7)
        out = io.BytesIO()
        numpy.save(out, numpy.arange(20, dtype=">i4"))
        plain, records = out.getvalue(), npy("[('a', '<i4'), ('b', '>f8', (2,))]", "(1,)", content=bytes(20))
        whole = {"npy": [plain, records, npy("'<U3'", "(1,)", content=bytes(12))],
                 "npz": [npz(method, a=plain, b=records) for method in (0, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)],
                 "json": [b'{"a": [1, NaN, -Infinity, "\\ud800\xc3\xa9"], "b": {"c": 1e5}}', "[1, \"\u2200\"]".encode("utf-16")],
                 "mp": [b"\x83\xa1a\x93\xc0\xc3\xcf" + b"\xff" * 8 + b"\xa1b\xc4\x02\x00\x01\xa1c\xcb\x7f\xf8" + bytes(6)],
                 "cbor": [b"\xa2\x61a\x9f\x3b\x7f" + b"\xff" * 8 + b"\x61b\x5f\x41a\x42bc\xff"], "cls": [b" 123_4\n"],
                 "txt": ["t\u00e9xt".encode()], "ten": [], "json.gz": [gzip.compress(b"[1, 2]", mtime=0)]}
        for extension, contents in whole.items():
            for content in contents:
                with warnings.catch_warnings():  # Python's parser reads headers
                    warnings.simplefilter("ignore")
                    self.decode(extension, content)
                    for _ in range(1500):
                        self.decode(extension, damaged(content, rng, 10 if extension == "npy" else 0))

    def test_json_is_bounded_by_what_it_takes(self):
        """The estimate is what json.loads() takes, or a few times that."""
        kinds = {"[%s1]": ("{},", '{"a":1},', '{"a":{"b":[]}},', "[],", '[["a"]],', "1.5,", f"{10**30},", '"",', f'"{"x" * 100}",',
                           '"\u00e9",', '"\u2200\u2200",', '"\U0001f600",', r'"\ud83d\ude00",', "null,", "   1 ,",
                           '{"x":1.5,"y":2.5,"w":3.5,"h":4.5},', '"a\\\\n",',
                           f"{'7' * 100},"),
                 '{%s"z":1}': ('"k%d":1,', '"k%d":"\u2200",', '"k%d":[],')}
        for around, parts in kinds.items():
            for part in parts:
                document = (around % "".join(part % n if "%d" in part else part for n in range(20_000))).encode()
                tracemalloc.start()
                value = json.loads(document)
                taken = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                del value
                needed = core.json_needs(document)
                self.assertGreaterEqual(needed, taken, part)
                self.assertLess(needed, 8 * taken, part)

    def test_json_that_takes_too_much_is_refused(self):
        for document in b"[" + b"{}," * (3 << 20) + b"1]", b'{"a":"' + b"x" * (300 << 20) + b'"}':
            with self.assertRaisesRegex(mr.errors.TooLargeError, "decoding needs about .* MiB of memory, and at most 512 MiB"):
                mr.decode_field("json", document)
        with self.assertRaises(mr.errors.TooLargeError):
            mr.decode_field("json.gz", gzip.compress(b" " * (200 << 20) + '"\U0001f600"'.encode(), 1))
        for encoding in "utf-16", "utf-16-be", "utf-32":  # in which half a character looks like a quotation mark
            with self.assertRaises(mr.errors.TooLargeError):
                mr.decode_field("json", ('["\u2200",' + "{}," * (3 << 20) + "1]").encode(encoding))
        self.assertEqual(len(mr.decode_field("json", b"[" + b"1," * 2_500_000 + b"1]")), 2_500_001)

    def test_json_of_marks_within_texts_is_not_taken_for_more(self):
        for document in ('"' + "{},[]:" * 500_000 + '"',
                         '["' + '\\",[' * 500_000 + '"]', json.dumps({"k\\": ["\\", "\"", "{" * 2_000_000]})):
            self.assertEqual(mr.decode_field("json", document.encode()), json.loads(document))
        self.assertEqual(repr(mr.decode_field("json", b'\xef\xbb\xbf[NaN, 1e999, ' + b"9" * 4000 + b"]")), f"[nan, inf, {'9' * 4000}]")
        for wrong in (b'"', b'"\\', b"[1,", b'{"a":', b":::::", b'"a":"b":"c":', b"\xff"):
            with self.assertRaises(mr.BadFieldError):
                mr.decode_field("json", wrong)

    def test_integers_at_the_ends_of_their_ranges(self):
        def head(major, value):
            return next(bytes([major << 5 | 24 + k]) + struct.pack(form, value)
                        for k, (form, bits) in enumerate(((">B", 8), (">H", 16), (">I", 32), (">Q", 64))) if value < 1 << bits)
        for bits in 8, 16, 31, 32, 63, 64:
            for number in 2**bits - 1, 2**bits, -2**bits, -2**bits - 1, -2**bits + 1:
                if not -2**64 <= number < 2**64:
                    continue
                packed = head(0, number) if number >= 0 else head(1, -1 - number)
                for content, value in (packed, number), (b"\xa1\x61n" + packed, {"n": number}), (b"\x9f" + packed + b"\xff", [number]):
                    if number >= -2**63:
                        self.assertEqual(mr.decode_field("cbor", content), value)
                        continue
                    for decode in core.decode_field, mr.decode_field:
                        with self.assertRaisesRegex(mr.BadFieldError, "or with an integer below -2"):
                            decode("cbor", content)


if __name__ == "__main__":
    unittest.main()
