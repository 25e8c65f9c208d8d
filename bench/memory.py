"""Resident memory while reading large shards under a small budget, second by second.

    bench/memory.py [--budget 256M] [--shards 8] [--mb 1000]

Makes the shards (samples of 100 KB) in build/bench, reads them by `millrace digest` (one lane) and by
example_read (eight lanes and a shuffle), and prints the largest resident size, for each quarter of the run as well."""

import argparse
import io
import os
import pathlib
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import harness  # noqa: E402


def rss_mib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


def make_shards(folder, count, megabytes):
    folder.mkdir(parents=True, exist_ok=True)
    noise = os.urandom(1 << 20)
    for s in range(count):
        path = folder / f"big-{s:06}.tar"
        if path.exists() and path.stat().st_size >= megabytes * 10**6:
            continue
        with tarfile.open(path, "w") as out:
            for i in range(megabytes * 10):
                for extension, size in ("bin", 99_000), ("cls", 1):
                    info = tarfile.TarInfo(f"{s:03}{i:06}.{extension}")
                    info.size = size
                    out.addfile(info, io.BytesIO(noise[i % 1000:i % 1000 + size]))
    return f"{folder}/big-{{000000..{count - 1:06}}}.tar"


def watch(name, command, env):
    process = subprocess.Popen(command, env=harness.CLEAN | env, stdout=subprocess.DEVNULL)
    samples = []
    while process.poll() is None:
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            samples.append(rss_mib(process.pid))
    quarters = [max(samples[i * len(samples) // 4:(i + 1) * len(samples) // 4] or [0]) for i in range(4)]
    print(f"{name:28} exit {process.returncode}, peak {max(samples, default=0):6.0f} MiB; by quarter of the run: "
          + ", ".join(f"{q:.0f}" for q in quarters))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--budget", default="256M")
    options.add_argument("--shards", type=int, default=8)
    options.add_argument("--mb", type=int, default=1000)
    o = options.parse_args()
    spec = make_shards(ROOT / "build/bench/memory", o.shards, o.mb)
    env = {"MILLRACE_MEMORY": o.budget}
    watch("digest, one lane", [harness.BIN / "millrace", "digest", spec], env)
    watch("8 lanes, shuffle of 2,000", [harness.BIN / "example_read", spec, o.budget], env)


if __name__ == "__main__":
    main()
