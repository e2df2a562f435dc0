"""Checks of rows, how they are gathered, and the last row of a key."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from tests.support.epoch_rows import SCHEMA, EpochRows, context, rows

import godwit as gw
from godwit.model.errors import SinkError
from godwit.sinks.rows import (
    cast_batches,
    column_names,
    join_small_batches,
    last_of_each_key,
    storable_schema,
    upsert_keys,
    without_replaced_rows,
)
from godwit.sinks.target_sink import checked_rejects


def test_a_lone_string_is_one_column() -> None:
    assert column_names("plane") == ("plane",)
    assert column_names(["plane", "year"]) == ("plane", "year")


def test_keys_of_the_operator_are_the_default() -> None:
    assert upsert_keys(context(), None) == ("plane",)
    assert upsert_keys(context(), ["total", "plane"]) == ("total", "plane")


WINDOWS = context(
    schema=pa.schema([(n, pa.int64()) for n in ("k", "window_start", "window_end", "n", "hour")]),
    keys=("k",),
    unique_keys=(("k", "window_start", "window_end"), ("k", "window_start")),
)


def test_windows_are_part_of_what_identifies_a_row() -> None:
    assert upsert_keys(WINDOWS, None) == ("k", "window_start", "window_end")
    for keys in (("window_start", "k"), ("k", "window_start", "window_end", "n")):
        assert upsert_keys(WINDOWS, keys) == keys


def test_a_column_that_a_map_made_may_stand_for_the_window_and_one_of_the_result_may_not() -> None:
    assert upsert_keys(replace(WINDOWS, mapped=True), ("k", "hour")) == ("k", "hour")
    with pytest.raises(SinkError, match="same 'k', 'n' would replace") as caught:
        upsert_keys(WINDOWS, ("k", "n"))
    assert caught.value.context["columns"] == ["window_start"]
    with pytest.raises(SinkError, match="which 'plane' tell apart"):
        upsert_keys(context(), ["total"])


@pytest.mark.parametrize("keys", ["k", ["k"], ["window_start"], ["k", "window_end"]])
def test_keys_that_are_only_a_part_of_what_tells_rows_apart_are_refused(keys: Any) -> None:
    with pytest.raises(SinkError, match="would replace one another") as caught:
        upsert_keys(WINDOWS, keys)
    assert "or leave keys out" in str(caught.value.remedy)


def test_rows_that_nothing_tells_apart_are_upserted_by_named_columns_only() -> None:
    emitted = context(unique_keys=())
    with pytest.raises(SinkError, match="no columns identify its rows"):
        upsert_keys(emitted, None)
    assert upsert_keys(emitted, "plane") == ("plane",)


def test_timestamps_become_microseconds_wherever_they_are() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.timestamp("ns", "UTC"), nullable=False),
            ("b", pa.list_(pa.timestamp("s"))),
            ("c", pa.dictionary(pa.int8(), pa.string())),
            ("d", pa.struct([pa.field("x", pa.timestamp("ns"), nullable=False)])),
            ("e", pa.map_(pa.string(), pa.timestamp("ms"))),
            ("f", pa.large_list(pa.struct([("y", pa.list_(pa.timestamp("ns"), 2))]))),
        ]
    )
    assert storable_schema(schema).equals(
        pa.schema(
            [
                pa.field("a", pa.timestamp("us", "UTC"), nullable=False),
                ("b", pa.list_(pa.timestamp("us"))),
                ("c", pa.string()),
                ("d", pa.struct([pa.field("x", pa.timestamp("us"), nullable=False)])),
                ("e", pa.map_(pa.string(), pa.timestamp("us"))),
                ("f", pa.large_list(pa.struct([("y", pa.list_(pa.timestamp("us"), 2))]))),
            ]
        )
    )


def test_nested_timestamps_are_fitted_without_a_loss() -> None:
    struct = pa.struct([("at", pa.timestamp("ns"))])
    schema = pa.schema([("s", struct), ("m", pa.map_(pa.string(), pa.timestamp("ns")))])

    def fitted(nanoseconds: int) -> Any:
        table = pa.table([[{"at": nanoseconds}], [[("k", nanoseconds)]]], schema=schema)
        output = EpochRows(epoch=0, table=table)
        (batch,) = cast_batches(output, storable_schema(schema), "by_plane")
        return batch.to_pylist()

    moment = dt.datetime(1970, 1, 1, 0, 0, 0, 1)  # noqa: DTZ001 - the column has no zone
    assert fitted(1_000) == [{"s": {"at": moment}, "m": [("k", moment)]}]
    with pytest.raises(SinkError, match="would lose data"):
        fitted(1_001)


def test_rows_that_fit_pass_untouched() -> None:
    output = rows(0, ("N1", 1))
    (batch,) = cast_batches(output, SCHEMA, "by_plane")
    assert batch.equals(next(output.batches()))


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"plane": ["N1"], "total": pa.array([2.5])}),
        pa.table({"plane": ["N1"], "sum": [1]}),
        pa.table({"plane": ["N1"]}),
    ],
)
def test_rows_that_do_not_fit_are_an_error(table: pa.Table) -> None:
    with pytest.raises(SinkError, match="epoch 5: the rows do not fit"):
        list(cast_batches(EpochRows(epoch=5, table=table, announced=SCHEMA), SCHEMA, "by_plane"))


def test_small_batches_are_joined_and_empty_ones_dropped() -> None:
    batches = [pa.record_batch({"n": range(k)}) for k in (3, 0, 4, 5, 1)]
    sizes = [batch.num_rows for batch in join_small_batches(batches, rows=6)]
    assert sizes == [7, 6]
    assert [batch.num_rows for batch in join_small_batches(batches, size_bytes=8)] == [3, 4, 5, 1]


def test_the_last_row_of_a_key_is_marked_whatever_the_types() -> None:
    keys = pa.table(
        {
            "s": ["a", "a", None, "a", None],
            "f": [0.5, None, 0.5, 0.5, 0.5],
            "row": [b"x", b"x", b"y", b"x", b"y"],
        }
    )
    assert last_of_each_key(keys).tolist() == [False, True, False, True, True]


def test_floats_that_are_one_key_to_spark_are_one_key() -> None:
    other_nan = np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0]
    keys = pa.table({"f": [0.0, math.nan, -0.0, other_nan]})
    assert last_of_each_key(keys).tolist() == [False, False, True, True]


def test_no_rows_have_no_last_one() -> None:
    assert last_of_each_key(SCHEMA.empty_table()).tolist() == []


def test_rows_that_a_later_batch_replaces_are_left_out() -> None:
    output = rows(0, ("N1", 1), ("N2", 2), ("N1", 3), (None, 4), ("N3", 5), (None, 6))
    kept = pa.Table.from_batches(without_replaced_rows(output, SCHEMA, ["plane"], "by_plane"))
    assert kept.column("total").to_pylist() == [2, 3, 5, 6]


def test_rows_of_an_earlier_flow_are_brought_to_todays_columns_by_name() -> None:
    earlier = EpochRows(epoch=3, table=pa.table({"gone": [1.5], "total": [7], "plane": ["N1"]}))
    today = pa.schema([("plane", pa.string()), ("total", pa.int64()), ("new", pa.date32())])
    (batch,) = cast_batches(earlier, today, "out")
    assert batch.to_pylist() == [{"plane": "N1", "total": 7, "new": None}]


def test_rows_of_an_earlier_flow_need_the_columns_that_tell_them_apart() -> None:
    earlier = EpochRows(epoch=3, table=pa.table({"total": [7]}))
    with pytest.raises(SinkError, match="by an earlier flow, without column 'plane'") as caught:
        list(cast_batches(earlier, SCHEMA, "out", ["plane"]))
    assert "Start the earlier flow once more" in caught.value.remedy


def test_a_sink_of_rejected_rows_rejects_none_itself() -> None:
    plain = gw.sinks.parquet("rejected")
    assert checked_rejects(plain) is plain
    with pytest.raises(SinkError, match="has a sink of rejected rows itself"):
        checked_rejects(gw.sinks.parquet("out", rejects=plain))
    with pytest.raises(SinkError, match="is not a sink"):
        checked_rejects(cast("Any", "out/rejected"))
