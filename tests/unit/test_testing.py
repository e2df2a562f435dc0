"""`gw.testing` plays flows in this process, and says what is wrong with what it is given."""

from __future__ import annotations

import datetime as dt
import gc
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa
import pytest

import godwit as gw
from godwit.local import LocalRun
from godwit.migration.coordinator import Coordinator
from godwit.model.errors import (
    CheckpointInUseError,
    CheckpointMismatchError,
    GodwitError,
    InvalidFlowError,
    InvalidInputError,
    InvalidPlanError,
    MigrationError,
    StateEncodingError,
    UserFunctionError,
)
from godwit.model.naming import NoSuchCallError
from godwit.placement import planner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.migration.messages import MigrationRequested

ORDERS = "symbol string, price double, ts timestamp"
DAY = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def order(symbol: str, price: float, minute: int = 0) -> dict[str, Any]:
    return {"symbol": symbol, "price": price, "ts": DAY + dt.timedelta(minutes=minute)}


def market(**totals: Any) -> gw.Flow:
    flow = gw.Flow("market", num_key_groups=8)
    orders = flow.source("orders", gw.testing.stream(ORDERS))
    results = totals or {"total": gw.sum("price")}
    flow.sink("totals", orders.key_by("symbol").compute(name="totals", **results), gw.sinks.noop())
    return flow


def windows(**options: Any) -> gw.Flow:
    flow = gw.Flow("windows", num_key_groups=8)
    orders = flow.source("orders", gw.testing.stream(ORDERS), event_time="ts", **options)
    hourly = orders.key_by("symbol").window(gw.tumbling("1 hour"), name="hourly")
    flow.sink("hourly", hourly.compute(n=gw.count()), gw.sinks.noop())
    return flow


@pytest.mark.parametrize(
    "rows",
    [
        [order("A", 1.0), order("A", 2.0)],
        [("A", 1.0, DAY), ("A", 2.0, DAY)],
        [{"symbol": "A", "price": 1}, {"symbol": "A", "price": 2}],
        pa.table({"price": [1.0, 2.0], "symbol": ["A", "A"]}),
        pa.record_batch({"symbol": ["A", "A"], "price": pa.array([1, 2], pa.int32())}),
        pd.DataFrame({"symbol": ["A", "A"], "price": [1.0, 2.0]}),
    ],
    ids=["dicts", "tuples", "columns that the flow reads", "table", "batch", "pandas"],
)
def test_rows_may_be_given_in_many_ways(rows: Any) -> None:
    for inputs in (rows, [rows]):
        played = gw.testing.run(market(), {"orders": inputs})
        assert played.rows("totals").to_pylist() == [{"symbol": "A", "total": 3.0}]


def test_rows_of_a_sink_are_those_of_all_epochs_and_current_ones_the_newest_of_each_key() -> None:
    rows = [order("A", 1.0), order("B", 2.0), order("A", 4.0), order("A", 8.0)]
    cuts: list[dict[str, Any]] = [{"epochs": 2}, {"rows_per_epoch": 2}]
    for cut in cuts:
        played = gw.testing.run(market(), {"orders": rows}, **cut)
        assert sorted(r["total"] for r in played.rows("totals").to_pylist()) == [1.0, 2.0, 13.0]
        newest = {row["symbol"]: row["total"] for row in played.current("totals").to_pylist()}
        assert newest == {"A": 13.0, "B": 2.0}
        assert [epoch.rows_in for epoch in played.epochs] == [2, 2]


def test_windows_come_out_once_the_watermark_has_passed_them_and_late_rows_are_counted() -> None:
    played = gw.testing.run(
        windows(), {"orders": [[order("A", 1.0, 1)], [order("A", 1.0, 61)], [order("A", 1.0, 2)]]}
    )
    assert [(row["n"], row["window_start"]) for row in played.rows("hourly").to_pylist()] == [
        (1, DAY)
    ]
    assert [(event.operator, event.late) for event in played.late] == [("hourly", 1)]
    assert played.watermarks == {"orders": DAY + dt.timedelta(minutes=61)}
    ended = gw.testing.run(windows(), {"orders": [order("A", 1.0, 1)]}, close_at_end=True)
    assert ended.rows("hourly").num_rows == 1


def test_a_watermark_can_be_moved_without_rows() -> None:
    run = gw.testing.cluster(windows(slack="5 minutes"))
    assert run.epoch({"orders": [order("A", 1.0, 1)]}) == {}
    assert run.advance(watermarks={"orders": DAY + dt.timedelta(minutes=59)}) == {}
    out = run.advance(watermarks={"orders": "2024-05-01 01:00"})
    assert [row["n"] for row in out["hourly"].to_pylist()] == [1]


def test_idle_sources_hold_nobody_back_once_the_clock_has_moved() -> None:
    run = gw.testing.cluster(windows(idle="10 minutes"), now=DAY)
    run.epoch({"orders": [order("A", 1.0, 1)]})
    assert run.advance("9 minutes") == {}
    assert run.advance("1 minute")["hourly"].num_rows == 1


