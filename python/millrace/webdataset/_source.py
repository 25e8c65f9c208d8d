"""The first part of a chain: samples of shards, by the engine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, Optional

from .. import errors
from .._spec import Shards, names
from ..joins import Join
from ..samples import SampleLoader, samples
from ._handlers import Handler


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

    def changed(self, **options: Any) -> "Source":
        """The same with other options, not opened."""
        joins = options.pop("joins", self.joins)
        made = Source(self.shards, {**self.options, **options}, self.handler, self.is_empty_error)
        made.joins = joins
        made.decode_handler = self.decode_handler
        return made

    def opened(self) -> SampleLoader:
        """The loader of this process."""
        if self._loader is None or self._process != os.getpid():
            in_order = not (self.options["shuffle_shards"] or self.options["shuffle"] or self.options["epoch"] == "resample")
            self._loader = samples(self.shards, lanes=-1 if in_order else 0, **self.options).joined(self.joins)
            self._process, self._is_left = os.getpid(), False
        return self._loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        loader = self.opened()
        if self._is_left:  # a loop begins an epoch, as there
            loader.set_epoch(loader.epoch + 1)
        self._is_left = True
        count = 0
        while True:
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
        return {**self.__dict__, "_loader": None, "_process": 0, "_is_left": False}


def source_options(resampled: bool, shuffles: bool, seed: Optional[int], splits: bool, cache: Optional[str]) -> dict[str, Any]:
    if seed is None:
        seed = int(os.environ.get("WDS_SEED", random.getrandbits(31)))
    return {"epoch": "resample" if resampled else "exact", "shuffle_shards": shuffles, "seed": seed, "shuffle": 0,
            "decode": False, "rank": "auto" if splits else (0, 1), "cache": cache, "orient": False}
