"""Queries that are asked through their checkpoint to end, as `godwit stop` does it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, rows_of, totals

import godwit as gw
from godwit.checkpoint.requests import read_request
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.ops.requests import CUT_SHORT, DONE, NOT_RUNNING, STILL_RUNS, end_query
from godwit.runtime.lifecycle import stopped_on_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.checkpoint.requests import Action

pytestmark = pytest.mark.spark

ROWS = [{"k": f"k{n % 5}", "v": n} for n in range(40)]


def own(source: Any, sink: Any) -> gw.Flow:
    flow = gw.Flow("own", num_key_groups=4)
    keyed = flow.source("rows", source).key_by("k")
    flow.sink("out", keyed.compute(name="t", total=gw.sum("v")), sink)
    return flow


def request(checkpoint: Path, action: Action, **options: Any) -> tuple[int, str]:
    """Return the exit status of a request to end, and what it said."""
    lines: list[str] = []
    options = {"timeout_s": 120.0, **options}
    status = end_query(CheckpointStorage.open(checkpoint), action, lines.append, **options)
    return status, "\n".join(lines)


class Door(gw.sinks.Sink):
    """Calls `within` when the lanes' output of an epoch is delivered; keeps the totals."""

    def __init__(self, within: Callable[[], object]) -> None:
        self.within = within
        self.rows: list[Any] = []

    def open(self, context: gw.sinks.SinkContext) -> None:
        """Need nothing."""

    def deliver(self, output: gw.sinks.EpochOutput) -> None:
        self.within()
        self.rows = rows_of(output.dataframe())


def test_a_query_over_own_sources_drains_what_they_have_and_continues_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = gw.sources.memory("k string, v long", max_rows_per_epoch=7)
    sink = gw.sinks.memory()
    with own(source, sink).start(checkpoint=tmp_path / "ck", session=spark) as query:
        source.add(ROWS[:30])
        status, text = request(tmp_path / "ck", "drain")
        assert (status, query.isActive) == (DONE, False), text
        assert query.exception() is None
        assert any(isinstance(event, events.EndRequested) for event in query.events)
    assert sum(row["total"] for row in last_totals(sink)) == sum(range(30))
    assert request(tmp_path / "ck", "stop")[0] == NOT_RUNNING

    # The old request is none of the next run's.
    with own(source, sink).start(checkpoint=tmp_path / "ck", session=spark) as query:
        source.add(ROWS[30:])
        query.processAllAvailable()
        assert query.isActive
        with pytest.raises(GodwitError, match="no source 'no' can be given an end, only: rows"):
            request(tmp_path / "ck", "drain", ends={"no": 1})
        with pytest.raises(GodwitError, match="does not take 'x' for an end"):
            request(tmp_path / "ck", "drain", ends={"rows": "x"})
        assert query.isActive
        assert request(tmp_path / "ck", "stop")[0] == DONE
    assert sum(row["total"] for row in last_totals(sink)) == sum(range(40))


def last_totals(sink: Any) -> list[dict[str, Any]]:
    return list({row["k"]: row for row in sink.table().to_pylist()}.values())


def test_a_query_over_dataframes_drains_what_they_have_and_own_sources_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    sink = gw.sinks.memory()
    inbox.put([("a", 1)])
    query = totals(inbox, sink).start(
        checkpoint=tmp_path / "ck", trigger={"processingTime": "1 hour"}
    )
    with query:
        inbox.put([("a", 10)], [("b", 100)], [("b", 1000)])
        status, text = request(tmp_path / "ck", "drain")
        assert status == DONE, text
        assert query.exception() is None
    assert {row["k"]: row["total"] for row in last_totals(sink)} == {"a": 11, "b": 1100}


def test_a_drain_begins_where_a_first_micro_batch_was_cut_short(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    sink = gw.sinks.memory()
    query = totals(inbox, sink).start(
        checkpoint=tmp_path / "ck", trigger={"processingTime": "1 hour"}
    )
    with query:
        left = tmp_path / "ck/spark/offsets/.0.00000000-0000-0000-0000-000000000000.tmp"
        left.write_text("torn")
        inbox.put([("a", 1)])
        status, text = request(tmp_path / "ck", "drain")
        assert status == DONE, text
    assert last_totals(sink) == [{"k": "a", "total": 1}]


@pytest.mark.parametrize("of_spark", [False, True])
def test_a_stop_lets_the_running_epoch_end_and_overrides_a_drain(
    spark: SparkSession, tmp_path: Path, *, of_spark: bool
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(120)

    sink = Door(wait)
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    source = gw.sources.memory("k string, v long", max_rows_per_epoch=10)
    flow = totals(inbox, sink) if of_spark else own(source, sink)
    # Before the start: the first epoch has rows, so it is the one that is delivered.
    if of_spark:
        inbox.put([("k0", 5)], [("k0", 7)])
    else:
        source.add(ROWS)
    with flow.start(checkpoint=tmp_path / "ck", session=spark) as query:
        assert begun.wait(120)
        assert request(tmp_path / "ck", "drain", timeout_s=0)[0] == STILL_RUNS
        assert request(tmp_path / "ck", "stop", timeout_s=1)[0] == STILL_RUNS
        threading.Timer(0.5, go_on.set).start()
        assert request(tmp_path / "ck", "stop")[0] == DONE
        assert query.exception() is None
        assert query.status["committedEpoch"] >= 0
        run = query._run.lease_run_id
    assert sink.rows
    drain = read_request(CheckpointStorage.open(tmp_path / "ck"), run, "drain")
    assert drain is not None
    assert drain.answer is not None
    assert drain.answer.state == "cut short"


def test_a_query_that_fails_while_it_drains_says_so(spark: SparkSession, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert go_on.wait(120)
        raise OSError("the disk is gone")

    source = gw.sources.memory("k string, v long")
    query = own(source, Door(fail)).start(checkpoint=tmp_path / "ck", session=spark)
    source.add(ROWS)
    assert begun.wait(120)
    assert request(tmp_path / "ck", "drain", timeout_s=0)[0] == STILL_RUNS
    threading.Timer(0.5, go_on.set).start()
    status, text = request(tmp_path / "ck", "drain")
    assert status == CUT_SHORT
    assert "the disk is gone" in text
    with pytest.raises(GodwitError):
        query.awaitTermination()
    assert not stopped_on_request()
