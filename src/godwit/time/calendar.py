"""Windows of local days and calendar months, whose lengths in microseconds differ.

A *calendar* counts days, or months, of a time zone and says at which instant each begins.  Inside
an operator, panes and windows are these numbers, a *unit* (24 hours) apart, so the arithmetic of
`PaneGrid` holds for them as it does for microseconds; only input (event times, watermarks)
and output (bounds of windows) are converted.

Invariant: boundaries grow with the number of the day, so every instant is in one day, also where
clocks are turned back across midnight, and a window is over exactly when the watermark has passed
the instant at which the next one begins.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from godwit.model.errors import InvalidFlowError
from godwit.time.grid import BEGINNING, END, PaneGrid

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.time.durations import Duration
    from godwit.time.grid import TimeWindow, WindowsOfPanes

    Instants = npt.NDArray[np.int64]

CalendarUnit = Literal["day", "month"]

UNIT_US: Final = 86_400_000_000
"""Distance between two days, or two months, inside an operator, in microseconds."""
_UNITS: Final[dict[str, tuple[CalendarUnit, int]]] = {
    "day": ("day", 1),
    "week": ("day", 7),
    "month": ("month", 1),
    "quarter": ("month", 3),
    "year": ("month", 12),
}
_LENGTH: Final = re.compile(r"\s*(\d{1,5})\s+(day|week|month|quarter|year)s?\s*", re.IGNORECASE)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_CYCLE: Final = {"day": 146_097, "month": 4_800}
"""Days or months of 400 years, after which dates and weekdays repeat, and rules of zones too."""
# Days and months that begin in UTC within the years 1 to 9999, in any zone.
_FIRST: Final = {"day": dt.date(1, 1, 3).toordinal() - _EPOCH_DAY, "month": -1968 * 12}
_LAST: Final = {"day": dt.date(9999, 12, 28).toordinal() - _EPOCH_DAY, "month": 8029 * 12 + 11}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Days or months of a time zone, numbered from 1970-01-01."""

    unit: CalendarUnit
    zone: str

    @property
    def most_days(self) -> int:
        """Upper bound of the length of a day or month, in days of 24 hours."""
        return 2 if self.unit == "day" else 32

    def start_of(self, number: int) -> int:
        """Return the start of day or month `number`, in microseconds of Unix time."""
        return _start_of(self.unit, self.zone, number)

    def number_of(self, instant: int) -> int:
        """Return the number, counted from 1970, of the day or month that contains an instant."""
        number = self._number_in_utc(instant)
        while self.start_of(number) > instant:
            number -= 1
        while self.start_of(number + 1) <= instant:
            number += 1
        return number

    def numbers_of(self, instants: Instants) -> Instants:
        """Return the number, counted from 1970, of the day or month that contains each instant."""
        days, day_of = np.unique(instants // UNIT_US, return_inverse=True)
        numbers = np.empty(len(instants), np.int64)
        # A UTC day meets at most two local days, and two months, beside the one it begins in.
        firsts = [self.number_of(day * UNIT_US) for day in days.tolist()]
        numbers = np.array(firsts, np.int64)[day_of]
        for step in (1, 2):
            nexts = np.array([self.start_of(first + step) for first in firsts], np.int64)
            numbers += instants >= nexts[day_of]
        return numbers

    def _number_in_utc(self, instant: int) -> int:
        """Return the number of the UTC day or month of an instant; the zone's may differ by one."""
        day = int(instant // UNIT_US)
        if self.unit == "day":
            return day
        cycles = (day + _EPOCH_DAY - 1) // _CYCLE["day"]
        date = dt.date.fromordinal(day + _EPOCH_DAY - cycles * _CYCLE["day"])
        return (date.year - 1970) * 12 + date.month - 1 + cycles * _CYCLE["month"]


@lru_cache(maxsize=1 << 14)
def _start_of(unit: CalendarUnit, zone: str, number: int) -> int:
    """Return the instant, in microseconds, at which day or month `number` begins in a time zone.

    Years that Python's dates do not have are like those 400, 800 ... years nearer.
    """
    nearest = min(max(number, _FIRST[unit]), _LAST[unit])
    cycles = -(-abs(number - nearest) // _CYCLE[unit]) * (1 if number > nearest else -1)
    number -= cycles * _CYCLE[unit]
    if unit == "day":
        date = dt.date.fromordinal(number + _EPOCH_DAY)
    else:
        date = dt.date(number // 12 + 1970, number % 12 + 1, 1)
    midnight = dt.datetime(date.year, date.month, date.day, tzinfo=ZoneInfo(zone))
    # Of a midnight that is skipped, the instant of the change; of one that comes twice, the first.
    start = (midnight.astimezone(dt.UTC) - _EPOCH) // _MICROSECOND
    return start + cycles * _CYCLE["day"] * UNIT_US


def check_zone(zone: str) -> None:
    """Raise `InvalidFlowError` if a time zone is unknown."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise InvalidFlowError(
            f"Windows were given zone={zone!r}, which is not a time zone.",
            remedy='Name one of the tz database, as in zone="Europe/Berlin".',
        ) from error


def calendar_length(value: Duration, what: str, *, least: int) -> tuple[CalendarUnit, int]:
    """Return unit and number of a length in whole days or months, at least `least` of them.

    Refuses other lengths; `what`: the length's name, for errors.
    """
    length: tuple[CalendarUnit, int] | None = None
    if isinstance(value, dt.timedelta) and not value % dt.timedelta(days=1):
        length = "day", value.days
    elif isinstance(value, str) and (match := _LENGTH.fullmatch(value)) is not None:
        unit, size = _UNITS[match[2].lower()]
        length = unit, int(match[1]) * size
    if length is None or length[1] < least:
        raise InvalidFlowError(
            f"{what} is {value!r}, but with a zone windows are counted in whole days or months.",
            remedy='Give a length such as "1 day", "2 weeks", "1 month", "1 quarter" or "1 year"; '
            "leave zone= out for shorter windows, which differ between zones only by start=.",
        )
    return length


def spelled_calendar(number: int, unit: CalendarUnit) -> str:
    """Return a number of days or months as text that `calendar_length` reads.

    Examples
    --------
    >>> spelled_calendar(12, "month")
    '1 year'
    """
    name: str = unit
    size = 1
    for other, (counted, per_unit) in _UNITS.items():
        if counted == unit and number % per_unit == 0 and number and other != "week":
            name, size = other, per_unit
    return f"{number // size} {name}{'' if number == size else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarGrid(PaneGrid):
    """Panes and windows of a calendar: as `PaneGrid`, with moments a `UNIT_US` per day or month.

    Event times and watermarks (`times`, `moment`, `closed`, `until`) are instants; panes, and
    bounds of windows, are of the calendar until `instants` gives theirs.
    """

    calendar: Calendar

    @classmethod
    def of_calendar(cls, calendar: Calendar, *windows: TimeWindow) -> CalendarGrid:
        """Return the grid of panes for windows of whole days or months of a calendar."""
        width_us = PaneGrid.of(*windows).width_us
        return cls(windows=windows, width_us=width_us, calendar=calendar)

    @property
    def longest_us(self) -> int:
        return max(window.length_us for window in self.windows) * self.calendar.most_days

    def instants(self, bounds: Instants) -> Instants:
        different, number_of = np.unique(bounds, return_inverse=True)
        begins = [self.calendar.start_of(number) for number in (different // UNIT_US).tolist()]
        return np.array(begins, np.int64)[number_of]

    def panes(self, times: Instants) -> Instants:
        """Return the pane of each event time: its day's or month's number, times `UNIT_US`."""
        return PaneGrid.panes(self, self.calendar.numbers_of(times) * UNIT_US)

    def first_open(self, closed: int) -> int:
        return PaneGrid.first_open(self, self._last_boundary(closed))

    def closing(self, closed: int, until: int) -> tuple[int, int]:
        return PaneGrid.closing(self, self._last_boundary(closed), self._last_boundary(until))

    def closes(self, closed: int, until: int) -> bool:
        return PaneGrid.closes(self, self._last_boundary(closed), self._last_boundary(until))

    def windows_of(self, panes: Instants, closed: int, until: int) -> WindowsOfPanes:
        return PaneGrid.windows_of(
            self, panes, self._last_boundary(closed), self._last_boundary(until)
        )

    def windows_over(self, panes: Instants, closed: int, until: int) -> tuple[Instants, Instants]:
        return PaneGrid.windows_over(
            self, panes, self._last_boundary(closed), self._last_boundary(until)
        )

    def is_late(self, times: Instants, closed: int) -> npt.NDArray[np.bool_]:
        first = self.first_open(closed)
        opens = first if abs(first) >= END else self.calendar.start_of(first // UNIT_US)
        late: npt.NDArray[np.bool_] = times < opens
        return late

    def end_of(self, moment: int) -> int:
        end = PaneGrid.end_of(self, self._last_boundary(moment))
        return self.calendar.start_of(end // UNIT_US)

    def _last_boundary(self, instant: int) -> int:
        """Return the last start of a day or month at or before an instant."""
        if instant <= BEGINNING or instant >= END:
            return instant
        return self.calendar.number_of(instant) * UNIT_US
