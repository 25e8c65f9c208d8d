"""Writers of shards, which encode values by their extensions."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from typing import IO, Any, Optional, Union

from .. import errors
from ..writer import ShardWriter as _ShardWriter

_TEXTS = frozenset("txt text transcript html htm".split())
_NUMBERS = frozenset("cls cls2 class count index inx id".split())
_IMAGES = {"jpg": "JPEG", "jpeg": "JPEG", "img": "JPEG", "image": "JPEG", "png": "PNG", "ppm": "PPM", "webp": "WEBP"}


def encoded(extension: str, value: Any) -> bytes:
    """The bytes of a value: texts, numbers, JSON, numpy's arrays as npy and npz, and images of Pillow, or uint8 arrays, as
    jpg, png, ppm and webp."""
    last = extension.rsplit(".", 1)[-1].lower()
    if isinstance(value, bytes):
        return value
    if last in _IMAGES:
        return _image(value, _IMAGES[last])
    if isinstance(value, str):
        return value.encode()
    if last in _NUMBERS:
        return str(value).encode()
    if last in ("json", "jsn"):
        return json.dumps(value).encode()
    if last in ("npy", "npz"):
        import numpy
        out = io.BytesIO()
        if last == "npy":
            numpy.save(out, numpy.asarray(value), allow_pickle=False)
        else:
            numpy.savez_compressed(out, **value)
        return out.getvalue()
    raise errors.not_offered(f"encoding '{extension}' of a {type(value).__name__}", "bytes: pickle.dumps(value), or your own")


def _image(value: Any, kind: str) -> bytes:
    import PIL.Image
    if not isinstance(value, PIL.Image.Image):
        import numpy
        pixels = numpy.asarray(value)
        if pixels.dtype != numpy.uint8:
            pixels = (pixels.clip(0, 1) * 255).round().astype(numpy.uint8)
        value = PIL.Image.fromarray(pixels)
    out = io.BytesIO()
    value.save(out, kind, **({"quality": 100} if kind == "JPEG" else {}))
    return out.getvalue()


def _fields(sample: dict[str, Any], encodes: bool) -> dict[str, bytes]:
    return {k: encoded(k, v) if encodes else v for k, v in sample.items() if not k.startswith("_")}


class ShardWriter:
    """Writes samples into shards of the names "train-%06d.tar", which appear when they are complete.

    Args:
        pattern: names of the shards.
        maxcount: samples of a shard.
        maxsize: bytes of a shard's samples.
        post: called with the path of each complete shard.
        start_shard: the number of the first.
        encoder: encodes values by their extensions; False: they are bytes.
    """

    def __init__(self, pattern: str, maxcount: int = 100_000, maxsize: float = 3e9,
                 post: Optional[Callable[[str], None]] = None, start_shard: int = 0, verbose: int = 1,
                 encoder: bool = True, **others: Any) -> None:
        del verbose
        if others:
            raise errors.not_offered(f"ShardWriter({', '.join(others)}=...)", "`millrace pack` for other kinds of shards")
        self._out = _ShardWriter(pattern, max_count=int(maxcount), max_size=int(maxsize), start_shard=start_shard,
                                 overwrite=True)
        self._encodes, self._post, self._posted = encoder, post, 0

    def write(self, sample: dict[str, Any]) -> None:
        """Writes a dict with "__key__" and fields."""
        self._out.write({"__key__": sample["__key__"], **_fields(sample, self._encodes)})
        self._tell()

    def _tell(self) -> None:
        shards = self._out.shards
        while self._posted < len(shards):
            self._posted += 1
            if self._post is not None:
                self._post(shards[self._posted - 1]["path"])

    def close(self) -> None:
        """Completes the last shard."""
        self._out.close()
        self._tell()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._out.__exit__(kind, *rest)
        if kind is None:
            self._tell()


class TarWriter:
    """Writes samples into one tar archive, a path or an open binary file.

    Args:
        fileobj: the path, ".tar" or ".tar.gz", or the file.
        mtime: of all members, in seconds; the same bytes come out for the same samples.
        encoder: encodes values by their extensions; False: they are bytes.
    """

    def __init__(self, fileobj: Union[str, "os.PathLike[str]", IO[bytes]], user: str = "bigdata", group: str = "bigdata",
                 mode: int = 0o444, encoder: bool = True, mtime: float = 0) -> None:
        if isinstance(fileobj, (str, os.PathLike)):
            name = os.fspath(fileobj)
            kind = "w:gz" if name.endswith("gz") else "w"
            self._tar = tarfile.open(name, kind, format=tarfile.USTAR_FORMAT)  # type: ignore[call-overload]
        else:
            self._tar = tarfile.open(fileobj=fileobj, mode="w|", format=tarfile.USTAR_FORMAT)
        self._user, self._group, self._mode, self._mtime, self._encodes = user, group, mode, mtime, encoder

    def write(self, sample: dict[str, Any]) -> int:
        """Writes a dict with "__key__" and fields. Returns the bytes of its fields."""
        fields = _fields(sample, self._encodes)
        for extension, content in sorted(fields.items()):
            member = tarfile.TarInfo(f"{sample['__key__']}.{extension}")
            member.size, member.mode, member.mtime = len(content), self._mode, int(self._mtime)
            member.uname, member.gname = self._user, self._group
            self._tar.addfile(member, io.BytesIO(content))
        return sum(map(len, fields.values()))

    def close(self) -> None:
        """Completes the archive."""
        self._tar.close()

    def __enter__(self) -> "TarWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
