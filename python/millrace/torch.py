"""For torch.utils.data.DataLoader: an IterableDataset of a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from ._loader import Loader


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A loader as the data set of a DataLoader, for programs that take nothing else:

        DataLoader(mr.IterableDataset(train), batch_size=None)

    Batches are made by the loader: `batch_size=None` is needed. With `num_workers=0` they come without a copy. Workers
    divide the shards among themselves, each with a decoding thread; what they give is copied between processes, and their
    positions cannot be saved. They begin with the epoch that the program's loader is in, so call its set_epoch(n) before each
    loop, or each has the same order. torchdata's StatefulDataLoader saves that of `num_workers=0`.
    """

    def __init__(self, loader: Loader[Any]) -> None:
        super().__init__()
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            # A loader that was begun before the fork is the parent's: this one starts at its beginning.
            self.loader = self.loader._for_worker()
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """The loader's."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The loader's."""
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """The loader's."""
        self.loader.set_epoch(epoch)
