"""WebLoader: the items of a chain, made on a thread of their own."""

from __future__ import annotations

import os
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


Stage = Callable[[Iterator[Any]], Iterator[Any]]
_Made = tuple[Any, Optional[BaseException]]  # an item, or why there is none


def _put(made: _Made, to: "queue.Queue[_Made]", stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            to.put(made, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def _make(items: Iterable[Any], stage: Stage, to: "queue.Queue[_Made]", stop: threading.Event) -> None:
    try:
        for item in stage(iter(items)):
            if not _put((item, None), to, stop):
                return
        _put((None, StopIteration()), to, stop)
    except BaseException as error:
        _put((None, error), to, stop)


class _Ahead:
    """Items of an iterable, made on one thread, a few ahead. Neither the thread nor the iterable refers to it, so that a loader
    that is dropped ends at once, not when the garbage collector finds it."""

    def __init__(self, items: Iterable[Any], stage: Stage, ahead: int) -> None:
        self._items = items
        self._made: "queue.Queue[_Made]" = queue.Queue(max(1, ahead))
        self._stop = threading.Event()
        self._process = 0  # that has the thread
        self._thread = threading.Thread(target=_make, args=(items, stage, self._made, self._stop), name="millrace-stages", daemon=True)

    def _get(self) -> _Made:
        while True:
            if self._stop.is_set():
                raise errors.usage("another loop over this loader has begun, or it is closed", "make a WebLoader for each of loops at once")
            if self._process != os.getpid():  # where the thread may hold the lock of the queue for ever
                raise errors.usage("the thread of this loop is in the process that was forked", "begin a loop in each process")
            lives = self._thread.is_alive()
            try:
                return self._made.get(timeout=0.1)
            except queue.Empty:
                if not lives:
                    raise errors.error("internal", "the thread of this loop has ended without a word", hint="begin another loop") from None

    def __iter__(self) -> Iterator[Any]:
        if not self._stop.is_set():
            self._process = os.getpid()
            self._thread.start()  # here: an iterator of which nothing is asked has no thread
        try:
            while True:
                item, error = self._get()
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    try:
                        raise error
                    finally:
                        del error  # its traceback refers to this frame
                yield item
        finally:
            self.close()

    def _interrupt(self) -> None:
        source = getattr(self._items, "pipeline", [None])[0]
        loader = source._loader if isinstance(source, Source) else None
        run = loader._run if loader is not None else None
        if run is not None:
            run.interrupt()

    def close(self) -> None:
        """Ends the thread. Within it, where the garbage collector may run: has it end after the item that it makes."""
        self._stop.set()
        if self._thread is threading.current_thread():
            return
        while self._thread.is_alive():
            self._interrupt()
            self._thread.join(0.1)


class WebLoader(DataPipeline):
    """Items of a chain, made on a thread of their own while the loop works.

        loader = wds.WebLoader(ds, batch_size=None, num_workers=8)

    Args:
        dataset: a chain or another iterable.
        batch_size: None: the chain makes batches; their arrays become tensors, and tuples lists, as torch's DataLoader has it. A
            number: batches of so many items, collated by torch.
        num_workers: decoding threads of the engine; 0: as many as are needed. There are no worker processes.
        pin_memory: copies tensors to pinned memory, if there is a GPU.
        drop_last: leaves out a last batch of fewer than batch_size items.
        prefetch_factor: items, or batches of batch_size, made ahead.
        collate_fn: called with a list of batch_size items, or with each item of a chain that makes batches: to be used instead of
            torch's function.

    Without torch, batch_size=None gives items as they are.
    """

    def __init__(self, dataset: Any, batch_size: Optional[int] = 1, num_workers: int = 0, shuffle: bool = False,
                 pin_memory: bool = False, drop_last: bool = False, prefetch_factor: Optional[int] = None,
                 collate_fn: Optional[Callable[[Any], Any]] = None, **others: Any) -> None:
        super().__init__()
        unknown = others.keys() - {"persistent_workers", "multiprocessing_context", "timeout"}
        if unknown:
            raise errors.not_offered(f"WebLoader({', '.join(sorted(unknown))}=...)", "a stage of the chain instead")
        if shuffle:
            raise errors.not_offered("WebLoader(shuffle=True)", ".shuffle(1000) in the chain")
        if drop_last and batch_size is None:
            raise errors.usage("WebLoader(batch_size=None, drop_last=True)", "write .batched(64, partial=False) in the chain")
        self.dataset, self.ahead = dataset, prefetch_factor or 2
        self._is_own = num_workers > 0 and isinstance(dataset, DataPipeline) and bool(dataset.pipeline) \
            and isinstance(dataset.pipeline[0], Source)
        if self._is_own:
            self.dataset = dataset.compose()
            self.dataset.pipeline[0] = dataset.pipeline[0].changed(threads=num_workers)
        made = collate_fn if collate_fn is not None else _of_torch(batch_size)
        self._batch = None if batch_size is None else filters.batched(batch_size, made, partial=not drop_last)
        self.append(_Items(self.dataset, self._batch or _Called(made), self.ahead))
        if pin_memory:
            self.append(_Called(_pinned))

    def __len__(self) -> int:
        changed = self.nsamples >= 0 or self.repetitions != 1 or any(not isinstance(x, (_Items, _Called)) for x in self.pipeline)
        if self.size >= 0 or changed:
            return super().__len__()
        items, batch = len(self.dataset), self._batch
        return items if batch is None else (items + (batch.batchsize - 1 if batch.partial else 0)) // batch.batchsize

    def close(self) -> None:
        """Ends its threads: with num_workers, those of decoding, too."""
        super().close()
        if self._is_own:
            self.dataset.close()


class _Called:
    """A stage that calls a function, if there is one, with each item: one of any kind, which it leaves in its place."""

    def __init__(self, f: Optional[Callable[[Any], Any]]) -> None:
        self.f = f

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return items if self.f is None else (self.f(item) for item in items)


class _Items:
    """The first part of a WebLoader: the items of a chain, and what a stage makes of them, on a thread."""

    def __init__(self, items: Any, stage: Stage, ahead: int) -> None:
        self.items, self.stage, self.ahead = items, stage, ahead
        self._now: Optional[_Ahead] = None
        remember(self)

    def __iter__(self) -> Iterator[Any]:
        self.close()
        self._now = _Ahead(self.items, self.stage, self.ahead)
        return iter(self._now)

    def close(self) -> None:
        """Ends the thread."""
        now, self._now = self._now, None
        if now is not None:
            now.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_now": None}


def _of_torch(batch_size: Optional[int]) -> Optional[Callable[[Any], Any]]:
    """What torch's DataLoader calls where it is given no function. Without torch: None, or an error if it is needed."""
    try:
        import torch.utils.data
    except ImportError:
        if batch_size is None:
            return None
        raise errors.usage(f"WebLoader(batch_size={batch_size}) without torch, which collates", "give batch_size=None, and write "
                           ".batched(64) in the chain; or give collate_fn") from None
    of_torch: Callable[[Any], Any] = torch.utils.data.default_convert if batch_size is None else torch.utils.data.default_collate
    return of_torch


def _pinned(item: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return item
    if isinstance(item, torch.Tensor):
        return item.pin_memory()
    if isinstance(item, dict):
        return {k: _pinned(v) for k, v in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(_pinned, item))
    if isinstance(item, (list, tuple)):
        return type(item)(_pinned(v) for v in item)
    return item

