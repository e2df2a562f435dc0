"""What a demo run leaves behind: a figure for every epoch, every event, the verdict.

The terminal, the picture and ``--json`` all show the same recording.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model import events

__all__ = ["EpochFigures", "Mark", "Recording"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """One committed epoch.

    Attributes
    ----------
    epoch
        Its number.
    at_s
        When it was done, in seconds since the stream began.
    rows, rows_per_s
        Source rows, and those per second of the epoch.
    duration_ms
        How long it took.
    key_groups
        Executor → key groups it owns, over all operators.
    in_flight, waiting, suspended
        Key groups that are on their way, that have rows waiting, that do not run.
    """

    epoch: int
    at_s: float
    rows: int
    rows_per_s: float
    duration_ms: float
    key_groups: Mapping[str, int]
    in_flight: int
    waiting: int
    suspended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment worth a line in the picture: `label` at `at_s` seconds."""

    at_s: float
    label: str


@dataclass(slots=True, kw_only=True)
class Recording:
    """Everything measured so far.

    Attributes
    ----------
    started_s
        When the stream began, on the clock of the events.
    rows_in_all
        Rows that there are to stream.
    epochs, marks, told
        In the order in which they happened.
    """

    started_s: float
    rows_in_all: int
    epochs: list[EpochFigures] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    told: list[events.Event] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Source rows committed so far."""
        return sum(epoch.rows for epoch in self.epochs)

    @property
    def executors(self) -> list[str]:
        """Every executor that ever owned key groups or was there to, in the order of names."""
        names = {name for epoch in self.epochs for name in epoch.key_groups}
        return sorted(names, key=lambda name: (len(name), name))

    def mark(self, label: str, at_s: float) -> None:
        """Note a moment, given on the clock of the events."""
        self.marks.append(Mark(at_s=at_s - self.started_s, label=label))

    def add_epoch(
        self, progress: Mapping[str, Any], status: Mapping[str, Any], at_s: float
    ) -> EpochFigures:
        """Note an epoch, from what the query says of it."""
        owned = dict.fromkeys(status["executors"], 0)
        for places in progress["keyGroups"].values():
            for executor, count in places.items():
                owned[executor] = owned.get(executor, 0) + count
        figures = EpochFigures(
            epoch=progress["epoch"],
            at_s=at_s - self.started_s,
            rows=progress["numInputRows"],
            rows_per_s=progress["processedRowsPerSecond"],
            duration_ms=progress["durationMs"]["epoch"],
            key_groups=owned,
            in_flight=status["keyGroupsInFlight"],
            waiting=progress["waitingKeyGroups"],
            suspended=status["keyGroupsSuspended"],
        )
        self.epochs.append(figures)
        return figures

    def median_ms(self) -> float:
        """Median epoch time without the first epoch, which also starts Python processes."""
        of = sorted(epoch.duration_ms for epoch in self.epochs[1:])
        return of[len(of) // 2] if of else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows_in_all": self.rows_in_all,
            "rows": self.rows,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "marks": [asdict(mark) for mark in self.marks],
            "events": [event.to_dict() for event in self.told],
        }
