"""millrace beside its peers over HTTP: curl --parallel, aria2c, wrk, webdataset over pipe:curl.

    python3 bench/network.py [--rounds 5] [--folder DIR] [--small] [CASE...]

Makes its objects, starts its own nginx (one worker, sendfile) on loopback, and runs the clients in turns, a
round of all of them after the other; prints medians as a table. CASE: shards object tls small link delay
webdataset slow cache. `link` makes a network namespace with a token bucket, and needs root. A client that is not
installed is left out. --small: little of everything, to try the script itself.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import harness  # noqa: E402

MILLRACE = harness.BIN / "millrace"
VENV = ROOT / "build/venv/bin/python"
Figure = collections.namedtuple("Figure", "mb_per_s cpu_s_per_gb")
MIB = 1 << 20


def make(path, size):
    """Bytes that no compression shrinks."""
    if path.exists() and path.stat().st_size == size:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as out, open("/dev/urandom", "rb") as random:
        block = random.read(4 * MIB)
        for at in range(0, size, len(block)):
            out.write(block[:min(len(block), size - at)])


def timed(command, size, env=None, prefix=()):
    """Wall and CPU time of a client that transfers `size` bytes."""
    before = time.monotonic()
    process = subprocess.Popen([*prefix, *map(str, command)], env=harness.CLEAN | (env or {}),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    complaint = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - before
    if status != 0:
        raise RuntimeError(f"{command[:4]} failed: {complaint[-500:].decode()}")
    return Figure(size / 1e6 / seconds, (used.ru_utime + used.ru_stime) / (size / 1e9))


def bench(urls, *flags, of="http", env=None, prefix=()):
    out = subprocess.run([*prefix, MILLRACE, "bench", of, *urls, *map(str, flags), "--json"],
                         env=harness.CLEAN | (env or {}), capture_output=True, text=True)
    if out.returncode != 0:
        raise RuntimeError(out.stderr)
    found = json.loads(out.stdout.splitlines()[-1])
    return Figure(found["mb_per_s"], found["cpu_s_per_gb"])


def curl(urls, parallel, size, *flags, prefix=()):
    listed = [part for url in urls for part in ("-o", "/dev/null", url)]
    return timed(["curl", "-s", "--parallel", "--parallel-immediate", "--parallel-max", parallel,
                  *flags, *listed], size, prefix=prefix)


def aria2(urls, parallel, split, size, prefix=()):
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="millrace-aria2-")
    try:
        names = "".join(f"{url}\n" for url in urls)
        (pathlib.Path(folder) / "urls").write_text(names)
        return timed(["aria2c", "-q", f"-x{split}", f"-s{split}", f"-j{parallel}", "-k1M",
                      "--file-allocation=none", "-d", folder, "-i", f"{folder}/urls"], size,
                     prefix=prefix)
    finally:
        shutil.rmtree(folder)


def wrk(url, connections, seconds, script=None, prefix=()):
    """wrk reads the same object again and again for some seconds."""
    before = os.times()
    out = subprocess.run([*prefix, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s",
                          *(["-s", script] if script else []), url],
                         capture_output=True, text=True).stdout
    after = os.times()
    found = re.search(r"([\d.]+)([KMGT]?)B read", out)
    took = re.search(r"requests in ([\d.]+)(m?s)", out)
    size = float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")
    wall = float(took[1]) / (1000 if took[2] == "ms" else 1)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Figure(size / 1e6 / wall, cpu / (size / 1e9))


def in_turns(rounds, clients):
    """{name: median Figure}; a round runs every client once."""
    figures = collections.defaultdict(list)
    for _ in range(rounds):
        for name, run in clients.items():
            program = name.split()[0].rstrip(",")
            if program in ("curl", "aria2c", "wrk") and not shutil.which(program):
                continue
            figures[name].append(run())
    return {name: Figure(*(statistics.median(column) for column in zip(*runs)))
            for name, runs in figures.items()}


def report(case, asked, figures):
    ours = figures["millrace"]
    peers = {name: f for name, f in figures.items() if not name.startswith("millrace")}
    best = max(peers, key=lambda name: peers[name].mb_per_s) if peers else None
    print(f"\n### {case} (asked: {asked})\n\n| client | MB/s | CPU-s/GB | millrace / client | CPU / client |\n|---|---|---|---|---|")
    for name, f in figures.items():
        print(f"| {name}{' (best)' if name == best else ''} | {f.mb_per_s:.{1 if f.mb_per_s < 100 else 0}f} | {f.cpu_s_per_gb:.3f} | "
              f"{ours.mb_per_s / f.mb_per_s:.2f} | {ours.cpu_s_per_gb / max(f.cpu_s_per_gb, 1e-9):.2f} |",
              flush=True)


class Setup:
    """The objects and the server."""

    def __init__(self, folder, small):
        self.folder = folder
        self.www = folder / "www"
        self.shard, self.big, self.objects, self.seconds = (MIB, 96 * MIB, 20, 1) if small else (256 * MIB, 1024 * MIB, 2000, 2)
        for i in range(8):
            make(self.www / f"s{i}.tar", self.shard)
        make(self.www / "big.bin", self.big)
        for i in range(self.objects):
            make(self.www / "small" / f"{i:04}.jpg", 110 * 1024)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-keyout",
                        folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        self.tls_port = harness.free_port()
        extra = (f"listen 127.0.0.1:{self.tls_port} ssl; ssl_certificate {folder}/cert.pem; "
                 f"ssl_certificate_key {folder}/key.pem; sendfile on; tcp_nopush on; "
                 "keepalive_requests 1000000;")
        self.nginx = harness.Nginx(folder, self.www, extra)
        self.url = self.nginx.url
        self.tls = f"https://127.0.0.1:{self.tls_port}"
        for file in self.www.rglob("*"):  # into the page cache
            if file.is_file():
                file.read_bytes()

    def shards(self, base):
        return [f"{base}/s{i}.tar" for i in range(8)]


def case_shards(s, rounds):
    size = 8 * s.shard
    urls = s.shards(s.url)
    report("8 shards of 256 MiB, 8 connections", "1.1, CPU 0.75", in_turns(rounds, {
        "millrace": lambda: bench(urls, "--connections", 8, "--once"),
        "curl --parallel": lambda: curl(urls, 8, size),
        "aria2c -x8 -s8": lambda: aria2(urls, 8, 8, size),
        "wrk -t1 -c8": lambda: wrk(urls[0], 8, s.seconds)}))


def case_object(s, rounds):
    url = f"{s.url}/big.bin"
    report("one object of 1 GiB", "1.0", in_turns(rounds, {
        "millrace": lambda: bench([url], "--connections", 1, "--once"),
        "millrace --split 16": lambda: bench([url], "--connections", 1, "--split", 16, "--once"),
        "curl": lambda: curl([url], 1, s.big),
        "aria2c -x16": lambda: aria2([url], 1, 16, s.big)}))


def case_tls(s, rounds):
    size = 8 * s.shard
    urls = s.shards(s.tls)
    env = {"MILLRACE_CA_FILE": str(s.folder / "cert.pem")}
    report("the same by TLS", "1.0", in_turns(rounds, {
        "millrace": lambda: bench(urls, "--connections", 8, "--once", env=env),
        "curl --parallel": lambda: curl(urls, 8, size, "--cacert", s.folder / "cert.pem")}))


def case_small(s, rounds):
    urls = [f"{s.url}/small/{i:04}.jpg" for i in range(s.objects)]
    size = s.objects * 110 * 1024
    script = s.folder / "small.lua"
    script.write_text(f'i = 0\nrequest = function()\n  i = (i + 1) % {s.objects}\n'
                      '  return wrk.format("GET", string.format("/small/%04d.jpg", i))\nend\n')
    report("2,000 objects of 110 KB", "1.0", in_turns(rounds, {
        "millrace": lambda: bench(urls, "--connections", 8, "--seconds", s.seconds),
        "millrace, once": lambda: bench(urls, "--connections", 8, "--once"),
        "curl --parallel, once": lambda: curl(urls, 8, size),
        "wrk -t1 -c8": lambda: wrk(s.url, 8, s.seconds, script)}))


class Link:
    """A network namespace behind a token bucket; nginx is reached through it at `url`."""

    def __init__(self, port, rate):
        self.name = f"millrace-{os.getpid()}"
        self.url = "http://10.99.0.1:8080"
        ip = lambda *a: subprocess.run(["ip", *a], check=True)  # noqa: E731
        ip("netns", "add", self.name)
        ip("link", "add", "mr0", "type", "veth", "peer", "name", "mr1")
        ip("link", "set", "mr1", "netns", self.name)
        ip("addr", "add", "10.99.0.1/24", "dev", "mr0")
        ip("link", "set", "mr0", "up")
        ip("netns", "exec", self.name, "ip", "addr", "add", "10.99.0.2/24", "dev", "mr1")
        ip("netns", "exec", self.name, "ip", "link", "set", "mr1", "up")
        subprocess.run(["tc", "qdisc", "add", "dev", "mr0", "root", "tbf", "rate", rate, "burst", "64k",
                        "latency", "50ms"], check=True)
        self.prefix = ("ip", "netns", "exec", self.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "link", "del", "mr0"])
        subprocess.run(["ip", "netns", "del", self.name])


def case_link(s, rounds):
    folder = s.folder / "link"
    folder.mkdir(exist_ok=True)
    for i in range(8):
        make(s.www / f"l{i}.tar", 12 * MIB)
    with Link(8080, "200mbit") as link:
        harness.free_port = lambda: 8080
        nginx = harness.Nginx(folder, s.www, "listen 10.99.0.1:8080; sendfile on;")
        try:
            urls = [f"{link.url}/l{i}.tar" for i in range(8)]
            size = 8 * 12 * MIB
            figures = in_turns(rounds, {
                "millrace": lambda: bench(urls, "--connections", 8, "--once", prefix=link.prefix),
                "curl --parallel": lambda: curl(urls, 8, size, prefix=link.prefix)})
            # A frame of 1514 bytes brings 1448 of payload, and the bucket counts frames.
            figures["the link's payload"] = Figure(200 / 8 * 1448 / 1514, 0)
            report("a link of 200 Mbit/s", "0.97 of the link", figures)
        finally:
            nginx.kill()


class LoopServer:
    """Serves connections on an event loop of its own, in a thread: what serve() does."""

    def __init__(self):
        started = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.main(started)), daemon=True)
        self.thread.start()
        started.wait()

    async def main(self, started):
        self.done = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda *_: None)  # of connections that are open when this ends
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=4096)
        self.url = "http://127.0.0.1:%d/object" % server.sockets[0].getsockname()[1]
        started.set()
        await self.done.wait()

    def stop(self):
        self.loop.call_soon_threadsafe(self.done.set)
        self.thread.join()


class DelayingServer(LoopServer):
    """Gives any range of one file, `delay` seconds late."""

    def __init__(self, path, delay):
        self.path, self.delay = path, delay
        self.size = path.stat().st_size
        super().__init__()

    async def serve(self, reader, writer):
        with open(self.path, "rb") as file:
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    wanted = re.search(rb"[Rr]ange: bytes=(\d+)-(\d*)", head)
                    first = int(wanted[1]) if wanted else 0
                    last = min(int(wanted[2]) if wanted and wanted[2] else self.size - 1, self.size - 1)
                    await asyncio.sleep(self.delay)
                    writer.write(b"HTTP/1.1 206 x\r\nETag: \"1\"\r\nContent-Range: bytes %d-%d/%d\r\n"
                                 b"Content-Length: %d\r\n\r\n" % (first, last, self.size, last - first + 1))
                    await self.loop.sendfile(writer.transport, file, first, last - first + 1)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()


def case_delay(s, rounds):
    server = DelayingServer(s.www / "big.bin", 0.02)
    script = s.folder / "ranges.lua"
    script.write_text(f'i = 0\nrequest = function()\n  i = (i + 1) % {s.big // MIB}\n'
                      '  return wrk.format("GET", "/object", '
                      '{["Range"] = string.format("bytes=%d-%d", i * 1048576, i * 1048576 + 1048575)})\nend\n')
    env = {"MILLRACE_HTTP_PART": "1M"}
    try:
        report("20 ms to every first byte, parts of 1 MiB, 64 at once", "0.95 of wrk", in_turns(rounds, {
            "millrace": lambda: bench([server.url], "--connections", 1, "--split", 64, "--once", env=env),
            "millrace, 64 readers": lambda: bench([server.url], "--connections", 64, "--range", "1M",
                                                  "--seconds", s.seconds),
            "wrk -t1 -c64": lambda: wrk(server.url, 64, s.seconds, script)}))
    finally:
        server.stop()


WEBDATASET = """
import sys, webdataset
for sample in webdataset.WebDataset(["pipe:curl -s -L " + u for u in sys.argv[1:]], shardshuffle=False): pass
"""


def case_webdataset(s, rounds):
    harness.fake(s.www, "samples", 8, s.objects, size=128)
    names = sorted(p.name for p in s.www.glob("samples-*.tar"))
    size = sum((s.www / n).stat().st_size for n in names)
    urls = [f"{s.url}/{n}" for n in names]
    report("to samples: webdataset by pipe:curl, one process", "2.5", in_turns(rounds, {
        "millrace": lambda: timed([MILLRACE, "digest", *urls], size),
        "webdataset, pipe:curl": lambda: timed([VENV, "-c", WEBDATASET, *urls], size)}))


class SlowServer(LoopServer):
    """Any number of connections, each given 16 KiB a second."""

    async def serve(self, reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 x\r\nETag: \"1\"\r\nContent-Length: 100000000\r\n\r\n")
            while True:
                writer.write(b"x" * 16384)
                await writer.drain()
                await asyncio.sleep(1)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


def case_slow(s, _rounds):
    server = SlowServer()
    print("\n### connections to slow servers (asked: < 64 KiB each beyond buffers, < 5 % of a core per 100)\n\n"
          "| connections | RSS MB | CPU % of a core | MB/s |\n|---|---|---|---|")
    rss = {}
    try:
        for connections in (100, 1000):
            process = subprocess.Popen(
                [MILLRACE, "bench", "http", server.url, "--connections", str(connections), "--seconds", "8", "--json"],
                env=harness.CLEAN | {"MILLRACE_MEMORY": "512M", "MILLRACE_READ_CHUNK": "4K",
                                     "MILLRACE_HTTP_CONNECTIONS": "2000"},
                stdout=subprocess.PIPE, text=True)
            while process.poll() is None:  # wait4's figure has the memory of this process in it, from before the exec
                try:
                    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                    rss[connections] = 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])
                    process.wait(0.2)
                except (subprocess.TimeoutExpired, TypeError, OSError):
                    pass
            found = json.loads(process.stdout.read().splitlines()[-1])
            print(f"| {connections} | {rss[connections] / 1e6:.1f} | {100 * found['cpu_seconds'] / found['seconds']:.1f} | "
                  f"{found['mb_per_s']:.1f} |", flush=True)
        print(f"\n{(rss[1000] - rss[100]) / 900 / 1024:.1f} KiB of resident memory for each connection more, buffers "
              "of 4 KiB included")
    finally:
        server.stop()


def case_cache(s, rounds):
    urls = s.shards(s.url)
    env = {"MILLRACE_CACHE": str(s.folder / "cache")}
    bench(urls, "--connections", 8, "--once", env=env)  # the first epoch
    files = [str(s.www / f"s{i}.tar") for i in range(8)]
    for where, direct in ("from the disk", {"MILLRACE_DIRECT": "on"}), ("from the page cache", {"MILLRACE_DIRECT": "off"}):
        report(f"the second epoch, from the cache, {where}", "0.97 of the files", in_turns(rounds, {
            "millrace": lambda: bench(urls, "--connections", 8, "--once", env=env | direct),
            "the files themselves": lambda: bench(files, "--streams", 8, "--seconds", s.seconds, of="disk", env=direct)}))
    shutil.rmtree(s.folder / "cache")


CASES = {"shards": case_shards, "object": case_object, "tls": case_tls, "small": case_small, "link": case_link,
         "delay": case_delay, "webdataset": case_webdataset, "slow": case_slow, "cache": case_cache}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/millrace-bench-http"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    s = Setup(arguments.folder, arguments.small)
    try:
        for name in arguments.cases or CASES:
            CASES[name](s, arguments.rounds)
    finally:
        s.nginx.kill()


if __name__ == "__main__":
    main()
