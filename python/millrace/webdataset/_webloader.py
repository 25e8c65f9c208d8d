"""WebLoader: the items of a chain, made on a thread of their own."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

from .. import errors
from .._loader import remember
from . import filters
from ._pipeline import DataPipeline
from ._source import Source


class _Ahead:
    """Items of an iterable, made on one thread, a few ahead."""

    def __init__(self, items: Iterable[Any], ahead: int, stop_source: Callable[[], None]) -> None:
        self._made: "queue.Queue[Any]" = queue.Queue(max(1, ahead))
        self._stop, self._stop_source = threading.Event(), stop_source
        self._thread = threading.Thread(target=self._run, args=(items,), name="millrace-stages", daemon=True)

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

    def _get(self) -> Any:
        while True:
            if self._stop.is_set():
                raise errors.usage("another loop over this loader has begun, or it is closed", "make a WebLoader for each of loops at once")
            try:
                return self._made.get(timeout=0.1)
            except queue.Empty:
                continue

    def __iter__(self) -> Iterator[Any]:
        if not self._stop.is_set():
            self._thread.start()  # here: an iterator of which nothing is asked has no thread
        try:
            while True:
                item, error = self._get()
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
            self.append(filters.batched(batch_size, collate_fn or _torch_collated, partial=not drop_last))
        elif collate_fn is not None:
            self.append(filters.map(collate_fn))
        if pin_memory:
            self.append(filters.map(_pinned))

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