def test_timers_of_processing_time_fire_as_the_clock_moves() -> None:
    def remind(key: Any, rows: Any, state: Any) -> None:
        rows.timers.set(rows.timers.now + dt.timedelta(hours=1))

    flow = gw.Flow("timers", num_key_groups=4)
    orders = flow.source("orders", gw.testing.stream(ORDERS))
    reminders = orders.key_by("symbol").process(
        remind,
        state=dict,
        timers=gw.types.OnTimer(
            lambda key, timer, state: [(key[0], timer.time)], clock="processing"
        ),
        output="symbol string, at timestamp",
        name="remind",
    )
    flow.sink("out", reminders, gw.sinks.noop())
    run = gw.testing.cluster(flow, now=DAY)
    run.epoch({"orders": [order("A", 1.0)]})
    assert run.state("remind").column("timers").to_pylist() == [[DAY + dt.timedelta(hours=1)]]
    assert run.advance("59 minutes") == {}
    fired = run.advance("1 minute")["out"].to_pylist()
    assert fired == [{"symbol": "A", "at": DAY + dt.timedelta(hours=1)}]
    assert run.now == DAY + dt.timedelta(hours=1)


@pytest.mark.parametrize("strategy", [None, "live", "disruptive", "stop_the_world"])
def test_key_groups_move_and_executors_die_and_every_row_counts_once(strategy: Any) -> None:
    run = gw.testing.cluster(market(), executors=2)
    rows = [order(symbol, 1.0) for symbol in "ABCDEFGH"]
    run.epoch({"orders": rows})
    ended = run.migrate("2", component="totals", strategy=strategy).wait()
    assert ended.outcome.value == "finished"
    assert set(run.placement.assignments["totals"].executor_of.tolist()) == {1}
    run.epoch({"orders": rows})
    run.add("3")
    run.kill("2")
    run.epoch({"orders": rows})
    run.restart(executors={"x": 1})
    run.epoch({"orders": rows})
    totals = {row["symbol"]: row["total"] for row in run.current("totals").to_pylist()}
    assert totals == dict.fromkeys("ABCDEFGH", 4.0)
    state = {row["symbol"]: row["total"] for row in run.state("totals").to_pylist()}
    assert state == totals
    told = {type(event).__name__ for event in run.events}
    assert {"MigrationFinished", "ExecutorAdded", "ExecutorLost", "KeyGroupsWarmed"} <= told


def test_a_killed_executor_leaves_none_of_its_tables_in_memory() -> None:
    run = gw.testing.cluster(market(), executors=2)
    rows = [order(symbol, 1.0) for symbol in "ABCDEFGH"]
    for _ in range(2):
        run.epoch({"orders": rows})
    assert mapped_tables(run, "1")
    run.kill("1")
    run.epoch({"orders": rows})
    gc.collect()
    assert not mapped_tables(run, "1")
    assert mapped_tables(run, "2")


