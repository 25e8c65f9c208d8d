"""What all loaders take: shards, order, ranks, memory, errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, Optional, Union

from . import _core, errors
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
    if rank != "auto":
        if isinstance(rank, str) or len(rank) != 2:
            raise errors.usage(f"rank is {rank!r}", "give 'auto' or (rank, number of ranks)")
        at, of = int(rank[0]), int(rank[1])
    else:
        at, of = _distributed() or _core.job_place()
    worker = _worker()
    if worker is not None:
        at, of = at * worker[1] + worker[0], of * worker[1]
    return at, of


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


def names(shards: Shards) -> list[str]:
    """The specs of shards as a list of texts."""
    if isinstance(shards, (str, os.PathLike)):
        return [os.fspath(shards)]
    out = [os.fspath(s) for s in shards]
    if not out:
        raise errors.usage("an empty list of shards")
    return out


def byte_count(size: Union[int, str, None]) -> int:
    """Bytes: a number, or a text such as "4GiB"; 0 for None."""
    if size is None:
        return 0
    return _core.parse_bytes(size) if isinstance(size, str) else int(size)


def thread_count(threads: Union[int, str]) -> int:
    """Threads: a number, or 0 for "auto". In a worker of a DataLoader, "auto" is one."""
    if threads == "auto":
        return 1 if _worker() is not None else 0
    if isinstance(threads, str) or threads < 1:
        raise errors.usage(f"threads is {threads!r}", "give 'auto' or a number from 1 on")
    return threads


def common(shards: Shards, *, seed: int, epoch: str, rank: Rank, lanes: int, shuffle: int, shuffle_shards: bool,
           fields: str, memory: Union[int, str, None], threads: Union[int, str], cache: Union[str, None],
           allow_pipe: bool, resync: bool, on_error: Optional[skip]) -> _core.Spec:
    """A spec of what all loaders take."""
    spec = _core.Spec()
    spec.shards = names(shards)
    spec.rank, spec.world_size = place(rank)
    spec.seed, spec.epoch, spec.lanes = seed, epoch, spec.world_size if lanes == -1 else lanes
    spec.shuffle, spec.shuffle_shards, spec.fields = shuffle, shuffle_shards, fields
    spec.memory, spec.threads = byte_count(memory), thread_count(threads)
    spec.cache_folder = os.fspath(cache) if cache is not None else ""
    spec.allow_pipe, spec.resync = allow_pipe, resync
    if on_error is not None:
        on_error.apply(spec)
    return spec


def check_epoch(epoch: Any) -> None:
    """Refuses an epoch mode that there is not."""
    if epoch not in ("exact", "equal", "equal_repeating", "resample"):
        raise errors.usage(f"epoch is {epoch!r}", "give 'exact', 'equal', 'equal_repeating' or 'resample'")
