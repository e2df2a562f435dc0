"""The Delta table that results go to: whether rows fit it, and whether plain files do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from deltalake import Schema

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from godwit.model.errors import SinkError

__all__ = ["as_delta_stores", "check_table", "error_text", "takes_plain_files"]

_PLAIN_FEATURES: Final = {"appendOnly", "invariants", "timestampNtz", "checkConstraints"}
"""What a table may ask of writers whose rows are data files that a commit adds."""

_LAST_PLAIN_VERSION: Final = 3  # of those that name no features: later ones compute columns
_PLAIN_PARTITIONS: Final = {"string", "byte", "short", "integer", "long", "date", "boolean"}


class _MakeError(Protocol):
    def __call__(self, what: str, remedy: str) -> SinkError: ...


def check_table(table: DeltaTable, schema: pa.Schema, error: _MakeError) -> None:
    """Refuse a table that rows do not fit, or that would refuse some of them.

    Raises
    ------
    SinkError
        Made by `error`.
    """
    _check_columns(table, schema, error)
    _check_constraints(table, error)


def _check_columns(table: DeltaTable, schema: pa.Schema, error: _MakeError) -> None:
    found = {field.name: field.type for field in table.schema().fields}
    wanted = {field.name: field.type for field in Schema.from_arrow(schema).fields}
    differences = [
        f"{name} ({_type_name(wanted.get(name))} in the rows, {_type_name(found.get(name))} "
        f"in the table)"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        raise error(
            f"the table has other columns: {', '.join(differences)}",
            "Use another path, or cast and rename the columns before the sink.",
        )


def _check_constraints(table: DeltaTable, error: _MakeError) -> None:
    # What it refused would have been committed already.
    names = [
        name.removeprefix("delta.constraints.")
        for name in table.metadata().configuration
        if name.startswith("delta.constraints.")
    ]
    names += [f.name for f in table.schema().fields if "delta.invariants" in f.metadata]
    if names:
        raise error(
            f"the table has constraints ({', '.join(sorted(names))})",
            "Drop them (ALTER TABLE ... DROP CONSTRAINT ...) and filter in a map before the "
            "sink, or write to another table.",
        )


def takes_plain_files(table: DeltaTable) -> bool:
    """Whether a file's columns, and partition values in text, are all that the table asks for."""
    protocol = table.protocol()
    if protocol.min_writer_version > _LAST_PLAIN_VERSION and not protocol.writer_features:
        return False
    features = set(protocol.writer_features or ())
    types = [
        str(getattr(field.type, "type", ""))
        for field in table.schema().fields
        if field.name in table.metadata().partition_columns
    ]
    return features <= _PLAIN_FEATURES and _PLAIN_PARTITIONS.issuperset(types)


def as_delta_stores(dtype: pa.DataType) -> pa.DataType:
    """Return the narrowest type of Delta Lake (it has no unsigned ones) that holds `dtype`."""
    return {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
    }.get(dtype, dtype)


def _type_name(dtype: object) -> str:
    if dtype is None:
        return "absent"
    return str(getattr(dtype, "type", dtype))


def error_text(error: Exception) -> str:
    r"""Text of the library's error on one line, without colours: the cause is on the last one.

    Examples
    --------
    >>> error_text(OSError("Generic error\n  \x1b[31m\u21b3\x1b[0m no such bucket\n"))
    'Generic error: no such bucket'
    """
    lines = re.sub(r"\x1b\[[0-9;]*m|\u21b3", "", str(error)).splitlines()
    return ": ".join(line.strip() for line in lines if line.strip()) or type(error).__name__
