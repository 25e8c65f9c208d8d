"""README.md and pages of docs/: every block of theirs is run. Commands are run in order, in a folder with shards;
C++ and CMake are verbatim parts of sources that are compiled and run; Python is run where webdataset is installed, and compiled elsewhere."""

import io
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

# What docs_snippets prints, but for seconds and paths.
SNIPPETS = """engine with options: 400
environment and options: 400
epochs of a loader: 1200
items one by one: 400
items in slices: 400
missing: 0
images of a batch: 8
broken: 2
errors of functions: 52
skipped: 4
notices: 4
stopped by a token: 1
states of ranks: 400
different keys: 400
fingerprints: 1
equal epoch: 132
equal epoch: 132
equal epoch: 132
stages: 7
a pipeline: 7
two ranks: 400
resampled: 250
resampled: 250
functions of samples: 40
columns: 48
columns: 48
columns: 48
columns: 48
errors: 7
joined: 400
joined with a table: 400
mixed: 464
random access: 200
"""

# Items of `data` (or `loader`) after each block of Python in from-webdataset.md.
PYTHON_ITEMS = [400, 7, 8, 400, 250, 400, 40, 4, 464]

# Runs blocks in one namespace and prints how many items each makes.
PYTHON = """
import json, sys, warnings
warnings.simplefilter("ignore")
space, counts = {}, []
for block in json.load(sys.stdin):
    before = dict(space)
    exec(block, space)
    made = [v for k, v in space.items() if k in ("data", "loader") and v is not before.get(k)]
    counts += [sum(1 for _ in v) for v in made]
print(json.dumps(counts))
"""


def without_figures(text):
    """Lines in which all figures, and the units of times and sizes, are the same."""
    return [re.sub(r"# (us|ms|s|KiB|MiB)\b", "# unit", re.sub(r"\d[\d.,:]*", "#", line)).strip() for line in text.splitlines()]


def npy(values):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(values)},), }}".ljust(117) + "\n"
    return (b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() +
            struct.pack(f"<{len(values)}f", *values))


def write_shard(path, samples):
    with tarfile.open(path, "w") as tar:
        for key, fields in samples:
            for extension, content in fields.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def text_sample(shard, i):
    """Of sixteen samples of a shard one has no text, and two have an empty one."""
    text = {} if i == 1 else {"txt": b"" if i % 8 == 0 else b"text %d" % i}
    return f"t{shard}{i:03}", text | {"cls": b"%d" % i, "npy": npy([i, i + 1, i + 2]), "json": json.dumps({"i": i}).encode()}


