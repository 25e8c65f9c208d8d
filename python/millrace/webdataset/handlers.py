"""What happens with an error: a handler takes the exception and raises it, or returns True to continue with the next item,
or False to end the epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable

Handler = Callable[[Exception], bool]


def reraise_exception(error: Exception) -> bool:
    """Raises it: the default."""
    try:
        raise error
    finally:
        del error  # its traceback refers to this frame: a cycle, which would keep the loader


def ignore_and_continue(error: Exception) -> bool:
    """Skips the item."""
    del error
    return True


def warn_and_continue(error: Exception) -> bool:
    """Skips the item, with a warning."""
    warnings.warn(repr(error), stacklevel=2)
    return True


def ignore_and_stop(error: Exception) -> bool:
    """Ends the epoch."""
    del error
    return False


def warn_and_stop(error: Exception) -> bool:
    """Ends the epoch, with a warning."""
    warnings.warn(repr(error), stacklevel=2)
    return False
