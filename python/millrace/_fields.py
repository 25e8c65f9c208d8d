"""Values of fields by their extensions."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

from . import _core, errors


def value_of(extension: str, content: bytes) -> Any:
    """What `decode_field` gives."""
    name = extension.lower()
    while name.endswith(".gz"):
        name, content = name[:-3], _core.decode_field("bytes.gz", content)
    last = name.rsplit(".", 1)[-1]
    reader = _READERS.get(last)
    if reader is None:
        return _core.decode_field(last, content)
    try:
        return reader(last, content)
    except RecursionError:
        raise errors.error("bad_field", f"{last} that is nested too deep", hint="flatten it") from None
    except (ValueError, EOFError) as why:
        if isinstance(why, errors.Error):
            raise
        raise errors.error("bad_field", f"not {_WORDS.get(last, last)}: {why}") from why


def of_sample(why: errors.Error, field: str, url: str, key: str) -> errors.Error:
    """The same error, of this field (empty: it is named) of this sample."""
    what = str(why).removeprefix(why.kind + ": ").removesuffix("; " + why.hint)
    made = errors.error(why.kind, f"field '{field}': {what}" if field else what, url=url, key=key, hint=why.hint)
    made.skippable = why.skippable
    return made


def _npy(last: str, content: bytes) -> Any:
    try:
        return _core.decode_field(last, content)
    except errors.BadFieldError:  # of an order, or a type, that only numpy has
        return _by_numpy(content)


def _npz(last: str, content: bytes) -> Any:
    try:
        return _core.decode_field(last, content)
    except errors.BadFieldError:
        import zipfile
        import zlib
        made, left = {}, _MOST_UNPACKED
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for name in archive.namelist():
                    with archive.open(name) as file:
                        array = file.read(left + 1)
                    left -= len(array)
                    if left < 0:
                        raise errors.error("too_large", f"npz of more than {_MOST_UNPACKED >> 20} MiB unpacked", hint="split it") from None
                    made[name.removesuffix(".npy")] = _by_numpy(array)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as why:
            if isinstance(why, errors.Error):
                raise
            raise ValueError(str(why)) from why
        return made


def _by_numpy(content: bytes) -> Any:
    """An array of bytes that are as many as its header says, so that nothing is allocated by its word."""
    import numpy
    file = io.BytesIO(content)
    version = numpy.lib.format.read_magic(file)
    read_header = {(1, 0): numpy.lib.format.read_array_header_1_0, (2, 0): numpy.lib.format.read_array_header_2_0}.get(version)
    if read_header is None:
        raise ValueError(f"of version {version}")
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickles, which run code")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"an array of type {dtype} whose size does not match its shape")
    return numpy.ndarray(shape, dtype, content, file.tell(), order="F" if is_fortran else "C").copy(order="K")


_MOST_UNPACKED = 256 << 20  # as in C++
_READERS: dict[str, Callable[[str, bytes], Any]] = {
    **dict.fromkeys(("json", "jsn"), lambda last, content: json.loads(content)),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), lambda last, content: int(content)),
    **dict.fromkeys(("mp", "msg", "msgpack", "cbor"), _core.packed_value),
    "npy": _npy, "npz": _npz}
_WORDS = {"json": "JSON", "jsn": "JSON", **dict.fromkeys(("mp", "msg", "msgpack"), "MessagePack"), "cbor": "CBOR",
          **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "an integer")}
