"""What the tests of the Python package share: shards to read, and programs of their own processes."""

import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

for name in [n for n in os.environ if n.startswith("MILLRACE_")]:  # a loader in this process reads them
    del os.environ[name]

try:
    import millrace as mr
except ImportError as missing:
    mr, PACKAGES, WHY_NOT = None, "", f"the Python package is not built ({missing}): ./setup --peers, then ./test"
else:
    WHY_NOT = ""
    PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(mr.__file__)))


def optional(name):
    """A module, where it is installed; otherwise None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


HAS_TORCH = importlib.util.find_spec("torch") is not None  # imported where it is tested: it takes seconds
needs_torch = unittest.skipUnless(HAS_TORCH, "no torch in this Python")
URLS = "train-{000000..000003}.tar"


class Case(unittest.TestCase):
    """400 images of 32 x 32 in four shards, and their index, in the current folder."""

    @classmethod
    def setUpClass(cls):
        if mr is None:
            raise unittest.SkipTest(WHY_NOT)
        cls.folder = cls.enterClassContext(harness.Folder())
        harness.fake(cls.folder, "train", 4, 400)
        done = harness.run("millrace", "index", "train-*.tar", "-o", "train.json", "--offsets", cwd=cls.folder)
        assert done.returncode == 0, done.stderr
        before = os.getcwd()
        os.chdir(cls.folder)
        cls.addClassCleanup(os.chdir, before)

    def start(self, program, **popen):
        """A program in a Python of its own, which has `mr` and `L(**options)`, a loader."""
        begin = """
            import os, signal, sys, threading
            import millrace as mr
            def L(shards="%s", **options):
                return mr.ImageLoader(shards, **{"batch_size": 50, "size": 32, "output": "numpy", "threads": 2} | options)
            """ % URLS
        text = textwrap.dedent(begin) + textwrap.dedent(program)
        return subprocess.Popen([sys.executable, "-c", text], cwd=self.folder, text=True,
                                env=harness.CLEAN | {"PYTHONPATH": PACKAGES},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen)

    def run_program(self, program, code=0, timeout=60):
        """What it wrote to stdout and to stderr. `code`: with which it must exit."""
        process = self.start(program)
        out, err = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, code, out + err)
        return out, err


def loader(shards=URLS, **options):
    """A loader of small images."""
    return mr.ImageLoader(shards, **{"batch_size": 50, "size": 32, "output": "numpy", "threads": 2} | options)


def content(batch):
    """A batch as a value."""
    return batch.images.tobytes(), batch.labels.tolist(), tuple(batch.keys), batch.epoch


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
