"""The first part of a chain: samples of shards, by the engine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, Optional

from .. import errors
from .._spec import Divided, Shards, _worker, _worker_seed, job_rank, known_rank, names, place
from ..joins import Join
from ..samples import SampleLoader, samples
from ._errors import as_theirs
from .handlers import Handler
from ._urls import expand_urls
from .utils import whole_variable


class Source:
    """Samples of shards, by the engine: the first part of a chain. Opened in the process that iterates it."""

    def __init__(self, shards: Shards, options: dict[str, Any], handler: Handler, is_empty_error: bool) -> None:
        self.shards, self.options, self.handler = names(shards), options, handler
        self.is_empty_error = is_empty_error
        self.joins: list[Join] = []
        self.decode_handler: Handler = handler
        self._loader: Optional[SampleLoader] = None
        self._process = 0
        self._is_left = False  # in the middle of an epoch
        self._is_read = False  # by a loop that has not ended
        self._drawn = random.getrandbits(31)  # the seed, if none is given

    def changed(self, **options: Any) -> "Source":
        """The same with other options, not opened."""
        joins = options.pop("joins", self.joins)
        made = Source(self.shards, {**self.options, **options}, self.handler, self.is_empty_error)
        made.joins = joins
        made.decode_handler, made._drawn = self.decode_handler, self._drawn
        return made

    def opened(self) -> SampleLoader:
        """The loader of this process."""
        if self._loader is None or self._process != os.getpid():
            in_order = not (self.options["shuffle_shards"] or self.options["shuffle"] or self.options["epoch"] == "resample")
            options = {**self.options, **self._seeds()}
            shuffle_seed = options.pop("shuffle_seed")
            self._loader = samples(self.shards, lanes=-1 if in_order else 0, **options).joined(self.joins)
            self._loader._options["shuffle_seed"] = shuffle_seed
            self._process, self._is_left, self._is_read = os.getpid(), False, False
        return self._loader

    def _seeds(self) -> dict[str, Optional[int]]:
        """That of the shards, which the ranks and workers divide by it and so must have in common; and the shuffle's."""
        seed, shuffle_seed = self.options["seed"], self.options.get("shuffle_seed")
        if seed is None:
            drawn = self._drawn if _worker_seed() is None else _worker_seed()
            rank = self.options["rank"]
            ranks = job_rank()[1] if rank == "auto" else rank[1]
            seed = 0 if ranks > 1 and self.options["epoch"] != "resample" else drawn
            shuffle_seed = drawn if shuffle_seed is None else shuffle_seed
        return {"seed": seed, "shuffle_seed": shuffle_seed}

    def _scarce(self) -> Optional[tuple[int, int]]:
        """Where there are fewer shards than workers of DataLoaders: which of the shards this worker reads."""
        worker, rank = _worker(), self.options["rank"]
        if worker is None or self.options["epoch"] == "resample" or isinstance(rank, Divided):
            return None
        count = sum(len(expand_urls(s)) for s in self.shards)
        at, of = place(rank)
        ranks = of // worker[1]
        if not ranks <= count < of or any(_is_several(s) for s in self.shards):
            return None
        return worker[0] * ranks + at // worker[1], count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        part = None if self.is_empty_error else self._scarce()
        if part is not None and part[0] >= part[1]:
            return iter(())
        if part is not None:
            return iter(self.changed(rank=Divided(part)))
        return self._samples()

    def _samples(self) -> Iterator[dict[str, Any]]:
        if self._is_read and self._process == os.getpid():  # two loops at a time: the second has a loader of its own
            other = self.changed()
            try:
                yield from other
            finally:
                other.close()
            return
        loader = self.opened()
        if self._is_left:  # a loop begins an epoch, as there
            loader.set_epoch(loader.epoch + 1)
        self._is_left = self._is_read = True
        try:
            yield from self._epoch(loader)
        finally:
            self._is_read = False

    def _epoch(self, loader: SampleLoader) -> Iterator[dict[str, Any]]:
        count = 0
        while True:
            try:
                sample = loader._next()
            except errors.Error as error:
                handler = self.decode_handler if error.kind in ("bad_image", "too_large") else self.handler
                if not error.skippable:
                    raise as_theirs(error) from error.__cause__
                if handler(as_theirs(error)):
                    continue
                return
            if sample is None:
                break
            count += 1
            yield sample
        self._is_left = False
        if count == 0 and self.is_empty_error:
            raise ValueError("No samples found in dataset. Turn off using empty_check=False in the WebDataset constructor.")

    def close(self) -> None:
        """Ends the loader's threads."""
        loader, self._loader = self._loader, None
        self._is_read = False
        if loader is not None and self._process == os.getpid():
            loader.close()

    def __getstate__(self) -> dict[str, Any]:
        options = {**self.options, "rank": known_rank(self.options["rank"])}
        return {**self.__dict__, "options": options, "_loader": None, "_process": 0, "_is_left": False, "_is_read": False}


def _is_several(name: str) -> bool:
    """Whether a name may stand for more shards than its braces say: a folder, an index, a pattern."""
    return name.endswith(("/", ".json")) or name.startswith("@") or any(c in name for c in "*?[") or os.path.isdir(name)


def source_options(resampled: bool, shuffles: bool, seed: Optional[int], rank: Any, cache: Optional[str]) -> dict[str, Any]:
    """The options of a Source. `rank`: "auto", or the part that it reads."""
    if seed is None and "WDS_SEED" in os.environ:
        seed = whole_variable("WDS_SEED")
    return {"epoch": "resample" if resampled else "exact", "shuffle_shards": shuffles, "seed": seed, "shuffle": 0,
            "decode": False, "rank": rank, "cache": cache, "orient": False}
