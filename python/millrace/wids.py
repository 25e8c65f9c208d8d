"""ShardListDataset and the samplers of Python's wids, by `millrace.IndexedDataset`: change the import.

    import millrace.wids as wids

    data = wids.ShardListDataset("train.json", transformations=make)
    sampler = wids.DistributedChunkedSampler(data, chunksize=1000)
    loader = torch.utils.data.DataLoader(data, sampler=sampler, batch_size=64, num_workers=4)

A sample is one read of its shard, or one range request: shards are not downloaded whole. Training reads faster through
`mr.ImageLoader` and `millrace.webdataset`.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import tempfile
import urllib.parse
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import accumulate
from typing import IO, Any, Generic, Optional, TypeVar, Union

from . import _core, errors
from ._fields import of_sample, value_of
from ._numbers import whole
from ._spec import _distributed, content_of, is_url
from .indexed import IndexedDataset

__all__ = ["ChunkedSampler", "DistributedChunkedSampler", "ShardListDataset", "ShardListSampler", "ShardedSampler"]

T = TypeVar("T")
Sample = dict[str, Any]
Shard = dict[str, Any]
_VALUES = frozenset("txt text cls cls2 json npy mp".split())
_IMAGES = frozenset("jpg png ppm pgm pbm pnm".split())


def urldir(url: str) -> str:
    """The folder of a URL or path."""
    parsed = urllib.parse.urlparse(url)
    return parsed._replace(path=os.path.dirname(parsed.path)).geturl()


def urlmerge(base: str, url: str) -> str:
    """A URL or path that is relative to another: what it lacks comes from `base`."""
    b, u = urllib.parse.urlparse(base), urllib.parse.urlparse(url)
    path = u.path if u.path.startswith("/") else os.path.normpath(os.path.join(b.path, u.path))
    return urllib.parse.urlunparse((u.scheme or b.scheme, u.netloc or b.netloc, path, u.params, u.query, u.fragment))


def default_decoder(sample: Sample, format: str = "PIL", gz_update_key: bool = False) -> Sample:
    """Decodes texts, numbers, JSON, npy and mp, and images: as Pillow's ("PIL"), or arrays ("numpy"). Other fields stay
    streams; pickles and what torch saved too: no code in the data is run.

    Args:
        gz_update_key: a field ".txt.gz" becomes ".txt".
    """
    if format.lower() not in ("pil", "numpy"):
        raise errors.usage(f"the format {errors.shown(format)}", "give 'PIL' or 'numpy'")
    made = {}
    for name, value in sample.items():
        if name.startswith("__"):
            made[name] = value
            continue
        content = value if isinstance(value, bytes) else value.read()
        try:
            inner, value = _decoded_field(name, content, format, gz_update_key)
        except errors.Error as why:
            raise of_sample(why, name, sample.get("__shard__", ""), sample.get("__key__", "")) from why
        made[inner if gz_update_key else name] = value
    return made


def _decoded_field(name: str, content: bytes, format: str, gz_update_key: bool) -> tuple[str, Any]:
    """The name without what is unpacked, and the value."""
    inner = name
    if name.endswith(".gz") and name.count(".") > 1:
        content, inner = _core.decode_field("bytes.gz", content), name[:-3]
    last = inner.rsplit(".", 1)[-1].lower()
    if last in _VALUES:
        return inner, value_of(last, content)
    if last in _IMAGES and (inner is name or gz_update_key):
        return inner, _image(content, format)
    return inner, io.BytesIO(content)


def _image(content: bytes, format: str) -> Any:
    import PIL.Image
    try:
        image = PIL.Image.open(io.BytesIO(content))
        if format.lower() == "pil":
            return image
        import numpy
        return numpy.asarray(image)
    except (ImportError, MemoryError):
        raise
    except Exception as why:  # Pillow has exceptions of many kinds for a damaged image
        raise errors.error("bad_image", f"Pillow cannot decode the image: {why}") from why


class _Decoded:
    """default_decoder with a format, for other processes too."""

    def __init__(self, format: str) -> None:
        self.format = format

    def __call__(self, sample: Sample) -> Sample:
        return default_decoder(sample, self.format)


def _is_remote(url: str) -> bool:
    return is_url(url) and not url.lower().startswith(("file:", "pipe:"))


def _bad_index(where: str, what: str) -> errors.Error:
    return errors.error("bad_index", what, url=where, hint="give what `millrace index SHARDS -o train.json` or widsindex writes")


def _document(source: Union[str, IO[str]], base: Optional[str] = None) -> tuple[dict[str, Any], str]:
    """A document, and its path or URL. `base`: what a name in another document is relative to."""
    where = source if isinstance(source, str) else str(getattr(source, "name", ""))
    if isinstance(source, str) and base is not None and not is_url(source) and (is_url(base) or not os.path.exists(source)):
        where = urlmerge(base, source)
    if base is not None and _is_remote(base) and not _is_remote(where):
        raise _bad_index(base, f"an index that is not a local file names '{errors.redacted(where)}', which is not on the network")
    content = content_of(where) if isinstance(source, str) else source.read()
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as why:
        raise _bad_index(where, f"not JSON: {why}") from why
    if not isinstance(document, dict):
        raise _bad_index(where, "not a JSON object")
    return document, where


def _listed(document: dict[str, Any], base: Optional[str], where: str) -> list[Shard]:
    """The shards of a document of wids, with those of the data sets that it names."""
    if document.get("wids_version") != 1:
        raise _bad_index(where, "no index of shards: it lacks 'wids_version': 1")
    shards = _rebased(document.get("shardlist", []), base, where, weight=document.get("weight"), name=document.get("name"))
    parts = document.get("datasets", [])
    if not isinstance(parts, list) or not all(isinstance(p, dict) for p in parts):
        raise _bad_index(where, "'datasets' is not a list of objects")
    for part in parts:
        source, weight, place = part.get("source_url"), part.get("weight"), where
        if source is not None:
            part, place = _document(str(source), base)
        own = part.get("base", urldir(place) if source is not None else None)
        shards += _rebased(part.get("shardlist"), own, place, weight=weight, source_url=source, dataset=part.get("name"))
    if not shards:
        raise _bad_index(where, "the index lists no shards")
    return shards


def _rebased(shards: Any, base: Optional[str], where: str, **more: Any) -> list[Shard]:
    if not isinstance(base, (str, type(None))):
        raise _bad_index(where, "'base' is not a text")
    set_ones = {k: v for k, v in more.items() if v is not None}
    return [{**set_ones, **s, "url": s["url"] if base is None else urlmerge(base, s["url"])} for s in _checked(shards, where)]


def _checked(shards: Any, where: str) -> list[Shard]:
    """A list of shards, or an error that says what it lacks."""
    if not isinstance(shards, (list, tuple)):
        raise _bad_index(where, "'shardlist' is not a list")
    for number, shard in enumerate(shards):
        if not isinstance(shard, dict) or not isinstance(shard.get("url"), str):
            raise _bad_index(where, f"shard {number} has no 'url'")
        count: Any = shard.get("nsamples")
        if isinstance(count, bool) or not hasattr(count, "__index__") or count < 0:
            raise _bad_index(where, f"'nsamples' of shard {number} is {count!r}, which is not a count")
    return list(shards)


class ShardListDataset(Generic[T]):
    """Samples of shards by number: dicts of "__key__", of each file by its extension with a dot, ".jpg", and of where it is:
    "__index__", "__shard__", "__shardindex__", "__dataset__".

    Args:
        shards: the path or URL of an index (`millrace index SHARDS -o train.json --offsets`, or widsindex), an open
            one, or a list of {"url": ..., "nsamples": ...}. With offsets beside it, the first sample of a shard takes no longer.
        cache_dir: keeps copies of what is fetched.
        transformations: a function of the sample, or a list of them; "PIL" or "numpy" decodes fields. Functions get the
            fields as binary streams.
        base: the folder or URL that the shards are relative to; by default that of the index.
        options: replace entries of the index.
        cache_size, lru_size, keep: have no effect: shards are not downloaded whole.

    Extensions are in lower case. A shard that has another number of samples than the index says is an IntegrityError.
    """

    def __init__(self, shards: Union[str, "os.PathLike[str]", IO[str], Sequence[Shard]], *, cache_size: int = 10 ** 12,
                 cache_dir: Optional[str] = None, lru_size: int = 10, dataset_name: Optional[str] = None, localname: Any = None,
                 transformations: Any = "PIL", keep: bool = False, base: Optional[str] = None,
                 options: Optional[dict[str, Any]] = None) -> None:
        del cache_size, lru_size, keep
        if localname is not None:
            raise errors.not_offered("wids.ShardListDataset(localname=...)", "cache_dir='FOLDER'")
        source = os.fspath(shards) if isinstance(shards, (str, os.PathLike)) else shards
        self._index = source if isinstance(source, str) and base is None and not options else None
        self.base, self.spec = base, dict(options or {})
        if isinstance(source, str) or hasattr(source, "read"):
            document, where = _document(source)  # type: ignore[arg-type]
            self.spec = {**document, **self.spec}
            if base is None:
                self.base = self.spec.get("base") or (urldir(source) if isinstance(source, str) else None)
            self.shards = _listed(self.spec, self.base, where)
        else:
            self.shards = [dict(s) for s in _checked(list(source) if isinstance(source, Iterable) else source, "")]
            if not self.shards:
                raise errors.usage("an empty list of shards", 'give a list of {"url": ..., "nsamples": ...}')
        self.dataset_name = self.spec.get("name") or dataset_name or str(source)[:16]
        self.lengths: list[int] = [s["nsamples"] for s in self.shards]
        self.cum_lengths = list(accumulate(self.lengths))
        self.total_length = self.cum_lengths[-1]
        several = transformations if isinstance(transformations, list) else [transformations]
        self.transformations: list[Callable[[Sample], Sample]] = [_Decoded(t) if isinstance(t, str) else t for t in several]
        self.cache_dir = cache_dir
        self._data: Optional[IndexedDataset] = None
        self._file: Any = None

    def add_transform(self, transform: Callable[[Sample], Sample]) -> "ShardListDataset[T]":
        """Appends a function of the sample."""
        self.transformations.append(transform)
        return self

    def _opened(self) -> IndexedDataset:
        if self._data is None:
            index = self._index
            if index is None:  # one of the shards as they are named here
                self._file = tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8")
                named = [{**s, "url": s["url"] if ":" in s["url"] else os.path.abspath(s["url"])} for s in self.shards]
                json.dump({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": named}, self._file)
                self._file.flush()
                index = self._file.name
            self._data = IndexedDataset(index, cache=self.cache_dir)
        return self._data

    def __len__(self) -> int:
        return self.total_length

    def __getitem__(self, index: int) -> Sample:
        number = index + self.total_length if index < 0 else index
        if not 0 <= number < self.total_length:
            raise IndexError(f"sample {index} of {self.total_length}")
        at = bisect_right(self.cum_lengths, number)
        sample: Sample = {k if k.startswith("__") else "." + k: v if k.startswith("__") else io.BytesIO(v)
                          for k, v in self._opened()[number].items() if k != "__url__"}
        sample.update(__dataset__=self.shards[at].get("dataset"), __index__=number, __shard__=self.shards[at]["url"],
                      __shardindex__=number - (self.cum_lengths[at] - self.lengths[at]))
        for transform in self.transformations:
            sample = transform(sample)
        return sample

    def close(self) -> None:
        """Ends its threads."""
        data, self._data, self._file = self._data, None, None
        if data is not None:
            data.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_data": None, "_file": None}


Range = tuple[int, int]


def iterate_ranges(ranges: Sequence[Range], rng: random.Random, indexshuffle: bool = True,
                   shardshuffle: bool = True) -> Iterator[int]:
    """The numbers of ranges: the ranges permuted, and the numbers in each."""
    order = list(range(len(ranges)))
    if shardshuffle:
        rng.shuffle(order)
    for i in order:
        numbers = list(range(*ranges[i]))
        if indexshuffle:
            rng.shuffle(numbers)
        yield from numbers


class _Sampler:
    """Numbers of samples, in an order that is a function of seed and epoch. A loop that came to its end goes to the next."""

    def __init__(self, ranges: Sequence[Range], seed: int, shuffle: bool, shufflefirst: bool) -> None:
        self.ranges, self.seed, self.shuffle, self.shufflefirst, self.epoch = list(ranges), seed, shuffle, shufflefirst, 0

    def __iter__(self) -> Iterator[int]:
        draw = random.Random(self.seed + 1289738273 * self.epoch)
        yield from iterate_ranges(self.ranges, draw, self.shuffle, self.shuffle and (self.shufflefirst or self.epoch > 0))
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Continues with this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(b - a for a, b in self.ranges)


class ShardListSampler(_Sampler):
    """Permutes shards (from the second epoch on, or with shufflefirst) and the samples in each."""

    def __init__(self, dataset: Any, *, lengths: Optional[Sequence[int]] = None, seed: int = 0,
                 shufflefirst: bool = False) -> None:
        sizes = list(dataset.lengths if lengths is None else lengths)
        ends = list(accumulate(sizes))
        super().__init__([(end - size, end) for size, end in zip(sizes, ends)], seed, True, shufflefirst)


ShardedSampler = ShardListSampler


class ChunkedSampler(_Sampler):
    """Permutes chunks of consecutive samples (from the second epoch on, or with shufflefirst) and the samples in each.

    Args:
        num_samples: how many, from 0 on; or (first, end).
        chunksize: samples of a chunk.
        dslength_per_replica: what len() gives.
        shuffle: False: the numbers in order.
    """

    def __init__(self, dataset: Sized, *, dslength_per_replica: int = -1, num_samples: Union[int, Range, None] = None,
                 chunksize: int = 2000, seed: int = 0, shuffle: bool = True, shufflefirst: bool = False) -> None:
        if num_samples is None or isinstance(num_samples, int):
            num_samples = 0, len(dataset) if num_samples is None else num_samples
        first, end = num_samples
        chunksize = whole("chunksize", chunksize, 1, 2**62)
        self.dslength_per_replica = dslength_per_replica if dslength_per_replica > 0 else end - first
        super().__init__([(i, min(i + chunksize, end)) for i in range(first, end, chunksize)], seed, shuffle, shufflefirst)

    def __len__(self) -> int:
        return self.dslength_per_replica


def DistributedChunkedSampler(dataset: Sized, *, num_replicas: Optional[int] = None, num_samples: Optional[int] = None,
                              rank: Optional[int] = None, shuffle: bool = True, shufflefirst: bool = False, seed: int = 0,
                              drop_last: Optional[bool] = None, chunksize: int = 1_000_000) -> ChunkedSampler:
    """A ChunkedSampler of this rank's part of the numbers, as wids makes it. Rank and ranks are those given, else those of
    torch.distributed, else one rank. The parts are the same in each epoch; the last ones may be smaller than len() says,
    which a loop over ranks in step has to bear: `mr.ImageLoader(epoch="equal")` does not have that."""
    if drop_last is not None:
        warnings.warn("DistributedChunkedSampler ignores drop_last", stacklevel=2)
    here = _distributed()
    if here is None and num_replicas is None:
        warnings.warn("torch.distributed is not initialised: DistributedChunkedSampler is for one process", stacklevel=2)
    rank, num_replicas = (given if given is not None else known for given, known in zip((rank, num_replicas), here or (0, 1)))
    if not 0 <= rank < num_replicas:
        raise errors.usage(f"rank is {rank}", f"give a number from 0 to {num_replicas - 1}, of {num_replicas} replicas")
    count = num_samples or len(dataset)
    part = math.ceil(count / num_replicas)
    return ChunkedSampler(dataset, dslength_per_replica=math.ceil(len(dataset) / num_replicas),
                          num_samples=(rank * part, min((rank + 1) * part, count)), chunksize=chunksize, seed=seed,
                          shuffle=shuffle, shufflefirst=shufflefirst)


_INSTEAD = {"IndexedTarSamples": "millrace.IndexedDataset('train.json')", "LRUShards": "ShardListDataset(..., cache_dir='FOLDER')",
            "index_main": "`millrace index`"}


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise AttributeError(f"wids' {name} is not offered; write {_INSTEAD[name]}")
    raise AttributeError(f"module 'millrace.wids' has no attribute '{name}'")
