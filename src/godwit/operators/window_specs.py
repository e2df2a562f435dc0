"""Window specifications of users: `tumbling`, `hopping` and `session`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.time.calendar import (
    UNIT_US,
    Calendar,
    CalendarGrid,
    calendar_length,
    check_zone,
    spelled_calendar,
)
from godwit.time.durations import duration_text, microseconds
from godwit.time.grid import PaneGrid, TimeWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.time.durations import Duration

_MAX_PANES: Final = 10_000
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopping:
    """Windows of fixed length that begin at a fixed interval; tumbling if the two are equal."""

    window: TimeWindow  # length, frequency and offset
    calendar: Calendar | None = None  # in whose days or months they are counted, if any

    @property
    def longest_us(self) -> int:
        """Maximum length of a window, in microseconds."""
        return self.window.length_us * (1 if self.calendar is None else self.calendar.most_days)

    @property
    def length(self) -> str:
        """Length as text, such as ``1 hour``."""
        return self._length_text(self.window.length_us)

    def _length_text(self, length_us: int) -> str:
        """Return a length as text in the windows' own unit."""
        if self.calendar is None:
            return duration_text(length_us)
        return spelled_calendar(length_us // UNIT_US, self.calendar.unit)

    def __str__(self) -> str:
        text = f"tumbling {self.length}"
        if self.window.every_us != self.window.length_us:
            text = f"hopping {self.length} every {self._length_text(self.window.every_us)}"
        if self.window.offset_us:
            text += f" from {self._length_text(self.window.offset_us)}"
        return text if self.calendar is None else f"{text} in {self.calendar.zone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Windows that end after a gap without rows of the key."""

    gap_us: int  # two rows of one key that lie at most this apart are of one session

    def __str__(self) -> str:
        return f"session of gap {duration_text(self.gap_us)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWindows:
    """Windows of the last `length` rows of a key, one every `every` rows; `rows` makes them."""

    length: int
    every: int

    def __str__(self) -> str:
        return f"rows {self.length}" + ("" if self.every == self.length else f" every {self.every}")


WindowSpec = Hopping | Session


@user_call
def tumbling(
    length: Duration, *, start: Duration = "0 seconds", zone: str | None = None
) -> Hopping:
    """Tumbling windows of event time: consecutive windows of one length, without overlap.

    Parameters
    ----------
    length
        Length of a window, such as ``"1 hour"``. With `zone` also calendar months, quarters and
        years.
    start
        Offset of the windows: they begin at 1970-01-01 00:00 UTC, plus this, plus a multiple of the
        length. With ``tumbling("1 day", start="6 hours")`` days begin at 06:00 UTC.
    zone
        Time zone, such as ``"Europe/Berlin"``, whose calendar days are counted: windows begin at
        local midnight, and a day has 23 or 25 hours when clocks change. Lengths have to be whole
        days, weeks, months, quarters or years, and `start` counts from local midnight of
        1970-01-01, a Thursday: windows of ``tumbling("1 week", start="4 days",
        zone="Europe/Paris")`` begin on Mondays.

    Raises
    ------
    InvalidFlowError
        If the length is not positive, `start` is not shorter than it, the zone is unknown, or a
        length with a zone is not in whole days or months.

    Examples
    --------
    >>> str(gw.tumbling("1 hour"))
    'tumbling 1 hour'
    >>> str(gw.tumbling("1 month", zone="Europe/Berlin"))
    'tumbling 1 month in Europe/Berlin'
    """
    return _hopping_windows(length, length, start, zone)


@user_call
def hopping(
    length: Duration, *, every: Duration, start: Duration = "0 seconds", zone: str | None = None
) -> Hopping:
    """Hopping windows of event time: overlapping windows of one length (sliding in Flink).

    Parameters
    ----------
    length
        Length of a window, such as ``"6 hours"``.
    every
        Interval between the starts of consecutive windows (Spark: slide duration); at most the
        length.
    start
        Offset of the windows, less than `every`: they begin at 1970-01-01 00:00 UTC, plus this,
        plus a multiple of `every`.
    zone
        Time zone, such as ``"Europe/Berlin"``, whose calendar days are counted: windows begin at
        local midnight, and `length` and `every` have to be whole days, weeks, months, quarters or
        years, as for `tumbling`.

    Raises
    ------
    InvalidFlowError
        If a length is not positive, `every` exceeds the length, `start` is not less than `every`,
        or a window would consist of more than 10,000 panes: slices of time in which no window
        begins or ends.

    Examples
    --------
    >>> str(gw.hopping("6 hours", every="1 hour"))
    'hopping 6 hours every 1 hour'
    """
    return _hopping_windows(length, every, start, zone)


@user_call
def rows(length: int, *, every: int | None = None) -> RowWindows:
    """Count windows: the last `length` rows of a key in arrival order, without event time.

    Parameters
    ----------
    length
        Number of rows of a window. A key has no result before that many rows have arrived.
    every
        A window is emitted after every `every` rows of the key; a divisor of `length`. By default
        `length`, so that windows do not overlap.

    Raises
    ------
    InvalidFlowError
        If a number is not a positive integer, or `every` does not divide `length` into at most
        10,000 parts.

    Examples
    --------
    >>> str(gw.rows(100, every=10))
    'rows 100 every 10'
    """
    every = length if every is None else every
    for what, number in (("The length of a window of rows", length), ("every=", every)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidFlowError(
                f"{what} is {number!r}.", remedy="Give a number of rows, as in gw.rows(100)."
            )
    if length % every or length // every > _MAX_PANES:
        raise InvalidFlowError(
            f"Windows of {length} rows cannot be emitted every {every} rows.",
            remedy=f"Give an every= that divides {length}, into at most {_MAX_PANES} parts.",
        )
    return RowWindows(length=length, every=every)


@user_call
def session(gap: Duration) -> Session:
    """Session windows: rows of a key that are at most `gap` of event time apart.

    A session begins at the event time of its first row and ends `gap` after that of its last.

    Parameters
    ----------
    gap
        Maximum event time between consecutive rows of a session, such as ``"10 minutes"``.

    Raises
    ------
    InvalidFlowError
        If the gap is not a positive length of time.

    Examples
    --------
    >>> str(gw.session("10 minutes"))
    'session of gap 10 minutes'
    """
    return Session(gap_us=microseconds(gap, "The gap of a session", least=1))


def grid_of(specs: Sequence[Hopping], where: str) -> PaneGrid:
    """Return the grid of panes that all these windows share.

    Raises `InvalidFlowError` if windows cannot share panes, or have too many. `where`: the
    operator, for errors.
    """
    windows = [spec.window for spec in specs]
    calendars = {spec.calendar for spec in specs}
    if len(calendars) > 1:
        raise InvalidFlowError(
            f"{where} has windows that are counted differently: {', '.join(map(str, specs))}.",
            remedy="Windows of one call are of one zone, and all of days or all of months: call "
            "window(...) twice on the keyed stream, and give each result a name.",
        )
    repeated = [spec for i, spec in enumerate(specs) if spec.window in windows[:i]]
    if repeated:
        raise InvalidFlowError(
            f"{where} has the window {str(repeated[0])!r} twice.", remedy="Name each window once."
        )
    (calendar,) = calendars
    grid = (
        PaneGrid.of(*windows) if calendar is None else CalendarGrid.of_calendar(calendar, *windows)
    )
    if grid.panes_per_window > _MAX_PANES:
        raise InvalidFlowError(
            f"{where} has windows whose lengths, frequencies and starts are all multiples of "
            f"{duration_text(grid.width_us)} only, so the longest is made of "
            f"{grid.panes_per_window} parts.",
            remedy="Choose lengths that divide one another, or a frequency that divides the "
            f"length; a window may have {_MAX_PANES} parts.",
        )
    return grid


def _hopping_windows(
    length: Duration, every: Duration, start: Duration, zone: str | None
) -> Hopping:
    """Return windows of fixed length, or of whole days or months of a time zone."""
    if zone is not None:
        return _calendar_windows(length, every, start, zone)
    size = microseconds(length, "The length of a window", least=1)
    step = microseconds(every, "The frequency of a window (every=)", least=1)
    first = microseconds(start, "The start of windows", least=0)
    spec = Hopping(window=TimeWindow(length_us=size, every_us=step, offset_us=first))
    _check_windows(spec, start, duration_text(step))
    return spec


def _calendar_windows(length: Duration, every: Duration, start: Duration, zone: str) -> Hopping:
    """Return windows of whole days or months, one every `every`; raise if units are mixed."""
    check_zone(zone)
    unit, size = calendar_length(length, "The length of a window", least=1)
    unit_of_step, step = calendar_length(every, "The frequency of a window (every=)", least=1)
    first = 0
    if start != "0 seconds":
        unit_of_start, first = calendar_length(start, "The start of windows", least=0)
        if unit_of_start != unit:
            raise _mixed_units_error(length, start)
    if unit_of_step != unit:
        raise _mixed_units_error(length, every)
    spec = Hopping(
        window=TimeWindow(
            length_us=size * UNIT_US, every_us=step * UNIT_US, offset_us=first * UNIT_US
        ),
        calendar=Calendar(unit=unit, zone=zone),
    )
    _check_windows(spec, start, str(every))
    return spec


def _mixed_units_error(length: Duration, other: Duration) -> InvalidFlowError:
    """Return the error that lengths in days and in months were mixed."""
    return InvalidFlowError(
        f"Windows of {length!r} were given {other!r}: one counts days, the other months.",
        remedy="Give both in days and weeks, or both in months, quarters and years.",
    )


def _check_windows(spec: Hopping, start: Duration, every: str) -> None:
    """Raise `InvalidFlowError` if windows leave gaps, or start after their interval.

    `start`, `every`: the start as its user gave it, and the interval as text, for errors.
    """
    window = spec.window
    if window.every_us > window.length_us:
        raise InvalidFlowError(
            f"Windows of {str(spec).removeprefix('hopping ')} leave gaps, and rows in them would "
            "be lost.",
            remedy="Give every= at most the length of the windows.",
        )
    if window.offset_us >= window.every_us:
        raise InvalidFlowError(
            f"The start of windows is {start!r}, but they begin every {every} anyway.",
            remedy="Give a start that is shorter than that.",
        )
