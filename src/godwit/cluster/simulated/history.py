"""What a simulated run tells: one record an epoch, events, and exact delays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.cluster.simulated.delays import Delays
from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from godwit.model.events import Event
    from godwit.planning.arrays import FloatArray

__all__ = ["EpochRecord", "History"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """One committed epoch.

    Attributes
    ----------
    epoch, began_s, took_s
        Which, when, how long.
    rows
        Source rows that it took.
    lag_rows
        Rows that the source had when it ended and that no epoch had taken.
    waiting_rows
        Rows of suspended key groups.
    executors
        How many there were at its end.
    load_distance
        Largest distance of an executor's expected load per capacity from the mean, as a share of
        the mean; the worst level's. Draining executors are not counted (paper 2 §4.3.1).
    moved_bytes
        State read to warm copies since the epoch before, and to bring state forward in it.
    moves
        Key groups that run elsewhere than in the epoch before.
    delays
        Of source rows that were processed; each counts once for every component that takes it from
        the source.
    """

    epoch: int
    began_s: float
    took_s: float
    rows: int
    lag_rows: int
    waiting_rows: int
    executors: int
    load_distance: float
    moved_bytes: float
    moves: int
    delays: Delays

    @property
    def ended_s(self) -> float:
        """When it was committed."""
        return self.began_s + self.took_s


@dataclass(slots=True, kw_only=True)
class History:
    """A run so far.

    Attributes
    ----------
    epochs
        Those that were committed, in order.
    events
        What people were told, in order.
    aborted
        Attempts at epochs that came to nothing.
    """

    epochs: list[EpochRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    aborted: int = 0

    def column(self, name: str) -> FloatArray:
        """One number of every epoch: any attribute or property of `EpochRecord`."""
        return np.array([getattr(record, name) for record in self.epochs], np.float64)

    def between(self, from_s: float, to_s: float) -> History:
        """Epochs committed, and events that happened, from one time to another."""
        return History(
            epochs=[r for r in self.epochs if from_s <= r.ended_s < to_s],
            events=[e for e in self.events if from_s <= e.at_s < to_s],
        )

    def of_kind(self, *kinds: type[Event]) -> list[Any]:
        """Events of some kinds."""
        return [event for event in self.events if isinstance(event, kinds)]

    def delays(self) -> Delays:
        """How long source rows took."""
        return Delays.all_of([record.delays for record in self.epochs])

    def summary(self) -> dict[str, float]:
        """Return what a table has of a run; means of load distance and executors are over time.

        Raises
        ------
        InvalidProblemError
            If no epoch took any row.
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
