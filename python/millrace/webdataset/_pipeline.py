"""Chains of stages: DataPipeline and WebDataset."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional, Union

from .. import errors
from .._spec import Divided, Shards
from ..joins import Join
from . import filters
from ._base import Items, unpickled
from ._chain import Chain, Decode
from .handlers import Handler, reraise_exception
from ._source import Source, source_options
from .shardlists import (ResampledShards, SimpleShardList, check_single_node, single_node_only, split_by_node,
                         split_by_worker)


class DataPipeline(Items, Chain):
    """A source and stages. Iterating it gives the items of one epoch.

        wds.DataPipeline(wds.SimpleShardList(urls), wds.shuffle(100), wds.split_by_node, wds.split_by_worker,
                         wds.tarfile_to_samples(), wds.shuffle(1000), wds.decode("rgb8"), wds.to_tuple("jpg", "cls"))

    Args:
        args: an iterable, a function that returns one, or a list of shards with what belongs to it up to
            tarfile_to_samples(); then stages: functions of an iterator that return an iterator, or objects with run().
    """

    def __init__(self, *args: Any) -> None:
        self.pipeline: list[Any] = []
        self.repetitions, self.nsamples, self.size = 1, -1, -1
        self._flow: Optional[Iterator[Any]] = None
        for one in _with_source(_flat(args)):
            self.append(one)

    def _content(self) -> dict[str, Any]:
        return {**self.__dict__, "_flow": None}

    def append(self, stage: Any) -> None:
        """Appends a stage to this chain. A shuffle or a decoder right after the source becomes the engine's."""
        source = self.pipeline[0] if len(self.pipeline) == 1 and isinstance(self.pipeline[0], Source) else None
        if isinstance(stage, Join):
            if source is None or source.options["decode"]:
                raise errors.usage("join() after another stage than a shuffle", "place it right after WebDataset(...), before decode()")
            self.pipeline[0] = source.changed(joins=[*source.joins, stage])
            return
        if source is not None and type(stage) is filters.shuffle and stage.rng is None and not source.options["shuffle"] \
                and not source.options["decode"]:
            if stage.bufsize > 0:
                self.pipeline[0] = source.changed(shuffle=stage.bufsize, shuffle_seed=stage.seed)
            return
        if source is not None and isinstance(stage, Decode) and stage.decoder.is_native() and not source.options["decode"]:
            self.pipeline[0] = source.changed(decode=True)
            self.pipeline[0].decode_handler = stage.handler
            stage = Decode(stage.decoder.after_engine(), stage.handler)
        self.pipeline.append(stage)

    def stage(self, i: int) -> Any:
        """Part i of this chain: the source is 0. What the engine does is one part with the source."""
        return self.pipeline[i]

    def compose(self, *stages: Any) -> "DataPipeline":
        made = copy.copy(self)
        made.pipeline = list(self.pipeline)
        made._flow = None
        for stage in stages:
            made.append(stage)
        return made

    def __copy__(self) -> "DataPipeline":
        made: DataPipeline = unpickled(type(self), self.__dict__)
        return made

    def __iter__(self) -> Iterator[Any]:
        if self.nsamples < 0:
            return _repeated(self.pipeline, self.repetitions)
        if self._flow is None:
            self._flow = _repeated(self.pipeline, self.repetitions)
        return self._part_of_flow()

    def _part_of_flow(self) -> Iterator[Any]:
        flow = self._flow
        assert flow is not None
        for _ in range(self.nsamples):
            try:
                item = next(flow)
            except BaseException as error:
                if self._flow is flow:  # it has ended: the next loop begins another
                    self._flow = None
                if isinstance(error, StopIteration):
                    return
                raise
            yield item

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> "DataPipeline":
        """Makes epochs of so many items, whatever the data's own are; each continues where the last one stopped. 0 or less: one
        that does not end."""
        made = self.compose()
        made.nsamples = max(nsamples, nbatches) or -1
        made.repetitions = sys.maxsize
        return made

    def repeat(self, nepochs: Optional[int] = None, nbatches: Optional[int] = None) -> "DataPipeline":
        """Makes an epoch of so many (None, 0 or less: endless) of the data's, or ends it after `nbatches` items."""
        made = self.compose()
        made.repetitions = sys.maxsize if nepochs is None or nepochs <= 0 else nepochs
        made.nsamples = nbatches or -1
        return made

    def with_length(self, n: int, silent: bool = False) -> "DataPipeline":
        """Sets what len() gives."""
        del silent
        made = self.compose()
        made.size = n
        return made

    def __len__(self) -> int:
        if self.size < 0:
            raise TypeError("the length is not known: set it by with_length(n)")
        return self.size

    def close(self) -> None:
        """Ends the threads of the source."""
        self._flow = None
        for stage in self.pipeline:
            if hasattr(stage, "close"):
                stage.close()

    def __enter__(self) -> "DataPipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Functions, not methods: a flow that referred to its chain would keep it, and its threads, until the garbage collector ran.
