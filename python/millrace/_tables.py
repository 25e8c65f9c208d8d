"""Tables as rows: CSV, TSV, JSON lines and Parquet, by path or URL."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import os
import threading
from collections.abc import Iterator
from typing import Any, Optional

from . import errors
from ._spec import content_of, is_url

LINES = (".jsonl", ".ndjson", ".jsonlines")
_SEPARATED = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*LINES, *_SEPARATED, ".parquet")
Columns = list[tuple[str, str]]  # (column, the field that it becomes)


def ending_of(name: str) -> Optional[str]:
    """The ending of a table's name; None: it is not a table."""
    plain = (name.split("?", 1)[0] if "://" in name else name).lower()
    return next((e for e in ENDINGS if plain.endswith(e)), None)


def bad(table: str, what: str, why: BaseException) -> errors.Error:
    """The error of a part of a table that cannot be understood, and the exception that says why."""
    return errors.error("bad_field", f"{what}: {str(why).rstrip('.')}", url=table, hint=getattr(why, "hint", ""))


class BadRow(ValueError):
    """What is wrong with a row, and what to do."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class Chooser:
    """Chooses columns by their names, once for all rows of the same names.

    Args:
        table: for errors; empty: not a file.
        on: the column of the keys, "key" also by the name "__key__"; None: keys are apart.
        fields: patterns; empty: all columns.
    """

    def __init__(self, table: str, on: Optional[str], fields: str) -> None:
        self._table, self._on = table, on
        self._patterns = fields.lower().split(";") if fields else ["*"]
        self._names: Optional[tuple[str, ...]] = None
        self._chosen: tuple[str, Columns] = ("", [])

    def of(self, names: tuple[str, ...]) -> tuple[str, Columns]:
        """The column of the keys, and those that become fields. Raises BadRow, and DuplicateFieldError for two of one field."""
        if names != self._names:
            self._chosen, self._names = self._choose(names), names
        return self._chosen

    def _choose(self, names: tuple[str, ...]) -> tuple[str, Columns]:
        key = self.key_of(names)
        columns: dict[str, str] = {}  # by field
        for name in names:
            if not isinstance(name, str):
                raise ValueError(f"the column {name!r} is not a text")
            field = name.lower()
            if (key and name == key) or not any(fnmatch.fnmatchcase(field, p) for p in self._patterns):
                continue
            field.encode()  # refuses halves of characters
            if field in columns:
                raise self._twice(columns[field], name, f"become the field '{field}'")
            columns[field] = name
        return key, [(name, field) for field, name in columns.items()]

    def key_of(self, names: tuple[str, ...]) -> str:
        """The column of the keys; empty: keys are apart."""
        if self._on is None:
            return ""
        key = "__key__" if self._on == "key" and "key" not in names else self._on
        if key not in names:
            raise BadRow(f"no column '{self._on}', which has the keys, among {', '.join(names)}", "name it by on=")
        if names.count(key) > 1:
            raise self._twice(key, key, "have the keys")
        return key

    def _twice(self, one: str, other: str, both: str) -> errors.Error:
        return errors.error("duplicate_field", f"the columns '{one}' and '{other}' both {both}", url=self._table,
                            hint="rename one of them, or leave it out by fields=")


def rows_of(table: str, chooser: Chooser) -> Iterator[Any]:
    """The rows of a table: dicts by column, or the lines of JSON lines, which json_of() reads."""
    ending = ending_of(table) or ""
    if ending == ".parquet":
        return _rows_of_parquet(table, chooser)
    try:
        text = content_of(table).decode("utf-8-sig")
    except UnicodeDecodeError as why:
        raise errors.error("bad_field", f"the table is not UTF-8 at byte {why.start}", url=table, hint="convert it") from why
    if ending in LINES:
        return (line.rstrip("\r") for line in text.split("\n") if line.strip())
    return _rows_of_csv(table, text, _SEPARATED[ending], chooser)


def json_of(line: str) -> dict[str, Any]:
    """The object of a line of JSON lines."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


# A handler of a signal may read a table in the middle of a row, and a forked child has no thread that would release it.
_limit = threading.RLock()


