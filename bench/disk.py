"""Reads of a disk and of the page cache: `millrace bench disk` beside the best fio of the same kind.

    disk.py FOLDER [--seconds S] [--rounds N]     FOLDER is on the disk to measure; 2 GiB are written there

For each case all fio settings (engines psync, libaio, io_uring; depths 1 to 32; 128 KiB to 4 MiB) run once; the
best two then alternate with millrace, and medians are compared. Needs fio."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
MILLRACE = ROOT / "build/release/bin/millrace"
FILES, FILE_BYTES = 8, 256 << 20


def make_files(folder):
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"shard-{i}.tar" for i in range(FILES)]
    for path in paths:
        if not path.exists() or path.stat().st_size != FILE_BYTES:
            with open(path, "wb") as out:
                for _ in range(FILE_BYTES >> 20):
                    out.write(os.urandom(1 << 20))
                os.fsync(out.fileno())
    return paths


def drop_cache(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm_cache(paths):
    for path in paths:
        with open(path, "rb") as f:
            while f.read(1 << 20):
                pass


def fio(paths, engine, depth, size, streams, random, direct, seconds):
    command = ["fio", "--output-format=json", "--name=read", f"--rw={'randread' if random else 'read'}", f"--bs={size}",
               f"--iodepth={depth}", f"--ioengine={engine}", f"--direct={int(direct)}", f"--runtime={seconds}",
               "--time_based", "--norandommap", "--invalidate=0", "--thread"]
    if streams == 1 or random:
        command += ["--filename=" + ":".join(map(str, paths)), "--file_service_type=" + ("random" if random else "sequential")]
        if engine == "psync" and random:
            command += [f"--numjobs={depth}", "--group_reporting"]
    else:  # a job for each file
        command = [*command[:2], *command[3:]]
        for path in paths[:streams]:
            command += [f"--name={path.name}", f"--filename={path}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    out = json.loads(said[said.index("{"):])  # notes may come first
    rate = sum(j["read"]["bw_bytes"] for j in out["jobs"]) / 1e6
    read = sum(j["read"]["io_bytes"] for j in out["jobs"]) / 1e9
    cpu = sum((j["usr_cpu"] + j["sys_cpu"]) / 100 * j["job_runtime"] / 1000 for j in out["jobs"])
    return rate, cpu / max(read, 1e-9)


def millrace(paths, streams, random, direct, seconds):
    command = [MILLRACE, "bench", "disk", *paths[:streams if streams > 1 else FILES], "--seconds", str(seconds),
               "--streams", str(streams), "--json"]
    if random:
        command += ["--random", random]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
    environment["MILLRACE_DIRECT"] = "on" if direct else "off"
    if not direct and streams > 1:
        environment["MILLRACE_IO_THREADS"] = "2"  # copying fills a core, and fio has a thread for each stream
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    figures = json.loads(out.stdout.splitlines()[-1])
    return figures["mb_per_s"], figures["cpu_s_per_gb"]


def settings(case):
    if case["random"]:
        return [(e, d, case["random"]) for e in ("psync", "libaio", "io_uring") for d in (1, 4, 16, 32)]
    sizes = ("128k", "1m", "4m")
    uring = [("io_uring", d, s) for d in (1, 4, 16, 32) for s in sizes]
    if not case["direct"]:
        return uring
    return uring + [("psync", 1, s) for s in sizes] + [("libaio", d, s) for d in (1, 4, 16, 32) for s in sizes]


CASES = [
    {"name": "1 stream, direct", "streams": 1, "random": None, "direct": True},
    {"name": "8 streams, direct", "streams": 8, "random": None, "direct": True},
    {"name": "1 stream, page cache", "streams": 1, "random": None, "direct": False},
    {"name": "8 streams, page cache", "streams": 8, "random": None, "direct": False},
    {"name": "random 16 MiB", "streams": 8, "random": "16m", "direct": True},
    {"name": "random 128 KiB", "streams": 16, "random": "128k", "direct": True},
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="only those whose name contains this")
    a = parser.parse_args()
    paths = make_files(a.folder)
    print("| case | millrace MB/s | best fio MB/s | ratio | millrace CPU-s/GB | fio CPU-s/GB | the best fio |\n" + "|---" * 7 + "|")
    for case in CASES:
        if a.cases not in case["name"]:
            continue
        (drop_cache if case["direct"] else warm_cache)(paths)
        arguments = (case["streams"], case["random"], case["direct"])
        tried = sorted(settings(case), reverse=True, key=lambda s: fio(paths, *s, *arguments, 1)[0])
        best = {s: [] for s in tried[:2]}
        ours = []
        for _ in range(a.rounds):
            ours.append(millrace(paths, *arguments, a.seconds))
            for s in best:
                best[s].append(fio(paths, *s, *arguments, a.seconds))
        middle = {s: tuple(statistics.median(v) for v in zip(*r)) for s, r in best.items()}
        peer = max(middle, key=lambda s: middle[s][0])
        rate, cpu = (statistics.median(v) for v in zip(*ours))
        print(f"| {case['name']} | {rate:.0f} | {middle[peer][0]:.0f} | {rate / middle[peer][0]:.2f} | {cpu:.3f} | "
              f"{middle[peer][1]:.3f} | {peer[0]}, depth {peer[1]}, {peer[2]} |", flush=True)


if __name__ == "__main__":
    main()