def _epoch_of_data(pipeline: list[Any]) -> Iterator[Any]:
    if not pipeline:
        raise errors.usage("a pipeline without a source", "give a list of shards, or an iterable, first")
    first = pipeline[0]
    items: Iterator[Any] = iter(first if hasattr(first, "__iter__") or not callable(first) else first())
    for stage in pipeline[1:]:
        items = iter(stage.run(items) if hasattr(stage, "run") else stage(items))
    return items


def _repeated(pipeline: list[Any], repetitions: int) -> Iterator[Any]:
    for _ in range(repetitions):
        count = 0
        for item in _epoch_of_data(pipeline):
            yield item
            count += 1
        if count == 0:
            return


def _flat(args: tuple[Any, ...]) -> list[Any]:
    """The parts of a chain, of which lists of parts may be among the arguments."""
    parts: list[Any] = []
    for one in args:
        if isinstance(one, list) and (parts or any(callable(x) or isinstance(x, _LISTS) for x in one)):
            parts.extend(one)
        elif one is not None:
            parts.append(one)
    return parts


def _with_source(args: list[Any]) -> list[Any]:
    """The parts of a chain, in which a list of shards and its stages are one Source, if the engine has them all."""
    ends = next((i for i, a in enumerate(args) if isinstance(a, tarfile_to_samples) or a is tarfile_samples), None)
    if ends is None or not isinstance(args[0], _LISTS) or not args[0].is_native():
        return args
    head, shuffles, splits = args[0].native(), False, False
    for stage in args[1:ends]:
        if isinstance(stage, filters.shuffle) and stage.rng is None:
            shuffles = shuffles or stage.bufsize > 0
            head["seed"] = head["seed"] if stage.seed is None else stage.seed
        elif stage is split_by_node:
            splits = True
        elif stage is not split_by_worker and stage is not single_node_only:
            return args
    if not splits and not head["resampled"]:
        check_single_node()
    options = source_options(head["resampled"], shuffles, head["seed"], "auto" if splits or head["resampled"] else (0, 1), None)
    handler = reraise_exception if args[ends] is tarfile_samples else args[ends].handler
    return [Source(head["shards"], options, handler, False), *args[ends + 1:]]


_LISTS = (SimpleShardList, ResampledShards)


