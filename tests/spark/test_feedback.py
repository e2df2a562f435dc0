"""Loops on Spark: over own sources, over DataFrames, by resident lanes, and over restarts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox
from tests.support.loop_flows import closure_flow, closure_of, countdown_flow, counted_down

import godwit as gw
from godwit.engine import cluster as cluster_port
from godwit.model.events import FeedbackPaused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def edges_of(sink: Any) -> set[tuple[int, int]]:
    return {(row["origin"], row["node"]) for row in sink.table().to_pylist()}


def counts(spark: SparkSession, checkpoint: Path) -> dict[str, tuple[int, int]]:
    rows = gw.read_state(spark, checkpoint, "down").collect()
    states = {row["key"]: json.loads(row["state"]) for row in rows}
    return {key: (state["rows"], state["sum"]) for key, state in states.items()}


def test_a_loop_over_own_sources_goes_round_until_it_is_dry_and_pauses_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", 7), ("b", 3), ("c", 0)]
    given = [{"key": key, "left": left} for key, left in rows]

    def source() -> Any:
        made = gw.sources.memory("key string, left long")
        made.add(given)
        return made

    flow = countdown_flow(source(), gw.sinks.noop(), max_rounds=3)
    query = flow.start(checkpoint=tmp_path / "ck", trigger={"availableNow": True}, session=spark)
    query.awaitTermination()
    paused = [event for event in query.events if isinstance(event, FeedbackPaused)]
    assert [(event.loop, event.rounds, event.rows) for event in paused] == [("again", 3, 1)]
    assert counts(spark, tmp_path / "ck") != counted_down(rows)
    # The next run continues, with rows that tasks read, long before the trigger is due again.
    monkeypatch.setattr(cluster_port, "ROWS_HERE", -1)
    flow = countdown_flow(source(), gw.sinks.noop())
    query = flow.start(
        checkpoint=tmp_path / "ck", trigger={"processingTime": "1 hour"}, session=spark
    )
    query.processAllAvailable()
    query.stop()
    assert counts(spark, tmp_path / "ck") == counted_down(rows)


def test_a_loop_over_a_dataframe_and_lanes_that_stay(spark: SparkSession, tmp_path: Path) -> None:
    graph = [(1, 2), (2, 3), (3, 4), (4, 2), (5, 6), (6, 1)]
    columns = "node long, origin long, target long"
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=columns)
    sink = gw.sinks.memory()
    query = closure_flow(inbox.stream(), sink).start(
        checkpoint=tmp_path / "ck", lanes=gw.Lanes(resident=True)
    )
    done = 0
    for until in (2, 5):
        inbox.put([(node, None, target) for node, target in graph[done:until]])
        done = until
        query.processAllAvailable()
        assert edges_of(sink) == closure_of(graph[:until])
    query.stop()
    inbox.put([(node, None, target) for node, target in graph[done:]])
    flow = closure_flow(inbox.stream(), sink)
    query = flow.start(checkpoint=tmp_path / "ck", trigger={"availableNow": True})
    query.awaitTermination()
    assert edges_of(sink) == closure_of(graph)
