"""The shard tools beside their peers: `pack` beside tar, `index create` beside md5sum and widsindex.

    build/venv/bin/python bench/tools.py [--files 100000] [--rounds 3] [--folder FOLDER]

Files of 110 KB in 100 class folders, in the page cache as far as it holds them; what is written is synced by both, and
removed between the runs. Then the shards that came of it, cold (dropped from the page cache) and warm. Last, `index
create --no-md5` over HTTP, of shards with files of 16 MB: what was fetched of them. FOLDER needs room for two and a half
times the files; its disk is what is measured. Needs ./setup --peers."""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import harness  # noqa: E402

SIZE = 110_000
CLASSES = 100


def make_files(folder, files):
    content = random.Random(1).randbytes(SIZE + files)
    for c in range(CLASSES):
        (folder / f"n{c:08}").mkdir(parents=True)
    for i in range(files):
        (folder / f"n{i % CLASSES:08}" / f"{i:08}.jpg").write_bytes(content[i:i + SIZE])


def seconds(command, **options):
    start = time.perf_counter()
    subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL, env=harness.CLEAN, **options)
    return time.perf_counter() - start


def drop(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def in_turns(cases, rounds):
    """Medians in seconds of the cases' functions."""
    runs = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            runs[name].append(run())
    return {name: statistics.median(of) for name, of in runs.items()}


def table(title, size, found, ours):
    print(f"{title}\n\n| | seconds | MB/s | {ours} / it |\n|---|---|---|---|")
    for name, took in found.items():
        print(f"| {name} | {took:.2f} | {size / took / 1e6:,.0f} | {'' if name == ours else f'{took / found[ours]:.2f}'} |")
    print(flush=True)


def pack(folder, files, rounds):
    source, target = folder / "files", folder / "out"
    make_files(source, files)
    target.mkdir()

    def cleared(*command):
        def run():
            for old in target.iterdir():
                old.unlink()
            os.sync()
            return seconds(command, cwd=folder)
        return run

    millrace = [harness.BIN / "millrace", "pack", source, "-o", target / "s-%06d.tar", "--max-bytes", "1G"]
    tar = "tar -cf out/all.tar files && sync out/all.tar"
    found = in_turns({"tar": cleared("sh", "-c", tar), "millrace pack": cleared(*millrace),
                      "millrace pack --shuffle 1": cleared(*millrace, "--shuffle", "1")}, rounds)
    table(f"{files} files of {SIZE // 1000} KB, synced", files * SIZE, found, "millrace pack")
    seconds(["sh", "-c", "rm -f out/*"], cwd=folder)
    seconds(millrace)
    shutil.rmtree(source)
    return sorted(target.glob("*.tar"))


def index(folder, shards, rounds):
    size = sum(s.stat().st_size for s in shards)
    millrace = [harness.BIN / "millrace", "index", "create", "-o", folder / "i.json"]
    read = [harness.BIN / "millrace", "bench", "disk", "--streams", "2", "--seconds", "3", "--json"]
    wids = "import sys; from wids.wids_index import main; sys.argv = ['widsindex', 'create', *sys.argv[1:]]; main()"

    def cold(*command):
        def run():
            drop(shards)
            return seconds(command)
        return run

    def disk():
        drop(shards)
        done = subprocess.run([str(c) for c in [*read, *shards]], check=True, capture_output=True, text=True,
                              env=harness.CLEAN)
        return size / 1e6 / json.loads(done.stdout.splitlines()[-1])["mb_per_s"]

    found = in_turns({
        "index create --offsets": cold(*millrace, "--offsets", *shards),
        "index create --offsets --no-md5": cold(*millrace, "--offsets", "--no-md5", *shards),
        "md5sum, 2 at a time": cold("sh", "-c", "printf '%s\\n' \"$@\" | xargs -P2 -n1 md5sum", "sh", *shards),
        "the disk, millrace bench disk": disk}, rounds)
    environment = harness.CLEAN | {"PYTHONPATH": str(ROOT / "build/venv/wids")}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", wids, *map(str, shards), "-o", str(folder / "w.json")], check=True,
                   stdout=subprocess.DEVNULL, env=environment)
    found["widsindex create"] = time.perf_counter() - start
    table(f"{len(shards)} shards of {size / 1e9:.1f} GB, cold", size, found, "index create --offsets")


def over_http(folder):
    (folder / "www").mkdir()
    (folder / "nginx").mkdir()
    with open(folder / "zeros", "wb") as zeros:
        zeros.truncate(16_000_000)
    for s in range(2):
        with tarfile.open(folder / f"www/l-{s}.tar", "w") as tar:
            for i in range(60):
                tar.add(folder / "zeros", f"{s}{i:05}.bin")
    log = folder / "nginx/access.log"
    with harness.Nginx(folder / "nginx", folder / "www", f"access_log {log};") as server:
        command = ["millrace", "index", "create", "--offsets", "--no-md5", f"{server.url}/l-{{0..1}}.tar", "-o",
                   folder / "l.json"]
        start = time.perf_counter()
        done = harness.run(*command)
        took = time.perf_counter() - start
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    sent = sum(int(line.split()[9]) for line in log.read_text().splitlines())
    size = sum(p.stat().st_size for p in (folder / "www").iterdir())
    print(f"over HTTP, 120 files of 16 MB: {sent / 1e6:.1f} MB of {size / 1e6:,.0f} MB in {took:.2f} s")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--folder", help="where to put the files (the folder for temporary files)")
    o = options.parse_args()
    with tempfile.TemporaryDirectory(dir=o.folder) as name:
        folder = pathlib.Path(name)
        index(folder, pack(folder, o.files, o.rounds), o.rounds)
        over_http(folder)


if __name__ == "__main__":
    main()
