"""What all loaders take: shards, order, ranks, memory, errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

from . import _core, errors
from ._numbers import encodable, flag, path, patterns, whole
from .options import skip

Shards = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]
Rank = Union[str, tuple[int, int]]


class Divided(tuple[int, int]):
    """(rank, number of ranks) for shards that the workers of a DataLoader have divided already."""


def place(rank: Rank) -> tuple[int, int]:
    """(rank, number of ranks): as given, or with "auto" from torch.distributed if it is initialised, else from the
    variables of the launcher (torchrun, Slurm, MPI, ...), else (0, 1). In a worker of a DataLoader, its part of that."""
    if isinstance(rank, Divided):
        return rank[0], rank[1]
    if not isinstance(rank, str) or rank != "auto":
        if not isinstance(rank, (tuple, list)) or len(rank) != 2:
            raise errors.usage(f"rank is {rank!r}", "give 'auto' or (rank, number of ranks)")
        of = whole("the number of ranks", rank[1], 1, 65536)
        at = whole("rank", rank[0], 0, of - 1)
    else:
        at, of = job_rank()
    worker = _worker()
    if worker is not None:
        at, of = at * worker[1] + worker[0], of * worker[1]
    return at, of


def job_rank() -> tuple[int, int]:
    """(rank, number of ranks) of the job, whatever worker of a DataLoader this is."""
    return _distributed() or _core.job_place()


def known_rank(rank: Rank) -> Rank:
    """The rank as a process without torch.distributed has to be told it, such as a worker that is spawned."""
    return (_distributed() or rank) if isinstance(rank, str) and rank == "auto" else rank


def _distributed() -> Optional[tuple[int, int]]:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _worker() -> Optional[tuple[int, int]]:
    """(number, of how many) in a worker process of a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (info.id, info.num_workers)


def _worker_seed() -> Optional[int]:
    """In a worker process of a DataLoader: a number that all its workers have in common, another one in each epoch."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (info.seed - info.id) % 2**63


_SHARDS = "give a path, a URL, or a list of these"


def names(shards: Shards) -> list[str]:
    """The specs of shards as a list of texts."""
    if isinstance(shards, (str, os.PathLike)):
        shards = [shards]
    if isinstance(shards, (set, frozenset)):
        raise errors.usage("shards is a set, whose order differs from process to process", "give a list: sorted(shards)")
    if isinstance(shards, (bytes, Mapping)) or not isinstance(shards, Iterable):
        raise errors.usage(f"shards is {errors.shown(shards)}", _SHARDS)
    out = []
    for one in shards:
        if not isinstance(one, (str, os.PathLike)):
            raise errors.usage(f"{errors.shown(one)} among the shards", _SHARDS)
        out.append(path("one of the shards", one))
    if not out:
        raise errors.usage("an empty list of shards", _SHARDS)
    return out


def is_url(name: str) -> bool:
    """Whether the engine reads it, rather than open()."""
    return "://" in name or name.startswith(("file:", "pipe:"))


def content_of(name: str) -> bytes:
    """The content of a small file or object; of URLs by the engine, with its retries and its credentials."""
    if is_url(name):
        return _core.read_object(name)
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as why:
        raise errors.from_os(why, name) from why


def described(shards: list[str]) -> str:
    """The shards, for a repr(), without secrets."""
    shown = errors.shown(shards[0])
    return shown if len(shards) == 1 else f"{shown} and {len(shards) - 1} more"


def byte_count(name: str, size: Union[int, str, None]) -> int:
    """Bytes: a number, or a text such as "4GiB"; 0 for None. Refuses others, naming the argument."""
    if size is None:
        return 0
    instead = "a text such as '4GiB', or "
    number: Any = size
    if isinstance(size, float) and size.is_integer():
        number = int(size)  # 4e9
    if isinstance(size, str):
        try:
            number = _core.parse_bytes(encodable(size))
        except errors.Error as why:
            raise errors.usage(f"{name} is {errors.shown(size)}", why.hint or f"give {instead}a whole number of bytes") from None
    return whole(name, number, instead=instead)


def thread_count(threads: Union[int, str]) -> int:
    """Threads: a number, or 0 for "auto". In a worker of a DataLoader, "auto" is one."""
    if isinstance(threads, str) and threads == "auto":
        return 1 if _worker() is not None else 0
    return whole("threads", threads, instead="'auto' or ")


def common(shards: Shards, *, seed: int, epoch: str, rank: Rank, lanes: int, shuffle: int, shuffle_shards: bool,
           fields: str, memory: Union[int, str, None], threads: Union[int, str], cache: Union[str, None],
           allow_pipe: bool, resync: bool, on_error: Optional[skip], shuffle_seed: Optional[int] = None) -> _core.Spec:
    """A spec of what all loaders take."""
    spec = _core.Spec()
    spec.shards = names(shards)
    spec.rank, spec.world_size = place(rank)
    spec.seed, spec.epoch = whole("seed", seed), epoch
    spec.lanes = whole("lanes", lanes)
    if spec.lanes == -1:
        spec.lanes = spec.world_size
    spec.shuffle = whole("shuffle", shuffle)
    spec.shuffle_shards, spec.fields = flag("shuffle_shards", shuffle_shards), patterns("fields", fields)
    if shuffle_seed is not None:
        spec.shuffle_seed = whole("seed of the shuffle", shuffle_seed, 0, 2**64 - 1)
    spec.memory, spec.threads = byte_count("memory", memory), thread_count(threads)
    spec.cache_folder = path("cache", cache) if cache is not None else ""
    spec.allow_pipe, spec.resync = flag("allow_pipe", allow_pipe), flag("resync", resync)
    if on_error is not None:
        if not isinstance(on_error, skip):
            raise errors.usage(f"on_error is {on_error!r}", 
                               f"give mr.skip({on_error!r})" if isinstance(on_error, (int, float)) and on_error is not True
                               else "give mr.skip(), or mr.skip(0.001) for at most that part")
        on_error.apply(spec)
    return spec


def division_of(spec: _core.Spec) -> list[int]:
    """By what the samples of an epoch are divided among the ranks: their number, and that of lanes, as the engine counts them."""
    if spec.world_size == 1 and spec.epoch == "exact":
        return [1, 0]  # it has all samples, whatever the lanes
    return [spec.world_size, spec.lanes if spec.lanes > 0 else -(-8 // spec.world_size) * spec.world_size]


def check_epoch(epoch: Any) -> None:
    """Refuses an epoch mode that there is not."""
    _core.check_epoch(encodable(epoch))
