"""Look-ups in a running query's state have the rows of its last committed epoch."""

from __future__ import annotations

import datetime as dt
import random
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import InvalidInputError
from godwit.ops.page.stored_state import StoredStates
from godwit.ops.query_state import QueryState, QueryStates

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def state_of(run: Any, operator: str, state: str | None = None) -> QueryState:
    return QueryState(run._driver, operator, state)


def totals(
    schema: str = "k string, v bigint",
    keys: tuple[str, ...] = ("k",),
    partition_by: str | None = None,
    **more: Any,
) -> gw.Flow:
    flow = gw.Flow("asked", num_key_groups=16)
    rows = flow.source("rows", gw.sources.memory(schema)).key_by(*keys, partition_by=partition_by)
    result = rows.compute(name="t", n=gw.count(), total=gw.sum("v"), **more)
    flow.sink("out", result, gw.sinks.noop())
    return flow


@pytest.mark.parametrize("seed", range(rounds(1, 2)))
def test_every_answer_is_of_the_last_epoch_over_moves_losses_and_restarts(seed: int) -> None:
    drawn = random.Random(seed)
    run = gw.testing.cluster(totals(), executors=3)
    asked = state_of(run, "t")
    assert asked.get("a1") is None
    assert asked.scan().num_rows == 0
    model: dict[str, tuple[int, int]] = {}
    for epoch in range(30):
        rows: list[dict[str, Any]] = [
            {"k": f"{drawn.choice('abcd')}{drawn.randrange(40)}", "v": drawn.randrange(100)}
            for _ in range(drawn.randrange(60))
        ]
        for row in rows:
            count, total = model.get(row["k"], (0, 0))
            model[row["k"]] = count + 1, total + row["v"]
        run.epoch({"rows": rows})
        match drawn.randrange(8):
            case 0:
                run.add(f"new{epoch}")
                run.kill(drawn.choice(sorted(run.executors)))
            case 1:
                run.restart(executors=drawn.randrange(1, 4))
                asked = state_of(run, "t")
            case 2:
                run.restart(totals(most=gw.max("v")))
                asked = state_of(run, "t")
        for key in drawn.sample(sorted(model), min(5, len(model))):
            row = asked.get(key)
            assert (row["n"], row["total"]) == model[key]
        assert asked.epoch == run._driver.log.latest_epoch
        if drawn.randrange(6) == 0:
            every = {row["k"]: (row["n"], row["total"]) for row in asked.scan().to_pylist()}
            assert every == model
    some = [key for key in model if key.startswith("a1")]
    assert {row["k"] for row in asked.scan("a1").to_pylist()} == {*some}
    assert asked.scan(limit=7).num_rows == 7


def test_rows_are_joined_with_the_state_of_their_keys_in_their_order() -> None:
    run = gw.testing.cluster(totals())
    run.epoch({"rows": [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}]})
    asked = state_of(run, "t")
    rows = pa.table({"x": [1, 2, 3, 4], "k": ["b", "z", "a", "b"]})
    assert asked.join(rows).to_pylist() == [
        {"x": 1, "k": "b", "n": 1, "total": 2},
        {"x": 2, "k": "z", "n": None, "total": None},
        {"x": 3, "k": "a", "n": 2, "total": 4},
        {"x": 4, "k": "b", "n": 1, "total": 2},
    ]
    assert asked.get_many(["a", "z", "b"]).num_rows == 2
    for wrong, text in (
        (pa.table({"x": [1]}), "lack 'k'"),
        (pa.table({"k": pa.array([[1]])}), "do not fit"),
        (pa.table({"k": ["a"], "n": [1]}), "both have 'n'"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            asked.join(wrong)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("a", "b"), "does not fit the state of 't', whose key columns are 'k'"),
        ({"key": "a"}, "does not fit the state"),
        (5, "column 'k', of type string, cannot hold"),
    ],
)
def test_a_key_of_another_shape_is_refused(wrong: Any, text: str) -> None:
    run = gw.testing.cluster(totals())
    run.epoch({"rows": [{"k": "a", "v": 1}]})
    with pytest.raises(InvalidInputError, match=text):
        state_of(run, "t").get(wrong)


