"""Rows that a user's function emitted, as columns; and errors for rows that do not fit.

The whole is converted column by column.  Only when that fails are rows looked at one by one, to
name the key and the column.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from godwit.columns.python_values import UTC, has_instants, in_zone
from godwit.columns.types import columns_text
from godwit.model.errors import UserFunctionError
from godwit.model.naming import did_you_mean, listing
from godwit.model.signatures import awaiting_hint
from godwit.values.checks import short_repr
from godwit.values.records import MisfitError, hint_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.operators.operator import KeyedOperator
    from godwit.values.records import RowClass


Convert: TypeAlias = (
    "Callable[[KeyedOperator, list[Any], Sequence[int], Sequence[Any]], pa.RecordBatch]"
)


def emitted_batch(
    operator: KeyedOperator, rows: list[Any], ends: Sequence[int], keys: Sequence[tuple[Any, ...]]
) -> pa.RecordBatch:
    """Convert rows that a user's function emitted; `ends`: number of rows after each key."""
    return Emitted(
        rows=rows,
        ends=list(ends),
        keys=list(keys),
        schema=operator.output,
        operator=operator.name,
        zone=operator.zone,
        row_class=operator.output_class,
    ).to_batch()


def emitted_or_undone(
    operator: KeyedOperator,
    rows: list[Any],
    ends: list[int],
    keys: list[tuple[Any, ...]],
    undo: Callable[[int, UserFunctionError], None] | None,
    *,
    convert: Convert = emitted_batch,
) -> pa.RecordBatch:
    """Convert emitted rows by `convert`; leave out keys of which some do not fit.

    `undo`: called with the number of such a key, and the error about it; ``None``: raise that.
    """
    try:
        return convert(operator, rows, ends, keys)
    except UserFunctionError:
        if undo is None:
            raise
        batches = []
        for group, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
            key_rows = rows[begin:end]
            try:
                batches.append(convert(operator, key_rows, [len(key_rows)], [keys[group]]))
            except UserFunctionError as error:
                undo(group, error)
        return pa.concat_batches([pa.RecordBatch.from_pylist([], operator.output), *batches])


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """Rows in the order of emission."""

    rows: list[Any]  # tuples, lists or dicts
    ends: list[int]  # how many rows there were after each key
    keys: list[tuple[Any, ...]]
    schema: pa.Schema  # columns that the rows should have
    operator: str
    zone: str = UTC  # of datetimes that have none, in columns of instants
    row_class: RowClass | None = None  # class that the rows should be instances of

    def to_batch(self) -> pa.RecordBatch:
        """Convert the emitted rows to columns; refuse rows and values that do not fit."""
        if not self.rows:
            return pa.RecordBatch.from_pylist([], self.schema)
        if self.row_class is not None:
            batch = self._to_columns(self._fields_of_instances(self.row_class))
            self._refuse_nulls(self.row_class, batch)
            return batch
        rows = self.rows
        width = len(self.schema)
        plain = all(issubclass(kind, (tuple, list)) for kind in set(map(type, rows)))
        if not plain or set(map(len, rows)) != {width}:
            rows = [self._as_tuple(index, row) for index, row in enumerate(rows)]
        return self._to_columns(list(zip(*rows, strict=True)) if width else [])

    def _to_columns(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Convert values, given by column, to a batch of the output's schema."""
        arrays = [
            self._to_column(field, values)
            for field, values in zip(self.schema, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _fields_of_instances(self, row_class: RowClass) -> Sequence[Sequence[Any]]:
        """Return the values of every field of emitted instances; refuse rows of another class."""
        name = row_class.cls.__qualname__
        other = row_class.first_other(self.rows)
        if other is not None:
            row = self.rows[other]
            what = f"{short_repr(row)}, of type {type(row).__name__}, but output={name}"
            remedy = f"Return a list of instances of {name}, or yield them one by one"
            raise self._emitted_row_error(other, what, awaiting_hint(row), remedy=remedy)
        try:
            return row_class.columns(self.rows)
        except MisfitError as error:
            value, hint = (
                getattr(self.rows[error.index], error.column),
                row_class.field(error.column).hint,
            )
            raise self._emitted_row_error(
                error.index,
                f"{short_repr(value)} in {name}.{error.column}, which is {hint_text(hint)} "
                f"({error.reason})",
                awaiting_hint(value),
                column=error.column,
            ) from error

    def _refuse_nulls(self, row_class: RowClass, batch: pa.RecordBatch) -> None:
        """Refuse nulls in fields, and in lists in fields, that do not admit them."""
        for field, column in zip(row_class.fields, batch.columns, strict=True):
            index = field.first_null(column)
            if index is None:
                continue
            value = getattr(self.rows[index], field.name)
            raise self._emitted_row_error(
                index,
                f"{short_repr(value)} in {row_class.cls.__qualname__}.{field.name}, which is "
                f"{hint_text(field.hint)}" + ("" if value is None else ": an element is None"),
                remedy="Give it a value, or declare the field as "
                f"{field.admitting_null(column[index].as_py())}",
                column=field.name,
            )

    def _as_tuple(self, index: int, row: Any) -> tuple[Any, ...]:
        """Return emitted row `index` as a tuple in the output's order; raise if it has none."""
        names = self.schema.names
        if isinstance(row, dict):
            if row.keys() == set(names):
                return tuple(row[name] for name in names)
            missing = [name for name in names if name not in row]
            unknown = [str(name) for name in row if name not in names]
            if missing:
                what = f"a row without {listing(missing)}"
                hint = did_you_mean(missing[0], unknown) if unknown else ""
            else:
                what, hint = f"a row with {listing(unknown)}, which is not an output column", ""
            raise self._emitted_row_error(index, what, hint)
        if isinstance(row, (tuple, list)):
            if len(row) == len(names):
                return tuple(row)
            raise self._emitted_row_error(index, f"a row of {len(row)} values, {short_repr(row)}")
        raise self._emitted_row_error(
            index,
            f"{short_repr(row)}, of type {type(row).__name__}, instead of a row",
            awaiting_hint(row),
            remedy=f"{_of_whole(row, names)}Return a list of rows, each a tuple or a dict, or "
            "yield them one by one",
        )

    def _to_column(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        """Convert the values of one output column to Arrow; raise for the first that does not fit.

        An error names the key and the value.
        """
        try:
            if self.zone != UTC and has_instants(field.type):
                values = tuple(in_zone(value, field.type, self.zone) for value in values)
            array = pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            index, reason = _first_misfit(field, values, error)
            key = self.keys[bisect.bisect_right(self.ends, index)]
            raise self._emitted_row_error(
                index,
                f"{short_repr(values[index])} in column {field.name!r}, which is {field.type} "
                f"({reason})",
                "The key is a tuple, even with one column: its value is key[0]. "
                if isinstance(values[index], tuple) and values[index] == key and len(key) == 1
                else _hint_at(values[index]),
                column=field.name,
            ) from error
        fraction = _first_fraction(values, field.type)
        if fraction is not None:
            raise self._emitted_row_error(
                fraction,
                f"{short_repr(values[fraction])} in column {field.name!r}, which is {field.type} "
                "and would lose the fraction",
                column=field.name,
            )
        if not field.nullable and array.null_count:
            raise self._emitted_row_error(
                values.index(None),
                f"None in column {field.name!r}, which may not be null",
                column=field.name,
            )
        return array

    def _emitted_row_error(
        self, index: int, what: str, hint: str = "", *, column: str = "", remedy: str = ""
    ) -> UserFunctionError:
        """Return the error about emitted row number `index`; `what`: its fault, as text."""
        key = self.keys[bisect.bisect_right(self.ends, index)]
        if not remedy:
            remedy = "Return a tuple in the order of the output columns, or a dict of them"
            if self.row_class is not None:
                remedy = f"Correct the values given to {self.row_class.cls.__qualname__}"
        return UserFunctionError(
            f"Operator {self.operator!r}: the function emitted, for key {key!r}, {what}.",
            remedy=f"{hint}{remedy}; they are {columns_text(self.schema)}.",
            operator=self.operator,
            key=key,
            column=column,
        )


def _first_misfit(field: pa.Field, values: Sequence[Any], error: Exception) -> tuple[int, str]:
    """Return the position of the first value that does not fit a column, and the reason as text."""
    for index, value in enumerate(values):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as misfit:
            return index, str(misfit)
    return 0, str(error)


def _first_fraction(values: Sequence[Any], dtype: pa.DataType) -> int | None:
    """Return the position of the first value whose fraction Arrow would drop, if any."""
    if not _has_integers(dtype) or set(map(type, values)) <= {int, type(None)}:
        return None
    return next((i for i, value in enumerate(values) if _loses_fraction(value, dtype)), None)


@functools.lru_cache(maxsize=256)
def _has_integers(dtype: pa.DataType) -> bool:
    """Return whether a type is an integer type, or contains one."""
    if pa.types.is_integer(dtype):
        return True
    return any(_has_integers(dtype.field(i).type) for i in range(dtype.num_fields))


def _loses_fraction(value: Any, dtype: pa.DataType) -> bool:
    """Return whether Arrow would truncate a value, or a part of it."""
    if value is None or not _has_integers(dtype):
        return False
    if pa.types.is_integer(dtype):
        return bool(value != int(value))
    if pa.types.is_struct(dtype):
        types = {dtype.field(i).name: dtype.field(i).type for i in range(dtype.num_fields)}
        if not isinstance(value, dict):  # Arrow takes a list of pairs, or a tuple of values
            value = dict(value if isinstance(value, list) else zip(types, value, strict=False))
        return any(_loses_fraction(value.get(name), part) for name, part in types.items())
    if pa.types.is_map(dtype):
        pairs = value.items() if isinstance(value, dict) else value
        return any(
            _loses_fraction(k, dtype.key_type) or _loses_fraction(v, dtype.item_type)
            for k, v in pairs
        )
    return _first_fraction(list(value), dtype.value_type) is not None


def _hint_at(value: Any) -> str:
    """Return advice on a value in a row; empty if there is none."""
    if type(value).__module__.startswith("godwit.") and hasattr(type(value), "value"):
        return "It contains a state: use its .value. "
    return awaiting_hint(value)


def _of_whole(row: Any, names: Sequence[str]) -> str:
    """Return advice for a function that returned something other than rows, such as `row`."""
    if _is_of_table(row):
        return 'For a table, return table.to_pylist(); for a pandas DataFrame, to_dict("records"). '
    if isinstance(row, str) and row in names:
        return (
            "A dict is one row: put it in a list, as in return [{...}]; for a pandas DataFrame, "
            'return frame.to_dict("records"). '
        )
    if row is None:
        return "To emit nothing, return None or yield nothing. "
    values = f"{', '.join(names)}{',' * (len(names) == 1)}"
    return f"One row is a tuple in a list, as in return [({values})]. "


def _is_of_table(row: Any) -> bool:
    """Return whether a value is a column or batch of Arrow's, of which a table consists."""
    return isinstance(row, (pa.ChunkedArray, pa.Array, pa.RecordBatch, pa.Table))
