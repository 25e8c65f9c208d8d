"""The chain of Python's webdataset, read and decoded by millrace's threads: change the import.

    import millrace.webdataset as wds

    ds = (wds.WebDataset(urls, shardshuffle=100, nodesplitter=wds.split_by_node)
          .shuffle(1000).decode("rgb8").to_tuple("jpg;png", "cls").map_tuple(transform, None).batched(64))
    loader = wds.WebLoader(ds, batch_size=None, num_workers=8)   # threads, no processes

Functions of the program run on one thread of Python. What is not offered raises UnsupportedError, with the line to write
instead. docs/python.md says what differs.
"""

from __future__ import annotations

from typing import Any

from ._chain import Decode
from ._decode import Decoder, decoder_of, handle_extension, imagehandler
from ._handlers import ignore_and_continue, ignore_and_stop, reraise_exception, warn_and_continue, warn_and_stop
from ._mix import RandomMix, RoundRobin
from ._pipeline import DataPipeline, WebDataset, tarfile_to_samples
from ._splitters import (ResampledShardList, ResampledShards, SimpleShardList, single_node_only, split_by_node,
                         split_by_worker)
from ._stages import (batched, default_collation_fn, detshuffle, map, map_dict, map_tuple, rename, rsample, select, shuffle,
                      slice, to_tuple, unbatched, unlisted)
from ._webloader import WebLoader
from ._writer import ShardWriter, TarWriter

__all__ = ["DataPipeline", "Decoder", "RandomMix", "ResampledShardList", "ResampledShards", "RoundRobin", "ShardWriter",
           "SimpleShardList", "TarWriter", "WebDataset", "WebLoader", "batched", "decode", "default_collation_fn",
           "detshuffle", "handle_extension", "ignore_and_continue", "ignore_and_stop", "imagehandler", "map", "map_dict",
           "map_tuple", "rename", "reraise_exception", "rsample", "select", "shuffle", "single_node_only", "slice",
           "split_by_node", "split_by_worker", "tarfile_to_samples", "to_tuple", "unbatched", "unlisted",
           "warn_and_continue", "warn_and_stop"]


def decode(*args: Any, handler: Any = reraise_exception, only: Any = None) -> Any:
    """A stage of a DataPipeline that decodes, as WebDataset(...).decode()."""
    return Decode(decoder_of(args, only), handler)


_INSTEAD = {
    "gopen": "mr.samples('pipe:COMMAND', allow_pipe=True), or a URL: s3://, gs://, az://, hf://, https://",
    "gopen_schemes": "a URL: s3://, gs://, az://, hf://, https://, or 'pipe:COMMAND'",
    "wids": "millrace.IndexedDataset('train.json')",
    "ShardListDataset": "millrace.IndexedDataset('train.json')",
    "Cached": "list(dataset)",
    "LMDBCached": "WebDataset(urls, cache_dir='FOLDER')",
    "MultiShardSample": "wds.RandomMix([wds.WebDataset(a), wds.WebDataset(b)], probs=[0.7, 0.3])",
    "FluidWrapper": "wds.DataPipeline(iterable)",
    "xdecode": "wds.decode(wds.handle_extension('EXTENSION', function))",
    "rename_keys": "wds.rename(new='old')",
    "extract_keys": "wds.to_tuple('jpg;png', 'cls')",
    "log_keys": "wds.map(function)",
    "associate": "wds.map(function)",
    "autodecode": "wds.handle_extension('EXTENSION', function)",
    "tariterators": "wds.WebDataset(urls)",
    "shardlists": "wds.SimpleShardList(urls)",
    "filters": "the stages of this module: wds.map, wds.batched, ...",
    "torch_video": "wds.handle_extension('mp4', function)",
    "torch_audio": "wds.handle_extension('flac wav mp3', function)",
}


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise AttributeError(f"webdataset's {name} is not offered; write {_INSTEAD[name]}")
    raise AttributeError(f"module 'millrace.webdataset' has no attribute '{name}'")
