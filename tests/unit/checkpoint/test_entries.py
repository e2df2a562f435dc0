from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from godwit.checkpoint.entries import (
    ColumnsByName,
    EntryLayout,
    Former,
    WaitingLayout,
    pack_entries,
)
from godwit.model.errors import CheckpointMismatchError
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema

# Users may name their columns as we do.
SCHEMA = StateSchema(
    pa.schema({"__godwit_hash": pa.string()}),
    pa.schema({"__godwit_removed": pa.int64(), "n": pa.int64()}),
)
LAYOUT = EntryLayout(name="op/state", schema=SCHEMA)


def entries(*, removed: bool = False) -> StateRows:
    return StateRows(
        hashes=np.array([4, 5]),
        keys=pa.record_batch([pa.array(["a", "b"])], schema=SCHEMA.keys),
        values=pa.record_batch([pa.array([1, 2]), pa.array([3, 4])], schema=SCHEMA.values),
        removed=np.array([True, False]) if removed else None,
    )


@pytest.mark.parametrize("removed", [False, True])
def test_what_was_packed_is_read(removed: bool) -> None:
    rows = LAYOUT.read(pack_entries(entries(removed=removed)), 0)
    assert rows.hashes.tolist() == [4, 5]
    assert (rows.keys, rows.values) == (entries().keys, entries().values)
    assert (rows.removed is None) != removed
    part = LAYOUT.read(pack_entries(entries(removed=removed)), 0, first=1, end=2)
    assert part.values.to_pylist() == [{"__godwit_removed": 2, "n": 4}]


@pytest.mark.parametrize(
    "values",
    [
        pa.schema({"n": pa.int64(), "__godwit_removed": pa.int64()}),  # the order
        pa.schema({"__godwit_removed": pa.int64(), "m": pa.int64()}),  # a name
        pa.schema({"__godwit_removed": pa.int64(), "n": pa.float64()}),  # a type
        pa.schema({"__godwit_removed": pa.int64()}),  # too few
    ],
)
def test_columns_are_compared_by_name_type_and_order(values: pa.Schema) -> None:
    layout = EntryLayout(name="op/state", schema=StateSchema(SCHEMA.keys, values))
    with pytest.raises(CheckpointMismatchError, match="'op/state' has the columns") as caught:
        layout.read(pack_entries(entries()), 3)
    assert caught.value.context["flow"] == 3


def test_columns_that_frame_the_entries_are_checked_too() -> None:
    whole = pack_entries(entries())
    for wrong in (whole.select([1, 2, 3]), pa.record_batch({"h": [1.5]}), pa.record_batch({})):
        with pytest.raises(CheckpointMismatchError):
            LAYOUT.read(wrong, 0)
    arrays = [*whole.columns, pa.array([1, 2])]
    with pytest.raises(CheckpointMismatchError):
        LAYOUT.read(pa.RecordBatch.from_arrays(arrays, [*whole.schema.names, "removed"]), 0)


def test_a_batch_of_an_earlier_version_is_checked_against_it_and_brought_to_today() -> None:
    today = StateSchema(SCHEMA.keys, pa.schema({"n": pa.int64(), "new": pa.string()}))
    former = Former(
        columns=(("__godwit_removed", "int64"), ("n", "int64")),
        upgrade=ColumnsByName(schema=today.values),
    )
    layout = EntryLayout(name="op/state", schema=today, former={2: former})
    rows = layout.read(pack_entries(entries()), 2)
    assert rows.values.to_pylist() == [{"n": 3, "new": None}, {"n": 4, "new": None}]
    with pytest.raises(CheckpointMismatchError, match="flow version 3"):
        layout.read(pack_entries(entries()), 3)


def test_waiting_rows_are_checked_and_brought_to_today() -> None:
    today = pa.schema({"k": pa.string(), "v": pa.int64(), "w": pa.float64()})
    former = Former(
        columns=(("k", "string"), ("gone", "int64"), ("v", "int64")),
        upgrade=ColumnsByName(schema=today),
    )
    layout = WaitingLayout(operator="op", schema=today, former={0: former})
    old = pa.record_batch({"k": ["a"], "gone": [7], "v": [1]})
    assert layout.read(old, 0).to_pylist() == [{"k": "a", "v": 1, "w": None}]
    with pytest.raises(CheckpointMismatchError, match="Rows that wait for 'op'"):
        layout.read(old, 1)
