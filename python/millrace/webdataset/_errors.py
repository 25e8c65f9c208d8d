"""Errors of the engine as those that webdataset raises."""

from __future__ import annotations

import tarfile
from typing import Any, Optional

from .. import errors


class DecodingError(Exception):
    """A field that cannot be decoded; the cause is in `__cause__`.

    Attributes: url, key: of the sample; k: the field; sample: all fields.
    """

    def __init__(self, url: Optional[str] = None, key: Optional[str] = None, k: Optional[str] = None,
                 sample: Optional[dict[str, Any]] = None) -> None:
        super().__init__(url, key, k)
        self.url, self.key, self.k, self.sample = url, key, k, sample

    def __str__(self) -> str:
        return f"field '{self.k}' of sample '{self.key}' in {self.url}" + (f": {self.__cause__}" if self.__cause__ else "")


# What webdataset raises, for each kind of error.
_ALSO: dict[str, type[Exception]] = {
    "truncated": tarfile.ReadError, "bad_archive": tarfile.ReadError, "bad_image": DecodingError, "bad_field": DecodingError}
_made: dict[type, type] = {}


def as_theirs(error: errors.Error) -> errors.Error:
    """The same error, which is also of the class that webdataset raises."""
    also = _ALSO.get(error.kind)
    if also is None or isinstance(error, also):
        return error
    kind = type(error)
    if kind not in _made:
        _made[kind] = type(kind.__name__, (kind, also), {"__init__": Exception.__init__, "__str__": kind.__str__,
                                                         "__module__": __name__, "k": None, "sample": None})
    made: errors.Error = _made[kind](*error.args)
    made.__dict__.update(error.__dict__)
    return made.with_traceback(error.__traceback__)
