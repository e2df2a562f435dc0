"""Moments at the ends of what a timestamp, or a datetime of Python's, can hold."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.window_flows import WindowedRun

import godwit as gw
from godwit.columns.python_values import FIRST, LAST

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

S = 1_000_000
DAY = 86_400 * S
YEAR_250_BC = -70_000_000_000 * S


def sums(keyed: KeyedStream) -> Stream:
    return keyed.window(gw.tumbling("10 seconds")).compute(v=gw.sum("v"))


def counted(key: tuple[str], rows: Any, window: Any) -> Iterable[tuple[Any, ...]]:
    yield key[0], len(rows)


def arrivals(run: WindowedRun) -> tuple[int, int]:
    """Give the rows of the last epoch that were late, and those that were ahead."""
    found = [done.arrivals for report in run.reports for done in report.operators]
    return sum(of.late for of in found), sum(of.ahead for of in found)


def test_windows_of_antiquity_are_like_others(tmp_path: Path) -> None:
    run = WindowedRun(sums, tmp_path)
    run.epoch([("a", YEAR_250_BC + S, 1), ("a", YEAR_250_BC - S, 2)])
    run.times.end_input()
    assert run.epoch() == [
        ("a", YEAR_250_BC, YEAR_250_BC + 10 * S, 1),
        ("a", YEAR_250_BC - 10 * S, YEAR_250_BC, 2),
    ]


@pytest.mark.parametrize("window", [gw.tumbling("10 seconds"), gw.session("10 seconds")])
def test_rows_of_windows_that_no_datetimes_bound_are_left_out(tmp_path: Path, window: Any) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(window).process(counted, output="k string, n long"), tmp_path
    )
    run.epoch([("a", YEAR_250_BC, 1), ("a", FIRST - 1, 1), ("a", 5 * S, 1)])
    assert arrivals(run) == (2, 0)
    run.times.end_input()
    assert run.epoch() == [("a", 1)]


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo", "America/Lima"])
@pytest.mark.parametrize("length", ["1 day", "1 week"])
def test_every_window_of_a_function_has_datetimes(length: str, zone: str | None) -> None:
    windows: list[gw.types.Window] = []
    flow = gw.Flow("f", num_key_groups=2)
    options: dict[str, Any] = {"event_time": "ts", "max_ahead": "3000000 days"}
    keyed = flow.source("s", gw.testing.stream("k string, ts timestamp"), **options).key_by("k")
    spec = gw.hopping(length, every="1 day", zone=zone)
    stream = keyed.window(spec).process(
        lambda key, rows, window: windows.append(window), output="k string"
    )
    flow.sink("o", stream, gw.sinks.noop())
    days = (0, 1, 6, 7, 8, 30)
    moments = [FIRST + n * DAY for n in days] + [LAST - n * DAY for n in days] + [0]
    column = pa.array(moments, pa.timestamp("us", "UTC"))
    rows = pa.table({"k": ["a"] * len(moments), "ts": column})
    gw.testing.run(flow, {"s": rows}, close_at_end=True)
    assert len(windows) > 8
    assert all(isinstance(w.start, dt.datetime) and w.start < w.end for w in windows)


FAR = [FIRST - 1, LAST + 1, -(2**62), 2**62]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "timestamp": (pa.timestamp("us", "UTC"), FAR),
    "timestamp_ntz": (pa.timestamp("us"), FAR),
    "date": (pa.date32(), [-719_163, 2_932_897, 2**31 - 1, -(2**31)]),
    "array<timestamp>": (pa.list_(pa.timestamp("us", "UTC")), [[FAR[0], 0], [None], None, []]),
    "struct<t: timestamp>": (pa.struct([("t", pa.timestamp("us", "UTC"))]), [{"t": FAR[1]}, None]),
    "map<date, timestamp>": (
        pa.map_(pa.date32(), pa.timestamp("us", "UTC")),
        [[(2_932_897, FAR[0]), (0, None)], []],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_function_gets_a_time_that_no_datetime_holds_as_a_number_that_it_can_emit(
    name: str,
) -> None:
    dtype, values = VALUES[name]
    columns = f"k string, v {name}"
    flow = gw.Flow("f", num_key_groups=2)
    keyed = flow.source("s", gw.testing.stream(columns)).key_by("k")

    def passing(key: Any, rows: Any, _: Any) -> list[Any]:
        return [(*key, row.v) for row in rows]

    passed = keyed.process(passing, state=int, output=columns)
    flow.sink("o", passed, gw.sinks.noop())
    table = pa.table({"k": ["a"] * len(values), "v": pa.array(values, dtype)})
    assert gw.testing.run(flow, {"s": table}).rows("o")["v"].combine_chunks() == table["v"].chunk(0)


def test_a_key_may_be_a_time_that_no_datetime_holds() -> None:
    flow = gw.Flow("f", num_key_groups=2)
    keyed = flow.source("s", gw.testing.stream("ts timestamp, v long")).key_by("ts")
    kept = keyed.process(
        lambda key, rows, state: [(*key, len(rows))], state=int, output="ts timestamp, n long"
    )
    flow.sink("o", kept, gw.sinks.noop())
    table = pa.table({"ts": pa.array(FAR, pa.timestamp("us", "UTC")), "v": range(4)})
    found = gw.testing.run(flow, {"s": table}).rows("o")
    assert sorted(found["ts"].cast(pa.int64()).to_pylist()) == sorted(FAR)


def test_timers_are_of_the_datetimes_that_there_are() -> None:
    west, east = (dt.timezone(dt.timedelta(hours=h)) for h in (-5, 5))
    timers = gw.types.Timers([], FIRST - 1)
    assert timers.now is None
    timers.set(dt.datetime.max.replace(tzinfo=west))
    timers.set(dt.datetime.min.replace(tzinfo=east))
    ends = [dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]
    assert timers.list() == ends
    assert timers.cancel(ends[1])
    assert gw.types.Timers([], LAST + 1).now == ends[1]


def test_timers_go_on_where_the_watermark_is_before_the_year_1() -> None:
    times: list[Any] = []

    def note(key: Any, rows: Any, state: Any) -> None:
        times.append(rows.timers.now)
        rows.timers.set(dt.datetime(1, 1, 1, 12, tzinfo=dt.UTC))

    flow = gw.Flow("f", num_key_groups=2)
    source = gw.testing.stream("k string, ts timestamp")
    keyed = flow.source("s", source, event_time="ts", slack="1 day").key_by("k")
    stream = keyed.process(
        note,
        state=int,
        output="k string, ts timestamp",
        timers=gw.types.OnTimer(lambda key, timer, state: [(*key, timer.time)], clock="event"),
    )
    flow.sink("o", stream, gw.sinks.noop())
    column = pa.array([FIRST, FIRST + DAY, FIRST + 2 * DAY], pa.timestamp("us", "UTC"))
    played = gw.testing.run(flow, {"s": pa.table({"k": ["a"] * 3, "ts": column})}, epochs=3)
    assert times[:2] == [None, None]
    assert isinstance(times[2], dt.datetime)
    assert played.watermarks["s"] == dt.datetime(1, 1, 2, tzinfo=dt.UTC)


@pytest.mark.parametrize("moment", [-(2**63) + 1, -(2**62)])
def test_a_row_of_before_all_time_is_late(tmp_path: Path, moment: int) -> None:
    run = WindowedRun(sums, tmp_path)
    assert run.epoch([("a", moment, 1), ("a", 5 * S, 2)]) == []
    assert arrivals(run) == (1, 0)
    run.times.end_input()
    assert run.epoch() == [("a", 0, 10 * S, 2)]


@pytest.mark.parametrize("moment", [2**63 - 1, 2**62])
def test_a_row_of_after_all_time_is_ahead_and_counted_once(tmp_path: Path, moment: int) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(gw.session("10 seconds")).compute(v=gw.sum("v")), tmp_path
    )
    assert run.epoch([("a", moment, 1), ("a", 5 * S, 2)]) == []
    assert arrivals(run) == (0, 1)
