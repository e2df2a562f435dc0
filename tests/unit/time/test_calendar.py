"""Facts about windows of local days and calendar months, against dates of the standard library."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.window_flows import WindowedRun

from godwit.library import aggregates as gw
from godwit.model.errors import CheckpointMismatchError, InvalidFlowError
from godwit.operators.window_specs import grid_of, hopping, tumbling
from godwit.time.calendar import UNIT_US, Calendar, CalendarGrid
from godwit.time.grid import BEGINNING, END, TimeWindow

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000_000
FAR = "100000 days"
"""The clock of these runs stands at 1970."""
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "America/Sao_Paulo",  # clocks changed at midnight
    "America/Asuncion",
    "Asia/Beirut",
    "Pacific/Apia",  # a whole day was skipped
    "Australia/Lord_Howe",  # half an hour
    "Pacific/Kiritimati",
]


def us(moment: dt.datetime) -> int:
    return (moment.astimezone(dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)


def local(instant: int, zone: str) -> dt.datetime:
    return (EPOCH + dt.timedelta(microseconds=instant)).astimezone(ZoneInfo(zone))


@given(
    st.sampled_from(ZONES),
    st.lists(st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=20),
)
def test_a_day_is_the_local_date(zone: str, instants: list[int]) -> None:
    numbers = Calendar(unit="day", zone=zone).numbers_of(np.array(instants))
    for instant, number in zip(instants, numbers.tolist(), strict=True):
        date = dt.date(1970, 1, 1) + dt.timedelta(days=number)
        found = local(instant, zone)
        # Clocks turned back over midnight come to a date again that they had left.
        assert found.date() == date or date - found.date() == dt.timedelta(days=1)
        assert Calendar(unit="day", zone=zone).number_of(instant) == number


@given(
    st.sampled_from(ZONES),
    st.lists(st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=20),
)
def test_a_month_is_the_local_month(zone: str, instants: list[int]) -> None:
    numbers = Calendar(unit="month", zone=zone).numbers_of(np.array(instants))
    for instant, number in zip(instants, numbers.tolist(), strict=True):
        found = local(instant, zone)
        assert number == (found.year - 1970) * 12 + found.month - 1


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", ["day", "month"])
def test_boundaries_grow_and_hold_every_instant(zone: str, unit: Any) -> None:
    calendar = Calendar(unit=unit, zone=zone)
    begins = [calendar.start_of(number) for number in range(-50, 25_000 if unit == "day" else 900)]
    # A date that a zone skipped has no length.
    assert all(a <= b for a, b in itertools.pairwise(begins))
    for number in range(0, len(begins) - 51, 97):
        at = calendar.start_of(number)
        assert calendar.start_of(calendar.number_of(at)) == at
        assert calendar.number_of(at - 1) < calendar.number_of(at)


def test_far_moments_have_days_too() -> None:
    far = np.array([-(2**60), 2**60, -62_135_596_800_000_000, 253_402_300_799_999_999])
    for unit in ("day", "month"):
        calendar = Calendar(unit=unit, zone="Europe/Berlin")
        numbers = calendar.numbers_of(far)
        assert (np.diff(numbers[np.argsort(far)]) >= 0).all()
    grid = grid_of([tumbling("1 day", zone="Europe/Berlin")], "it")
    assert not grid.closes(BEGINNING, BEGINNING)
    assert grid.closes(BEGINNING, END)


@pytest.mark.parametrize(
    ("zone", "unit", "at", "begins", "ends"),
    [
        ("Europe/Berlin", "day", "9999-12-31T12", "9999-12-30T23", "9999-12-31T23"),
        ("Europe/Berlin", "day", "12026-07-01T12", "12026-06-30T22", "12026-07-01T22"),
        ("Europe/Berlin", "month", "9999-12-31T12", "9999-11-30T23", "9999-12-31T23"),
        ("Asia/Tokyo", "month", "9999-12-31T23", "9999-12-31T15", "10000-01-31T15"),
        ("UTC", "month", "0001-01-01T00", "0001-01-01T00", "0001-02-01T00"),
        ("UTC", "day", "0001-01-01T00", "0001-01-01T00", "0001-01-02T00"),
        # Before there were time zones, clocks showed local time.
        (
            "America/New_York",
            "month",
            "0001-01-01T00",
            "0000-12-01T04:56:02",
            "0001-01-01T04:56:02",
        ),
        ("America/New_York", "day", "0001-01-01T00", "0000-12-31T04:56:02", "0001-01-01T04:56:02"),
        (
            "America/New_York",
            "month",
            "-0003-02-10T00",
            "-0003-02-01T04:56:02",
            "-0003-03-01T04:56:02",
        ),
    ],
)
def test_years_that_python_does_not_have_are_those_of_the_calendar(
    zone: str, unit: Any, at: str, begins: str, ends: str
) -> None:
    calendar = Calendar(unit=unit, zone=zone)
    moment, first, last = (
        int(np.datetime64(text, "us").astype(np.int64)) for text in (at, begins, ends)
    )
    number = calendar.number_of(moment)
    assert (calendar.start_of(number), calendar.start_of(number + 1)) == (first, last)
    assert calendar.numbers_of(np.array([first - 1, first, last - 1, last])).tolist() == [
        number - 1,
        number,
        number,
        number + 1,
    ]


@given(
    st.sampled_from(ZONES),
    st.integers(1, 9),
    st.integers(1, 4),
    st.lists(st.integers(10**15, 2 * 10**15), min_size=1, max_size=8),
    st.integers(10**15, 2 * 10**15),
    st.integers(0, 400),
)
def test_windows_of_days_are_whole_local_days(  # noqa: PLR0917
    zone: str, length: int, every: int, moments: list[int], closed: int, days: int
) -> None:
    every = min(every, length)
    until = closed + days * UNIT_US
    window = TimeWindow(length_us=length * UNIT_US, every_us=every * UNIT_US)
    calendar = Calendar(unit="day", zone=zone)
    grid = CalendarGrid.of_calendar(calendar, window)
    times = np.array(moments)
    found = grid.windows_of(grid.panes(times), closed, until)
    starts, ends = grid.instants(found.start), grid.instants(found.end)
    late = grid.is_late(times, closed)
    for i, moment in enumerate(moments):
        day = calendar.number_of(moment)
        spans = set()
        for first in range(day - length + 1, day + 1):
            if first % every == 0:
                spans.add((calendar.start_of(first), calendar.start_of(first + length)))
        expected = sorted(s for s in spans if closed < s[1] <= until)
        mine = found.pane == i
        assert sorted(zip(starts[mine].tolist(), ends[mine].tolist(), strict=True)) == expected
        assert late[i] == all(end <= closed for _, end in spans)
        assert grid.end_of(moment) == max(end for _, end in spans)


def test_days_of_berlin_have_23_and_25_hours(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("1 day", zone="Europe/Berlin")).compute(
            n=gw.count(), v=gw.sum("v")
        ),
        tmp_path,
        max_ahead=FAR,
    )
    spring = us(dt.datetime(2024, 3, 30, 23, tzinfo=dt.UTC))  # midnight of the 31st
    rows = [("a", spring + hour * HOUR, 1) for hour in range(-24, 48)]
    run.epoch(rows)
    assert run.epoch([("a", spring + 100 * HOUR, 1)]) == [
        ("a", spring - 24 * HOUR, spring, 24, 24),
        ("a", spring, spring + 23 * HOUR, 23, 23),
        ("a", spring + 23 * HOUR, spring + 47 * HOUR, 24, 24),
    ]


@pytest.mark.parametrize("output", ["append", "update"])
def test_hopping_months_are_those_of_dates(tmp_path: Path, output: Any) -> None:
    zone, slack = "America/New_York", 40
    run = WindowedRun(
        lambda keyed: keyed.window(
            hopping("3 months", every="1 month", zone=zone),
            tumbling("1 year", zone=zone),
            output=output,
        ).compute(n=gw.count(), v=gw.sum("v")),
        tmp_path,
        slack=f"{slack} days",
        max_ahead=FAR,
    )
    rng = np.random.default_rng(7)
    begin = us(dt.datetime(2019, 11, 5, tzinfo=dt.UTC))
    sums: dict[tuple[str, int, int], list[int]] = defaultdict(list)

    def spans(moment: int) -> set[tuple[int, int]]:
        date = local(moment, zone)
        month = date.year * 12 + date.month - 1
        bounds = [(first, first + 3) for first in range(month - 2, month + 1)]
        bounds.append((date.year * 12, date.year * 12 + 12))
        return {
            tuple(us(dt.datetime(m // 12, m % 12 + 1, 1, tzinfo=ZoneInfo(zone))) for m in pair)  # type: ignore[misc]
            for pair in bounds
        }

    newest: dict[tuple[str, int, int], tuple[Any, ...]] = {}
    watermark = BEGINNING
    for epoch in range(30):
        at = begin + epoch * 20 * UNIT_US
        moments = (at + rng.integers(-30 * UNIT_US, 0, 25)).tolist()
        rows = [(f"k{i % 3}", moment, i) for i, moment in enumerate(moments)]
        out = run.epoch(rows)
        for key, moment, value in rows:
            for start, end in spans(moment):
                sums[key, start, end].append(value)
        for key, start, end, n, v in out:
            assert (key, start, end) not in newest or output == "update"
            assert output == "update" or end <= watermark
            newest[key, start, end] = (n, v)
        watermark = max(watermark, *(m - slack * UNIT_US for m in moments))
    run.epoch()
    for key, start, end, n, v in run.output("out") if output == "append" else ():
        newest[key, start, end] = (n, v)
    expected = {
        at: (len(values), sum(values))
        for at, values in sums.items()
        if output == "update" or at[2] <= watermark
    }
    assert newest == expected
    assert len(expected) > 40


def test_another_zone_is_another_window(tmp_path: Path) -> None:
    def described(zone: str | None) -> Any:
        run = WindowedRun(
            lambda keyed: keyed.window(tumbling("1 day", zone=zone)).compute(n=gw.count()),
            tmp_path / str(zone).replace("/", "-"),
        )
        return run.compiled.operators[0]

    berlin, paris, utc = map(described, ("Europe/Berlin", "Europe/Paris", None))
    for other in (paris, utc):
        with pytest.raises(CheckpointMismatchError, match="windows"):
            other.upgrade_from(berlin.describe_states()["state"])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tumbling("1 hour", zone="Europe/Berlin"), "whole days or months"),
        (lambda: tumbling("1 day", zone="Europe/Berlinn"), "not a time zone"),
        (lambda: tumbling("1 day", zone="../UTC"), "not a time zone"),
        (lambda: tumbling("1 day", zone=7), "not a time zone"),  # type: ignore[arg-type]
        (lambda: tumbling("0 days", zone="UTC"), "whole days or months"),
        (lambda: tumbling("1 month", start="1 day", zone="UTC"), "one counts days"),
        (lambda: hopping("1 month", every="1 day", zone="UTC"), "one counts days"),
        (lambda: hopping("1 day", every="2 days", zone="UTC"), "leave gaps"),
        (lambda: tumbling("1 week", start="8 days", zone="UTC"), "begin every 1 week anyway"),
        (
            lambda: grid_of([tumbling("1 day"), tumbling("1 day", zone="UTC")], "it"),
            "counted differently",
        ),
    ],
)
def test_what_a_calendar_cannot_count_is_refused(make: Any, says: str) -> None:
    with pytest.raises(InvalidFlowError, match=says):
        make()


@pytest.mark.parametrize("length", ["1 day", "2 weeks", "1 month", "2 quarters", "1 year"])
def test_a_length_is_spelled_as_it_was_given(length: str) -> None:
    spelled = str(tumbling(length, zone="Europe/Berlin"))
    given_ = {"2 weeks": "14 days", "2 quarters": "2 quarters"}.get(length, length)
    assert spelled == f"tumbling {given_} in Europe/Berlin"