def test_keys_of_several_columns_nulls_and_floats_are_found() -> None:
    schema = "area string, x double, v bigint"
    run = gw.testing.cluster(totals(schema, ("area", "x"), "area"))
    keys = [("a", 0.0), ("a", float("nan")), (None, 1.5), ("b", None)]
    run.epoch({"rows": [{"area": area, "x": x, "v": 1} for area, x in keys]})
    run.epoch({"rows": [{"area": "a", "x": -0.0, "v": 5}]})
    asked = state_of(run, "t")
    assert asked.get(("a", -0.0))["total"] == 6
    assert [asked.get(key)["n"] for key in keys[1:]] == [1, 1, 1]
    assert asked.get({"x": 1.5, "area": None})["total"] == 1
    assert asked.scan(("a",)).num_rows == 2
    assert asked.scan((None,)).num_rows == 1
    with pytest.raises(InvalidInputError, match="more values"):
        asked.scan(("a", 1.0, 2))


def test_windows_are_the_open_panes_of_a_key() -> None:
    flow = gw.Flow("asked", num_key_groups=8)
    rows = flow.source("rows", gw.sources.memory("k string, ts timestamp"), event_time="ts")
    counts = rows.key_by("k").window(gw.tumbling("10 minutes"), name="w").compute(n=gw.count())
    flow.sink("out", counts, gw.sinks.noop())
    run = gw.testing.cluster(flow)
    minutes = dt.timedelta(minutes=1)
    run.epoch({"rows": [{"k": k, "ts": DAY + m * minutes} for k in "ab" for m in (1, 2, 12)]})
    asked = state_of(run, "w")
    assert sorted(row["n"] for row in asked.get("a")) == sorted(
        row["n"] for row in run.state("w").to_pylist() if row["k"] == "a"
    )
    run.epoch({"rows": [{"k": "b", "ts": DAY + 40 * minutes}]})
    run.epoch({"rows": [{"k": "b", "ts": DAY + 41 * minutes}]})
    assert asked.get("a") == []
    assert asked.scan().num_rows == run.state("w").num_rows
    assert asked.get("absent") == []


def test_functions_show_their_states_as_text() -> None:
    def visit(_: Any, rows: Any, states: Any) -> Iterator[tuple[int]]:
        for row in rows:
            states.seen[row.v] = states.seen.get(row.v, 0) + 1
        states.count.value = len(states.seen)
        yield (len(states.seen),)

    flow = gw.Flow("asked", num_key_groups=8)
    visited = (
        flow.source("rows", gw.sources.memory("k string, v bigint"))
        .key_by("k")
        .process(
            visit,
            name="p",
            output="n int",
            state={"seen": gw.MapState(int, int), "count": gw.ValueState(int)},
        )
    )
    flow.sink("out", visited, gw.sinks.noop())
    run = gw.testing.cluster(flow)
    run.epoch({"rows": [{"k": "a", "v": v} for v in (1, 2, 2)] + [{"k": "b", "v": 1}]})
    for state in ("seen", "count"):
        asked = state_of(run, "p", state)
        expected = run.state("p", state).drop_columns(["key_group"]).to_pylist()
        assert sorted(map(str, asked.scan().to_pylist())) == sorted(map(str, expected))
        rows = asked.get("a")
        assert (rows if isinstance(rows, list) else [rows]) == [
            row for row in expected if row["k"] == "a"
        ]
    with pytest.raises(gw.errors.CheckpointError, match="has several states"):
        state_of(run, "p").get("a")


def test_threads_that_ask_while_epochs_run_get_states_that_were_committed() -> None:
    run = gw.testing.cluster(totals(), executors=2)
    run.epoch({"rows": [{"k": "a", "v": 1}]})
    asked, ended, wrong = state_of(run, "t"), threading.Event(), []

    def ask() -> None:
        last = 0
        while not ended.is_set():
            row = asked.get("a")
            if row["n"] < last or row["total"] != row["n"]:
                wrong.append((last, row))
            last = row["n"]

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        run.epoch({"rows": [{"k": "a", "v": 1}, {"k": "b", "v": 1}]})
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert asked.get("a")["n"] == 61


def test_copies_are_deleted_by_close_and_made_again() -> None:
    run = gw.testing.cluster(totals())
    run.epoch({"rows": [{"k": "a", "v": 1}]})
    asked = state_of(run, "t")
    assert asked.get("a")["n"] == 1
    asked.close()
    run.epoch({"rows": [{"k": "a", "v": 1}]})
    assert asked.get("a")["n"] == 2


