"""The tests of webdataset 1.0.2 itself, with millrace.webdataset in the place of webdataset.

They come from its source distribution, which ./setup --peers fetches, and run on data of the shape of theirs, made here.
Each must pass, or use a name that is not offered (NOT_OFFERED), or fail because something differs on purpose (DIFFERS).
Skips where the source or the package is missing. The tests of wids are in no distribution: python/wids_test.py compares.

    own_tests_parity.py --list              what came of each test
    own_tests_parity.py --list --original   the same with webdataset itself: which tests pass on the data made here
    TEST_WEBDATASET_SOURCE=FOLDER           another folder that has tests/"""

import functools
import gzip
import http.server
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import unittest
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

try:
    import millrace
    import numpy
    import PIL.Image
    import webdataset
except ImportError as missing:
    millrace, WHY_NOT = None, f"{missing}: ./setup --peers, then ./test"
else:
    WHY_NOT = ""

SOURCE = pathlib.Path(os.environ.get("TEST_WEBDATASET_SOURCE", pathlib.Path(sys.prefix) / "webdataset-source"))

# Tests by the name that they use and that is not offered. The line to write instead: docs/from-webdataset.md, and the error.
NOT_OFFERED = {
    "cache.FileCache": ["test_cache.py::TestFileCache::"],  # the engine has a cache of its own
    "cache.LRUCleanup": ["test_cache.py::test_lru_cleanup"],
    "cache.StreamingOpen": ["test_cache.py::TestStreamingOpen::"],
    "cache.url_to_cache_name": ["test_cache.py::test_url_to_cache_name"],
    "gopen": ["test_gopen.py::"],  # URLs are opened by the engine
    "utils.enforce_security": ["test_security.py::TestEnforceSecurity::"],  # no pickle is loaded; pipe: is off by default
}

# Tests of what is offered that fail: why, and a part of their error.
DIFFERS = {
    "test_compat.py::test_cache_dir":
        ("the cache's files have names of its own: samples have no __local_path__", "Extra items in the right set: '__local_path__'"),
    "test_compat.py::test_shuffle_seed":
        ("looks for the parts that WebDataset is made of: here the engine shuffles shards", "ValueError: True is not in list"),
    "test_loaders.py::test_check_empty_throws_ValueError":
        ("WebLoader has threads, so none of 4 workers is without a shard", "DID NOT RAISE"),
    "test_pipeline.py::test_rename_files":
        ("the engine groups files into samples before Python sees a name", "rename_files=...) is not offered; write .map(function)"),
    "test_pipeline.py::test_select_files":
        ("the engine groups files into samples before Python sees a name", "rename_files=...) is not offered; write .map(function)"),
    "test_writer.py::test_writer3":
        ("pickles stay bytes: no code in the data is run", "assert False"),
}
TESTS = 193

# What their tests import from a file that the source distribution lacks.
CONFTEST = """
def count_samples_tuple(source, *args, n=10000):
    count = 0
    for i, sample in enumerate(iter(source)):
        if i >= n:
            break
        assert isinstance(sample, (tuple, dict, list)), (type(sample), sample)
        assert all(f(sample) for f in args)
        count += 1
    return count


local_data = "testdata/imagenet-000000.tgz"
compressed = "testdata/compressed.tar"
remote_loc = "http://storage.googleapis.com/webdataset/openimages/"
remote_shards = "openimages-train-0000{00..99}.tar"
remote_shard = "openimages-train-000321.tar"
remote_sample = "http://storage.googleapis.com/webdataset/testdata/sample.tgz"
"""


def image(kind, width, height, number):
    """An encoded image that differs from those of other numbers."""
    ramp = numpy.add.outer(numpy.arange(height), numpy.arange(width) * 3)
    pixels = numpy.stack([ramp % 251, (ramp + number) % 241, (ramp * (number + 1)) % 239], axis=2).astype(numpy.uint8)
    out = io.BytesIO()
    PIL.Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write(path, samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path), mtime=0, encoder=False) as out:
        for key, fields in samples:
            out.write({"__key__": key, **fields})


