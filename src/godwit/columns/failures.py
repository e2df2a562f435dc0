"""Users' values that cannot be processed: errors that name whose they are, and such rows as JSON.

Arrow raises where a value does not fit, with words of its own.  Every step of an epoch that
computes on rows runs within `naming`, so a user reads which operator, result or sink it was.

Sinks of rows that could not be processed or stored get them as JSON in plain ASCII, which every
target takes.  Values outside of Python's ranges are written as Arrow writes them.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


FAILURES: Final = (pa.ArrowException, ArithmeticError, UnicodeError)
"""Errors of Arrow and Python on a value that they cannot compute with."""


@contextmanager
def naming(what: str, **context: str) -> Iterator[None]:
    """Context in which failures on values become an `EpochFailedError` about `what`.

    `context`: fields of the error.
    """
    try:
        yield
    except MemoryError:
        raise
    except FAILURES as error:
        raise failed(what, error, **context) from error


def failed(what: str, error: BaseException, *, row: str = "", **context: str) -> EpochFailedError:
    """Return the error that `what` cannot compute with a value; `row`: the values, as text."""
    return EpochFailedError(
        f"{what} cannot compute with a value of this epoch"
        f"{f' ({row})' if row else ''}: {str(error).rstrip('.')}.",
        remedy="Leave such rows out in an earlier map, or cast the column to a type that has room.",
        error=type(error).__name__,
        **context,
    )


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
