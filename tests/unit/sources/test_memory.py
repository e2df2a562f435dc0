"""Rows that a program adds."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import godwit as gw


def test_memory_keeps_the_contract_while_rows_are_added() -> None:
    source = gw.sources.memory("symbol string, price double")
    source.add([(f"S{n}", n / 2) for n in range(30)])
    source.add(pa.table({"symbol": ["A", None], "price": [float("nan"), None]}))
    gw.testing.check_source(source, add=lambda: source.add([{"symbol": "later"}]))


def test_a_split_carries_its_rows_to_a_copy_and_nothing_else() -> None:
    source = gw.sources.memory({"n": "bigint"}, [(n,) for n in range(100_000)])
    (split,) = source.splits(50_000, 50_010, 1)
    assert split.rows == 10
    assert len(pickle.dumps(split)) < 2_000
    copy = pickle.loads(pickle.dumps(source))
    rows = pa.Table.from_batches(copy.read(split, ["n"]))
    assert rows["n"].to_pylist() == list(range(50_000, 50_010))
    assert len(pickle.dumps(source)) < 2_000


def test_limits_and_ends_are_kept() -> None:
    source = gw.sources.memory({"n": "bigint"}, [(n,) for n in range(10)], max_rows_per_epoch=4)
    assert source.latest(0) == 4
    assert source.latest(0, limit=3) == 3
    assert source.latest(8) == 10
    assert source.end(0) == 10
    assert source.latest(9, until=source.end(0)) == 10
    assert source.lag(4).rows == 6


def test_rows_that_an_earlier_run_has_read_must_be_there() -> None:
    source = gw.sources.memory({"n": "bigint"}, [(1,)])
    source.open(1)
    with pytest.raises(gw.errors.SourceError, match="has 1 row, and the query has read 2"):
        source.open(2)


def test_rows_of_other_columns_or_types_are_refused() -> None:
    source = gw.sources.memory("symbol string, price double")
    with pytest.raises(gw.errors.InvalidInputError, match=r"'pric'.*Did you mean 'price'"):
        source.add([{"pric": 1.0}])
    with pytest.raises(gw.errors.InvalidInputError, match="'cheap' in column 'price'"):
        source.add([("A", "cheap")])
    assert source.end(0) == 0
