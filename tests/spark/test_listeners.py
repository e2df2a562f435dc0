"""Listeners hear of everything in order, and cannot disturb what they hear of."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.model import events

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE_S = 60.0


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")


def totals(inbox: Inbox, sink: Any) -> gw.Flow:
    flow = gw.Flow("heard", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).key_by("k").compute(name="t", total=gw.sum("v"))
    flow.sink("out", stream, sink)
    return flow


def test_a_listener_that_raises_disturbs_nobody_and_is_reported_once(
    inbox: Inbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = gw.sinks.memory()
    query = totals(inbox, sink).start(checkpoint=tmp_path / "ck")
    heard: list[events.Event] = []

    def broken(_event: events.Event) -> None:
        msg = "a listener of no use"
        raise RuntimeError(msg)

    query.add_listener(broken)
    query.add_listener(heard.append)
    inbox.put([("a", 1)])
    query.processAllAvailable()
    inbox.put([("a", 2)])
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    assert rows_of(sink.table()) == [("a", 3)]
    committed = [e.epoch for e in heard if isinstance(e, events.EpochCommitted)]
    assert committed == [0, 1]
    reports = [r for r in caplog.records if "a listener of no use" in r.getMessage()]
    assert len(reports) == 1


def test_a_listener_that_migrates_reorders_nothing(inbox: Inbox, tmp_path: Path) -> None:
    query = totals(inbox, gw.sinks.memory()).start(checkpoint=tmp_path / "ck")
    heard: list[events.Event] = []
    asked = threading.Event()

    def moving(event: events.Event) -> None:
        heard.append(event)
        if isinstance(event, events.EpochCommitted) and not asked.is_set():
            query.migrate(dict.fromkeys(range(4), "local-1"), strategy="disruptive")
            asked.set()

    query.add_listener(moving)
    inbox.put([("a", 1)])
    assert asked.wait(PATIENCE_S)
    inbox.put([("a", 2)])
    query.processAllAvailable()
    deadline = time.monotonic() + PATIENCE_S
    while not any(isinstance(e, events.MigrationFinished) for e in query.events):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    query.stop()
    kinds = [type(e).__name__ for e in query.events]
    assert kinds.index("MigrationStarted") < kinds.index("AssignmentSwitched")
    assert kinds.index("AssignmentSwitched") < kinds.index("MigrationFinished")
    told = [e for e in query.events if e in heard]
    assert heard == told
