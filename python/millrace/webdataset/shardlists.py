"""Lists of shards, and how they are divided among ranks and workers.

In a chain whose lists, splitters and shuffles are these, the engine does what they say. Elsewhere they are iterables and
functions over {"url": ...}, as in webdataset.
"""

from __future__ import annotations

import glob
import itertools
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional, Union

from .. import _core, errors
from .._spec import Shards, _distributed
from ._base import Items
from ._urls import braces, expand_urls
from .utils import make_seed, pytorch_worker_info, pytorch_worker_seed

Urls = Iterator[dict[str, Any]]


def split_by_node(src: Any, group: Any = None) -> Any:
    """As `nodesplitter`, or in a DataPipeline: each rank reads its part of the shards."""
    rank, ranks, _, _ = pytorch_worker_info(group)
    return itertools.islice(src, rank, None, ranks)


def split_by_worker(src: Any) -> Any:
    """As `workersplitter`, or in a DataPipeline: each worker of a DataLoader reads its part."""
    _, _, worker, workers = pytorch_worker_info()
    return itertools.islice(src, worker, None, workers)


def single_node_only(src: Any, group: Any = None) -> Any:
    """As `nodesplitter`: one rank, or an error."""
    del group
    check_single_node()
    return iter(src)


def check_single_node() -> None:
    """Raises ValueError in a job of several ranks."""
    _, ranks = _distributed() or _core.job_place()
    if ranks > 1:
        raise ValueError("you need to add an explicit nodesplitter to your input pipeline for multi-node training: "
                         "nodesplitter=wds.split_by_node")


def non_empty(src: Iterable[Any]) -> Iterator[Any]:
    """A stage that raises ValueError if nothing comes."""
    count = 0
    for item in src:
        yield item
        count += 1
    if count == 0:
        raise ValueError("pipeline stage received no data at all and this was declared as an error")


class resampled:
    """A stage that draws n of all its items, with replacement, others each time."""

    def __init__(self, n: int = sys.maxsize) -> None:
        self.n = n

    def __call__(self, src: Iterable[Any]) -> Iterator[Any]:
        draw, items = random.Random(os.urandom(20)), list(src)
        return (draw.choice(items) for _ in range(self.n))


class SimpleShardList(Items):
    """The head of a DataPipeline: shards, each once in an epoch.

    Args:
        urls: "train-{000000..000003}.tar", or a list of names.
        seed: shuffles the list once, the same for the same seed; True: another order each time it is made.
    """

    def __init__(self, urls: Shards, seed: Union[int, bool, None] = None) -> None:
        self.spec, self.urls = urls if isinstance(urls, (str, os.PathLike)) else list(urls), expand_urls(urls)
        self.seed: Union[int, float, None] = time.time() if seed is True else seed

    def __len__(self) -> int:
        return len(self.urls)

    def _order(self) -> list[str]:
        urls = list(self.urls)
        if self.seed is not None:
            random.Random(self.seed).shuffle(urls)
        return urls

    def __iter__(self) -> Urls:
        return ({"url": url} for url in self._order())

    def native(self) -> dict[str, Any]:
        """For the engine: its shards, whether they are drawn, and a seed."""
        return {"shards": self.spec if self.seed is None else self._order(), "resampled": False, "seed": None}

    def is_native(self) -> bool:
        """Whether the engine can take it."""
        return True


