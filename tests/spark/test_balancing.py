"""Planners on a running query: its problem, a plan, what is shown, what is carried out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.adapt.stream_record import StreamSummary
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.storage import CheckpointStorage
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


def carried_out(query: gw.Query, inbox: Inbox, migrations: Sequence[Migration]) -> None:
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
    with pytest.raises(InvalidPlanError, match=r"executor .local-9., which is not there"):
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


def test_albic_brings_together_what_key_groups_send_to_each_other_in_a_live_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    memory = gw.sinks.memory()

    def add_two_levels(flow: gw.Flow) -> None:
        keyed = flow.source("numbers", inbox.stream()).key_by("k")
        first = keyed.compute(name="first", total=gw.sum("number"))
        second = first.key_by("k").compute(name="second", updates=gw.count(), last=gw.last("total"))
        flow.sink("out", second, memory)

    flow = gw.Flow("pairs", num_key_groups=8)
    add_two_levels(flow)
    storage = CheckpointStorage.open(tmp_path / "ck")
    query = flow.start(checkpoint=tmp_path / "ck", name="pairs")
    rows = [(k, k) for k in range(200)]
    inbox.put(rows)
    query.processAllAvailable()
    other = {"local-0": "local-1", "local-1": "local-0"}
    places = query.placement.assignments["first"]
    apart = {g: other[places.executor(g)] for g in range(8)}
    carried_out(query, inbox, [query.migrate(apart, component="second")])
    for _ in range(3):
        inbox.put(rows)
        query.processAllAvailable()

    problem = query.placement.problem()
    assert problem.operators == ("first", "second")
    assert (problem.traffic.target == problem.traffic.source + 8).all()
    assert sorted(problem.traffic.source.tolist()) == list(range(8))
    assert problem.traffic.rate.sum() > 0
    solution = planner("albic")(problem, pairs=8, max_load_distance=100.0)
    assert solution.moves
    with pytest.raises(InvalidPlanError, match="moves key groups of 'first', 'second'"):
        query.migrate(solution, component="second")
    carried_out(query, inbox, query.placement.carry_out(solution))
    where = [query.placement.assignments[name] for name in ("first", "second")]
    together = [where[0].executor(g) == where[1].executor(g) for g in range(8)]
    assert sum(together) > 0
    assert [where[0].executors.index(where[0].executor(g)) for g in range(8)] == (
        solution.assignment[:8].tolist()
    )
    while not any("load" in entry for entry in read_tail(storage, 500)):
        inbox.put([(0, 0)])
        query.processAllAvailable()
        query._dispatcher.flush(5.0)
    query.stop()
    # What `godwit what-if` needs besides is written with them.
    told = [entry["stream"] for entry in read_tail(storage, 500) if "stream" in entry]
    stream = StreamSummary.from_dict(told[-1])
    assert stream is not None
    assert stream.topology.stages == (("first",), ("second",))
    assert stream.topology.downstream == (("first", "second"),)
    assert len(stream.epochs) >= 16
    assert (stream.epochs.took_ms > stream.epochs.busiest_ms).all()
    newest = {row[0]: row[2] for row in rows_of(memory.table())}
    assert newest == {k: k * 4 for k in range(200)}

    again = gw.Flow("pairs", num_key_groups=8)
    add_two_levels(again)
    query = again.start(checkpoint=tmp_path / "ck", name="pairs")
    # What key groups cost in the last run is known before the first row of this one.
    assert query.placement.problem().load.sum() > 0
    query.stop()
