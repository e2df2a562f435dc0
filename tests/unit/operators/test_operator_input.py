"""Rows of an operator's input, grouped by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.operators.operator import OperatorInput
from godwit.store.changes import StateRows


@pytest.mark.parametrize("rows", [1_000, 40_000])
@pytest.mark.parametrize("distinct", [50, 2**40])
def test_however_many_rows_and_keys_there_are_they_are_grouped_the_same(
    rows: int, distinct: int
) -> None:
    values = np.random.default_rng(3).integers(0, distinct, rows)
    keys = pa.record_batch({"a": [f"key {value}" for value in values.tolist()], "b": values % 7})
    hashes = hash_keys(keys.select(["a"]))
    data = OperatorInput(
        rows=StateRows(hashes=hashes, keys=keys, values=keys.select([])),
        states={},
        num_key_groups=16,
    )
    groups, of_groups = data.grouped(1)
    expected = group_rows(hashes, keys, 16, 1)
    for name in ("of_row", "first_row", "hashes", "key_groups", "order", "starts"):
        assert (getattr(groups, name) == getattr(expected, name)).all(), name
    assert of_groups.equals(keys.take(pa.array(expected.first_row)))
