"""Rows as JSON in plain ASCII, for sinks of rows that could not be processed or stored.

Every target takes such texts.  Values outside of Python's ranges are written as Arrow writes them.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def json_rows(rows: pa.RecordBatch | pa.Table, names: Iterable[str]) -> list[str]:
    """Return each row as a JSON object of the columns `names`."""
    return json_objects(json_columns(rows, names), rows.num_rows)


def json_columns(rows: pa.RecordBatch | pa.Table, names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the columns `names` as values of JSON."""
    return {name: [json_value(value) for value in rows.column(name)] for name in names}


def json_objects(columns: Mapping[str, Sequence[Any]], count: int) -> list[str]:
    """Return `count` rows, given by column as values of JSON, as JSON objects."""
    names = list(columns)
    if not names:
        return ["{}"] * count
    return [
        json.dumps(dict(zip(names, values, strict=True)), default=str)
        for values in zip(*columns.values(), strict=True)
    ]


def json_value(value: pa.Scalar) -> Any:
    """Return a value as a type of JSON."""
    if not value.is_valid:
        return None
    try:
        plain = value.as_py()
    except UnicodeDecodeError:
        return value.cast(pa.binary()).as_py().decode("utf-8", "backslashreplace")
    except (ValueError, OverflowError):  # a date outside of Python's calendar
        return str(value.cast(pa.string()).as_py())
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)
    if isinstance(plain, bytes):
        return plain.hex()
    return plain


def ascii_text(text: str) -> str:
    """Return text with all other characters than ASCII escaped."""
    return text.encode("ascii", "backslashreplace").decode()
