"""From shards in the page cache to samples, without decoding, beside Python webdataset and DALI.

    build/venv/bin/python bench/samples.py [--rounds 5] [--dali PYTHON]

8 shards of samples of 110 KB, then of 3 KB (a .jpg and a .cls), read in turns: samples_bench (one lane, one I/O
thread), a Python process with webdataset that looks at every sample, DALI's webdataset reader with its index, CPU only,
and, as the limit, read() of the same files into one buffer of 256 KiB. Times count from the first request to the last
sample; interpreters' starts and indexing are left out. `--dali`: the interpreter of an environment that has nvidia-dali
(no GPU is needed). Needs ./setup --peers."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import harness  # noqa: E402

WEBDATASET = """
import json, resource, sys, time, webdataset
start, cpu = time.perf_counter(), time.process_time()
samples = size = 0
for sample in webdataset.WebDataset(sys.argv[1:], shardshuffle=False, empty_check=False):
    samples += 1
    size += len(sample["jpg"]) + len(sample["cls"])
print(json.dumps({"samples": samples, "bytes": size, "seconds": time.perf_counter() - start,
                  "cpu_seconds": time.process_time() - cpu}))
"""

READ = """
import json, os, sys, time
buffer = bytearray(262144)
start, cpu = time.perf_counter(), time.process_time()
size = 0
for shard in sys.argv[2:]:
    fd = os.open(shard, os.O_RDONLY)
    while n := os.readv(fd, [buffer]):
        size += n
    os.close(fd)
print(json.dumps({"samples": int(sys.argv[1]), "bytes": size, "seconds": time.perf_counter() - start,
                  "cpu_seconds": time.process_time() - cpu}))
"""

DALI = """
import json, sys, time
import nvidia.dali.fn as fn
from nvidia.dali import pipeline_def

shards = sys.argv[1:]
samples = sum(int(open(s + ".idx").readline().split()[1]) for s in shards)
BATCH = 64

@pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, prefetch_queue_depth=2)
def reading():
    return tuple(fn.readers.webdataset(paths=shards, index_paths=[s + ".idx" for s in shards], ext=["jpg", "cls"],
                                       missing_component_behavior="error", name="r", dont_use_mmap=MMAP == 0))

pipe = reading()
pipe.build()
start, cpu = time.perf_counter(), time.process_time()
got = size = 0
while got < samples:
    jpg, cls = pipe.run()
    got += len(jpg)
    size += sum(len(jpg.at(i)) for i in range(len(jpg)))
print(json.dumps({"samples": got, "bytes": size, "seconds": time.perf_counter() - start,
                  "cpu_seconds": time.process_time() - cpu}))
"""


def dali_index(shard):
    """DALI's index (v1.2): for each sample the extension, offset and size of its data and the name of each file."""
    lines = []
    with open(shard, "rb") as f:
        at, sample, key = 0, [], None
        while len(header := f.read(512)) == 512 and header.strip(b"\0"):
            name = header[:100].rstrip(b"\0").decode()
            size = int(header[124:135], 8)
            stem, _, extension = name.partition(".")
            if stem != key and sample:
                lines.append(sample)
                sample = []
            key = stem
            sample.append(f"{extension} {at + 512} {size} {name}")
            at += 512 + (size + 511) // 512 * 512
            f.seek(at)
    lines.append(sample)
    pathlib.Path(f"{shard}.idx").write_text(f"v1.2 {len(lines)}\n" + "".join(" ".join(l) + "\n" for l in lines))


def figures(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=harness.CLEAN)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--dali", help="an interpreter with nvidia-dali")
    o = options.parse_args()
    for size, samples in ((440, 8000), (52, 160000)):
        table(size, samples, o)


def table(size, samples, o):
    python = ROOT / "build/venv/bin/python"
    with tempfile.TemporaryDirectory() as folder:
        harness.fake(pathlib.Path(folder), "s", 8, samples, size=size)
        shards = sorted(map(str, pathlib.Path(folder).glob("s-*.tar")))
        clients = {"millrace": [harness.BIN / "samples_bench", *shards],
                   "webdataset": [python, "-c", WEBDATASET, *shards]}
        if o.dali:
            for shard in shards:
                dali_index(shard)
            clients["DALI"] = [o.dali, "-c", DALI.replace("MMAP", "1"), *shards]
            clients["DALI, without mmap"] = [o.dali, "-c", DALI.replace("MMAP", "0"), *shards]
        clients["read() alone"] = [python, "-c", READ, samples, *shards]
        runs = {name: [] for name in clients}
        for _ in range(o.rounds):
            for name, command in clients.items():
                runs[name].append(figures(command))
    by_time = {name: statistics.median(r["samples"] / r["seconds"] for r in of) for name, of in runs.items()}
    by_core = {name: statistics.median(r["samples"] / r["cpu_seconds"] for r in of) for name, of in runs.items()}
    mean = runs["millrace"][0]["bytes"] / runs["millrace"][0]["samples"]
    print(f"{len(shards)} shards, {samples} samples of {mean / 1000:.1f} KB, medians of {o.rounds}\n")
    print("| reader | samples/s | millrace's | samples per CPU-second | millrace's |\n|---|---|---|---|---|")
    for name in clients:
        print(f"| {name} | {by_time[name]:,.0f} | {by_time['millrace'] / by_time[name]:.2f} | {by_core[name]:,.0f} "
              f"| {by_core['millrace'] / by_core[name]:.2f} |")
    print()


if __name__ == "__main__":
    main()
