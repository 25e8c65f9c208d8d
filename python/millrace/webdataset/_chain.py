"""The methods of chains, one for each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from ..joins import Companion, Join
from . import filters
from .autodecode import Decoder, FieldDecoder, decoder_of
from .handlers import Handler, reraise_exception

if TYPE_CHECKING:
    from ._pipeline import DataPipeline


class Decode(filters.map):
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
        Place it before decode() and functions. Arguments as in `millrace.Join`."""
        return self.compose(Join(companion, on, missing, fields))

    def batched(self, batchsize: int, collation_fn: Any = filters.default_collation_fn, partial: bool = True) -> "DataPipeline":
        """Batches of consecutive items."""
        return self.compose(filters.batched(batchsize, collation_fn, partial))

    def listed(self, batchsize: int, partial: bool = True) -> "DataPipeline":
        """Lists of consecutive items."""
        return self.compose(filters.batched(batchsize, None, partial))

    def unbatched(self) -> "DataPipeline":
        """Batches back to items."""
        return self.compose(filters.unbatched())

    def unlisted(self) -> "DataPipeline":
        """Lists back to items."""
        return self.compose(filters.unlisted())

    def shuffle(self, size: int, **kw: Any) -> "DataPipeline":
        """Shuffles through a buffer. Right after WebDataset(...): in the engine, a function of the seed."""
        return self.compose(filters.shuffle(size, **kw))

    def map(self, f: Callable[[Any], Any], handler: Handler = reraise_exception) -> "DataPipeline":
        """Calls f with each item; None leaves it out."""
        return self.compose(filters.map(f, handler))

    def map_dict(self, handler: Handler = reraise_exception, **kw: Callable[[Any], Any]) -> "DataPipeline":
        """Calls functions with fields of each sample."""
        return self.compose(filters.map_dict(handler, **kw))

    def map_tuple(self, *args: Optional[Callable[[Any], Any]], handler: Handler = reraise_exception) -> "DataPipeline":
        """Calls functions with places of each tuple."""
        return self.compose(filters.map_tuple(*args, handler=handler))

    def to_tuple(self, *args: Any, **kw: Any) -> "DataPipeline":
        """Fields of each sample in a tuple."""
        return self.compose(filters.to_tuple(*args, **kw))

    def select(self, predicate: Callable[[Any], bool]) -> "DataPipeline":
        """Keeps the items for which the predicate is true."""
        return self.compose(filters.select(predicate))

    def rsample(self, p: float = 0.5) -> "DataPipeline":
        """Keeps each item with probability p."""
        return self.compose(filters.rsample(p))

    def slice(self, *args: int) -> "DataPipeline":
        """Items as in itertools.islice."""
        return self.compose(filters.slice(*args))

    def rename(self, **kw: Any) -> "DataPipeline":
        """Renames fields."""
        return self.compose(filters.rename(**kw))

    def decode(self, *args: Union[str, FieldDecoder], pre: Optional[Sequence[FieldDecoder]] = None,
               post: Optional[Sequence[FieldDecoder]] = None, only: Union[str, Iterable[str], None] = None,
               partial: bool = False, handler: Handler = reraise_exception) -> "DataPipeline":
        """Decodes fields: images as "rgb8", "rgb", "torchrgb", "pil", ..., RGB ones by the engine's threads; texts, numbers,
        JSON and arrays by their extension; `handle_extension` decodes others. A function gets ".EXTENSION" and the bytes,
        and returns a value, or None for the next one to decode it."""
        return self.compose(Decode(decoder_of(args, pre=pre, post=post, only=only, partial=partial), handler))

    def xdecode(self, *args: Any, **kw: Any) -> "DataPipeline":
        """Decodes fields by functions of a binary stream."""
        return self.compose(filters.xdecode(*args, **kw))

    def rename_keys(self, *args: tuple[str, str], **kw: Any) -> "DataPipeline":
        """Renames the fields that match patterns, and leaves out the others."""
        return self.compose(filters.rename_keys(*args, **kw))

    def extract_keys(self, *args: Any, **kw: Any) -> "DataPipeline":
        """The fields that match patterns in a tuple."""
        return self.compose(filters.extract_keys(*args, **kw))

    def log_keys(self, logfile: Optional[str] = None) -> "DataPipeline":
        """Appends the key of each sample to a file."""
        return self.compose(filters.log_keys(logfile))

    def mcached(self) -> "DataPipeline":
        """Keeps all items in memory: only the first loop reads."""
        return self.compose(filters.Cached())

    def lmdb_cached(self, *args: Any, **kw: Any) -> "DataPipeline":
        """Keeps all items in an LMDB database: only the first loop reads."""
        return self.compose(filters.LMDBCached(*args, **kw))
