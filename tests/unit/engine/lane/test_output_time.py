"""Output of operators has an event time with a known delay, and readers wait for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, resolver
from tests.support.meeting_flows import Feed, MeetingRun
from tests.support.timed_run import TIME
from tests.support.window_flows import ROWS, WindowedRun

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.engine.event_time import EventTimes
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

S = 1_000_000
DAY = 86_400 * S
OUT = "k string, ts timestamp, v long"
TENS = gw.tumbling("10 seconds")


def rows_of(key: Any, rows: Any, window: Any) -> Any:
    yield from ((key[0], row.ts, row.v) for row in rows)


def start_of(key: Any, rows: Any, window: Any) -> Any:
    yield key[0], window.start, len(rows)


def end_of(key: Any, rows: Any, window: Any) -> Any:
    yield key[0], window.end, len(rows)


def minute_later(key: Any, rows: Any, state: Any) -> Any:
    yield from ((key[0], row.ts + timedelta(seconds=60), row.v) for row in rows)


def counted(stream: Stream, time: str | None = None, every: str = "2 seconds") -> Stream:
    windows = stream.key_by("k").window(gw.tumbling(every), time=time, name="again")
    return windows.compute(n=gw.count())


def by_function(function: Any, **said: Any) -> Callable[[KeyedStream], Stream]:
    def windows_after_function(keyed: KeyedStream) -> Stream:
        output = gw.types.Output(OUT, **said) if said else OUT
        return counted(keyed.window(TENS, name="first").process(function, output=output), "ts")

    return windows_after_function


def by_column(column: str) -> Callable[[KeyedStream], Stream]:
    def windows_after_windows(keyed: KeyedStream) -> Stream:
        return counted(keyed.window(TENS, name="first").compute(last=gw.max("ts")), column)

    return windows_after_windows


def through(keyed: KeyedStream) -> Stream:
    rows = keyed.window(TENS, name="first").process(rows_of, output=OUT)
    once = rows.drop_duplicates("k", "ts", "v", within="1 second").key_by("k")
    return counted(once.process(each, state=dict, output=OUT), "ts")


def each(key: Any, rows: Any, state: Any) -> Any:
    yield from ((key[0], row.ts, row.v) for row in rows)


def sessions(keyed: KeyedStream) -> Stream:
    found = keyed.window(gw.session("3 seconds"), name="first")
    return counted(
        found.process(rows_of, output=gw.types.Output(OUT, event_time="ts", slack="2 minutes"))
    )


@pytest.mark.parametrize(
    "build",
    [
        by_function(rows_of),
        by_function(rows_of, event_time="ts"),
        by_function(start_of),
        by_function(end_of, event_time="ts", slack="0 seconds"),
        by_column("window_start"),
        by_column("last"),
        by_column("window_end"),
        through,
        sessions,
    ],
)
def test_no_row_of_a_function_is_late_for_windows_of_its_own_time(
    tmp_path: Path, build: Callable[[KeyedStream], Stream]
) -> None:
    run = WindowedRun(build, tmp_path)
    found = 0
    for epoch in range(16):
        rows = [[("a", (7 * epoch + i) * S, i) for i in range(7)]] if epoch < 12 else []
        found += sum(row[-1] for row in run.epoch(*rows))
        assert not any(o.arrivals.late for r in run.reports for o in r.operators)
        if epoch == 12:
            run.times.end_input()
    each_row = found == 84
    each_window = found == 9
    assert each_row or each_window
    assert not run.times.is_due(clock_us=0, silence_us=0, components=run.run.component_views())


def test_a_stated_slack_is_how_long_windows_wait(tmp_path: Path) -> None:
    run = WindowedRun(by_function(end_of, event_time="ts", slack="0 seconds"), tmp_path)
    run.epoch([("a", 1 * S, 1)])
    run.epoch([("a", 31 * S, 1)])
    assert run.epoch() == [("a", 10 * S, 12 * S, 1)]


@pytest.mark.parametrize("restart", [False, True])
def test_windows_of_a_time_that_is_no_sources_close_at_the_end(
    tmp_path: Path, restart: bool
) -> None:
    def windows_after_process(keyed: KeyedStream) -> Stream:
        return counted(keyed.process(minute_later, state=dict, output=OUT, name="later"))

    run = WindowedRun(windows_after_process, tmp_path)
    run.epoch([("a", 1 * S, 1)])
    if restart:
        run.restart()
    run.times.end_input()
    assert run.times.is_due(clock_us=0, silence_us=0, components=run.run.component_views())
    assert run.epoch() == [("a", 60 * S, 62 * S, 1)]


def test_windows_over_another_column_of_a_source_close_at_the_end(tmp_path: Path) -> None:
    columns = pa.schema([*ROWS, ("at", TIME)])
    feeds = {"rows": Feed({field.name: field.type for field in columns})}
    run = MeetingRun(lambda s: counted(s["rows"], "at"), tmp_path, feeds)
    run.epoch(rows=[("a", 1 * S, 1, 55 * S)])
    run.times.end_input()
    assert run.epoch() == [("a", 54 * S, 56 * S, 1)]


def test_windows_that_end_long_after_the_clock_are_not_ahead_of_it(tmp_path: Path) -> None:
    def windows_after_weeks(keyed: KeyedStream) -> Stream:
        weeks = keyed.window(gw.tumbling("7 days"), name="first")
        return counted(weeks.process(end_of, output=OUT), "ts")

    run = WindowedRun(windows_after_weeks, tmp_path)
    run.run.clock_us = 2 * DAY
    run.epoch([("a", 2 * DAY, 1)])
    run.times.end_input()
    run.epoch()
    assert not any(o.arrivals.ahead for r in run.reports for o in r.operators)
    assert run.epoch() == [("a", 7 * DAY, 7 * DAY + 2 * S, 1)]


def test_rows_that_a_join_held_are_not_ahead_of_a_clock_that_jumped_back(tmp_path: Path) -> None:
    def windows_after_join(streams: Mapping[str, Stream]) -> Stream:
        left, right = (streams[name].key_by("k") for name in ("left", "right"))
        return counted(left.join_newest(right, suffix="_r", name="joined"), "ts")

    feeds = {name: Feed({f.name: f.type for f in ROWS}) for name in ("left", "right")}
    run = MeetingRun(windows_after_join, tmp_path, feeds)
    run.run.clock_us = 9 * DAY
    run.epoch(left=[("a", 9 * DAY, 1)], right=[("a", 9 * DAY, 1)])
    run.run.clock_us = 2 * DAY
    run.times.end_input()
    found = run.epoch() + run.epoch()
    assert found == [("a", 9 * DAY, 9 * DAY + 2 * S, 1)]


def test_a_moment_far_ahead_closes_nothing_while_a_source_is_idle(tmp_path: Path) -> None:
    def far(key: Any, rows: Any, window: Any) -> Any:
        yield key[0], datetime(9999, 1, 1, tzinfo=UTC), 0
        yield from rows_of(key, rows, window)

    def windows_after_far_rows(keyed: KeyedStream) -> Stream:
        return counted(keyed.window(TENS, name="first").process(far, output=OUT), "ts")

    run = WindowedRun(windows_after_far_rows, tmp_path, idle="1 second")
    for second in (1, 21):
        run.epoch([("a", second * S, 1)])
        run.run.clock_us += 60 * S
        for _ in range(3):  # the source is idle
            run.epoch()
    assert sum(o.arrivals.late for r in run.reports for o in r.operators) == 0
    assert max(run.times.times.closed.values()) < 2 * DAY


def test_what_a_timer_emits_is_not_late_where_its_slack_is_said(tmp_path: Path) -> None:
    def keep(key: Any, rows: Any, state: dict[str, datetime]) -> None:
        for row in rows:
            state["ts"] = row.ts
            rows.timers.set(row.ts + timedelta(seconds=30))

    def emit(key: Any, timer: Any, state: dict[str, datetime]) -> Any:
        yield key[0], state["ts"], 1

    def windows_after_timers(keyed: KeyedStream) -> Stream:
        return counted(
            keyed.process(
                keep,
                state=gw.ValueState(dict, codec="pickle"),
                output=gw.types.Output(OUT, event_time="ts", slack="30 seconds"),
                timers=gw.types.OnTimer(emit, clock="event"),
            )
        )

    run = WindowedRun(windows_after_timers, tmp_path)
    found = []
    for second in (1, 20, 40, 60, 100, 200):
        found += run.epoch([(f"k{second}", second * S, 1)])
        assert not any(o.arrivals.late for r in run.reports for o in r.operators)
    assert [row[0] for row in found] == ["k1", "k20", "k40", "k60"]


def newest(streams: Mapping[str, Stream], within: str | None) -> Stream:
    left, right = (streams[name].key_by("k") for name in ("left", "right"))
    joined = left.join_newest(right, within=within, suffix="_r", name="joined")
    return counted(joined, "ts_r", "10 seconds")


def test_the_newest_row_of_a_join_is_as_old_as_it_may_be(tmp_path: Path) -> None:
    feeds = {name: Feed({f.name: f.type for f in ROWS}) for name in ("left", "right")}
    run = MeetingRun(lambda s: newest(s, "1 minute"), tmp_path, feeds)
    found = []
    for second in (5, 30, 61, 200, 300, 400):
        rows = [("a", second * S, 1), ("z", second * S, 1)]
        found += run.epoch(left=rows, right=rows[1:] if second > 5 else rows)
        assert run.late == 0
    assert [row for row in found if row[0] == "a"] == [("a", 0, 10 * S, 3)]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda rows: counted(
                rows.key_by("k").window(gw.session("1 second")).process(rows_of, output=OUT), "ts"
            ),
            "reads 'ts' of .* as event time, but its delay behind the watermark",
        ),
        (
            lambda rows: counted(
                rows.key_by("k").window(gw.session("1 second"), name="s").compute(n=gw.count()),
                "window_start",
            ),
            "reads 'window_start' of 's'",
        ),
        (
            lambda rows: newest({"left": rows, "right": rows}, None),
            "the newest row may be however old",
        ),
        (
            lambda rows: (
                rows.key_by("k")
                .window(TENS)
                .process(rows_of, output=gw.types.Output(OUT, event_time="t"))
            ),
            "has the event time 't', but its output lacks it. Did you mean 'ts'",
        ),
        (
            lambda rows: (
                rows.key_by("k")
                .window(TENS)
                .process(rows_of, output=gw.types.Output(OUT, event_time="v"))
            ),
            "has the event time 'v', whose type is int64",
        ),
        (
            lambda rows: rows.key_by("k").process(
                each, state=dict, output=gw.types.Output(OUT, slack="1 s")
            ),
            "has slack=, but no event_time=",
        ),
    ],
)
def test_what_has_no_bound_is_refused_and_the_way_out_is_named(
    build: Callable[[Stream], Stream], text: str
) -> None:
    flow = LogicalFlow("flow", 8)
    frame: Any = FakeDataFrame(ROWS)

    def compiled() -> object:
        flow.sink("out", build(flow.source("rows", frame, event_time="ts")), gw.sinks.noop())
        return EventTimes(flow.compile(resolver(flow)), None)

    with pytest.raises(InvalidFlowError, match=text):
        compiled()


def test_a_pair_that_comes_as_late_as_its_interval_allows_is_in_its_window() -> None:
    flow = gw.Flow("pairs", num_key_groups=4)
    columns = "k string, ts timestamp"
    orders = flow.source("orders", gw.testing.stream(columns), event_time="ts")
    payments = flow.source("payments", gw.testing.stream(columns), event_time="ts")
    pairs = orders.key_by("k").join(
        payments.key_by("k"), between=("0 seconds", "1 hour"), suffix="_paid", name="pairs"
    )
    windows = pairs.key_by("k").window(gw.tumbling("10 minutes")).compute(n=gw.count())
    flow.sink("out", windows, gw.sinks.noop())
    run = gw.testing.cluster(flow, now="2024-05-02")

    def both(time: str) -> dict[str, Any]:
        of_others = [{"k": "other", "ts": f"2024-05-01 {time}"}]
        return {"orders": of_others, "payments": of_others}

    run.epoch({"orders": [{"k": "a", "ts": "2024-05-01 08:05"}]})
    run.epoch(both("08:59"))
    run.epoch({"payments": [{"k": "a", "ts": "2024-05-01 09:05"}]})
    run.epoch(both("10:30"))
    run.end_input()
    counted = {
        (row["k"], row["window_start"].minute): row["n"] for row in run.rows("out").to_pylist()
    }
    assert counted["a", 0] == 1
    assert not run.late
