"""Tables with plain keys, and small batches for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.state.schema import StateSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.state.table import KeyGroupTable

COUNTS = StateSchema(
    pa.schema([("key", pa.string())]),
    pa.schema([("count", pa.int64()), ("total", pa.float64())]),
)
BLOBS = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("state", pa.binary())]))


def hashes_of(keys: Iterable[Any]) -> npt.NDArray[np.int64]:
    """Well-spread hashes that are the same in every process."""
    text = [repr(key).encode() for key in keys]
    sums = [int.from_bytes(t[:32], "little") * 0x9E3779B97F4A7C15 + len(t) for t in text]
    mixed = np.array([(s ^ (s >> 31)) & (2**64 - 1) for s in sums], np.uint64)
    return mixed.view(np.int64)


def batch(schema: pa.Schema, *columns: Any) -> pa.RecordBatch:
    """Record batch of `schema` from one list a column."""
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def put(
    table: KeyGroupTable,
    epoch: int,
    state: Mapping[Any, tuple[Any, ...]],
    removed: Iterable[Any] = (),
    hashes: npt.NDArray[np.int64] | None = None,
) -> None:
    """Apply new states, and removals, of keys of one column."""
    removed = list(removed)
    keys = [*state, *removed]
    blank = (None,) * len(table.schema.values)
    rows = [*state.values(), *[blank] * len(removed)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(table.schema.values)
    table.apply(
        epoch,
        hashes_of(keys) if hashes is None else hashes,
        batch(table.schema.keys, keys),
        batch(table.schema.values, *columns),
        np.arange(len(keys)) >= len(state) if removed else None,
    )


def contents(table: KeyGroupTable) -> dict[Any, tuple[Any, ...]]:
    """Everything in a table of one key column, by key."""
    _, keys, values = table.scan()
    columns = [column.to_pylist() for column in values.columns]
    rows = list(zip(*columns, strict=True)) if columns else [()] * keys.num_rows
    found = dict(zip(keys.column(0).to_pylist(), rows, strict=True))
    assert len(found) == keys.num_rows == table.num_keys
    return found


def look_up(table: KeyGroupTable, keys: list[Any]) -> list[tuple[Any, ...] | None]:
    """State of each key as `find` and `read` give it."""
    rows = table.find(hashes_of(keys), batch(table.schema.keys, keys))
    columns = [column.to_pylist() for column in table.read(rows).columns]
    states = list(zip(*columns, strict=True))
    return [state if row >= 0 else None for row, state in zip(rows, states, strict=True)]