class tarfile_to_samples:
    """In a DataPipeline, after a list of shards: opens them and groups their files into samples. After a stage that the
    engine does not have, it opens one shard after the other."""

    def __init__(self, handler: Handler = reraise_exception, select_files: None = None, rename_files: None = None) -> None:
        if select_files is not None or rename_files is not None:
            raise errors.not_offered("tarfile_to_samples(select_files=..., rename_files=...)", _INSTEAD_OF_FILES)
        self.handler = handler

    def __call__(self, shards: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        options, goes_on = source_options(False, False, 0, Divided((0, 1)), None), True

        def handled(error: Exception) -> bool:
            nonlocal goes_on
            goes_on = self.handler(error)
            return goes_on
        for shard in shards:
            source = Source(shard["url"], options, handled, False)
            try:
                yield from source
            finally:
                source.close()
            if not goes_on:
                return


_INSTEAD_OF_FILES = ".map(function) after it, with a function that keeps or renames fields"


def tarfile_samples(src: Iterator[dict[str, Any]], handler: Handler = reraise_exception, select_files: None = None,
                    rename_files: None = None) -> Iterator[dict[str, Any]]:
    """As tarfile_to_samples(), without parentheses."""
    return tarfile_to_samples(handler, select_files, rename_files)(src)


class WebDataset(DataPipeline):
    """Samples of shards, read by the engine's threads, as dicts of bytes; methods append stages.

        ds = (wds.WebDataset("train-{000000..000003}.tar", shardshuffle=100, seed=42)
              .shuffle(1000).decode("rgb8").to_tuple("jpg;png", "cls").batched(64))

    Args:
        urls: paths, URLs, brace ranges, "::" lists, folders, or a list of these.
        handler: what happens with a shard or sample that cannot be read.
        resampled: draws shards forever: use with_epoch().
        shardshuffle: a number or True: the list of shards is permuted in each epoch. False or 0: the list's order.
        cache_dir: keeps copies of fetched shards.
        nodesplitter: split_by_node: each rank reads its part. single_node_only, the default: one rank, or an error.
        workersplitter: split_by_worker; None is refused.
        empty_check: raises ValueError if an epoch has no sample.
        detshuffle: shuffles are functions of seed and epoch in any case.
        seed: of the order of shards, and of a shuffle() without its own; None: WDS_SEED, or another one each time. The ranks
            of a job divide the shards by it: where there are several, None is 0.

    Where it differs from webdataset: docs/python.md.
    """

    def __init__(self, urls: Shards, handler: Handler = reraise_exception, mode: Optional[str] = None,
                 resampled: bool = False, repeat: bool = False, shardshuffle: Union[bool, int, None] = None,
                 cache_size: int = -1, cache_dir: Optional[str] = None, detshuffle: bool = False,
                 nodesplitter: Any = single_node_only, workersplitter: Any = split_by_worker, empty_check: bool = True,
                 verbose: bool = False, seed: Optional[int] = None, **others: Any) -> None:
        super().__init__()
        del detshuffle, verbose
        unknown = sorted(others.keys() - {"select_files", "rename_files"})
        if unknown:
            raise errors.no_argument(WebDataset, unknown[0])
        if others:
            raise errors.not_offered(f"WebDataset({', '.join(others)}=...)", _INSTEAD_OF_FILES)
        if cache_size not in (-1, 0):
            raise errors.not_offered("cache_size", "MILLRACE_CACHE_SIZE=BYTES in the environment")
        if workersplitter is not split_by_worker:
            raise errors.not_offered("another workersplitter", "workersplitter=wds.split_by_worker")
        if nodesplitter not in (None, split_by_node, single_node_only):
            raise errors.not_offered("another nodesplitter", "nodesplitter=wds.split_by_node")
        resampled = resampled or mode == "resampled"
        splits = nodesplitter is split_by_node or resampled
        if nodesplitter is single_node_only and not resampled:
            check_single_node()
        cache = None if cache_size == 0 else cache_dir or os.environ.get("WDS_CACHE")
        options = source_options(resampled, bool(shardshuffle), seed, "auto" if splits else (0, 1), cache)
        self.append(Source(urls, options, handler, empty_check))
        if repeat:
            self.repetitions = sys.maxsize


class FluidWrapper(DataPipeline):
    """An iterable, or a function that returns one, as a chain with methods."""

    def __init__(self, initial: Any) -> None:
        super().__init__()
        self.append(initial)


class MockDataset(Items):
    """The same item so many times, to try a program."""

    def __init__(self, sample: Any, length: int) -> None:
        self.sample, self.length = sample, length

    def __iter__(self) -> Iterator[Any]:
        return (self.sample for _ in range(self.length))
