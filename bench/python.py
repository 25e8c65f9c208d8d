"""The Python package beside `millrace bench load` and beside other loaders of Python, on shards of photos.

    build/venv/bin/python bench/python.py SHARD... [--rounds 3] [--only NAME] [--small] [--json FILE]

SHARDs have a .jpg and a .cls in each sample. They are read several times in an epoch, under several names, so that no loader
is measured at the end of its epochs. Peers (bench/peers/loaders.py says how each is set up) run in processes of their own, in
turns with millrace; of the set-ups that a peer has (0, 1, 2 and 4 workers; SPDL's threads and decoder) the fastest of one
short trial. A peer that is not installed is left out, and a line says so. Medians; a ratio is of the same round.

    engine  mr.ImageLoader beside `millrace bench load` of the same plan
    peers   mr.ImageLoader beside every peer: random-resized-crop to 224 and flip, batches of 64
    chain   millrace.webdataset beside webdataset: bytes, and decoded photos; without functions, and with one of 20 us
    first   from the start of the process to the first batch
    memory  the most that all processes of a loader hold (the sum of PSS), with as many threads as webdataset has workers
    next    a batch of small images beyond `millrace bench load`; next() with a batch ready
    states  state_dict() at each of 1,000 steps

Needs ./setup --peers, a build of the package (build/release/python), and bench/peers/setup. About 20 minutes on two cores."""

import argparse
import compileall
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]
from samples import dali_index  # noqa: E402
from tests.support import harness  # noqa: E402

LOADERS = ROOT / "bench/peers/loaders.py"
CORES = len(os.sched_getaffinity(0))
WORKERS = [{"workers": n} for n in (0, 1, 2, 4)]
# For each peer the environment below build/venv that has it, and its set-ups.
PEERS = {
    "webdataset": ("", WORKERS),
    "torchvision": ("", WORKERS),
    "SPDL": ("peers-python", [{"threads": n, "decoder": d} for d in ("ffmpeg", "torchvision") for n in (CORES, 2 * CORES)]),
    "LitData": ("peers-python", WORKERS),
    "Streaming": ("peers-streaming", WORKERS),
    "datasets": ("peers-python", WORKERS),
    "DALI pipeline": ("dali", [{"threads": CORES}]),
    "DALI dynamic": ("dali", [{"capture": True}, {"capture": False}]),
}


class Failed(Exception):
    pass


