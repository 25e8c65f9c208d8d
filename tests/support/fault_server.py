"""An HTTP/1.1 server that serves the files of a folder and misbehaves as its paths ask.

    http://host:port/FAULT/ARGUMENT.../NAME     NAME is a file of the folder

Written from the RFCs and the list of faults alone, over plain sockets: it shares nothing with the client that it
tests. Thread-safe; a thread for each connection. `log` has a dictionary for each request.
"""

import email.utils
import hashlib
import pathlib
import random
import socket
import ssl
import struct
import threading
import time


class Cut(Exception):
    """Ends the connection, by FIN or by RST."""

    def __init__(self, reset=False):
        self.reset = reset


class Request:
    def __init__(self, server, connection, method, path, headers):
        self.server, self.connection, self.method = server, connection, method
        self.headers = headers
        parts = path.split("?")[0].strip("/").split("/")
        self.query = path.partition("?")[2]
        self.fault, self.arguments = parts[0], parts[1:-1]
        self.name = parts[-1]
        self.path = path
        self.content = server.contents.get(self.name)
        self.count = 0  # of requests for this path so far, this one included
        self.sent = 0

    def number(self, at=0):
        return int(self.arguments[at])

    def send(self, data):
        self.connection.sendall(data)

    def head(self, status, fields):
        text = f"HTTP/1.1 {status} x\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields)
        self.send(text.encode() + b"\r\n")

    def wanted(self):
        """(first, last) of a satisfiable Range, or None."""
        text = self.headers.get("range", "")
        condition = self.headers.get("if-range")
        if not text.startswith("bytes=") or (condition and condition not in (self.etag(), self.modified())):
            return None
        first, _, last = text[6:].partition("-")
        size = len(self.content)
        return int(first), min(int(last), size - 1) if last else size - 1

    def etag(self):
        return '"%s"' % hashlib.md5(self.content).hexdigest()

    def modified(self):
        return email.utils.formatdate(self.server.modified, usegmt=True)

    def validators(self):
        return [("ETag", self.etag()), ("Last-Modified", self.modified())]

    def plain(self, body=None, fields=None, ranges=True, length=True):
        """The usual answer's head, and the body that follows it."""
        body = self.content if body is None else body
        fields = self.validators() if fields is None else fields
        wanted = self.wanted() if ranges else None
        if wanted and wanted[0] >= len(body):
            self.head(416, [("Content-Range", f"bytes */{len(body)}"), ("Content-Length", "0")])
            return b""
        if wanted:
            body, total = body[wanted[0]:wanted[1] + 1], len(body)
            fields = fields + [("Content-Range", f"bytes {wanted[0]}-{wanted[1]}/{total}")]
        self.head(206 if wanted else 200, fields + ([("Content-Length", len(body))] if length else []))
        return b"" if self.method == "HEAD" else body


def truncate(r):
    r.send(r.plain()[:r.number()])
    raise Cut()


def reset(r):
    if r.number() < 0:
        raise Cut(reset=True)
    r.send(r.plain()[:r.number()])
    raise Cut(reset=True)


def close(r):
    raise Cut()


def cutat(r):
    """No byte after an offset ever arrives."""
    first = (r.wanted() or (0, 0))[0]
    r.send(r.plain()[:max(0, r.number() - first)])
    raise Cut()


def idleclose(r):
    r.send(r.plain())
    raise Cut()


def stall(r):
    """Stops before the head (0), or after a number of bytes; N times."""
    if r.count <= r.number(1):
        if r.number() > 0:
            r.send(r.plain()[:r.number()])
        r.server.wait_for_end(r)
        raise Cut()
    r.send(r.plain())


def slow(r):
    body = r.plain()
    for at in range(0, len(body), 4096):
        r.send(body[at:at + 4096])
        r.server.pause(4.096 / r.number())


def drop(r):
    """Each piece of 64 KiB is the last one with this probability."""
    body = r.plain()
    for at in range(0, len(body), 65536):
        if r.server.random.random() < float(r.arguments[0]):
            r.send(body[at:at + r.server.random.randrange(65536)])
            raise Cut(reset=r.server.random.random() < 0.5)
        r.send(body[at:at + 65536])


def status(code):
    def answer(r):
        if r.arguments and r.count > r.number():
            return r.send(r.plain())
        fields = [("Content-Length", "0")]
        if "ra=date" in r.query:
            fields.append(("Retry-After", email.utils.formatdate(time.time() + 1, usegmt=True)))
        elif "ra=" in r.query:
            fields.append(("Retry-After", r.query.partition("ra=")[2]))
        r.head(code, fields)
    return answer


def s3err200(r):
    if r.count > 1:
        return r.send(r.plain())
    body = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InternalError</Code><Message>x</Message></Error>'
    r.head(200, [("Content-Type", "application/xml"), ("Content-Length", len(body))])
    r.send(body)