def mapped_tables(run: gw.testing.Run, executor: str) -> list[str]:
    """Return the files of an executor's local store that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    directory = f"/{run._driver.run_id.partition('-')[2]}/{executor}/"
    return [line for line in maps if directory in line]


def test_a_changed_flow_goes_on_from_the_state_that_there_is() -> None:
    run = gw.testing.cluster(market())
    run.epoch({"orders": [order("A", 1.0)]})
    run.restart(market(total=gw.sum("price"), most=gw.max("price")))
    run.epoch({"orders": [order("A", 2.0)]})
    assert run.current("totals").to_pylist() == [{"symbol": "A", "total": 3.0, "most": 2.0}]
    other = gw.Flow("market", num_key_groups=16)
    orders = other.source("orders", gw.testing.stream(ORDERS))
    other.sink("totals", orders.key_by("symbol").compute(n=gw.count()), gw.sinks.noop())
    with pytest.raises(CheckpointMismatchError, match="key groups"):
        run.restart(other)


def two_counts(first: str, second: str, *, formerly: bool = False, where: bool = False) -> gw.Flow:
    """Two computes over one stream: A with a total (or positive rows), B with a maximum."""
    flow = gw.Flow("two", num_key_groups=4)
    keyed = flow.source("s", gw.testing.stream("k string, v bigint")).key_by("k")
    results: list[dict[str, Any]] = [{"t": gw.sum("v")}, {"mx": gw.max("v")}]
    if where:
        results = [{"m": gw.count(where="v > 0")}, {"m": gw.count(where="v < 0")}]
    for sink, name, other, more in zip(
        "AB", (first, second), (second, first), results, strict=True
    ):
        was = other if formerly else None
        counted = keyed.compute(name=gw.types.Identity(name, formerly=was), n=gw.count(), **more)
        flow.sink(sink, counted, gw.sinks.noop())
    return flow


@pytest.mark.parametrize("where", [False, True])
def test_computes_over_one_stream_exchange_their_names_there_and_back(*, where: bool) -> None:
    with gw.testing.cluster(two_counts("x", "y", where=where)) as run:
        for v in (1, 2):
            run.epoch({"s": [("a", v)]})
        for names in (("y", "x"), ("y", "x"), ("x", "y"), ("x", "y")):
            run.restart(two_counts(*names, formerly=True, where=where))
            out = run.epoch({"s": [("a", 3)]})
        assert out["A"].to_pylist() == [{"k": "a", "n": 6, **({"m": 6} if where else {"t": 15})}]
        assert out["B"].to_pylist() == [{"k": "a", "n": 6, **({"m": 0} if where else {"mx": 3})}]


def test_a_renamed_operator_does_not_silently_start_empty() -> None:
    def named(*names: str, **options: Any) -> gw.Flow:
        flow = gw.Flow("f", num_key_groups=4)
        keyed = flow.source("s", gw.testing.stream("k string, v bigint")).key_by("k")
        name = gw.types.Identity(*names, **options)
        flow.sink("o", keyed.compute(name=name, n=gw.count()), gw.sinks.noop())
        return flow

    rows = {"s": [("a", 1)]}
    with gw.testing.cluster(named("t")) as run:
        run.epoch(rows)
        with pytest.raises(CheckpointMismatchError, match=r"'t2' .* of 't' .*formerly='t'.*starts"):
            run.restart(named("t2"))
        run.restart(named("t2", formerly="t", starts_empty=True))
        assert run.epoch(rows)["o"].to_pylist() == [{"k": "a", "n": 2}]
        for _ in range(2):
            run.restart(named("t3", starts_empty=True))
            run.epoch(rows)
        assert run.current("o").to_pylist() == [{"k": "a", "n": 2}]


def test_starts_empty_is_true_or_false() -> None:
    keyed = gw.Flow("f").source("s", gw.testing.stream("k string, v bigint")).key_by("k")
    with pytest.raises(InvalidFlowError, match="starts_empty= of type str"):
        keyed.compute(n=gw.count(), name=gw.types.Identity(starts_empty="yes"))  # type: ignore[arg-type]


def test_a_checkpoint_of_ones_own_is_claimed_and_gone_on_from(tmp_path: Path) -> None:
    with gw.testing.cluster(market(), checkpoint=tmp_path) as run:
        run.epoch({"orders": [order("A", 1.0)]})
        with pytest.raises(CheckpointInUseError):
            gw.testing.cluster(market(), checkpoint=tmp_path)
    played = gw.testing.run(market(), {"orders": [order("A", 2.0)]}, checkpoint=tmp_path)
    assert played.rows("totals").to_pylist() == [{"symbol": "A", "total": 3.0}]


def _die_between_commit_and_delivery(run: Any, row: Any = None) -> None:
    def die(step: str, _epoch: int) -> None:
        if step == "committed":
            raise KeyboardInterrupt

    run._driver.loop.at_step = die
    with pytest.raises(KeyboardInterrupt):
        run.epoch({"orders": [row or order("A", 2.0)]})


def test_an_epoch_that_died_before_its_delivery_is_delivered_once_by_a_restart() -> None:
    run = gw.testing.cluster(market())
    run.epoch({"orders": [order("A", 1.0)]})
    _die_between_commit_and_delivery(run)
    assert [row["total"] for row in run.rows("totals").to_pylist()] == [1.0]
    assert run.restart()["totals"].to_pylist() == [{"symbol": "A", "total": 3.0}]
    assert run.restart() == {}
    run.epoch({"orders": [order("A", 4.0)]})
    assert [row["total"] for row in run.rows("totals").to_pylist()] == [1.0, 3.0, 7.0]


def test_rows_of_flows_with_other_time_zones_are_one_table() -> None:
    def newest(zone: str) -> gw.Flow:
        columns = pa.schema([("symbol", pa.string()), ("ts", pa.timestamp("us", zone))])
        flow = gw.Flow("market")
        of_symbol = flow.source("orders", gw.testing.stream(columns)).key_by("symbol")
        flow.sink("totals", of_symbol.compute(name="o", last=gw.max("ts")), gw.sinks.noop())
        return flow

    run = gw.testing.cluster(newest("+05:30"))
    _die_between_commit_and_delivery(run, ("A", DAY))
    assert len(run.restart(newest("UTC"))["totals"]) == 1
    run.epoch({"orders": [("B", DAY)]})
    assert run.rows("totals")["last"].type == pa.timestamp("us", "UTC")
    assert len(run.rows("totals")) == 2


def test_components_change_as_those_of_a_query() -> None:
    flow = gw.Flow("chain", num_key_groups=8)
    rows = flow.source("rows", gw.testing.stream("k string, v long"))
    totals = rows.key_by("k").compute(name="totals", total=gw.sum("v"))
    flow.sink("worst", totals.key_by("k").compute(worst=gw.max("total"), name="w"), gw.sinks.noop())
    with gw.testing.cluster(flow, executors=2) as run:
        run.epoch({"rows": [("a", 1), ("b", 2)]})
        assert list(run.components) == ["totals", "w"]
        changed = run.components.regroup({"both": ["totals", "w"]})
        assert changed.done
        assert changed.wait().done  # at once: no thread would ever end it
        assert run.components.operators == {"both": ("totals", "w")}
        run.epoch({"rows": [("a", 3)]})
        assert "2 keyed operators on 1 level" in run.components.explain()
        run.components.regroup({"totals": ["totals"], "w": ["w"]})
        assert run.components.names == ("totals", "w")
        run.epoch({"rows": [("b", 4)]})
    current = {row["k"]: row["worst"] for row in run.current("worst").to_pylist()}
    assert current == {"a": 4, "b": 6}


def test_migrations_of_a_placement_have_ended_when_the_call_returns() -> None:
    with gw.testing.cluster(market(), executors=2) as run:
        run.epoch({"orders": [order("A", 1.0), order("B", 2.0)]})
        run.add("3")
        solution = planner("milp")(run.placement.problem())
        migrations = run.placement.carry_out(solution)
        assert migrations
        assert [migration.wait().outcome for migration in migrations] == ["finished"]
        begun = run.placement.begin_plan("totals", "3", None, None)
        assert begun.wait().outcome == "finished"
        assert run.placement.assignments["totals"].num_owned == {"1": 0, "2": 0, "3": 8}


def test_a_migration_with_bounds_leaves_no_choice_to_move_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[bool] = []
    migrate = Coordinator.migrate

    def asked(coordinator: Coordinator, request: MigrationRequested) -> None:
        chosen.append(request.chooses)
        migrate(coordinator, request)

    monkeypatch.setattr(Coordinator, "migrate", asked)
    with gw.testing.cluster(market(), executors=2) as run:
        run.migrate({0: "2"}, component="totals")
        run.migrate({0: "1"}, component="totals", bounds=gw.migration.Bounds())
        run.migrate({0: "2"}, component="totals", strategy="live")
    assert chosen == [True, False, False]


@pytest.mark.parametrize("how", ["repartition", "restart"])
def test_an_epoch_that_died_before_its_delivery_is_delivered_before_state_is_rewritten(
    how: str,
) -> None:
    def by(*columns: str) -> gw.Flow:
        flow = gw.Flow("market", num_key_groups=8)
        orders = flow.source("orders", gw.testing.stream(ORDERS))
        totals = orders.key_by("symbol", "ts", partition_by=columns or None)
        flow.sink("totals", totals.compute(name="totals", n=gw.count()), gw.sinks.noop())
        return flow

    run = gw.testing.cluster(by())
    _die_between_commit_and_delivery(run)
    if how == "repartition":
        run.components.repartition({"totals": "symbol"})
    else:
        run.restart(by("symbol"), repartition=True)
    assert [row["n"] for row in run.rows("totals").to_pylist()] == [1]


def test_a_run_on_a_checkpoint_has_no_rows_of_the_run_before(tmp_path: Path) -> None:
    with gw.testing.cluster(market(), checkpoint=tmp_path) as run:
        run.epoch({"orders": [order("A", 1.0)]})
    with gw.testing.cluster(market(), checkpoint=tmp_path) as run:
        assert run.restart() == {}
        assert run.rows("totals").num_rows == 0


def test_two_runs_side_by_side_do_not_disturb_each_other() -> None:
    runs = [gw.testing.cluster(market()) for _ in range(2)]
    for number in range(3):
        for which, run in enumerate(runs):
            run.epoch({"orders": [order("A", float(which + number))]})
    assert [r.current("totals").to_pylist()[0]["total"] for r in runs] == [3.0, 6.0]


def test_rows_that_a_window_gives_to_a_sink_of_late_rows_are_there() -> None:
    flow = gw.Flow("late", num_key_groups=4)
    orders = flow.source("orders", gw.testing.stream(ORDERS), event_time="ts")
    hourly = orders.key_by("symbol").window(
        gw.tumbling("1 hour"), name="hourly", late=gw.sinks.noop()
    )
    flow.sink("out", hourly.compute(n=gw.count()), gw.sinks.noop())
    inputs = [[order("A", 1.0, 200)], [order("A", 7.0, 2)], [order("A", 8.0, 2)]]
    played = gw.testing.run(flow, {"orders": inputs})
    assert [row["price"] for row in played.rows("hourly_late").to_pylist()] == [7.0, 8.0]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"order": []}, "no source 'order'.*Did you mean 'orders'"),
        ({"orders": [{"symbol": "A"}]}, "Row 0 of source 'orders' has no column 'price'"),
        ({"orders": [{"symbol": "A", "price": 1.0, "prize": 2}]}, "column 'prize'.*'price'"),
        ({"orders": [order("A", 1.0), {"symbol": "A", "price": "x"}]}, "Row 1 .*'x' in .*'price'"),
        ({"orders": [{"symbol": "A", "price": 1.0, "ts": "yesterday"}]}, "'yesterday'.*2024-05-01"),
        ({"orders": "A"}, "of type str for rows"),
        ({"orders": [[("A", 1.0)]]}, "Row 0 of source 'orders' is a tuple of 2"),
        ({"orders": pa.table({"symbol": ["A"]})}, "table of source 'orders' has no column 'price'"),
        (
            {"orders": pa.table({"symbol": ["A"], "price": ["x"]})},
            "Column 'price' of the table.*string, which cannot be converted to double",
        ),
    ],
)
def test_rows_that_are_no_rows_of_the_source_are_refused(inputs: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=f"(?s){said}"):
        gw.testing.run(market(), inputs)


def test_what_does_not_exist_is_named_with_what_does() -> None:
    run = gw.testing.cluster(market(), executors=2)
    with pytest.raises(InvalidPlanError, match=r"no executor '3'.*'1', '2'"):
        run.kill("3")
    with pytest.raises(InvalidPlanError, match=r"executor '3', which does not exist.*are 1, 2"):
        run.migrate("3", component="totals")
    with pytest.raises(InvalidPlanError, match=r"component 'total'.*Did you mean 'totals'"):
        run.migrate("2", component="total")
    with pytest.raises(InvalidPlanError, match="strategy 'alive'"):
        run.migrate("2", component="totals", strategy=cast("Any", "alive"))
    with pytest.raises(InvalidInputError, match=r"no sink 'total'.*Did you mean 'totals'"):
        run.rows("total")
    with pytest.raises(InvalidFlowError, match=r"no operator 'total'.*Did you mean 'totals'"):
        run.state("total")
    run.kill("1")
    with pytest.raises(InvalidPlanError, match="the last one"):
        run.kill("2")
    with pytest.raises(InvalidPlanError, match="already"):
        run.add("2")
    with pytest.raises(InvalidInputError, match="no event time"):
        run.advance(watermarks={"orders": DAY})
    with pytest.raises(InvalidInputError, match="for executors"):
        gw.testing.cluster(market(), executors=0)
    with pytest.raises(InvalidInputError, match="list of epochs"):
        gw.testing.run(market(), {"orders": [[order("A", 1.0)]]}, epochs=2)
    with pytest.raises(InvalidInputError, match="Both"):
        gw.testing.run(market(), {"orders": []}, epochs=2, rows_per_epoch=2)
    with pytest.raises(InvalidInputError, match="epochs of run is 0"):
        gw.testing.run(market(), {"orders": []}, epochs=0)
    assert run.state("totals").num_rows == 0


def test_a_run_that_does_not_come_to_rest_says_what_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("godwit.local._PATIENCE", 2)
    monkeypatch.setattr(LocalRun, "is_due", True)
    with pytest.raises(MigrationError, match="after 2 epochs without input windows, timers or"):
        gw.testing.run(market(), {"orders": [order("A", 1.0)]})


def test_an_epoch_that_fails_leaves_nothing_and_the_next_one_goes_on() -> None:
    def check(key: Any, rows: Any, seen: dict[str, int]) -> Iterator[tuple[str, int]]:
        for row in rows:
            if row.price < 0:
                msg = "a negative price"
                raise ValueError(msg)
            seen["n"] = seen.get("n", 0) + 1
        yield key[0], seen["n"]

    flow = gw.Flow("checked", num_key_groups=4)
    orders = flow.source("orders", gw.testing.stream(ORDERS))
    checked = orders.key_by("symbol").process(check, state=dict, output="s string, n long")
    flow.sink("out", checked, gw.sinks.noop())
    run = gw.testing.cluster(flow)
    run.epoch({"orders": [order("A", 1.0)]})
    with pytest.raises(UserFunctionError, match="a negative price"):
        run.epoch({"orders": [order("A", 1.0), order("A", -1.0)]})
    run.epoch({"orders": [order("A", 1.0)]})
    assert [row["n"] for row in run.rows("out").to_pylist()] == [1, 2]


def test_maps_by_names_of_columns_need_no_spark_and_others_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A test that ran before in this process may have left a session, which would run the map.
    monkeypatch.setattr("godwit.api.stand_in._active_session", lambda: None)
    flow = gw.Flow("mapped", num_key_groups=4)
    orders = flow.source("orders", gw.testing.stream(ORDERS))
    named = orders.map(
        lambda df: df.drop("ts").withColumnRenamed("price", "p").select("p", "symbol")
    )
    flow.sink("out", named.key_by("symbol").compute(total=gw.sum("p")), gw.sinks.noop())
    played = gw.testing.run(flow, {"orders": [order("A", 1.0)]})
    assert played.rows("out").to_pylist() == [{"symbol": "A", "total": 1.0}]

    other = gw.Flow("mapped", num_key_groups=4)
    orders = other.source("orders", gw.testing.stream(ORDERS))

    def only_dear(df: Any) -> Any:
        return df.where("price > 10")

    other.sink("out", orders.map(only_dear).key_by("symbol").compute(n=gw.count()), gw.sinks.noop())
    with pytest.raises(
        InvalidFlowError, match=r"'only_dear' on source 'orders'.*needs Spark.*Start"
    ):
        gw.testing.run(other, {"orders": [order("A", 1.0)]})


def test_a_flow_on_stand_ins_is_explained_and_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market().explain()
    assert "totals" in capsys.readouterr().out
    with pytest.raises(InvalidFlowError, match=r"gw\.testing\.run"):
        market().start(checkpoint=tmp_path)


# What would cost a tenth of the time to the first result each, and play no part in it.
NOT_NEEDED = {
    *("pyspark", "py4j", "scipy", "matplotlib", "rich", "pyarrow.dataset", "pyarrow.parquet"),
    *("sqlite3", "http.server", "multiprocessing", "asyncio"),
    *("godwit.control.loop", "godwit.control.settings", "godwit.placement.registry", "godwit.ops"),
    "godwit.runtime.query",
}


def test_the_first_result_loads_no_spark_no_controller_and_no_planner() -> None:
    program = (
        "import sys, godwit as gw\n"
        "flow = gw.Flow('market', num_key_groups=4)\n"
        "orders = flow.source('orders', gw.testing.stream('symbol string, price double'))\n"
        "totals = orders.key_by('symbol').compute(total=gw.sum('price'))\n"
        "flow.sink('totals', totals, gw.sinks.noop())\n"
        "run = gw.testing.run(flow, {'orders': [{'symbol': 'A', 'price': 9.5}]})\n"
        "print(run.rows('totals').to_pylist())\n"
        f"print(sorted({NOT_NEEDED} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[{'symbol': 'A', 'total': 9.5}]\n[]\n", "")


@dataclass
class Book:
    bids: list[float] = field(default_factory=list)


def bid(key: Any, rows: Any, book: Book) -> Iterator[tuple[str, int]]:
    for row in rows:
        book.bids.append(row.price)
    yield key[0], len(book.bids)


def test_a_function_is_called_with_a_key_its_rows_and_its_state() -> None:
    done = gw.testing.process(
        bid, [{"price": 2.0}, {"price": 3.0}], key={"symbol": "A"}, state=Book([1.0])
    )
    assert done.rows == [("A", 3)]
    assert done.state == Book([1.0, 2.0, 3.0])
    new = gw.testing.process(bid, [{"price": 2.0}], state=Book, output="symbol string, n long")
    assert (new.rows, new.state) == ([{"symbol": "key", "n": 1}], Book([2.0]))


def test_states_of_every_kind_are_seeded_and_read_back() -> None:
    def add(key: Any, rows: Any, state: Any) -> None:
        for row in rows:
            state["n"] = state.get("n", 0) + row.v

    assert gw.testing.process(add, [{"v": 2}], state={"n": 1}).state == {"n": 3}

    def count(key: Any, rows: Any, n: gw.types.State[int]) -> None:
        n.value += len(rows)

    assert gw.testing.process(count, [{"v": 2}], state=4).state == 5
    assert gw.testing.process(count, [{"v": 2}], state=int).state == 1

    def extend(key: Any, rows: Any, values: list[int]) -> None:
        values.extend(rows.column("v"))

    assert gw.testing.process(extend, [{"v": 2}], state=list[int], before=[1]).state == [1, 2]

    def drop(key: Any, rows: Any, values: list[int]) -> None:
        rows.drop_state()

    assert gw.testing.process(drop, [{"v": 2}], state=list[int], before=[1]).state is None


def test_named_states_are_seeded_and_read_back() -> None:
    def spend(key: Any, rows: Any, states: gw.types.States) -> Iterator[tuple[float]]:
        for row in rows:
            states.recent.append(row.price)
            states.counts[row.shop] = states.counts.get(row.shop, 0) + 1
            states.total.value += row.price
        yield (states.total.value,)

    declared: dict[str, Any] = {
        "recent": gw.ListState(float),
        "counts": gw.MapState(str, int),
        "total": gw.ValueState(float),
        "unused": gw.ValueState(int),
    }
    done = gw.testing.process(
        spend,
        [{"shop": "x", "price": 2.0}],
        state=declared,
        before={"recent": [1.0], "counts": {"x": 1, "y": 5}, "total": 10.0},
    )
    assert done.rows == [(12.0,)]
    assert done.states == {
        "recent": [1.0, 2.0],
        "counts": {"x": 2, "y": 5},
        "total": 12.0,
        "unused": None,
    }


@pytest.mark.parametrize("clock", ["event", "processing"])
def test_timers_that_are_due_fire_first_and_those_set_are_told(clock: Any) -> None:
    def note(key: Any, rows: Any, state: Any) -> Iterator[tuple[str]]:
        rows.timers.set(DAY + dt.timedelta(hours=2))
        yield ("rows",)

    def fire(key: Any, timer: Any, state: Any) -> Iterator[tuple[str]]:
        yield (f"timer of {timer.time:%H:%M}",)

    done = gw.testing.process(
        note,
        [{"v": 1}],
        state=dict,
        timers=gw.types.OnTimer(fire, clock=clock),
        timers_before=["2024-05-01 00:30", "2024-05-01 03:00"],
        now="2024-05-01 01:00",
    )
    assert done.rows == [("timer of 00:30",), ("rows",)]
    assert done.timers == [DAY + dt.timedelta(hours=2), DAY + dt.timedelta(hours=3)]
    alone = gw.testing.process(
        note,
        state=dict,
        timers=gw.types.OnTimer(fire, clock=clock),
        timers_before=["2024-05-01 00:30"],
        now="2024-05-01 01:00",
    )
    assert (alone.rows, alone.timers) == ([("timer of 00:30",)], [])


def test_what_a_function_does_wrong_is_raised() -> None:
    def fail(key: Any, rows: Any, state: Any) -> None:
        raise KeyError("x")

    with pytest.raises(UserFunctionError, match="fail") as caught:
        gw.testing.process(fail, [{"v": 1}], state=dict)
    assert isinstance(caught.value.__cause__, KeyError)

    def keep(key: Any, rows: Any, state: Any) -> None:
        state["f"] = lambda: 1

    with pytest.raises(StateEncodingError, match="process"):
        gw.testing.process(keep, [{"v": 1}], state=dict)
    with pytest.raises(InvalidInputError, match="type is not known"):
        gw.testing.process(keep, [{"v": None}], state=dict)
    with pytest.raises(InvalidInputError, match="Both"):
        gw.testing.process(keep, [{"v": 1}], state={"a": 1}, before={})


def keep_items(key: tuple[str], rows: Any, states: Any) -> Iterator[tuple[str, int, int]]:
    for row in rows:
        if row.n < 0:
            states.items.pop(row.item, None)
        elif row.n:
            states.items[row.item] = states.items.get(row.item, 0) + row.n
        else:
            held = dict(states.items)
            yield key[0], len(held), sum(held.values())


def test_maps_of_many_items_move_survive_and_cost_what_is_touched_of_them() -> None:
    flow = gw.Flow("items", num_key_groups=8)
    rows = flow.source("rows", gw.testing.stream("k string, item long, n long"))
    kept = rows.key_by("k").process(
        keep_items,
        name="kept",
        state={"items": gw.MapState(int, int)},
        output="k string, items long, total long",
    )
    flow.sink("kept", kept, gw.sinks.noop())
    expected = {key: dict.fromkeys(range(3_000), 1) for key in "abc"}
    played = gw.testing.cluster(flow, executors={"1": 2, "2": 1})
    played.epoch({"rows": [(key, item, 1) for key in "abc" for item in range(3_000)]})

    def touch(step: int) -> None:
        changes = [(key, item, 5) for key in "abc" for item in range(step, step + 10)]
        changes += [(key, 2_900 + step, -1) for key in "abc"]
        for key, item, n in changes:
            expected[key][item] = expected[key][item] + n if n > 0 else 0
        played.epoch({"rows": changes})
        (epoch,) = played.epochs[-1:]
        assert epoch.changelog_bytes < 16_384  # of 33 items; all of them are ten times that
        out = played.epoch({"rows": [(key, 0, 0) for key in "abc"]})["kept"].to_pylist()
        assert {row["k"]: (row["items"], row["total"]) for row in out} == {
            key: (sum(map(bool, items.values())), sum(items.values()))
            for key, items in expected.items()
        }

    touch(0)
    played.migrate("2", component="kept")
    touch(10)
    played.kill("2")
    touch(20)
    played.restart()
    touch(30)
    played.add("3")
    played.migrate({0: "3", 3: "3", 5: "3"}, component="kept", strategy="disruptive")
    touch(40)


@dataclass
class Shape:
    """A class of which a state may hold others that are made from it."""

    side: int = 0


@dataclass
class Circle(Shape):
    """One of them."""

    round_off: bool = True


def keep_values(key: tuple[str], rows: Any, states: Any) -> Iterator[tuple[str, str]]:
    yield key[0], repr((states.number.value, list(states.shapes), states.both.value))
    states.number.value = True
    states.shapes.append(Circle(1))
    states.shapes.append(Shape(2))
    states.both.value = [*states.both.value, Circle(3)]


def test_values_of_a_narrower_class_come_back_as_what_they_were() -> None:
    def flow_with(*classes: type) -> gw.Flow:
        flow = gw.Flow("values", num_key_groups=8)
        rows = flow.source("rows", gw.testing.stream("k string"))
        kept = rows.key_by("k").process(
            keep_values,
            name="kept",
            state={
                "number": gw.ValueState(int),
                "shapes": gw.ListState(Shape, classes=classes),
                "both": gw.ValueState(list[Shape], classes=classes),
            },
            output="k string, was string",
        )
        flow.sink("kept", kept, gw.sinks.noop())
        return flow

    with pytest.raises(StateEncodingError, match=r"classes=\[Circle\]"):
        gw.testing.run(flow_with(), {"rows": [("a",)]})
    played = gw.testing.cluster(flow_with(Circle), executors=2)
    was = []
    for what_happens in (
        lambda: played.migrate("2", component="kept"),
        played.restart,
        lambda: None,
    ):
        was += played.epoch({"rows": [("a",)]})["kept"].column("was").to_pylist()
        what_happens()
    shapes = [Circle(1), Shape(2)]
    assert was == [
        repr(state)
        for state in [(0, [], []), (True, shapes, [Circle(3)]), (True, shapes * 2, [Circle(3)] * 2)]
    ]


class Odd:
    """A class that msgpack cannot encode."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and self.seen == other.seen

    __hash__ = None  # type: ignore[assignment]


