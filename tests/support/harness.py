"""Shared by the integration tests: paths, running programs, a web server."""

import functools
import hashlib
import http.server
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

# Programs are signalled as from a terminal, also where the tests run in the background or by nohup, which ignore these.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("MILLRACE_TEST_BIN", ROOT / "build/release/bin"))
SHARED = ROOT.parent / "shared" / "data"
VENV_PYTHON = ROOT / "build/venv/bin/python"

# Only the test's variables, not the developer's.
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}


def needs_shared(folder):
    """Skips a test if the real data is missing."""
    return unittest.skipUnless((SHARED / folder).is_dir(), f"no {folder} beside the repository")


def run(program, *arguments, env=None, stdin=None, timeout=120, cwd=None):
    """Runs a program of ours to its end. The result has returncode, stdout and stderr as text."""
    return subprocess.run(
        [str(BIN / program), *map(str, arguments)],
        env=CLEAN | (env or {}), input=stdin, timeout=timeout, cwd=cwd, capture_output=True,
        **({} if isinstance(stdin, bytes) else {"text": True}))


@functools.cache
def has_ubsan():
    """Whether the programs are built with UndefinedBehaviorSanitizer. Its check of virtual calls creates a pipe to find
    out whether memory can be read, and takes a lack of descriptors for a wrong object."""
    return b"__ubsan_handle" in (BIN / "millrace").read_bytes()


def sha(data):
    return hashlib.sha256(data).hexdigest()


# Gives up soon if a server does not answer.
IMPATIENT = {"MILLRACE_HTTP_ATTEMPTS": "2", "MILLRACE_HTTP_BACKOFF": "0.01", "MILLRACE_HTTP_CONNECT_TIMEOUT": "2",
             "MILLRACE_HTTP_TLS_TIMEOUT": "2"}


def cat(*arguments, env=None):
    """`millrace cat`, impatiently; its output as bytes."""
    return subprocess.run([BIN / "millrace", "cat", *arguments], env=CLEAN | IMPATIENT | (env or {}),
                          capture_output=True, timeout=120)


def start(program, *arguments, env=None, **popen):
    return subprocess.Popen([str(BIN / program), *map(str, arguments)], env=CLEAN | (env or {}),
                            **popen)


def wait_until(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s")
        threading.Event().wait(0.01)


def has_written(folder, pattern, more_than=0):
    """Whether a file whose name fits has more than so many bytes. Files may come, go and get other names meanwhile."""
    for path in folder.glob(pattern):
        try:
            if path.stat().st_size > more_than:
                return True
        except FileNotFoundError:
            pass
    return False


def writer_of_pipe(path):
    """A named pipe for writing, once a process reads it."""
    made = []

    def is_open():
        try:
            made.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True
    wait_until(is_open)
    return open(made[0], "wb")


def free_port():
    """A port that no connection gets while its server is away: below those that the kernel assigns."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", random.randrange(max(1024, lowest - 16384), max(1025, lowest))))
            except OSError:
                continue
            return s.getsockname()[1]
    raise AssertionError("no port is free")


class Folder:
    """A temporary folder as a context."""

    def __enter__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="millrace-test-"))
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


class Nginx:
    """nginx as this user on a free port; kill() and start() at will."""

    def __init__(self, folder, root, extra=""):
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        user = "user root;" if os.getuid() == 0 else ""
        temporary = "".join(f"{name}_temp_path {folder}/{name};\n"
                            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(
            f"{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n"
            f"events {{ worker_connections 256; }}\n"
            f"http {{ access_log off; {temporary}\n"
            f"  server {{ listen 127.0.0.1:{self.port}; root {root}; {extra} }} }}\n")
        self.start()

    def start(self):
        nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        self.process = subprocess.Popen([nginx, "-p", self.folder, "-c", self.folder / "nginx.conf",
                                         "-e", self.folder / "error.log"], start_new_session=True)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError((self.folder / "error.log").read_text())

    def kill(self):
        """Kills master and worker at once, like a crash."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


class Serving:
    """A web server of Python's in a thread of its own, as a context."""

    def __init__(self, handler):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.handle_error = lambda *_: None  # a client that closed early
        self.port = self.server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class PlainServer(Serving):
    """Serves the files of a folder: HTTP/1.0 bodies, no ranges."""

    def __init__(self, root):
        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, directory=str(root), **kwargs)

            def log_message(self, *_):
                pass

        super().__init__(Handler)


class Answering(Serving):
    """Serves what `answer` says. It gets the request (a BaseHTTPRequestHandler, whose body has been read), and returns
    status, fields and body, or sends its answer itself and returns nothing. `seen` has the paths and headers so far."""

    def __init__(self, answer):
        seen = self.seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # head and body in one piece

            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                seen.append((self.path, dict(self.headers)))
                said = answer(self)
                if said is None:
                    return
                status, fields, body = said
                self.send_response(status)
                for name, value in (fields | {"Content-Length": str(len(body))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                self.wfile.flush()

            do_HEAD = do_POST = do_PUT = do_GET

            def log_message(self, *_):
                pass

        super().__init__(Handler)


def fake(folder, name, shards, samples, size=32, seed=0, classes=10):
    """Creates a dataset; returns its shard spec."""
    done = run("millrace", "fake", folder / f"{name}-%06d.tar", "--shards", shards, "--samples", samples,
               "--size", size, "--seed", seed, "--classes", classes)
    assert done.returncode == 0, done.stderr
    return f"{folder}/{name}-{{000000..{shards - 1:06}}}.tar"
