"""For programs of torch: loaders in step on all ranks, and an IterableDataset of a loader for torch's DataLoader."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Optional, TypeVar, Union

import torch.distributed
import torch.utils.data

from . import errors
from ._loader import Loader, State, merge_states
from ._spec import _distributed, job_rank
from .images import Batch

T = TypeVar("T")


def _check_loader(what: str, of: Any) -> None:
    if not hasattr(of, "state_dict") or not hasattr(of, "epoch"):
        raise errors.usage(f"{what} of {of!r}", "give a loader of millrace")


class Lockstep(Generic[T]):
    """A loader of which all ranks take the same number of items: an epoch ends on all of them when the first has no more.

        steps = mr.Lockstep(train)
        for images, labels in steps:
            ...  # DistributedDataParallel waits for no rank that is through

    Ranks differ in their numbers of batches with epoch="exact", where samples are skipped, and in an epoch that is continued by
    another number of ranks. Before each item the ranks agree whether all have one (an all-reduce over a CPU group, Gloo). A rank whose
    data fail ends the others with PeerLostError; where they fail after the last step of an epoch, when the next one begins.

    Args:
        loader: of this rank. Every rank makes a Lockstep at the same place of the program, after init_process_group(): that makes
            the group.
        group: of torch.distributed, on the CPU, to agree in; None: a new one of all ranks.

    Attributes:
        loader: what was given.
        dropped: items of this rank that came when another rank had none left, since the Lockstep was made.
    """

    def __init__(self, loader: Loader[T], group: Optional[Any] = None) -> None:
        _check_loader("a Lockstep", loader)
        self.loader, self.dropped, self._is_checked = loader, 0, False
        self._failed: Optional[Exception] = None  # after the last step of an epoch: told when the next one begins
        self._group = group
        if group is None and not _distributed() and job_rank()[1] > 1:
            raise errors.usage(f"a Lockstep in a job of {job_rank()[1]} ranks, and torch.distributed is not initialised",
                               "make Lockstep after init_process_group()")
        if group is None and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            self._group = torch.distributed.new_group(backend="gloo")

    def _least(self, mine: int) -> int:
        if self._group is None:
            return mine
        of_all = torch.tensor([mine])
        try:
            torch.distributed.all_reduce(of_all, torch.distributed.ReduceOp.MIN, group=self._group)
        except RuntimeError as why:  # of Gloo
            raise errors.error("peer_lost", f"another rank is gone: {why}", hint="see that rank's message") from why
        return int(of_all)

    def _gathered(self, mine: Any) -> list[Any]:
        """Of all ranks, in their order. Collective."""
        of_all: list[Any] = [mine]
        if self._group is not None:
            of_all *= torch.distributed.get_world_size(self._group)
            torch.distributed.all_gather_object(of_all, mine, group=self._group)
        return of_all

    def _states(self) -> list[dict[str, Any]]:
        """Of all ranks, in their order. Collective."""
        # Where some have begun, as a program that looks at a rank's first item does, the others do too: their states are then alike.
        has_begun = getattr(self.loader, "_asked", False)
        begins = any(self._gathered(has_begun))
        mine, failed = None, None
        try:
            if begins and not has_begun:
                self.loader._begun()
            mine = self.loader.state_dict()
        except Exception as why:  # the others must not wait for this rank
            failed = why
        states = self._gathered(mine)
        if failed is not None:
            raise failed
        if None in states:
            raise errors.error("peer_lost", "the position of another rank cannot be saved", hint="see that rank's message")
        return states

    def _warn_of_doubled(self) -> None:
        """Collective: of ranks that read the same shards, but not as one job."""
        mine: Any = None
        try:
            self.loader._begun()
            mine = self.loader.state_dict()
        except Exception:  # comes again with the first item
            pass
        lists = self._gathered(None if mine is None else [mine, sorted(self.loader._named_shards())])
        if None in lists:
            return
        states = [state for state, _ in lists]
        if len({json.loads(s["position"])["records"]["plan"][0] for s in states}) > 1:
            if lists[0][1] and all(names == lists[0][1] for _, names in lists):
                warnings.warn("the ranks list the same shards in different orders: some samples come on several ranks, others on none. "
                              "Sort the list.", stacklevel=3)
            return  # each has shards of its own
        try:
            merge_states(states)
        except errors.BadStateError as why:
            warnings.warn(f"the ranks read the same shards, but not as one job ({why.args[0].partition(';')[0]}): some samples come on "
                          "several ranks, others on none. Make the loader alike on all ranks, with rank='auto'.", stacklevel=3)

    def __iter__(self) -> Iterator[T]:
        """The rest of an epoch, as from the loader."""
        if self._group is not None and not self._is_checked:
            self._is_checked = True
            self._warn_of_doubled()
        items = iter(self.loader)
        while True:
            item, failed, self._failed = None, self._failed, None
            try:
                item = next(items, None) if failed is None else None
            except Exception as why:  # the others must not wait for this rank
                failed = why
            least = self._least(-1 if failed is not None else 0 if item is None else 1)
            if failed is not None:
                raise failed
            if least < 0:
                raise errors.error("peer_lost", "the data of another rank failed", hint="see that rank's message")
            if least > 0:
                yield item  # type: ignore[misc]
                continue
            self._drop(item, items)
            return

    def _drop(self, item: Optional[T], items: Iterator[T]) -> None:
        """Drops an item, and what follows it in the epoch. If that fails, this rank goes to the beginning of the next epoch, where the
        others are, so that all ranks are told there, and a position that is saved before is the one of all."""
        epoch = self.loader.epoch
        try:
            while item is not None:
                self.dropped += 1
                item = next(items, None)
        except Exception as why:
            self._failed = why
            self.loader.set_epoch(epoch + 1)

    def __len__(self) -> int:
        """The loader's length. An epoch has at most that many items, and fewer where another rank has fewer. Raises TypeError if the
        loader's length is not known, as in an epoch that another number of ranks continues."""
        return len(self.loader)  # type: ignore[arg-type]

    @property
    def epoch(self) -> int:
        """Same as the loader's `epoch`."""
        return self.loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Same as the loader's `set_epoch()`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of all ranks: every rank calls it at the same place, and gets the same. One file of one rank is enough to
        continue, with any number of ranks. A rank that cannot save its own ends the others with PeerLostError."""
        return merge_states(self._states())

    def load_state_dict(self, state: Union[State, Sequence[State]]) -> None:
        """Same as the loader's `load_state_dict()`."""
        self._failed = None
        self.loader.load_state_dict(state)