def note_odd(key: tuple[str], rows: Any, states: Any) -> Iterator[tuple[str, str]]:
    for row in rows:
        states.odd.value.seen.append(row.v)
        item = Odd()
        item.seen.append(row.v)
        states.items.append(item)
        states.by_v[row.v] = item
        states.total.value += row.v
    lists = [item.seen for item in states.items]
    yield key[0], repr((states.odd.value.seen, lists, len(states.by_v), states.total.value))


def test_each_named_state_has_an_encoding_of_its_own() -> None:
    def flow_with(**changed: Any) -> gw.Flow:
        flow = gw.Flow("odd", num_key_groups=8)
        rows = flow.source("rows", gw.testing.stream("k string, v long"))
        states = {
            "odd": gw.ValueState(Odd, codec="pickle"),
            "items": gw.ListState(Odd, codec="pickle"),
            "by_v": gw.MapState(int, Odd, codec="pickle"),
            "total": gw.ValueState(int),
        } | changed
        noted = rows.key_by("k").process(
            note_odd, name="noted", state=states, output="k string, states string"
        )
        flow.sink("noted", noted, gw.sinks.noop())
        return flow

    with gw.testing.cluster(flow_with(), executors=2) as run:
        for v in range(3):
            run.epoch({"rows": [("a", v), ("b", v)]})
            run.migrate(str(v % 2 + 1), component="noted")
            run.restart()
        expected = repr(([0, 1, 2], [[0], [1], [2]], 3, 3))
        assert [row["states"] for row in run.rows("noted").to_pylist()][-2:] == [expected] * 2
        with pytest.raises(CheckpointMismatchError, match="codec: msgpack → pickle"):
            run.restart(flow_with(total=gw.ValueState(int, codec="pickle")))


