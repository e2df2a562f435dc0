"""Windows whose rows are windows: of these, the moment is just before their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.meeting_flows import Feed, MeetingRun
from tests.support.timed_run import TIME
from tests.support.window_flows import WindowedRun

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

S = 1_000_000
ROWS = [("a", 1 * S, 1), ("a", 19 * S, 1), ("a", 51 * S, 1)]
"""Of three windows of ten seconds, the first two of which make a session of ten."""


def sums(keyed: KeyedStream) -> Stream:
    windows = keyed.window(gw.tumbling("10 seconds"), name="tens")
    return windows.compute(n=gw.count(), v=gw.sum("v"))


def in_order(key: tuple[str], rows: Any, window: Any) -> Iterable[tuple[Any, ...]]:
    yield key[0], window.start, window.end, len(rows), sum(row.v for row in rows)


@pytest.mark.parametrize("function", [False, True])
def test_sessions_of_windows_begin_within_them_and_come_out_at_the_end(
    tmp_path: Path, function: bool
) -> None:
    def sessions_of_windows(keyed: KeyedStream) -> Stream:
        sessions = sums(keyed).key_by("k").window(gw.session("10 seconds"), name="sessions")
        if not function:
            return sessions.compute(n=gw.count(), v=gw.sum("v"))
        columns = "k string, window_start timestamp, window_end timestamp, n long, v long"
        return sessions.process(in_order, output=columns)

    run = WindowedRun(sessions_of_windows, tmp_path)
    assert run.epoch(ROWS) == []
    assert run.epoch() == [("a", 10 * S - 1, 30 * S - 1, 2, 2)]
    run.times.end_input()
    assert run.epoch() == [("a", 60 * S - 1, 70 * S - 1, 1, 1)]


@pytest.mark.parametrize("way", ["duplicates", "join"])
def test_windows_that_meet_others_on_the_way_are_in_the_window_that_holds_them(
    tmp_path: Path, way: str
) -> None:
    columns = {"k": pa.string(), "ts": TIME, "v": pa.int64()}

    def hours_of_windows(streams: Any) -> Stream:
        tens = sums(streams["rows"].key_by("k"))
        if way == "duplicates":
            met = tens.drop_duplicates("k", within="1 second")
        else:
            met = tens.key_by("k").join_newest(streams["others"].key_by("k"), suffix="_other")
        hours = met.key_by("k").window(gw.tumbling("1 minute"), name="minutes")
        return hours.compute(n=gw.count())

    names = ("rows",) if way == "duplicates" else ("rows", "others")
    run = MeetingRun(hours_of_windows, tmp_path, {name: Feed(columns) for name in names})
    run.epoch(**dict.fromkeys(names, ROWS))
    run.times.end_input()
    assert run.epoch() == [("a", 0, 60 * S, 3)]


def test_a_window_that_ends_long_after_the_clock_is_not_ahead_of_it(tmp_path: Path) -> None:
    def quarters_of_months(keyed: KeyedStream) -> Stream:
        months = keyed.window(gw.tumbling("30 days"), name="months").compute(v=gw.sum("v"))
        return (
            months.key_by("k")
            .window(gw.tumbling("90 days"), name="quarters")
            .compute(v=gw.sum("v"))
        )

    run = WindowedRun(quarters_of_months, tmp_path, max_ahead="1 hour")
    run.epoch(ROWS)
    run.times.end_input()
    assert run.epoch() == [("a", 0, 90 * 86_400 * S, 3)]