class Bench:
    """The data, and processes with a loader each."""

    def __init__(self, a, folder):
        self.a, self.folder, self.rows, self.chosen = a, folder, [], {}
        times = 2 if a.small else 8
        given = [pathlib.Path(s).resolve() for s in a.shards]
        self.shards = []
        for turn in range(times):
            for at, shard in enumerate(given):
                link = folder / f"photos-{turn:02}-{at:06}.tar"
                link.symlink_to(shard)
                dali_index(str(link))
                self.shards.append(str(link))
        write_files(given, folder / "files")
        self.options = {"shards": self.shards, "files": str(folder / "files"), "lit": str(folder / "lit"), "mds": str(folder / "mds"),
                        "times": times, "batch": 64, "size": 224, "shuffle": 100 if a.small else 1000, "workers": 0, "threads": CORES,
                        "output": "torch", "decoder": "ffmpeg", "capture": True, "library": "", "decode": False, "spin": False,
                        "warm": 0.2 if a.small else 1, "seconds": 0.5 if a.small else 4, "steps": 50 if a.small else 1000}
        self.versions = {}
        for name in ["millrace", *PEERS]:
            self.look_for(name)

    def look_for(self, name):
        """Notes the version of what is installed."""
        try:
            self.versions[name] = self.job(name, "version")["version"]
        except (Failed, OSError) as why:
            if name == "millrace":
                sys.exit(f"the package cannot be imported from {self.a.package}: {why}")
            last = str(why).strip().splitlines()[-1:] or [""]
            print(f"{name} is left out, because it is not installed ({last[0]}): "
                  f"{'bench/peers/setup' if PEERS[name][0] else './setup --peers'} installs it", flush=True)

    def command(self, name, mode, options):
        venv = PEERS[name][0] if name in PEERS else ""
        python = ROOT / "build/venv" / venv / "bin/python"
        env = harness.CLEAN | {"HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1"}
        if not venv:
            env["PYTHONPATH"] = str(self.a.package)
        return {"args": [str(python), str(LOADERS), name, mode, json.dumps(self.options | options)], "env": env, "cwd": self.folder,
                "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def job(self, name, mode, **options):
        """What a process of bench/peers/loaders.py says."""
        return self.ended(subprocess.Popen(**self.command(name, mode, options)), name, mode)

    def ended(self, process, name, mode):
        try:
            out, err = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failed(f"{name} {mode}: not within 180 s") from None
        if process.returncode != 0 or not out.strip():
            raise Failed(f"{name} {mode}: {err[-2000:]}")
        return json.loads(out.strip().splitlines()[-1])

    def peers(self):
        """Those that are installed, with their datasets written."""
        for name, made in ("LitData", "lit"), ("Streaming", "mds"):
            if name not in self.versions or (self.folder / made).exists():
                continue
            try:
                self.job(name, "write")
            except Failed as why:
                print(f"{why}\n{name} is left out", flush=True)
                del self.versions[name]
        return [name for name in PEERS if name in self.versions]

    def best(self, what, name, setups, **options):
        """The fastest set-up of a peer, of one trial each; None if none works."""
        short = {name: 0.5 * self.options[name] for name in ("warm", "seconds")}
        rates = []
        for setup in setups[:2] if self.a.small else setups:
            try:
                rates.append((self.job(name, "rate", **options, **setup, **short)["images_per_s"], setup))
            except Failed as why:
                print(f"{why}\n{name} with {setup} is left out", flush=True)
        if not rates:
            return None
        rates.sort(key=lambda r: r[0], reverse=True)
        self.chosen[what] = rates[0][1]
        print(f"  {what}: {said(rates[0][1])} ({', '.join(f'{said(s)}: {r:.0f}' for r, s in rates)} a second)", flush=True)
        return rates[0][1]

    def engine_rate(self, **options):
        """Images a second of `millrace bench load`, with the plan of millrace() in bench/peers/loaders.py."""
        o = self.options | options
        words = [w for name in ("threads", "batch", "size", "shuffle", "seconds") for w in (f"--{name}", o[name])]
        done = subprocess.run([str(self.a.bin / "millrace"), "bench", "load", *o["shards"], *map(str, words), "--json"],
                              capture_output=True, text=True, env=harness.CLEAN)
        if done.returncode != 0:
            raise Failed(f"millrace bench load: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])["samples_per_s"]

    def seconds_to_first(self, name, setup):
        start = time.time()
        return self.job(name, "first", shuffle=64, **setup)["at"] - start

    def most_memory(self, name, **options):
        """MiB."""
        process = subprocess.Popen(**self.command(name, "rate", options))
        most = 0
        while process.returncode is None:
            most = max(most, sum(pss(pid) for pid in tree(process.pid)))
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
        self.ended(process, name, "rate")
        return most / 1024


def said(setup):
    return ", ".join(f"{name} {value}" for name, value in setup.items())


def write_files(shards, folder):
    """CLASS/NAME.jpg of every sample."""
    for at, shard in enumerate(shards):
        with tarfile.open(shard) as tar:
            files = {m.name: m for m in tar if m.isfile()}
            for name in files:
                if not name.endswith(".jpg"):
                    continue
                label = tar.extractfile(files[name.removesuffix("jpg") + "cls"]).read().decode().strip()
                path = folder / label / f"{at}-{name.replace('/', '_')}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(tar.extractfile(files[name]).read())


def tree(pid):
    """A process and its descendants."""
    out = [pid]
    for of in out:
        try:
            for task in pathlib.Path(f"/proc/{of}/task").iterdir():
                out += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it has ended
    return out


def pss(pid):
    """KiB of a process, its part of shared pages included; 0 once it has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def in_turns(rounds, runs):
    """Figures of each run by name, one a round; every other round in the opposite order. A run that fails is left out."""
    found = {name: [] for name in runs}
    for turn in range(rounds):
        for name in (list(runs) if turn % 2 == 0 else list(runs)[::-1]):
            if name not in found:
                continue
            try:
                found[name].append(runs[name]())
            except Failed as why:
                print(f"{why}\n{name} is left out", flush=True)
                del found[name]
    return found


def compared(b, name, ours, theirs, unit, at_least=None, at_most=None):
    """Figures of the same rounds; a row of the result."""
    ratios = [one / other for one, other in zip(ours, theirs)]
    row = {"what": name, "unit": unit, "ours": statistics.median(ours), "other": statistics.median(theirs),
           "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "at_least": at_least, "at_most": at_most}
    b.rows.append(row)
    print(f"{name}: {row['ours']:,.4g} against {row['other']:,.4g} {unit}, ratio {row['ratio']:.3f} ({row['least']:.3f} to "
          f"{row['most']:.3f}){bound(row)}", flush=True)


def alone(b, name, values, unit, at_most=None):
    """Figures without a peer."""
    row = {"what": name, "unit": unit, "ours": statistics.median(values), "least": min(values), "most": max(values), "at_most": at_most}
    b.rows.append(row)
    print(f"{name}: {row['ours']:,.4g} {unit} ({row['least']:,.4g} to {row['most']:,.4g}){bound(row)}", flush=True)


def bound(row):
    for key, word in ("at_least", "at least"), ("at_most", "at most"):
        if row.get(key) is not None:
            return f"; {word} {row[key]}"
    return ""


def beside_all(b, what, found, unit, best, **bounds):
    """ours and the best of the peers, after a line for each peer."""
    ours = found.get("millrace")
    if not ours:
        return
    others = {name: values for name, values in found.items() if name != "millrace"}
    for name, values in others.items():
        compared(b, f"{what}, beside {name}", ours, values, unit)
    if others:
        name = best(others, key=lambda n: statistics.median(others[n]))
        compared(b, f"{what}, beside the best peer, {name}", ours, others[name], unit, **bounds)


def engine(b):
    seconds = 2 * b.options["seconds"]
    found = in_turns(b.a.rounds, {
        "ours": lambda: b.job("millrace", "rate", warm=0, seconds=seconds)["images_per_s"],
        "theirs": lambda: b.engine_rate(seconds=seconds)})
    if len(found) == 2:
        compared(b, "mr.ImageLoader beside millrace bench load", **found, unit="images/s", at_least=0.98)


def peers(b):
    runs = {"millrace": lambda: b.job("millrace", "rate")["images_per_s"]}
    for name in b.peers():
        setup = b.best(name, name, PEERS[name][1])
        if setup is not None:
            runs[name] = lambda name=name, setup=setup: b.job(name, "rate", **setup)["images_per_s"]
    beside_all(b, "mr.ImageLoader", in_turns(b.a.rounds, runs), "images/s", max, at_least=2.0)


def chain(b):
    if "webdataset" not in b.versions:
        return
    for kind, decode in ("bytes", False), ("decoded photos", True):
        for function, spin, at_least in ("without functions", False, 4), ("with a function of 20 us", True, 2):
            what = f"a chain of {kind}, {function}"
            how = {"decode": decode, "spin": spin}
            setup = b.best(what, "chain", WORKERS, library="webdataset", **how)
            if setup is None:
                continue
            found = in_turns(b.a.rounds, {
                "ours": lambda: b.job("chain", "rate", library="millrace", **how)["images_per_s"],
                "theirs": lambda: b.job("chain", "rate", library="webdataset", **how, **setup)["images_per_s"]})
            if len(found) == 2:
                compared(b, what, **found, unit="samples/s", at_least=at_least)


def first(b):
    runs = {"millrace": lambda: b.seconds_to_first("millrace", {}),
            "millrace without torch": lambda: b.seconds_to_first("millrace", {"output": "numpy"})}
    for name in b.peers():
        setups = PEERS[name][1]
        # Of worker processes none and as many as cores; otherwise the first set-up.
        for setup in [{"workers": 0}, {"workers": CORES}] if setups is WORKERS else setups[:1]:
            key = f"{name}, {setup['workers']} workers" if "workers" in setup else name
            runs[key] = lambda name=name, setup=setup: b.seconds_to_first(name, setup)
    found = in_turns(b.a.rounds, runs)
    # Importing torch is most of it where it is imported: DALI is beside millrace without torch, the others are beside it with torch.
    what = "the first batch, from the start of the process"
    without = {name: values for name, values in found.items() if name in PEERS and PEERS[name][0] == "dali"}
    ours = {"millrace": found.pop("millrace without torch", [])}
    beside_all(b, what, {name: values for name, values in found.items() if name not in without}, "s", min, at_most=0.5)
    beside_all(b, f"{what}, without torch", ours | without, "s", min, at_most=0.5)


def memory(b):
    if "webdataset" not in b.versions:
        return
    how = {"warm": 0, "seconds": 1.5 * b.options["seconds"]}
    found = in_turns(b.a.rounds, {
        "ours": lambda: b.most_memory("millrace", **how),
        "numpy": lambda: b.most_memory("millrace", output="numpy", **how),
        "theirs": lambda: b.most_memory("webdataset", workers=CORES, **how)})
    if len(found) == 3:
        what = f"memory beside webdataset, {CORES} threads and {CORES} workers"
        compared(b, what, found["ours"], found["theirs"], "MiB", at_most=0.3)
        compared(b, f"{what}; millrace without torch", found["numpy"], found["theirs"], "MiB")


def next_call(b):
    """What a batch costs beyond the C++ loader where its images cost little: the difference of both loaders' times for a batch;
    and all of a call that finds a batch ready, which has to wake the loader's threads and is woken by them."""
    subprocess.run([str(b.a.bin / "millrace"), "fake", str(b.folder / "small-%06d.tar"), "--shards", "4", "--samples", "8000",
                    "--size", "32"], check=True, capture_output=True, env=harness.CLEAN)
    small = {"shards": sorted(map(str, b.folder.glob("small-*.tar"))), "size": 32}
    batch = small | {"batch": 8, "warm": 0}
    steps = b.options["steps"] // 4
    found = in_turns(b.a.rounds, {
        "ours": lambda: 8e6 / b.job("millrace", "rate", **batch)["images_per_s"],
        "theirs": lambda: 8e6 / b.engine_rate(**batch),
        "torch": lambda: b.job("millrace", "next", steps=steps, **small),
        "numpy": lambda: b.job("millrace", "next", steps=steps, output="numpy", **small)})
    if "ours" in found and "theirs" in found:
        differences = [one - other for one, other in zip(found["ours"], found["theirs"])]
        alone(b, "a batch of 8 small images beyond millrace bench load", differences, "us", at_most=20)
    for output in "torch", "numpy":
        for key, what in ("us", "median"), ("us_10", "a tenth is below"), ("us_90", "a tenth is above"):
            if output in found:
                alone(b, f"next() of a ready batch, all of the call, {output}, {what}", [r[key] for r in found[output]], "us",
                      at_most=20 if key == "us" else None)


def states(b):
    found = in_turns(b.a.rounds, {"saving": lambda: b.job("millrace", "states", saves=True),
                                  "plain": lambda: b.job("millrace", "states", saves=False)})
    saving, plain = found.get("saving"), found.get("plain")
    if saving and plain:
        compared(b, f"{b.options['steps']} steps with a state_dict() at each, beside steps alone", [r["images_per_s"] for r in saving],
                 [r["images_per_s"] for r in plain], "images/s", at_least=0.99)
    if saving:
        # Threads decode meanwhile: a call waits for a processor, and costs none that they would have had.
        alone(b, "a call of state_dict(), while threads decode", [r["us"] for r in saving], "us")
        alone(b, "the same, of the loop's time", [100 * r["part"] for r in saving], "%", at_most=1)


PARTS = {"engine": engine, "peers": peers, "chain": chain, "first": first, "memory": memory, "next": next_call, "states": states}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="+")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="this part; may be given again")
    parser.add_argument("--small", action="store_true", help="a second of everything, to try the script itself")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--package", type=pathlib.Path, default=ROOT / "build/release/python", help="the folder that has millrace/")
    parser.add_argument("--bin", type=pathlib.Path, default=harness.BIN)
    a = parser.parse_args()
    a.rounds = a.rounds or (1 if a.small else 3)
    a.package, a.bin = a.package.resolve(), a.bin.resolve()
    compileall.compile_dir(a.package, quiet=1)  # as pip does with what it installs, the peers too
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        b = Bench(a, pathlib.Path(folder))
        print(f"{CORES} cores; {', '.join(f'{name} {version}' for name, version in b.versions.items())}", flush=True)
        took = {}
        for name in a.only or PARTS:
            begun = time.monotonic()
            PARTS[name](b)
            took[name] = time.monotonic() - begun
            print(f"  ({name}: {took[name]:.0f} s)", flush=True)
    if a.json:
        a.json.write_text(json.dumps({"cores": CORES, "versions": b.versions, "set-ups": b.chosen, "seconds": took, "rows": b.rows},
                                     indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