def test_rows_that_windows_leave_out_keep_all_their_columns() -> None:
    flow = gw.Flow("late", num_key_groups=8)
    columns = "k string, extra string, deep struct<a:int,b:array<string>>, ts timestamp"
    rows = flow.source("rows", gw.testing.stream(columns), event_time="ts")
    windows = rows.key_by("k").window(gw.tumbling("1 hour"), late=gw.sinks.memory(), name="hourly")
    flow.sink("hourly", windows.compute(n=gw.count()), gw.sinks.noop())
    played = gw.testing.cluster(flow, now=DAY)

    def row(hour: int | None) -> dict[str, Any]:
        ts = None if hour is None else DAY + dt.timedelta(hours=hour)
        return {"k": "a", "extra": f"of {hour}", "deep": {"a": hour, "b": ["x"]}, "ts": ts}

    for _ in range(2):
        played.epoch({"rows": [row(3)]})
    left_out = {0: "late", None: "untimed", 99: "ahead"}
    out = played.epoch({"rows": [row(hour) for hour in left_out]})["hourly_late"].to_pylist()
    assert out == [{**row(hour), "reason": reason} for hour, reason in left_out.items()]


def test_a_map_that_changes_keys_may_come_into_a_component_that_is_then_divided() -> None:
    def flow_with_maps(*maps: Any) -> gw.Flow:
        flow = gw.Flow("chain", num_key_groups=8)
        rows = flow.source("rows", gw.testing.stream("k long, v long"))
        sums = rows.key_by("k").compute(name="sums", total=gw.sum("v"))
        for function in maps:
            sums = sums.map(function)
        flow.sink("n", sums.key_by("k").compute(name="n", n=gw.count()), gw.sinks.noop())
        return flow

    def other_keys(table: pa.Table) -> pa.Table:
        return table.set_column(0, "k", pa.compute.add(table.column("k"), 100))

    rows = [(key, 1) for key in range(20)]
    played = gw.testing.cluster(
        flow_with_maps(), executors={"1": 2, "2": 1}, components={"all": ["sums", "n"]}
    )
    played.epoch({"rows": rows})
    played.restart(flow_with_maps(other_keys))
    epochs = len(played.epochs)
    with pytest.raises(
        GodwitError, match=r"'other_keys' has changed the key of a row .* two components"
    ):
        played.epoch({"rows": rows})
    assert len(played.epochs) == epochs
    played.restart(flow_with_maps(other_keys), components={"sums": ["sums"], "n": ["n"]})
    played.epoch({"rows": rows})
    counts = {row["k"]: row["n"] for row in played.state("n").to_pylist()}
    assert counts == dict.fromkeys([*range(20), *range(100, 120)], 1)