def make_data(folder):
    """Shards of the names, sizes and fields that the tests name."""
    data, remote = folder / "testdata", folder / "server/webdataset"
    pictures = [(str(10 + i), {"cls": str(i).encode(), "png": image("png", *((600, 793) if i == 0 else (32, 24)), i),
                               "wnid": b"n01440764", "xml": b"<annotation/>" * 20}) for i in range(47)]
    write(data / "imagenet-000000.tgz", pictures)
    write(data / "compressed.tar", [(f"compressed/000{i}", {"txt.gz": gzip.compress(b"hello\n", mtime=0)}) for i in range(3)])
    arrays = [numpy.random.default_rng(i).normal(size=(28, 28)) for i in range(200)]
    write(data / "tendata.tar", [(f"{i:06}", {"ten": bytes(webdataset.tenbin.encode_buffer(arrays[2 * i:2 * i + 2]))})
                                 for i in range(100)])
    write(remote / "testdata/sample.tgz", [("10", {"cls": b"0", "png": image("png", 32, 24, 0)})])
    shutil.copy(data / "imagenet-000000.tgz", remote / "testdata")
    photos = [image("jpeg", 64, 48, i) for i in range(12)]
    for number in [*range(100), 321]:
        write(remote / f"openimages/openimages-train-{number:06}.tar",
              [(f"{number:04}{i:02}", {"jpg": photos[i], "json": json.dumps([{"LabelName": "/m/01"}]).encode()})
               for i in range(12)])


class Proxy(http.server.SimpleHTTPRequestHandler):
    """Answers for every host, from a folder."""

    def translate_path(self, path):
        return super().translate_path(urllib.parse.urlsplit(path).path)

    def log_message(self, *_):
        pass


def run(folder, *, original=False, tests=(), timeout=900):
    """What came of each test: {name: "" or an error}."""
    make_data(folder)
    shutil.copytree(SOURCE / "tests", folder / "tests")
    (folder / "tests/__init__.py").write_text("")
    (folder / "tests/conftest.py").write_text(CONFTEST)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Proxy, directory=str(folder / "server")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    packages = os.path.dirname(os.path.dirname(os.path.abspath(millrace.__file__)))
    paths = [pathlib.Path(__file__).resolve().parents[1] / "support", folder, packages, os.environ.get("PYTHONPATH", "")]
    environment = harness.CLEAN | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)), "http_proxy": f"http://127.0.0.1:{server.server_port}",
        "SHIM_OUTCOMES": str(folder / "outcomes.json"), "SHIM_ORIGINAL": "1" if original else "",
        "MILLRACE_ALLOW_PIPE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "webdataset_shim", "-p", "no:cacheprovider",
                           "--capture=fd", "-W", "ignore", *(tests or ["tests"])],
                          cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    server.shutdown()
    server.server_close()
    if not (folder / "outcomes.json").exists():
        raise AssertionError(done.stdout + done.stderr)
    return json.loads((folder / "outcomes.json").read_text())


def expected(name):
    """("offered", "") of a test that passes, or what keeps it from passing, and a part of its error."""
    for kind, tests in NOT_OFFERED.items():
        if any(name.startswith(t) for t in tests):
            return "not offered", f"not offered: {kind}"
    return ("differs", DIFFERS[name][1]) if name in DIFFERS else ("passes", "")


@unittest.skipUnless(millrace, WHY_NOT)
@unittest.skipUnless((SOURCE / "tests").is_dir(), f"no source of webdataset in {SOURCE}: ./setup --peers")
class OwnTests(unittest.TestCase):
    maxDiff = None

    def test_each_comes_out_as_the_tables_say(self):
        with harness.Folder() as folder:
            outcomes = run(pathlib.Path(folder))
        wrong = []
        for name, error in sorted(outcomes.items()):
            kind, part = expected(name)
            if bool(error) != (kind != "passes") or part not in error:
                wrong.append(f"{name}: {error or 'passes'}; the tables say: {kind}, '{part}'")
        wrong += [f"{name} did not run" for name in DIFFERS if name not in outcomes]
        wrong += [f"no test of {n}" for n, tests in NOT_OFFERED.items() for t in tests if not any(o.startswith(t) for o in outcomes)]
        self.assertEqual(wrong, [])
        self.assertEqual(len(outcomes), TESTS)
        kinds = [expected(name)[0] for name in outcomes]
        print(f"{len(kinds)} tests: {kinds.count('not offered')} of names that are not offered; of the others "
              f"{kinds.count('passes')} pass, {kinds.count('differs')} differ on purpose")


def main():
    with harness.Folder() as folder:
        names = [a for a in sys.argv[1:] if not a.startswith("--")]
        for name, error in sorted(run(pathlib.Path(folder), original="--original" in sys.argv, tests=names).items()):
            print(f"{'passes' if not error else 'FAILS '}  {name}  {error}")


if __name__ == "__main__":
    main() if "--list" in sys.argv else unittest.main()
