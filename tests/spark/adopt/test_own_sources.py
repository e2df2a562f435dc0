"""Adopted queries over own sources give the rows that Spark gives, batch by batch."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf
from tests.support.native import Case, Stream, compare_all

import godwit as gw
from godwit.adopt.explain import explained
from godwit.model.errors import CheckpointMismatchError, UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from godwit.adopt.writer import StreamWriter

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_COLUMNS = "k string, ts timestamp, v double, id string, n int, d decimal(10, 2), day date"


def _rows(draw: random.Random, batch: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    seconds = (300 * batch + draw.randint(0, 600) for _ in range(20))
    return [
        (
            draw.choice(["a", "b", "c", None]),
            _START + dt.timedelta(seconds=second, microseconds=draw.randint(0, 999_999)),
            draw.choice([1.5, 2.0, None, -3.25, float("nan")]),
            draw.choice("xyz"),
            draw.choice([1, 2, 3, None]),
            draw.choice([None, Decimal("1.25"), Decimal("-7.50")]),
            draw.choice([None, dt.date(2024, 2, 29)]),
        )
        for second in seconds
    ]


def _input(seed: int = 1) -> Stream:
    draw = random.Random(seed)
    return Stream(schema=_COLUMNS, batches=[_rows(draw, batch) for batch in range(4)])


def _values(draw: random.Random) -> tuple[Any, ...]:
    """Draw a row of values that JSON has."""
    return (
        draw.choice(["a", "b", "\u00fc\n", None]),
        draw.choice([1, 2, 2**60, -7, None]),
        draw.choice([0.1, -1e300, 3.0, None]),
        draw.choice([True, False, None]),
        draw.choice([Decimal("1.25"), Decimal("-7.50"), None]),
        draw.choice([dt.date(2024, 2, 29), None]),
    )


def _windows(s: DataFrame) -> DataFrame:
    """Windows that overlap, with a filtered count, and columns of the window."""
    window = sf.window("ts", "5 minutes", "150 seconds")
    results = (sf.sum("v").alias("t"), sf.expr("count(n) FILTER (WHERE n > 1)").alias("c"))
    return (
        s.withWatermark("ts", "2 minutes")
        .groupBy(window, "k")
        .agg(*results)
        .select("k", "window.start", "window", "t", "c")
    )


_QUERIES: dict[str, tuple[Callable[..., DataFrame], str]] = {
    "without state": (
        lambda s: s.where("n > 1").select("k", (sf.col("n") + 1).alias("m"), "ts", "d", "day", "v"),
        "append",
    ),
    "per key": (
        lambda s: (
            s.where("id <> 'x'")
            .groupBy("k", sf.col("n") % 2)
            .agg(sf.sum("v"), sf.avg("n"), sf.max("id"), sf.sum("d"), sf.max("day"))
        ),
        "update",
    ),
    "without columns": (lambda s: s.groupBy().count(), "complete"),
    "no row at all": (lambda s: s.where("1 = 0").groupBy("k").count(), "update"),
    "windows": (_windows, "append"),
    "windows that grow": (_windows, "update"),
    "filters above the watermark": (
        lambda s: (
            s.withWatermark("ts", "2 minutes")
            .where("ts < '2024-01-01 00:12:00'")
            .groupBy(sf.window("ts", "5 minutes"))
            .count()
        ),
        "append",
    ),
    "filters below the watermark": (
        lambda s: (
            s.where("k = 'a'")
            .withWatermark("ts", "1 minutes")
            .groupBy(sf.window("ts", "1 minutes"), "k")
            .count()
        ),
        "append",
    ),
    "sessions": (
        lambda s: (
            s.withWatermark("ts", "1 minutes")
            .groupBy(sf.session_window("ts", "30 seconds"), "k")
            .agg(sf.count("*").alias("c"), sf.sum("v"), sf.max("n"))
            .select("k", "session_window.end", "c", "session_window")
        ),
        "append",
    ),
    "duplicates": (
        lambda s: s.withWatermark("ts", "1 minutes").dropDuplicatesWithinWatermark(["id", "k"]),
        "append",
    ),
    "a union": (
        lambda s, other: (
            s.select("k", "n").union(other.where("n > 1").select("id", "n")).groupBy("k").count()
        ),
        "update",
    ),
    "a join": (
        lambda s, other: (
            s.withWatermark("ts", "1 minutes")
            .select("k", "ts", "n")
            .join(
                other.withWatermark("ts", "2 minutes").selectExpr("k k2", "ts ts2", "v"),
                sf.expr("k = k2 AND ts2 BETWEEN ts AND ts + interval 1 minute"),
                "leftOuter",
            )
        ),
        "append",
    ),
}


def test_own_sources_give_the_batches_that_spark_gives(spark: SparkSession) -> None:
    cases = {}
    for name, (build, mode) in _QUERIES.items():
        streams = {"s": _input()}
        if name in {"a union", "a join"}:
            streams["other"] = _input(2)
        cases[name] = Case(build=build, streams=streams, mode=mode, parts=2, own_sources=True)
    draw = random.Random(3)
    texts = Stream(
        schema="k string, n bigint, v double, b boolean, d decimal(10, 2), day date",
        batches=[[_values(draw) for _ in range(20)] for _ in range(3)],
        file_format="json",
    )
    cases["JSON"] = Case(
        build=lambda s: (
            s.where("b or n > 2").groupBy("k").agg(sf.sum("n"), sf.max("v"), sf.sum("d"))
        ),
        streams={"s": texts},
        mode="update",
        own_sources=True,
    )
    assert not compare_all(spark, cases)


def _rows_in(spark: SparkSession, path: Path, schema: str = "k string, n bigint") -> Any:
    """Return the reader of a directory with a file of two rows."""
    path.mkdir(exist_ok=True)
    table = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    pq.write_table(table, path / "0.parquet")
    return spark.readStream.schema(schema).format("parquet")


def _counted(writer: StreamWriter, path: Path) -> list[tuple[Any, ...]]:
    """Run a writer's query to the end of its input; return the rows of all batches."""
    rows: list[tuple[Any, ...]] = []

    def collect(batch: DataFrame, _number: int) -> None:
        rows.extend(map(tuple, batch.collect()))

    writer = writer.outputMode("update").foreachBatch(collect).trigger(availableNow=True)
    writer.option("checkpointLocation", str(path)).start().awaitTermination()
    return sorted(rows)


