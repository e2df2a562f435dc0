"""A stream without rows still drains what waits and ends its migrations."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkContext
from tests.spark.streams import Inbox, rows_of
from tests.spark.test_losses import PATIENCE_S, Stream, lose_executor, until
from tests.spark.test_restart import Example, generated

from godwit.model import events
from godwit.spark.background_copies import BackgroundCopies

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


def test_a_migration_ends_although_no_row_arrives(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    epochs = generated(1)
    inbox.put(*epochs[:2])
    example = Example(inbox)
    query = example.flow.start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    plan = dict.fromkeys(range(16), "local-1")
    ended = query.migrate(plan, component="order").wait(PATIENCE_S)
    assert (ended.outcome, ended.withdrawn) == ("finished", 0)
    query.processAllAvailable()  # the epoch that it ended with is delivered, too
    last = query.recentProgress[-1]
    assert (last["epoch"], last["batchId"], last["numInputRows"]) == (2, None, 0)
    inbox.put(epochs[2])
    query.processAllAvailable()
    assert (query.recentProgress[-1]["epoch"], query.recentProgress[-1]["batchId"]) == (3, 2)
    query.stop()

    # Numbers of epochs and of micro-batches go their own ways, also over a restart.
    inbox.put(*epochs[3:])
    again = Example(inbox)
    query = again.flow.start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    assert [(p["epoch"], p["batchId"]) for p in query.recentProgress] == [(4, 3), (5, 4), (6, 5)]
    query.stop()
    total: dict[int, int] = {}
    for key, number in (row for rows in epochs for row in rows):
        total[key] = total.get(key, 0) + number
    # The last epoch of the first run is delivered again.
    results = {**example.sinks["totals"].epochs, **again.sinks["totals"].epochs}
    newest = {row[0]: row[1] for e in sorted(results) for row in rows_of(results[e])}
    assert newest == total


def test_rows_that_wait_are_drained_before_all_available_counts_as_processed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = threading.Event()
    warm = BackgroundCopies._warm

    def patient(self: BackgroundCopies, command: Any) -> None:
        assert allowed.wait(PATIENCE_S)
        warm(self, command)

    monkeypatch.setattr(BackgroundCopies, "_warm", patient)
    epochs = generated(1)
    stream = Stream(spark, tmp_path)
    stream.process(*epochs[:3])
    lose_executor(monkeypatch, stream)
    for rows in epochs[3:]:
        stream.inbox.put(rows)
    until(lambda: stream.query.recentProgress[-1]["batchId"] == 5, "all rows to be read")
    assert stream.query.status["keyGroupsSuspended"] > 0
    allowed.set()
    stream.query.processAllAvailable()
    stream.check(epochs)
    assert stream.query.recentProgress[-1]["batchId"] is None
    stream.query.stop()


def test_rows_that_wait_are_drained_before_a_query_ends_with_its_input(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = generated(1)
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put(*epochs)
    example = Example(inbox, deep=False)
    query = example.flow.start(checkpoint=tmp_path / "ck", trigger={"availableNow": True})
    until(lambda: query.lastProgress is not None, "the first epoch")
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 1))
    query.awaitTermination()
    assert not query.isActive
    assert isinstance(query.events[-1], events.QueryStopped)
    checked = Stream.__new__(Stream)
    checked.example = example
    checked.check(epochs)
