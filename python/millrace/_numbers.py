"""Arguments as the engine takes them, or an error that names the argument."""

from __future__ import annotations

import operator
import os
from typing import Any

from . import errors


def whole(name: str, value: Any, least: int = -2**31, most: int = 2**31 - 1) -> int:
    """A whole number as an int: numpy's too. Refuses others, naming the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise errors.usage(f"{name} is {value!r}", "give a whole number") from None
    if not least <= number <= most:
        raise errors.usage(f"{name} is {number}", f"give a number from {least} to {most}")
    return number


def text(name: str, value: Any) -> str:
    """A text. Refuses others, naming the argument."""
    if not isinstance(value, str):
        raise errors.usage(f"{name} is {value!r}", "give a text")
    return value


def path(name: str, value: Any) -> str:
    """A path or URL as a text. Refuses others, naming the argument."""
    if not isinstance(value, (str, os.PathLike)):
        raise errors.usage(f"{name} is {value!r}", "give a path or URL")
    return os.fsdecode(value)


def flag(name: str, value: Any) -> bool:
    """True or False. Refuses others, naming the argument: "no" is true in Python."""
    if isinstance(value, str) or value not in (True, False):
        raise errors.usage(f"{name} is {value!r}", "give True or False")
    return bool(value)
