"""Writers of shards, which encode values by their extensions."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import pickle
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any, Optional, Union

from .. import errors
from . import tenbin
from .._numbers import path, whole
from ._urls import expand_urls
from ..writer import Closing, ShardWriter as _ShardWriter, of_field

_NUMBERS = frozenset("cls cls2 class count index inx id".split())
_IMAGES = {"jpg": "JPEG", "jpeg": "JPEG", "img": "JPEG", "image": "JPEG", "png": "PNG", "ppm": "PPM", "pgm": "PPM", "pbm": "PPM",
           "tiff": "TIFF", "tif": "TIFF", "webp": "WEBP"}
_MOST_OF_USTAR = 8 ** 11 - 1  # bytes of a member, and seconds of its time
Fields = dict[str, Any]
# True: by extension. False or None: values are bytes. A dict: a function for each extension. A function: of the sample.
Encoder = Union[bool, None, dict[str, Callable[[Any], Any]], Callable[[Fields], Fields]]


def numpy_dumps(data: Any) -> bytes:
    """The bytes of an array as npy, without pickles."""
    import numpy
    out = io.BytesIO()
    numpy.save(out, numpy.asarray(data), allow_pickle=False)
    return out.getvalue()


def numpy_npz_dumps(data: dict[str, Any]) -> bytes:
    """The bytes of arrays by name as npz."""
    import numpy
    out = io.BytesIO()
    numpy.savez_compressed(out, allow_pickle=False, **data)
    return out.getvalue()


def torch_dumps(data: Any) -> bytes:
    """The bytes that torch.save() writes."""
    import torch
    out = io.BytesIO()
    torch.save(data, out)
    return out.getvalue()


def _tenbin_dumps(data: Any) -> bytes:
    return bytes(tenbin.encode_buffer(data if isinstance(data, list) else [data]))


def _msgpack_dumps(data: Any) -> bytes:
    import msgpack
    packed: bytes = msgpack.packb(data)
    return packed


def _cbor_dumps(data: Any) -> bytes:
    import cbor
    packed: bytes = cbor.dumps(data)
    return packed


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys("json jsn".split(), lambda x: json.dumps(x).encode()),
    **dict.fromkeys("pyd pickle".split(), pickle.dumps), "pth": torch_dumps, "npy": numpy_dumps, "npz": numpy_npz_dumps,
    **dict.fromkeys("ten tenbin tb".split(), _tenbin_dumps), **dict.fromkeys("mp msgpack msg".split(), _msgpack_dumps),
    "cbor": _cbor_dumps}


def encoded(extension: str, value: Any, encoders: Optional[dict[str, Callable[[Any], Any]]] = None) -> Any:
    """The bytes of a value by the last part of its extension: texts, numbers, JSON, MessagePack (needs msgpack), CBOR (needs
    cbor), numpy's arrays as npy, npz and ten, pickles (pyd, pickle), what torch saves (pth), and images of Pillow, or
    arrays, as jpg, png, ppm, tiff and webp. What ends in "gz" is compressed, bytes too.

    Args:
        encoders: the functions to use instead.
    """
    name = extension.lower()
    if name.endswith(".gz"):
        return gzip.compress(encoded(name[:-3], value, encoders), mtime=0)
    last = name.rsplit(".", 1)[-1]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if encoders is not None:
        if last not in encoders:
            raise errors.usage(f"no encoder for '{extension}'", "add one to `encoder`, or encode it to bytes")
        return encoders[last](value)
    if last in _IMAGES:
        return _image(value, _IMAGES[last])
    if last in _NUMBERS:
        return str(value).encode()
    if last in _ENCODERS:
        return _ENCODERS[last](value)
    raise errors.not_offered(f"encoding '{extension}' of a {type(value).__name__}", "bytes: pickle.dumps(value), or your own")


def _image(value: Any, kind: str) -> bytes:
    import PIL.Image
    if not isinstance(value, PIL.Image.Image):
        import numpy
        pixels = numpy.asarray(value)
        if pixels.dtype.kind == "f":
            if pixels.size and not -0.001 < pixels.min() <= pixels.max() < 1.001:
                raise errors.usage(f"an image of floats from {pixels.min()} to {pixels.max()}", "scale them to 0 ... 1")
            pixels = (pixels.clip(0, 1) * 255).round().astype(numpy.uint8)
        value = PIL.Image.fromarray(pixels)
    out = io.BytesIO()
    value.save(out, kind, **({"quality": 100} if kind == "JPEG" else {}))
    return out.getvalue()


def _fields(sample: Fields, encoder: Encoder, keeps: bool = False) -> dict[str, bytes]:
    """The fields of a sample as bytes, encoded."""
    if callable(encoder):
        sample, encoder = encoder(sample), False
    if not isinstance(sample.get("__key__"), str):
        raise errors.usage("a sample without a '__key__' that is a text", 'write {"__key__": "n0001", "jpg": image}')
    key = sample["__key__"]
    made = {}
    for name, value in sample.items():
        if not isinstance(name, str):
            raise errors.usage(f"the extension {name!r} of sample '{key}'", "extensions are texts")
        if name.startswith("_"):
            if keeps and name != "__key__":
                made[name] = value.encode() if isinstance(value, str) else value
        else:
            if isinstance(encoder, dict) and encoder:  # their errors are the program's own
                value = encoded(name, value, encoder)
            made[name] = of_field(key, name, lambda: encoded(name, value)) if encoder is True else value
    for name, value in made.items():
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise errors.error("usage", f"a field '{name}' of type {type(value).__name__}", key=key, hint="encode it to bytes")
    return {name: bytes(value) for name, value in made.items()}  # of a memoryview len() may count larger elements


# What the members of a ShardWriter's shards have: each may be given as it is.
_AS_WRITTEN: dict[str, tuple[Any, ...]] = {
    "user": ("bigdata",), "group": ("bigdata",), "mode": (0o444,), "compress": (None, False), "keep_meta": (False,),
    "mtime": (0, None), "format": (None, tarfile.USTAR_FORMAT, "USTAR_FORMAT"), "opener": (None,)}


def _check_options(pattern: str, options: dict[str, Any]) -> None:
    """Refuses what shards of a ShardWriter are not, with the line for one by TarWriter."""
    unknown = sorted(options.keys() - _AS_WRITTEN.keys())
    if unknown:
        raise errors.no_argument(ShardWriter, unknown[0], _AS_WRITTEN)
    other = {name: "opener" if name == "opener" else errors.shown(value)
             for name, value in options.items() if value not in _AS_WRITTEN[name]}
    shown = ", ".join(f"{name}={'...' if name == 'opener' else value}" for name, value in other.items())
    pattern = errors.redacted(pattern)
    if other or pattern.endswith(("gz", "bz2", "xz")):
        first = f"'{_name(pattern, 0)}'"
        tar = ", ".join(["stream" if "opener" in other else first, *(f"{k}={v}" for k, v in other.items() if k != "opener")])
        opened = f"opener({first}) as stream, " if "opener" in other else ""
        raise errors.not_offered(f"ShardWriter({shown or repr(pattern)})", f"`with {opened}wds.TarWriter({tar}) as out:` for each shard")


def _name(pattern: str, number: int) -> str:
    """The path of a shard; empty for a pattern that a ShardWriter refuses."""
    try:
        return pattern % number if "%" in pattern else expand_urls(pattern)[number]
    except (IndexError, TypeError, ValueError):
        return ""


def _checked(encoder: Any) -> Encoder:
    if encoder is not None and not isinstance(encoder, (bool, dict)) and not callable(encoder):
        raise errors.usage(f"encoder is {errors.shown(encoder)}", "give True, False, functions by extension, or a function of the sample")
    return encoder  # type: ignore[no-any-return]


def _most(name: str, value: Any) -> int:
    if isinstance(value, float) and not math.isnan(value):
        value = 2**63 - 1 if value >= 2**63 else math.ceil(value)
    return whole(name, value, 1, 2**63 - 1)


class _Guarded(Closing):
    """A writer that several threads may use, and a handler of a signal not while its own thread does."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a plain one would make such a handler wait for its own thread

    def _check_usable(self) -> None:
        self._check_process()
        if self._guard._is_owned():  # type: ignore[attr-defined]
            raise errors.usage(f"a handler of a signal uses {type(self).__name__}({self._what!r}) in the middle of a call of it",
                               "have it set a flag, at which the loop closes the writer")