def _renew_limit() -> None:
    global _limit
    _limit = threading.RLock()


os.register_at_fork(after_in_child=_renew_limit)


def _next_of(rows: Any, most: int) -> Optional[list[str]]:
    """The next row of a csv.reader, whose fields may have so many characters; None: the end. The limit of the module csv, which
    is that of the process, is as before when this returns."""
    with _limit:
        before = csv.field_size_limit()
        csv.field_size_limit(max(before, most))
        try:
            return next(rows, None)
        finally:
            csv.field_size_limit(before)


def _rows_of_csv(table: str, text: str, separator: str, chooser: Chooser) -> Iterator[dict[str, str]]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names: Optional[tuple[str, ...]] = None
    try:
        while (row := _next_of(rows, len(text))) is not None:
            if not row:
                continue
            if names is None:
                names = tuple(row)
                _checked(table, names, chooser)
                continue
            if len(row) != len(names):
                raise errors.error("bad_field", f"line {rows.line_num} has {len(row)} columns, and the first line {len(names)}", url=table,
                                   hint="quote fields that have the separator in them")
            yield dict(zip(names, row))
        if names is None:
            raise errors.error("bad_field", "the table is empty: it has no line with the names of columns", url=table,
                               hint="write one, even for a table without rows")
    except csv.Error as why:
        raise bad(table, f"line {rows.line_num}", why) from why


def _checked(table: str, names: tuple[str, ...], chooser: Chooser) -> list[str]:
    """The columns that are needed of these."""
    try:
        key, columns = chooser.of(names)
    except errors.Error:
        raise
    except ValueError as why:
        raise errors.error("bad_field", str(why), url=table, hint=getattr(why, "hint", "")) from why
    return [key, *(name for name, _ in columns)]


def _rows_of_parquet(table: str, chooser: Chooser) -> Iterator[dict[str, Any]]:
    """A local file is read by blocks, and of each the columns that are needed."""
    try:
        import pyarrow.parquet
    except ImportError as missing:
        raise errors.usage(f"the table {errors.redacted(table)} needs pyarrow, which is not installed", "pip install pyarrow") from missing
    source = pyarrow.BufferReader(content_of(table)) if is_url(table) else table
    try:
        with pyarrow.parquet.ParquetFile(source, buffer_size=2**20) as file:
            needed = _checked(table, tuple(file.schema_arrow.names), chooser)
            for batch in file.iter_batches(batch_size=4096, columns=needed, use_threads=False):
                yield from batch.to_pylist()
    except (errors.Error, MemoryError):
        raise
    except Exception as why:  # pyarrow has exceptions of many kinds for a damaged file
        if isinstance(why, OSError) and why.errno:
            raise errors.from_os(why, table) from why
        raise bad(table, "pyarrow cannot read the table", why) from why


_GIVE_A_KEY = "give it a key, or remove the row"


def key_of(value: Any, is_file_name: bool) -> str:
    """A key as a text. Raises ValueError for a null, and for what no sample has as its key."""
    if value is None or (isinstance(value, float) and value != value):
        raise BadRow("its key is null", _GIVE_A_KEY)
    key = value.decode() if isinstance(value, bytes) else value
    if isinstance(key, float) and key.is_integer():
        key = int(key)  # as pandas has numbers beside nulls
    if isinstance(key, bool) or not isinstance(key, (str, int)) and not hasattr(key, "__index__"):
        raise BadRow(f"its key is a {type(key).__name__}", "give keys as texts")
    key = str(key)
    if is_file_name:
        folder, slash, name = key.rpartition("/")
        key = folder + slash + name.split(".", 1)[0]
    if not key:
        raise BadRow("its key is empty", _GIVE_A_KEY)
    key.encode()  # refuses halves of characters
    return key


def bytes_of(value: Any) -> bytes:
    """The content of a field."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if hasattr(value, "tolist"):  # an array or number of numpy
        value = value.tolist()
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):  # an image of Hugging Face's datasets
        return bytes(value["bytes"])
    if isinstance(value, (bool, list, tuple, dict)):
        return json.dumps(value, allow_nan=False).encode()
    return str(value).encode()
