"""What a function per key sees of an epoch: rows and keys as Python values.

A column becomes a list once for all keys, and only if the function asks for it.
"""

from __future__ import annotations

import collections
import operator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.columns.arrays import mask_of, numpy_type, values_of
from godwit.columns.zones import with_offsets
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Columns", "KeyRows", "rows_as_tuples"]


class KeyRows:
    """The rows of one key in one epoch, in order of arrival.

    ``len(rows)`` is their number; iterating gives a named tuple per row; `column` gives the values
    of one column, which is faster where the function needs few columns.
    """

    __slots__ = ("_columns", "_dropped", "_start", "_stop")

    def __init__(self, columns: Columns, start: int, stop: int) -> None:
        self._columns = columns
        self._start = start
        self._stop = stop
        self._dropped = False

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Any]:
        columns = self._columns
        values = [columns[name][self._start : self._stop] for name in columns.names]
        if not values:
            return iter([columns.row()] * len(self))
        return map(columns.row._make, zip(*values, strict=True))

    def __repr__(self) -> str:
        return f"KeyRows({len(self)} rows of {', '.join(self._columns.names)})"

    def column(self, name: str) -> list[Any]:
        """Values of a column, nulls as ``None``; a new list.

        Raises `KeyError` if there is no such column.
        """
        values: list[Any] = self._columns[name][self._start : self._stop]
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "timers":
            msg = (
                'the operator has no timers: declare them, as in process(..., timers="event", '
                "on_timer=your_function)"
            )
        elif name in self._columns.names:
            msg = (
                f"these are the rows of a key: iterate over them, and take row.{name}, or use "
                f"rows.column({name!r})"
            )
        else:
            msg = f"rows of a key have no {name!r}; columns are {', '.join(self._columns.names)}"
        raise AttributeError(msg)

    def __getitem__(self, index: Any) -> Any:
        msg = "rows of a key have no positions: iterate over them, or take list(rows)[0]"
        if isinstance(index, str):
            msg = f"use rows.column({index!r}) for the values of a column"
        raise TypeError(msg)

    def drop_state(self) -> None:
        """Forget the key's state once the function has returned; its next rows find it new."""
        self._dropped = True


class Columns(dict[str, list[Any]]):
    """Columns of an epoch's rows as Python lists, ordered by key; made when first asked for."""

    def __init__(self, rows: pa.RecordBatch, inputs: pa.Schema, order: Any) -> None:
        super().__init__()
        self.names = inputs.names
        self.row = _row_type(tuple(self.names))
        self._rows = rows
        self._order = order
        self._arrays: dict[str, pa.Array] = {}

    def array(self, name: str) -> pa.Array:
        """Give a column as it came from Arrow, ordered by key."""
        found = self._arrays.get(name)
        if found is None:
            found = self._arrays[name] = self._rows.column(name).take(pa.array(self._order))
        return found

    def __missing__(self, name: str) -> list[Any]:
        if name not in self.names:
            msg = f"There is no column {name!r}; the columns are {', '.join(self.names)}"
            raise KeyError(msg)
        column = self._rows.column(name)
        self[name] = values = _python_values(column.take(pa.array(self._order)))
        return values


def rows_as_tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Rows of a batch as tuples of Python values."""
    return list(zip(*(_python_values(column) for column in batch.columns), strict=True))


def _row_type(names: tuple[str, ...]) -> Any:
    """Named tuple of the columns.

    Names that its fields cannot have, such as ``_id`` or ``class``, become ``_0``, ``_1``, ...
    there, and are attributes beside.
    """
    made = collections.namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    row: Any = made
    if names == row._fields:
        return row
    beside = {
        name: property(operator.itemgetter(i))
        for i, name in enumerate(names)
        if not hasattr(row, name)
    }

    def as_dict(self: Any) -> dict[str, Any]:
        return dict(zip(names, self, strict=True))

    return type("Row", (row,), {"__slots__": (), **beside, "_asdict": as_dict})


def _python_values(column: pa.Array) -> list[Any]:
    dtype = column.type
    if numpy_type(dtype) is None or pa.types.is_temporal(dtype):
        try:
            plain: list[Any] = column.to_pylist()
        except OverflowError as error:
            raise EpochFailedError(
                "A row has a date or moment that Python's datetime cannot hold: before the year 1, "
                "or after 9999.",
                remedy="Leave such rows out in a map, or give another value in their place.",
            ) from error
        return with_offsets(plain, dtype)
    values, mask = values_of(column), mask_of(column)
    if mask is not None:
        values = values.astype(object)
        values[~mask] = None
    listed: list[Any] = values.tolist()
    return listed
