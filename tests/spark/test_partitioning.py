"""Keys that contain one another share a component on Spark, from the start or after a rewrite."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = [(f"area {n % 9}", n % 40, n) for n in range(300)]


class Totals:
    """Sums by area and user, and the largest of them by area."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.inbox = Inbox(spark=spark, directory=directory, columns="area string, user int, v int")
        self.sums: Counter[tuple[str, int]] = Counter()

    def flow(self, **placed: Any) -> tuple[gw.Flow, Any]:
        flow, sink = gw.Flow("totals", num_key_groups=16), gw.sinks.memory()
        rows = flow.source("rows", self.inbox.stream())
        users = rows.key_by("area", "user", **placed).compute(name="users", v=gw.sum("v"))
        areas = users.key_by("area").compute(name="areas", most=gw.max("v"))
        flow.sink("out", areas, sink)
        return flow, sink

    def play(self, query: gw.Query, rows: Sequence[tuple[str, int, int]] = ROWS) -> None:
        self.inbox.put(rows)
        query.processAllAvailable()
        for area, user, value in rows:
            self.sums[area, user] += value

    def expected(self) -> dict[str, int]:
        return {
            area: max(v for (of, _), v in self.sums.items() if of == area)
            for area in {area for area, _ in self.sums}
        }


def last_of(sink: Any) -> dict[str, int]:
    return dict(row for _, table in sorted(sink.epochs.items()) for row in rows_of(table))


def test_columns_in_common_are_chosen_at_the_first_start_and_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    totals = Totals(spark, tmp_path / "in")
    fusion = gw.Fusion(by="attributes", cardinality={"area": 1_000_000})
    for chosen in (True, False):
        flow, sink = totals.flow()
        adaptation = gw.Adaptation(fusion=fusion) if chosen else None
        query = flow.start(checkpoint=tmp_path / "ck", adaptation=adaptation)
        try:
            totals.play(query)
            assert query.status["components"] == {"users+areas": ["users", "areas"]}
            told = [e for e in query.events if isinstance(e, gw.events.PartitioningCompared)]
            assert [(e.columns, e.chosen) for e in told] == [(("area",), True)] * chosen
        finally:
            query.stop()
        assert last_of(sink) == totals.expected()


def test_state_is_rewritten_by_a_start_that_asks_for_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    totals = Totals(spark, tmp_path / "in")
    flow, sink = totals.flow()
    measuring = gw.Adaptation(fusion=gw.Fusion(epochs=1, fuse_above=1.0))
    query = flow.start(checkpoint=tmp_path / "ck", adaptation=measuring)
    try:
        totals.play(query)
        totals.play(query)
        told = [e for e in query.events if isinstance(e, gw.events.PartitioningCompared)]
        assert {(e.operator, e.downstream, e.columns) for e in told} == {
            ("users", "areas", ("area",))
        }
        assert all(e.apart_ms and e.together_ms for e in told)
    finally:
        query.stop()
    flow, sink = totals.flow(partition_by="area")
    with pytest.raises(CheckpointMismatchError, match="was partitioned by area, user and is by"):
        flow.start(checkpoint=tmp_path / "ck")
    query = flow.start(
        checkpoint=tmp_path / "ck",
        components={"both": ["users", "areas"]},
        adaptation=measuring,
        checkpointing=gw.Checkpointing(repartition=True),
    )
    try:
        (changed,) = (e for e in query.events if isinstance(e, gw.events.FlowChanged))
        assert "users is partitioned anew" in changed.results
        totals.play(query)
        assert query.status["components"] == {"both": ["users", "areas"]}
    finally:
        query.stop()
    assert last_of(sink) == totals.expected()
