"""The windows that users name: `tumbling`, `hopping` and `session`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.time_lengths import microseconds, spelled
from godwit.operators.windows.grid import PaneGrid, TimeWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.model.time_lengths import Duration

__all__ = ["Hopping", "Session", "WindowSpec", "grid_of", "hopping", "session", "tumbling"]

_MAX_PANES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopping:
    """Windows of one length that begin every so often; tumbling ones if they do not overlap.

    Attributes
    ----------
    window
        Length, frequency and offset.
    """

    window: TimeWindow

    def __str__(self) -> str:
        length, every = self.window.length_us, self.window.every_us
        text = f"tumbling {spelled(length)}"
        if every != length:
            text = f"hopping {spelled(length)} every {spelled(every)}"
        offset = self.window.offset_us
        return f"{text} from {spelled(offset)}" if offset else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Windows that end once a key has been silent for a while.

    Attributes
    ----------
    gap_us
        Two rows of one key that lie at most this apart are of one session.
    """

    gap_us: int

    def __str__(self) -> str:
        return f"session of gap {spelled(self.gap_us)}"


WindowSpec = Hopping | Session


@user_call
def tumbling(length: Duration, *, start: Duration = "0 seconds") -> Hopping:
    """Windows of one length that follow one another without overlap.

    Parameters
    ----------
    length
        Length of a window.
    start
        Windows begin at this much after 1970-01-01 00:00 UTC, plus a multiple of the length: with
        ``tumbling("1 day", start="6 hours")`` a day begins at six.

    Raises
    ------
    InvalidFlowError
        If the length is no positive length of time, or `start` is not shorter.

    Examples
    --------
    >>> str(tumbling("1 hour"))
    'tumbling 1 hour'
    """
    size = microseconds(length, "The length of a window", least=1)
    return Hopping(window=_window(size, size, start))


@user_call
def hopping(length: Duration, *, every: Duration, start: Duration = "0 seconds") -> Hopping:
    """Windows of one length that begin every so often and overlap.

    Parameters
    ----------
    length
        Length of a window.
    every
        How long after one window the next begins; at most the length.
    start
        As of `tumbling`, less than `every`.

    Raises
    ------
    InvalidFlowError
        If a length is no positive length of time, rows would fall between windows, or a window
        would be made of too many panes.

    Examples
    --------
    >>> str(hopping("6 hours", every="1 hour"))
    'hopping 6 hours every 1 hour'
    """
    size = microseconds(length, "The length of a window", least=1)
    step = microseconds(every, "The frequency of a window (every=)", least=1)
    if step > size:
        raise InvalidFlowError(
            f"Windows of {spelled(size)} every {spelled(step)} leave gaps, and rows in them would "
            "be lost.",
            remedy="Give every= at most the length of the windows.",
        )
    return Hopping(window=_window(size, step, start))


@user_call
def session(gap: Duration) -> Session:
    """Windows that hold the rows of a key for as long as no pause between two is longer than `gap`.

    A session begins with its first row and ends `gap` after its last.

    Raises
    ------
    InvalidFlowError
        If the gap is no positive length of time.

    Examples
    --------
    >>> str(session("10 minutes"))
    'session of gap 10 minutes'
    """
    return Session(gap_us=microseconds(gap, "The gap of a session", least=1))


def grid_of(specs: Sequence[Hopping], where: str) -> PaneGrid:
    """Make the panes that all these windows share.

    Raises
    ------
    InvalidFlowError
        If two windows are the same, or the longest would be made of too many panes.
    """
    windows = [spec.window for spec in specs]
    twice = [spec for i, spec in enumerate(specs) if spec.window in windows[:i]]
    if twice:
        raise InvalidFlowError(
            f"{where} has the window {str(twice[0])!r} twice.", remedy="Name each window once."
        )
    grid = PaneGrid.of(*windows)
    if grid.panes_per_window > _MAX_PANES:
        raise InvalidFlowError(
            f"{where} has windows whose lengths, frequencies and starts are all multiples of "
            f"{spelled(grid.width_us)} only, so the longest is made of {grid.panes_per_window} "
            "parts.",
            remedy="Choose lengths that divide one another, or a frequency that divides the "
            f"length; a window may have {_MAX_PANES} parts.",
        )
    return grid


def _window(length_us: int, every_us: int, start: Duration) -> TimeWindow:
    offset = microseconds(start, "The start of windows", least=0)
    if offset >= every_us:
        raise InvalidFlowError(
            f"The start of windows is {start!r}, but they begin every {spelled(every_us)} anyway.",
            remedy="Give a start that is shorter than that.",
        )
    return TimeWindow(length_us=length_us, every_us=every_us, offset_us=offset)
