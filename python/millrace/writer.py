"""ShardWriter: samples into shards."""

from __future__ import annotations

import json
import operator
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

from . import _core, errors
from ._fields import of_sample
from ._loader import remember
from ._numbers import flag, path, text, utf8, whole


def encoded(extension: str, value: Any) -> bytes:
    """The bytes of a value by its extension: bytes as they are, texts in UTF-8, numbers in decimal, and for "json" any
    value that JSON has."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    last = extension.rsplit(".", 1)[-1].lower()
    if last == "gz":
        raise errors.usage(f"a field '{extension}' that is not compressed", "compress it: gzip.compress(...)")
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
    if hasattr(value, "__index__") and not isinstance(value, bool):  # of numpy and torch, too
        return str(operator.index(value)).encode()
    raise errors.usage(f"a field '{extension}' of type {type(value).__name__}", "encode it to bytes")


def of_field(key: Any, name: Any, encode: Callable[[], Any]) -> Any:
    """Calls encode(). What it raises names the field and the sample."""
    try:
        return encode()
    except errors.Error as why:
        raise of_sample(why, "" if f"'{name}'" in str(why) else name, "", key) from why
    except Exception as why:
        raise errors.error("usage", f"field '{name}' cannot be encoded: {why}", key=key, hint="encode it to bytes") from why


_open: "weakref.WeakSet[Closing]" = weakref.WeakSet()


def _has_program_failed() -> bool:
    """Whether an exception that nobody has caught has ended the program. The interpreter leaves its traceback in sys.last_traceback; so
    does a console for a slip at its prompt, or a runner of tests, which go on: but they have called the outermost function there."""
    trace = getattr(sys, "last_traceback", None)
    return trace is not None and trace.tb_frame.f_back is None and not (hasattr(sys, "ps1") or sys.flags.interactive)


class Closing:
    """A writer that is closed for a program which forgot to: when it is collected or when the interpreter, or the process of
    multiprocessing, ends, with a ResourceWarning. Where an exception has ended the program, a shard that is not complete is left out,
    which stderr is told: it might replace one that is. In a process that was forked, it is left to the parent."""

    _process = 0  # that is to close it; 0: none
    _is_part = False  # of another writer
    _leaves_out = False  # what is not complete, by _drop()

    def close(self) -> Any:
        """Completes what was written."""
        raise NotImplementedError

    def _drop(self) -> None:
        """As `close`, for a program that fails."""
        self.close()

    def _before_fork(self) -> None:
        """Leaves nothing in memory that a child would write as well."""

    def _after_fork_in_child(self) -> None:
        """Lets go of what the parent writes."""

    def _after_fork_in_parent(self) -> None:
        """Goes on after _before_fork()."""

    def _wait_for_callers(self) -> None:
        """Refuses further calls, and waits for those of threads that have no GIL: the end of the interpreter would kill the process."""

    def _must_be_closed(self, what: str) -> None:
        self._what, self._process = errors.redacted(what), os.getpid()
        _open.add(self)
        remember(self)
        _end_with_multiprocessing()

    def _check_process(self) -> None:
        """Refuses what a forked child would add to its parent's files."""
        if self._process and self._process != os.getpid():
            raise errors.usage(f"{type(self).__name__}({self._what!r}) belongs to the process that was forked", "make one in each process")

    def _close_for_program(self) -> None:
        if not self._process or self._process != os.getpid():
            return
        self._process = 0
        try:
            warnings.warn(f"{type(self).__name__}({self._what!r}) was not closed, and is completed only now; write "
                          f"`with {type(self).__name__}(...) as out:`, or call close()", ResourceWarning, stacklevel=3, source=self)
        finally:
            self.close()

    def _at_exit(self) -> None:
        if self._is_part:  # which another one ends, perhaps after this
            return
        try:
            self._end(_has_program_failed())
        finally:
            self._wait_for_callers()

    def _end(self, fails: bool) -> None:
        if fails and self._leaves_out and self._process == os.getpid():
            print(f"millrace: {type(self).__name__}({self._what!r}) was not closed before the exception: what is not complete is "
                  "left out", file=sys.stderr)
            self._drop()
        else:
            self._close_for_program()

    def __del__(self) -> None:
        self._close_for_program()