def _refuse_batches_of_batches(batch: list[Batch], *, collate_fn_map: Any = None) -> None:
    raise errors.usage("a DataLoader makes batches of the loader's batches",
                       "write DataLoader(mr.IterableDataset(loader), batch_size=None); the loader's batch_size is that of its batches")


# Of the DataLoader's own collate function, which it has with every batch_size but None.
getattr(torch.utils.data._utils.collate, "default_collate_fn_map", {})[Batch] = _refuse_batches_of_batches


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A loader as the data set of a DataLoader, for programs that take nothing else:

        DataLoader(mr.IterableDataset(train), batch_size=None)

    Batches are made by the loader: `batch_size=None` is needed, and without it the first batch raises UsageError. Their order too:
    `shuffle` and `sampler` are refused. A `collate_fn` gets one batch at a time. With `num_workers=0` they come without a copy. Workers
    divide the shards among themselves, each with a decoding thread; what they give is copied between processes, and their
    positions cannot be saved; nor has the program's loader their counts and figures, nor the DataLoader a length. They begin with the
    epoch that the program's loader is in, so call its set_epoch(n) before each loop, or each has the same order. torchdata's
    StatefulDataLoader saves that of `num_workers=0`.
    """

    def __init__(self, loader: Loader[Any]) -> None:
        _check_loader("an IterableDataset", loader)
        super().__init__()
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            # A loader that was begun before the fork is the parent's: this one starts at its beginning.
            self.loader = self.loader._for_worker()
        return iter(self.loader)

    def __len__(self) -> int:
        """The loader's length. Raises TypeError if that is not known, and where a DataLoader with workers asks, each of which ends with a
        batch of its own: how many they give together is known to none."""
        asks = sys._getframe(1).f_locals.get("self")
        if isinstance(asks, torch.utils.data.DataLoader) and asks.num_workers > 0:
            raise TypeError("the length of a DataLoader whose workers divide the shards is not known: give it num_workers=0")
        return len(self.loader)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """Same as the loader's `state_dict()`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Same as the loader's `load_state_dict()`."""
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Same as the loader's `set_epoch()`."""
        self.loader.set_epoch(epoch)