class ShardWriter(_Guarded):
    """Writes samples into shards of the names "train-%06d.tar", which appear when they are complete: the last one with close(), at
    the end of a `with`, or of the program.

    Args:
        pattern: names of the shards.
        maxcount: samples of a shard.
        maxsize: bytes of a shard's samples.
        post: called with the path of each complete shard.
        start_shard: the number of the first.
        encoder: True: values are encoded by their extensions; False: they are bytes; a dict of functions by extension, or a
            function of the sample.
        others: options of TarWriter, as these shards have them: mtime=0, user="bigdata", ...; others are refused.
    """

    _leaves_out = True

    def __init__(self, pattern: Union[str, "os.PathLike[str]"], maxcount: float = 100_000, maxsize: float = 3e9,
                 post: Optional[Callable[[str], None]] = None, start_shard: int = 0, verbose: int = 1,
                 opener: None = None, encoder: Encoder = True, **others: Any) -> None:
        del verbose
        super().__init__()
        name = path("pattern", pattern)
        _check_options(name, {"opener": opener, **others})
        self._maxcount, self._maxsize = _most("maxcount", maxcount), _most("maxsize", maxsize)
        self._out = _ShardWriter(name, max_count=self._maxcount, max_size=self._maxsize, start_shard=start_shard, overwrite=True)
        if post is not None and not callable(post):
            raise errors.usage(f"post is {errors.shown(post)}", "give a function of the shard's path")
        self._encoder, self._post, self._posted = _checked(encoder), post, 0
        self._pattern, self._first, self._at = name, start_shard, 0
        self._count, self._size, self._total = 0, 0, 0
        self._must_be_closed(name)
        self._out._process, self._out._is_part = 0, True  # it is closed with this one, which calls `post`

    def write(self, sample: dict[str, Any]) -> None:
        """Writes a dict with "__key__" and fields."""
        self._check_usable()
        fields = _fields(sample, self._encoder)
        with self._guard:
            ends_shard = self._count >= self._maxcount or self._size >= self._maxsize
            self._out.write({"__key__": sample["__key__"], **fields})
            if ends_shard:
                self._at, self._count, self._size = self._at + 1, 0, 0
            self._count, self._total = self._count + 1, self._total + 1
            self._size += sum(map(len, fields.values()))
        if ends_shard:
            self._tell()

    @property
    def count(self) -> int:
        """Samples of the shard that is written."""
        return self._count

    @property
    def size(self) -> int:
        """Bytes of their fields."""
        return self._size

    @property
    def total(self) -> int:
        """Samples of all shards."""
        return self._total

    @property
    def shard(self) -> int:
        """The number of the next shard."""
        return self._first + self._at + 1

    @property
    def fname(self) -> str:
        """The path of the shard that is written. It appears there when it is complete."""
        return _name(self._pattern, self._first + self._at)

    def __getattr__(self, name: str) -> Any:
        if name in _INSTEAD:
            raise AttributeError(f"ShardWriter.{name} of webdataset is not offered; write {_INSTEAD[name]}")
        raise AttributeError(f"'ShardWriter' object has no attribute '{name}'")

    def _tell(self) -> None:
        shards = self._out.shards
        while (number := self._next_to_post(len(shards))) is not None:
            if self._post is not None:
                self._post(shards[number]["path"])

    def _next_to_post(self, complete: int) -> Optional[int]:
        with self._guard:
            if self._posted >= complete:
                return None
            self._posted += 1
            return self._posted - 1

    def close(self) -> None:
        """Completes the last shard."""
        self._check_usable()
        self._process = 0
        try:
            self._out.close()
        finally:  # also of shards that are complete where it fails
            self._tell()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None or kind is GeneratorExit:
            self.close()
        else:
            self._drop()

    def _drop(self) -> None:
        self._process = 0
        self._out._drop()

    def _wait_for_callers(self) -> None:
        self._out._wait_for_callers()


