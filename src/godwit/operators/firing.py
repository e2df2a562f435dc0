"""Calling the functions of an operator that has timers: what they are given, and in which order.

In an epoch, per key: timers that are due, earliest first; then the rows; then what these have set
that is due already.
"""

from __future__ import annotations

import bisect
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from godwit.columns.python_values import Columns, KeyRows
from godwit.model.errors import UserFunctionError
from godwit.model.frames import function_failed
from godwit.operators.windows.grid import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.operators.process import Meter

__all__ = ["CalledKey", "Calls", "FiredTimer", "TimedRows", "TimerClock", "Timers"]

TimerClock: TypeAlias = Literal["event", "processing"]

_MOST_FIRED: Final = 10_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


class Timers:
    """Timers of one key, in one epoch."""

    __slots__ = ("_moments", "_now")

    def __init__(self, moments: list[int], now: int) -> None:
        self._moments, self._now = moments, now

    @property
    def now(self) -> dt.datetime | None:
        """The clock: the watermark, or the driver's clock; ``None`` before there is a watermark."""
        return None if self._now <= BEGINNING else _datetime(self._now)

    def set(self, at: dt.datetime) -> None:
        """Fire at a moment; one that has passed fires in this epoch, after the rows.

        A timer that is set twice fires once. A datetime without a time zone is in UTC.
        """
        moment = _microseconds(at)
        place = bisect.bisect_left(self._moments, moment)
        if place == len(self._moments) or self._moments[place] != moment:
            self._moments.insert(place, moment)

    def cancel(self, at: dt.datetime) -> bool:
        """Do not fire at that moment; says whether there was such a timer."""
        moment = _microseconds(at)
        place = bisect.bisect_left(self._moments, moment)
        found = place < len(self._moments) and self._moments[place] == moment
        if found:
            del self._moments[place]
        return found

    def list(self) -> list[dt.datetime]:
        """Moments at which the key has timers, earliest first."""
        return [_datetime(moment) for moment in self._moments]


class TimedRows(KeyRows):
    """The rows of one key in one epoch, and its timers.

    Attributes
    ----------
    timers
        The key's timers.
    """

    __slots__ = ("timers",)

    def __init__(self, columns: Columns, start: int, stop: int, timers: Timers) -> None:
        super().__init__(columns, start, stop)
        self.timers = timers


@dataclass(slots=True)
class FiredTimer:
    """A timer that has fired."""

    at: dt.datetime  # the moment it was set to
    timers: Timers  # the key's other timers
    _dropped: bool = False

    def drop_state(self) -> None:
        """Forget the key's state and timers once the function has returned."""
        self._dropped = True


@dataclass(slots=True)
class CalledKey:
    """What becomes of one key in an epoch."""

    moments: list[int]
    touched: bool = False
    dropped: bool = False
    fired: int = 0

    def drop_if(self, dropped: bool) -> None:
        """Forget the key, timers and all, or take note that it is in use."""
        self.dropped = dropped
        if dropped:
            self.moments.clear()


class Calls:
    """The calls of an operator's functions in one epoch: timers, rows, then what is due by then.

    Parameters
    ----------
    operator
        Its name.
    function, on_timer
        The user's.
    clock
        What timers go by; ``None``: there are none.
    """

    def __init__(
        self,
        operator: str,
        function: Callable[..., Any],
        on_timer: Callable[..., Any] | None,
        clock: TimerClock | None,
    ) -> None:
        self._operator, self._function = operator, function
        self._on_timer, self._clock = on_timer, clock

    def run(
        self,
        keys: list[tuple[Any, ...]],
        columns: Columns,
        starts: list[int],
        found: list[CalledKey],
        *,
        now: int,
        meter: Meter,
        state_of: Callable[[int], Any],
        done: Callable[[int], None] = lambda _: None,
    ) -> tuple[list[Any], list[int]]:
        """Call the functions for every key: rows, and how many there were after each key.

        Parameters
        ----------
        keys
            G keys.
        columns, starts
            Their rows, and where those of each begin.
        found
            What becomes of each; filled in.
        now
            The clock.
        meter
            Is told of every key group.
        state_of
            Gives the state of a key: before its first call, and after it was dropped.
        done
            Called after the last call for a key.
        """
        emitted: list[Any] = []
        ends: list[int] = []
        begin = 0
        for end in meter.ends:
            for group in range(begin, end):
                key, of_key, state = keys[group], found[group], state_of(group)
                timers = Timers(of_key.moments, now)
                emitted += self._fire(key, state, of_key, timers, now)
                first, last = starts[group], starts[group + 1]
                if first < last:
                    if of_key.dropped:
                        state = state_of(group)
                    rows = (
                        KeyRows(columns, first, last)
                        if self._clock is None
                        else TimedRows(columns, first, last, timers)
                    )
                    of_key.touched = True
                    emitted += self._called(self._function, key, rows, state)
                    of_key.drop_if(rows._dropped)  # noqa: SLF001 - for operators alone
                    emitted += self._fire(key, state, of_key, timers, now)
                ends.append(len(emitted))
                done(group)
            begin = end
            meter.lap()
        return emitted, ends

    def _fire(
        self, key: tuple[Any, ...], state: Any, of_key: CalledKey, timers: Timers, now: int
    ) -> list[Any]:
        emitted: list[Any] = []
        while of_key.moments and of_key.moments[0] <= now and not of_key.dropped:
            of_key.fired += 1
            if of_key.fired > _MOST_FIRED:
                raise UserFunctionError(
                    f"Operator {self._operator!r}: timers of key {key!r} fired {_MOST_FIRED} times "
                    "in one epoch, each at a moment that has passed.",
                    remedy="Set timers after timers.now, or return where there is nothing to do.",
                    operator=self._operator,
                    key=key,
                )
            fired = FiredTimer(_datetime(of_key.moments.pop(0)), timers)
            of_key.touched = True
            assert self._on_timer is not None, "an operator with timers has a function for them"
            emitted += self._called(self._on_timer, key, fired, state)
            of_key.drop_if(fired._dropped)  # noqa: SLF001 - for operators alone
        return emitted

    def _called(
        self, function: Callable[..., Any], key: tuple[Any, ...], what: Any, state: Any
    ) -> list[Any]:
        try:
            result = function(key, what, state)
            return [] if result is None else list(result)
        except BaseException as error:
            raise function_failed(self._operator, function, key, error) from error


def _datetime(moment: int) -> dt.datetime:
    return _EPOCH + moment * _MICROSECOND


def _microseconds(at: dt.datetime) -> int:
    if not isinstance(at, dt.datetime) or at != at:  # noqa: PLR0124 - pandas' NaT is a datetime
        msg = f"a timer is set to a datetime, not to {at!r}"
        raise TypeError(msg)
    if at.tzinfo is None:
        at = at.replace(tzinfo=dt.UTC)
    return (at - _EPOCH) // _MICROSECOND
