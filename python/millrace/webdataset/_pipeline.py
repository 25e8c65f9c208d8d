"""Chains of stages: WebDataset, DataPipeline and WebLoader."""

from __future__ import annotations

import copy
import itertools
import os
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, Optional, Union

from .. import errors
from .._loader import remember
from .._spec import Shards, names
from ..samples import SampleLoader, samples
from . import _stages
from ._decode import Decoder, FieldDecoder, decoder_of
from ._handlers import Handler, reraise_exception
from ._splitters import SimpleShardList, check_single_node, single_node_only, split_by_node, split_by_worker


def _base() -> type:
    """torch's IterableDataset where torch is loaded, so that its DataLoader takes a chain; else object."""
    torch = sys.modules.get("torch")
    return torch.utils.data.IterableDataset if torch is not None else object


class Source:
    """Samples of shards, by the engine: the first part of a chain. Opened in the process that iterates it."""

    def __init__(self, shards: Shards, options: dict[str, Any], handler: Handler, is_empty_error: bool) -> None:
        self.shards, self.options, self.handler = names(shards), options, handler
        self.is_empty_error = is_empty_error
        self.decode_handler: Handler = handler
        self._loader: Optional[SampleLoader] = None
        self._process = 0
        self._is_left = False  # in the middle of an epoch

    def changed(self, **options: Any) -> "Source":
        """The same with other options, not opened."""
        made = Source(self.shards, {**self.options, **options}, self.handler, self.is_empty_error)
        made.decode_handler = self.decode_handler
        return made

    def opened(self) -> SampleLoader:
        """The loader of this process."""
        if self._loader is None or self._process != os.getpid():
            in_order = not (self.options["shuffle_shards"] or self.options["shuffle"] or self.options["epoch"] == "resample")
            self._loader = samples(self.shards, lanes=-1 if in_order else 0, **self.options)
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


