"""Key groups with plain keys, and small batches for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.store.changes import Changes, StateRows
from godwit.store.columns import StateSchema
from godwit.store.local_store import LocalState
from godwit.store.table import StateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from godwit.store.columns import Rows

COUNTS = StateSchema(
    pa.schema([("key", pa.string())]),
    pa.schema([("count", pa.int64()), ("total", pa.float64())]),
)
BLOBS = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("state", pa.binary())]))
NUM_KEY_GROUPS = 16


class OneKeyGroup:
    """A table as one of its key groups sees it."""

    def __init__(
        self,
        path: Path,
        schema: StateSchema,
        lock: Callable[[], AbstractContextManager[None]],
        key_group: int = 5,
    ) -> None:
        self.schema = schema
        self.table = StateTable(path, schema, NUM_KEY_GROUPS, lock)
        self._only = np.array([key_group])
        self.refresh()

    @property
    def version(self) -> int:
        return int(self.table.versions(self._only)[0])

    @property
    def num_keys(self) -> int:
        return int(self.table._image.num_keys[self._only][0])

    @property
    def state_bytes(self) -> int:
        return int(self.table.state_bytes(self._only)[0])

    def refresh(self) -> None:
        self.table.refresh(self._only)

    def find(self, keys: pa.RecordBatch) -> Rows:
        return self.table.find(keys)

    def read(self, rows: Rows) -> pa.RecordBatch:
        return self.table.read(rows)

    def scan(self) -> tuple[npt.NDArray[np.int64], pa.RecordBatch, pa.RecordBatch]:
        rows = self.table.scan(self._only).rows
        return rows.hashes, rows.keys, rows.values

    def apply(
        self,
        epoch: int,
        hashes: npt.NDArray[np.int64],
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
        removed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        before = np.array([self.version])
        self.table.apply(self._changes(epoch, hashes, keys, values, removed), before)

    def replace(
        self,
        epoch: int,
        hashes: npt.NDArray[np.int64],
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
    ) -> None:
        self.table.replace(self._changes(epoch, hashes, keys, values, None))

    def drop(self) -> None:
        self.table.drop(self._only)

    def _changes(
        self,
        epoch: int,
        hashes: npt.NDArray[np.int64],
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
        removed: npt.NDArray[np.bool_] | None,
    ) -> Changes:
        return Changes(
            key_groups=self._only,
            ends=np.array([len(hashes)]),
            epochs=np.array([epoch]),
            rows=StateRows(hashes=hashes, keys=keys, values=values, removed=removed),
        )


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
    table: OneKeyGroup,
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


def contents(table: OneKeyGroup) -> dict[Any, tuple[Any, ...]]:
    """Everything in a key group of one key column, by key."""
    _, keys, values = table.scan()
    columns = [column.to_pylist() for column in values.columns]
    rows = list(zip(*columns, strict=True)) if columns else [()] * keys.num_rows
    found = dict(zip(keys.column(0).to_pylist(), rows, strict=True))
    assert len(found) == keys.num_rows == table.num_keys
    return found


def look_up(table: OneKeyGroup, keys: list[Any]) -> list[tuple[Any, ...] | None]:
    """State of each key as `find` and `read` give it."""
    rows = table.find(batch(table.schema.keys, keys))
    columns = [column.to_pylist() for column in table.read(rows).columns]
    states = list(zip(*columns, strict=True))
    return [state if row >= 0 else None for row, state in zip(rows, states, strict=True)]


# Many key groups.


def state_in(root: Path | str, operator: str = "op", schema: StateSchema = COUNTS) -> LocalState:
    """Open an operator's state as another process would."""
    return LocalState(root, operator, schema, NUM_KEY_GROUPS)


def group_of(key: Any) -> int:
    """Key group of a key."""
    return int(hashes_of([key])[0] % NUM_KEY_GROUPS)


def change(
    state: LocalState,
    epoch: int,
    changed: Mapping[Any, tuple[Any, ...]],
    removed: Iterable[Any] = (),
    homes: npt.NDArray[np.int32] | None = None,
    *,
    look: bool = True,
) -> None:
    """Apply new states, and removals, of keys of one column to the key groups that they are in."""
    blank = (None,) * len(state.schema.values)
    entries = [(key, row, False) for key, row in changed.items()]
    entries += [(key, blank, True) for key in removed]
    entries.sort(key=lambda entry: group_of(entry[0]))
    keys = [key for key, _, _ in entries]
    columns = list(zip(*(row for _, row, _ in entries), strict=True))
    groups, counts = np.unique([group_of(key) for key in keys], return_counts=True)
    if look:
        state.refresh(groups)
    state.apply(
        Changes(
            key_groups=groups,
            ends=np.cumsum(counts),
            epochs=np.full(len(groups), epoch),
            rows=StateRows(
                hashes=hashes_of(keys),
                keys=batch(state.schema.keys, keys),
                values=batch(state.schema.values, *columns),
                removed=np.array([gone for _, _, gone in entries], np.bool_),
            ),
        ),
        np.zeros(NUM_KEY_GROUPS, np.int32) if homes is None else homes,
    )


def held(
    state: LocalState, key_groups: Iterable[int] | None = None, *, look: bool = True
) -> dict[Any, tuple[Any, ...]]:
    """Everything in some key groups, by key."""
    chosen = np.arange(NUM_KEY_GROUPS) if key_groups is None else np.array(list(key_groups))
    if look:
        state.refresh(chosen)
    found = state.scan(chosen)
    columns = [column.to_pylist() for column in found.rows.values.columns]
    keys = found.rows.keys.column(0).to_pylist()
    groups = np.repeat(found.key_groups, np.diff(found.ends, prepend=0)).tolist()
    assert groups == [group_of(key) for key in keys]
    assert found.rows.hashes.tolist() == hashes_of(keys).tolist()
    by_key = dict(zip(keys, zip(*columns, strict=True), strict=True))
    assert len(by_key) == len(keys)
    return by_key


def look_up_in(
    state: LocalState, keys: list[Any], *, look: bool = True
) -> list[tuple[Any, ...] | None]:
    """State of each key as `prior` gives it."""
    groups = np.array([group_of(key) for key in keys])
    if look:
        state.refresh(np.unique(groups))
    known, values = state.look_up(batch(state.schema.keys, keys), groups)
    rows = zip(*(column.to_pylist() for column in values.columns), strict=True)
    return [row if is_known else None for row, is_known in zip(rows, known, strict=True)]
