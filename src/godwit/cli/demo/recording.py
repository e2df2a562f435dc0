"""Record of a demo run: a figure for every epoch, every event, and the verdict.

The terminal, the picture and ``--json`` all show the same recording.  The verdict compares what the
stream delivered with one batch query over the same files.  Every column compared is exact (counts,
integer sums, extremes, and means that both sides divide from the same integers), so "equal" means
equal.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from godwit.model import events

__all__ = ["Comparison", "DemoEpoch", "Mark", "Recording", "compare", "newest_rows"]


Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of a result with the batch query's."""

    what: str  # which result
    rows: int  # rows of the batch query
    differences: tuple[str, ...]  # what differs, one sentence each, in order of keys

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return not self.differences


def newest_rows(delivered: pa.Table, keys: Sequence[str], *, epoch: str = "epoch") -> pa.Table:
    """Return the newest row of every key, of rows that carry the epoch that wrote them.

    Raises `ValueError` if one epoch delivered a key twice, so that "newest" would be ambiguous.
    """
    ordered = delivered.sort_by(epoch)
    last: dict[Key, tuple[int, int]] = {}
    columns = [ordered[name].to_pylist() for name in (*keys, epoch)]
    for row, (*key, number) in enumerate(zip(*columns, strict=True)):
        seen = last.get(tuple(key))
        if seen is not None and seen[0] == number:
            raise ValueError(f"epoch {number} delivered key {tuple(key)} twice")
        last[tuple(key)] = (number, row)
    return ordered.take([row for _, row in last.values()]).drop_columns([epoch])


def compare(what: str, streamed: pa.Table, batch: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare two tables row by row, matched by `keys`, on the columns of `batch`."""
    names = [name for name in batch.column_names if name not in keys]
    left, right = _by_key(streamed, keys, names), _by_key(batch, keys, names)
    differences = []
    if streamed.num_rows != len(left):
        differences.append(f"{streamed.num_rows - len(left)} keys are in the stream's rows twice")
    for key in sorted(left.keys() | right.keys(), key=repr):
        named = ", ".join(f"{k}={v!r}" for k, v in zip(keys, key, strict=True))
        if key not in left:
            differences.append(f"{named}: missing in the stream; batch has {right[key]}")
        elif key not in right:
            differences.append(f"{named}: only in the stream, which has {left[key]}")
        elif left[key] != right[key]:
            differences.append(f"{named}: stream has {left[key]}, batch has {right[key]}")
    return Comparison(what=what, rows=len(right), differences=tuple(differences))


def _by_key(
    table: pa.Table, keys: Sequence[str], names: Sequence[str]
) -> dict[Key, Mapping[str, Any]]:
    return {
        tuple(row[key] for key in keys): {name: row[name] for name in names}
        for row in table.select([*keys, *names]).to_pylist()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoEpoch:
    """One committed epoch."""

    epoch: int  # its number
    at_s: float  # when it was done, in seconds since the stream began
    # source rows, and those per second of the epoch
    rows: int
    rows_per_s: float
    duration_ms: float  # how long it took
    key_groups: Mapping[str, int]  # executor → key groups it owns, over all operators
    # key groups that are on their way, that have rows waiting, that do not run
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
    """Everything measured so far."""

    started_s: float  # when the stream began, on the clock of the events
    rows_in_all: int  # rows that there are to stream
    # in the order in which they happened
    epochs: list[DemoEpoch] = field(default_factory=list)
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
    ) -> DemoEpoch:
        """Note an epoch, from what the query says of it."""
        owned = dict.fromkeys(status["executors"], 0)
        for places in progress["keyGroups"].values():
            for executor, count in places.items():
                owned[executor] = owned.get(executor, 0) + count
        figures = DemoEpoch(
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