def norange(r):
    body = r.plain(ranges=False)
    if r.arguments and r.count <= 2:
        r.send(body[:r.number()])
        raise Cut()
    r.send(body)


def nohead(r):
    """A URL that is signed only for GET, on a server that ignores ranges."""
    if r.method == "HEAD":
        return r.head(405, [("Content-Length", "0")])
    r.send(r.plain(ranges=False))


def partial(make):
    """A fault in the answer to a range; the first answer is cut, so that a range is requested."""
    def answer(r):
        wanted = r.wanted()
        if not wanted:
            r.send(r.plain()[:100_000])
            raise Cut()
        make(r, *wanted)
    return answer


@partial
def badrange(r, first, last):
    body = r.content[first:last + 1]
    r.head(206, r.validators() + [("Content-Range", f"bytes {first + 1}-{last + 1}/{len(r.content)}"),
                                  ("Content-Length", len(body))])
    r.send(body)


@partial
def norangehdr(r, first, last):
    body = r.content[first:last + 1]
    r.head(206, r.validators() + [("Content-Length", len(body))])
    r.send(body)


@partial
def shortrange(r, first, last):
    last = min(last, first + 49_999)
    body = r.content[first:last + 1]
    r.head(206, r.validators() + [("Content-Range", f"bytes {first}-{last}/{len(r.content)}"),
                                  ("Content-Length", len(body))])
    r.send(body)


@partial
def multirange(r, first, last):
    body = (b"--b\r\nContent-Range: bytes %d-%d/%d\r\n\r\n" % (first, last, len(r.content)) +
            r.content[first:last + 1] + b"\r\n--b--\r\n")
    r.head(206, r.validators() + [("Content-Type", "multipart/byteranges; boundary=b"), ("Content-Length", len(body))])
    r.send(body)


@partial
def badtotal(r, first, last):
    body = r.content[first:last + 1]
    r.head(206, r.validators() + [("Content-Range", f"bytes {first}-{last}/{len(r.content) + 512}"),
                                  ("Content-Length", len(body))])
    r.send(body)


def shiftbody(r):
    """One byte of the body is wrong, once; the digest shows it."""
    digest = hashlib.sha256(r.content).digest()
    import base64
    fields = r.validators() + [("Repr-Digest", "sha-256=:" + base64.b64encode(digest).decode() + ":")]
    always = r.arguments and r.arguments[0] == "always"
    body = r.content if r.count > 1 and not always else r.content[1:] + r.content[:1]
    r.send(r.plain(body, fields))


def changed(r):
    """Another version from the second request on; the first is cut."""
    if r.count == 1:
        r.send(r.plain()[:r.number()])
        raise Cut()
    r.content = bytes(b ^ 1 for b in r.content)
    r.send(r.plain())


def noetag(r):
    cut_first(r, [("Last-Modified", r.modified())])


def weaketag(r):
    cut_first(r, [("ETag", "W/" + r.etag()), ("Last-Modified", r.modified())])


def novalidator(r):
    cut_first(r, [])


def cut_first(r, fields):
    body = r.plain(fields=fields)
    if r.count == 1:
        r.send(body[:100_000])
        raise Cut()
    r.send(body)


def chunks(body, size=30_000):
    for at in range(0, len(body), size):
        piece = body[at:at + size]
        yield b"%x\r\n" % len(piece) + piece + b"\r\n"


def chunked(r, damage=None):
    body = r.plain(fields=r.validators() + [("Transfer-Encoding", "chunked")], length=False)
    for number, piece in enumerate(chunks(body)):
        if damage and number == 4:
            r.send(damage(piece))
            raise Cut()
        r.send(piece)
    r.send(b"0\r\n\r\n")


def chunkcut(r):
    chunked(r, (lambda piece: piece[:1000]) if r.count <= 2 else None)


def badchunk(r):
    chunked(r, (lambda piece: b"zz\r\n" + piece) if r.count <= 2 else None)


def nolencut(r):
    """A body that ends with the connection, too early."""
    body = r.plain(fields=r.validators() + [("Connection", "close")], ranges=False, length=False)
    r.send(body[:r.number()])
    raise Cut()


def nolen(r):
    r.send(r.plain(fields=r.validators() + [("Connection", "close")], ranges=False, length=False))
    raise Cut()


def gzip_(r):
    import gzip
    r.send(r.plain(gzip.compress(r.content, 1), r.validators() + [("Content-Encoding", "gzip")]))


def duplen(r):
    r.head(200, r.validators() + [("Content-Length", len(r.content)), ("Content-Length", len(r.content) - 5)])
    r.send(r.content)


def extra(r):
    r.send(r.plain() + b"more than was announced")


def interim(r):
    r.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 3)
    r.send(r.plain())


def hugeheader(r):
    r.send(b"HTTP/1.1 200 x\r\nX-Long: " + b"y" * 200_000 + b"\r\n\r\n")
    raise Cut()


