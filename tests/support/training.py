"""Small runs of millrace-train, alone and as jobs of several ranks."""

import contextlib
import json
import os
import pathlib
import subprocess
import unittest

from tests.support import forked_trainer, harness

# A model and images so small that a run takes as long as it takes to load torch.
TINY = ["--model", "trivial", "--classes", "10", "--size", "8", "--batch-size", "8", "--device", "cpu", "--lr", "0.01",
        "--shuffle", "50"]
# One thread each: ranks of a job share the host's cores.
ALONE = {"OMP_NUM_THREADS": "1", "MILLRACE_CPU_THREADS": "1"}


CRC32C = list(range(256))
for _ in range(8):
    CRC32C = [x >> 1 ^ (0x82F63B78 if x & 1 else 0) for x in CRC32C]


def lines(path):
    """The JSON lines of a metrics file, except a last one that is still being written."""
    text = pathlib.Path(path).read_text() if pathlib.Path(path).exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def steps(path):
    """Losses by step; if a step was repeated, the last one."""
    return {l["step"]: l["loss"] for l in lines(path) if "batch" in l}


def children_of(pid):
    """The processes that it has started, dead ones that it has not waited for included."""
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def trained_keys(path, at_most=None):
    """The keys trained on, by epoch, of a run with --metrics-keys, over all ranks: of each step, those of the last start that took
    it. `at_most`: the largest world size of any start."""
    files = [lines(f"{path}.rank{rank}" if rank else path) for rank in range(at_most or 16)]
    starts = [line for line in files[0] if "begin" in line]
    owner = {}  # the start of each step
    for start in starts:
        owner = {step: of for step, of in owner.items() if step <= start["from_step"]}
        owner |= {step: start["start"] for step in range(start["from_step"] + 1, start["from_step"] + 100_000)}
    out = {}
    for of_rank in files:
        start = None
        for line in of_rank:
            start = line.get("start", start)
            if "batch" in line and owner[line["step"]] == start:
                out.setdefault(line["epoch"], []).extend(line["keys"])
    return out


def taken(path):
    """The number of steps in a metrics file, including repeated ones."""
    return pathlib.Path(path).read_bytes().count(b'"batch":') if pathlib.Path(path).exists() else 0


def crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 255]
    return f"{crc ^ 0xFFFFFFFF:08x}"


@contextlib.contextmanager
def changed_meta(folder):
    """train.json of a checkpoint, to be changed; written back as if it had been saved that way."""
    file = pathlib.Path(folder) / "train.json"
    meta = json.loads(file.read_text())
    del meta["checksum"]
    yield meta
    meta["checksum"] = crc32c(json.dumps(meta, sort_keys=True, separators=(",", ":")).encode())
    file.write_text(json.dumps(meta))


def replace_in_checkpoint(folder, name, content):
    """Replaces a file of a checkpoint, as if it had been saved that way."""
    (folder / name).write_bytes(content)
    with changed_meta(folder) as meta:
        meta["files"][name] = {"bytes": len(content), "crc32c": crc32c(content)}


def train(*arguments, env=None, timeout=120, **popen):
    """A run to its end, as subprocess.run() gives it."""
    words = [str(harness.BIN / "millrace-train"), *map(str, TINY), *map(str, arguments)]
    with forked_trainer.popen(words, env=harness.CLEAN | ALONE | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, **popen) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def start(*arguments, env=None, **popen):
    return forked_trainer.popen(
        [harness.BIN / "millrace-train", *TINY, *arguments], env=harness.CLEAN | ALONE | (env or {}), stderr=subprocess.PIPE,
        text=True, errors="backslashreplace", **popen)


class Job:
    """Ranks of one job as processes: `of_rank(r)` returns a rank's own arguments."""

    def __init__(self, world, of_rank, common=(), env=None):
        port = str(harness.free_port())
        place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.ranks = [start("--timeout", "30", *common, *of_rank(r), env=place | {"RANK": str(r)} | (env or {}))
                      for r in range(world)]

    def wait(self, timeout=120):
        """Exit codes and messages by rank."""
        self.texts = []
        for process in self.ranks:
            try:
                self.texts.append(process.communicate(timeout=timeout)[1])
            except subprocess.TimeoutExpired:
                for p in self.ranks:
                    p.kill()
                self.texts.append(process.communicate()[1] + "\nit did not end")
        self.codes = [process.returncode for process in self.ranks]
        return self.codes

    def kinds(self):
        """The kind of error with which each rank ended; "" for none."""
        out = []
        for text in self.texts:
            said = [l.split(": ")[1] for l in text.splitlines() if l.startswith("millrace: ") and l.count(": ") > 1]
            out.append(said[-1] if said else "")
        return out


def seeds(default, variable):
    """Seeds of a property test: a few, or as many as the variable requests."""
    return range(int(os.environ.get(variable, default)))


class WithShards(unittest.TestCase):
    """Tests with a generated dataset, shared by a class, and a folder for each test."""

    train_counts = (4, 120)  # shards, samples
    val_counts = None        # of another one to validate with
    size = 16

    @classmethod
    def setUpClass(cls):
        cls.data = cls.enterClassContext(harness.Folder())
        cls.shards = harness.fake(cls.data, "train", *cls.train_counts, size=cls.size)
        if cls.val_counts:
            cls.val = harness.fake(cls.data, "val", *cls.val_counts, size=cls.size, seed=1)

    def setUp(self):
        self.folder = self.enterContext(harness.Folder())
