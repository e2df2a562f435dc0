"""ALBIC on a running query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import Inbox, rows_of
from tests.spark.test_balancing import carried_out

import godwit as gw
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.run_record import StreamSummary
from godwit.model.errors import InvalidPlanError
from godwit.placement import planner

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


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