class Chain:
    """The methods that append a stage. Each returns another chain, and leaves this one as it is."""

    def compose(self, *stages: Any) -> "DataPipeline":
        """Appends stages: functions of an iterator that return an iterator."""
        raise NotImplementedError

    def batched(self, batchsize: int, collation_fn: Any = _stages.default_collation_fn, partial: bool = True) -> "DataPipeline":
        """Batches of consecutive items."""
        return self.compose(_stages.batched(batchsize, collation_fn, partial))

    def listed(self, batchsize: int, partial: bool = True) -> "DataPipeline":
        """Lists of consecutive items."""
        return self.compose(_stages.batched(batchsize, None, partial))

    def unbatched(self) -> "DataPipeline":
        """Batches back to items."""
        return self.compose(_stages.unbatched())

    def unlisted(self) -> "DataPipeline":
        """Lists back to items."""
        return self.compose(_stages.unlisted())

    def shuffle(self, size: int, **kw: Any) -> "DataPipeline":
        """Shuffles through a buffer. Right after WebDataset(...): in the engine, a function of the seed."""
        return self.compose(_stages.shuffle(size, **kw))

    def map(self, f: Callable[[Any], Any], handler: Handler = reraise_exception) -> "DataPipeline":
        """Calls f with each item; None leaves it out."""
        return self.compose(_stages.map(f, handler))

    def map_dict(self, handler: Handler = reraise_exception, **kw: Callable[[Any], Any]) -> "DataPipeline":
        """Calls functions with fields of each sample."""
        return self.compose(_stages.map_dict(handler, **kw))

    def map_tuple(self, *args: Optional[Callable[[Any], Any]], handler: Handler = reraise_exception) -> "DataPipeline":
        """Calls functions with places of each tuple."""
        return self.compose(_stages.map_tuple(*args, handler=handler))

    def to_tuple(self, *args: Any, **kw: Any) -> "DataPipeline":
        """Fields of each sample in a tuple."""
        return self.compose(_stages.to_tuple(*args, **kw))

    def select(self, predicate: Callable[[Any], bool]) -> "DataPipeline":
        """Keeps the items for which the predicate is true."""
        return self.compose(_stages.select(predicate))

    def rsample(self, p: float = 0.5) -> "DataPipeline":
        """Keeps each item with probability p."""
        return self.compose(_stages.rsample(p))

    def slice(self, *args: int) -> "DataPipeline":
        """Items as of itertools.islice."""
        return self.compose(_stages.slice(*args))

    def rename(self, **kw: Any) -> "DataPipeline":
        """Renames fields."""
        return self.compose(_stages.rename(**kw))

    def decode(self, *args: Union[str, Decoder, FieldDecoder], only: Any = None, handler: Handler = reraise_exception,
               pre: None = None, post: None = None, partial: bool = False) -> "DataPipeline":
        """Decodes fields: images as "rgb8", "rgb", "torchrgb", "pil", ..., RGB ones by the engine's threads; texts, numbers,
        JSON and arrays by their extension; `handle_extension` decodes others."""
        if pre is not None or post is not None:
            raise errors.not_offered("decode(pre=..., post=...)", "decode(function, ...): functions are asked first")
        del partial  # what has no decoder stays bytes
        return self.compose(_Decode(decoder_of(args, only), handler))

    def _refused(self, name: str, instead: str) -> NoReturn:
        raise errors.not_offered(f"webdataset's {name}()", instead)

    def xdecode(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("xdecode", ".decode(wds.handle_extension('EXTENSION', function))")

    def mcached(self) -> NoReturn:
        """Not offered."""
        self._refused("mcached", "items = list(dataset) to keep all items in memory")

    def lmdb_cached(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("lmdb_cached", "WebDataset(urls, cache_dir='FOLDER') to keep fetched shards")

    def rename_keys(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("rename_keys", ".rename(new='old;older')")

    def extract_keys(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("extract_keys", ".to_tuple('jpg;png', 'cls')")

    def log_keys(self, logfile: Any = None) -> NoReturn:
        """Not offered."""
        self._refused("log_keys", ".map(function) with a function that logs sample['__key__']")


class _Decode(_stages.map):
    """A stage that decodes."""

    def __init__(self, decoder: Decoder, handler: Handler) -> None:
        super().__init__(decoder, handler)
        self.decoder = decoder


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
        if source is not None and type(stage) is _stages.shuffle and stage.rng is None and not source.options["shuffle"] \
                and not source.options["decode"]:
            if stage.bufsize > 0:
                seed = {} if stage.seed is None else {"seed": stage.seed}
                self.pipeline[0] = source.changed(shuffle=stage.bufsize, **seed)
            return
        if source is not None and isinstance(stage, _Decode) and stage.decoder.is_native() and not source.options["decode"]:
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
    options = _options(head.resampled, shuffles, head.seed, splits or head.resampled, None)
    return [Source(head.urls, options, args[ends].handler, False), *args[ends + 1:]]


class tarfile_to_samples:
    """In a DataPipeline, after a list of shards: opens them and groups their files into samples."""

    def __init__(self, handler: Handler = reraise_exception) -> None:
        self.handler = handler


def _options(resampled: bool, shuffles: bool, seed: Optional[int], splits: bool, cache: Optional[str]) -> dict[str, Any]:
    if seed is None:
        seed = int(os.environ.get("WDS_SEED", random.getrandbits(31)))
    return {"epoch": "resample" if resampled else "exact", "shuffle_shards": shuffles, "seed": seed, "shuffle": 0,
            "decode": False, "rank": "auto" if splits else (0, 1), "cache": cache, "orient": False}


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
        self.append(Source(urls, _options(resampled, bool(shardshuffle), seed, splits, cache), handler, empty_check))
        if repeat:
            self.repetitions = sys.maxsize


class _Ahead:
    """Items of an iterable, made on one thread, a few ahead."""

    def __init__(self, items: Iterable[Any], ahead: int, stop_source: Callable[[], None]) -> None:
        self._made: "queue.Queue[Any]" = queue.Queue(max(1, ahead))
        self._stop, self._stop_source = threading.Event(), stop_source
        self._thread = threading.Thread(target=self._run, args=(items,), name="millrace-stages", daemon=True)
        self._thread.start()

    def _put(self, made: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._made.put(made, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def _run(self, items: Iterable[Any]) -> None:
        try:
            for item in items:
                if not self._put((item, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:
            self._put((None, error))

    def __iter__(self) -> Iterator[Any]:
        try:
            while True:
                item, error = self._made.get()
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    raise error
                yield item
        finally:
            self.close()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        while self._thread.is_alive():
            self._stop_source()
            self._thread.join(0.1)


class WebLoader(DataPipeline):
    """Items of a chain, made on a thread of their own while the loop works.

        loader = wds.WebLoader(ds, batch_size=None, num_workers=8)

    Args:
        dataset: a chain or another iterable.
        batch_size: None: the chain makes batches. A number: batches of so many items, collated by torch.
        num_workers: decoding threads of the engine; 0: as many as are needed. There are no worker processes.
        pin_memory: copies tensors to pinned memory, if there is a GPU.
        prefetch_factor: items made ahead.
    """

    def __init__(self, dataset: Any, batch_size: Optional[int] = None, num_workers: int = 0, shuffle: bool = False,
                 pin_memory: bool = False, drop_last: bool = False, prefetch_factor: Optional[int] = None,
                 collate_fn: Optional[Callable[[Any], Any]] = None, **others: Any) -> None:
        super().__init__()
        unknown = others.keys() - {"persistent_workers", "multiprocessing_context", "timeout"}
        if unknown:
            raise errors.not_offered(f"WebLoader({', '.join(sorted(unknown))}=...)", "a stage of the chain instead")
        if shuffle:
            raise errors.not_offered("WebLoader(shuffle=True)", ".shuffle(1000) in the chain")
        self.dataset, self.ahead = dataset, prefetch_factor or 2
        if num_workers > 0 and isinstance(dataset, DataPipeline) and dataset.pipeline \
                and isinstance(dataset.pipeline[0], Source):
            self.dataset = dataset.compose()
            self.dataset.pipeline[0] = dataset.pipeline[0].changed(threads=num_workers)
        self.append(_Items(self.dataset, self.ahead))
        if batch_size is not None:
            self.append(_stages.batched(batch_size, collate_fn or _torch_collated, partial=not drop_last))
        elif collate_fn is not None:
            self.append(_stages.map(collate_fn))
        if pin_memory:
            self.append(_stages.map(_pinned))

    def __len__(self) -> int:
        return self.size if self.size >= 0 else len(self.dataset)


class _Items:
    """The first part of a WebLoader: the items of a chain, on a thread."""

    def __init__(self, items: Any, ahead: int) -> None:
        self.items, self.ahead = items, ahead
        self._now: Optional[_Ahead] = None
        remember(self)

    def _interrupt(self) -> None:
        source = getattr(self.items, "pipeline", [None])[0]
        if isinstance(source, Source) and source._loader is not None and source._loader._run is not None:
            source._loader._run.interrupt()

    def __iter__(self) -> Iterator[Any]:
        self.close()
        self._now = _Ahead(self.items, self.ahead, self._interrupt)
        return iter(self._now)

    def close(self) -> None:
        """Ends the thread."""
        now, self._now = self._now, None
        if now is not None:
            now.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_now": None}


def _torch_collated(items: list[Any]) -> Any:
    import torch.utils.data
    return torch.utils.data.default_collate(items)


def _pinned(item: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return item
    if isinstance(item, torch.Tensor):
        return item.pin_memory()
    if isinstance(item, dict):
        return {k: _pinned(v) for k, v in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)(_pinned(v) for v in item)
    return item