def test_keys_that_are_null_or_nan_are_joined_and_scanned_like_others() -> None:
    run = gw.testing.cluster(totals("k double, v bigint"))
    nan = float("nan")
    run.epoch({"rows": [{"k": k, "v": 1} for k in (nan, None, -0.0, 0.0, 1.5)]})
    asked = state_of(run, "t")
    rows = pa.table({"k": [nan, 0.0, None, 2.0, -0.0]})
    assert asked.join(rows).column("n").to_pylist() == [1, 2, 1, None, 2]
    assert [asked.scan((k,)).num_rows for k in (nan, None, -0.0, 7.0)] == [1, 1, 1, 0]
    assert asked.get_many([nan, nan, None]).num_rows == 2
    with pytest.raises(InvalidInputError, match="has the limit -1"):
        asked.scan(limit=-1)


def test_the_state_of_a_whole_stream_is_that_of_the_key_of_no_columns() -> None:
    flow = gw.Flow("asked", num_key_groups=4)
    whole = flow.source("rows", gw.sources.memory("v bigint")).key_by()
    flow.sink("out", whole.compute(name="t", n=gw.count()), gw.sinks.noop())
    run = gw.testing.cluster(flow)
    run.epoch({"rows": [{"v": 1}, {"v": 2}]})
    asked = state_of(run, "t")
    assert asked.get(()) == {"n": 2}
    assert asked.scan().to_pylist() == [{"n": 2}]
    assert asked.join(pa.table({"x": [1, 2]})).to_pylist() == [{"x": 1, "n": 2}, {"x": 2, "n": 2}]


def _visit(_: Any, rows: Any, states: Any) -> None:
    for row in rows:
        states.seen[row.v] = states.seen.get(row.v, 0) + 1
        states.count.value += 1


def _plus(one: int, other: int) -> int:
    return one + other


def test_parts_of_hot_keys_are_answered_as_they_will_be_merged() -> None:
    flow = gw.Flow("asked", num_key_groups=8)
    keyed = flow.source("rows", gw.sources.memory("k string, v bigint")).key_by("k")
    states: dict[str, Any] = {
        "seen": gw.MapState(int, int, merge=_plus),
        "count": gw.ValueState(int, merge=_plus),
    }
    flow.sink(
        "out", keyed.process(_visit, name="p", output="k string", state=states), gw.sinks.noop()
    )
    drawn = random.Random(3)
    model: dict[str, list[int]] = {}
    with gw.testing.cluster(flow, executors=2) as run:
        count, seen = state_of(run, "p", "count"), state_of(run, "p", "seen")
        for epoch in range(10):
            match epoch:
                case 2 | 8:
                    run.hot_keys.spread("p", "hot", left=3)
                case 4:
                    run.hot_keys.spread("p", "hot", left=2)
                case 6:
                    run.hot_keys.gather("p", "hot")
            rows: list[dict[str, Any]] = [
                {"k": drawn.choice(["hot", "hot", "cold"]), "v": drawn.randrange(5)}
                for _ in range(20)
            ]
            for row in rows:
                model.setdefault(str(row["k"]), []).append(int(row["v"]))
            run.epoch({"rows": rows})
            parts = {row.get("part") for row in run.state("p", "count").to_pylist()}
            assert (len(parts) > 1) == (epoch in {2, 3, 4, 5, 8, 9})
            for key, values in model.items():
                assert count.get(key) == {"k": key, "state": str(len(values))}
                items = {row["item"]: int(row["state"]) for row in seen.get(key)}
                assert items == {value: values.count(value) for value in set(values)}
            assert count.scan().num_rows == len(model)
            # Without the program, parts are rows of their own, as `gw.read_state` has them.
            rows_of_hot = [r for r in run.state("p", "count").to_pylist() if r["k"] == "hot"]
            ours = StoredStates(run._driver.log.storage).state("p", "count").get_many(["hot"])
            expected = [{n: v for n, v in r.items() if n != "key_group"} for r in rows_of_hot]
            assert sorted(map(str, ours.to_pylist())) == sorted(map(str, expected))


