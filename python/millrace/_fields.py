"""Values of fields by their extensions."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from . import _core, errors


def value_of(extension: str, content: bytes) -> Any:
    """What `decode_field` gives."""
    name = extension.lower()
    while name.endswith(".gz"):
        name, content = name[:-3], _core.decode_field("bytes.gz", content)
    last = name.rsplit(".", 1)[-1]
    reader = _READERS.get(last)
    if reader is None:
        return _core.decode_field(last, content)
    try:
        return reader(last, content)
    except RecursionError:
        raise errors.error("bad_field", f"{last} that is nested too deep", hint="flatten it") from None
    except (ValueError, EOFError) as why:
        if isinstance(why, errors.Error):
            raise
        raise errors.error("bad_field", f"not {_WORDS.get(last, last)}: {why}") from why


def of_sample(why: errors.Error, field: str, url: str, key: str) -> errors.Error:
    """The same error, of this field (empty: it is named) of this sample."""
    what = str(why).removeprefix(why.kind + ": ").removesuffix("; " + why.hint)
    made = errors.error(why.kind, f"field '{field}': {what}" if field else what, url=url, key=key, hint=why.hint)
    made.skippable = why.skippable
    return made


def _array(last: str, content: bytes) -> Any:
    try:
        return _core.decode_field(last, content)
    except errors.BadFieldError:  # of an order, or a type, that only numpy has
        import numpy
        made = numpy.load(io.BytesIO(content), allow_pickle=False)
        return {name: made[name] for name in made.files} if hasattr(made, "files") else made


_READERS: dict[str, Callable[[str, bytes], Any]] = {
    **dict.fromkeys(("json", "jsn"), lambda last, content: json.loads(content)),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), lambda last, content: int(content)),
    **dict.fromkeys(("mp", "msg", "msgpack", "cbor"), _core.packed_value),
    **dict.fromkeys(("npy", "npz"), _array)}
_WORDS = {"json": "JSON", "jsn": "JSON", **dict.fromkeys(("mp", "msg", "msgpack"), "MessagePack"), "cbor": "CBOR",
          **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "an integer")}
