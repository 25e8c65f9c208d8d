"""samples(): shards to dicts of bytes, and their values."""

from __future__ import annotations

import importlib
from typing import Any, Optional, Union

from . import _core, errors
from ._fields import value_of
from ._loader import Loader
from ._numbers import flag
from ._spec import Rank, Shards, check_epoch, common, described, division_of, known_rank, names
from .joins import Companion, Join
from .options import skip

Sample = dict[str, Any]


class SampleLoader(Loader[Sample]):
    """What samples() returns: an iterable of epochs of dicts, with the methods of every loader."""

    def __init__(self, shards: Shards, options: dict[str, Any]) -> None:
        super().__init__()
        self._shards, self._options = names(shards), options
        self._spec(0)
        self._refuse_unknown_fields()

    def _refuse_unknown_fields(self) -> None:
        """The engine chooses fields after the join: it has to be told those that are joined, or it would take them away."""
        fields = self._options["fields"]
        unknown = next((j for j in self._options["joins"] if not j.is_table() and j.patterns() is None), None)
        if fields and unknown is not None:
            shards = errors.redacted(str(unknown.companion))
            raise errors.usage(f"samples(fields={fields!r}) joined with {shards!r}, whose fields are not named",
                               f"name them, join({shards!r}, fields='txt'): the fields of samples() are of the main shard alone")

    def _spec(self, first_epoch: int) -> _core.Spec:
        more = {"decodes", "orient"}
        spec = common(self._shards, **{k: v for k, v in self._options.items() if k not in more | {"joins"}})
        for name in more & self._options.keys():
            setattr(spec, name, flag("decode" if name == "decodes" else name, self._options[name]))
        spec.first_epoch = first_epoch
        return spec

    def _make_run(self, first_epoch: int) -> Any:
        spec = self._spec(first_epoch)
        for one in self._options["joins"]:
            one.apply(spec)
        if spec.fields:
            spec.fields = ";".join([spec.fields, *(p for j in self._options["joins"] if (p := j.patterns()))])
        self._division = division_of(spec)
        return _core.SampleRun(spec)

    def _take(self) -> Optional[Sample]:
        if self._options["decodes"]:
            importlib.import_module("numpy")  # before a sample is taken: Ctrl-C in the middle of this loses none
        taken: Optional[Sample] = self._begun().next()
        return taken

    def join(self, companion: Companion, on: str = "key", missing: str = "error", fields: str = "") -> "SampleLoader":
        """A loader, at its beginning, of the same samples with the fields that other shards, "captions/{}.tar", or a table have
        under their keys. Arguments as in `Join`. Where samples() was given `fields`, which are of the main shard alone, a join of
        shards needs its own."""
        return self.joined([Join(companion, on, missing, fields)])

    def joined(self, joins: list[Join]) -> "SampleLoader":
        """As join(), of several."""
        return SampleLoader(self._shards, {**self._options, "joins": [*self._options["joins"], *joins]})

    def __len__(self) -> int:
        """Samples of this rank in the epoch that the loader is in, those that were given with them, if none is skipped. Raises
        TypeError if that is not known: give an index (`millrace index SHARDS -o train.json`). It is not known either of an epoch that
        is continued with another number of ranks or other lanes; of the next one it is."""
        return self._samples_in_epoch()

    def _named_shards(self) -> list[str]:
        return self._shards

    def _pickled(self) -> dict[str, Any]:
        return {"shards": self._shards, "options": {**self._options, "rank": known_rank(self._options["rank"])}}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        Loader.__init__(self)
        self._shards, self._options = pickled["shards"], pickled["options"]
        self.load_state_dict(pickled["state"])

    def __repr__(self) -> str:
        return f"<millrace.samples of {described(self._shards)}, epoch {self.epoch}>"


def decode_field(extension: str, content: bytes) -> Any:
    """The value of a field by the last part of its extension: texts (txt, text, transcript), ints (cls, cls2, class, count, index,
    inx, id), what JSON, MessagePack (mp, msg, msgpack) and CBOR hold, numpy's arrays of npy, npz (by name) and ten (in order); of a
    gz the value of what it holds, and of any other its bytes. No code in the data is run: pickles stay bytes. Any thread.
    Of MessagePack and CBOR, keys are texts, and extension types and integers below -2**63 are refused.

    Raises BadFieldError for what is not what its extension says, and TooLargeError."""
    if not isinstance(extension, str) or not isinstance(content, bytes):
        raise errors.usage(f"decode_field({errors.shown(extension)}, a {type(content).__name__})", "give an extension and its bytes")
    return value_of(extension, content)


def samples(shards: Shards, *, fields: str = "", decode: bool = False, shuffle: int = 0, shuffle_shards: bool = True,
            seed: int = 0, epoch: str = "exact", rank: Rank = "auto", lanes: int = 0,
            memory: Union[int, str, None] = None, threads: Union[int, str] = "auto", cache: Optional[str] = None,
            on_error: Optional[skip] = None, resync: bool = False, allow_pipe: bool = False,
            orient: bool = True) -> SampleLoader:
    """Samples of shards as dicts: "__key__" and "__url__", and the bytes of each file by its extension.

        for s in mr.samples("train-{000000..000003}.tar", shuffle=1000):
            s["__key__"], s["jpg"], s["cls"]

    `.join("captions/{}.tar")` adds fields of other shards, or of a table: see `Join`.

    Args:
        fields: patterns of the extensions to keep, "jpg;json"; empty: all. Extensions are in lower case: "JPG" is "jpg". They are of
            these shards: join() has `fields` of its own, whose patterns keep fields of these shards too; a field that both have is an
            error, also if it is left out here.
        decode: decodes images in C++ threads: their fields are uint8 arrays of numpy, (height, width, 3), RGB.
        lanes: as in ImageLoader. With -1 and `shuffle_shards=False`, on one rank, samples come in the order of the list.
        orient: turns decoded images as EXIF demands.
        shuffle_shards: permutes the list of shards in each epoch. False: it is not permuted; but 8 `lanes` of shards are read at
            once, a sample of each in turn. The order of the list, shard by shard, comes with `lanes=-1`, on one rank.

    The others as in ImageLoader. Errors, epochs and positions too.
    """
    check_epoch(epoch)
    return SampleLoader(shards, {
        "seed": seed, "epoch": epoch, "rank": rank, "lanes": lanes, "shuffle": shuffle, "shuffle_shards": shuffle_shards,
        "fields": fields, "memory": memory, "threads": threads, "cache": cache, "allow_pipe": allow_pipe,
        "resync": resync, "on_error": on_error, "decodes": decode, "orient": orient,
        "joins": []})