class Page(unittest.TestCase):
    """What the pages' tests share: a folder with shards, an index, and what the pages name of the repository."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(harness.Folder())
        harness.fake(cls.folder, "train", 4, 400)
        for shard in range(4):
            write_shard(cls.folder / f"text-{shard}.tar", [text_sample(shard, i) for i in range(16)])
        with tarfile.open(cls.folder / "train-000000.tar") as tar:
            jpeg = tar.extractfile(tar.getmembers()[0]).read()
        write_shard(cls.folder / "broken.tar", [(f"b{i}", {"jpg": b"no image" if i in (3, 7) else jpeg, "cls": b"1"})
                                                for i in range(10)])
        done = harness.run("millrace", "index", "train-*.tar", "-o", "train.json", "--offsets", cwd=cls.folder)
        assert done.returncode == 0, done.stderr
        (cls.folder / "build").mkdir()
        (cls.folder / "build/release").symlink_to(harness.BIN.parent)
        (cls.folder / "examples").symlink_to(harness.ROOT / "examples")

    def blocks(self, page, *kinds):
        text = (harness.ROOT / "docs" / page).read_text()
        known = re.findall(r"^```(\w*)(?: skip)?\n.*?^```$", text, re.M | re.S)
        self.assertLessEqual(set(known), {"bash", "text", "cpp", "cmake", "python"})
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        self.assertNotRegex(prose, r"\n\n    \S", "a block without a kind, which nothing runs")
        return re.findall(rf"^```({'|'.join(kinds)})( skip)?\n(.*?)^```$", text, re.M | re.S)

    def check_commands(self, page, hosts=None):
        commands = []
        for kind, skip, content in self.blocks(page, "bash", "text"):
            if skip:
                continue
            if kind == "bash":
                commands.append((content, []))
            else:
                commands[-1][1].extend(content.splitlines())
        environment = harness.CLEAN | {"PATH": f"{harness.BIN}:{harness.CLEAN['PATH']}"}
        for content, printed in commands:
            with self.subTest(page=page, commands=content):
                for name, real in (hosts or {}).items():
                    content = content.replace(name, real)
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", content], cwd=self.folder, text=True, timeout=300,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
                self.assertEqual(done.returncode, 0, done.stdout)
                said = without_figures(done.stdout)
                for line in without_figures("\n".join(printed)):  # a line of it, or how one begins
                    begins = re.compile(re.escape(line) + r"(?!\w)")
                    self.assertTrue(any(begins.match(l) for l in said), f"'{line}' is not in\n{done.stdout}")
        self.assertTrue(commands)

    def check_parts(self, page):
        """Each block of C++ and CMake stands in a source, whatever its indentation there."""
        sources = {"cpp": [*(harness.ROOT / "examples").glob("*.cc"), harness.ROOT / "tests/docs/snippets.cc",
                           harness.ROOT / "tests/pipeline/formats_test.cc"],
                   "cmake": [harness.ROOT / "tests/install/consumer/CMakeLists.txt"]}
        found = self.blocks(page, *sources)
        self.assertTrue(found)
        for kind, _, content in found:
            lines = content.rstrip("\n")
            indented = [textwrap.indent(lines, " " * n) + "\n" for n in range(0, 9, 2)]
            self.assertTrue(any(part in "\n" + source.read_text() for source in sources[kind]
                                for part in ("\n" + i for i in indented)), f"{page}: in no source:\n{content}")


class Embedding(Page):
    def test_blocks(self):
        self.check_parts("embedding.md")
        self.check_commands("embedding.md")

    def test_snippets(self):
        done = harness.run("docs_snippets", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = [l for l in done.stdout.splitlines(True) if re.fullmatch(r"[a-z ]+: \d+\n", l)]
        self.assertEqual("".join(figures), SNIPPETS)
        self.assertIn("check the path: not_found: the shard could not be read: no such file, at ", done.stdout)
        self.assertIn("key b3", done.stdout)
        self.assertRegex(done.stdout, r"read_samples: [\d.]+ s of work")

    def test_every_example_is_listed(self):
        text = (harness.ROOT / "docs/embedding.md").read_text()
        listed = re.findall(r"^\| \[(\w+\.cc)\]\(\.\./examples/\1\)", text, re.M)
        self.assertEqual(sorted(listed), sorted(p.name for p in (harness.ROOT / "examples").glob("*.cc")))


class OwnParts(Page):
    def test_blocks(self):
        for page in ("../README.md", "stages.md", "formats.md"):
            with self.subTest(page):
                self.check_parts(page)

    def test_every_page_with_blocks_is_tested(self):
        tested = "".join(p.read_text() for p in (harness.ROOT / "tests/docs").glob("*_test.py"))
        for page in (harness.ROOT / "docs").glob("*.md"):
            if "\n```" in page.read_text():
                self.assertIn(page.name, tested)


class FromWebDataset(Page):
    def test_blocks(self):
        self.check_parts("from-webdataset.md")
        self.check_commands("from-webdataset.md")

    def test_python(self):
        found = self.blocks("from-webdataset.md", "python")
        for _, _, content in found:
            compile(content, "from-webdataset.md", "exec")
        ready = harness.VENV_PYTHON.exists() and subprocess.run(
            [harness.VENV_PYTHON, "-c", "import torch, webdataset"], env=harness.CLEAN, capture_output=True).returncode == 0
        if not ready:
            self.skipTest("webdataset is not installed: ./setup --peers")
        blocks = [content for _, skip, content in found if not skip]
        done = subprocess.run([harness.VENV_PYTHON, "-c", PYTHON], cwd=self.folder, input=json.dumps(blocks), text=True,
                              capture_output=True, timeout=300,
                              env=harness.CLEAN | {"PATH": f"{harness.BIN}:{harness.CLEAN['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1]), PYTHON_ITEMS)


class FromPython(Page):
    # What a test can do in place of what the page names; the options that are added end a run after a few steps.
    SMALL = {"{000000..000146}": "{000000..000003}", "{000000..001281}": "{000000..000003}", "{000000..000006}": "{000000..000001}",
             "{000000..000049}": "{000000..000001}", "--nproc 8": "--nproc 2", "1281167": "200", "1000000": "200",
             "--model resnet50": "--model trivial --classes 10 --size 8 --device cpu --max-steps 6 --timeout 60"}

    def test_blocks(self):
        harness.fake(self.folder, "val", 2, 100)
        with tarfile.open(self.folder / "train-000000.tar") as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    path = self.folder / "photos" / f"class{len(member.name) % 2}" / pathlib.Path(member.name).name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(tar.extractfile(member).read())
        # Starts the command here, as ssh does on another host: by a shell.
        stand_in = self.folder / "ssh"
        stand_in.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
        stand_in.chmod(0o755)
        ssh = f"MASTER_PORT={harness.free_port()} SSH={stand_in} DIR={self.folder} {harness.ROOT}/deploy/ssh.sh"
        with harness.PlainServer(self.folder) as server:
            self.check_commands("from-python.md", self.SMALL | {
                "http://host": server.url, "deploy/ssh.sh": ssh, "host0": "127.0.0.1", "host1": "localhost", "11111": str(harness.free_port())})


class Scale(Page):
    def test_blocks(self):
        self.check_parts("scale.md")
        # `tune` takes no less than 16 MiB.
        write_shard(self.folder / "large-0.tar", [(f"l{i}", {"bin": os.urandom(1 << 20)}) for i in range(20)])
        with harness.PlainServer(self.folder) as server:
            self.check_commands("scale.md", {"http://host": server.url, "tune 'train-": "tune 'large-"})

    def test_the_variables_of_each_launcher_are_in_its_row(self):
        table = re.findall(r"^\|([^|]*)\|([^|]*)\|([^|]*)\|$", (harness.ROOT / "docs/scale.md").read_text(), re.M)
        named = " ".join(" ".join(row) for row in table)
        # OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
        named = re.sub(r"\b(\w+_WORLD)_RANK, _SIZE, _LOCAL_RANK", r"\1_RANK \1_SIZE \1_LOCAL_RANK", named)
        source = (harness.ROOT / "engine/host/job_place.cc").read_text()
        for variable in re.findall(r'\.(?:rank|world_size|hosts|address|port) = "(\w+)"', source):
            self.assertIn(variable, re.findall(r"\w+", named))


if __name__ == "__main__":
    unittest.main()
