"""Planners on a running query: its problem, a plan, what is shown, what is carried out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.model.errors import InvalidPlanError, InvalidProblemError
from godwit.placement import Limits, planner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.runtime.placement import Migration

pytestmark = pytest.mark.spark


def totals(inbox: Inbox, sink: Any) -> gw.Flow:
    flow = gw.Flow("totals", num_key_groups=16)
    by_key = flow.source("numbers", inbox.stream()).key_by("k").compute(total=gw.sum("number"))
    flow.sink("out", by_key, sink)
    return flow


def carried_out(query: gw.types.Query, inbox: Inbox, migrations: Sequence[Migration]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if all(migration.done for migration in migrations):
            return
        time.sleep(0.2)
        inbox.put([(0, 0)])
        query.processAllAvailable()
    pytest.fail(f"{migrations} are not over: {query.status}")


def test_a_query_is_planned_for_balanced_and_drained(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    rows = [(k, k) for k in range(200)]
    inbox.put(rows)
    memory = gw.sinks.memory()
    query = totals(inbox, memory).start(checkpoint=tmp_path / "ck", name="balanced")
    query.processAllAvailable()
    (component,) = query.components
    heap = query.migrate(dict.fromkeys(range(16), "local-0"))
    carried_out(query, inbox, [heap])

    problem = query.placement.problem()
    assert problem.executors == query.placement.assignments[component].executors
    assert problem.current.tolist() == [0] * 16
    assert problem.load.sum() > 0
    assert problem.state_bytes.sum() > 0
    assert len(problem.history) > 0
    solution = planner("milp")(problem)
    shown = query.placement.preview(solution)
    assert shown.moves == solution.moves
    assert len(shown.moves) > 0
    assert sum(len(r.key_groups) for r in shown.routes) == len(shown.moves)
    assert {r.component for r in shown.routes} == {component}
    by_hand = query.placement.preview({3: "local-1"})
    assert [(m.key_group, m.destination) for m in by_hand.moves] == [(3, "local-1")]
    with pytest.raises(InvalidPlanError, match=r"executor .local-9., which does not exist"):
        query.placement.preview({3: "local-9"})

    moved = query.migrate(solution)
    carried_out(query, inbox, [moved])
    assert (
        query.placement.assignments[component].executor_of.tolist() == solution.assignment.tolist()
    )
    with pytest.raises(InvalidPlanError, match="found it on 'local-0'"):
        query.migrate(solution)

    with pytest.raises(InvalidProblemError, match="'milk' is not a planner"):
        query.balance("milk")
    with pytest.raises(InvalidPlanError, match="no plan within the limits"):
        query.balance(limits=Limits(max_usage=(0.0,)))
    even = query.balance("intra_executor", limits=Limits(theta=1000.0))
    assert even is None

    with pytest.raises(InvalidPlanError, match="'local-9' cannot be drained: it is not there"):
        query.drain("local-9")
    carried_out(query, inbox, query.drain("local-0"))
    assert "local-0" not in {query.placement.assignments[component].executor(g) for g in range(16)}
    assert query.placement.problem().draining.tolist() == [
        name == "local-0" for name in query.placement.problem().executors
    ]
    with pytest.raises(InvalidPlanError, match="draining"):
        query.migrate({0: "local-0"})

    inbox.put(rows)
    query.processAllAvailable()
    query.stop()
    newest = {k: total for table in memory.epochs.values() for k, total in rows_of(table)}
    assert newest == {k: 2 * k for k in range(200)}