class ResampledShards(Items):
    """The head of a DataPipeline: shards drawn with replacement.

    Args:
        urls: "train-{000000..000003}.tar", or a list of names.
        nshards: how many; by default without an end.
        seed: of the draws, with `deterministic`; else the draws differ each time.
        worker_seed: gives a number of this process; by default one of its rank and worker.
    """

    def __init__(self, urls: Shards, nshards: int = sys.maxsize, seed: int = 0,
                 worker_seed: Optional[Callable[[], int]] = None, deterministic: bool = False,
                 max_urls: int = 1_000_000, empty_check: bool = True) -> None:
        self.urls = expand_urls(urls if isinstance(urls, (str, os.PathLike)) else list(itertools.islice(urls, max_urls)))
        if empty_check and not self.urls:
            raise errors.usage("an empty list of shards", "give names, or empty_check=False")
        self.nshards, self.seed, self.deterministic, self.epoch = nshards, seed, deterministic, -1
        self.worker_seed = pytorch_worker_seed if worker_seed is None else worker_seed

    def __iter__(self) -> Urls:
        self.epoch += 1
        parts = [self.worker_seed(), self.epoch, self.seed]
        if not self.deterministic:
            parts.append(int.from_bytes(os.urandom(8), "little"))
        draw = random.Random(make_seed(*parts))
        return ({"url": self.urls[draw.randrange(len(self.urls))]} for _ in range(self.nshards))

    def native(self) -> dict[str, Any]:
        """For the engine: its shards, whether they are drawn, and a seed."""
        return {"shards": self.urls, "resampled": True, "seed": self.seed if self.deterministic or self.seed else None}

    def is_native(self) -> bool:
        """Whether the engine can take it."""
        return self.nshards == sys.maxsize and self.worker_seed is pytorch_worker_seed


ResampledShardList = ResampledShards


class DirectoryShardList(Items):
    """The head of a DataPipeline: shards that others put into a folder, each claimed by renaming it to NAME._PID_ while it
    is read.

    Args:
        path: the folder, with "/" at its end.
        pattern: of their names; braces and wildcards.
        poll: seconds between looks at an empty folder; None: ends when it is empty.
        timeout: seconds until it ends.
        mode: afterwards a shard gets its name back ("resample"), becomes NAME._done_ ("keep"), or is removed ("unlink").
        select: "random", or "oldest" first.
    """

    def __init__(self, path: str, pattern: str = "*.{tar,tgz,tar.tgz}", poll: Optional[float] = 1, timeout: float = 1e12,
                 mode: str = "resample", select: str = "random", fate: Any = None) -> None:
        del fate
        if not path.endswith("/") or not os.path.isdir(path):
            raise errors.usage(f"{errors.shown(path)} is not a folder that ends in '/'", "give a folder, with / at its end")
        if mode not in ("resample", "keep", "unlink") or select not in ("random", "oldest"):
            raise errors.usage(f"mode='{mode}', select='{select}'", "give 'resample', 'keep' or 'unlink'; 'random' or 'oldest'")
        self.path, self.pattern, self.poll, self.timeout, self.mode, self.select = path, pattern, poll, timeout, mode, select

    def recycle(self, activename: str) -> None:
        """Does with a shard that was read what `mode` says."""
        name = activename.rsplit(".", 1)[0]
        if self.mode == "unlink":
            os.unlink(activename)
        else:
            os.rename(activename, name + "._done_" if self.mode == "keep" else name)

    def cleanup_files_without_processes(self) -> None:
        """Gives back the shards that processes claimed which are gone."""
        for name in glob.glob(glob.escape(self.path) + "*._*_"):
            found = re.search(r"\._(\d+)_$", name)
            if found is not None and not _is_running(int(found[1])):
                self.recycle(name)

    def _claimed(self) -> Optional[str]:
        """The name of a shard that is this process's now; empty if another was faster; None if there is none."""
        names = {n for p in braces(self.pattern) for n in glob.glob(glob.escape(self.path) + p)}
        if not names:
            return None
        try:
            name = random.choice(sorted(names)) if self.select == "random" else min(
                sorted(names), key=lambda n: os.stat(n).st_mtime)
            os.rename(name, f"{name}._{os.getpid()}_")
        except FileNotFoundError:
            return ""
        return f"{name}._{os.getpid()}_"

    def __iter__(self) -> Urls:
        begin = time.monotonic()
        while time.monotonic() - begin < self.timeout:
            name = self._claimed()
            if name:
                yield {"url": name}
                self.recycle(name)
                self.cleanup_files_without_processes()
            elif name is None and self.poll is None:
                return
            else:
                threading.Event().wait(self.poll or 0.01)  # others fill the folder: nothing tells


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def shardspec(spec: str) -> SimpleShardList:
    """The list of shards that a text stands for."""
    if spec.endswith((".yaml", ".yml")):
        raise errors.not_offered("a list of shards in YAML",
                                 "wds.RandomMix([wds.WebDataset(a), wds.WebDataset(b)], probs=[0.7, 0.3])")
    return SimpleShardList(spec)
