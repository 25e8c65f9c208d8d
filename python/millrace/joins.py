"""Join: fields from other shards, or from a table, by the keys of samples."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, Union

from . import _core, errors

Fields = Mapping[str, Union[bytes, str]]
Companion = Union[str, "os.PathLike[str]", Mapping[str, Fields]]
Row = tuple[str, dict[str, bytes]]

_LINES = (".jsonl", ".ndjson", ".jsonlines")
_SEPARATED = {".csv": ",", ".tsv": "\t"}
_ENDINGS = (*_LINES, *_SEPARATED, ".parquet")


class Join:
    """What samples get by their keys: the fields of a companion shard for each shard, or those of a table.

        mr.Join("s3://bucket/captions/{}.tar", missing="skip")
        mr.Join("metadata.jsonl", on="file_name")

    Args:
        companion: a path or URL with `{}`, which is the name of the main shard without its folder and without .tar, .tar.gz
            and so on; or a table, a path or URL that ends in .csv, .tsv, .jsonl, .ndjson or .parquet (which needs pyarrow);
            or a dict of such rows: {key: {"txt": "a dog"}}.
        on: of a table, the column of the keys; "key": a column `key` or `__key__`. Of the column file_name, as Hugging Face's
            metadata files have it, the extension is left out. For shards the key alone.
        missing: a sample without a companion is an "error" of that sample (MissingFieldError, or NotFoundError without the
            shard), as on_error says; "skip" leaves it out, "none" gives it without the fields. Both are counted, for shards.
        fields: patterns of the fields, or columns, to add, "txt;seg.*"; empty: all.

    A column of a table becomes a field of bytes, as a file KEY.COLUMN would be: texts in UTF-8, numbers as texts, lists and
    objects as JSON, nothing for null. JSON lines become one field, `json`, with the whole line, unless `fields` names columns
    of them. A table is read once, when the loader begins, and stays in memory: its content, and about 300 bytes a row.

    Raises UsageError for arguments that make no sense. A table with a key twice is a DuplicateFieldError, one that cannot be
    understood a BadFieldError, where the loader begins; both name the row.
    """

    def __init__(self, companion: Companion, on: str = "key", missing: str = "error", fields: str = "") -> None:
        if missing not in ("error", "skip", "none"):
            raise errors.usage(f"missing is {missing!r}", "give 'error', 'skip' or 'none'")
        self.companion: Union[str, Mapping[str, Fields]] = \
            companion if isinstance(companion, Mapping) else os.fspath(companion)
        self.on, self.missing, self.fields = on, missing, fields
        self._table: Optional[_core.Table] = None
        text = self.companion
        if isinstance(text, str) and "{}" not in text and _ending(text) is None:
            raise errors.usage(f"join({text!r})", "name shards with {} for the name of the main shard, 'captions/{}.tar', or a "
                               f"table: {', '.join(_ENDINGS)}")
        if not self._is_table() and on != "key":
            raise errors.usage(f"join({text!r}, on={on!r})", "shards are joined by the key of samples: leave out `on`")

    def _is_table(self) -> bool:
        return isinstance(self.companion, Mapping) or "{}" not in self.companion

    def apply(self, spec: _core.Spec) -> None:
        """Adds it to a spec. Reads the table, the first time."""
        if not self._is_table():
            assert isinstance(self.companion, str)
            spec.add_join(self.companion, self.missing, self.fields)
            return
        if self._table is None:
            self._table = self._read()
        spec.add_table(self._table, self.missing)

    def _read(self) -> _core.Table:
        table = _core.Table()
        for number, (key, fields) in enumerate(self._rows(), 1):
            if not table.add(key, list(fields.items())):
                raise errors.make("duplicate_field", f"duplicate_field: row {number} of {self._name()} has the key {key!r}, as one "
                                  "before it; remove one of them")
        return table

    def _name(self) -> str:
        return self.companion if isinstance(self.companion, str) else "the table"

    def _rows(self) -> Iterator[Row]:
        if isinstance(self.companion, Mapping):
            for key, row in self.companion.items():
                yield key, self._chosen(row)
            return
        ending = _ending(self.companion)
        for number, row in enumerate(_lines_of(self.companion, ending or ""), 1):
            try:
                yield self._row(row, ending in _LINES)
            except (ValueError, TypeError, AttributeError) as error:
                raise _bad(f"row {number} of {self.companion}: {error}") from error

    def _row(self, row: Any, is_json: bool) -> Row:
        line = row
        if is_json:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
        column = self.on
        if column not in row and column == "key":
            column = "__key__"
        if column not in row:
            raise ValueError(f"no column '{self.on}', which has the keys, among {', '.join(row)}; name it by on=")
        key = str(row[column])
        if self.on == "file_name":
            folder, slash, name = key.rpartition("/")
            key = folder + slash + name.split(".", 1)[0]
        if is_json and not self.fields:
            return key, {"json": line.encode()}
        return key, self._chosen({k: v for k, v in row.items() if k != column})

    def _chosen(self, row: Mapping[str, Any]) -> dict[str, bytes]:
        patterns = self.fields.split(";") if self.fields else ["*"]
        return {name.lower(): _bytes(value) for name, value in row.items()
                if value is not None and any(fnmatch.fnmatchcase(name.lower(), p) for p in patterns)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def __repr__(self) -> str:
        return f"<millrace.Join of {self._name()!r}>"


def joins_of(joins: Union[None, str, Join, Iterable[Union[str, Join]]]) -> list[Join]:
    """Joins from what an argument `join` takes: one or several, each a Join or what its first argument may be."""
    if joins is None:
        return []
    if isinstance(joins, (str, os.PathLike, Join)):
        joins = [joins]
    return [j if isinstance(j, Join) else Join(j) for j in joins]


def _bad(what: str) -> errors.Error:
    return errors.make("bad_field", f"bad_field: {what}")


def _ending(name: str) -> Optional[str]:
    plain = (name.split("?", 1)[0] if "://" in name else name).lower()
    return next((e for e in _ENDINGS if plain.endswith(e)), None)


def _content(name: str) -> bytes:
    if "://" in name:
        return _core.read_object(name)
    with open(name, "rb") as file:
        return file.read()


def _lines_of(name: str, ending: str) -> Iterator[Any]:
    """Rows of a table: dicts, or the lines of JSON lines."""
    try:
        content = _content(name)
    except OSError as error:
        if isinstance(error, errors.Error):
            raise
        kind = "not_found" if isinstance(error, FileNotFoundError) else "io_failed"
        raise errors.make(kind, f"{kind}: the table {name}: {error.strerror}; check the path") from error
    if ending == ".parquet":
        yield from _rows_of_parquet(name, content)
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad(f"the table {name} is not UTF-8 at byte {error.start}; convert it") from error
    if ending in _LINES:
        yield from (line for line in text.split("\n") if line.strip())
        return
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=_SEPARATED[ending], strict=True)
    try:
        for row in rows:
            if None in row or None in row.values():
                raise _bad(f"line {rows.line_num} of {name} has another number of columns than the first line")
            yield row
    except csv.Error as error:
        raise _bad(f"line {rows.line_num} of {name}: {error}") from error


def _rows_of_parquet(name: str, content: bytes) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as missing:
        raise errors.usage(f"the table {name} needs pyarrow, which is not installed", "pip install pyarrow") from missing
    for batch in pyarrow.parquet.ParquetFile(io.BytesIO(content)).iter_batches():
        yield from batch.to_pylist()


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):  # an image of Hugging Face's datasets
        return bytes(value["bytes"])
    if isinstance(value, (bool, list, dict)):
        return json.dumps(value).encode()
    return str(value).encode()
