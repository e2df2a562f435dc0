"""Timers as functions per key see them: set, list and cancel; and the options of an operator's."""

from __future__ import annotations

import bisect
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from godwit.columns.python_values import FIRST, LAST, Columns, KeyRows, R, datetime_of
from godwit.model.frames import no_such_attribute

if TYPE_CHECKING:
    from collections.abc import Callable

TimerClock: TypeAlias = Literal["event", "processing"]
TimerOrder: TypeAlias = Literal["before_rows", "after_rows"]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Options of an operator's timers."""

    clock: TimerClock | None = None  # clock that timers go by; ``None``: there are none
    on_timer: Callable[..., Any] | None = None  # called as ``on_timer(key, timer, state)``
    order: TimerOrder = "before_rows"


NO_TIMERS: Final = Timing()


class Timers:
    """Timers of one key: set, cancel and list them.

    Godwit makes it: functions of ``process(..., timers=...)`` get it as ``rows.timers``, and
    those of `OnTimer` as ``timer.timers``. All times are datetimes in UTC.

    Examples
    --------
    >>> timers = gw.types.Timers([], 0)
    >>> timers.set(timers.now + dt.timedelta(hours=1))
    >>> timers.list()
    [datetime.datetime(1970, 1, 1, 1, 0, tzinfo=datetime.timezone.utc)]
    """

    __slots__ = ("_now", "_times")

    def __init__(self, times: list[int], now: int) -> None:
        self._times, self._now = times, now

    @property
    def now(self) -> dt.datetime | None:
        """Time of the timers' clock: the watermark, or the driver's clock at the epoch's start.

        With ``clock="event"`` it is ``None`` before the first watermark, and as long as the
        watermark is before the year 1. At the end of a bounded input (``close_at_end=True``) it is
        the last possible datetime, in the year 9999.

        Examples
        --------
        >>> gw.types.Timers([], 0).now
        datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
        """
        return None if self._now < FIRST else datetime_of(self._now)

    def set(self, time: dt.datetime) -> None:
        """Set a timer: its function is called once the timers' clock has passed its time.

        If the time has passed already, it fires in this epoch, after the key's rows. Setting a
        second timer for the same time has no effect.

        Parameters
        ----------
        time
            Time of the timer, a datetime; without a time zone it is taken as UTC.

        Examples
        --------
        >>> timers = gw.types.Timers([], 0)
        >>> timers.set(dt.datetime(2024, 5, 1, 8))
        >>> timers.list()
        [datetime.datetime(2024, 5, 1, 8, 0, tzinfo=datetime.timezone.utc)]
        """
        moment = _microseconds_since_1970(time)
        place = bisect.bisect_left(self._times, moment)
        if place == len(self._times) or self._times[place] != moment:
            self._times.insert(place, moment)

    def cancel(self, time: dt.datetime) -> bool:
        """Cancel the timer that is set to a time.

        Parameters
        ----------
        time
            Time of the timer, a datetime; without a time zone it is taken as UTC.

        Returns
        -------
        bool
            False if the key has no timer for this time.

        Examples
        --------
        >>> timers = gw.types.Timers([], 0)
        >>> timers.set(dt.datetime(2024, 5, 1, 8))
        >>> timers.cancel(dt.datetime(2024, 5, 1, 8)), timers.cancel(dt.datetime(2024, 5, 1, 9))
        (True, False)
        """
        moment = _microseconds_since_1970(time)
        place = bisect.bisect_left(self._times, moment)
        exists = place < len(self._times) and self._times[place] == moment
        if exists:
            del self._times[place]
        return exists

    def list(self) -> list[dt.datetime]:
        """Return the times of the key's timers, earliest first.

        Examples
        --------
        >>> gw.types.Timers([3_000_000], 0).list()
        [datetime.datetime(1970, 1, 1, 0, 0, 3, tzinfo=datetime.timezone.utc)]
        """
        return [datetime_of(moment) for moment in self._times]


class TimedRows(KeyRows[R]):
    """The rows of one key in one epoch, with the key's timers.

    Godwit makes it: a function of ``process(..., timers=...)`` gets it instead of `KeyRows`, and
    may use it in the same ways.

    Attributes
    ----------
    timers
        The key's timers, to set, cancel and list.

    Examples
    --------
    >>> def ask_again(key, rows, state):
    ...     rows.timers.set(rows.timers.now + dt.timedelta(minutes=5))
    ...     return [(*key, len(rows))]
    >>> timers = gw.types.OnTimer(lambda key, timer, state: [], clock="processing")
    >>> now = "2024-05-01 08:00"
    >>> done = gw.testing.process(ask_again, [{"delay": 5}], state=int, timers=timers, now=now)
    >>> done.timers
    [datetime.datetime(2024, 5, 1, 8, 5, tzinfo=datetime.timezone.utc)]
    """

    __slots__ = ("timers",)

    def __init__(self, columns: Columns, start: int, stop: int, timers: Timers) -> None:
        super().__init__(columns, start, stop)
        self.timers = timers


@dataclass(slots=True)
class FiredTimer:
    """A timer whose time has come.

    Godwit makes it: the function of `godwit.types.OnTimer` gets it.

    Attributes
    ----------
    time
        Time to which the timer was set, a datetime in UTC.
    timers
        The key's other timers, to set and cancel (`godwit.types.Timers`).

    Examples
    --------
    >>> def remind(key, timer, state):
    ...     return [(key[0], timer.time)]
    >>> fired = gw.types.FiredTimer(dt.datetime(2024, 5, 1, 8), gw.types.Timers([], 0))
    >>> remind(("N1",), fired, None)
    [('N1', datetime.datetime(2024, 5, 1, 8, 0))]
    """

    _MEANT: ClassVar = {"at": "time"}

    time: dt.datetime
    timers: Timers  # the key's other timers
    _dropped: bool = False

    if not TYPE_CHECKING:
        __getattr__ = no_such_attribute

    def drop_state(self) -> None:
        """Delete the key's state and timers once its function returns.

        Examples
        --------
        >>> def forget(key, timer, state):
        ...     timer.drop_state()
        >>> done = gw.testing.process(
        ...     lambda key, rows, state: [],
        ...     state=7,
        ...     timers=gw.types.OnTimer(forget, clock="processing"),
        ...     timers_before=["2024-05-01 08:00"],
        ...     now="2024-05-01 09:00",
        ... )
        >>> print(done.state)
        None
        """
        self._dropped = True


def _microseconds_since_1970(time: dt.datetime) -> int:
    """Convert a datetime (UTC without zone) to microseconds of Unix time, or raise.

    A time that is beyond the first or last datetime in UTC is that datetime.
    """
    if not isinstance(time, dt.datetime) or time != time:  # noqa: PLR0124 - pandas' NaT is a datetime
        msg = f"a timer is set to a datetime, not to {time!r}"
        raise TypeError(msg)
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return min(max((time - _EPOCH) // _MICROSECOND, FIRST), LAST)
