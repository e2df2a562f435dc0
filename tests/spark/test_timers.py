"""Timers on Spark: an epoch is run for those that are due, and they can be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

S = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def remind(_key: Any, rows: Any, _state: Any) -> None:
    for row in rows:
        rows.timers.set(EPOCH + timedelta(seconds=row.v))


def fired(key: Any, timer: Any, _state: Any) -> Any:
    yield key[0], int((timer.time - EPOCH).total_seconds())


def test_a_quiet_stream_fires_timers_and_a_restart_fires_none_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, ts timestamp, v long")
    inbox.put([("a", 0, 10), ("b", 0, 50), ("a", 0, 100)], [("c", 60 * S, 61)])

    def run(sink: Any) -> gw.types.Query:
        flow = gw.Flow("timers", num_key_groups=8)
        rows = flow.source("rows", inbox.stream(), event_time="ts")
        reminded = rows.key_by("k").process(
            remind,
            name="remind",
            state=gw.ValueState(list, ttl="100 days"),
            output="k string, at long",
            timers=gw.types.OnTimer(fired, clock="event"),
        )
        flow.sink("out", reminded, sink)
        query = flow.start(checkpoint=tmp_path / "ck")
        query.processAllAvailable()
        query.stop()
        return query

    first, second = gw.sinks.memory(), gw.sinks.memory()
    run(first)
    assert sorted(row for t in first.epochs.values() for row in rows_of(t)) == [
        ("a", 10),
        ("b", 50),
    ]
    state = {row["k"]: row for row in gw.read_state(spark, tmp_path / "ck", "remind").collect()}
    assert [len(state[k]["timers"]) for k in "abc"] == [1, 0, 1]
    assert all(row["expires"] is not None for row in state.values())
    inbox.put([("b", 101 * S, 500)])
    run(second)
    last = max(first.epochs, default=-1)
    later = [row for e, t in second.epochs.items() if e > last for row in rows_of(t)]
    assert sorted(later) == [("a", 100), ("c", 61)]


def note(_key: Any, rows: Any, states: Any) -> None:
    for row in rows:
        states.total.value += row.v
        states.recent.append(row.v)
        states.per_value[row.v] = states.per_value.get(row.v, 0) + 1
        rows.timers.set(EPOCH + timedelta(seconds=row.v))


def tell(key: Any, timer: Any, states: Any) -> Any:
    yield key[0], int((timer.time - EPOCH).total_seconds()), states.total.value
    states.recent.clear()


def test_named_states_come_back_and_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, ts timestamp, v long")
    inbox.put([("a", 0, 10), ("b", 0, 50), ("a", 0, 100)], [("a", 60 * S, 100)])
    states: dict[str, Any] = {
        "total": gw.ValueState(int),
        "recent": gw.ListState(int, ttl="100 days"),
        "per_value": gw.MapState(int, int),
    }

    def run(**others: Any) -> list[Any]:
        sink = gw.sinks.memory()
        flow = gw.Flow("noting", num_key_groups=8)
        noted = flow.source("rows", inbox.stream(), event_time="ts").key_by("k")
        stream = noted.process(
            note,
            name="note",
            state=states | others,
            output="k string, at long, total long",
            timers=gw.types.OnTimer(tell, clock="event"),
        )
        flow.sink("out", stream, sink)
        query = flow.start(checkpoint=tmp_path / "ck")
        query.processAllAvailable()
        query.stop()
        return sorted(row for table in sink.epochs.values() for row in rows_of(table))

    def held(state: str) -> Any:
        frame = gw.read_state(spark, tmp_path / "ck", "note", state=state)
        return sorted(map(tuple, frame.drop("key_group", "expires").collect()))

    assert run() == [("a", 10, 210), ("b", 50, 50)]
    assert held("total") == [("a", "210"), ("b", "50")]
    assert held("recent") == []
    assert held("per_value") == [("a", 10, "1"), ("a", 100, "2"), ("b", 50, "1")]
    assert [(key, len(of)) for key, of in held("timers")] == [("a", 1)]
    with pytest.raises(gw.errors.CheckpointError, match="has several states"):
        gw.read_state(spark, tmp_path / "ck", "note")
    inbox.put([("a", 101 * S, 500)])
    assert ("a", 100, 710) in run(new=gw.ValueState(dict))
    assert held("recent") == []
    del states["recent"]
    with pytest.raises(gw.errors.CheckpointMismatchError, match="no longer has 'recent'"):
        run(new=gw.ValueState(dict))
