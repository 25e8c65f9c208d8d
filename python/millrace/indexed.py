"""IndexedDataset: single samples by number or key."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from typing import Any, Optional, Union

from . import _core, errors
from ._loader import remember
from ._numbers import path, patterns
from ._spec import byte_count


class IndexedDataset:
    """Samples of shards by number, with an index of `millrace index SHARDS -o train.json --offsets`.

        ds = mr.IndexedDataset("train.json")
        len(ds), ds[123456]["jpg"], ds["n01440764_10026"]["cls"]

    A sample is a dict as in `samples()`: "__key__", "__url__", and the bytes of each file by its extension. Each access
    is one read of a file, or one range request. For evaluation and tools, and for a DataLoader with a sampler; training
    reads faster through ImageLoader. It may be used in worker processes, also forked ones: each opens it for itself.

    Args:
        index: path or URL of the index.
        memory: the budget in bytes or as "1GiB"; None: as in ImageLoader.
        cache: a folder for copies of what is fetched.

    Raises subclasses of `millrace.Error`: BadIndexError and errors of reading at the first access; IntegrityError where a
    shard is not as the index says; IndexError and KeyError for what is not there.
    """

    def __init__(self, index: Union[str, "os.PathLike[str]"], *, memory: Union[int, str, None] = None,
                 cache: Optional[str] = None) -> None:
        self._options = (path("index", index), byte_count("memory", memory), path("cache", cache) if cache is not None else "")
        self._closed = False
        self._opened: Optional[_core.Indexed] = None
        remember(self)

    def _data(self) -> _core.Indexed:
        if self._closed:
            raise errors.usage("this data set is closed", "make a new one")
        if self._opened is None or self._opened.is_of_parent():
            spec = _core.Spec()
            spec.shards = [self._options[0]]
            spec.memory, spec.cache_folder = self._options[1:]
            spec.threads = 1
            self._opened = _core.Indexed(spec)
        return self._opened

    def __len__(self) -> int:
        """The number of samples."""
        return self._data().size()

    def __getitem__(self, which: Union[int, str]) -> dict[str, Any]:
        """The sample with this number (negative: from the end) or key. Raises TypeError for what is neither, such as a slice."""
        if isinstance(which, str):
            return self._data().get(self.find(which))
        if isinstance(which, slice):
            raise TypeError("an IndexedDataset gives one sample at a time, not a slice: write "
                            "[ds[i] for i in range(*s.indices(len(ds)))], or torch.utils.data.Subset(ds, range(...))")
        if isinstance(which, bool) or not hasattr(which, "__index__"):
            raise TypeError(f"a sample is named by its number or its key, not by {which!r}: write ds[3] or ds['n01440764_10026']")
        number, size = operator.index(which), len(self)
        if not -size <= number < size:
            raise IndexError(f"sample {number} of {size}")
        return self._data().get(number % size)

    def find(self, key: str, first: str = "") -> int:
        """The number of the sample with this key.

        Args:
            first: the extension of its first file in the shard; empty: that of sample 0. An index knows samples by the
                name of their first file.

        Raises KeyError if there is none, TypeError for what is no text, and UnsupportedError for an index without offsets."""
        if not isinstance(key, str):
            raise TypeError(f"the key is {key!r}: give a text, find('n01440764_10026'); the sample with a number is ds[number]")
        first = patterns("first", first)
        try:
            key.encode(errors="surrogateescape")
        except UnicodeEncodeError:  # half a character, which no key has
            raise KeyError(key) from None
        number = self._data().find(key, first)
        if number < 0:
            raise KeyError(key)
        return number

    def __contains__(self, key: object) -> bool:
        """Whether a sample has this key, by the index alone. Raises UnsupportedError for an index without offsets."""
        try:
            return isinstance(key, str) and self.find(key) >= 0
        except KeyError:
            return False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All samples in order, one read each: samples() reads them faster."""
        return (self[i] for i in range(len(self)))

    def close(self) -> None:
        """Ends its threads."""
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> "IndexedDataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> tuple[str, int, str]:
        return self._options

    def __setstate__(self, options: tuple[str, int, str]) -> None:
        self._options, self._closed, self._opened = options, False, None
        remember(self)
