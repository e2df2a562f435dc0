"""Facts about timers and state that expires, in lanes."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.rounds import rounds
from tests.support.window_flows import WindowedRun

import godwit as gw
from godwit.model.errors import InvalidFlowError, UserFunctionError

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OUTPUT = "k string, what string, at long"


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def seconds(moment: datetime) -> int:
    return int((moment - EPOCH).total_seconds())


def remind(key: Any, rows: Any, state: list[int]) -> Any:
    """Set a timer ``v`` seconds after each row; cancel it for a negative one."""
    for row in rows:
        when = row.ts + timedelta(seconds=abs(row.v))
        if row.v < 0:
            rows.timers.cancel(when)
        else:
            rows.timers.set(when)
        state.append(seconds(row.ts))
        yield key[0], "row", seconds(row.ts)


def fired(key: Any, timer: Any, state: list[int]) -> Any:
    state.append(-seconds(timer.time))
    yield key[0], "timer", seconds(timer.time)


def reminders(root: Path, clock: Any = "event", **options: Any) -> WindowedRun:
    return WindowedRun(
        lambda keyed: keyed.process(
            remind,
            state=list,
            output=OUTPUT,
            timers=gw.types.OnTimer(fired, clock=clock),
            **options,
        ),
        root,
    )


def test_timers_fire_once_in_order_and_before_later_rows(tmp_path: Path) -> None:
    run = reminders(tmp_path)
    assert run.epoch([("a", 0, 30), ("a", 1 * S, 10), ("b", 2 * S, 50), ("a", 1 * S, 10)]) == [
        ("a", "row", 0),
        ("a", "row", 1),
        ("a", "row", 1),
        ("b", "row", 2),
    ]
    assert run.epoch([("b", 40 * S, 100)]) == [("b", "row", 40)]
    run.restart()
    run.run.lose("a")
    assert run.epoch([("a", 45 * S, 100)]) == [
        ("a", "row", 45),
        ("a", "timer", 11),
        ("a", "timer", 30),
    ]
    assert run.epoch() == []
    assert run.epoch([("c", 60 * S, 1)]) == [("c", "row", 60)]
    assert run.epoch() == [("b", "timer", 52)]
    assert not run.times.is_due(clock_us=0, silence_us=0, components=run.run.component_views())


@pytest.mark.parametrize("seed", range(rounds(2, 4)))
def test_every_timer_fires_once_whatever_happens(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = reminders(tmp_path)
    timers: dict[str, set[int]] = defaultdict(set)
    watermark = newest = -1
    for epoch in range(14):
        rows = [
            (f"k{rng.integers(0, 5)}", int(5 * epoch + rng.integers(0, 5)) * S, int(v))
            for v in rng.integers(-20, 40, int(rng.integers(0, 8)))
        ]
        expected = []
        for key in sorted({*timers, *(row[0] for row in rows)}):
            of_key = timers[key]
            due = sorted(m for m in of_key if m < watermark)
            of_key -= set(due)
            expected += [(key, "timer", m) for m in due]
            for _, ts, v in (row for row in rows if row[0] == key):
                expected.append((key, "row", ts // S))
                (of_key.discard if v < 0 else of_key.add)(ts // S + abs(v))
            past = sorted(m for m in of_key if m < watermark)
            of_key -= set(past)
            expected += [(key, "timer", m) for m in past]
        if rng.random() < 0.3:
            run.run.lose("a")
        run.epoch(rows)
        found = run.output("out", ordered=False)
        # What a key emits is in order; keys are in the order of their key groups.
        assert sorted(found, key=lambda row: row[0]) == expected
        newest = max([newest, *(ts // S for _, ts, _ in rows)])
        watermark = max(watermark, newest)
        if rng.random() < 0.3:
            run.restart()


def test_timers_of_the_clock_fire_when_its_time_has_come(tmp_path: Path) -> None:
    run = reminders(tmp_path, "processing")
    run.run.clock_us = 100 * S
    run.epoch([("a", 0, 120), ("b", 0, 130)])
    components = run.run.component_views()
    assert not run.times.is_due(clock_us=119 * S, silence_us=0, components=components)
    assert run.times.is_due(clock_us=120 * S, silence_us=0, components=components)
    run.run.clock_us = 125 * S
    assert run.epoch() == [("a", "timer", 120)]
    assert run.epoch() == []
    run.run.clock_us = 500 * S
    assert run.epoch([("b", 200 * S, 1)]) == [
        ("b", "row", 200),
        ("b", "timer", 130),
        ("b", "timer", 201),
    ]


def test_state_expires_once_its_key_was_not_touched_for_long(tmp_path: Path) -> None:
    def count(key: Any, rows: Any, state: dict[str, int]) -> Any:
        state["n"] = state.get("n", 0) + len(rows)
        yield key[0], "n", state["n"]

    run = WindowedRun(
        lambda keyed: keyed.process(
            count, state=gw.ValueState(dict, ttl="10 seconds"), output=OUTPUT
        ),
        tmp_path,
    )
    assert run.epoch([("a", 0, 0), ("b", 0, 0)]) == [("a", "n", 1), ("b", "n", 1)]
    run.run.clock_us = 9 * S
    assert run.epoch([("a", 0, 0)]) == [("a", "n", 2)]
    run.run.clock_us = 10 * S
    assert run.epoch([("c", 0, 0)]) == [("c", "n", 1)]
    assert set(run.run.held()) == {("a",), ("c",)}
    run.run.clock_us = 19 * S
    assert run.epoch([("a", 0, 0)]) == [("a", "n", 1)]  # the last moment has passed
    run.run.clock_us = 60 * S
    run.epoch()
    assert run.run.held() == {}


def test_timers_that_outlive_their_state_are_alone_due() -> None:
    def remember(_key: Any, rows: Any, state: dict[str, int]) -> None:
        state["n"] = len(rows)
        rows.timers.set(rows.timers.now + timedelta(minutes=5))

    flow = gw.Flow("forgetful", num_key_groups=4)
    rows = flow.source("rows", gw.testing.stream("k string"))
    told = rows.key_by("k").process(
        remember,
        name="told",
        state=gw.ValueState(dict, ttl="3 minutes"),
        timers=gw.types.OnTimer(
            lambda key, _timer, state: [(key[0], state.get("n"))], clock="processing"
        ),
        output="k string, n long",
    )
    flow.sink("out", told, gw.sinks.noop())
    run = gw.testing.cluster(flow, now=EPOCH)
    run.epoch({"rows": [{"k": "a"}]})
    assert run.advance("4 minutes") == {}  # it comes to rest: the state is gone, its timer waits
    assert run.state("told").column("expires").to_pylist() == [None]
    assert run.advance("1 minute")["out"].to_pylist() == [{"k": "a", "n": None}]
    run.advance("3 minutes")
    assert run.state("told").num_rows == 0


def test_a_timer_that_sets_itself_without_end_is_an_error(tmp_path: Path) -> None:
    def again(_key: Any, timer: Any, _state: Any) -> None:
        timer.timers.set(timer.time)

    run = WindowedRun(
        lambda keyed: keyed.process(
            remind, state=list, output=OUTPUT, timers=gw.types.OnTimer(again, clock="event")
        ),
        tmp_path,
    )
    run.epoch([("a", 5 * S, 1)])
    run.epoch([("a", 50 * S, 100)])
    with pytest.raises(UserFunctionError, match="fired 10000 times"):
        run.epoch()


def calling(function: Any, clock: Any) -> gw.types.OnTimer[Any, Any]:
    return gw.types.OnTimer(function, clock=clock)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timers": "event"}, "timers='event'"),
        ({"timers": fired}, "timers=<function"),
        ({"timers": calling(fired, "wall")}, "clock='wall'"),
        ({"timers": calling("fired", "event")}, "cannot be called"),
        ({"timers": calling(lambda: None, "event")}, "on_timer.key, timer, state"),
        ({"state": gw.ValueState(list, ttl="-1 hour")}, "negative"),
        ({"timers": calling(fired, "event"), "event_time": None}, "has no event time"),
    ],
)
def test_timers_that_could_not_work_are_refused(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    source = {"event_time": options.pop("event_time")} if "event_time" in options else {}
    with pytest.raises(InvalidFlowError, match=says):
        WindowedRun(
            lambda keyed: keyed.process(remind, **{"state": list, "output": OUTPUT, **options}),
            tmp_path,
            **source,
        )


def count(key: Any, rows: Any, state: list[int]) -> Any:
    """Set timers 10 s and 1,000 s after each row; say how many rows the state knows."""
    for row in rows:
        rows.timers.set(row.ts + timedelta(seconds=10))
        rows.timers.set(row.ts + timedelta(seconds=1000))
        state.append(seconds(row.ts))
        yield key[0], "rows", len(state)
        yield key[0], "timers", len(rows.timers.list())


def forget(_key: Any, timer: Any, _state: list[int]) -> None:
    timer.drop_state()


def test_rows_that_come_after_a_timer_dropped_the_state_start_anew(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.process(
            count, state=list, output=OUTPUT, timers=gw.types.OnTimer(forget, clock="event")
        ),
        tmp_path,
    )
    assert run.epoch([("a", 0, 0)]) == [("a", "rows", 1), ("a", "timers", 2)]
    run.epoch([("b", 40 * S, 0)])
    expected = [("a", "rows", 1), ("a", "timers", 2)]
    assert run.epoch([("a", 45 * S, 0)]) == expected
    run.restart()
    assert run.epoch([("a", 46 * S, 0)]) == [("a", "rows", 2), ("a", "timers", 4)]


# --- the end of the input -----------------------------------------------------------------------

FAR = timedelta(days=100)


def set_far(key: Any, rows: Any, state: Any) -> None:
    for row in rows:
        rows.timers.set(row.ts + FAR * row.v)


def tell(key: Any, timer: Any, state: Any) -> Any:
    yield key[0], timer.time


def far_flow(**options: Any) -> gw.Flow:
    given: dict[str, Any] = {"function": set_far, "fired": tell, "state": int, **options}
    flow = gw.Flow("far", num_key_groups=4)
    rows = flow.source("rows", gw.testing.stream("k string, ts timestamp, v int"), event_time="ts")
    out = rows.key_by("k").process(
        given.pop("function"),
        output=gw.types.Output("k string, at timestamp", event_time="at"),
        timers=gw.types.OnTimer(given.pop("fired"), clock="event"),
        name="far",
        **given,
    )
    flow.sink("out", out, gw.sinks.noop())
    days = out.key_by("k").window(gw.tumbling("1 day"), name="days")
    flow.sink("days", days.compute(n=gw.count()), gw.sinks.noop())
    return flow


ROWS = [{"k": "a", "ts": at(0), "v": 2}, {"k": "b", "ts": at(5), "v": 1}]
DUE = [("a", at(0) + 2 * FAR), ("b", at(5) + FAR)]


def told(run: Any, sink: str = "out") -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in run.rows(sink).to_pylist())


@pytest.mark.parametrize(
    "options", [{}, {"state": {"n": gw.ValueState(int)}}], ids=["state", "states"]
)
def test_at_the_end_of_the_input_all_timers_fire_and_windows_of_their_rows_close(
    options: dict[str, Any],
) -> None:
    run = gw.testing.run(far_flow(**options), {"rows": ROWS}, close_at_end=True)
    assert told(run) == DUE
    assert sum(row["n"] for row in run.rows("days").to_pylist()) == 2
    assert told(gw.testing.run(far_flow(**options), {"rows": ROWS})) == []


def test_timers_of_a_later_run_fire_when_they_are_due(tmp_path: Path) -> None:
    checkpoint = tmp_path / "ck"
    run = gw.testing.run(far_flow(), {"rows": ROWS}, close_at_end=True, checkpoint=checkpoint)
    assert told(run) == DUE
    later = [{"k": "c", "ts": at(60), "v": 3}, {"k": "d", "ts": at(61), "v": 4}]
    again = gw.testing.cluster(far_flow(), checkpoint=checkpoint)
    again.epoch({"rows": later})
    assert told(again) == []
    again.epoch({"rows": [{"k": "e", "ts": at(0) + 3.5 * FAR, "v": 1}]})
    again.epoch({"rows": []})
    assert told(again) == [("c", at(60) + 3 * FAR)]


def test_what_a_timer_sets_at_the_end_fires_too_and_the_clock_is_in_the_last_year() -> None:
    years: list[int] = []

    def twice(key: Any, timer: Any, state: Any) -> Any:
        years.append(timer.timers.now.year)
        if len(years) == 1:
            timer.timers.set(timer.time + FAR)
        yield key[0], timer.time

    run = gw.testing.run(far_flow(fired=twice), {"rows": ROWS[1:]}, close_at_end=True)
    assert told(run) == [("b", at(5) + FAR), ("b", at(5) + 2 * FAR)]
    assert years == [9999, 9999]


def test_a_timer_that_sets_itself_for_ever_is_an_error_at_the_end() -> None:
    def again(key: Any, timer: Any, state: Any) -> None:
        timer.timers.set(timer.time + timedelta(seconds=1))

    with pytest.raises(UserFunctionError, match="fired 10000 times") as caught:
        gw.testing.run(far_flow(fired=again), {"rows": ROWS}, close_at_end=True)
    assert "timers.now is in the year 9999" in caught.value.remedy


@pytest.mark.parametrize(
    "options", [{"state": int}, {"state": {"n": gw.ValueState(int)}}], ids=["state", "states"]
)
def test_rows_of_windows_that_close_at_the_end_come_before_the_timers_of_the_end(
    options: dict[str, Any],
) -> None:
    clocks: list[datetime] = []

    def put_off(key: Any, rows: Any, state: Any) -> None:
        clocks.append(rows.timers.now)
        for row in rows:
            for earlier in rows.timers.list():
                rows.timers.cancel(earlier)
            rows.timers.set(row.window_end + FAR)

    flow = gw.Flow("behind", num_key_groups=4)
    rows = flow.source("rows", gw.testing.stream("k string, ts timestamp"), event_time="ts")
    days = rows.key_by("k").window(gw.tumbling("1 minute"), name="minutes").compute(n=gw.count())
    out = days.key_by("k").process(
        put_off,
        timers=gw.types.OnTimer(tell, clock="event"),
        output="k string, at timestamp",
        name="behind",
        **options,
    )
    flow.sink("out", out, gw.sinks.noop())
    epochs = [[{"k": "a", "ts": at(60 * minute)}] for minute in range(3)]
    run = gw.testing.run(flow, {"rows": epochs}, close_at_end=True)
    assert told(run) == [("a", at(180) + FAR)]
    assert all(clock < at(0) + FAR for clock in clocks)


def test_of_a_key_any_number_of_timers_fires_in_an_epoch() -> None:
    rows = [{"k": "a", "ts": at(second), "v": 1} for second in range(10_500)]
    run = gw.testing.run(far_flow(), {"rows": rows}, close_at_end=True)
    assert run.rows("out").num_rows == len(rows)
