"""A second query on a checkpoint that is in use is refused, and the first continues."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import Inbox, drain, rows_of, totals

import godwit as gw
from godwit.checkpoint.ownership import break_lease
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointInUseError, GodwitError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")


def test_a_second_query_of_the_same_session_is_refused_by_name_and_the_first_goes_on(
    inbox: Inbox, tmp_path: Path
) -> None:
    sink = gw.sinks.memory()
    first = totals(inbox, sink).start(checkpoint=tmp_path / "ck", name="first")
    inbox.put([("a", 1)])
    first.processAllAvailable()
    run = re.escape(first.runId.partition("-")[2])
    with pytest.raises(CheckpointInUseError, match=rf"in use by run '{run}' \(process \d+"):
        totals(inbox, gw.sinks.memory()).start(checkpoint=tmp_path / "ck", name="second")
    inbox.put([("a", 10)])
    first.processAllAvailable()
    assert first.isActive
    first.stop()
    assert rows_of(sink.table()) == [("a", 11)]

    inbox.put([("a", 100)])
    drain(totals(inbox, sink), tmp_path / "ck")
    assert rows_of(sink.table()) == [("a", 111)]


def test_a_start_that_fails_and_a_query_that_failed_let_go_of_the_checkpoint(
    inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1)])
    failing = totals(inbox, gw.sinks.memory())
    with pytest.raises(GodwitError):
        failing.start(
            checkpoint=tmp_path / "ck", executors=100, sizing=gw.Sizing(executors_timeout_s=0)
        )

    def refuse(_rows: object, _epoch: int) -> None:
        raise ZeroDivisionError

    flow = gw.Flow("query", num_key_groups=8)
    stream = flow.source("rows", inbox.stream()).key_by("k").compute(name="t", total=gw.sum("v"))
    flow.sink("out", stream, gw.sinks.foreach(refuse))
    failed = flow.start(checkpoint=tmp_path / "ck", trigger={"availableNow": True})
    while failed.isActive:  # nobody waits for it, so nobody hears of the failure
        pass
    sink = gw.sinks.memory()
    drain(totals(inbox, sink), tmp_path / "ck")
    assert rows_of(sink.table()) == [("a", 1)]


@pytest.mark.parametrize(
    "where",
    [
        "godwit.spark.opening.FlowEpochs",
        "godwit.spark.start.wait_for_sources",
    ],
)
def test_a_start_that_ctrl_c_ends_leaves_nothing_running(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Spark's query used to continue and commit, without a claim on the checkpoint."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    inbox.put([("a", 1)])
    before = {thread.name for thread in threading.enumerate()}
    with monkeypatch.context() as patch:
        patch.setattr(where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            totals(inbox, gw.sinks.memory()).start(checkpoint=tmp_path / "ck")
    assert inbox.spark.streams.active == []
    until_s = time.monotonic() + 120
    while left := {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("godwit") and thread.name not in before
    }:
        assert time.monotonic() < until_s, left
        time.sleep(0.02)
    sink = gw.sinks.memory()
    drain(totals(inbox, sink), tmp_path / "ck")
    assert rows_of(sink.table()) == [("a", 1)]


def test_a_query_whose_checkpoint_is_taken_from_it_ends_though_no_row_arrives(
    inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1)])
    query = totals(inbox, gw.sinks.memory()).start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    break_lease(CheckpointStorage.open(tmp_path / "ck"))
    with pytest.raises(CheckpointInUseError, match="was taken from outside"):
        query.awaitTermination(30)
    assert not query.isActive
