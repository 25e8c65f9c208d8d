"""Join: fields from other shards, or from a table, by the keys of samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

from . import _core, errors
from ._numbers import one_of, path, patterns, text, utf8
from ._tables import ENDINGS, LINES, Chooser, Columns, bad, bytes_of, ending_of, json_of, key_of, rows_of

Fields = Mapping[str, Union[bytes, str]]
Companion = Union[str, "os.PathLike[str]", Mapping[str, Fields]]
Row = tuple[str, list[tuple[str, bytes]]]


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
            shard), as on_error says; "skip" leaves it out, "none" gives it without the fields. Both are counted (skipped()).
        fields: patterns of the fields, or columns, to add, "txt;seg.*"; empty: all. Upper case is as lower case. Of shards they are
            needed where `samples(fields=...)` chooses fields of the main shard.

    A column of a table becomes a field of bytes, as a file KEY.COLUMN would be: texts in UTF-8, numbers as texts, lists and
    objects as JSON, nothing for null. JSON lines become one field, `json`, with the whole line, unless `fields` names columns
    of them. A table is read once for a Join, when its first loader begins, and stays in memory: its content, and about
    300 bytes a row; while it is read, several times that.

    Raises UsageError for arguments that make no sense; and where the loader begins, DuplicateFieldError for a key twice, or two
    columns that become one field ("A" and "a"), and BadFieldError for a table that cannot be understood, such as a row whose key
    is null. They name the file, and the row or the columns.
    """

    def __init__(self, companion: Companion, on: str = "key", missing: str = "error", fields: str = "") -> None:
        one_of("missing", missing, ("error", "skip", "none"))
        self.companion: Union[str, Mapping[str, Fields]] = \
            companion if isinstance(companion, Mapping) else path("companion", companion)
        self.on, self.missing, self.fields = text("on", on), missing, patterns("fields", fields)
        self._table: Optional[_core.Table] = None
        self._added: dict[str, None] = {}  # the fields of the table, once it is read
        name = self.companion
        if isinstance(name, str) and "{}" not in name and ending_of(name) is None:
            raise errors.usage(f"join({errors.shown(name)})", "name shards with {} for the name of the main shard, "
                               f"'captions/{{}}.tar', or a table: {', '.join(ENDINGS)}")
        if isinstance(name, str) and not self.is_table():
            utf8("companion", name)
        if not self.is_table() and on != "key":
            raise errors.usage(f"join({errors.shown(name)}, on={on!r})",
                               "shards are joined by the key of samples: leave out `on`")

    def is_table(self) -> bool:
        """Whether it is a table, rather than shards."""
        return isinstance(self.companion, Mapping) or "{}" not in self.companion

    def apply(self, spec: _core.Spec) -> None:
        """Adds it to a spec. Reads the table, the first time."""
        if not self.is_table():
            assert isinstance(self.companion, str)
            spec.add_join(self.companion, self.missing, self.fields)
            return
        if self._table is None:
            self._table = self._read()
        spec.add_table(self._table, self.missing)

    def patterns(self) -> Optional[str]:
        """Of the fields that it adds; of a table known once it was applied. None: not known, they may be any."""
        if self.is_table():
            # A ';' would end the pattern, and a '?' is any character.
            return ";".join(field.replace(";", "?") for field in self._added)
        return self.fields if self.fields.strip("*;") else None

    def _read(self) -> _core.Table:
        table, name = _core.Table(), self.companion if isinstance(self.companion, str) else ""
        chooser = Chooser(name, self.on if name else None, self.fields)
        make: Callable[[Chooser, Any], Row]
        rows: Iterable[Any]
        if isinstance(self.companion, Mapping):
            make, rows = self._row_of_mapping, self.companion.items()
        else:
            make, rows = (self._row_of_json if ending_of(name) in LINES else self._row), rows_of(name, chooser)
        for number, row in enumerate(rows, 1):
            place = f"row {number}" if name else f"row {number} of the table"
            try:
                key, fields = make(chooser, row)
            except errors.Error:
                raise
            except (ValueError, TypeError, RecursionError) as why:
                raise bad(name, place, why) from why
            if not table.add(key, fields):
                raise errors.error("duplicate_field", f"{place} has the key of one before it", url=name, key=key,
                                   hint="remove one of them")
            self._added.update(dict.fromkeys(field for field, _ in fields))
        return table

    def _row_of_mapping(self, chooser: Chooser, item: tuple[Any, Any]) -> Row:
        key, row = item
        if not isinstance(row, Mapping):
            raise TypeError(f"its fields are {row!r}, not a dict")
        return key_of(key, False), _fields_of(row, chooser.of(tuple(row))[1])

    def _row(self, chooser: Chooser, row: dict[str, Any]) -> Row:
        column, columns = chooser.of(tuple(row))
        return key_of(row[column], self.on == "file_name"), _fields_of(row, columns)

    def _row_of_json(self, chooser: Chooser, line: str) -> Row:
        row = json_of(line)
        if self.fields:
            return self._row(chooser, row)
        return key_of(row[chooser.key_of(tuple(row))], self.on == "file_name"), [("json", line.encode())]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None, "_added": {}}

    def __repr__(self) -> str:
        return f"<millrace.Join of {errors.redacted(self.companion) if isinstance(self.companion, str) else 'a table'!r}>"


def _fields_of(row: Mapping[str, Any], columns: Columns) -> list[tuple[str, bytes]]:
    fields = []
    for column, field in columns:
        if row[column] is None:
            continue
        try:
            fields.append((field, bytes_of(row[column])))
        except (TypeError, ValueError, RecursionError) as why:
            raise ValueError(f"column '{column}': {why}") from why
    return fields


def joins_of(joins: Union[None, Companion, Join, Iterable[Union[str, Join]]]) -> list[Join]:
    """Joins from what an argument `join` takes: one or several, each a Join or what its first argument may be."""
    if joins is None:
        return []
    if isinstance(joins, Join):
        return [joins]
    if isinstance(joins, (str, os.PathLike, Mapping)):
        return [Join(joins)]
    if isinstance(joins, bytes) or not isinstance(joins, Iterable):
        raise errors.usage(f"join is {errors.shown(joins)}", "give 'captions/{}.tar', mr.Join(...), or a list of these")
    return [j if isinstance(j, Join) else Join(j) for j in joins]
