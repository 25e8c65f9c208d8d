"""Errors: one class for each kind of error of the engine, all of them `millrace.Error`.

    try:
        for images, labels in train: ...
    except mr.NotFoundError as e:
        print(e.url)

A class is also the built-in exception that fits (`NotFoundError` is a `FileNotFoundError`), so code that knows
nothing of millrace can catch it. Decide by the class or by `kind`, never by the text.
"""

from __future__ import annotations

import re

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


def _class_name(kind: str) -> str:
    return "".join(part.capitalize() for part in kind.split("_")) + "Error"


def _make_class(kind: str, also: type[Exception]) -> type[Error]:
    name = _class_name(kind)
    bases = (Error,) if also is Exception else (Error, also)
    return type(name, bases, {"kind": kind, "__doc__": f"The engine's errors of the kind {kind}.",
                              "__module__": __name__, "__str__": lambda self: str(self.args[0]) if self.args else ""})


_BUDGET = re.compile(r"engine_options\.memory_bytes to (\d+)_MiB")
_JOIN = re.compile(r"join_options\.(?:untar\.)?")
_CLASSES = {kind: _make_class(kind, also) for kind, also in _KINDS.items()}
globals().update({c.__name__: c for c in _CLASSES.values()})
__all__ += [c.__name__ for c in _CLASSES.values()]


def make(kind: str, message: str, url: str = "", offset: int | None = None, key: str = "", hint: str = "",
         retryable: bool = False, skippable: bool = False, exit_code: int = 1) -> Error:
    """The exception for an error of the engine."""
    message, hint = (_JOIN.sub("", _BUDGET.sub(r"memory to '\1MiB'", text)) for text in (message, hint))  # as Python sets it
    error = _CLASSES.get(kind, Error)(message)
    error.url, error.offset, error.key, error.hint = url, offset, key, hint
    error.retryable, error.skippable, error.exit_code = retryable, skippable, exit_code
    return error


def usage(what: str, hint: str = "") -> Error:
    """An argument that is wrong."""
    return make("usage", f"usage: {what}" + (f"; {hint}" if hint else ""), hint=hint, exit_code=2)


def not_offered(what: str, instead: str) -> Error:
    """Something that this package does not have, and the line to write instead."""
    return make("unsupported", f"unsupported: {what} is not offered; write {instead}", hint=f"write {instead}",
                exit_code=2)
