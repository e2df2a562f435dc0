"""Event time of an epoch, as lanes get it, and what they report of it."""

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
    "EpochTime",
    "RowTime",
    "SourceTime",
    "WindowWork",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """Event time of a source; all in microseconds."""

    column: str  # name of the column that holds it
    slack_us: int  # how far the watermark stays behind the greatest event time
    max_ahead_us: int  # rows further ahead of the clock than this are left out
    # A source without rows for this long holds nobody back; ``None``: it always does.
    idle_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTime:
    """Where a row's event time is."""

    column: str  # name of the column
    is_end: bool = False  # whether it is the end of a window, which the row's time is just before
    is_told: bool = False  # whether lanes tell how far it has come, since no watermark does


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTime:
    """Event time of one operator in one epoch; all in microseconds since 1970-01-01 UTC."""

    # Windows that end by then were closed by earlier epochs: rows that belong to no other are late.
    # It is the watermark that the last epoch closed windows by.
    closed: int = BEGINNING
    until: int = BEGINNING  # windows that end by then are closed at the end of this epoch
    # Rows later than this are too far ahead of the clock, of each input by its number.
    not_after: tuple[int, ...] = ()
    clock: int = BEGINNING  # the driver's clock
    due: bool = False  # whether timers or expiries of some keys may be due
    # Whether rows go to a state of every window that holds them, and not to that of their pane.
    duplicated: bool = False
    # Where windows are consolidated apart: which slot of each key group takes rows.
    slots: Slots | None = None

    def latest(self, given: int) -> int:
        """Rows of an input that are later than this are too far ahead of the clock."""
        return self.not_after[given] if given < len(self.not_after) else END


NO_TIME: Final = EpochTime()
"""Of an operator that has no event time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The earliest moments at which keys of an operator have something to do; `END`: none."""

    event: int = END  # by event time
    clock: int = END  # by the driver's clock

    def is_due(self, time: EpochTime) -> bool:
        """Whether the earliest of them are due in an epoch."""
        return self.event <= time.until or self.clock <= time.clock

    def __or__(self, other: Due) -> Due:
        """Give the earlier of each."""
        return Due(event=min(self.event, other.event), clock=min(self.clock, other.clock))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What was found while rows were sent on their way; sums, but for moments."""

    # Number of a watermark whose rows came → the greatest event time of those that were not too far
    # ahead; `BEGINNING` if there were none.
    newest: Mapping[int, int] = field(default_factory=dict)
    # late, ahead, untimed: rows that were left out: too late for every window, too far ahead of the
    # clock, without an event time
    late: int = 0
    ahead: int = 0
    untimed: int = 0
    # Greatest event time of the rows that count, where no watermark tells it; else `BEGINNING`.
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
    """What a lane did for windows in an epoch, where state per window would do as well."""

    panes: Mapping[int, int]  # start of a pane → keys of the epoch's rows in it
    keys: int  # distinct keys of the epoch's rows, or, if these are more, of a window that closed
    # written, write_ms: entries of state that changed, and CPU time for them
    written: int
    write_ms: float
    # spread, spread_ms: partial states that went to windows, one for each, and CPU time for them
    spread: int
    spread_ms: float
    # scanned, scan_ms: entries that were read because windows closed, and CPU time for it
    scanned: int
    scan_ms: float
    # merged, merge_ms: keys in the parts that windows were made of, and CPU time for it
    merged: int
    merge_ms: float
