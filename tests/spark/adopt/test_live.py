"""Adopted queries that run while rows arrive, while key groups move, and over a restart."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.adopted.agreed import agreed, comparison, remember
from tests.adopted.grammar import COLUMNS, draw_rows
from tests.support.long_tests import chosen
from tests.support.native import Batches, Stream, assert_same, run_live, settings, written

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def _windows(s: DataFrame) -> DataFrame:
    """Windows and the time after which they come out."""
    window = sf.window("ts", "1 minute", "20 seconds")
    return s.withWatermark("ts", "30 seconds").groupBy("k", window).agg(sf.sum("n"), sf.max("id"))


def _sessions(s: DataFrame) -> DataFrame:
    """Sessions of a key."""
    session = sf.session_window("ts", "20 seconds")
    return s.withWatermark("ts", "30 seconds").groupBy("k", session).agg(sf.collect_list("n"))


def _totals(s: DataFrame) -> DataFrame:
    """Totals of a key in a query with a watermark."""
    return s.withWatermark("ts", "30 seconds").groupBy("k").agg(sf.sum("n"), sf.first("id"))


def _firsts(s: DataFrame) -> DataFrame:
    """The first row of each key."""
    return s.dropDuplicates(["k", "n"])


def _firsts_for_a_time(s: DataFrame) -> DataFrame:
    """The first row of each key, which is forgotten later."""
    return s.withWatermark("ts", "30 seconds").dropDuplicatesWithinWatermark(["k", "id"])


def _pairs(s: DataFrame) -> DataFrame:
    """Rows of the stream beside others that follow."""
    left = s.withWatermark("ts", "30 seconds").where("n < 3").select("k", "ts", "n")
    right = s.withWatermark("ts", "10 seconds").select(
        sf.col("k").alias("k2"), sf.col("ts").alias("ts2"), sf.col("id").alias("id2")
    )
    within = "k = k2 AND ts2 BETWEEN ts AND ts + interval 2 minutes"
    return left.join(right, sf.expr(within), "leftOuter")


_QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "windows": (_windows, "append"),
    "sessions": (_sessions, "append"),
    "totals": (_totals, "update"),
    "duplicates": (_firsts, "update"),
    "duplicates of a time": (_firsts_for_a_time, "append"),
    "a join of two streams": (_pairs, "append"),
}


_ONLY_LONG = (  # queries whose states are in the others, too
    "totals",
    "duplicates",
)


def _move(query: Any) -> None:
    """Move half of the key groups of each operator to the other executor."""
    for component in query.components.operators:
        here = query.placement.assignments[component].executor(0)
        (other,) = {query.executors[0], query.executors[-1]} - {here}
        query.migrate(dict.fromkeys(range(0, 256, 2), other), component=component).wait()


def test_batches_are_those_of_spark_while_key_groups_move(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random(3)
    batches = [draw_rows(draw, batch, 12) for batch in range(3)]

    def compare(name: str) -> None:
        """Run a query here while its key groups move, and natively unless this was done before."""
        build, mode = _QUERIES[name]
        stream = Stream(schema=COLUMNS, batches=batches)
        with written(spark, {"s": stream}) as frames:
            query = build(frames["s"])

            def batches_of(writer: Any, then: Callable[[Any], None], how: str) -> Batches:
                place = str(tmp_path / f"{name} {how}")
                came = run_live(writer, stream, mode=mode, checkpoint=place, then=then)
                # A migration may end in an epoch of its own, which has no rows of the query.
                return dict(enumerate(came.values()))

            compared = comparison(query, build, "live", mode, batches)
            moved = batches_of(gw.write_stream(query), _move, "moved")
            if not agreed(compared, moved):
                native = batches_of(query.writeStream, lambda _query: None, "natively")
                assert native
                assert_same(moved, native)
                remember(compared, moved, f"live {name}")

    with settings(spark), ThreadPoolExecutor(4) as pool:
        list(pool.map(compare, chosen(_QUERIES, only_long=_ONLY_LONG)))
