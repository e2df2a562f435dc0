"""Tables that every lane has whole: what functions see of them, and when."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.checkpoint.chains import choose_snapshots
from godwit.checkpoint.records import StateId
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine import instructions
from godwit.model.errors import (
    CheckpointMismatchError,
    EpochFailedError,
    InvalidFlowError,
    UserFunctionError,
)
from godwit.operators import broadcast
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def convert(key: Any, rows: Any, total: Any, rates: Any) -> Any:
    for row in rows:
        rate = rates.get(row.currency)
        total.value += row.amount
        yield key[0], None if rate is None else row.amount * rate.rate, total.value


def flow_of(
    function: Callable[..., Any] = convert, *, keys: tuple[str, ...] = ("currency",), **options: Any
) -> gw.Flow:
    flow = gw.Flow("orders", num_key_groups=8)
    orders = flow.source("orders", gw.testing.stream("id string, currency string, amount long"))
    rates = flow.source("rates", gw.testing.stream("currency string, day long, rate long"))
    options = {"state": int, "output": "id string, value long, total long", **options}
    converted = orders.key_by("id").process(
        function, broadcast={"rates": rates.key_by(*keys)}, name="converted", **options
    )
    flow.sink("out", converted, gw.sinks.noop())
    return flow


def order(id_: str, currency: str, amount: int = 1) -> dict[str, Any]:
    return {"id": id_, "currency": currency, "amount": amount}


def rate(currency: str | None, rate: int | None, day: int | None = 1) -> dict[str, Any]:
    return {"currency": currency, "day": day, "rate": rate}


def values(out: dict[str, Any]) -> dict[str, Any]:
    return {row["id"]: row["value"] for row in out["out"].to_pylist()} if "out" in out else {}


def test_rows_of_a_table_count_before_those_of_their_epoch_and_the_newest_of_a_key_wins() -> None:
    run = gw.testing.cluster(flow_of(), executors=2)
    some = [order(i, "EUR") for i in "abcdefgh"]
    assert set(values(run.epoch({"orders": some})).values()) == {None}
    first = {"orders": some, "rates": [rate("EUR", 2), rate("USD", 3), rate("EUR", 4)]}
    assert values(run.epoch(first)) == dict.fromkeys("abcdefgh", 4)
    assert run.epoch({"rates": [rate("EUR", 5)]}) == {}
    assert values(run.epoch({"orders": some})) == dict.fromkeys("abcdefgh", 5)
    assert values(run.epoch({"orders": [order("a", "USD", 7)]})) == {"a": 21}


def test_a_row_without_values_removes_its_key() -> None:
    run = gw.testing.cluster(flow_of())
    run.epoch({"rates": [rate("EUR", 2), rate(None, 9)]})
    run.epoch({"rates": [rate("EUR", None, None)]})
    assert values(run.epoch({"orders": [order("a", "EUR"), order("b", "")]})) == {
        "a": None,
        "b": None,
    }


def test_null_is_a_key_and_keys_of_several_columns_are_tuples() -> None:
    def look(key: Any, rows: Any, state: Any, rates: Any) -> Any:
        return [(key[0], rates["EUR", 1].rate, len(rates)), (key[0], rates[None, 2].rate, 0)]

    run = gw.testing.cluster(flow_of(look, keys=("currency", "day")))
    run.epoch({"rates": [rate("EUR", 2), rate(None, 9, 2)]})
    out = run.epoch({"orders": [order("a", "EUR")]})["out"].to_pylist()
    assert [row["value"] for row in out] == [2, 9]


def test_every_lane_has_the_table_whatever_happens_to_executors() -> None:
    run = gw.testing.cluster(flow_of(), executors=2)
    some = {"orders": [order(str(i), "EUR") for i in range(40)]}
    run.epoch({"rates": [rate("EUR", 2), rate("USD", 1)]})
    run.epoch({**some, "rates": [rate("EUR", 3)]})
    for happens in (
        lambda: run.add("3"),
        lambda: run.migrate("3", component="converted"),
        lambda: run.kill("3"),
        lambda: run.restart(executors=3),
        lambda: run.kill("1"),
    ):
        happens()
        assert set(values(run.epoch(some)).values()) == {3}
    run.epoch({"rates": [rate("EUR", 4)]})
    run.restart(executors=1)
    assert set(values(run.epoch(some)).values()) == {4}
    state = run.state("converted", "broadcast_rates").to_pylist()
    assert sorted((row["currency"], row["rate"]) for row in state) == [("EUR", 4), ("USD", 1)]


def test_a_table_is_read_only_and_said_so_by_the_error() -> None:
    def write(key: Any, rows: Any, state: Any, rates: Any) -> None:
        rates["EUR"] = 1

    with pytest.raises(UserFunctionError, match="does not support item assignment"):
        gw.testing.run(flow_of(write), {"orders": [order("a", "EUR")]})


def test_tables_go_with_named_states_timers_and_asynchronous_functions() -> None:
    async def convert(key: Any, rows: Any, states: Any, rates: Any) -> Any:
        await asyncio.sleep(0)
        for row in rows:
            rows.timers.set(rows.timers.now)
            states.total.value += row.amount * rates[row.currency].rate
        return [(key[0], states.total.value, 0)]

    def fired(key: Any, timer: Any, states: Any, rates: Any) -> Any:
        return [(key[0], -len(rates), 0)]

    flow = flow_of(
        convert,
        state={"total": gw.ValueState(int)},
        timers=gw.types.OnTimer(fired, clock="processing"),
    )
    run = gw.testing.cluster(flow)
    out = run.epoch({"orders": [order("a", "EUR", 3)], "rates": [rate("EUR", 2)]})
    assert [row["value"] for row in out["out"].to_pylist()] == [6, -1]


def test_a_table_that_grows_too_large_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcast, "MAX_KEYS", 3)
    run = gw.testing.cluster(flow_of())
    run.epoch({"rates": [rate(c, 1) for c in "abc"]})
    with pytest.raises(EpochFailedError, match=r"'rates'.* has 4 keys.*(?s:.*)join_newest"):
        run.epoch({"rates": [rate("d", 1)]})
    assert values(run.epoch({"orders": [order("x", "c")]})) == {"x": 1}


def test_a_table_of_a_source_with_event_time_holds_no_watermark_back() -> None:
    flow = gw.Flow("orders", num_key_groups=4)
    orders = flow.source("orders", gw.testing.stream("id string, ts timestamp"), event_time="ts")
    rules = flow.source("rules", gw.testing.stream("id string, n long"))

    def remind(key: Any, rows: Any, state: Any, rules: Any) -> None:
        for row in rows:
            rows.timers.set(row.ts - timedelta(seconds=1))

    def fired(key: Any, timer: Any, state: Any, rules: Any) -> Any:
        return [(key[0], len(rules))]

    out = orders.key_by("id").process(
        remind,
        timers=gw.types.OnTimer(fired, clock="event"),
        state=int,
        output="id string, n long",
        broadcast={"rules": rules.key_by("id")},
    )
    flow.sink("out", out, gw.sinks.noop())
    run = gw.testing.cluster(flow)
    run.epoch({"orders": [{"id": "a", "ts": "2024-05-01 08:00"}]})
    run.epoch({"orders": [{"id": "b", "ts": "2024-05-01 09:00"}]})
    assert [row["id"] for row in run.rows("out").to_pylist()] == ["a", "b"]


def test_one_call_of_a_function_with_a_table_can_be_tested_by_itself() -> None:
    class Rate:
        rate = 3

    done = gw.testing.process(
        convert,
        [{"currency": "EUR", "amount": 2}],
        key={"id": "a"},
        state=1,
        broadcast={"rates": {"EUR": Rate}},
    )
    assert (done.rows, done.state) == ([("a", 6, 3)], 3)


def without_rates(key: Any, rows: Any, state: Any) -> None: ...


def computed(flow: gw.Flow) -> Any:
    rows = flow.source("rows", gw.testing.stream("k string, v long"))
    return rows, rows.key_by("k").compute(n=gw.count())


@pytest.mark.parametrize(
    ("broadcast", "what"),
    [
        (lambda rows, _: {"rates": rows}, "of type Stream"),
        (lambda _, sums: {"rates": sums.key_by("k")}, "only rows of sources can be broadcast"),
        (lambda rows, _: {"a rate": rows.key_by("k")}, "broadcast="),
        (lambda rows, _: [rows.key_by("k")], "broadcast="),
        (
            lambda *_: {"rates": computed(gw.Flow("other"))[0].key_by("k")},
            "a stream of another flow, 'other'",
        ),
    ],
)
def test_tables_that_are_none_are_refused(broadcast: Callable[..., Any], what: str) -> None:
    flow = gw.Flow("orders")
    rows, sums = computed(flow)
    with pytest.raises(InvalidFlowError, match=what):
        rows.key_by("k").process(
            convert, state=int, output="k string", broadcast=broadcast(rows, sums)
        )


def test_a_function_that_does_not_take_its_table_is_refused() -> None:
    with pytest.raises(
        InvalidFlowError, match=r"cannot be called as function\(key, rows, state, rates=rates\)"
    ):
        flow_of(without_rates).explain()


def test_a_column_that_a_table_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidFlowError, match=r"'coin'.*source 'rates' does not have"):
        flow_of(keys=("coin",)).explain()


def test_explain_shows_tables(capsys: pytest.CaptureFixture[str]) -> None:
    flow_of().explain()
    shown = capsys.readouterr().out
    assert "table 'rates' by currency of source 'rates'" in shown
    assert "every row to every lane" in shown


def test_a_table_goes_on_under_another_name_with_more_columns_and_its_checkpoint_is_whole(
    tmp_path: Path,
) -> None:
    def count(key: Any, rows: Any, state: Any, rates: Any) -> Any:
        return [(key[0], rates["EUR"].rate, len(rates))]

    def flow(name: str, columns: str, formerly: str | None = None) -> gw.Flow:
        flow = gw.Flow("orders", num_key_groups=8)
        orders = flow.source("orders", gw.testing.stream("id string"))
        rates = flow.source("rates", gw.testing.stream(columns)).key_by("currency")
        counted = orders.key_by("id").process(
            count,
            state=int,
            output="id string, value long, n long",
            name=gw.types.Identity(name, formerly=formerly),
            broadcast={"rates": rates},
        )
        flow.sink("out", counted, gw.sinks.noop())
        return flow

    order = {"orders": [{"id": "a"}]}
    with gw.testing.cluster(
        flow("one", "currency string, rate long"), checkpoint=tmp_path / "ck"
    ) as run:
        for number in range(1, 4):
            run.epoch({"rates": [{"currency": "EUR", "rate": number}]})
        run.restart(flow("other", "currency string, rate long", formerly="one"))
        assert values(run.epoch(order)) == {"a": 3}
        run.restart(flow("other", "currency string, note string, rate long"))
        run.epoch({"rates": [{"currency": "USD", "rate": 1, "note": "new"}]})
        assert [row["n"] for row in run.epoch(order)["out"].to_pylist()] == [2]
    assert verify(CheckpointStorage.open(tmp_path / "ck")).findings == ()


def test_a_lane_that_is_new_begins_with_a_snapshot_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        instructions, "choose_snapshots", partial(choose_snapshots, min_changelog_bytes=1)
    )
    run = gw.testing.cluster(flow_of(), executors=2)
    for number in range(1, 12):
        run.epoch({"rates": [rate("EUR", number), rate("USD", None if number % 2 else 1, None)]})
    chains = run._driver.log.chains
    state = StateId("converted", "broadcast_rates")
    assert len(chains.snapshots(state)) == 1
    assert len(chains.segments(state)) < 11
    some = {"orders": [order(i, currency) for i in "abcdefgh" for currency in ("EUR", "USD")][::3]}
    run.restart(executors=3)
    assert set(values(run.epoch(some)).values()) == {11, None}
    run.epoch({"rates": [rate("USD", 5)]})
    assert set(values(run.epoch(some)).values()) == {11, 5}


def test_a_table_is_gone_through_in_the_order_of_its_keys_in_every_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_rule(key: Any, rows: Any, state: Any, rates: Any) -> Any:
        yield key[0], next(iter(rates.values())).rate, len(rates)

    monkeypatch.setattr(
        instructions, "choose_snapshots", partial(choose_snapshots, min_changelog_bytes=1)
    )
    run = gw.testing.cluster(flow_of(first_rule), executors=2)
    names = "zyxwvutsrqponm"
    for number, name in enumerate(names):
        run.epoch({"rates": [rate(name, number), rate(names[number // 2], 100 + number)]})
    some = {"orders": [order(i, "") for i in "abcdefgh"]}
    expected = dict.fromkeys("abcdefgh", len(names) - 1)
    assert values(run.epoch(some)) == expected
    run.add("3")  # whose lane begins with a snapshot
    run.migrate("3", component="converted")
    assert values(run.epoch(some)) == expected
    run.restart(executors=3)
    assert values(run.epoch(some)) == expected
    run.epoch({"rates": [rate(None, 7), rate("b", 8)]})
    assert set(values(run.epoch(some)).values()) == {8}


def test_a_key_that_is_not_a_number_is_one_key() -> None:
    def count(key: Any, rows: Any, state: Any, limits: Any) -> Any:
        yield key[0], len(limits)

    flow = gw.Flow("limits", num_key_groups=2)
    orders = flow.source("orders", gw.testing.stream("id string"))
    limits = flow.source("limits", gw.testing.stream("above double, limit long"))
    counted = orders.key_by("id").process(
        count,
        state=int,
        output="id string, n long",
        broadcast={"limits": limits.key_by("above")},
    )
    flow.sink("out", counted, gw.sinks.noop())
    run = gw.testing.cluster(flow)
    nan = float("nan")
    for limit, expected in ((1, 1), (2, 1), (None, 0)):
        run.epoch({"limits": [{"above": nan, "limit": limit}]})
        out = run.epoch({"orders": [{"id": "a"}]})
        assert out["out"].column("n").to_pylist() == [expected]


def tables_of(first: str, second: str, keys: str = "c") -> gw.Flow:
    def tell(key: Any, rows: Any, state: Any, low: Any, high: Any) -> Any:
        yield key[0], repr(sorted(low)), repr(sorted(high))

    flow = gw.Flow("limits", num_key_groups=2)
    orders = flow.source("orders", gw.testing.stream("id string"))
    sources = {n: flow.source(n, gw.testing.stream("c string, v long")) for n in ("x", "y")}
    told = orders.key_by("id").process(
        tell,
        state=int,
        name="told",
        output="id string, low string, high string",
        broadcast={"low": sources[first].key_by(keys), "high": sources[second].key_by("c")},
    )
    flow.sink("out", told, gw.sinks.noop())
    return flow


def test_tables_that_have_changed_places_are_refused() -> None:
    run = gw.testing.cluster(tables_of("x", "y"))
    run.epoch({"x": [{"c": "of x", "v": 1}], "y": [{"c": "of y", "v": 2}]})
    with pytest.raises(
        CheckpointMismatchError, match="table 'low' and table 'high' have changed places"
    ):
        run.restart(tables_of("y", "x"))
    run.restart(tables_of("x", "y"))
    (row,) = run.epoch({"orders": [{"id": "a"}]})["out"].to_pylist()
    assert (row["low"], row["high"]) == ("['of x']", "['of y']")


def test_a_table_with_other_keys_is_refused_by_their_names() -> None:
    run = gw.testing.cluster(tables_of("x", "y"))
    run.epoch({"x": [{"c": "a", "v": 1}]})
    with pytest.raises(CheckpointMismatchError, match=r"'c', 'string'.*'v', 'int64'") as caught:
        run.restart(tables_of("x", "y", keys="v"))
    assert "__godwit" not in str(caught.value)


@pytest.mark.parametrize("lost", ["1", "2"])  # one of them writes the table
def test_a_table_changes_while_rows_of_the_operator_wait(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = gw.migration.Policy(recovery=gw.migration.Bounds(max_lag=0))
    run = gw.testing.cluster(flow_of(), executors=2, policy=policy)
    some = [order(str(i), "EUR") for i in range(30)]
    run.epoch({"orders": some, "rates": [rate("EUR", 1)]})
    run._driver.copies_held = True
    with monkeypatch.context() as patch:
        patch.setattr(
            run._driver, "run_until_idle", lambda: ()
        )  # nothing ends while copies are held
        run.kill(lost)
        for number in (2, 3):
            run._play({"orders": some, "rates": [rate("EUR", number)]})
        assert any(component.waiting for component in run._driver.view.components.values())
    run._driver.copies_held = False
    run.epoch()
    every = run.rows("out").to_pylist()
    assert len(every) == 90
    assert {row["value"] for row in every} == {1, 2, 3}
    assert {row["total"] for row in every} == {1, 2, 3}
    assert set(values(run.epoch({"orders": some})).values()) == {3}