def test_what_own_sources_do_not_read_as_spark_does_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = str(tmp_path / "in")

    def reader(**options: Any) -> Any:
        return _rows_in(spark, tmp_path / "in").options(**options)

    plain = reader().load(place)
    nested = _rows_in(spark, tmp_path / "in", "k string, n struct<x: int>").load(place)
    (tmp_path / "days/day=1").mkdir(parents=True)
    pq.write_table(pa.table({"k": ["a"]}), tmp_path / "days/day=1/0.parquet")
    by_day = spark.readStream.schema("k string, day int").parquet(str(tmp_path / "days"))
    table = spark.createDataFrame([("a", 1)], "k string, m int")
    double = sf.udf(lambda n: n and 2 * n, "bigint")
    refused = {
        "'latestfirst' .* is not read": reader(latestFirst=True).load(place),
        "'maxbytespertrigger' .* is not read": reader(maxBytesPerTrigger="1g").load(place),
        "'maxfileage' .* is not read": reader(maxFileAge="1d").load(place),
        "'cleansource' .* is not read": reader(cleanSource="delete").load(place),
        "'recursivefilelookup' .*": reader(recursiveFileLookup=True).load(place),
        r"pathGlobFilter '\[ab\]\*'": reader(pathGlobFilter="[ab]*").load(place),
        "its path is a pattern": reader().load(f"{place}*"),
        "partitions, from the names of directories": by_day,
        "is an error, as in Spark with option": reader().format("json").load(place),
        "texts of JSON in the column 'n' of type timestamp": (
            spark.readStream.schema("n timestamp").option("mode", "FAILFAST").json(place)
        ),
        "files of the format 'text'": spark.readStream.text(place),
        "the source 'rate'": spark.readStream.format("rate").load(),
        "'n' has the nested type": nested,
        "reads it twice": plain.union(plain),
        "rows of several inputs": plain.join(table, "k"),
        "another one at each call": plain.select("k", sf.rand()),
        "the current time": plain.select("k", sf.current_timestamp()),
        "EvalPython is not computed where rows are read": plain.select("k", double("n")),
    }
    wrong = {}
    for reason, frame in refused.items():
        try:
            gw.write_stream(frame).own_sources().option("checkpointLocation", place + "-c").start()
        except UnsupportedQueryError as error:
            text = str(error)
            if not re.search(reason, text) or "Leave own_sources() out" not in text:
                wrong[reason] = text
        else:
            wrong[reason] = "not refused"
    assert not wrong
    assert not (tmp_path / "in-c").exists()
    with pytest.raises(UnsupportedQueryError, match="positions of another kind"):
        gw.write_stream(plain).own_sources().from_spark_checkpoint("old").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start()


def test_explain_says_which_scans_can_be_own_sources(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "in")
    counts = _rows_in(spark, tmp_path / "in").load(place).groupBy("k").count()
    assert f"own_sources(): would read Parquet files in {place}" in explained(counts, mode="update")
    other = _rows_in(spark, tmp_path / "in").option("latestFirst", True).load(place)
    text = explained(other.groupBy("k").count(), mode="update")
    assert "own_sources(): not possible: " in text
    assert "'latestfirst'" in text


def test_a_checkpoint_goes_on_with_the_kind_of_sources_that_it_began_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    counts = _rows_in(spark, tmp_path / "in").load(str(tmp_path / "in")).groupBy("k").count()
    own, frames = tmp_path / "own", tmp_path / "frames"
    assert _counted(gw.write_stream(counts).own_sources(), own) == [("a", 1), ("b", 1)]
    assert _counted(gw.write_stream(counts), frames) == [("a", 1), ("b", 1)]
    pq.write_table(
        pa.table({"k": ["a"], "n": pa.array([3], pa.int64())}), tmp_path / "in/1.parquet"
    )
    with pytest.raises(CheckpointMismatchError, match="reads DataFrames"):
        _counted(gw.write_stream(counts), own)
    with pytest.raises(CheckpointMismatchError, match="reads sources of Godwit's own"):
        _counted(gw.write_stream(counts).own_sources(), frames)
    assert _counted(gw.write_stream(counts).own_sources(), own) == [("a", 2)]
    assert _counted(gw.write_stream(counts), frames) == [("a", 2)]
