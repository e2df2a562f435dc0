"""A table that is broadcast on Spark: over DataFrames, in other processes, and after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, drain

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def convert(key: Any, rows: Any, total: Any, rates: Any) -> Any:
    for row in rows:
        total.value += row.amount * rates[row.currency].rate
    yield key[0], total.value


@pytest.mark.spark
def test_lanes_convert_by_the_newest_rates_of_their_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders = Inbox(
        spark=spark, directory=tmp_path / "orders", columns="id long, currency string, amount long"
    )
    rates = Inbox(spark=spark, directory=tmp_path / "rates", columns="currency string, rate long")

    def totals() -> tuple[gw.Flow, gw.sinks.MemorySink]:
        flow = gw.Flow("orders", num_key_groups=8)
        small = flow.source("rates", rates.stream()).map(lambda df: df.where("rate > 0"))
        converted = (
            flow.source("orders", orders.stream())
            .key_by("id")
            .process(
                convert,
                state=int,
                output="id long, total long",
                name="converted",
                broadcast={"rates": small.key_by("currency")},
            )
        )
        sink = gw.sinks.memory()
        flow.sink("out", converted, sink)
        return flow, sink

    def of(sink: gw.sinks.MemorySink) -> set[tuple[int, int]]:
        return {(row["id"], row["total"]) for row in sink.table("id").to_pylist()}

    every = [(id_, "EUR", 1) for id_ in range(30)]
    orders.put(every, every)
    rates.put([("EUR", 2), ("USD", 7), ("EUR", -1)], [("EUR", 3)])
    flow, sink = totals()
    drain(flow, tmp_path / "ck")
    assert of(sink) == {(id_, 5) for id_ in range(30)}

    orders.put([(id_, "USD", 1) for id_ in range(30)])
    flow, sink = totals()
    drain(flow, tmp_path / "ck")
    assert of(sink) == {(id_, 12) for id_ in range(30)}
    table = gw.read_state(spark, tmp_path / "ck", "converted", state="broadcast_rates")
    assert {(row.currency, row.rate) for row in table.collect()} == {("EUR", 3), ("USD", 7)}
