"""A query that Spark has run continues with its state, as if nothing had happened."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.support.native import Batches, Stream, assert_same, run, settings, write, written

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_COLUMNS = "k string, ts timestamp, v double, id string, n int, d decimal(10,2)"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def _rows(draw: random.Random, batch: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    seconds = (300 * batch + draw.randint(0, 600) for _ in range(20))
    return [
        (
            draw.choice(["a", "b", "c", None]),
            _START + dt.timedelta(seconds=second, microseconds=draw.randint(0, 999_999)),
            draw.choice([1.5, 2.0, None, -3.25]),
            draw.choice("xyz"),
            draw.choice([1, 2, 3, None]),
            Decimal(draw.randint(0, 10**6)).scaleb(-2),
        )
        for second in seconds
    ]


def _per_key(s: DataFrame) -> DataFrame:
    """Aggregates of every kind whose state can be taken over."""
    return s.groupBy("k", (sf.col("n") % 2).alias("odd"), sf.col("v")).agg(
        sf.sum("n"),
        sf.sum("v"),
        sf.sum("d"),
        sf.count("n"),
        sf.avg("n"),
        sf.avg("d"),
        sf.min("id"),
        sf.max("ts"),
        sf.first("n"),
        sf.last("n", ignorenulls=True),
        sf.stddev("n"),
        sf.max_by("id", "n"),
        (sf.sum("n") * 2 + sf.count("*")).alias("both"),
        sf.expr("count(n) FILTER (WHERE n > 1)"),
    )


def _windows(s: DataFrame) -> DataFrame:
    """Windows that overlap."""
    window = sf.window("ts", "5 minutes", "150 seconds")
    return s.withWatermark("ts", "2 minutes").groupBy(window, "k").agg(sf.sum("v"), sf.count("*"))


def _sessions(s: DataFrame) -> DataFrame:
    """Sessions."""
    session = sf.session_window("ts", "30 seconds")
    return s.withWatermark("ts", "1 minutes").groupBy(session, "k").agg(sf.sum("n"), sf.avg("v"))


def _times(s: DataFrame) -> DataFrame:
    """Groups by event time."""
    return s.withWatermark("ts", "1 minutes").groupBy("ts", "k").count()


def _distinct(s: DataFrame) -> DataFrame:
    """Distinct rows, in SQL."""
    s.createOrReplaceTempView("rows_to_adopt")
    return s.sparkSession.sql("SELECT DISTINCT k, id FROM rows_to_adopt")


_CASES: list[tuple[str, Callable[[DataFrame], DataFrame], str, bool]] = [
    ("per key", _per_key, "update", False),
    ("per key", _per_key, "complete", True),
    ("whole", lambda s: s.groupBy().agg(sf.sum("v"), sf.count("*")), "update", True),
    ("distinct", _distinct, "update", False),
    ("windows", _windows, "append", True),
    ("windows", _windows, "update", False),
    ("sessions", _sessions, "append", False),
    ("event times", _times, "append", True),
]


def test_a_query_goes_on_from_the_state_that_spark_has_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random(3)
    batches = [_rows(draw, batch) for batch in range(5)]
    failures = []
    with settings(spark):
        for number, (name, build, mode, rocksdb) in enumerate(_CASES):
            before = Stream(schema=_COLUMNS, batches=batches[:3])
            old, new, copy = (str(tmp_path / f"{part}{number}") for part in ("old", "new", "copy"))
            if rocksdb:
                spark.conf.set(_PROVIDER, _ROCKSDB)
            try:
                with written(spark, {"s": before}) as frames:
                    query = build(frames["s"])
                    run(query.writeStream, mode=mode, checkpoint=old)
                    shutil.copytree(old, copy)
                    native: Batches = {}
                    adopted: Batches = {}
                    for batch in batches[3:]:  # the second start continues from its own checkpoint
                        write(before, [batch])
                        native |= run(query.writeStream, mode=mode, checkpoint=copy).batches
                        writer = gw.write_stream(query).from_spark_checkpoint(old)
                        adopted |= run(writer, mode=mode, checkpoint=new).batches
                        shutil.rmtree(old, ignore_errors=True)
                    assert native
                    assert_same(adopted, native)
            except Exception as error:  # noqa: BLE001  all are reported together
                failures.append(f"{name} ({mode}): {type(error).__name__}: {error}")
            finally:
                spark.conf.unset(_PROVIDER)
    assert not failures, "\n\n".join(failures)


def test_a_checkpoint_of_another_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(schema=_COLUMNS, batches=[_rows(random.Random(1), 0)])
    with settings(spark), written(spark, {"s": stream}) as frames:
        rows, old = frames["s"], str(tmp_path / "old")
        run(rows.groupBy("k").agg(sf.sum("n")).writeStream, mode="update", checkpoint=old)
        others = {
            "another Spark query: it groups by": rows.groupBy("n").agg(sf.sum("n")),
            "another Spark query: its aggregates": rows.groupBy("k").agg(sf.avg("n")),
            "another Spark query: it has the operators": (
                rows.withWatermark("ts", "1 minute")
                .groupBy(sf.session_window("ts", "1 minute"), "k")
                .agg(sf.sum("n"))
            ),
        }
        for message, query in others.items():
            mode = "append" if "operators" in message else "update"
            writer = gw.write_stream(query).from_spark_checkpoint(old)
            with pytest.raises(gw.errors.CheckpointError, match=message):
                run(writer, mode=mode, checkpoint=str(tmp_path / "new"))
        query = rows.groupBy("k").agg(sf.sum("n"))
        run(gw.write_stream(query), mode="update", checkpoint=str(tmp_path / "new"))
        writer = gw.write_stream(query).from_spark_checkpoint(old)
        with pytest.raises(gw.errors.CheckpointError, match="began without the state"):
            run(writer, mode="update", checkpoint=str(tmp_path / "new"))
