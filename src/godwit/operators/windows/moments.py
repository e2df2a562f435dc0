"""What lanes are told of event time in an epoch, and what they report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from godwit.columns.arrays import mask_of, values_of
from godwit.operators.windows.grid import BEGINNING, END

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from godwit.operators.windows.slots import Slots

__all__ = [
    "NO_ARRIVALS",
    "NO_TIME",
    "Arrivals",
    "Due",
    "OperatorTime",
    "RowTime",
    "SourceTime",
    "WindowWork",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """Event time of a source; all in microseconds.

    Attributes
    ----------
    column
        Name of the column that holds it.
    slack_us
        How far the watermark stays behind the greatest event time.
    max_ahead_us
        Rows further ahead of the clock than this are left out.
    idle_us
        A source without rows for this long holds nobody back; ``None``: it always does.
    """

    column: str
    slack_us: int
    max_ahead_us: int
    idle_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTime:
    """Where a row's event time is.

    Attributes
    ----------
    column
        Name of the column.
    is_end
        Whether it is the end of a window, which the row's time is just before.
    is_told
        Whether lanes tell how far it has come, since no watermark does.
    """

    column: str
    is_end: bool = False
    is_told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """Event time of one operator in one epoch; all in microseconds since 1970-01-01 UTC.

    Attributes
    ----------
    closed
        Windows that end by then were closed by earlier epochs: rows that belong to no other are
        late. It is the watermark that the last epoch closed windows by.
    until
        Windows that end by then are closed at the end of this epoch.
    not_after
        Rows later than this are too far ahead of the clock, of each input by its number.
    clock
        The driver's clock.
    due
        Whether timers or expiries of some keys may be due.
    duplicated
        Whether rows go to a state of every window that holds them, and not to that of their pane.
    slots
        Where windows are consolidated apart: which slot of each key group takes rows.
    """

    closed: int = BEGINNING
    until: int = BEGINNING
    not_after: tuple[int, ...] = ()
    clock: int = BEGINNING
    due: bool = False
    duplicated: bool = False
    slots: Slots | None = None

    def latest(self, given: int) -> int:
        """Rows of an input that are later than this are too far ahead of the clock."""
        return self.not_after[given] if given < len(self.not_after) else END


NO_TIME: Final = OperatorTime()
"""Of an operator that has no event time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The earliest moments at which keys of an operator have something to do; `END`: none.

    Attributes
    ----------
    event
        By event time.
    clock
        By the driver's clock.
    """

    event: int = END
    clock: int = END

    def is_due(self, time: OperatorTime) -> bool:
        """Whether the earliest of them are due in an epoch."""
        return self.event <= time.until or self.clock <= time.clock

    def __or__(self, other: Due) -> Due:
        """Give the earlier of each."""
        return Due(event=min(self.event, other.event), clock=min(self.clock, other.clock))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What was found while rows were sent on their way; sums, but for moments.

    Attributes
    ----------
    newest
        Number of a watermark whose rows came → the greatest event time of those that were not too
        far ahead; `BEGINNING` if there were none.
    late, ahead, untimed
        Rows that were left out: too late for every window, too far ahead of the clock, without an
        event time.
    reached
        Greatest event time of the rows that count, where no watermark tells it; else `BEGINNING`.
    """

    newest: Mapping[int, int] = field(default_factory=dict)
    late: int = 0
    ahead: int = 0
    untimed: int = 0
    reached: int = BEGINNING

    @classmethod
    def of(cls, watermark: int, times: pa.Array, not_after: int) -> Arrivals:
        """Find the newest of the event times that move a watermark, but for those too far ahead."""
        values, mask = values_of(times), mask_of(times)
        counts = values <= not_after
        if mask is not None:
            counts &= mask
        return cls(newest={watermark: int(np.max(values, where=counts, initial=BEGINNING))})

    def __add__(self, other: Arrivals) -> Arrivals:
        """Join what was found in two places."""
        newest = dict(self.newest)
        for source, moment in other.newest.items():
            newest[source] = max(newest.get(source, BEGINNING), moment)
        return Arrivals(
            newest=newest,
            late=self.late + other.late,
            ahead=self.ahead + other.ahead,
            untimed=self.untimed + other.untimed,
            reached=max(self.reached, other.reached),
        )


NO_ARRIVALS: Final = Arrivals()
"""Where nothing was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWork:
    """What a lane did for windows in an epoch, where state per window would do as well.

    Attributes
    ----------
    panes
        Start of a pane → keys of the epoch's rows in it.
    keys
        Distinct keys of the epoch's rows, or, if these are more, of a window that closed.
    written, write_ms
        Entries of state that changed, and CPU time for them.
    spread, spread_ms
        Partial states that went to windows, one for each, and CPU time for them.
    scanned, scan_ms
        Entries that were read because windows closed, and CPU time for it.
    merged, merge_ms
        Keys in the parts that windows were made of, and CPU time for it.
    """

    panes: Mapping[int, int]
    keys: int
    written: int
    write_ms: float
    spread: int
    spread_ms: float
    scanned: int
    scan_ms: float
    merged: int
    merge_ms: float
