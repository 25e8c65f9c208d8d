"""Errors: one class for each kind of error of the engine, all of them `millrace.Error`.

    try:
        for images, labels in train: ...
    except mr.NotFoundError as e:
        print(e.url)

A class is also the built-in exception that fits (`NotFoundError` is a `FileNotFoundError`), so code that knows
nothing of millrace can catch it. Decide by the class or by `kind`, never by the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["Error"]


class Error(RuntimeError):
    """An error of the engine. Its text is one line: "kind: what, at URL byte N, key K (cause); what to do".

    Attributes:
        kind: the engine's name of the kind, such as "not_found".
        url: of the file or object, without secrets; empty: none.
        offset: byte of it; None: none.
        key: of the sample; empty: none.
        hint: what to do; empty: nothing is known.
        retryable: whether the same may succeed when it is tried again.
        skippable: whether it concerns one sample or shard, so that `on_error` can skip it.
        exit_code: of the command line tools for this kind.

    Those that are an OSError have `errno` and `strerror` as well, of the system's call that failed, and `filename`, which is `url`;
    None: the error has none, such as one of a server's answer.
    """

    kind: str = "internal"
    url: str = ""
    offset: int | None = None
    key: str = ""
    hint: str = ""
    retryable: bool = False
    skippable: bool = False
    exit_code: int = 1


# The engine's kinds, and the built-in exception that each is as well.
_KINDS: dict[str, type[Exception]] = {
    "usage": ValueError, "bad_setting": ValueError, "not_found": FileNotFoundError, "not_allowed": PermissionError,
    "connect_failed": ConnectionError, "untrusted": ConnectionError, "timed_out": TimeoutError, "cut": ConnectionError,
    "http_status": OSError, "protocol": OSError, "io_failed": OSError, "changed": ValueError, "truncated": EOFError,
    "bad_archive": ValueError, "duplicate_field": ValueError, "too_large": ValueError, "bad_image": ValueError,
    "bad_label": ValueError, "bad_field": ValueError, "missing_field": KeyError, "no_samples": ValueError,
    "no_memory": MemoryError, "no_descriptors": OSError, "bad_state": ValueError, "bad_index": ValueError,
    "integrity": ValueError, "peer_lost": ConnectionError, "too_many_skipped": ValueError,
    "unsupported": NotImplementedError, "stopped": Exception, "uncaught": Exception, "device_failed": OSError,
    "internal": Exception,
}

# The engine's exit code for each kind that has another one than 1.
_EXIT_CODES: dict[str, int] = {kind: code for code, kinds in {
    2: "usage bad_setting no_memory unsupported",
    3: "too_many_skipped",
    4: "not_found not_allowed connect_failed untrusted timed_out cut http_status protocol io_failed no_descriptors",
    5: "changed truncated bad_archive duplicate_field bad_field bad_index integrity",
    6: "peer_lost",
    7: "device_failed",
    130: "stopped",
}.items() for kind in kinds.split()}


def _class_name(kind: str) -> str:
    return "".join(part.capitalize() for part in kind.split("_")) + "Error"


def _make_class(kind: str, also: type[Exception]) -> type[Error]:
    name = _class_name(kind)
    bases = (Error,) if also is Exception else (Error, also)
    of_system = dict.fromkeys(("errno", "strerror", "filename")) if issubclass(also, OSError) else {}  # kept by pickle, too
    return type(name, bases, {"kind": kind, "exit_code": _EXIT_CODES.get(kind, 1), "__module__": __name__,
                              "__doc__": f"The engine's errors of the kind {kind}.",
                              "__str__": lambda self: str(self.args[0]) if self.args else "", **of_system})


_CLASSES = {kind: _make_class(kind, also) for kind, also in _KINDS.items()}
globals().update({c.__name__: c for c in _CLASSES.values()})
__all__ += [c.__name__ for c in _CLASSES.values()]


# What the engine says of stages, records and options: (kind, how its message begins, and instead; its whole hint, and instead). The names
# of files and keys are never reworded.
_WORDS = (
    ("bad_state", r"the ranks' states have different records .* of rank (\d+) of (\d+), of a stage of the program",
     r"two different states are of rank \1 of \2", ".*", "give the state of every rank once, all of one step"),
    ("bad_state", "the saved state has a record shuffle of its lanes, which cannot be resumed with another number of lanes",
     "the state was saved with a shuffle and with other lanes, and this loader has no shuffle", ".*",
     "give it the shuffle, and as many lanes or others; or begin without the state"),
    ("bad_state", r"the saved state has a record (\S+) of its lanes, which cannot be resumed with another number of lanes",
     r"the state has what '\1' saved of each lane, which cannot be continued with another number of lanes", ".*", r"\g<0>"),
    ("too_many_skipped", "", "", "error policy report names a file for a list of the skipped samples",
     "mr.skip(report=FILE) lists the skipped samples"),
    ("no_memory", "the plan needs", "the loader needs",
     "(set memory to .*), or lower the batch size, the read extent or the number of lanes",
     r"\1, or lower lanes (of an ImageLoader also batch_size)"),
)


def _reworded(kind: str, message: str, hint: str) -> tuple[str, str]:
    """A message of the engine and the hint at its end, as Python's arguments are called."""
    for of, happened, said, advice, to_do in _WORDS:
        begin, end = re.match(f"{kind}: {happened}", message), re.fullmatch(advice, hint)
        if kind == of and begin and end and message.endswith(hint):
            between, hint = message[begin.end():len(message) - len(hint)], end.expand(to_do)
            return f"{kind}: {begin.expand(said)}{between}{hint}", hint
    return message, hint


