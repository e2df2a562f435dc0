"""Failed calls of users' functions: what is diverted, what is not, and when the query stops."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import GodwitError, InvalidFlowError, UserFunctionError
from godwit.model.events import CallsFailed
from godwit.operators import failed_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

Row = dict[str, Any]
COLUMNS = "k string, n long, moment timestamp"
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def add_up(key: tuple[str], rows: Any, total: gw.types.State[int]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        total.value += 10 // row.n
        yield (*key, total.value)


def flow_of(
    function: Callable[..., Any] = add_up,
    *,
    share: float = 1.0,
    state: Any = int,
    **options: Any,
) -> gw.Flow:
    flow = gw.Flow("sums", num_key_groups=8)
    rows = flow.source("rows", gw.sources.memory(COLUMNS), event_time="moment")
    sums = rows.key_by("k").process(
        function, state=state, output="k string, total long", name="sums", **options
    )
    flow.sink("sums", sums, gw.sinks.noop())
    flow.divert_errors("failed", sums, gw.sinks.noop(), max_error_share=share)
    return flow


def rows_of(*pairs: tuple[str, int]) -> list[Row]:
    return [
        {"k": key, "n": n, "moment": START + dt.timedelta(seconds=number)}
        for number, (key, n) in enumerate(pairs)
    ]


def test_a_failed_call_is_undone_and_other_keys_go_on() -> None:
    with gw.testing.cluster(flow_of()) as run:
        run.epoch({"rows": rows_of(("a", 5), ("b", 1))})
        out = run.epoch({"rows": rows_of(("a", 5), ("a", 0), ("b", 2), ("c", 10))})
        assert {row["k"]: row["total"] for row in out["sums"].to_pylist()} == {"b": 15, "c": 1}
        assert {r["k"]: r["state"] for r in run.state("sums").to_pylist()} == {
            "a": "2",
            "b": "15",
            "c": "1",
        }
        failed = out["failed"].to_pylist()
        (event,) = [event for event in run.events if isinstance(event, CallsFailed)]
    assert [json.loads(row["row"])["n"] for row in failed] == [5, 0]
    assert {(row["operator"], row["function"], row["key"], row["error"]) for row in failed} == {
        ("sums", "add_up", '{"k": "a"}', "ZeroDivisionError")
    }
    assert "10 // row.n" in failed[0]["traceback"]
    assert failed[1]["traceback"] == ""
    assert (event.operator, event.function, event.calls, event.rows) == ("sums", "add_up", 1, 2)
    assert (event.key, event.sink) == ('{"k": "a"}', "failed")
    assert "ZeroDivisionError" in event.error


def test_a_key_that_is_new_has_no_state_after_its_call_failed() -> None:
    with gw.testing.cluster(flow_of()) as run:
        run.epoch({"rows": rows_of(("a", 0))})
        assert run.state("sums").num_rows == 0


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit, GodwitError])
def test_errors_that_are_not_about_the_rows_stop_the_query(error: type[BaseException]) -> None:
    def fails(key: Any, rows: Any, state: Any) -> None:
        raise error("no")

    def map_fails(rows: pa.Table) -> pa.Table:
        if rows.num_rows:
            raise error("no")
        return rows

    with pytest.raises(UserFunctionError):
        gw.testing.run(flow_of(fails), {"rows": rows_of(("a", 1))})
    flow = gw.Flow("mapped")
    rows = flow.source("rows", gw.sources.memory(COLUMNS)).map(map_fails)
    flow.sink("out", rows, gw.sinks.noop())
    flow.divert_errors("failed", rows, gw.sinks.noop())
    with pytest.raises((UserFunctionError, KeyboardInterrupt)):
        gw.testing.run(flow, {"rows": rows_of(("a", 1))})


def test_more_than_the_share_of_recent_rows_stops_the_query_before_the_commit() -> None:
    with gw.testing.cluster(flow_of(share=0.01)) as run:
        run.epoch({"rows": rows_of(*[("a", 1)] * 490, *[("b", 0)] * 10)})
        with pytest.raises(UserFunctionError) as failure:
            run.epoch({"rows": rows_of(("c", 1), ("d", 0))})
        assert run.epochs[-1].epoch == 0
    error = failure.value
    assert "'add_up' of operator 'sums' failed for 11 of the last 502 rows" in error.message
    assert error.context["key"] == '{"k": "d"}'
    assert json.loads(error.context["row"])["n"] == 0
    assert "10 // row.n" in str(error)


def remind(key: Any, timer: Any, total: gw.types.State[int]) -> list[tuple[Any, ...]]:
    total.value += 100
    if total.value % 2:
        raise ValueError("an odd total")
    return [(*key, total.value)]


def add_and_set(key: Any, rows: Any, total: gw.types.State[int]) -> None:
    for row in rows:
        total.value += 10 // row.n
        rows.timers.set(row.moment + dt.timedelta(seconds=30))


def test_a_timer_whose_call_fails_is_gone_and_the_state_is_as_before_it() -> None:
    timers = gw.types.OnTimer(remind, clock="event")
    with gw.testing.cluster(flow_of(add_and_set, timers=timers)) as run:
        run.epoch({"rows": rows_of(("odd", 2), ("even", 5))})
        out = run.end_input()
        assert out["sums"].to_pylist() == [{"k": "even", "total": 102}]
        assert {r["k"]: (r["state"], r["timers"]) for r in run.state("sums").to_pylist()} == {
            "odd": ("5", []),
            "even": ("102", []),
        }
        (failed,) = run.rows("failed").to_pylist()
        (event,) = [event for event in run.events if isinstance(event, CallsFailed)]
    assert (failed["function"], failed["key"], failed["row"]) == ("remind", '{"k": "odd"}', "")
    assert (event.calls, event.rows) == (1, 0)


def test_timers_that_a_failed_call_set_are_not_set() -> None:
    timers = gw.types.OnTimer(remind, clock="event")
    with gw.testing.cluster(flow_of(add_and_set, timers=timers)) as run:
        run.epoch({"rows": rows_of(("a", 5), ("a", 0))})
        assert run.state("sums").num_rows == 0
        assert run.end_input()["sums"].num_rows == 0


def test_in_order_of_event_time_only_the_calls_that_fail_are_undone() -> None:
    flow = flow_of(order="event_time")
    rows = rows_of(("a", 5), ("a", 0), ("a", 10), ("a", 0), ("a", 1))
    played = gw.testing.run(flow, {"rows": rows}, close_at_end=True)
    assert [row["total"] for row in played.rows("sums").to_pylist()] == [2, 3, 13]
    assert [json.loads(row["row"])["n"] for row in played.rows("failed").to_pylist()] == [0, 0]


def test_retries_of_an_asynchronous_function_come_first() -> None:
    attempts: list[str] = []

    async def asks(key: tuple[str], rows: Any, total: gw.types.State[int]) -> list[Any]:
        attempts.append(key[0])
        total.value += 1
        if key[0] == "a" or attempts.count(key[0]) == 1:
            raise OSError("not reached")
        return [(*key, total.value)]

    settings = gw.types.Async(retries=2, retry_on=(OSError,), backoff="1 millisecond")
    played = gw.testing.run(
        flow_of(asks, asynchronous=settings), {"rows": rows_of(("a", 1), ("b", 1))}
    )
    assert played.rows("sums").to_pylist() == [{"k": "b", "total": 1}]
    assert [row["key"] for row in played.rows("failed").to_pylist()] == ['{"k": "a"}']
    assert (attempts.count("a"), attempts.count("b")) == (3, 2)


def test_a_search_for_the_failing_rows_ends_after_its_most_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("godwit.plan.maps.MAX_SEARCH_CALLS", 20)
    calls = []

    def fails(rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        if rows.num_rows and rows["k"][0].as_py() == "bad":
            raise ValueError("bad")
        return rows

    flow = gw.Flow("mapped")
    rows = flow.source("rows", gw.sources.memory(COLUMNS)).map(fails)
    flow.sink("out", rows, gw.sinks.noop())
    flow.divert_errors("failed", rows, gw.sinks.noop(), max_error_share=1.0)
    many = rows_of(*[("bad", n) for n in range(500)])
    played = gw.testing.run(flow, {"rows": many})
    failed = played.rows("failed").to_pylist()
    assert sorted(json.loads(row["row"])["n"] for row in failed) == list(range(500))
    assert len(calls) < 50


def test_a_map_before_two_operators_runs_and_diverts_once() -> None:
    calls = []

    def checked(rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        if 0 in rows["n"].to_pylist():
            raise ValueError("zero")
        return rows

    flow = gw.Flow("mapped")
    rows = flow.source("rows", gw.sources.memory(COLUMNS)).map(checked)
    flow.divert_errors("failed", rows, gw.sinks.noop())
    for name in ("first", "second"):
        own = rows.map(lambda rows: rows).key_by("k").compute(n=gw.count(), name=name)
        flow.sink(name, own, gw.sinks.noop())
    played = gw.testing.run(flow, {"rows": rows_of(("a", 1), ("a", 0))})
    assert played.rows("failed").num_rows == 1
    assert [played.rows(name)["n"].to_pylist() for name in ("first", "second")] == [[1], [1]]
    assert calls == [0, 2, 1, 1]


def test_the_sink_of_failed_calls_may_reject_rows_itself() -> None:
    flow = flow_of()
    with pytest.raises(InvalidFlowError, match="'failed'"):
        flow.sink("failed", flow.source("more", gw.sources.memory("n int")), gw.sinks.noop())


def test_streams_without_a_function_and_wrong_shares_are_refused() -> None:
    flow = gw.Flow("refused")
    rows = flow.source("rows", gw.sources.memory(COLUMNS))
    counted = rows.key_by("k").compute(n=gw.count())
    for stream in (rows, counted, rows.union(rows)):
        with pytest.raises(InvalidFlowError, match="calls no function of yours"):
            flow.divert_errors("failed", stream, gw.sinks.noop())
    mapped = rows.map(lambda rows: rows)
    for share in (0, 1.5, True, "0.1"):
        with pytest.raises(InvalidFlowError, match="max_error_share"):
            flow.divert_errors("failed", mapped, gw.sinks.noop(), max_error_share=share)  # type: ignore[arg-type]
    flow.divert_errors("failed", mapped, gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match="have a sink already"):
        flow.divert_errors("again", mapped, gw.sinks.noop())
    frames = flow.source("frames", gw.testing.stream(COLUMNS)).map(lambda df: df)
    with pytest.raises(InvalidFlowError, match="Spark runs it"):
        flow.divert_errors("frames", frames, gw.sinks.noop())


def test_texts_of_failed_calls_are_bounded_and_ascii() -> None:
    def fails(key: Any, rows: Any, total: Any) -> None:
        raise ValueError("ä" * 5000)

    (row,) = gw.testing.run(flow_of(fails), {"rows": rows_of(("ü", 1))}).rows("failed").to_pylist()
    assert len(row["message"]) == 4 * 1000
    assert all(text.isascii() for text in row.values())
    assert len(row["traceback"]) <= 4 * failed_calls._MAX_TRACEBACK


@dataclass
class Reading:
    n: int
    k: str


@pytest.mark.parametrize("order", ["arrival", "event_time"])
@pytest.mark.parametrize("state", [int, {"sum": gw.ValueState(int)}])
def test_a_row_that_does_not_fit_its_class_is_diverted_alone(order: Any, state: Any) -> None:
    def add(key: tuple[str], rows: Any, states: Any) -> list[tuple[Any, ...]]:
        total = states if state is int else states.sum
        total.value += sum(row.n for row in rows)
        return [(*key, total.value)]

    rows = rows_of(("a", 1), ("a", 2), ("b", 4), ("a", 8))
    rows[1]["n"] = None
    flow = flow_of(add, row=Reading, order=order, state=state)
    played = gw.testing.run(flow, {"rows": rows}, close_at_end=True)
    newest = {row["k"]: row["total"] for row in played.rows("sums").to_pylist()}
    assert newest == {"a": 9, "b": 4}
    (failed,) = played.rows("failed").to_pylist()
    assert failed["message"] == "the row does not fit Reading.n, which is int: there is no value"
    assert (failed["key"], json.loads(failed["row"])["n"]) == ('{"k": "a"}', None)