def test_both_slots_of_two_phase_windows_are_answered_as_one() -> None:
    flow = gw.Flow("asked", num_key_groups=8)
    rows = flow.source(
        "rows", gw.sources.memory("k string, ts timestamp, v bigint"), event_time="ts"
    )
    windows = rows.key_by("k").window(gw.tumbling("10 minutes"), name="w", consolidate="apart")
    flow.sink("out", windows.compute(n=gw.count(), last=gw.last("v")), gw.sinks.noop())
    run = gw.testing.cluster(flow, executors=2)
    asked, drawn, number = state_of(run, "w"), random.Random(2), 0
    model: dict[tuple[str, int], list[int]] = {}
    in_both = 0
    for epoch in range(25):
        batch = []
        for _ in range(12):
            number += 1
            key, minute = drawn.choice("abcd"), epoch * 1.5 + drawn.random() * 3
            batch.append({"k": key, "ts": DAY + dt.timedelta(minutes=minute), "v": number})
            model.setdefault((key, int(minute // 10)), []).append(number)
        run.epoch({"rows": batch})
        if epoch % 4 == 2:
            to = {g: drawn.choice(sorted(run.executors)) for g in range(8)}
            run.migrate(to, component="w", strategy=drawn.choice(["instant", "smooth"]))
        stored = [(row["k"], row["pane"]) for row in run.state("w").to_pylist()]
        if epoch % 8 == 0:
            alone = StoredStates(run._driver.log.storage).state("w").get_many("abcd").to_pylist()
            assert sorted((row["k"], row["pane"]) for row in alone) == sorted(stored)
        in_both += len(stored) - len({*stored})
        answered = [row for key in "abcd" for row in asked.get(key)]
        assert sorted((row["k"], row["pane"]) for row in answered) == sorted({*stored})
        assert sorted(map(str, asked.scan().to_pylist())) == sorted(map(str, answered))
        for row in answered:
            values = model[row["k"], int((row["pane"] - DAY).total_seconds() // 600)]
            assert (row["n"], row["last__value"]) == (len(values), values[-1])
    assert in_both


def test_answers_of_several_operators_are_of_one_epoch_which_each_thread_is_told() -> None:
    flow = gw.Flow("asked", num_key_groups=8)
    rows = flow.source("rows", gw.sources.memory("k string, j bigint"))
    for name, keys in (("one", ["k"]), ("two", ["k", "j"])):
        flow.sink(name, rows.key_by(*keys).compute(name=name, n=gw.count()), gw.sinks.noop())
    run = gw.testing.cluster(flow)
    batch = [{"k": "a", "j": j} for j in range(3)]
    run.epoch({"rows": batch})
    states = {name: state_of(run, name) for name in ("one", "two")}
    both, ended, wrong = QueryStates(states), threading.Event(), []

    def ask() -> None:
        while not ended.is_set():
            answer = both.get({"one": "a", "two": ("a", 1)})
            alone = states["one"].get_many(["a"])
            numbers = answer["one"]["n"], 3 * answer["two"]["n"], 3 * (both.epoch + 1)
            epoch = states["one"].epoch
            of_alone = alone.column("n")[0].as_py(), 3 * (epoch + 1)
            if len({*numbers}) > 1 or len({*of_alone}) > 1 or epoch < both.epoch:
                wrong.append((numbers, of_alone))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        run.epoch({"rows": batch})
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert states["one"].scan().schema.metadata == {b"godwit.epoch": b"30"}
    with pytest.raises(InvalidInputError, match="do not include 'three'"):
        both.get({"three": "a"})


class _Repartitioned:
    """The present parts of a run, which a repartitioning replaces, as it does those of a query."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run._driver, name)


def test_an_answer_follows_the_state_to_other_partition_columns_and_outlives_the_run() -> None:
    run = gw.testing.cluster(totals("area string, x bigint, v bigint", ("area", "x")))
    parts: Any = _Repartitioned(run)
    asked = QueryState(parts, "t")
    for number, by in enumerate((None, "area", "x"), 1):
        if by is not None:
            run.components.repartition({"t": by})
        run.epoch({"rows": [{"area": "a", "x": 1, "v": 1}, {"area": "b", "x": 1, "v": 1}]})
        assert asked.get(("b", 1)) == {"area": "b", "x": 1, "n": number, "total": number}
    run.close()
    assert asked.get(("a", 1))["n"] == 3
    asked.close()
    assert asked.get(("a", 1))["n"] == 3
