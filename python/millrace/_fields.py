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
        return _of_zip(content)


def _of_zip(content: bytes) -> dict[str, Any]:
    import zipfile
    made, left = {}, _MOST_UNPACKED
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                # Of others read() unpacks what it likes, whatever it is asked for.
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise errors.error("bad_field", f"npz whose member {member.filename!r} is compressed by method {member.compress_type}",
                                       hint="write it by numpy.savez_compressed(), which deflates", skippable=True)
                with archive.open(member) as file:
                    array = file.read(left + 1)
                left -= len(array)
                if left < 0:
                    raise errors.error("too_large", f"npz of more than {_MOST_UNPACKED >> 20} MiB unpacked", hint="split it", skippable=True)
                made[member.filename.removesuffix(".npy")] = _by_numpy(array)
    except (errors.Error, MemoryError, ImportError):
        raise
    except Exception as why:  # zipfile has exceptions of many kinds for a damaged archive
        raise ValueError(str(why) or type(why).__name__) from why
    return made


def _by_numpy(content: bytes) -> Any:
    """An array of bytes that are as many as its header says, so that nothing is allocated, or gone through, by its word."""
    import numpy
    try:
        shape, is_fortran, dtype, begin = _npy_header(content)
    except Exception as why:  # numpy has Python's parser read it; a MemoryError is of one that is nested too deep
        raise ValueError(f"its header cannot be read: {str(why) or type(why).__name__}") from why
    if dtype.hasobject:
        raise ValueError("it holds pickles, which run code")
    count, size = math.prod(shape), len(content) - begin
    if min(shape, default=0) < 0 or count * dtype.itemsize != size:
        raise ValueError(f"an array of type {dtype} whose size does not match its shape")
    if count > 0 and not _has_size(dtype):
        raise ValueError(f"an array of type {dtype}, of which a part has no bytes, or is of a kind that numpy does not write as bytes")
    try:
        array = numpy.ndarray(shape, dtype, content, begin, order="F" if is_fortran else "C")
    except Exception as why:
        raise ValueError(f"an array of type {dtype} that numpy does not make: {why}") from why
    if array.nbytes != size:  # numpy has changed its type
        raise ValueError(f"an array of type {dtype} whose size does not match its shape")
    return array.copy(order="K")


def _npy_header(content: bytes) -> tuple[tuple[int, ...], bool, Any, int]:
    """Shape, whether in Fortran's order, type, and where the numbers begin."""
    import numpy
    file = io.BytesIO(content)
    version = numpy.lib.format.read_magic(file)
    read = {(1, 0): numpy.lib.format.read_array_header_1_0, (2, 0): numpy.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"of version {version}")
    return *read(file), file.tell()


def _has_size(dtype: Any) -> bool:
    """Whether all parts of a type have bytes. numpy makes some of those without longer, and goes through any number of others."""
    if dtype.itemsize == 0:
        return False
    if dtype.subdtype is not None:
        return _has_size(dtype.subdtype[0])
    if dtype.names is not None:
        return all(_has_size(dtype.fields[name][0]) for name in dtype.names)
    return dtype.kind in "biufcmMSUV"


def _json(last: str, content: bytes) -> Any:
    encoding = json.detect_encoding(content)
    is_utf8 = encoding.startswith("utf-8")
    needed = _core.json_needs(content if is_utf8 else content.decode(encoding, "surrogatepass").encode(errors="surrogatepass"))
    if needed > _MOST_OF_JSON:
        raise errors.error("too_large", f"decoding needs about {(needed >> 20) + 1} MiB of memory, and at most {_MOST_OF_JSON >> 20} MiB are "
                           "allowed for it", hint="write it as several samples or fields", skippable=True)
    return json.loads(content)


_MOST_UNPACKED = 256 << 20  # as in C++
_MOST_OF_JSON = 512 << 20  # as in C++
_READERS: dict[str, Callable[[str, bytes], Any]] = {
    **dict.fromkeys(("json", "jsn"), _json),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), lambda last, content: int(content)),
    **dict.fromkeys(("mp", "msg", "msgpack", "cbor"), _core.packed_value),
    "npy": _npy, "npz": _npz}
_WORDS = {"json": "JSON", "jsn": "JSON", **dict.fromkeys(("mp", "msg", "msgpack"), "MessagePack"), "cbor": "CBOR",
          **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "an integer")}
