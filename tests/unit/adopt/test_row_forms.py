"""Rows as processors get them are those that Arrow's own conversion gives."""

from __future__ import annotations

import pickle
import random
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from godwit.adopt.row_forms import array_of, form_of, python_list


@pytest.mark.parametrize("zone", ["UTC", "+02:00", "Europe/Berlin", "America/New_York"])
def test_timestamps_are_those_that_arrow_converts(zone: str) -> None:
    draw = random.Random(zone)
    moments = [draw.randrange(-(10**15), 4 * 10**15) for _ in range(500)]
    # Around both changes of the clock, where a time on the wall comes twice, or never.
    moments += [1_729_990_800_000_000 + step * 600_000_000 for step in range(-20, 20)]
    moments += [1_711_846_800_000_000 + step * 600_000_000 for step in range(-20, 20)]
    column = pa.array([*moments, None], pa.timestamp("us", "UTC"))
    expected = column.cast(pa.timestamp("us", zone)).to_pylist()
    values = python_list(column, zone)
    assert values == expected
    assert [v and (v.isoformat(), v.fold) for v in values] == [
        v and (v.isoformat(), v.fold) for v in expected
    ]


@pytest.mark.parametrize("zone", ["UTC", "-03:30", "Europe/Berlin", "Australia/Lord_Howe"])
def test_timestamps_of_one_hour_are_those_that_arrow_converts(zone: str) -> None:
    draw = random.Random(zone)
    # Around the ends of summer time in Berlin and on Lord Howe, and hours like others.
    for middle in (
        1_729_990_800,
        1_712_415_600,
        *(draw.randrange(-(10**9), 4 * 10**9, 1) for _ in range(20)),
    ):
        near = [middle * 10**6 + draw.randrange(-5_400 * 10**6, 5_400 * 10**6) for _ in range(300)]
        column = pa.array([*near, None], pa.timestamp("us", "UTC"))
        expected = column.cast(pa.timestamp("us", zone)).to_pylist()
        assert [v and (v, v.isoformat(), v.fold) for v in python_list(column, zone)] == [
            v and (v, v.isoformat(), v.fold) for v in expected
        ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, -5], pa.int32()),
        pa.array([True, None]),
        pa.array(["a", None], pa.large_string()),
        pa.array([[1, None], None], pa.list_(pa.int64())),
        pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())])),
        pa.array([1, None], pa.date32()),
        pa.array([1, None], pa.timestamp("us")),
    ],
)
def test_other_values_are_those_that_arrow_converts(column: Any) -> None:
    assert python_list(column, "UTC") == column.to_pylist()


def test_rows_are_those_that_pyspark_makes() -> None:
    batch = pa.record_batch({"k": ["a", "b"], "count": [1, None]})
    form = form_of("row", zone="UTC", output=pa.schema([("k", pa.string())]))
    rows = list(form.ordered(batch, [0, 2]).rows(0) or ())
    expected = [Row("k", "count")("a", 1), Row("k", "count")("b", None)]
    assert rows == expected
    assert [row.asDict() for row in rows] == [row.asDict() for row in expected]
    assert (rows[0].k, rows[0]["count"], rows[1][1]) == ("a", 1, None)
    assert pickle.loads(pickle.dumps(rows)) == expected
    assert repr(rows) == repr(expected)
    with pytest.raises(AttributeError):
        _ = rows[0].other


@pytest.mark.parametrize("dtype", [pa.decimal128(10, 2), pa.decimal128(38, 30)])
def test_integers_of_a_frame_become_decimals_exactly(dtype: pa.DataType) -> None:
    values = array_of(pd.Series([12345, None, -1], dtype="Int64"), dtype)
    assert values.to_pylist() == [Decimal(12345), None, Decimal(-1)]
    with pytest.raises(pa.ArrowInvalid, match="precision 10"):
        array_of(pd.Series([10**9]), pa.decimal128(10, 2))
