"""Flows over Godwit's own sources: a loop of ours calls for their epochs, and no micro-batch."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.spark.streams import counted

import godwit as gw
from godwit.engine import cluster as cluster_port
from godwit.model import events
from godwit.model.errors import CheckpointMismatchError, InvalidFlowError, SourceError
from godwit.runtime import lifecycle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.sources import MemorySource

pytestmark = pytest.mark.spark

COLUMNS = "k string, v long"
ROWS = [{"k": f"k{i % 7}", "v": i} for i in range(100)]


def doubled(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "v", pc.multiply(rows["v"], 2))


def flow_of(source: Any, sink: Any) -> gw.Flow:
    flow = gw.Flow("own", num_key_groups=8)
    keyed = flow.source("rows", source).map(doubled).key_by("k")
    flow.sink("out", keyed.compute(name="t", total=gw.sum("v"), n=gw.count()), sink)
    return flow


def expected(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for row in rows:
        total, n = totals.get(row["k"], (0, 0))
        totals[row["k"]] = (total + 2 * row["v"], n + 1)
    return totals


def state_of(spark: SparkSession, checkpoint: Path) -> dict[str, tuple[int, int]]:
    rows = gw.read_state(spark, checkpoint, "t").collect()
    return {row["k"]: (row["total"], row["n"]) for row in rows}


def test_an_epoch_that_a_stop_aborts_does_not_fail_the_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_GRACE_S", 0.1)
    begun = tmp_path / "begun"

    def slow(key: Any, rows: Any, state: Any) -> Any:
        begun.touch()
        time.sleep(60 if len(list(rows)) == 2 else 0)
        yield key[0], 1

    source = gw.sources.memory("k long")
    flow = gw.Flow("aborted", num_key_groups=4)
    keyed = flow.source("rows", source).key_by("k")
    flow.sink(
        "out",
        keyed.process(slow, name="p", state=dict, output="k long, n long"),
        gw.sinks.noop(),
    )
    with flow.start(checkpoint=tmp_path / "ck", session=spark) as query:
        query.processAllAvailable()  # the first epoch, which has no rows
        source.add([{"k": 1}, {"k": 1}])
        deadline_s = time.monotonic() + 120
        while not begun.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        query.stop()
        assert query.exception() is None


@pytest.mark.parametrize("here", [True, False], ids=["by the driver", "by tasks"])
def test_every_row_is_processed_once_over_restarts_and_positions_are_the_only_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, here: bool
) -> None:
    if not here:
        monkeypatch.setattr(cluster_port, "ROWS_HERE", -1)
    sink = gw.sinks.memory()
    source = gw.sources.memory(COLUMNS, ROWS[:40], max_rows_per_epoch=15)
    query = flow_of(source, sink).start(checkpoint=tmp_path / "ck", session=spark)
    query.processAllAvailable()
    assert state_of(spark, tmp_path / "ck") == expected(ROWS[:40])
    source.add(ROWS[40:60])
    query.processAllAvailable()
    progress = [p for p in query.recentProgress if p["batchId"] is not None]
    assert [p["numInputRows"] for p in progress] == [15, 15, 10, 15, 5]
    assert progress[-1]["sources"][0]["endOffset"] == {"position": 60}
    assert query.status["message"] == "Waiting for data to arrive"
    query.stop()
    assert not query.isActive

    again = gw.sources.memory(COLUMNS, ROWS)
    bounded = flow_of(again, sink).start(checkpoint=tmp_path / "ck", trigger={"availableNow": True})
    bounded.awaitTermination()
    assert [p["numInputRows"] for p in bounded.recentProgress if p["numInputRows"]] == [40]
    assert bounded.id == query.id
    assert state_of(spark, tmp_path / "ck") == expected(ROWS)
    assert not (tmp_path / "ck" / "spark").exists()
    assert spark.streams.active == []


def test_a_driver_that_dies_between_any_two_steps_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    class DiedError(Exception):
        pass

    sink = gw.sinks.memory()
    for number, step in enumerate(("planned", "staged", "committed", "delivered", None)):
        source = gw.sources.memory(COLUMNS, ROWS[: 20 * (number + 1)], max_rows_per_epoch=20)
        query = flow_of(source, sink).start(checkpoint=tmp_path / "ck", session=spark)
        query.processAllAvailable()

        def at_step(done: str, _epoch: int, step: str | None = step) -> None:
            if done == step:
                raise DiedError

        setattr(query._run.loop, "at_step", at_step)  # noqa: B010  a method of the class
        source.add(ROWS[20 * (number + 1) : 20 * (number + 2)])
        if step is None:
            query.stop()
        else:
            with pytest.raises(gw.errors.GodwitError, match="DiedError"):
                query.awaitTermination()
    assert state_of(spark, tmp_path / "ck") == expected(ROWS)
    delivered = counted(tuple(row) for table in sink.epochs.values() for row in _rows(table))
    assert max(delivered.values()) == 1
    assert sorted(sink.epochs) == list(range(len(sink.epochs)))


class Hesitant(gw.sinks.MemorySink):
    """Is given epochs while the next one runs; delivers when it may, and fails where it is to."""

    delivers_concurrently = True

    def __init__(self) -> None:
        super().__init__()
        self.may, self.fails = threading.Event(), False

    def deliver(self, output: Any) -> None:
        assert self.may.wait(120), "no epoch began while this one was delivered"
        if self.fails:
            message = "the target is away"
            raise OSError(message)
        super().deliver(output)


def test_an_epoch_is_delivered_beside_the_stages_of_the_next_and_before_its_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, reached = Hesitant(), list[tuple[str, int]]()
    source = gw.sources.memory(COLUMNS, ROWS[:30], max_rows_per_epoch=10)
    sink.may.set()
    query = flow_of(source, sink).start(checkpoint=tmp_path / "ck", session=spark)
    query.processAllAvailable()
    assert sorted(sink.epochs) == [0, 1, 2]

    def at_step(done: str, epoch: int) -> None:
        reached.append((done, epoch))
        if (done, epoch) == ("staged", 4):
            sink.may.set()

    setattr(query._run.loop, "at_step", at_step)  # noqa: B010  a method of the class
    sink.may.clear()
    source.add(ROWS[30:50])
    query.processAllAvailable()
    order = [("committed", 3), ("staged", 4), ("delivered", 3), ("committed", 4), ("delivered", 4)]
    assert [step for step in reached if step in order] == order
    assert [p["epoch"] for p in query.recentProgress] == [0, 1, 2, 3, 4]
    assert "await_delivery" in query.recentProgress[-1]["durationMs"]

    sink.may.clear()
    sink.fails = True
    reached.clear()

    def fails(done: str, epoch: int) -> None:
        reached.append((done, epoch))
        if (done, epoch) == ("staged", 6):
            sink.may.set()

    setattr(query._run.loop, "at_step", fails)  # noqa: B010  as above
    source.add(ROWS[50:70])
    with pytest.raises(gw.errors.SinkError, match="the target is away"):
        query.awaitTermination()
    assert ("committed", 5) in reached
    assert ("committed", 6) not in reached
    assert 5 not in sink.epochs
    sink.fails = False
    again = gw.sources.memory(COLUMNS, ROWS)
    query = flow_of(again, sink).start(checkpoint=tmp_path / "ck", session=spark)
    query.processAllAvailable()
    sink.may.clear()
    again.add(ROWS[:1])
    while query._run.loop._delivered is None:
        time.sleep(0.01)
    threading.Timer(0.2, sink.may.set).start()
    query.stop()  # once what is committed is delivered
    assert sorted(sink.epochs) == list(range(len(sink.epochs)))
    assert state_of(spark, tmp_path / "ck") == expected([*ROWS, ROWS[0]])


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


class Changeable(gw.sources.MemorySource):
    """Raises where it is read."""

    def read(self, split: Any, columns: Any) -> Any:
        message = f"{split.what} have gone"
        raise FileNotFoundError(message)


@pytest.mark.parametrize("here", [True, False], ids=["by the driver", "by tasks"])
def test_a_source_that_cannot_be_read_fails_the_query_by_name_and_nothing_is_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, here: bool
) -> None:
    if not here:
        monkeypatch.setattr(cluster_port, "ROWS_HERE", -1)
    source = Changeable(COLUMNS)
    source.add(ROWS[:1])
    sink = gw.sinks.memory()
    query = flow_of(source, sink).start(checkpoint=tmp_path / "ck", session=spark)
    with pytest.raises(SourceError, match=r"Source 'rows'.*rows 0 to 0 have gone"):
        query.awaitTermination()
    assert sink.epochs == {}
    good = gw.sources.memory(COLUMNS, ROWS[:1])
    query = flow_of(good, sink).start(checkpoint=tmp_path / "ck", trigger={"once": True})
    query.awaitTermination()
    assert state_of(spark, tmp_path / "ck") == expected(ROWS[:1])


def test_what_cannot_be_right_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    source = gw.sources.memory(COLUMNS, ROWS[:1])
    flow = flow_of(source, gw.sinks.noop())
    flow.start(checkpoint=tmp_path / "ck", trigger={"availableNow": True}).awaitTermination()
    with pytest.raises(CheckpointMismatchError, match="memory other"):
        flow_of(gw.sources.memory(COLUMNS, name="other"), gw.sinks.noop()).start(
            checkpoint=tmp_path / "ck"
        )
    with pytest.raises(InvalidFlowError, match="soon"):
        flow.start(checkpoint=tmp_path / "ck", trigger={"processingTime": "soon"})
    query = flow.start(checkpoint=tmp_path / "ck", name="one")
    with pytest.raises(InvalidFlowError, match="'one' is running"):
        flow.start(checkpoint=tmp_path / "other", name="one")
    query.stop()


def test_windows_close_by_the_event_time_of_own_rows_and_at_the_end_of_the_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = gw.sources.memory(
        "k string, ts timestamp",
        [{"k": "a", "ts": f"2024-05-01 0{hour}:30:00Z"} for hour in (1, 1, 2, 5)],
    )
    flow, sink = gw.Flow("hours", num_key_groups=4), gw.sinks.memory()
    keyed = flow.source("rows", source, event_time="ts").key_by("k")
    flow.sink("out", keyed.window(gw.tumbling("1 hour")).compute(n=gw.count()), sink)
    query = flow.start(
        checkpoint=tmp_path / "ck",
        trigger={"availableNow": True},
        close_at_end=True,
        session=spark,
    )
    query.awaitTermination()
    counts = [row["n"] for table in sink.epochs.values() for row in table.to_pylist()]
    assert sorted(counts) == [1, 1, 2]


def test_the_journal_tells_how_far_behind_its_sources_a_query_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    source: MemorySource = gw.sources.memory(COLUMNS, ROWS, max_rows_per_epoch=60)
    flow = flow_of(source, gw.sinks.noop())
    query = flow.start(checkpoint=tmp_path / "ck", trigger={"once": True}, session=spark)
    query.awaitTermination()
    assert query.exception() is None
    assert [p["numInputRows"] for p in query.recentProgress] == [100]
    assert any(isinstance(event, events.QueryStopped) for event in query.events)
    json.dumps(query.recentProgress)
