"""Rows of a join that a flow begins with are stored as the join itself stores them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from godwit.adopt.joined_rows import EXPIRES, LEFT, MET, RIGHT, SIDE, JoinedRowsInTime
from godwit.store.changes import StateRows

_TIME = pa.timestamp("us", "UTC")


def _join() -> JoinedRowsInTime:
    """Return a full join by one key."""
    return JoinedRowsInTime(
        name="join",
        keys=pa.schema([pa.field("k", pa.string())]),
        left=pa.schema([pa.field("a", pa.int64())]),
        right=pa.schema([pa.field("b", pa.string())]),
        how="full",
        condition=None,
        reach_us=(0, 0),
        forgets=True,
        delay_us=0,
    )


def test_rows_that_a_join_begins_with_are_numbered_by_key_and_side() -> None:
    join = _join()
    rows = pa.RecordBatch.from_pydict(
        {
            "k": ["x", None, "x", "x", "y"],
            SIDE: pa.array([LEFT, LEFT, RIGHT, LEFT, RIGHT], pa.int8()),
            MET: [True, False, False, False, True],
            EXPIRES: pa.array([1, 2, 3, 4, 5], _TIME),
            "a": [1, 2, None, 3, None],
            "b": [None, None, "p", None, "q"],
        }
    )
    keys, values = join.initial_entries("state", rows)
    hashes = join.hash_of(keys, 8)
    entries = join.complete_entries("state", StateRows(hashes=hashes, keys=keys, values=values))
    numbers, counts = entries.keys.column(2).to_pylist(), entries.values.column(2).to_pylist()
    assert sorted(zip(numbers, counts, strict=True)) == [(0, 1), (0, 1), (0, 1), (0, 2), (1, 0)]
    assert {numbers[0], numbers[3]} == {0, 1}
    assert entries.keys.column(1).to_pylist() == rows.column(SIDE).to_pylist()
    assert entries.values.select(["a", "b"]).to_pydict() == rows.select(["a", "b"]).to_pydict()
    assert np.array_equal(entries.hashes, hashes)