def make(kind: str, message: str, url: str = "", offset: int | None = None, key: str = "", hint: str = "",
         retryable: bool = False, skippable: bool = False, exit_code: int = 1, errno: int = 0) -> Error:
    """The exception for an error of the engine, which gives all of this itself. Errors made in Python: `error`.

    Args:
        errno: of the system's call that failed; 0: none.
    """
    return _made(kind, *_reworded(kind, message, hint), url, offset, key, retryable, skippable, exit_code, errno)


def _made(kind: str, message: str, hint: str, url: str, offset: int | None, key: str, retryable: bool, skippable: bool, exit_code: int,
          errno: int) -> Error:
    made = _CLASSES.get(kind, Error)(message)
    if isinstance(made, OSError):
        made.filename = url or None
        if errno:
            made.errno, made.strerror = errno, os.strerror(errno)
    made.url, made.offset, made.key, made.hint = url, offset, key, hint
    made.retryable, made.skippable, made.exit_code = retryable, skippable, exit_code
    return made


def error(kind: str, what: str, *, url: str = "", key: str = "", hint: str = "", errno: int = 0,
          skippable: bool = False) -> Error:
    """An error made in Python. Composes the line as the engine does, and takes the exit code of the kind.

    Args:
        what: what happened, to what; lines of another library's text become one.
        url: of the file or object; shown without its secrets.
        key: of the sample.
        hint: what to do.
        errno: of the system's call that failed; 0: none.
        skippable: whether it concerns one sample or shard.
    """
    where = redacted(url)
    line = f"{kind}: {what}" + (f", at {where}" if where else "") + (f", key {key}" if key else "") + (f"; {hint}" if hint else "")
    return _made(kind, " ".join(line.split("\n")), hint, where, None, key, False, skippable, _EXIT_CODES.get(kind, 1), errno)


def redacted(url: str) -> str:
    """A text that names URLs, without their users, passwords, queries and fragments, and of commands the program alone. A path as it is."""
    from . import _core  # which imports this module
    return _core.redacted(url.encode(errors="surrogatepass")).decode(errors="surrogatepass")


def shown(value: object) -> str:
    """A value as a message has it: a name or URL without its secrets, and of what may hold some its type alone."""
    if isinstance(value, (str, os.PathLike)):
        return repr(redacted(os.fsdecode(value)))
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 128):
        return repr(value)
    return f"a {type(value).__name__}"


def from_os(why: OSError, path: str) -> Error:
    """The error for one of the system, at a file."""
    kind, hint = next((of for kind, of in _OF_SYSTEM.items() if isinstance(why, kind)), ("io_failed", ""))
    return error(kind, os.strerror(why.errno) if why.errno else str(why), url=path, hint=hint, errno=why.errno or 0)


_OF_SYSTEM: dict[type[OSError], tuple[str, str]] = {
    FileNotFoundError: ("not_found", "check the path"), PermissionError: ("not_allowed", "check the permissions of the file"),
    IsADirectoryError: ("usage", "name a file, not a folder")}


def usage(what: str, hint: str = "") -> Error:
    """An argument that is wrong."""
    return error("usage", what, hint=hint)


def not_offered(what: str, instead: str) -> Error:
    """Something that this package does not have, and the line to write instead."""
    return error("unsupported", f"{what} is not offered", hint=f"write {instead}")


def no_argument(of: type, name: str, others: Iterable[str] = ()) -> TypeError:
    """For an argument that a class does not have, with the nearest one that it has.

    Args:
        others: arguments that its signature does not show.
    """
    import difflib
    import inspect
    near = difflib.get_close_matches(name, [*inspect.signature(of).parameters, *others], 1)
    return TypeError(f"{of.__name__}() has no argument '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
