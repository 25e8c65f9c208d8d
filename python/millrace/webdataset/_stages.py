"""Stages: generators over items, as webdataset has them."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional, Union

from .. import errors
from ._handlers import Handler, reraise_exception

Items = Iterator[Any]


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


class _Each:
    """A stage that makes an item of each item: by one()."""

    skips_none = False

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def one(self, item: Any) -> Any:
        raise NotImplementedError

    def __call__(self, items: Items) -> Items:
        return _handled(items, self.one, self.handler, self.skips_none)


class map(_Each):
    """Calls the function with each item. None leaves the item out."""

    skips_none = True

    def __init__(self, f: Callable[[Any], Any], handler: Handler = reraise_exception) -> None:
        super().__init__(handler)
        self.f = f

    def one(self, item: Any) -> Any:
        made = self.f(item)
        if isinstance(item, dict) and isinstance(made, dict):
            made["__key__"] = item.get("__key__")
        return made


class map_tuple(_Each):
    """Calls the first function with the first place of each tuple, and so on; None leaves a place as it is."""

    def __init__(self, *functions: Optional[Callable[[Any], Any]], handler: Handler = reraise_exception) -> None:
        super().__init__(handler)
        self.functions = functions

    def one(self, item: Sequence[Any]) -> tuple[Any, ...]:
        changed = (x if f is None else f(x) for x, f in zip(item, self.functions))
        return (*changed, *item[len(self.functions):])


class map_dict(_Each):
    """Calls each function with the field of its name."""

    def __init__(self, handler: Handler = reraise_exception, **functions: Callable[[Any], Any]) -> None:
        super().__init__(handler)
        self.functions = functions

    def one(self, item: dict[str, Any]) -> dict[str, Any]:
        return {**item, **{k: f(item[k]) for k, f in self.functions.items()}}


class to_tuple(_Each):
    """Fields of each sample in a tuple: to_tuple("jpg;png", "cls")."""

    def __init__(self, *fields: Union[str, Sequence[str]], handler: Handler = reraise_exception,
                 missing_is_error: bool = True, none_is_error: Optional[bool] = None) -> None:
        super().__init__(handler)
        self.fields: Sequence[Union[str, Sequence[str]]] = fields
        if len(fields) == 1 and isinstance(fields[0], str) and " " in fields[0]:
            self.fields = fields[0].split()
        self.missing_is_error = missing_is_error
        self.refuses_none = missing_is_error if none_is_error is None else none_is_error

    def one(self, item: dict[str, Any]) -> tuple[Any, ...]:
        made = tuple(first_of(item, f, missing_is_error=self.missing_is_error) for f in self.fields)
        if self.refuses_none and any(x is None for x in made):
            raise ValueError(f"to_tuple {self.fields} got {list(item.keys())}")
        return made


class rename(_Each):
    """Renames fields: rename(image="jpg;png"). keep=False leaves out all others."""

    def __init__(self, handler: Handler = reraise_exception, keep: bool = True, **names: Union[str, Sequence[str]]) -> None:
        super().__init__(handler)
        self.names = names
        self.old = {x for v in names.values() for x in (v.split(";") if isinstance(v, str) else v)} if keep else None

    def one(self, item: dict[str, Any]) -> dict[str, Any]:
        kept = {} if self.old is None else {k: v for k, v in item.items() if k not in self.old}
        return {**kept, **{k: first_of(item, v) for k, v in self.names.items()}}


class select:
    """Keeps the items for which the predicate is true."""

    def __init__(self, predicate: Callable[[Any], bool]) -> None:
        self.predicate = predicate

    def __call__(self, items: Items) -> Items:
        return filter(self.predicate, items)


class rsample:
    """Keeps each item with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, items: Items) -> Items:
        return (item for item in items if random.random() < self.p)


class slice:
    """Items as of itertools.islice."""

    def __init__(self, *args: int) -> None:
        self.args = args

    def __call__(self, items: Items) -> Items:
        return itertools.islice(items, *self.args)


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


class batched:
    """Batches of consecutive items. partial=False drops the last one if it is smaller."""

    def __init__(self, batchsize: int = 20, collation_fn: Optional[Callable[[list[Any]], Any]] = default_collation_fn,
                 partial: bool = True) -> None:
        if batchsize < 1:
            raise errors.usage(f"batches of {batchsize}")
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
            if isinstance(batch, dict):
                for values in zip(*batch.values()):
                    yield dict(zip(batch, values))
            else:
                yield from (tuple(values) for values in zip(*batch))


class unlisted:
    """Lists back to items."""

    def __call__(self, lists: Items) -> Items:
        return itertools.chain.from_iterable(lists)
