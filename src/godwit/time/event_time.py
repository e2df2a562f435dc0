"""Event time of an epoch, as lanes get and report it."""

from __future__ import annotations

import time as cpu_clock
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from godwit.columns.arrays import mask_of, values_of
from godwit.columns.python_values import LAST
from godwit.time.grid import BEGINNING, END

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt
    import pyarrow as pa

    from godwit.operators.hot_keys import Spreads
    from godwit.operators.slots import Slots

_SAMPLE: Final = 0xF  # one hash in sixteen


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWatermark:
    """Rule for the watermark of a whole query, as Spark has it."""

    policy: Literal["min", "max"]  # the lowest of all sources, or the greatest
    # source → the call that set its watermark: sources of one call, as of a stream that is joined
    # with itself, have the greatest of their watermarks together
    calls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """Event time of a source; all in microseconds."""

    column: str  # name of the column that holds it
    slack_us: int  # how far the watermark stays behind the greatest event time
    max_ahead_us: int  # rows further ahead of the clock than this are left out
    # After this long without rows a source is idle: it holds no watermark back; ``None``: never.
    idle_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTime:
    """The column of a row's event time."""

    column: str
    is_end: bool = False  # whether it is the end of a window, which the row's time is just before
    is_reported: bool = False  # whether lanes tell how far it has come, since no watermark does


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
    ended: bool = False  # whether no row will come any more, so that every event-time timer is due
    # Whether rows go to a state of every window that holds them, and not to that of their pane.
    duplicated: bool = False
    # Windows that ended after this and stay for later ones are there; `END`: none are.
    kept_since: int = END
    # Of two-phase windows: which slot of each key group takes rows.
    slots: Slots | None = None
    spreads: Spreads | None = None  # of an operator that spreads hot keys: which, and how

    @property
    def timers_until(self) -> int:
        """Event time up to and including which timers are due at the end of this epoch.

        A timer is due once the watermark is past it: at the watermark itself rows may still come.
        """
        return LAST if self.ended else self.until - 1

    def max_event_time(self, input_number: int) -> int:
        """Return the event time above which rows of an input are too far ahead of the clock."""
        return self.not_after[input_number] if input_number < len(self.not_after) else END


NO_TIME: Final = EpochTime()
"""Time of an operator that has no event time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Earliest due times of an operator's timers and expiries; `END`: none."""

    event: int = END  # by event time
    clock: int = END  # by the driver's clock

    def is_due(self, time: EpochTime) -> bool:
        """Return whether a timer or expiry is due by the end of an epoch."""
        return self.event <= time.timers_until or self.clock <= time.clock

    def __or__(self, other: Due) -> Due:
        """Return the earlier of each."""
        return Due(event=min(self.event, other.event), clock=min(self.clock, other.clock))


NOTHING_DUE: Final = Due()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Maximum event times and numbers of rows left out, as reported by a sender."""

    # Number of a watermark whose rows came → the greatest event time of those that were not too far
    # ahead; `BEGINNING` if there were none.
    newest: Mapping[int, int] = field(default_factory=dict)
    late: int = 0  # rows that were left out, since they were too late for every window
    ahead: int = 0  # likewise, too far ahead of the clock
    untimed: int = 0  # likewise, without an event time
    # Greatest event time of the rows that count, where no watermark tells it; else `BEGINNING`.
    reached: int = BEGINNING

    @classmethod
    def of(cls, watermark: int, times: pa.Array, not_after: int) -> Arrivals:
        """Return the maximum of event times up to `not_after`, for watermark number `watermark`."""
        values, mask = values_of(times), mask_of(times)
        counts = values <= not_after
        if mask is not None:
            counts &= mask
        return cls(newest={watermark: int(np.max(values, where=counts, initial=BEGINNING))})

    def __add__(self, other: Arrivals) -> Arrivals:
        """Add what two places report."""
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
"""No row left out, and no event time reached."""


@dataclass(slots=True, kw_only=True)
class WindowWork:
    """Work of a lane for windows in an epoch, by kind, for the choice of shared panes.

    Times are of CPU.
    """

    # Start of a pane → keys of the epoch's rows in it.
    panes: Mapping[int, int] = field(default_factory=dict)
    # Distinct keys of the epoch's rows, or, if these are more, of a window that closed.
    keys: int = 0
    # Entries of state that changed.
    written: int = 0
    write_ms: float = 0.0
    # Partial states that went to windows, one for each.
    spread: int = 0
    spread_ms: float = 0.0
    # Entries that were read because windows closed.
    scanned: int = 0
    scan_ms: float = 0.0
    # Keys in the parts that windows were made of.
    merged: int = 0
    merge_ms: float = 0.0

    @contextmanager
    def timing(self, kind: Literal["write", "spread", "scan"]) -> Iterator[None]:
        """Context that adds the CPU time spent in it to one kind of work."""
        cpu = cpu_clock.process_time()
        yield
        name = f"{kind}_ms"
        setattr(self, name, getattr(self, name) + (cpu_clock.process_time() - cpu) * 1e3)

    def count_keys(self, panes: pa.Array, hashes: npt.NDArray[np.int64]) -> None:
        """Record the number of keys with rows in the epoch, per pane and (estimated) in total."""
        different, counts = np.unique(values_of(panes), return_counts=True)
        self.panes = dict(zip(different.tolist(), counts.tolist(), strict=True))
        sampled = hashes[(hashes >> 32) & _SAMPLE == 0]
        largest = max(counts.tolist(), default=0)
        self.keys = max(self.keys, largest, len(np.unique(sampled)) * (_SAMPLE + 1))
