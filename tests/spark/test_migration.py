"""Migrations as a user asks for them: what is refused, cancelled, and what a stop means."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.spark.streams import Inbox, counted, rows_of
from tests.spark.test_restart import Example, generated

import godwit as gw
from godwit.model import events
from godwit.model.errors import InvalidPlanError, MigrationError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

PATIENCE_S = 120.0


def everything_to(query: gw.types.Query, component: str, executor: str) -> dict[int, str]:
    return dict.fromkeys(range(query.placement.assignments[component].num_key_groups), executor)


def exchanged(query: gw.types.Query, component: str) -> dict[int, str]:
    """Every key group to the other executor."""
    assignment = query.placement.assignments[component]
    other = {"local-0": "local-1", "local-1": "local-0"}
    return {g: other[assignment.executor(g)] for g in range(assignment.num_key_groups)}


def test_plans_that_make_no_sense_are_refused_and_change_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put(generated(1)[0])
    query = Example(inbox).flow.start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    before = query.placement.assignments
    current = before["totals"]
    with pytest.raises(InvalidPlanError, match="executor 'local-9', which does not exist"):
        query.migrate({1: "local-9"}, component="totals")
    with pytest.raises(InvalidPlanError, match=r"Key group 16 does not exist.*0 to 15"):
        query.migrate({16: "local-0"}, component="totals")
    with pytest.raises(InvalidPlanError, match=r"The flow has several components.*totals"):
        query.migrate({1: "local-1"})
    with pytest.raises(InvalidPlanError, match="There is no component 'total'"):
        query.migrate({1: "local-1"}, component="total")
    unknown: Any = "gentle"
    with pytest.raises(InvalidPlanError, match=r"no strategy 'gentle'.*live, disruptive"):
        query.migrate({1: "local-1"}, component="totals", strategy=unknown)
    with pytest.raises(InvalidPlanError, match="max_moves of a migration is 0"):
        query.migrate({1: "local-1"}, component="totals", bounds=gw.migration.Bounds(max_moves=0))
    nothing: Any = None
    with pytest.raises(InvalidPlanError, match="plan of type NoneType"):
        query.migrate(nothing, component="totals")
    with pytest.raises(InvalidPlanError, match=r"not total: key groups \[3\] have no place"):
        gw.migration.Assignment(
            version=1,
            executors=current.executors,
            lanes=current.lanes,
            executor_of=np.where(np.arange(16) == 3, -1, current.executor_of).astype(np.int32),
            lane_of=current.lane_of.copy(),
        )
    with pytest.raises(InvalidPlanError, match="8 key groups"):
        query.migrate(
            gw.migration.even_assignment(8, ["local-0", "local-1"], [1, 1]), component="totals"
        )
    with pytest.raises(InvalidPlanError, match="ghost"):
        query.migrate(
            gw.migration.even_assignment(16, ["local-0", "ghost"], [1, 1]), component="totals"
        )
    assert query.placement.assignments == before
    assert not any(isinstance(e, events.MigrationStarted) for e in query.events)
    inbox.put(generated(1)[1])
    query.processAllAvailable()
    query.stop()
    with pytest.raises(MigrationError, match="Query 'example' has stopped"):
        query.migrate({1: "local-1"}, component="totals")


def test_a_component_has_one_migration_at_a_time_and_it_can_be_cancelled(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put(*generated(1)[:3])
    query = Example(inbox).flow.start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    migration = query.migrate(everything_to(query, "order", "local-0"), component="order")
    with pytest.raises(MigrationError, match=f"{migration.id!r} is under way"):
        query.migrate({1: "local-1"}, component="order")
    with pytest.raises(MigrationError, match="has not ended after 0 s"):
        migration.wait(0)
    migration.cancel("second thoughts")
    ended = migration.wait(PATIENCE_S)
    assert (ended.outcome, ended.reason) == ("cancelled", "second thoughts")
    with pytest.raises(MigrationError, match="There is no migration"):
        migration.cancel()
    inbox.put(*generated(1)[3:])
    query.processAllAvailable()
    query.stop()


def test_a_query_that_is_stopped_while_epochs_are_held_has_not_failed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from godwit.spark.background_copies import BackgroundCopies

    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    epochs = generated(1)
    inbox.put(epochs[0])
    example = Example(inbox)
    query = example.flow.start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    # Warming that neither ends nor fails: the world stands still.
    monkeypatch.setattr(BackgroundCopies, "_warm", lambda _self, _command: None)
    plan = exchanged(query, "order")
    query.migrate(plan, component="order", strategy="stop_the_world")
    assert any("moves everything first" in reason for reason in query.status["held"])
    inbox.put(epochs[1])
    deadline = time.monotonic() + PATIENCE_S
    while not query.status["isDataAvailable"] and time.monotonic() < deadline:
        time.sleep(0.05)
    query.stop()
    assert query.exception() is None
    assert query.awaitTermination(10) is True
    assert isinstance(query.events[-1], events.QueryStopped)
    monkeypatch.undo()

    again = Example(inbox)
    query = again.flow.start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    query.stop()
    assert sorted(again.sinks["order"].epochs) == [0, 1]
    assert counted(rows_of(again.sinks["order"].epochs[1])) == counted(
        (k, n, n + 1) for k, n in epochs[1]
    )
