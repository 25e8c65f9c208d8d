"""Lists of shards, and how they are divided among ranks and workers."""

from __future__ import annotations

from typing import Any, Optional

from .._spec import Shards, _distributed
from .. import _core


def split_by_node(urls: Any) -> Any:
    """As `nodesplitter`, or in a DataPipeline: each rank reads its part of the shards. The engine divides them."""
    return urls


def split_by_worker(urls: Any) -> Any:
    """As `workersplitter`, or in a DataPipeline: each worker of a DataLoader reads its part. The engine divides them."""
    return urls


def single_node_only(urls: Any) -> Any:
    """As `nodesplitter`: one rank, or an error."""
    check_single_node()
    return urls


def check_single_node() -> None:
    """Raises ValueError in a job of several ranks."""
    _, ranks = _distributed() or _core.job_place()
    if ranks > 1:
        raise ValueError("you need to add an explicit nodesplitter to your input pipeline for multi-node training: "
                         "nodesplitter=wds.split_by_node")


class SimpleShardList:
    """The head of a DataPipeline: shards, each once in an epoch."""

    resampled = False

    def __init__(self, urls: Shards, seed: Optional[int] = None) -> None:
        self.urls, self.seed = urls, seed


class ResampledShards(SimpleShardList):
    """The head of a DataPipeline: shards drawn with replacement, forever."""

    resampled = True


ResampledShardList = ResampledShards
