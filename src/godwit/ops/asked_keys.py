"""Keys and prefixes of keys from callers, matched with entries of a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.groups import group_rows
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.model.errors import InvalidInputError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class AskedKeys:
    """Key columns of a state, for requested keys; `what`: the operator's name."""

    def __init__(self, schema: pa.Schema, what: str) -> None:
        self.schema, self._what = schema, what

    def table(self, keys: Sequence[Any]) -> pa.Table:
        """Return keys as a table of the key columns."""
        names = self.schema.names
        rows = []
        for key in keys:
            values = key if isinstance(key, tuple) else (key,)
            if isinstance(key, Mapping):
                values = tuple(key[name] for name in names) if key.keys() == {*names} else ()
            if len(values) != len(names):
                raise InvalidInputError(
                    f"The key {key!r} does not fit the state of {self._what}, whose key columns "
                    f"are {listing(names)}.",
                    remedy="Pass a tuple with one value for each, in this order, or a dict.",
                )
            rows.append(values)
        columns = [
            self.array(column, field)
            for column, field in zip(zip(*rows, strict=True), self.schema, strict=True)
        ]
        return pa.Table.from_arrays(columns or [[]] * len(names), schema=self.schema)

    def array(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        """Return values of a key column as an array; raise if they are of another type."""
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                f"A key of the state of {self._what} has a value that column {field.name!r}, of "
                f"type {field.type}, cannot hold: {error}.",
                remedy="Pass values of the key's types.",
            ) from error

    def check_scan(self, prefix: Any, limit: int | None) -> tuple[Any, ...]:
        """Return the values of a prefix; raise if it does not fit, or the limit is negative."""
        values = prefix if isinstance(prefix, tuple) else (prefix,)
        if len(values) > len(self.schema):
            raise InvalidInputError(
                f"The prefix {prefix!r} has more values than the state of {self._what} has key "
                "columns.",
                remedy=f"Its key columns are {listing(self.schema.names)}.",
            )
        if limit is not None and limit < 0:
            raise InvalidInputError(
                f"A scan of the state of {self._what} has the limit {limit}.",
                remedy="Pass 0 or more, or None for all rows.",
            )
        for place, value in enumerate(values[:-1]):
            self.array([value], self.schema.field(place))
        return values

    def begin_with(self, batch: pa.RecordBatch, values: tuple[Any, ...]) -> pa.RecordBatch:
        """Return the rows whose first key columns have these values, the last one as a prefix."""
        for position, value in enumerate(values):
            field = self.schema.field(position)
            is_prefix = position == len(values) - 1 and isinstance(value, str | bytes)
            if is_prefix and _takes_prefix(field.type, value):
                mask = pc.starts_with(batch.column(position), value)
            else:
                schema = pa.schema([field])
                wanted_value = pa.RecordBatch.from_arrays(
                    [self.array([value], field)], schema=schema
                )
                stored_column = pa.RecordBatch.from_arrays([batch.column(position)], schema=schema)
                mask = pa.array(is_among(stored_column, canonical_keys(wanted_value)))
            batch = batch.filter(mask)
        return batch


def groups_of_keys(*batches: pa.RecordBatch) -> list[npt.NDArray[np.int64]]:
    """Return the number of the key of each row, for batches of canonical keys."""
    every = pa.concat_batches([batch.cast(batches[0].schema) for batch in batches])
    groups = group_rows(hash_keys(every), every, 1)
    ends = np.cumsum([batch.num_rows for batch in batches])[:-1]
    return np.split(np.asarray(groups.of_row, np.int64), ends)


def is_among(rows: pa.RecordBatch, keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are among keys; both have canonical floats."""
    of_rows, of_keys = groups_of_keys(rows, keys)
    return np.isin(of_rows, of_keys)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch."""
    batches = table.combine_chunks().to_batches()
    if batches:
        return pa.concat_batches(batches)
    return pa.RecordBatch.from_arrays(
        [pa.array([], f.type) for f in table.schema], schema=table.schema
    )


def _takes_prefix(dtype: pa.DataType, value: str | bytes) -> bool:
    """Return whether values of a type can begin with a value."""
    types = pa.types
    if isinstance(value, str):
        return bool(types.is_string(dtype) or types.is_large_string(dtype))
    return bool(types.is_binary(dtype) or types.is_large_binary(dtype))
