"""What torch's DataLoader takes as an iterable."""

from __future__ import annotations

import sys
from typing import Any


def _base() -> type:
    """torch's IterableDataset where torch is loaded; else object."""
    torch = sys.modules.get("torch")
    return torch.utils.data.IterableDataset if torch is not None else object


class Items:
    """The base of iterables. Where torch is loaded when one is made, it is an IterableDataset, too."""

    def __new__(cls, *args: Any, **kw: Any) -> Any:
        base = _base()
        if base is not object and not issubclass(cls, base):
            cls = _with_base(cls, base)
        return object.__new__(cls)

    def _content(self) -> dict[str, Any]:
        """What a copy in another process is made of."""
        return dict(self.__dict__)

    def __reduce__(self) -> Any:
        return unpickled, (getattr(type(self), "_plain", type(self)), self._content())


_of_base: dict[tuple[type, type], type] = {}


def _with_base(kind: type, base: type) -> type:
    """A class that is also torch's IterableDataset."""
    if (kind, base) not in _of_base:
        _of_base[kind, base] = type(kind.__name__, (kind, base), {"_plain": kind, "__module__": kind.__module__})
    return _of_base[kind, base]


def unpickled(kind: type, content: dict[str, Any]) -> Any:
    """An object of the class and its content, which is not initialised."""
    made = Items.__new__(kind)
    made.__dict__.update(content)
    return made
