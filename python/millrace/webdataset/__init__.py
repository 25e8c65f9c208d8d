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

from . import autodecode, filters, handlers, mix, shardlists, tenbin, utils, writer
from ._chain import Decode
from .autodecode import (Continue, Decoder, ImageHandler, basichandlers, decoder_of, gzfilter, handle_extension, imagehandler,
                      imagespecs)
from ._errors import DecodingError
from .handlers import ignore_and_continue, ignore_and_stop, reraise_exception, warn_and_continue, warn_and_stop
from .mix import RandomMix, RoundRobin
from ._pipeline import DataPipeline, FluidWrapper, MockDataset, WebDataset, tarfile_samples, tarfile_to_samples
from .shardlists import (DirectoryShardList, ResampledShardList, ResampledShards, SimpleShardList, non_empty, resampled,
                         shardspec, single_node_only, split_by_node, split_by_worker)
from .filters import (Cached, LMDBCached, associate, batched, default_collation_fn, detshuffle, extract_keys, getfirst, info,
                      log_keys, map, map_dict, map_tuple, pipelinefilter, rename, rename_keys, rsample, select, shuffle,
                      slice, to_tuple, transform_with, unbatched, unlisted, xdecode)
from ._urls import expand_urls
from ._webloader import WebLoader
from .writer import ShardWriter, TarWriter, numpy_dumps, torch_dumps
from .utils import PipelineStage, repeatedly

__all__ = ["Cached", "Continue", "DataPipeline", "Decoder", "DecodingError", "DirectoryShardList", "FluidWrapper",
           "ImageHandler", "LMDBCached", "MockDataset", "PipelineStage", "RandomMix", "ResampledShardList",
           "ResampledShards", "RoundRobin", "ShardWriter", "SimpleShardList", "TarWriter", "WebDataset", "WebLoader",
           "associate", "autodecode", "basichandlers", "batched", "decode", "default_collation_fn", "detshuffle",
           "expand_urls", "extract_keys", "filters", "getfirst", "gzfilter", "handle_extension", "handlers",
           "ignore_and_continue", "ignore_and_stop", "imagehandler", "imagespecs", "info", "log_keys", "map", "map_dict",
           "map_tuple", "mix", "non_empty", "numpy_dumps", "pipelinefilter", "rename", "rename_keys", "repeatedly",
           "reraise_exception", "resampled", "rsample", "select", "shardlists", "shardspec", "shuffle", "single_node_only",
           "slice", "split_by_node", "split_by_worker", "tarfile_samples", "tarfile_to_samples", "tenbin", "to_tuple",
           "torch_dumps", "transform_with", "unbatched", "unlisted", "utils", "warn_and_continue", "warn_and_stop",
           "writer", "xdecode"]


def decode(*args: Any, handler: Any = reraise_exception, **options: Any) -> Any:
    """A stage of a DataPipeline that decodes, as WebDataset(...).decode()."""
    return Decode(decoder_of(args, **options), handler)


_INSTEAD = {
    "gopen": "mr.samples('pipe:COMMAND', allow_pipe=True), or a URL: s3://, gs://, az://, hf://, https://",
    "gopen_schemes": "a URL: s3://, gs://, az://, hf://, https://, or 'pipe:COMMAND'",
    "wids": "import millrace.wids",
    "ShardListDataset": "millrace.wids.ShardListDataset('train.json')",
    "MultiShardSample": "wds.RandomMix([wds.WebDataset(a), wds.WebDataset(b)], probs=[0.7, 0.3])",
    "tariterators": "wds.WebDataset(urls)",
    "torch_video": "wds.handle_extension('mp4', function)",
    "torch_audio": "wds.handle_extension('flac wav mp3', function)",
    "torch_loads": "wds.handle_extension('pth', function), for data that you trust",
}


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise AttributeError(f"webdataset's {name} is not offered; write {_INSTEAD[name]}")
    raise AttributeError(f"module 'millrace.webdataset' has no attribute '{name}'")
