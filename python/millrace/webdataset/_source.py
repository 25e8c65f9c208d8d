"""The first part of a chain: samples of shards, by the engine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, Optional

from .. import errors
from .._spec import Shards, _worker_seed, job_rank, known_rank, names
from ..samples import SampleLoader, samples
from ._handlers import Handler


class Source:
    """Samples of shards, by the engine: the first part of a chain. Opened in the process that iterates it."""

    def __init__(self, shards: Shards, options: dict[str, Any], handler: Handler, is_empty_error: bool) -> None:
        self.shards, self.options, self.handler = names(shards), options, handler
        self.is_empty_error = is_empty_error
        self.decode_handler: Handler = handler
        self._loader: Optional[SampleLoader] = None
        self._process = 0
        self._is_left = False  # in the middle of an epoch
        self._turn = 0         # of the loop that may go on
        self._drawn = random.getrandbits(31)  # the seed, if none is given

    def changed(self, **options: Any) -> "Source":
        """The same with other options, not opened."""
        made = Source(self.shards, {**self.options, **options}, self.handler, self.is_empty_error)
        made.decode_handler, made._drawn = self.decode_handler, self._drawn
        return made

    def opened(self) -> SampleLoader:
        """The loader of this process."""
        if self._loader is None or self._process != os.getpid():
            in_order = not (self.options["shuffle_shards"] or self.options["shuffle"] or self.options["epoch"] == "resample")
            options = {**self.options, **self._seeds()}
            shuffle_seed = options.pop("shuffle_seed")
            self._loader = samples(self.shards, lanes=-1 if in_order else 0, **options)
            self._loader._options["shuffle_seed"] = shuffle_seed
            self._process, self._is_left = os.getpid(), False
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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        loader = self.opened()
        if self._is_left:  # a loop begins an epoch, as there
            loader.set_epoch(loader.epoch + 1)
        self._is_left = True
        self._turn += 1
        count, turn = 0, self._turn
        while True:
            if turn != self._turn:
                raise errors.usage("another loop over this data set has begun", "make a WebDataset for each of loops at once")
            try:
                sample = loader._next()
            except errors.Error as error:
                handler = self.decode_handler if error.kind in ("bad_image", "too_large") else self.handler
                if not error.skippable:
                    raise
                if handler(error):
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
        if loader is not None and self._process == os.getpid():
            loader.close()

    def __getstate__(self) -> dict[str, Any]:
        options = {**self.options, "rank": known_rank(self.options["rank"])}
        return {**self.__dict__, "options": options, "_loader": None, "_process": 0, "_is_left": False}


def source_options(resampled: bool, shuffles: bool, seed: Optional[int], splits: bool, cache: Optional[str]) -> dict[str, Any]:
    if seed is None and "WDS_SEED" in os.environ:
        seed = int(os.environ["WDS_SEED"])
    return {"epoch": "resample" if resampled else "exact", "shuffle_shards": shuffles, "seed": seed, "shuffle": 0,
            "decode": False, "rank": "auto" if splits else (0, 1), "cache": cache, "orient": False}
