"""millrace: training data from shards, read, shuffled, decoded and batched by threads in C++.

    import millrace as mr

    train = mr.ImageLoader("s3://bucket/train-{000000..001281}.tar", batch_size=256, size=224, shuffle=10_000)
    for images, labels in train:            # uint8 tensors that share the engine's memory
        ...
    torch.save(train.state_dict(), "data.pt")

- `ImageLoader`: batches of images; `samples`: dicts of bytes; `IndexedDataset`: single samples by number or key.
- `Join`: fields from other shards, or from a table, by the keys of samples.
- `Lockstep`: a loader in step on all ranks. `IterableDataset`: one for torch's DataLoader. `ShardWriter`: writes shards.
- `PlanLoader`: a plan in C++ of a program's own.
- `millrace.webdataset`: the chain of Python's webdataset. `millrace.wids`: the data set and samplers of wids.
- `Error`: all errors; `millrace.errors` has a class for each kind.

Arguments and their units are in the help of each: help(millrace.ImageLoader). docs/python.md is the tutorial.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("nanobind_backend") is None:
    raise ImportError("millrace needs the package nanobind-backend: pip install nanobind-backend")


def _is_main_interpreter() -> bool:
    """Whether the process began with this interpreter: what is bound in C++ belongs to one, and another would take it away."""
    for name in "_interpreters", "_xxsubinterpreters":  # from Python 3.13 on, and before
        if importlib.util.find_spec(name) is not None:
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not _is_main_interpreter():
    raise ImportError("millrace cannot be imported by a second interpreter of a process: import it in the main one, or start a process")

from . import _core, errors
from ._loader import merge_states
from ._numbers import one_of
from .errors import *  # noqa: F403
from .images import Batch, ImageLoader
from .indexed import IndexedDataset
from .joins import Join
from .options import Augment, skip
from .plans import PlanLoader
from .samples import SampleLoader, decode_field, samples
from .writer import ShardWriter

if TYPE_CHECKING:
    from .torch import IterableDataset, Lockstep

__version__: str = _core.version
__all__ = ["Augment", "Batch", "ImageLoader", "IndexedDataset", "Join", "PlanLoader", "SampleLoader", "ShardWriter",
           "decode_field",
           "errors", "merge_states", "samples", "set_log_level", "skip", *errors.__all__]  # and, with torch, IterableDataset, Lockstep


def set_log_level(name: str) -> None:
    """How much the engine writes to stderr: "quiet", "notice" (the default: fallbacks taken, the first hundred samples skipped) or
    "debug" (each retry and skipped sample). Set it before the first item is asked for."""
    _core.set_log_level(one_of("the log level", name, ("quiet", "notice", "debug")))


def __getattr__(name: str) -> Any:
    if name in ("IterableDataset", "Lockstep"):  # need torch, which this package does not
        from . import torch
        return getattr(torch, name)
    raise AttributeError(f"module 'millrace' has no attribute '{name}'")