def longline(r):
    r.send(b"HTTP/1.1 200 " + b"y" * 200_000)
    raise Cut()


def garbage(r):
    r.send(b"\x16\x03\x01\x00\x01 this is no HTTP\r\n\r\n")
    raise Cut()


def redirect(r, where):
    r.head(302, [("Location", where), ("Content-Length", "0")])


def redirectloop(r):
    redirect(r, r.path)


def redirectchain(r):
    left = r.number()
    redirect(r, f"/redirectchain/{left - 1}/{r.name}" if left > 0 else f"/plain/{r.name}")


def redirectfile(r):
    redirect(r, "file:///etc/passwd")


def redirectother(r):
    """Redirects to the server's other address: another host as far as secrets are concerned."""
    redirect(r, f"http://localhost:{r.server.port}/plain/{r.name}")


def redirectssrf(r):
    redirect(r, "http://169.254.169.254/latest/meta-data/")


def redirectdown(r):
    redirect(r, f"http://127.0.0.1:{r.server.port}/plain/{r.name}")


def needauth(r):
    if r.headers.get("authorization") != r.server.authorization:
        return r.head(401, [("WWW-Authenticate", "Basic"), ("Content-Length", "0")])
    r.send(r.plain())


FAULTS = {
    "plain": lambda r: r.send(r.plain()), "truncate": truncate, "reset": reset, "close": close, "cutat": cutat,
    "idleclose": idleclose, "stall": stall, "slow": slow, "drop": drop, "s3err200": s3err200, "norange": norange,
    "nohead": nohead,
    "badrange": badrange, "norangehdr": norangehdr, "shortrange": shortrange, "multirange": multirange,
    "badtotal": badtotal, "shiftbody": shiftbody, "changed": changed, "noetag": noetag, "weaketag": weaketag,
    "novalidator": novalidator, "chunked": chunked, "chunkcut": chunkcut, "badchunk": badchunk, "nolen": nolen,
    "nolencut": nolencut, "gzip": gzip_, "duplen": duplen, "extra": extra, "interim": interim,
    "hugeheader": hugeheader, "longline": longline, "garbage": garbage, "redirectloop": redirectloop,
    "redirectchain": redirectchain, "redirectfile": redirectfile, "redirectother": redirectother,
    "redirectssrf": redirectssrf, "redirectdown": redirectdown, "needauth": needauth,
} | {str(code): status(code) for code in (403, 404, 408, 410, 429, 500, 502, 503, 504)}


class FaultServer:
    """A context: serves until it is left. `tls`: (certificate, key)."""

    def __init__(self, contents, tls=None, seed=1):
        self.contents = contents if isinstance(contents, dict) else {
            p.name: p.read_bytes() for p in pathlib.Path(contents).iterdir() if p.is_file()}
        self.random = random.Random(seed)
        self.modified = 1_600_000_000
        self.authorization = None
        self.log = []
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self.tls = None
        if tls:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(*tls)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.threads = []
        self.connections = set()

    def __enter__(self):
        self.accepting = threading.Thread(target=self.accept)
        self.accepting.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.accepting.join()
        self.listener.close()
        with self.lock:
            for connection in self.connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        for thread in self.threads:
            thread.join()

    def requests(self, path=""):
        with self.lock:
            return [entry for entry in self.log if path in entry["path"]]

    def pause(self, seconds):
        if self.ending.wait(seconds):
            raise Cut()

    def wait_for_end(self, request):
        """Waits until the client ends the connection, as its timer should."""
        request.connection.settimeout(60)
        try:
            if request.connection.recv(1) == b"":
                with self.lock:
                    self.log.append({"path": request.path, "client_gone_in_stall": True})
        except OSError:
            pass

    def accept(self):
        while not self.ending.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.serve, args=(connection,))
            self.threads.append(thread)
            thread.start()

    def serve(self, connection):
        try:
            connection.settimeout(60)
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with self.lock:
                self.connections.add(connection)
            buffer = b""
            while not self.ending.is_set():
                while b"\r\n\r\n" not in buffer:
                    more = connection.recv(65536)
                    if not more:
                        return
                    buffer += more
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                self.answer(connection, head.decode("latin-1"))
        except Cut as cut:
            if cut.reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except (OSError, ssl.SSLError):
            pass
        finally:
            with self.lock:
                self.connections.discard(connection)
            connection.close()

    def answer(self, connection, head):
        lines = head.split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        request = Request(self, connection, method, path, headers)
        with self.lock:
            request.count = 1 + sum(1 for entry in self.log if entry.get("key") == path and "method" in entry)
            self.log.append({"path": path, "key": path, "method": method, "range": headers.get("range"),
                             "host": headers.get("host"), "authorization": headers.get("authorization"),
                             "headers": headers, "head": head})
        if request.fault not in FAULTS or request.content is None:
            return request.head(404, [("Content-Length", "0")])
        FAULTS[request.fault](request)
