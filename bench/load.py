"""The whole loader beside decoding alone, consumers of several speeds, and kept images.

    load.py SHARD... [--rounds 5] [--threads 2] [--seconds 5]

Alternates within each comparison; prints medians. Needs the programs of build/release and nothing else."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

BIN = pathlib.Path(__file__).resolve().parents[1] / "build/release/bin"


def bench(*arguments):
    done = subprocess.run([BIN / "millrace", "bench", *map(str, arguments), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def beside_decoding(a):
    ratios, loads, alone = [], [], []
    for _ in range(a.rounds):
        alone.append(bench("decode", *a.shards, "--threads", a.threads, "--rounds", 3)["images_per_s"])
        loads.append(bench("load", *a.shards, "--threads", a.threads, "--seconds", a.seconds))
        ratios.append(loads[-1]["samples_per_s"] / alone[-1])
    print(f"whole loader {statistics.median(l['samples_per_s'] for l in loads):.0f} images/s, decoding alone "
          f"{statistics.median(alone):.0f}, ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
          f"outside of the pool {statistics.median(l['outside_us'] for l in loads):.1f} us an image")


def consumers(a):
    print("consumer of | images/s | cores | threads used | waiting")
    for rate in (100, 300, 1000):
        found = bench("load", *a.shards, "--rate", rate, "--seconds", 2 * a.seconds)
        print(f"{rate} | {found['samples_per_s']:.0f} | {found['cores']:.2f} | {found['pool_used']:.1f} of {found['pool_threads']} | "
              f"{100 * found['waiting']:.1f} %")


def kept(a):
    rates = {"decoded each time": [], "kept": []}
    for _ in range(a.rounds):
        rates["decoded each time"].append(bench("load", *a.shards, "--seconds", a.seconds)["samples_per_s"])
        rates["kept"].append(bench("load", *a.shards, "--seconds", a.seconds, "--cache-decoded", "4G")["samples_per_s"])
    print(", ".join(f"{name}: {statistics.median(r):.0f} images/s" for name, r in rates.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    a = parser.parse_args()
    beside_decoding(a)
    consumers(a)
    kept(a)


if __name__ == "__main__":
    sys.exit(main())
