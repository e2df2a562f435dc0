"""Senders count their traffic by pairs of key groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from tests.support.lane_flows import sums

from godwit.columns.hashing import hash_keys
from godwit.engine.lane.wire import count_key_group_pairs
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    import numpy.typing as npt

N = 32
ALL = np.ones(N, np.bool_)


def keyed_by(name: str, dtype: pa.DataType) -> pa.Schema:
    return pa.schema({name: dtype})


def rows(count: int) -> pa.Table:
    names = [f"key {i}" for i in range(count)]
    return pa.table({"k": names, "v": pa.array(range(count)), "w": [name[-1] for name in names]})


def groups(column: pa.Array, name: str) -> npt.NDArray[np.int32]:
    return key_groups_of(hash_keys(pa.record_batch({name: column})), N)


def test_an_operator_of_the_same_key_gets_everything_from_the_same_key_group() -> None:
    table = rows(500)
    pairs = count_key_group_pairs(sums(), keyed_by("k", pa.string()), table, ALL)
    assert (pairs.source == pairs.target).all()
    own = groups(table["k"].combine_chunks(), "k")
    assert pairs.rows.tolist() == np.bincount(own, minlength=N)[pairs.source].tolist()


def test_rows_are_counted_by_the_key_groups_of_both_keys() -> None:
    table = rows(3)
    pairs = count_key_group_pairs(sums(), keyed_by("v", pa.int64()), table, ALL)
    own = groups(table["k"].combine_chunks(), "k").tolist()
    there = groups(table["v"].combine_chunks(), "v").tolist()
    found = zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)
    assert sorted(found) == sorted(set(zip(own, there, strict=True)))


def test_where_the_key_is_gone_or_of_another_type_nothing_is_counted() -> None:
    receiver = keyed_by("w", pa.string())
    assert len(count_key_group_pairs(sums(), receiver, rows(9).drop_columns(["k"]), ALL)) == 0
    other = rows(9).set_column(0, "k", pa.array(range(9)))
    assert len(count_key_group_pairs(sums(), receiver, other, ALL)) == 0


def test_rows_whose_key_was_changed_are_passed_over() -> None:
    table = rows(400)
    own = np.zeros(N, np.bool_)
    own[:16] = True
    pairs = count_key_group_pairs(sums(), keyed_by("w", pa.string()), table, own)
    assert pairs.source.max() < 16
    inside = own[groups(table["k"].combine_chunks(), "k")]
    assert pairs.rows.sum() == inside.sum()


def test_of_many_rows_some_are_looked_at_and_stand_for_all() -> None:
    table = rows(50_000)
    pairs = count_key_group_pairs(sums(), keyed_by("k", pa.string()), table, ALL)
    assert abs(pairs.rows.sum() - 50_000) < 10
