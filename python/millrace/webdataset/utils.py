"""Small functions that programs import from webdataset.utils."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

from .. import _core, errors
from .._spec import _distributed, _worker


class PipelineStage:
    """The base of a stage of your own: a class with run(items), which returns an iterator."""

    def invoke(self, *args: Any, **kw: Any) -> Any:
        """Not for use: webdataset has it."""
        raise NotImplementedError


def identity(x: Any) -> Any:
    """The argument."""
    return x


def make_seed(*args: Any) -> int:
    """A seed of 31 bits made of the arguments."""
    seed = 0
    for arg in args:
        seed = (seed * 31 + hash(arg)) & 0x7FFFFFFF
    return seed


def is_iterable(obj: Any) -> bool:
    """Whether it can be iterated, and is neither a text nor bytes."""
    return not isinstance(obj, (str, bytes)) and isinstance(obj, (Iterable, Iterator))


def whole_variable(name: str) -> int:
    """The number in a variable of the environment."""
    try:
        return int(os.environ[name])
    except ValueError:
        raise errors.error("bad_setting", f"{name} is {os.environ[name]!r}", hint="give a whole number") from None


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """(rank, ranks, worker, workers), from RANK and WORLD_SIZE, WORKER and NUM_WORKERS, else from torch."""
    rank = (0, 1)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank = whole_variable("RANK"), whole_variable("WORLD_SIZE")
    elif group is not None:
        distributed = sys.modules["torch.distributed"]
        rank = distributed.get_rank(group=group), distributed.get_world_size(group=group)
    else:
        rank = _distributed() or _core.job_place()
    worker = _worker() or (0, 1)
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        worker = whole_variable("WORKER"), whole_variable("NUM_WORKERS")
    return (*rank, *worker)


def pytorch_worker_seed(group: Any = None) -> int:
    """A number of this rank and worker."""
    rank, _, worker, _ = pytorch_worker_info(group)
    return rank * 1000 + worker


def guess_batchsize(batch: Any) -> int:
    """The length of the first field of a batch."""
    return len(batch[0])


def repeatedly(source: Iterable[Any], nepochs: Optional[int] = None, nbatches: Optional[int] = None,
               nsamples: Optional[int] = None, batchsize: Callable[..., int] = guess_batchsize) -> Iterator[Any]:
    """The items of a source again and again, up to so many epochs, batches, or samples in batches."""
    batches = samples = 0
    for _ in itertools.count() if nepochs is None else range(max(1, nepochs)):
        for item in source:
            yield item
            batches += 1
            if nbatches is not None and batches >= nbatches:
                return
            if nsamples is not None:
                samples += batchsize(item)
                if samples >= nsamples:
                    return
