"""History of a simulated run: one record an epoch, events, and exact delays of rows.

Rows are taken first in, first out, so a batch is a stretch of the curve of arrivals, and all its
rows leave together when their epoch commits.  A stretch of even arrival gives delays that are
evenly spread between its first and its last row's; quantiles of the whole are those of this mixture
of uniform distributions, without any error but rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from godwit.model.events import Event
    from godwit.placement.arrays import FloatArray

_TOGETHER_S = 1e-9
"""Rows that arrived within this time arrived together: a steeper slope would be rounding."""


class Delays:
    """Distribution of rows' delays, as stretches of even spread."""

    def __init__(self, pieces: FloatArray) -> None:
        # shape ``(n, 3)``: count of rows, least and greatest delay in seconds
        self.pieces: FloatArray = pieces[pieces[:, 0] > 0]

    @classmethod
    def of(cls, arrived: FloatArray, left_s: float) -> Delays:
        """Return the delays, from arrival to commit, of rows that are committed together.

        `arrived`: as `RowArrivals.pieces` returns it. `left_s`: time of the commit.
        """
        count, first, last = arrived.T
        return cls(np.column_stack((count, left_s - last, left_s - first)))

    @classmethod
    def all_of(cls, several: list[Delays]) -> Delays:
        """Merge the delays of several epochs."""
        return cls(np.concatenate([np.empty((0, 3)), *(d.pieces for d in several)]))

    @property
    def rows(self) -> float:
        """Number of rows."""
        return float(self.pieces[:, 0].sum())

    @property
    def mean_s(self) -> float:
        """Mean delay in seconds; NaN without rows."""
        count, least, most = self.pieces.T
        rows = count.sum()
        return float((count * (least + most)).sum() / (2 * rows)) if rows else float("nan")

    @property
    def greatest_s(self) -> float:
        """Greatest delay in seconds; NaN without rows."""
        return float(self.pieces[:, 2].max()) if len(self.pieces) else float("nan")

    def quantile_s(self, share: float) -> float:
        """Return the delay, in seconds, that `share` of the rows stay below; NaN without rows.

        The distribution function is piecewise linear with bends at the ends of the intervals of
        arrival, and jumps where rows arrived together.
        """
        if not len(self.pieces):
            return float("nan")
        count, least, most = self.pieces.T
        wide = most - least > _TOGETHER_S
        slope = count[wide] / (most - least)[wide]
        times = np.concatenate((least[wide], most[wide], least[~wide]))
        bend = np.concatenate((slope, -slope, np.zeros(int((~wide).sum()))))
        jump = np.concatenate((np.zeros(2 * len(slope)), count[~wide]))
        order = np.argsort(times, kind="stable")
        times, bend, jump = times[order], bend[order], jump[order]
        grown = np.cumsum(bend)[:-1] * np.diff(times)
        after = np.cumsum(jump) + np.concatenate(([0.0], np.cumsum(grown)))
        wanted = share * count.sum()
        k = int(np.searchsorted(after, wanted - 1e-9))
        if k >= len(times):
            return float(times[-1])
        before = after[k] - jump[k]
        if k == 0 or wanted >= before:
            return float(times[k])
        rise = before - after[k - 1]
        return float(times[k - 1] + (times[k] - times[k - 1]) * (wanted - after[k - 1]) / rise)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """Figures of one committed epoch."""

    epoch: int
    began_s: float
    took_s: float
    rows: int  # source rows that it took
    lag_rows: int  # rows that the source had when it ended and that no epoch had taken
    waiting_rows: int  # rows of suspended key groups
    executors: int  # how many there were at its end
    # largest distance of an executor's expected load per capacity from the mean, as a share of
    # the mean; the worst level's. Draining executors are not counted (paper 2 §4.3.1).
    load_distance: float
    # state read to warm copies since the epoch before, and to bring state forward in it
    moved_bytes: float
    moves: int  # key groups that run elsewhere than in the epoch before
    # of source rows that were processed; each counts once for every component that takes it from
    # the source
    delays: Delays

    @property
    def ended_s(self) -> float:
        """Time of the epoch's commit."""
        return self.began_s + self.took_s


@dataclass(slots=True, kw_only=True)
class History:
    """Epochs and events of a run so far."""

    epochs: list[EpochRecord] = field(default_factory=list)  # those that were committed, in order
    events: list[Event] = field(default_factory=list)  # what people were told, in order
    aborted: int = 0  # attempts at epochs that came to nothing

    def column(self, name: str) -> FloatArray:
        """Return one figure of every epoch; `name`: an attribute or property of `EpochRecord`."""
        return np.array([getattr(record, name) for record in self.epochs], np.float64)

    def between(self, from_s: float, to_s: float) -> History:
        """Return the epochs and events of a period: from `from_s`, and before `to_s`."""
        return History(
            epochs=[r for r in self.epochs if from_s <= r.ended_s < to_s],
            events=[e for e in self.events if from_s <= e.at_s < to_s],
        )

    def of_kind(self, *kinds: type[Event]) -> list[Any]:
        """Return the events of the given classes."""
        return [event for event in self.events if isinstance(event, kinds)]

    def delays(self) -> Delays:
        """Return the delays of the source rows of all epochs."""
        return Delays.all_of([record.delays for record in self.epochs])

    def summary(self) -> dict[str, float]:
        """Return the figures of a run by name, such as ``rows_per_s`` and ``delay_p99_s``.

        Load distance and number of executors are means over time. Raises `InvalidProblemError` if
        no epoch had rows.
        """
        took, rows = self.column("took_s"), self.column("rows")
        busy = took[rows > 0]
        if not len(busy):
            raise InvalidProblemError(
                "No row was taken: there is nothing to sum up.",
                remedy="Let the run be longer, or more rows arrive.",
                field="duration_s",
            )
        weight = took / took.sum()
        delays = self.delays()
        return {
            "epochs": len(took),
            "rows_per_s": float(rows.sum() / (self.epochs[-1].ended_s - self.epochs[0].began_s)),
            "epoch_ms": 1000 * float(np.median(busy)),
            "epoch_p99_ms": 1000 * float(np.quantile(busy, 0.99)),
            "delay_mean_s": delays.mean_s,
            "delay_p99_s": delays.quantile_s(0.99),
            "load_distance": float(weight @ self.column("load_distance")),
            "executors": float(weight @ self.column("executors")),
            "moves": float(self.column("moves").sum()),
            "moved_mb": float(self.column("moved_bytes").sum()) / 1e6,
            "lag_rows": float(self.epochs[-1].lag_rows),
        }
