"""Rows that waited for a lost executor give what they had given without the loss.

By way of a loop, and of operators whose timers come behind the one that waited.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARCEL = "key string, left long, ts timestamp"
MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def at(second: int) -> dt.datetime:
    return MOMENT + dt.timedelta(seconds=second)


def hop(key: Any, rows: Any, state: Any) -> Iterator[tuple[Any, ...]]:
    del state
    for row in rows:
        if row.left:
            yield key[0], row.left - 1, row.ts


def looped() -> gw.Flow:
    """Build a loop at whose beginning windows count what goes round, and at whose end others do."""
    flow = gw.Flow("looped", num_key_groups=8)
    loop = flow.feedback("again", PARCEL, event_time="ts")
    rows = flow.source("rows", gw.testing.stream(PARCEL), event_time="ts").union(loop)
    hops = rows.key_by("key").process(hop, name="first", state=dict, output=PARCEL)
    hops.feed_back_to(loop)
    for name, stream in (("before", rows), ("after", hops)):
        windows = stream.key_by("left").window(gw.tumbling("10 seconds"), name=name)
        flow.sink(f"{name}_out", windows.compute(n=gw.count()), gw.sinks.noop())
    return flow


def relay(key: Any, rows: Any, state: Any) -> Iterator[tuple[Any, ...]]:
    del key, state
    for row in rows:
        yield row.left, row.ts


def note(key: Any, rows: Any, state: Any) -> None:
    for _ in rows:
        state["n"] = state.get("n", 0) + 1
        if key[0]:
            rows.timers.set(at(20))


def ring(key: Any, timer: Any, state: Any) -> Iterator[tuple[int, int]]:
    del timer
    yield key[0], state["n"]


def timed() -> gw.Flow:
    """Build timers behind an operator without any, directly and by way of another one."""
    flow = gw.Flow("timed", num_key_groups=8)
    rows = flow.source("rows", gw.testing.stream(PARCEL), event_time="ts")
    sent = rows.key_by("key").process(
        relay, name="first", state=dict, output="left long, ts timestamp"
    )
    for name, stream in (
        ("next", sent),
        ("last", sent.drop_duplicates("left", "ts", within="forever", name="once")),
    ):
        rung = stream.key_by("left").process(
            note,
            name=name,
            state=dict,
            timers=gw.types.OnTimer(ring, clock="event"),
            output="left long, n long",
        )
        flow.sink(f"{name}_out", rung, gw.sinks.noop())
    return flow


def play(build: Callable[[], gw.Flow], *, loses: bool) -> dict[str, list[tuple[Any, ...]]]:
    flow = build()
    components = {operator.name: [operator.name] for operator in flow.compiled().operators}
    with gw.testing.cluster(flow, executors=2, components=components) as run:
        run.epoch({"rows": [{"key": f"k{n}", "left": n % 4, "ts": at(n)} for n in range(8)]})
        first, second = sorted(run.executors)
        for name in components:
            run.migrate(first if name == "first" else second, component=name)
        if loses:
            run._driver.copies_held = True
            run.add("new")
            run.kill(first)
        for key, left, second_ in (("a", 3, 9), ("k2", 0, 100), ("k3", 0, 101)):
            with pytest.MonkeyPatch.context() as patch:
                if loses:  # it does not come to rest while copies are held
                    patch.setattr(run._driver, "run_until_idle", lambda: ())
                run._play({"rows": [{"key": key, "left": left, "ts": at(second_)}]})
            run._driver.run_quiet_epoch()
        run._driver.copies_held = False
        run.epoch({"rows": [{"key": "k4", "left": 0, "ts": at(102)}]})
        run.go_round()
        run.end_input()
        assert run.late == []
        return {
            sink: sorted(tuple(row.values()) for row in run.rows(sink).to_pylist())
            for sink in sorted(node.name for node in flow.sinks)
        }


@pytest.mark.parametrize("build", [looped, timed])
def test_what_comes_of_rows_does_not_depend_on_the_loss_of_an_executor(
    build: Callable[[], gw.Flow],
) -> None:
    assert play(build, loses=True) == play(build, loses=False)


# --- the end of the input -----------------------------------------------------------------------


def put_off(key: Any, rows: Any, state: Any) -> None:
    for row in rows:
        for earlier in rows.timers.list():
            rows.timers.cancel(earlier)
        rows.timers.set(row.ts + dt.timedelta(days=1))


def tell(key: Any, timer: Any, state: Any) -> Iterator[tuple[str, dt.datetime]]:
    yield key[0], timer.time


def at_the_end(*, loses: bool) -> list[tuple[Any, ...]]:
    flow = gw.Flow("idle", num_key_groups=8)
    rows = flow.source("rows", gw.testing.stream("key string, ts timestamp"), event_time="ts")
    idle = rows.key_by("key").process(
        put_off,
        name="idle",
        state=dict,
        timers=gw.types.OnTimer(tell, clock="event"),
        output="key string, at timestamp",
    )
    flow.sink("out", idle, gw.sinks.noop())
    keys = [f"k{n}" for n in range(12)]
    with gw.testing.cluster(flow, executors=2) as run:
        for second in range(6):  # more than a copy may lag behind
            run.epoch({"rows": [{"key": key, "ts": at(second)} for key in keys]})
        if loses:
            run._driver.copies_held = True
            run.add("new")
            run.kill("1")
        with pytest.MonkeyPatch.context() as patch:
            if loses:  # it does not come to rest while copies are held
                patch.setattr(run._driver, "run_until_idle", lambda: ())
            run._play({"rows": [{"key": key, "ts": at(10)} for key in keys]})
            assert run._driver.view.waiting == loses
            run._driver.epochs.end_input()
        for _ in range(3):
            run._driver.run_quiet_epoch()
        run._driver.copies_held = False
        run.end_input()
        return sorted(tuple(row.values()) for row in run.rows("out").to_pylist())


def test_timers_that_fire_at_the_end_come_behind_the_rows_that_waited() -> None:
    told = at_the_end(loses=True)
    assert {moment for _, moment in told} == {at(10) + dt.timedelta(days=1)}
    assert told == at_the_end(loses=False)
