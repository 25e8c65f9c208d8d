"""The methods of chains, one for each stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Union

from .. import errors
from ..joins import Companion, Join
from . import _stages
from ._decode import Decoder, FieldDecoder, decoder_of
from ._handlers import Handler, reraise_exception

if TYPE_CHECKING:
    from ._pipeline import DataPipeline


class Decode(_stages.map):
    """A stage that decodes."""

    def __init__(self, decoder: Decoder, handler: Handler) -> None:
        super().__init__(decoder, handler)
        self.decoder = decoder


class Chain:
    """The methods that append a stage. Each returns another chain, and leaves this one as it is."""

    def compose(self, *stages: Any) -> "DataPipeline":
        """Appends stages: functions of an iterator that return an iterator."""
        raise NotImplementedError

    def join(self, companion: Companion, on: str = "key", missing: str = "error", fields: str = "") -> "DataPipeline":
        """Adds the fields that other shards, "captions/{}.tar", or a table have under the samples' keys, by the engine's threads.
        Place it before decode() and functions. Arguments as of `millrace.Join`."""
        return self.compose(Join(companion, on, missing, fields))

    def batched(self, batchsize: int, collation_fn: Any = _stages.default_collation_fn, partial: bool = True) -> "DataPipeline":
        """Batches of consecutive items."""
        return self.compose(_stages.batched(batchsize, collation_fn, partial))

    def listed(self, batchsize: int, partial: bool = True) -> "DataPipeline":
        """Lists of consecutive items."""
        return self.compose(_stages.batched(batchsize, None, partial))

    def unbatched(self) -> "DataPipeline":
        """Batches back to items."""
        return self.compose(_stages.unbatched())

    def unlisted(self) -> "DataPipeline":
        """Lists back to items."""
        return self.compose(_stages.unlisted())

    def shuffle(self, size: int, **kw: Any) -> "DataPipeline":
        """Shuffles through a buffer. Right after WebDataset(...): in the engine, a function of the seed."""
        return self.compose(_stages.shuffle(size, **kw))

    def map(self, f: Callable[[Any], Any], handler: Handler = reraise_exception) -> "DataPipeline":
        """Calls f with each item; None leaves it out."""
        return self.compose(_stages.map(f, handler))

    def map_dict(self, handler: Handler = reraise_exception, **kw: Callable[[Any], Any]) -> "DataPipeline":
        """Calls functions with fields of each sample."""
        return self.compose(_stages.map_dict(handler, **kw))

    def map_tuple(self, *args: Optional[Callable[[Any], Any]], handler: Handler = reraise_exception) -> "DataPipeline":
        """Calls functions with places of each tuple."""
        return self.compose(_stages.map_tuple(*args, handler=handler))

    def to_tuple(self, *args: Any, **kw: Any) -> "DataPipeline":
        """Fields of each sample in a tuple."""
        return self.compose(_stages.to_tuple(*args, **kw))

    def select(self, predicate: Callable[[Any], bool]) -> "DataPipeline":
        """Keeps the items for which the predicate is true."""
        return self.compose(_stages.select(predicate))

    def rsample(self, p: float = 0.5) -> "DataPipeline":
        """Keeps each item with probability p."""
        return self.compose(_stages.rsample(p))

    def slice(self, *args: int) -> "DataPipeline":
        """Items as of itertools.islice."""
        return self.compose(_stages.slice(*args))

    def rename(self, **kw: Any) -> "DataPipeline":
        """Renames fields."""
        return self.compose(_stages.rename(**kw))

    def decode(self, *args: Union[str, Decoder, FieldDecoder], only: Any = None, handler: Handler = reraise_exception,
               pre: None = None, post: None = None, partial: bool = False) -> "DataPipeline":
        """Decodes fields: images as "rgb8", "rgb", "torchrgb", "pil", ..., RGB ones by the engine's threads; texts, numbers,
        JSON and arrays by their extension; `handle_extension` decodes others."""
        if pre is not None or post is not None:
            raise errors.not_offered("decode(pre=..., post=...)", "decode(function, ...): functions are asked first")
        del partial  # what has no decoder stays bytes
        return self.compose(Decode(decoder_of(args, only), handler))

    def _refused(self, name: str, instead: str) -> NoReturn:
        raise errors.not_offered(f"webdataset's {name}()", instead)

    def xdecode(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("xdecode", ".decode(wds.handle_extension('EXTENSION', function))")

    def mcached(self) -> NoReturn:
        """Not offered."""
        self._refused("mcached", "items = list(dataset) to keep all items in memory")

    def lmdb_cached(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("lmdb_cached", "WebDataset(urls, cache_dir='FOLDER') to keep fetched shards")

    def rename_keys(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("rename_keys", ".rename(new='old;older')")

    def extract_keys(self, *args: Any, **kw: Any) -> NoReturn:
        """Not offered."""
        self._refused("extract_keys", ".to_tuple('jpg;png', 'cls')")

    def log_keys(self, logfile: Any = None) -> NoReturn:
        """Not offered."""
        self._refused("log_keys", ".map(function) with a function that logs sample['__key__']")
