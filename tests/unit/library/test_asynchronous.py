"""Asynchronous functions per key: what runs side by side, and what becomes of errors."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

import godwit as gw
from godwit.library import asynchronous_calls
from godwit.model.errors import InvalidFlowError, UserFunctionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SOON = "1 millisecond"
MOMENT = dt.datetime(2024, 5, 1, 8, tzinfo=dt.UTC)


def flow_of(function: Callable[..., Any], **options: Any) -> gw.Flow:
    flow = gw.Flow("lookups", num_key_groups=4)
    rows = flow.source("rows", gw.testing.stream("k string, v long"))
    options = {"state": dict, "output": "k string, v long", "name": "looked_up", **options}
    flow.sink("out", rows.key_by("k").process(function, **options), gw.sinks.noop())
    return flow


def rows(*pairs: tuple[str, int]) -> dict[str, Any]:
    return {"rows": [{"k": k, "v": v} for k, v in pairs]}


def out(flow: gw.Flow, *epochs: dict[str, Any]) -> list[tuple[str, int]]:
    run = gw.testing.cluster(flow)
    for epoch in epochs:
        run.epoch(epoch)
    return sorted((row["k"], row["v"]) for row in run.rows("out").to_pylist())


def test_keys_wait_together_up_to_the_capacity_and_one_key_waits_for_itself() -> None:
    waiting: set[str] = set()
    most: list[int] = []

    async def look_up(key: Any, rows: Any, state: Any) -> list[tuple[str, int]]:
        assert key[0] not in waiting
        waiting.add(key[0])
        most.append(len(waiting))
        await asyncio.sleep(0.002)
        waiting.remove(key[0])
        return [(key[0], len(list(rows)))]

    flow = flow_of(look_up, asynchronous=gw.types.Async(capacity=3))
    many = rows(*((f"k{i % 10}", i) for i in range(20)))
    assert out(flow, many) == sorted((f"k{i}", 2) for i in range(10))
    assert max(most) == 3


def test_rows_come_out_by_key_whatever_is_answered_first() -> None:
    answers: list[str] = []

    def flow(function: Any) -> gw.Flow:
        return flow_of(function)

    def plain(key: Any, rows: Any, state: Any) -> Any:
        for row in rows:
            yield key[0], row.v

    async def slow_first(key: Any, rows: Any, state: Any) -> AsyncIterator[tuple[str, int]]:
        for row in rows:
            await asyncio.sleep(0.01 / (1 + int(key[0][1:])))
            yield key[0], row.v
        answers.append(key[0])

    epoch = rows(*((f"k{i % 5}", i) for i in range(15)))
    played = [gw.testing.run(flow(function), epoch).rows("out") for function in (plain, slow_first)]
    assert played[0].to_pylist() == played[1].to_pylist()
    assert answers != sorted(answers)


def test_an_attempt_that_fails_leaves_nothing_of_itself() -> None:
    attempts: dict[str, int] = {}

    async def shaky(key: Any, rows: Any, states: Any) -> list[tuple[str, int]]:
        attempts[key[0]] = attempts.get(key[0], 0) + 1
        for row in rows:
            states.count.value += 1
            states.seen.append(row.v)
            states.by[row.v] = states.by.get(row.v, 0) + 1
            rows.timers.set(MOMENT)
        await asyncio.sleep(0)
        if attempts[key[0]] % 3:
            raise ConnectionError("not now")
        return [(key[0], states.count.value)]

    flow = gw.Flow("lookups", num_key_groups=2)
    source = flow.source("rows", gw.testing.stream("k string, v long"))
    out = source.key_by("k").process(
        shaky,
        state={
            "count": gw.ValueState(int),
            "seen": gw.ListState(int),
            "by": gw.MapState(int, int),
        },
        timers=gw.types.OnTimer(lambda *_: None, clock="processing"),
        output="k string, v long",
        name="looked_up",
        asynchronous=gw.types.Async(backoff=SOON),
    )
    flow.sink("out", out, gw.sinks.noop())
    run = gw.testing.cluster(flow, now="2024-01-01")
    for epoch in (rows(("a", 1), ("a", 2)), rows(("a", 2), ("b", 3))):
        run.epoch(epoch)
    emitted = sorted(tuple(row.values()) for row in run.rows("out").to_pylist())
    assert emitted == [("a", 2), ("a", 3), ("b", 1)]
    assert attempts == {"a": 6, "b": 3}
    state = {
        name: {
            tuple(r.values())[1:-1]: r["state"] for r in run.state("looked_up", name).to_pylist()
        }
        for name in ("count", "seen")
    }
    assert state["count"] == {("a",): "3", ("b",): "1"}
    assert state["seen"] == {("a", 0): "[1,2,2]", ("b", 0): "[3]"}


def test_a_call_that_takes_too_long_is_cancelled_and_done_again() -> None:
    calls: list[int] = []
    cancelled: list[int] = []

    async def slow_once(key: Any, rows: Any, state: Any) -> list[tuple[str, int]]:
        calls.append(len(calls))
        state["calls"] = state.get("calls", 0) + 1
        if len(calls) == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(1)
                raise
        return [(key[0], state["calls"])]

    settings = gw.types.Async(timeout="20 milliseconds", backoff=SOON)
    assert out(flow_of(slow_once, asynchronous=settings), rows(("a", 1))) == [("a", 1)]
    assert (len(calls), cancelled) == (2, [1])


def test_when_all_attempts_fail_the_epoch_does_and_names_key_error_and_attempts() -> None:
    async def never(key: Any, rows: Any, state: Any) -> None:
        await asyncio.sleep(60 if key[0] == "slow" else 0)
        raise OSError("the other system is away")

    flow = flow_of(never, asynchronous=gw.types.Async(retries=2, backoff=SOON))
    with pytest.raises(UserFunctionError, match=r"raised OSError for key \('a',\)") as caught:
        gw.testing.run(flow, rows(("a", 1), ("slow", 1)))
    assert "in the last of 3 attempts: the other system is away" in caught.value.message
    assert "in never" in str(caught.value)

    settings = gw.types.Async(retries=0, timeout="10 milliseconds")
    with pytest.raises(
        UserFunctionError, match=r"TimeoutError.*took longer than timeout='10 milliseconds'"
    ):
        gw.testing.run(flow_of(never, asynchronous=settings), rows(("slow", 1)))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_would_end_the_process_fails_the_epoch(error: BaseException) -> None:
    async def end(key: Any, rows: Any, state: Any) -> None:
        raise error

    flow = flow_of(end, asynchronous=gw.types.Async(backoff=SOON))
    with pytest.raises(UserFunctionError, match=type(error).__name__):
        gw.testing.run(flow, rows(("a", 1)))


def test_only_named_errors_are_tried_again() -> None:
    calls: list[str] = []

    async def wrong(key: Any, rows: Any, state: Any) -> None:
        calls.append(key[0])
        raise KeyError("rate")

    flow = flow_of(wrong, asynchronous=gw.types.Async(retry_on=(OSError, TimeoutError)))
    with pytest.raises(UserFunctionError, match="raised KeyError"):
        gw.testing.run(flow, rows(("a", 1)))
    assert calls == ["a"]


def test_timers_fire_in_order_and_may_be_awaited() -> None:
    told: list[str] = []

    async def remind(key: Any, timer: Any, state: Any) -> list[tuple[str, int]]:
        await asyncio.sleep(0)
        told.append(f"timer {timer.time:%M}")
        return [(key[0], -1)]

    async def set_timers(key: Any, rows: Any, state: Any) -> None:
        await asyncio.sleep(0)
        told.append("rows")
        for row in rows:
            rows.timers.set(MOMENT + dt.timedelta(minutes=row.v))

    flow = flow_of(set_timers, timers=gw.types.OnTimer(remind, clock="processing"))
    run = gw.testing.cluster(flow, now=MOMENT)
    run.epoch(rows(("a", 2), ("a", 1)))
    run.advance("90 seconds")
    run.advance("1 hour")
    assert told == ["rows", "timer 01", "timer 02"]


class Session:
    """A client that notes when it is opened and closed, and on which loop."""

    log: list[str]

    def __init__(self) -> None:
        Session.log.append("made")

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        Session.log.append("opened")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert asyncio.get_running_loop() is self.loop
        Session.log.append("closed")

    async def get(self, key: str) -> int:
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return len(key)


def test_resources_are_opened_once_kept_between_epochs_and_closed_with_the_flow() -> None:
    Session.log = []

    async def ask(key: Any, rows: Any, state: Any, session: Session, unit: int) -> Any:
        return [(key[0], unit * await session.get(key[0]))]

    async def unit() -> int:
        return 10

    flow = flow_of(ask, asynchronous=gw.types.Async(resources={"session": Session, "unit": unit}))
    assert out(flow, rows(("a", 1)), rows(("bb", 1))) == [("a", 10), ("bb", 20)]
    assert Session.log[:2] == ["made", "opened"]
    del flow
    gc.collect()
    until = time.monotonic() + 60
    while "closed" not in Session.log and time.monotonic() < until:
        time.sleep(0.001)
    assert Session.log == ["made", "opened", "closed"]


def test_a_resource_that_cannot_be_opened_fails_the_epoch_by_name_and_is_tried_again() -> None:
    tries: list[int] = []

    def connect() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("nobody listens")
        return 7

    async def ask(key: Any, rows: Any, state: Any, database: int) -> Any:
        return [(key[0], database)]

    run = gw.testing.cluster(
        flow_of(ask, asynchronous=gw.types.Async(resources={"database": connect}))
    )
    with pytest.raises(UserFunctionError, match=r"Resource 'database'.*nobody listens"):
        run.epoch(rows(("a", 1)))
    assert run.epoch(rows(("a", 1)))["out"].to_pylist() == [{"k": "a", "v": 7}]


def test_a_thread_that_has_a_loop_of_its_own_is_no_obstacle() -> None:
    async def answer(key: Any, rows: Any, state: Any) -> Any:
        await asyncio.sleep(0)
        return [(key[0], 1)]

    async def notebook() -> list[tuple[str, int]]:
        return out(flow_of(answer), rows(("a", 1)))

    assert asyncio.run(notebook()) == [("a", 1)]


def test_whoever_is_interrupted_does_not_wait_for_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that waits gets an exception, as by Ctrl-C, while a call refuses to end."""
    monkeypatch.setattr(asynchronous_calls, "_GRACE_S", 0.05)
    ended = threading.Event()

    async def stubborn() -> None:
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    class Interrupted:
        def result(self) -> None:
            raise KeyboardInterrupt

    loop = asynchronous_calls.LaneLoop()
    real = asyncio.run_coroutine_threadsafe

    def submit(coroutine: Any, to: Any) -> Any:
        future = real(coroutine, to)
        if coroutine.__name__ == "stubborn":
            monkeypatch.setattr(future, "result", Interrupted().result)
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
    monkeypatch.setattr(asynchronous_calls, "_current", loop)
    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        loop.run(stubborn())
    assert time.monotonic() - started_s < 60
    assert not loop.is_usable
    ended.set()
    loop.is_usable = True
    loop.close()


