"""Stages: generators over items, as webdataset has them."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Optional, Union

from .. import errors
from ._handlers import Handler, reraise_exception

Items = Iterator[Any]
Stage = Callable[[Items], Items]
_missing = object()


def _handled(items: Items, function: Callable[[Any], Any], handler: Handler, skips_none: bool = False) -> Items:
    for item in items:
        try:
            made = function(item)
        except Exception as error:
            if handler(error):
                continue
            return
        if made is not None or not skips_none:
            yield made


def _shuffled(items: Items, size: int, initial: int, rng: Callable[[], random.Random]) -> Items:
    draw, held = rng(), []
    initial = min(initial, size)
    for item in items:
        held.append(item)
        if len(held) < size:
            held.extend(itertools.islice(items, 1))
        if len(held) >= initial:
            yield _picked(held, draw)
    while held:
        yield _picked(held, draw)


def _picked(held: list[Any], draw: random.Random) -> Any:
    at = draw.randrange(len(held))
    held[at], held[-1] = held[-1], held[at]
    return held.pop()


class shuffle:
    """Shuffles through a buffer of `bufsize` items. As the first stage after WebDataset it is the engine's: its order is a
    function of the seed; elsewhere `rng` or `seed` draw, by default another order each time."""

    def __init__(self, bufsize: int = 1000, initial: int = 100, rng: Optional[random.Random] = None,
                 seed: Optional[int] = None, handler: Optional[Handler] = None) -> None:
        del handler
        self.bufsize, self.initial, self.rng, self.seed = bufsize, initial, rng, seed

    def _make_rng(self) -> random.Random:
        return self.rng or random.Random(self.seed if self.seed is not None else time.time_ns())

    def __call__(self, items: Items) -> Items:
        return _shuffled(items, self.bufsize, self.initial, self._make_rng) if self.bufsize > 0 else items


class detshuffle(shuffle):
    """A shuffle that is a function of seed and epoch."""

    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> None:
        super().__init__(bufsize, initial, seed=seed)
        self.epoch = epoch

    def _make_rng(self) -> random.Random:
        self.epoch += 1
        return random.Random((self.seed or 0) + self.epoch)


def first_of(sample: dict[str, Any], names: Union[str, Sequence[str]], default: Any = None,
             missing_is_error: bool = True) -> Any:
    """The first of the fields "jpg;png" that a sample has."""
    for name in names.split(";") if isinstance(names, str) else names:
        if name in sample:
            return sample[name]
    if missing_is_error:
        raise ValueError(f"didn't find {names} in {list(sample.keys())}")
    return default


def map(function: Callable[[Any], Any], handler: Handler = reraise_exception) -> Stage:
    """Calls the function with each item. None leaves the item out."""
    def called(item: Any) -> Any:
        made = function(item)
        if isinstance(item, dict) and isinstance(made, dict):
            made.setdefault("__key__", item.get("__key__"))
        return made
    return partial(_handled, function=called, handler=handler, skips_none=True)


def map_tuple(*functions: Optional[Callable[[Any], Any]], handler: Handler = reraise_exception) -> Stage:
    """Calls the first function with the first place of each tuple, and so on; None leaves a place as it is."""
    def called(item: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(x if i >= len(functions) or functions[i] is None else functions[i](x)  # type: ignore[misc]
                     for i, x in enumerate(item))
    return partial(_handled, function=called, handler=handler)


def map_dict(handler: Handler = reraise_exception, **functions: Callable[[Any], Any]) -> Stage:
    """Calls each function with the field of its name."""
    def called(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, **{k: f(sample[k]) for k, f in functions.items()}}
    return partial(_handled, function=called, handler=handler)


def to_tuple(*fields: Union[str, Sequence[str]], handler: Handler = reraise_exception, missing_is_error: bool = True,
             none_is_error: Optional[bool] = None) -> Stage:
    """Fields of each sample in a tuple: to_tuple("jpg;png", "cls")."""
    names: Sequence[Union[str, Sequence[str]]] = fields
    if len(fields) == 1 and isinstance(fields[0], str) and " " in fields[0]:
        names = fields[0].split()
    refuses_none = missing_is_error if none_is_error is None else none_is_error

    def called(sample: dict[str, Any]) -> tuple[Any, ...]:
        made = tuple(first_of(sample, f, missing_is_error=missing_is_error) for f in names)
        if refuses_none and any(x is None for x in made):
            raise ValueError(f"to_tuple {names} got {list(sample.keys())}")
        return made
    return partial(_handled, function=called, handler=handler)


def select(predicate: Callable[[Any], bool]) -> Stage:
    """Keeps the items for which the predicate is true."""
    return partial(filter, predicate)  # type: ignore[return-value]


def rsample(p: float = 0.5) -> Stage:
    """Keeps each item with probability p."""
    return select(lambda _: random.random() < p)


def rename(handler: Handler = reraise_exception, keep: bool = True, **names: Union[str, Sequence[str]]) -> Stage:
    """Renames fields: rename(image="jpg;png"). keep=False leaves out all others."""
    old = {x for v in names.values() for x in (v.split(";") if isinstance(v, str) else v)}

    def called(sample: dict[str, Any]) -> dict[str, Any]:
        kept = {k: v for k, v in sample.items() if k not in old} if keep else {}
        return {**kept, **{k: first_of(sample, v) for k, v in names.items()}}
    return partial(_handled, function=called, handler=handler)


def slice(*args: int) -> Stage:
    """Items as of itertools.islice."""
    return lambda items: itertools.islice(items, *args)


def _batches(items: Items, size: int, collation_fn: Optional[Callable[[list[Any]], Any]], partial: bool) -> Items:
    while held := list(itertools.islice(items, size)):
        if len(held) == size or partial:
            yield held if collation_fn is None else collation_fn(held)


def default_collation_fn(samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """Tuples (or dicts) of items to one of batches: numbers become arrays, arrays and tensors of one shape are stacked,
    and others become lists."""
    def combined(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, (int, float)):
            if not combine_scalars:
                return values
            import numpy
            return numpy.array(values)
        if not combine_tensors or not hasattr(first, "shape") or any(v.shape != first.shape for v in values):
            return values
        if type(first).__module__.startswith("torch"):
            import torch
            return torch.stack(values)
        import numpy
        return numpy.stack(values)
    if isinstance(samples[0], dict):
        return {k: combined([s[k] for s in samples]) for k in samples[0]}
    return [combined(list(column)) for column in zip(*samples)]


def batched(batchsize: int = 20, collation_fn: Optional[Callable[[list[Any]], Any]] = default_collation_fn,
            partial: bool = True) -> Stage:
    """Batches of consecutive items. partial=False drops the last one if it is smaller."""
    if batchsize < 1:
        raise errors.usage(f"batches of {batchsize}")
    return lambda items: _batches(iter(items), batchsize, collation_fn, partial)


def _items_of(batches: Items) -> Items:
    for batch in batches:
        if isinstance(batch, dict):
            for values in zip(*batch.values()):
                yield dict(zip(batch, values))
        else:
            yield from (tuple(values) for values in zip(*batch))


def unbatched() -> Stage:
    """Batches back to items."""
    return _items_of


def unlisted() -> Stage:
    """Lists back to items."""
    return lambda lists: itertools.chain.from_iterable(lists)