def _of_all(call: "Callable[[Closing], None]") -> None:
    failed: Optional[BaseException] = None
    for one in list(_open):
        try:
            call(one)
        except BaseException as why:  # the others need it all the same
            failed = why
    if failed is not None:
        raise failed


os.register_at_fork(before=lambda: _of_all(lambda one: one._before_fork()),
                    after_in_parent=lambda: _of_all(lambda one: one._after_fork_in_parent()),
                    after_in_child=lambda: _of_all(lambda one: one._after_fork_in_child()))

_ended_by_multiprocessing = 0  # the process


def _end_with_multiprocessing() -> None:
    """A process of multiprocessing calls what it was given here; one that it forks ends without atexit, and no other knows that its
    function has raised."""
    global _ended_by_multiprocessing
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None and _ended_by_multiprocessing != os.getpid():
        _ended_by_multiprocessing = os.getpid()
        util.Finalize(None, _end_process, exitpriority=-1000)  # after those of the program, which may end its threads


def _end_process() -> None:
    process = sys.modules["multiprocessing.process"]
    failure = sys.exc_info()[1]  # of the process's function, or what was handled where the process was forked
    begun = failure.__traceback__ if failure is not None else None
    fails = begun is not None and begun.tb_frame.f_globals is vars(process)
    if isinstance(failure, SystemExit):  # sys.exit(1) of a launcher that has caught the function's exception
        fails = fails and failure.code not in (None, 0) and isinstance(failure.__context__, Exception)
    try:
        # Threads that write come to their end first, and what executors have been given: as multiprocessing does after this.
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as why:  # AssertionError: forked on a thread that threading does not know
        fails = fails or not isinstance(why, AssertionError)
        raise
    finally:
        _of_all(lambda one: one._end(fails))


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

    Close it, or use it in a `with`: an exception in it removes the shard that is not complete. Where neither is done, it is completed
    when the writer is collected or the interpreter ends, with a ResourceWarning; after an exception that nobody has caught, the shard
    that is not complete is left out.

    Any thread may write: samples of several threads come in the order of their calls.

    Raises subclasses of `millrace.Error`: UsageError for a sample whose names readers would not have as they were written.
    """

    _leaves_out = True

    def __init__(self, pattern: Union[str, "os.PathLike[str]"], *, max_count: int = 100_000, max_size: int = 3_000_000_000,
                 start_shard: int = 0, overwrite: bool = False) -> None:
        self._native = _core.Writer(
            utf8("pattern", path("pattern", pattern)), whole("max_count", max_count), whole("max_size", max_size),
            whole("start_shard", start_shard), flag("overwrite", overwrite))
        self._out: Optional[_core.Writer] = self._native  # None: it is closed
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
        key = text("__key__", sample["__key__"])
        wrong = [k for k in sample if not isinstance(k, str)]
        if wrong:
            raise errors.usage(f"the extension {wrong[0]!r} of sample '{key}'", "extensions are texts")
        fields = [(k.lower(), of_field(key, k, lambda k=k, v=v: encoded(k, v)))  # type: ignore[misc]
                  for k, v in sample.items() if not k.startswith("__")]
        out.write(key, fields)

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
        if kind is None or kind is GeneratorExit:  # a loop that has enough samples leaves its generator
            self.close()
        else:
            self._drop()

    def _drop(self) -> None:
        self._process, out, self._out = 0, self._out, None
        if out is not None:
            self._written = out.shards()
            out.drop()

    def _wait_for_callers(self) -> None:
        self._native.end()
