"""Arguments as the engine takes them, or an error that names the argument."""

from __future__ import annotations

import numbers
import operator
import os
from typing import Any, Optional

from . import errors


# The least and the most of the arguments that are whole numbers, wherever one of that name is taken.
RANGES = {
    "batch_size": (1, 2**20), "size": (1, 16384), "resize": (0, 32768), "classes": (0, 2**63 - 1), "held": (1, 2**20),
    "prefetch": (1, 2**20), "epoch_samples": (1, 2**62), "shuffle": (0, 2**62), "seed": (0, 2**64 - 1), "lanes": (-1, 65536),
    "threads": (1, 1024), "memory": (0, 2**40), "cache_decoded": (0, 2**63 - 1), "epoch": (0, 2**46),
    "max_count": (1, 2**63 - 1), "max_size": (1, 2**63 - 1), "start_shard": (0, 2**63 - 1),
    "most": (0, 2**64 - 1), "in_a_row": (0, 2**64 - 1), "ops": (0, 16), "magnitude": (0, 30)}


def whole(name: str, value: Any, least: Optional[int] = None, most: Optional[int] = None, *, instead: str = "") -> int:
    """A whole number as an int: numpy's too. Refuses others, naming the argument and its range.

    Args:
        least, most: of the number, both; None: those of RANGES.
        instead: what the argument may be instead of a number, for the error: "'auto' or ".
    """
    lowest, highest = RANGES[name] if least is None or most is None else (least, most)
    range_of = f"give {instead}a whole number from {lowest} to {highest}"
    try:
        number = operator.index(value)
    except TypeError:
        raise errors.usage(f"{name} is {errors.shown(value)}", range_of) from None
    if isinstance(value, bool) or not lowest <= number <= highest:
        shown = value if abs(number) < 2**128 else f"a number of {number.bit_length()} bits"
        raise errors.usage(f"{name} is {shown}", range_of)
    return number


def patterns(name: str, value: Any) -> str:
    """Patterns of extensions, in the lower case that extensions are in. Refuses what is not a text, naming the argument."""
    return "".join(c.lower() if c.isascii() else c for c in utf8(name, text(name, value)))


def text(name: str, value: Any, otherwise: str = "give a text") -> str:
    """A text, which may hold the bytes of a file's name. Refuses others, naming the argument.

    Args:
        otherwise: what to do, for the error.
    """
    if not isinstance(value, str):
        raise errors.usage(f"{name} is {errors.shown(value)}", otherwise)
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError as why:
        raise errors.usage(f"{name} is {errors.shown(value)}, which has half a character at {why.start}", otherwise) from None
    return value


def path(name: str, value: Any) -> str:
    """A path or URL as a text. Refuses others, naming the argument."""
    if not isinstance(value, (str, os.PathLike)):
        raise errors.usage(f"{name} is {errors.shown(value)}", "give a path or URL")
    return text(name, os.fsdecode(value), "give a path or URL")


def utf8(name: str, value: str) -> str:
    """A text, where the bytes of a file's name are not taken. Refuses those, naming the argument."""
    try:
        value.encode()
    except UnicodeEncodeError as why:
        raise errors.usage(f"{name} is {errors.shown(value)}, which is not UTF-8 at {why.start}", "use names in UTF-8 there") from None
    return value


def encodable(value: Any) -> str:
    """A value as a text that the engine takes, which refuses what it does not know: halves of characters become escapes."""
    return str(value).encode(errors="backslashreplace").decode()


def one_of(name: str, value: Any, names: tuple[str, ...]) -> str:
    """One of these texts. Refuses others, naming the argument: also arrays, which do not compare to one truth."""
    if not isinstance(value, str) or value not in names:
        shown = [repr(n) for n in names]
        raise errors.usage(f"{name} is {errors.shown(value)}", f"give {', '.join(shown[:-1])} or {shown[-1]}")
    return value


def share(name: str, value: Any, most: float) -> float:
    """A number from 0 on. Refuses others, naming the argument and its range."""
    if not isinstance(value, numbers.Real) or not 0 <= value <= most:
        raise errors.usage(f"{name} is {f'{value:g}' if isinstance(value, float) else errors.shown(value)}", f"{name} takes 0 to {most:g}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """True or False. Refuses others, naming the argument: "no" is true in Python."""
    try:
        is_flag = not isinstance(value, str) and bool(value in (True, False))
    except Exception:  # of an array, which does not compare to one truth
        is_flag = False
    if not is_flag:
        raise errors.usage(f"{name} is {errors.shown(value)}", "give True or False")
    return bool(value)
