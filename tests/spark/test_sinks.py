"""Sinks with a real Spark: what it reads back, what a function is handed, what a view shows."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from tests.spark.streams import Inbox, drain, rows_of
from tests.support.epoch_rows import SCHEMA, EpochRows, context, rows

import godwit as gw
from godwit.connect.files.parquet_directory import latest_epoch
from godwit.model.errors import SinkError
from godwit.sinks.simple_sinks import ForeachSink, MemorySink
from godwit.spark.cluster import SinkSession

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EPOCHS = [
    rows(0, ("N1", 1), ("N2", 2), (None, 3)),
    rows(1, ("N1", 10), ("N3", 30), (None, None)),
]


def test_spark_reads_the_directory_as_one_table_with_a_column_for_the_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = gw.sinks.parquet(tmp_path)
    sink.open(context())
    for epoch in EPOCHS:
        sink.deliver(epoch)
    staged = tmp_path / "_staging" / "2-crashed"
    staged.mkdir(parents=True)
    (staged / "part-00000.parquet").write_bytes(
        (tmp_path / "epoch=0/part-00000.parquet").read_bytes()
    )
    frame = spark.read.parquet(str(tmp_path))
    assert frame.dtypes == [("plane", "string"), ("total", "bigint"), ("epoch", "int")]
    assert frame.groupBy("epoch").count().orderBy("epoch").collect() == [(0, 3), (1, 3)]


def test_spark_reads_partition_values_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    planes = ["żółw", "a/b=c", "50% of {x}", "a:b", 'quo"te', None, "tab\t", "a b", "^~!$&,;"]
    table = pa.table({"plane": planes, "total": range(len(planes))}, schema=SCHEMA)
    sink = gw.sinks.parquet(tmp_path, partition_by="plane")
    sink.open(context())
    sink.deliver(EpochRows(epoch=0, table=table))
    found = spark.read.parquet(str(tmp_path)).orderBy("total").select("plane").collect()
    assert [plane for (plane,) in found] == planes


def test_spark_reads_partition_values_whose_capitals_are_escaped(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = gw.sinks.parquet(tmp_path, partition_by="plane")
    sink.open(context())
    sink._fold_case = True
    sink.deliver(rows(0, ("N1 %2F", 1), ("n1 %2f", 2), ("\u00d6Z", 3)))
    found = spark.read.parquet(str(tmp_path)).orderBy("total").select("plane").collect()
    assert [plane for (plane,) in found] == ["N1 %2F", "n1 %2f", "\u00d6Z"]


def at(hour: int) -> dt.datetime:
    return dt.datetime(2026, 10, 25, hour, 30, tzinfo=dt.UTC)


def in_utc(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows whose instants Python compares: a time that an hour's change repeats equals no other."""
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return rows_of(table.cast(pa.schema(fields)))


def windowed(inbox: Inbox, directory: Path) -> tuple[gw.Flow, gw.sinks.MemorySink]:
    flow, memory = gw.Flow("fares", num_key_groups=4), gw.sinks.memory()
    rides = flow.source("rides", inbox.stream(), event_time="ts")
    late = gw.sinks.parquet(directory / "late")
    hourly = rides.key_by("zone").window(gw.tumbling("1 hour"), late=late, name="hourly")
    fares = hourly.compute(fares=gw.sum("fare"), last=gw.max("ts"))
    flow.sink("delta", fares, gw.sinks.delta(directory / "delta", mode="upsert"))
    flow.sink("parquet", fares, gw.sinks.parquet(directory / "parquet", lane_bytes=0))
    flow.sink("memory", fares, memory)
    return flow, memory


def test_windows_reach_every_target_whatever_the_zone_of_the_session_is_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")
    columns = "zone string, ts timestamp, note string, fare long"
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=columns)
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    seen: list[tuple[Any, ...]] = []
    try:
        for zone, hours in (("Etc/UTC", (0, 1)), ("+05:30", (2,))):
            spark.conf.set("spark.sql.session.timeZone", zone)
            for hour in hours:
                inbox.put([("a", at(hour), "x", 1), ("b", at(hour), "x", 2)])
            if zone == "+05:30":
                inbox.put([("a", at(0), "too late", 9)])
            flow, memory = windowed(inbox, tmp_path)
            drain(flow, tmp_path / "ck", close_at_end=zone == "+05:30")
            seen += in_utc(memory.table().select(["zone", "window_start", "fares"]))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    expected = sorted(
        (zone, at(hour).replace(minute=0), fares)
        for hour in range(3)
        for zone, fares in (("a", 1), ("b", 2))
    )
    assert sorted(set(seen)) == expected
    parquet = pads.dataset(tmp_path / "parquet", partitioning="hive").to_table()
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path / "delta"))
    delta = pa.table(query.execute("SELECT zone, window_start, fares FROM t"))
    for name, table in {"parquet": parquet, "delta": delta}.items():
        assert sorted(in_utc(table.select(["zone", "window_start", "fares"]))) == expected, name
    late = pads.dataset(tmp_path / "late", partitioning="hive").to_table()
    assert in_utc(late.select(["zone", "ts", "note", "fare", "reason"])) == [
        ("a", at(0), "too late", 9, "late")
    ]


def test_an_empty_complete_epoch_does_not_stop_spark_from_reading_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = gw.sinks.parquet(tmp_path, partition_by=["plane"])
    sink.open(context(complete=True))
    sink.deliver(EPOCHS[0])
    sink.deliver(rows(1))
    frame = spark.read.parquet(str(tmp_path))
    assert frame.where(f"epoch = {latest_epoch(tmp_path)}").count() == 0
    assert frame.where("epoch = 0").count() == 3


def test_the_function_gets_a_dataframe_that_the_executors_read(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []

    def total(frame: DataFrame, epoch: int) -> None:
        seen.append((epoch, frame.selectExpr("sum(total)").collect()[0][0]))

    sink = ForeachSink(total)
    sink.open(context(views=SinkSession(spark)))
    for epoch in EPOCHS:
        sink.deliver(replace(epoch, spark=spark))
    assert seen == [(0, 6), (1, 40)]


def test_a_view_shows_the_newest_row_of_every_key_after_each_epoch(spark: SparkSession) -> None:
    sink = MemorySink("by_plane_view")
    sink.open(context(views=SinkSession(spark)))
    query = "SELECT plane, total FROM by_plane_view ORDER BY plane NULLS FIRST"
    assert spark.sql(query).collect() == []
    for epoch, expected in zip(
        EPOCHS,
        [
            [(None, 3), ("N1", 1), ("N2", 2)],
            [(None, None), ("N1", 10), ("N2", 2), ("N3", 30)],
        ],
        strict=True,
    ):
        sink.deliver(epoch)
        assert spark.sql(query).collect() == expected
    spark.catalog.dropTempView("by_plane_view")


def test_a_name_that_is_no_view_is_refused_at_open(spark: SparkSession) -> None:
    sink = MemorySink("not a view!")
    with pytest.raises(SinkError, match="cannot keep view 'not a view!'"):
        sink.open(context(views=SinkSession(spark)))
