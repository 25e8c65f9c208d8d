"""Stages: generators over items, as webdataset has them."""

from __future__ import annotations

import fnmatch
import io
import itertools
import pickle
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Optional, Union

from .._numbers import share
from . import _collation
from .handlers import Handler, reraise_exception

Items = Iterator[Any]
batched, unbatched, default_collation_fn = _collation.batched, _collation.unbatched, _collation.default_collation_fn


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


def getfirst(sample: dict[str, Any], names: Union[str, Sequence[str]], default: Any = None,
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
        made = tuple(getfirst(item, f, missing_is_error=self.missing_is_error) for f in self.fields)
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
        return {**kept, **{k: getfirst(item, v) for k, v in self.names.items()}}


class select:
    """Keeps the items for which the predicate is true."""

    def __init__(self, predicate: Callable[[Any], bool]) -> None:
        self.predicate = predicate

    def __call__(self, items: Items) -> Items:
        return filter(self.predicate, items)


class rsample:
    """Keeps each item with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = share("p of rsample", p, 1)

    def __call__(self, items: Items) -> Items:
        return (item for item in items if random.random() < self.p)


class slice:
    """Items as in itertools.islice."""

    def __init__(self, *args: int) -> None:
        self.args = args

    def __call__(self, items: Items) -> Items:
        return itertools.islice(items, *self.args)


class unlisted:
    """Lists back to items."""

    def __call__(self, lists: Items) -> Items:
        return itertools.chain.from_iterable(lists)


def transform_with(sample: Sequence[Any], transformers: Optional[Sequence[Optional[Callable[[Any], Any]]]]) -> Any:
    """The places of a tuple, each changed by the function of its place; None leaves a place as it is."""
    if not transformers:
        return sample
    return [x if f is None else f(x) for x, f in zip(sample, transformers)] + list(sample[len(transformers):])


class _Curried:
    """A stage that calls a function with the items and arguments."""

    def __init__(self, f: Callable[..., Items], args: tuple[Any, ...], kw: dict[str, Any]) -> None:
        self.f, self.args, self.kw = f, args, kw

    def __call__(self, items: Items) -> Items:
        return self.f(items, *self.args, **self.kw)


class pipelinefilter:
    """Makes a stage of a function of items and other arguments: `pipelinefilter(f)(*arguments)`."""

    def __init__(self, f: Callable[..., Items]) -> None:
        self.f, self.__doc__ = f, f.__doc__

    def __call__(self, *args: Any, **kw: Any) -> _Curried:
        return _Curried(self.f, args, kw)


class info:
    """Prints the first n items that pass, and every so many."""

    def __init__(self, fmt: Optional[str] = None, n: int = 3, every: int = -1, width: int = 50,
                 stream: Optional[IO[str]] = None, name: str = "") -> None:
        self.fmt, self.n, self.every, self.width, self.stream, self.name = fmt, n, every, width, stream, name

    def __call__(self, items: Items) -> Items:
        for i, item in enumerate(items):
            if i < self.n or (self.every > 0 and (i + 1) % self.every == 0):
                text = self.fmt.format(**item) if self.fmt is not None else "\n".join(
                    [f"--- {self.name}", *(f"{k} {repr(v)[:self.width]}" for k, v in item.items())])
                print(text, file=self.stream or sys.stderr)
            yield item


class associate:
    """Adds fields to each sample: those that the function, or the mapping, has for its key."""

    def __init__(self, associator: Union[Callable[[str], Mapping[str, Any]], Mapping[str, Mapping[str, Any]]]) -> None:
        self.associator = associator

    def __call__(self, items: Items) -> Items:
        for item in items:
            found = self.associator
            yield {**item, **(found(item["__key__"]) if callable(found) else found.get(item["__key__"], {}))}


class log_keys:
    """Appends a line for each sample to a file, which other processes may append to as well: number, worker, rank, key."""

    def __init__(self, logfile: Optional[str] = None) -> None:
        self.logfile = logfile

    def __call__(self, items: Items) -> Items:
        if not self.logfile:
            yield from items
            return
        import fcntl
        with open(self.logfile, "a", encoding="utf-8") as out:
            for i, item in enumerate(items):
                line = [i, item.get("__worker__"), item.get("__rank__"), item.get("__key__")]
                fcntl.flock(out, fcntl.LOCK_EX)
                try:
                    out.write("\t".join(str(x) for x in line) + "\n")
                    out.flush()
                finally:
                    fcntl.flock(out, fcntl.LOCK_UN)
                yield item


class extract_keys:
    """Fields in a tuple: for each argument, the one that matches one of the patterns "*.png;*.jpg"."""

    def __init__(self, *patterns: Union[str, Sequence[str]], duplicate_is_error: bool = True,
                 ignore_missing: bool = False) -> None:
        self.patterns = [p.split(";") if isinstance(p, str) else p for p in patterns]
        self.duplicate_is_error, self.ignore_missing = duplicate_is_error, ignore_missing

    def _one(self, item: dict[str, Any]) -> Items:
        for patterns in self.patterns:
            found = [k for k in item if any(fnmatch.fnmatch("." + k, p) or fnmatch.fnmatch(k, p) for p in patterns)]
            if not found and not self.ignore_missing:
                raise ValueError(f"Cannot find {patterns} in sample keys {list(item)}.")
            if len(found) > 1 and self.duplicate_is_error:
                raise ValueError(f"Multiple sample keys {list(item)} match {patterns}.")
            yield from (item[k] for k in found[:1])

    def __call__(self, items: Items) -> Items:
        return (tuple(self._one(item)) for item in items)


class rename_keys:
    """Renames the fields that match patterns: rename_keys(image="*.png"), or ("image", "*.png"). The last one that matches
    counts.

    Args:
        keep_unselected: keeps fields that match none.
        must_match: each pattern must match a field.
        duplicate_is_error: two fields must not get one name; else the first has it.
    """

    def __init__(self, *args: tuple[str, str], keep_unselected: bool = False, must_match: bool = True,
                 duplicate_is_error: bool = True, **kw: str) -> None:
        self.names = [*args, *kw.items()][::-1]
        self.keep_unselected, self.must_match, self.duplicate_is_error = keep_unselected, must_match, duplicate_is_error

    def _one(self, item: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        matched = set()
        for path, value in item.items():
            last = path.rsplit("/", 1)[-1].lower()
            name, pattern = next(((n, p) for n, p in self.names if fnmatch.fnmatch(last, p)), (None, None))
            matched.add(pattern)
            if name is None:
                if self.keep_unselected:
                    made[path] = value
            elif name not in made:
                made[name] = value
            elif self.duplicate_is_error:
                raise ValueError(f"Duplicate value in sample {list(item)} after rename.")
        missing = [p for _, p in self.names if p not in matched]
        if missing and self.must_match:
            raise ValueError(f"Not all patterns ({missing}) matched sample keys ({list(item)}).")
        return made

    def __call__(self, items: Items) -> Items:
        return (self._one(item) for item in items)


def _bytes(stream: IO[bytes]) -> bytes:
    return stream.read()


def _text(stream: IO[bytes]) -> str:
    return stream.read().decode()


class xdecode:
    """Decodes fields by functions of a binary stream: xdecode(png=imread), or ("*.png", imread). The last one that matches
    counts; False leaves a field as it is.

    Args:
        must_decode: a field for which there is no function is an error.
        defaults: functions for "*.bin", which gives bytes, and "*.txt". Those of pickles are yours to add: `pyd=pickle.load`.
    """

    def __init__(self, *args: tuple[str, Any], must_decode: bool = True,
                 defaults: Sequence[tuple[str, Any]] = (("*.bin", _bytes), ("*.txt", _text)),
                 **kw: Any) -> None:
        self.decoders = [*defaults, *args, *(("*." + k, f) for k, f in kw.items())][::-1]
        self.must_decode = must_decode

    def _field(self, path: str, value: Any) -> Any:
        last = re.sub(r".*/", "", path).lower()
        if path.startswith("__") or last.startswith("__"):
            return value
        decoder = next((f for p, f in self.decoders if fnmatch.fnmatch(last, p) or fnmatch.fnmatch("." + last, p)), None)
        if decoder is None and self.must_decode:
            raise ValueError(f"No decoder found for {path}.")
        if not decoder:
            return value
        return decoder(io.BytesIO(value) if isinstance(value, bytes) else value)

    def __call__(self, items: Items) -> Items:
        return ({k: self._field(k, v) for k, v in item.items()} for item in items)


class Cached:
    """Keeps all items in memory, once a loop came to their end: later loops read nothing."""

    def __init__(self) -> None:
        self.cached: Optional[list[Any]] = None

    def __call__(self, items: Items) -> Items:
        if self.cached is not None:
            yield from self.cached
            return
        held = []
        for item in items:
            held.append(item)
            yield item
        self.cached = held


class LMDBCached:
    """Keeps all items in an LMDB database, once a loop came to their end: later loops, of other processes too, read it, in
    the order of their keys. Needs the package lmdb; what is in the database is unpickled, so it must be yours.

    Args:
        fname: the folder of the database.
        map_size: the most bytes that it may take.
        pickler: has dumps and loads.
        chunksize: items of a transaction.
    """

    def __init__(self, fname: str, map_size: float = 1e12, pickler: Any = pickle, chunksize: int = 500) -> None:
        import lmdb
        self.db = lmdb.open(fname, readonly=False, map_size=int(map_size))
        self.pickler, self.chunksize = pickler, chunksize

    def is_complete(self) -> bool:
        """Whether a loop came to the end."""
        with self.db.begin() as read:
            return read.get(b"_") is not None

    def add_samples(self, samples: Sequence[tuple[str, Any]]) -> None:
        """Writes items under keys."""
        with self.db.begin(write=True) as out:
            for key, sample in samples:
                out.put(key.encode(), self.pickler.dumps(sample))

    def __call__(self, items: Items) -> Items:
        if self.is_complete():
            with self.db.begin() as read:
                yield from (self.pickler.loads(value) for key, value in read.cursor() if key != b"_")
            return
        held: list[tuple[str, Any]] = []
        for i, item in enumerate(items):
            held.append(((item.get("__key__") if isinstance(item, dict) else None) or str(i), item))
            if len(held) >= self.chunksize:
                self.add_samples(held)
                held = []
            yield item
        self.add_samples(held)
        with self.db.begin(write=True) as out:
            out.put(b"_", b"1")