def test_a_sink_without_new_rows_gives_an_empty_table() -> None:
    run = gw.testing.cluster(windows())
    out = run.epoch({"orders": [order("A", 1.0)]})
    assert out == {}
    assert out["hourly"].schema == run.rows("hourly").schema
    assert out["hourly"].num_rows == 0
    with pytest.raises(InvalidInputError, match=r"no sink 'hour'.*Did you mean 'hourly'"):
        out["hour"]


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("assignment", "placement.assignments"),
        ("spread", "hot_keys.spread"),
        ("gather", "hot_keys.gather"),
    ],
)
def test_a_run_has_the_parts_of_a_query_and_names_them(former: str, name: str) -> None:
    run = gw.testing.cluster(market())
    with pytest.raises(NoSuchCallError, match=rf"Use run\.{name}\."):
        getattr(run, former)
    part, _, member = name.partition(".")
    assert hasattr(getattr(run, part), member)


def test_a_migration_of_a_run_plans_as_one_of_a_query() -> None:
    run = gw.testing.cluster(market(), executors=2)
    run.epoch({"orders": [order(symbol, 1.0) for symbol in "ABCDEFGH"]})
    solution = planner("milp")(run.placement.problem("totals"))
    preview = run.placement.preview(run.placement.assignments["totals"].moved({0: "2"}))
    assert [move.key_group for move in preview.moves] == [0]
    ended = run.migrate(solution).wait()
    assert ended.moved == len(solution.moved)
