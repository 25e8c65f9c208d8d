"""Items of several sources as one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from .. import errors
from ._base import Items


class RandomMix(Items):
    """Items of several data sets, drawn by probability.

    Args:
        datasets: iterables.
        probs: how often each is drawn, relative to the others; None: equally.
        longest: goes on until all have ended, rather than until the first has. Those of probability 0 come when the others have ended,
            one after the other.
        seed: of the draws; None: others each time.
    """

    def __init__(self, datasets: Sequence[Iterable[Any]], probs: Optional[Sequence[float]] = None, longest: bool = False,
                 seed: Optional[int] = None) -> None:
        self.datasets, self.probs, self.longest, self.seed = list(datasets), None if probs is None else list(probs), longest, seed
        if self.probs is not None:
            _check(self.probs, len(self.datasets))

    def __iter__(self) -> Iterator[Any]:
        draw = random.Random(self.seed)
        sources = [iter(d) for d in self.datasets]
        weights = [1.0] * len(sources) if self.probs is None else self.probs[:]
        while sources:
            at = draw.choices(range(len(sources)), weights)[0] if any(weights) else 0
            try:
                yield next(sources[at])
            except StopIteration:
                if not self.longest:
                    return
                del sources[at], weights[at]


def _check(probs: list[float], count: int) -> None:
    if len(probs) != count:
        raise errors.usage(f"RandomMix of {count} data sets with {len(probs)} probs", "give one number for each data set")
    for number, p in enumerate(probs):
        if not 0 <= p < math.inf:
            raise errors.usage(f"probs[{number}] of RandomMix is {p!r}", "give numbers from 0 on")
    if probs and not any(probs):
        raise errors.usage("RandomMix with probs that are all 0", "give a number above 0 for the data sets to draw from")


class RoundRobin(Items):
    """Items of several data sets, each in turn.

    Args:
        datasets: iterables.
        longest: goes on until all have ended, rather than until the first has.
    """

    def __init__(self, datasets: Sequence[Iterable[Any]], longest: bool = False) -> None:
        self.datasets, self.longest = datasets, longest

    def __iter__(self) -> Iterator[Any]:
        sources, at = [iter(d) for d in self.datasets], 0
        while sources:
            at %= len(sources)
            try:
                yield next(sources[at])
                at += 1
            except StopIteration:
                if not self.longest:
                    return
                del sources[at]
