"""ShardWriter: samples into shards."""

from __future__ import annotations

import atexit
import json
import os
import traceback
import warnings
import weakref
from collections.abc import Mapping
from typing import Any, Optional, Union

from . import _core, errors
from ._numbers import flag, path, whole


def encoded(extension: str, value: Any) -> bytes:
    """The bytes of a value by its extension: bytes as they are, texts in UTF-8, numbers in decimal, and for "json" any
    value that JSON has."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    last = extension.rsplit(".", 1)[-1]
    if last in ("json", "jsn"):
        try:
            return json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise errors.usage(f"a field '{extension}' that is not JSON ({error})", "encode it to bytes") from error
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise errors.usage(f"a field '{extension}' that UTF-8 does not have ({error})", "encode it to bytes") from error
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise errors.usage(f"a field '{extension}' of type {type(value).__name__}", "encode it to bytes")


_open: "weakref.WeakSet[Closing]" = weakref.WeakSet()


class Closing:
    """A writer that is closed for a program which forgot to, as Python does it with files: when it is collected or when the
    interpreter ends, with a ResourceWarning. In a process that was forked, it is left to the parent."""

    _process = 0  # that is to close it; 0: none

    def close(self) -> Any:
        """Completes what was written."""
        raise NotImplementedError

    def _must_be_closed(self, what: str) -> None:
        self._what, self._process = what, os.getpid()
        _open.add(self)

    def _close_for_program(self) -> None:
        if not self._process or self._process != os.getpid():
            return
        self._process = 0
        try:
            warnings.warn(f"{type(self).__name__}({self._what!r}) was not closed, and is completed only now; write "
                          f"`with {type(self).__name__}(...) as out:`, or call close()", ResourceWarning, stacklevel=3, source=self)
        finally:
            self.close()

    def __del__(self) -> None:
        self._close_for_program()


def _close_all() -> None:
    for one in list(_open):
        try:
            one._close_for_program()
        except Exception:  # the others are to be complete all the same
            traceback.print_exc()


atexit.register(_close_all)


class ShardWriter(Closing):
    """Writes samples into shards, which appear under their names when they are complete.

        with mr.ShardWriter("out/train-%06d.tar", max_count=10_000) as out:
            out.write({"__key__": "n0001", "jpg": jpeg, "cls": 3})

    Args:
        pattern: names of the shards, "out/train-%06d.tar" or "out/train-{000000..000099}.tar". The folder must exist.
        max_count: samples of a shard.
        max_size: bytes of a shard's samples.
        start_shard: the number of the first.
        overwrite: replaces shards that are there.

    Close it, or use it in a `with`: an exception in it removes the shard that is not complete. Where neither is done, the last shard
    is completed when the writer is collected or the interpreter ends, with a ResourceWarning.

    Any thread may write: samples of several threads come in the order of their calls.

    Raises subclasses of `millrace.Error`: UsageError for a sample that readers would not read as it was written.
    """

    def __init__(self, pattern: Union[str, "os.PathLike[str]"], *, max_count: int = 100_000, max_size: int = 3_000_000_000,
                 start_shard: int = 0, overwrite: bool = False) -> None:
        self._out: Optional[_core.Writer] = _core.Writer(
            path("pattern", pattern), whole("max_count", max_count), whole("max_size", max_size),
            whole("start_shard", start_shard), flag("overwrite", overwrite))
        self._written: list[dict[str, Any]] = []
        self._must_be_closed(os.fsdecode(pattern))

    def write(self, sample: Mapping[str, Any]) -> None:
        """Writes {"__key__": ..., extension: value, ...}; values as in `encoded`. Other names that begin with "__" are
        left out."""
        out = self._out
        if out is None:
            raise errors.usage("this writer is closed", "make a new one")
        if not isinstance(sample, Mapping) or not isinstance(sample.get("__key__"), str):
            raise errors.usage("a sample without a '__key__' that is a text", 'write {"__key__": "n0001", "jpg": jpeg}')
        wrong = [k for k in sample if not isinstance(k, str)]
        if wrong:
            raise errors.usage(f"the extension {wrong[0]!r} of sample '{sample['__key__']}'", "extensions are texts")
        fields = [(k.lower(), encoded(k, v)) for k, v in sample.items() if not k.startswith("__")]
        out.write(sample["__key__"], fields)

    @property
    def shards(self) -> list[dict[str, Any]]:
        """The shards that are complete: "path", "samples", "bytes"."""
        return self._written if self._out is None else self._out.shards()

    def close(self) -> list[dict[str, Any]]:
        """Completes the last shard. Returns all of them."""
        self._process = 0
        if self._out is not None:
            self._written = self._out.close()
            self._out = None
        return self._written

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._process, self._out = 0, None  # removes the shard that is not complete
