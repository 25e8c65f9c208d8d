"""Arrays of numpy as the bytes of ".ten" fields.

An array is two chunks, its header and its content. A chunk is "~TenBin~", the length of its content as an int64, and the
content, filled up to a multiple of 64 bytes. A header has the type, a name of up to 8 bytes, the number of dimensions, and
each of them, as int64.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    import numpy

_MAGIC = b"~TenBin~"
_TYPES = frozenset("f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8".split())
Buffer = Union[bytes, bytearray, memoryview]


def _chunk(content: bytes) -> bytes:
    return _MAGIC + struct.pack("<q", len(content)) + content + bytes(-len(content) % 64)


def encode_buffer(l: "list[numpy.ndarray[Any, Any]]", infos: Optional[Sequence[str]] = None) -> bytearray:  # noqa: E741
    """The bytes of a list of arrays.

    Args:
        infos: a name for each, of up to 8 letters of ASCII.
    """
    if not isinstance(l, list):
        raise ValueError("requires list")
    if infos is not None and len(infos) != len(l):
        raise ValueError(f"{len(infos)} infos for {len(l)} arrays")
    out = bytearray()
    for array, info in zip(l, infos or [""] * len(l)):
        kind = array.dtype.str[1:]
        if kind not in _TYPES or array.ndim >= 10:
            raise ValueError(f"an array of {array.dtype} with {array.ndim} dimensions")
        header = kind.encode().ljust(8, b"\0") + info.encode("ascii").ljust(8, b"\0")
        if len(header) != 16:
            raise ValueError(f"the name '{info}' is longer than 8 letters")
        out += _chunk(header + struct.pack(f"<{1 + array.ndim}q", array.ndim, *array.shape))
        out += _chunk(array.astype("<" + kind, copy=False).tobytes())
    return out


def _chunks(buf: Buffer) -> Iterator[memoryview]:
    rest = memoryview(buf)
    while rest:
        if rest[:8] != _MAGIC or len(rest) < 16:
            raise ValueError("magic bytes mismatch")
        size, = struct.unpack("<q", rest[8:16])
        if not 0 <= size <= len(rest) - 16:
            raise ValueError(f"a chunk of {size} bytes where {len(rest) - 16} are left")
        yield rest[16:16 + size]
        rest = rest[16 + size + -size % 64:]


def decode_buffer(buf: Buffer, infos: bool = False) -> Any:
    """The list of arrays that the bytes hold; with `infos` also the list of their names. The arrays share the bytes."""
    import numpy
    arrays, names = [], []
    chunks = _chunks(buf)
    for header in chunks:
        content = next(chunks, None)
        kind = bytes(header[:8]).rstrip(b"\0").decode("ascii", "replace")
        if content is None or kind not in _TYPES or len(header) < 24 or len(header) % 8 != 0:
            raise ValueError(f"no array: type '{kind}'")
        dimensions, *shape = struct.unpack(f"<{len(header) // 8 - 2}q", header[16:])
        if dimensions != len(shape):
            raise ValueError(f"{len(shape)} sizes of {dimensions} dimensions")
        arrays.append(numpy.frombuffer(content, "<" + kind).reshape(shape))
        names.append(bytes(header[8:16]).rstrip(b"\0").decode("ascii", "replace"))
    return (arrays, names) if infos else arrays


def save(fname: Union[str, "os.PathLike[str]"], *args: "numpy.ndarray[Any, Any]", infos: Optional[Sequence[str]] = None) -> None:
    """Writes arrays to a file."""
    with open(fname, "wb") as out:
        out.write(encode_buffer(list(args), infos))


def load(fname: Union[str, "os.PathLike[str]"], infos: bool = False) -> Any:
    """The arrays of a file."""
    with open(fname, "rb") as source:
        return decode_buffer(source.read(), infos)
