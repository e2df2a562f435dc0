"""Keys that contain one another share a component on Spark, from the start or after a rewrite."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.checkpoint.epochs import commit_edit
from godwit.control.planners.placing import PlacingCosts
from godwit.model.errors import CheckpointMismatchError, InvalidPlanError, MigrationError
from godwit.spark.resident.lanes import ResidentLanes

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

    def play(self, query: gw.types.Query, rows: Sequence[tuple[str, int, int]] = ROWS) -> None:
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
    fusion = gw.control.Fusion(by="attributes", cardinality={"area": 1_000_000})
    for chosen in (True, False):
        flow, sink = totals.flow()
        adaptation = gw.control.Adaptation(fusion=fusion) if chosen else None
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
    measuring = gw.control.Adaptation(fusion=gw.control.Fusion(epochs=1, fuse_above=1.0))
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


def changes_of(query: gw.types.Query) -> list[gw.events.OperatorsRepartitioned]:
    return [e for e in query.events if isinstance(e, gw.events.OperatorsRepartitioned)]


def test_a_running_query_over_dataframes_is_repartitioned_and_stays_the_same_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    totals = Totals(spark, tmp_path / "in")
    flow, sink = totals.flow()
    query = flow.start(checkpoint=tmp_path / "ck", control=gw.Control(period="1 hour"))
    heard: list[Any] = []
    query.add_listener(heard.append)
    placement, names = query.placement, (query.id, query.runId)
    try:
        totals.play(query)
        query.components.repartition({"users": "area"})
        totals.play(query)
        assert (query.id, query.runId) == names
        assert query.isActive
        (change,) = changes_of(query)
        assert (change.before, change.after) == ({"users": "area, user"}, {"users": "area"})
        assert change.paused_ms > 0
        query.components.regroup({"both": ["users", "areas"]}).wait(120)
        totals.play(query)
        assert [*placement.assignments] == ["both"]
        query.components.repartition({"users": None})  # what shared a component cannot any more
        totals.play(query)
        assert {*placement.assignments} == {"users", "areas"}
        assert len(query.recentProgress) >= 4
    finally:
        query.stop()
    assert change in heard
    assert last_of(sink) == totals.expected()
    flow, sink = totals.flow()
    query = flow.start(checkpoint=tmp_path / "ck")
    try:
        totals.play(query)
    finally:
        query.stop()
    assert last_of(sink) == totals.expected()


COLUMNS = "area string, user int, v int"


def own_flow(source: Any, **placed: Any) -> tuple[gw.Flow, Any]:
    flow, sink = gw.Flow("own", num_key_groups=16), gw.sinks.memory()
    rows = flow.source("rows", source)
    users = rows.key_by("area", "user", **placed).compute(name="users", v=gw.sum("v"))
    areas = users.key_by("area").compute(name="areas", most=gw.max("v"))
    flow.sink("out", areas, sink)
    return flow, sink


def most_by_area(rows: Sequence[tuple[str, int, int]]) -> dict[str, int]:
    sums: Counter[tuple[str, int]] = Counter()
    for area, user, value in rows:
        sums[area, user] += value
    return {area: max(v for (of, _), v in sums.items() if of == area) for area, _, _ in rows}


def test_own_sources_are_read_on_while_state_is_repartitioned(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = gw.sources.memory(COLUMNS, ROWS, max_rows_per_epoch=20)
    flow, sink = own_flow(source)
    query = flow.start(checkpoint=tmp_path / "ck", session=spark)
    try:
        for columns in ("area", "user", None, ["user", "area"]):
            query.components.repartition({"users": columns})
            source.add(ROWS)
        query.processAllAvailable()
        assert [c.after["users"] for c in changes_of(query)] == [
            *("area", "user", "area, user", "user, area"),
        ]
        assert "placed    by user, area" in query.components.explain()
        with pytest.raises(InvalidPlanError, match="not an operator of the flow"):
            query.components.repartition({"user": "area"})
        query._run.coordinator.drain(query.executors[0])
        with pytest.raises(MigrationError, match="is draining"):
            query.components.repartition({"users": "area"})
    finally:
        query.stop()
    assert last_of(sink) == most_by_area(5 * ROWS)
    with pytest.raises(MigrationError, match="stopped"):
        query.components.repartition({"users": "area"})


def test_resident_lanes_end_for_a_repartitioning_and_others_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResidentLanes, "waits_s", 60.0)
    source = gw.sources.memory(COLUMNS)
    flow, sink = own_flow(source)
    lanes = gw.Lanes(resident=True)
    query = flow.start(checkpoint=tmp_path / "ck", session=spark, lanes=lanes)
    try:
        for number in range(8):
            if number == 4:
                assert query.status["residentLanes"]
                query.components.repartition({"users": "area"})
            source.add(ROWS[:20])
            query.processAllAvailable()
        assert query.status["residentLanes"]
    finally:
        query.stop()
    ended = [e.reason for e in query.events if isinstance(e, gw.events.ResidentLanesEnded)]
    assert ended == ["operators are repartitioned", "the query ends"]
    assert last_of(sink) == most_by_area(8 * ROWS[:20])


def test_a_query_repartitions_itself_where_it_measured_that_it_pays_and_may(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pays = PlacingCosts(apart_ms=900.0, together_ms=10.0, exchange_ms=890.0)
    monkeypatch.setattr("godwit.control.placing.compare_placing", lambda *_, **__: pays)
    source = gw.sources.memory(COLUMNS, max_rows_per_epoch=1000)
    flow, sink = own_flow(source)
    fusion = gw.control.Fusion(by="attributes", epochs=1, repartition=True)
    query = flow.start(
        checkpoint=tmp_path / "ck", session=spark, adaptation=gw.control.Adaptation(fusion=fusion)
    )
    done = threading.Event()
    query.add_listener(
        lambda e: done.set() if isinstance(e, gw.events.OperatorsRepartitioned) else None
    )
    try:
        for _ in range(2):
            source.add(ROWS)
            query.processAllAvailable()
        assert done.wait(120)
        source.add(ROWS)
        query.processAllAvailable()
        (change,) = changes_of(query)
        assert change.after == {"users": "area"}
        assert "an epoch takes 10.0 ms instead of 900.0 ms" in change.reason
        assert query.status["components"] == {"users+areas": ["users", "areas"]}
    finally:
        query.stop()
    assert last_of(sink) == most_by_area(3 * ROWS)


@pytest.mark.parametrize("at", ["sinks", "record"])
def test_a_query_that_fails_while_it_is_repartitioned_goes_on_after_a_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is full")

    source = gw.sources.memory(COLUMNS, ROWS)
    flow, sink = own_flow(source)
    query = flow.start(checkpoint=tmp_path / "ck", session=spark)
    query.processAllAvailable()
    with monkeypatch.context() as patched:
        if at == "sinks":
            patched.setattr("godwit.spark.opening.OpenSinks", broken)
        else:
            patched.setattr("godwit.engine.repartition.commit_edit", broken)
        with pytest.raises(gw.errors.EpochFailedError, match="the disk is full"):
            query.components.repartition({"users": "area"})
    with pytest.raises(gw.errors.EpochFailedError, match="the disk is full"):
        query.awaitTermination(60)
    assert not query.isActive
    source.add(ROWS)
    query = flow.start(checkpoint=tmp_path / "ck", session=spark)
    try:
        query.processAllAvailable()
        assert ("placed    by area" in query.components.explain()) == (at == "sinks")
    finally:
        query.stop()
    assert last_of(sink) == most_by_area(2 * ROWS)


def test_a_stop_while_state_is_repartitioned_ends_the_query_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = gw.sources.memory(COLUMNS, ROWS)
    flow, sink = own_flow(source)
    query = flow.start(checkpoint=tmp_path / "ck", session=spark)
    query.processAllAvailable()
    stopping: list[threading.Thread] = []

    def stopped_meanwhile(*given: Any, **options: Any) -> Any:
        if not stopping:
            stopping.append(threading.Thread(target=query.stop))
            stopping[0].start()
            assert query._gate.wait_for_close(60)
        return commit_edit(*given, **options)

    monkeypatch.setattr("godwit.engine.repartition.commit_edit", stopped_meanwhile)
    query.components.repartition({"users": "area"})
    stopping[0].join(60)
    assert not query.isActive
    assert query.exception() is None
    source.add(ROWS)
    query = flow.start(checkpoint=tmp_path / "ck", session=spark)
    try:
        query.processAllAvailable()
        assert "placed    by area" in query.components.explain()
    finally:
        query.stop()
    assert last_of(sink) == most_by_area(2 * ROWS)


def test_state_is_not_repartitioned_from_within_an_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    raised: list[BaseException] = []
    queries: list[gw.types.Query] = []

    def within(*_: Any) -> None:
        try:
            queries[0].components.repartition({"users": "area"})
        except MigrationError as error:
            raised.append(error)

    source = gw.sources.memory(COLUMNS)
    flow = gw.Flow("within", num_key_groups=16)
    rows = flow.source("rows", source)
    users = rows.key_by("area", "user").compute(name="users", v=gw.sum("v"))
    flow.sink("out", users, gw.sinks.foreach(within))
    queries.append(flow.start(checkpoint=tmp_path / "ck", session=spark))
    try:
        source.add(ROWS)
        queries[0].processAllAvailable()
        assert "from within an epoch" in str(raised[0])
    finally:
        queries[0].stop()