def test_one_call_of_an_asynchronous_function_can_be_tested_by_itself() -> None:
    async def look_up(key: Any, rows: Any, seen: Any) -> AsyncIterator[tuple[str, int]]:
        for row in rows:
            await asyncio.sleep(0)
            seen.value += row.price
            yield key[0], seen.value

    done = gw.testing.process(look_up, [{"price": 2}, {"price": 3}], key={"symbol": "A"}, state=1)
    assert (done.rows, done.state) == ([("A", 3), ("A", 6)], 6)

    async def fail(key: Any, rows: Any, seen: Any) -> None:
        raise OSError("away")

    with pytest.raises(UserFunctionError) as caught:
        gw.testing.process(fail, [{"price": 2}], state=dict, asynchronous=gw.types.Async(retries=0))
    assert isinstance(caught.value.__cause__, OSError)


async def asks(key: Any, rows: Any, state: Any) -> None: ...


def plain(key: Any, rows: Any, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: gw.types.Async(capacity=0), "capacity of gw.types.Async is 0"),
        (lambda: gw.types.Async(retries=-1), "retries of gw.types.Async is -1"),
        (lambda: gw.types.Async(timeout="soon"), "timeout of gw.types.Async is 'soon'"),
        (lambda: gw.types.Async(retry_on=KeyboardInterrupt), "retry_on of gw.types.Async"),  # type: ignore[arg-type]
        (lambda: gw.types.Async(resources={"a b": dict}), "resources of gw.types.Async"),
        (
            lambda: flow_of(plain, asynchronous=gw.types.Async()),
            "'plain' of it is a plain function",
        ),
        (lambda: flow_of(asks, asynchronous={"capacity": 3}), "of type dict for asynchronous="),
        (
            lambda: flow_of(
                asks, asynchronous=gw.types.Async(resources={"session": dict})
            ).explain(),
            r"cannot be called as function\(key, rows, state, session=session\)",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(made: Callable[[], Any], what: str) -> None:
    with pytest.raises(InvalidFlowError, match=what):
        made()


def test_functions_of_windows_are_plain() -> None:
    flow = gw.Flow("windows")
    stream = flow.source("rows", gw.testing.stream("k string, ts timestamp"), event_time="ts")
    windows = stream.key_by("k").window(gw.tumbling("1 hour"))
    with pytest.raises(InvalidFlowError, match="function 'asks' is asynchronous"):
        windows.process(asks, output="k string")


def test_explain_says_how_many_keys_wait_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    flow_of(asks).explain()
    assert "asks (asynchronous, 100 keys at once)" in capsys.readouterr().out
