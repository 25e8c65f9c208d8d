"""Batches of consecutive items, and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional, Union

from .. import errors

Items = Iterator[Any]


def _combined(name: Union[str, int], values: list[Any], combine_tensors: bool, combine_scalars: bool) -> Any:
    first = values[0]
    if isinstance(first, (int, float)):
        if not combine_scalars:
            return values
        import numpy
        return numpy.array(values)
    if not combine_tensors or not hasattr(first, "shape"):
        return values
    shapes = list(dict.fromkeys(tuple(getattr(v, "shape", (type(v).__name__,))) for v in values))
    if len(shapes) > 1:
        shown = ", ".join(str(shape) for shape in shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "")
        raise errors.usage(f"a batch of arrays of different shapes in {_field(name)}: {shown}",
                           "resize or crop them to one size by .map() before .batched(), or give it a collation_fn (None: lists)")
    if type(first).__module__.startswith("torch"):
        import torch
        return torch.stack(values)
    import numpy
    return numpy.stack(values)


def _field(name: Union[str, int]) -> str:
    return f"place {name} of its tuples" if isinstance(name, int) else f"field '{name}'"


def _names(sample: Any) -> list[Union[str, int]]:
    return list(sample) if isinstance(sample, dict) else list(range(len(sample)))


def default_collation_fn(samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """Tuples (or dicts) of items to one of batches: numbers become arrays, arrays and tensors are stacked, and others become lists.

    Raises UsageError for arrays of different shapes, and for items with different fields."""
    if not hasattr(samples[0], "__len__"):
        raise errors.usage(f"a batch of items of type {type(samples[0]).__name__}, not tuples or dicts",
                           "give .batched() a collation_fn (None: lists), or write .to_tuple() before it")
    names = _names(samples[0])
    for other in samples:
        if len(other) != len(names) or isinstance(other, dict) != isinstance(samples[0], dict) \
                or (isinstance(other, dict) and any(n not in other for n in names)):
            raise errors.usage(f"a batch of items with different fields: {_names(samples[0])}, and {_names(other)}",
                               "choose the same ones of each by .to_tuple() or .map() before .batched(), or give it a collation_fn")
    made = {n: _combined(n, [s[n] for s in samples], combine_tensors, combine_scalars) for n in names}
    return made if isinstance(samples[0], dict) else tuple(made.values())


class batched:
    """Batches of consecutive items. partial=False drops the last one if it is smaller."""

    def __init__(self, batchsize: int = 20, collation_fn: Optional[Callable[[list[Any]], Any]] = default_collation_fn,
                 partial: bool = True) -> None:
        if batchsize < 1:
            raise errors.usage(f"batches of {batchsize}", "give a number from 1 on")
        self.batchsize, self.collation_fn, self.partial = batchsize, collation_fn, partial

    def __call__(self, items: Items) -> Items:
        items = iter(items)
        while held := list(itertools.islice(items, self.batchsize)):
            if len(held) == self.batchsize or self.partial:
                yield held if self.collation_fn is None else self.collation_fn(held)


class unbatched:
    """Batches back to items."""

    def __call__(self, batches: Items) -> Items:
        for batch in batches:
            fields = list(batch.values()) if isinstance(batch, dict) else batch
            lengths = [len(values) for values in fields]
            if any(n != lengths[0] for n in lengths):
                raise errors.usage(f"unbatched() of a batch whose fields have {lengths} items", "make fields of one length before it")
            for values in zip(*fields):
                yield dict(zip(batch, values)) if isinstance(batch, dict) else tuple(values)
