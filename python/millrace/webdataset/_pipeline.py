"""Chains of stages: DataPipeline and WebDataset."""

from __future__ import annotations

import copy
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional, Union

from .. import errors
from .._spec import Shards
from ..joins import Join
from . import _stages
from ._chain import Chain, Decode
from ._handlers import Handler, reraise_exception
from ._source import Source, source_options
from ._splitters import SimpleShardList, check_single_node, single_node_only, split_by_node, split_by_worker


def _base() -> type:
    """torch's IterableDataset where torch is loaded, so that its DataLoader takes a chain; else object."""
    torch = sys.modules.get("torch")
    return torch.utils.data.IterableDataset if torch is not None else object


class DataPipeline(Chain):
    """A source and stages. Iterating it gives the items of one epoch.

        wds.DataPipeline(wds.SimpleShardList(urls), wds.shuffle(100), wds.split_by_node, wds.split_by_worker,
                         wds.tarfile_to_samples(), wds.shuffle(1000), wds.decode("rgb8"), wds.to_tuple("jpg", "cls"))

    Args:
        args: an iterable, or a list of shards with what belongs to it up to tarfile_to_samples(); then stages.
    """

    def __new__(cls, *args: Any, **kw: Any) -> "DataPipeline":
        base = _base()
        if base is not object and not issubclass(cls, base):
            cls = _with_base(cls, base)
        return object.__new__(cls)

    def __init__(self, *args: Any) -> None:
        self.pipeline: list[Any] = []
        self.repetitions, self.nsamples, self.size = 1, -1, -1
        self._flow: Optional[Iterator[Any]] = None
        for one in _with_source([a for a in args if a is not None]):
            self.append(one)

    def __reduce__(self) -> Any:
        kind = type(self)
        plain = getattr(kind, "_plain", kind)
        return _unpickled, (plain, {**self.__dict__, "_flow": None})

    def append(self, stage: Any) -> None:
        """Appends a stage to this chain. A shuffle or a decoder right after the source becomes the engine's."""
        source = self.pipeline[0] if len(self.pipeline) == 1 and isinstance(self.pipeline[0], Source) else None
        if isinstance(stage, Join):
            if source is None or source.options["decode"]:
                raise errors.usage("join() after another stage than a shuffle", "place it right after WebDataset(...), before decode()")
            self.pipeline[0] = source.changed(joins=[*source.joins, stage])
            return
        if source is not None and type(stage) is _stages.shuffle and stage.rng is None and not source.options["shuffle"] \
                and not source.options["decode"]:
            if stage.bufsize > 0:
                seed = {} if stage.seed is None else {"seed": stage.seed}
                self.pipeline[0] = source.changed(shuffle=stage.bufsize, **seed)
            return
        if source is not None and isinstance(stage, Decode) and stage.decoder.is_native() and not source.options["decode"]:
            self.pipeline[0] = source.changed(decode=True)
            self.pipeline[0].decode_handler = stage.handler
        self.pipeline.append(stage)

    def compose(self, *stages: Any) -> "DataPipeline":
        made = copy.copy(self)
        made.pipeline = list(self.pipeline)
        made._flow = None
        for stage in stages:
            made.append(stage)
        return made

    def __copy__(self) -> "DataPipeline":
        made: DataPipeline = _unpickled(type(self), self.__dict__)
        return made

    def _epoch_of_data(self) -> Iterator[Any]:
        if not self.pipeline:
            raise errors.usage("a pipeline without a source")
        items: Iterator[Any] = iter(self.pipeline[0])
        for stage in self.pipeline[1:]:
            items = iter(stage.run(items) if hasattr(stage, "run") else stage(items))
        return items

    def _repeated(self) -> Iterator[Any]:
        for _ in range(self.repetitions):
            count = 0
            for item in self._epoch_of_data():
                yield item
                count += 1
            if count == 0:
                return

    def __iter__(self) -> Iterator[Any]:
        if self.nsamples < 0:
            return self._repeated()
        if self._flow is None:
            self._flow = self._repeated()
        return self._part_of_flow()

    def _part_of_flow(self) -> Iterator[Any]:
        flow = self._flow
        assert flow is not None
        count = 0
        for item in itertools.islice(flow, self.nsamples):
            count += 1
            yield item
        if count < self.nsamples:
            self._flow = None

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> "DataPipeline":
        """Makes epochs of so many items, whatever the data's own are; each continues where the last one stopped."""
        made = self.compose()
        made.nsamples = nbatches if nbatches > 0 else nsamples
        made.repetitions = sys.maxsize
        return made

    def repeat(self, nepochs: Optional[int] = None, nbatches: Optional[int] = None) -> "DataPipeline":
        """Makes an epoch of so many (None: endless) of the data's, or ends it after `nbatches` items."""
        made = self.compose()
        made.repetitions = sys.maxsize if nepochs is None else nepochs
        made.nsamples = -1 if nbatches is None else nbatches
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


_of_base: dict[tuple[type, type], type] = {}


def _with_base(kind: type, base: type) -> type:
    """A class that is also torch's IterableDataset."""
    if (kind, base) not in _of_base:
        _of_base[kind, base] = type(kind.__name__, (kind, base), {"_plain": kind, "__module__": kind.__module__})
    return _of_base[kind, base]


def _unpickled(kind: type, content: dict[str, Any]) -> Any:
    made = DataPipeline.__new__(kind)
    made.__dict__.update(content)
    return made


def _with_source(args: list[Any]) -> list[Any]:
    """The arguments of DataPipeline, in which a list of shards and its stages are one Source."""
    if not args or not isinstance(args[0], SimpleShardList):
        return args
    ends = next((i for i, a in enumerate(args) if isinstance(a, tarfile_to_samples)), None)
    if ends is None:
        raise errors.not_offered("a list of shards without tarfile_to_samples()",
                                 "wds.tarfile_to_samples() after the list and its splitters")
    head, shuffles, splits = args[0], False, False
    for stage in args[1:ends]:
        if isinstance(stage, _stages.shuffle):
            shuffles = stage.bufsize > 0
        elif stage is split_by_node:
            splits = True
        elif stage is not split_by_worker and stage is not single_node_only:
            raise errors.not_offered(f"{stage!r} before tarfile_to_samples()", "wds.split_by_node")
    if not splits and not head.resampled:
        check_single_node()
    options = source_options(head.resampled, shuffles, head.seed, splits or head.resampled, None)
    return [Source(head.urls, options, args[ends].handler, False), *args[ends + 1:]]


class tarfile_to_samples:
    """In a DataPipeline, after a list of shards: opens them and groups their files into samples."""

    def __init__(self, handler: Handler = reraise_exception) -> None:
        self.handler = handler


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
        seed: of all orders; None: another one each time, or WDS_SEED.

    Where it differs from webdataset: docs/python.md.
    """

    def __init__(self, urls: Shards, handler: Handler = reraise_exception, mode: Optional[str] = None,
                 resampled: bool = False, repeat: bool = False, shardshuffle: Union[bool, int, None] = None,
                 cache_size: int = -1, cache_dir: Optional[str] = None, detshuffle: bool = False,
                 nodesplitter: Any = single_node_only, workersplitter: Any = split_by_worker, empty_check: bool = True,
                 verbose: bool = False, seed: Optional[int] = None, **others: Any) -> None:
        super().__init__()
        del detshuffle, verbose
        if others:
            raise errors.not_offered(f"WebDataset({', '.join(others)}=...)", ".map(function) after it")
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
        self.append(Source(urls, source_options(resampled, bool(shardshuffle), seed, splits, cache), handler, empty_check))
        if repeat:
            self.repetitions = sys.maxsize