_INSTEAD = {"next_stream": "`with wds.TarWriter('train-000000.tar') as out:` for each shard, or give maxcount", "finish": "close()",
            "tarstream": "`with wds.TarWriter('train-000000.tar') as out:` for each shard"}


class _File:
    """A file, or the pipe of a command, of a writer's own. It keeps nothing in memory: a forked child would write that as well."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, content: bytes) -> int:
        """All of it."""
        left = memoryview(content)
        while left:
            left = left[os.write(self._file.fileno(), left):]
        return len(content)

    def close(self) -> None:
        """Closes it."""
        self._file.close()


class TarWriter(_Guarded):
    """Writes samples into one tar archive. What its format has no room for, such as a name of more than 100 bytes without a "/",
    is written in the pax format, as readers have it.

    Args:
        fileobj: a path, "pipe:COMMAND" (with MILLRACE_ALLOW_PIPE=1), or an open binary file.
        compress: True or "gz", "bz2", "xz"; None: as the name ends.
        mtime: of all members, in seconds; the same bytes come out for the same samples.
        encoder: True: values are encoded by their extensions; False: they are bytes; a dict of functions by extension, or a
            function of the sample.
        keep_meta: writes fields whose names begin with "_" too.
    """

    def __init__(self, fileobj: Union[str, "os.PathLike[str]", IO[bytes]], user: str = "bigdata", group: str = "bigdata",
                 mode: int = 0o444, compress: Union[bool, str, None] = None, encoder: Encoder = True, keep_meta: bool = False,
                 mtime: Optional[float] = 0, format: Any = None) -> None:
        super().__init__()
        name = path("fileobj", fileobj) if isinstance(fileobj, (str, os.PathLike)) else ""
        self._encoder = _checked(encoder)
        packed = next((k for k in ("gz", "bz2", "xz") if name.endswith(k)), "") if compress is None else compress
        kind = {True: "gz", False: ""}.get(packed, packed)  # type: ignore[call-overload]
        if kind not in ("", "gz", "bz2", "xz"):
            raise errors.usage(f"compress is {errors.shown(compress)}", "give True, False, 'gz', 'bz2' or 'xz'")
        form = getattr(tarfile, format, format) if isinstance(format, str) else format
        if form not in (None, tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            raise errors.usage(f"format is {errors.shown(format)}", "give one of tarfile, such as tarfile.PAX_FORMAT")
        self._own: Optional[_File] = None
        self._of_program: Optional[IO[bytes]] = None if name else fileobj  # type: ignore[assignment]
        self._command: "Optional[subprocess.Popen[bytes]]" = None
        if name[:5].lower() == "pipe:":
            if os.environ.get("MILLRACE_ALLOW_PIPE") != "1":
                raise errors.error("not_allowed", f"{errors.shown(name)} runs a command, which is not allowed",
                                   hint="set MILLRACE_ALLOW_PIPE=1 where you trust it")
            self._command = subprocess.Popen(name[5:], shell=True, stdin=subprocess.PIPE, bufsize=0)
            self._own = _File(self._command.stdin)  # type: ignore[arg-type]
        elif "://" in name:
            raise errors.not_offered(f"TarWriter({errors.shown(name)})", "'pipe:COMMAND', or a path and a command that copies it")
        elif name:
            self._own = _File(open(name, "wb", buffering=0))
        self._format: int = tarfile.USTAR_FORMAT if form is None else form
        self._tar = tarfile.open(fileobj=self._own or fileobj, format=self._format,  # type: ignore[call-overload]
                                 mode=f"w|{kind}")
        self._user, self._group, self._mode, self._mtime = user, group, mode, mtime
        self._keeps = keep_meta
        self._failure = ""  # that has cut the archive in the middle of a sample
        self._holders: list[int] = []  # threads that have the guard while they fork
        self._must_be_closed(name or repr(fileobj))

    def write(self, sample: dict[str, Any]) -> int:
        """Writes a dict with "__key__" and fields. Returns the bytes of its fields."""
        self._check_usable()
        fields = _fields(sample, self._encoder, self._keeps)
        with self._guard:
            if self._failure:
                raise self._cut()
            if self._tar.closed:
                raise errors.usage("this writer is closed", "make a new one")
            members = [(self._member(sample["__key__"], extension, len(content)), content) for extension, content in sorted(fields.items())]
            stream: Any = self._tar.fileobj
            whole = stream.pos
            try:
                for (member, form), content in members:
                    self._tar.format = form
                    self._tar.addfile(member, io.BytesIO(content))
            except BaseException as why:
                if stream.pos != whole:
                    self._failure = str(why) or type(why).__name__
                raise
        return sum(map(len, fields.values()))

    def _cut(self) -> errors.Error:
        return errors.error("io_failed", f"{self._what!r} ends in the middle of a sample, at a write that failed: {self._failure}",
                            hint="write the archive anew")

    def _member(self, key: str, extension: str, size: int) -> tuple[tarfile.TarInfo, int]:
        """A member, and the format in which it is written: the archive's, or pax where the header of that lacks room for it."""
        member = tarfile.TarInfo(f"{key}.{extension}")
        member.size, member.mode = size, self._mode
        member.mtime = int(time.time() if self._mtime is None else self._mtime)
        member.uname, member.gname = self._user, self._group
        encoding, how = self._tar.encoding or "utf-8", self._tar.errors or "strict"
        try:
            if len(member.name.encode(encoding, how)) > tarfile.LENGTH_NAME or size > _MOST_OF_USTAR \
                    or not 0 <= member.mtime <= _MOST_OF_USTAR:
                member.tobuf(self._format, encoding, how)  # only whether it can
        except UnicodeError as error:
            raise errors.usage(f"a name that UTF-8 does not have, {member.name!r} ({error})", "write another '__key__'") from error
        except ValueError:
            return member, tarfile.PAX_FORMAT
        return member, self._format

    def close(self) -> None:
        """Completes the archive, and waits for the command. Does nothing in a process that was forked.

        Raises IoFailedError for an archive that a write has cut, which gets no end: readers see that it is cut."""
        if self._process in (0, os.getpid()):
            self._check_usable()
            self._end_archive()
            if self._failure:
                failed, self._failure = self._cut(), ""
                raise failed

    def _end_archive(self) -> None:
        self._process = 0
        failed: Optional[OSError] = None
        with self._guard:
            own, self._own, self._of_program = self._own, None, None
            try:
                if self._failure:
                    self._let_go()
                self._tar.close()
            except OSError as why:
                failed = why
            finally:
                if own is not None:
                    own.close()
        command, self._command = self._command, None
        if command is not None and command.wait() != 0:  # which says more than that its pipe is broken
            raise errors.error("io_failed", f"{self._what!r} ended with code {command.returncode}") from failed
        if failed is not None:
            raise failed

    def _let_go(self) -> None:
        """Has tarfile write nothing more."""
        stream: Any = self._tar.fileobj
        stream.closed = self._tar.closed = True

    def _drop(self) -> None:
        if self._process in (0, os.getpid()):
            self._end_archive()

    def _before_fork(self) -> None:
        # What the file of a program keeps is written here, and not again by the child; not for longer than a fork may wait.
        file = self._of_program
        if file is not None and self._process and self._guard.acquire(timeout=5):
            self._holders.append(threading.get_ident())
            if hasattr(file, "flush") and not getattr(file, "closed", False):
                file.flush()

    def _after_fork_in_parent(self) -> None:
        if threading.get_ident() in self._holders:
            self._holders.remove(threading.get_ident())
            self._guard.release()

    def _after_fork_in_child(self) -> None:
        self._guard, self._holders = threading.RLock(), []
        if self._process:
            self._let_go()
            if self._own is not None:
                self._own.close()  # a command waits until nobody has its pipe

    def __enter__(self) -> "TarWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None or kind is GeneratorExit:
            self.close()
        else:
            self._drop()
