"""Adopted queries that run while rows arrive, while key groups move, and over a restart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.adopted.grammar import COLUMNS, draw_rows
from tests.support.native import Stream, assert_same, run_live, settings, written

import godwit as gw

if TYPE_CHECKING:
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


def _nothing(query: Any) -> None:
    """Leave a query alone."""


def _move(query: Any) -> None:
    """Move some key groups to the last executor, and back."""
    executors = query.executors
    groups = range(0, 256, 2)
    query.migrate(dict.fromkeys(groups, executors[-1])).wait()
    query.migrate(dict.fromkeys(groups, executors[0])).wait()


@pytest.mark.parametrize(
    ("build", "mode"), [(_windows, "append"), (_sessions, "append"), (_totals, "update")]
)
def test_batches_are_those_of_spark_while_key_groups_move(
    spark: SparkSession, tmp_path: Path, build: Any, mode: str
) -> None:
    draw = random.Random(3)
    batches = [draw_rows(draw, batch, 10) for batch in range(4)]
    streams = {"s": Stream(schema=COLUMNS, batches=batches)}
    with settings(spark), written(spark, streams) as frames:
        query = build(**frames)
        outcomes = [
            run_live(
                writer,
                streams["s"],
                mode=mode,
                checkpoint=str(tmp_path / name),
                then=then,
            )
            for writer, name, then in (
                (query.writeStream, "native", _nothing),
                (gw.write_stream(query), "adopted", _nothing),
                (gw.write_stream(query), "moved", _move),
            )
        ]
    native, adopted, moved = outcomes
    assert_same(adopted, native)
    # A migration may end in an epoch of its own, which has no rows of the query.
    assert_same(dict(enumerate(moved.values())), dict(enumerate(native.values())))
