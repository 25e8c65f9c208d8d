"""Readers of the modelled rotational disks, side by side. Needs root (to mount), libfuse3 and ./setup --peers.

    table.py [--only TEXT] [--seconds S]          the table, row by row
    table.py --timeline                           where the head is, with 8 shards, without and with the gate

Rates are MB/s (10^6) of the files' bytes that reached the readers. millrace is measured from 3 s after its start on,
when the memory that it reads into has been touched once."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build/release/bin"
PYTHON = ROOT / "build/venv/bin/python"
SHARD = 128 << 20
WARM_UP = 3.0

WEBDATASET = """
import sys, time, torch, webdataset as wds
urls, workers = sys.argv[1:], 8
def size(sample):  # so that the workers' bytes are not sent through pipes
    return sum(len(v) for v in sample.values() if isinstance(v, bytes))
data = wds.WebDataset(urls, shardshuffle=False, nodesplitter=None, empty_check=False).map(size)
loader = torch.utils.data.DataLoader(data, batch_size=100, num_workers=workers)
start, total = time.monotonic(), 0
for sizes in loader:
    total += int(sizes.sum())
print(total / 1e6 / (time.monotonic() - start))
"""


def environment(**extra):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
    return clean | {k: str(v) for k, v in extra.items()}


@contextlib.contextmanager
def folder_of_shards(count, with_samples=False):
    """In memory. Holes where the content does not matter; else tars of 100 KB samples."""
    folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm", prefix="millrace-model-"))
    try:
        for i in range(count):
            path = folder / f"shard-{i:04}.tar"
            if with_samples and i == 0:
                import io
                import tarfile
                with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as out:
                    for k in range(SHARD // (100_000 + 1024)):
                        info = tarfile.TarInfo(f"{k:08}.bin")
                        info.size = 100_000
                        out.addfile(info, io.BytesIO(os.urandom(100_000)))
            elif with_samples:
                shutil.copy(folder / "shard-0000.tar", path)
            else:
                with open(path, "wb") as out:
                    out.truncate(SHARD)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def model(folder, *arguments):
    mount = tempfile.mkdtemp(prefix="millrace-mount-")
    process = subprocess.Popen([BIN / "millrace-rotational", folder, mount, *map(str, arguments)], stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        yield pathlib.Path(mount)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        os.rmdir(mount)


def shards(mount):
    return sorted(mount.glob("*.tar"))


def dd(paths, *flags):
    start = time.monotonic()
    running = [subprocess.Popen(["dd", f"if={p}", "of=/dev/null", *flags], stderr=subprocess.DEVNULL) for p in paths]
    for r in running:
        r.wait()
    return sum(p.stat().st_size for p in paths) / 1e6 / (time.monotonic() - start)


def webdataset(urls, **extra):
    out = subprocess.run([PYTHON, "-W", "ignore", "-c", WEBDATASET, *map(str, urls)], env=environment(**extra), check=True,
                         capture_output=True, text=True)
    return float(out.stdout)


def millrace(paths, processes, spindles, seconds, **extra):
    """(sum of the processes' rates, slowest / fastest)"""
    running = []
    for i in range(processes):
        mine = paths[i::processes]
        running.append(subprocess.Popen(
            [BIN / "millrace", "bench", "disk", *mine, "--streams", str(len(mine)), "--seconds", str(seconds + WARM_UP),
             "--json"], stdout=subprocess.PIPE, text=True, env=environment(MILLRACE_SPINDLES=spindles, **extra)))
    rates = []
    for r in running:
        figures = json.loads(r.communicate()[0].splitlines()[-1])
        skipped = int(WARM_UP / figures["interval_seconds"])
        steady = figures["mb_per_s_over_time"][skipped:]
        # Bytes come an extent at a time: from the end of the first one to the end of the last one.
        come = [i for i, rate in enumerate(steady) if rate > 0]
        rates.append(sum(steady[come[0] + 1:come[-1] + 1]) / (come[-1] - come[0]))
    return sum(rates), min(rates) / max(rates)


def row(label, rate, limit, note=""):
    print(f"| {label} | {rate:.0f} | {rate / limit:.2f} | {note} |", flush=True)


def plain_rows(order):
    with folder_of_shards(8, with_samples=True) as folder:
        def on_model(label, read):
            with model(folder, "--order", order) as mount:
                row(f"1 spindle, {order}: {label}", read(shards(mount)), 200)
        on_model("one file, dd", lambda s: dd(s[:1], "bs=1M"))
        on_model("8 files, dd", lambda s: dd(s, "bs=1M"))
        on_model("webdataset, 8 workers", webdataset)
        on_model("the same, GOPEN_BUFFER=8 MB", lambda s: webdataset(s, GOPEN_BUFFER=8 << 20))
        on_model("the same, through mbuffer 40 MB", lambda s: webdataset([f"pipe:mbuffer -q -m 40M -s 4M -i {p}" for p in s]))
        on_model("the same, through millrace cat", lambda s: webdataset([f"pipe:{BIN}/millrace cat {p}" for p in s],
                                                                       MILLRACE_SPINDLES=1))


def millrace_rows(order, spindles, seconds):
    for count in (8, 32, 64):
        with folder_of_shards(count) as folder:
            for processes in (1, 2, 4, 8):
                with model(folder, "--order", order, "--spindles", spindles) as mount:
                    rate, fairness = millrace(shards(mount), processes, spindles, seconds)
                row(f"{spindles} spindles, {order}: millrace, {count} shards, {processes} processes", rate, 200 * spindles,
                    f"slowest / fastest {fairness:.2f}")


def two_disks(seconds):
    with folder_of_shards(8) as one, folder_of_shards(8) as two, model(one) as first, model(two) as second:
        rate, _ = millrace(shards(first) + shards(second), 1, 1, seconds)
        row("two disks of 1 spindle: millrace, 8 shards on each", rate, 400)


def fairness(seconds):
    with folder_of_shards(8) as folder, model(folder) as mount:
        rate, share = millrace(shards(mount), 8, 1, seconds)
        row(f"1 spindle: 8 processes for {seconds:.0f} s", rate, 200, f"slowest / fastest {share:.2f}")


def timeline():
    """One row for each shard's place, one column for each 20 ms; # where the head reads."""
    columns, step = 100, 0.02
    with folder_of_shards(8) as folder, tempfile.TemporaryDirectory() as out:
        for label, setting in (("without the gate", {"MILLRACE_SERIALIZE": "off"}), ("with it", {})):
            log = pathlib.Path(out, "timeline")
            with model(folder, "--order", "fifo", "--timeline", log) as mount:
                millrace(shards(mount), 1, 1, 3, **setting)
            parts = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
            begin = parts[0][0] + 2
            grid = [[" "] * columns for _ in range(8)]
            moves, before = 0, None
            for start, end, _, place, size in parts:
                shard = int(place / (150e9 / 8) + 0.01)
                if begin <= start < begin + columns * step:
                    grid[shard][int((start - begin) / step)] = "#"
                    moves += before is not None and not 0 <= place - before <= 131072
                before = place + size
            print(f"{label}: {moves} moves in {columns * step:.0f} s; a column is {step * 1000:.0f} ms, a row a shard")
            print("\n".join("  |" + "".join(r) + "|" for r in grid), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the parts whose name contains this: plain, 1, 4, two, fair")
    parser.add_argument("--seconds", type=float, default=12, help="of each millrace row")
    parser.add_argument("--timeline", action="store_true")
    a = parser.parse_args()
    if a.timeline:
        return timeline()
    print("| reader | MB/s | of the limit | |\n|---|---|---|---|")
    parts = {"plain": lambda: [plain_rows(o) for o in ("fifo", "elevator")],
             "1 spindle": lambda: [millrace_rows(o, 1, a.seconds) for o in ("fifo", "elevator")],
             "4 spindles": lambda: [millrace_rows(o, 4, a.seconds) for o in ("fifo", "elevator")],
             "two disks": lambda: two_disks(a.seconds),
             "fairness": lambda: fairness(60)}
    for name, run in parts.items():
        if a.only in name:
            run()


if __name__ == "__main__":
    sys.exit(main())
