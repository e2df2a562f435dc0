"""The cluster port: the engine's view of Spark, one process or the simulator.

Three worlds realize it: Spark's executors (`godwit.spark.cluster`), executors in this
process, and, for tests, anything that can call a function.  A cluster runs what it is told and
decides nothing: the coordinator says how components run, the instructor what lanes need, the commit
record what counts.

Invariants that a cluster keeps:

- lanes of an epoch get one instruction, and all rows of its batch or none; whoever is cut short
  raises, and has left nothing behind but files that nobody names;
- a local store is a cache: an executor that is new, or whose store is gone, starts from the
  checkpoint, and whatever background copies do or fail to do costs time only;
- output of an epoch is delivered in the order of epochs, and again if it is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from godwit.migration import Ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.checkpoint.records import BatchRef, CommitRecord, SinkRecord
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.lane.source_side import NumberedSplit
    from godwit.sources.source import Position

ROWS_HERE: Final = 10_000
BYTES_HERE: Final = 2**20
"""Rows and bytes that the driver reads itself, at most."""
_RowsT_co = TypeVar("_RowsT_co", covariant=True)
_RowsT_contra = TypeVar("_RowsT_contra", contravariant=True)


class AttemptLostError(Exception):
    """An attempt at an epoch failed for a transient reason, and is repeated.

    The epoch is attempted again at once: an executor was lost, say, and the next attempt is planned
    without it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One executor of a cluster."""

    name: str  # Spark's executor id, or local-<n>
    lanes: int  # that it runs: on Spark, its cores divided by spark.task.cpus
    location: str | None  # how a task's preferred location names it; None where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLook:
    """Time at which the sources were asked for a batch, and known arrivals of the batch's rows."""

    at_us: int  # Unix time, as all times here
    # source → the last time before it at which it was asked and had nothing new
    nothing_us: Mapping[str, int] = field(default_factory=dict)
    # source → earlier times, ascending, and rows beyond those of earlier batches that were there
    before: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    # source → rows of the batch before any maps, where that is known: `before` counts in those
    rows: Mapping[str, int] = field(default_factory=dict)
    # source → when parts of its rows, of like size, arrived, where the source says so
    arrived_us: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def with_others(self, others: SourceLook) -> SourceLook:
        """Return this observation merged with one of the batch's other sources."""
        return SourceLook(
            at_us=max(self.at_us, others.at_us),
            nothing_us={**self.nothing_us, **others.nothing_us},
            before={**self.before, **others.before},
            rows={**self.rows, **others.rows},
            arrived_us={**self.arrived_us, **others.arrived_us},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch(Generic[_RowsT_co]):
    """Source rows of an epoch: splits of Godwit's own sources, and rows that come another way."""

    ref: BatchRef  # what the commit record says of them: the same number and digest, the same rows
    splits: tuple[NumberedSplit, ...] = ()  # older rows of a source before newer ones
    # own source → its position before the batch; `ref` has those after it
    begins: Mapping[str, Position] = field(default_factory=dict)
    rows: _RowsT_co | None = None  # beside the splits, as the cluster reads them, if there are any
    look: SourceLook | None = None  # ``None``: they came when the epoch was planned

    @property
    def split_rows(self) -> int | None:
        """Number of rows in the splits; ``None`` if it is not known before they are read."""
        return _sum_if_known(numbered.split.rows for numbered in self.splits)

    @property
    def split_bytes(self) -> int | None:
        """Approximate stored size of the splits, in bytes; ``None`` if it is not known."""
        return _sum_if_known(numbered.split.size_bytes for numbered in self.splits)

    @property
    def has_few_rows(self) -> bool:
        """True if the splits are so small that the driver reads them itself."""
        rows, size_bytes = self.split_rows, self.split_bytes
        if rows is None or size_bytes is None:
            return False
        return rows <= ROWS_HERE and size_bytes <= BYTES_HERE

    @property
    def missing(self) -> dict[str, int]:
        """Own source → number of rows that it no longer has; only sources that lost any."""
        missing: dict[str, int] = {}
        for numbered in self.splits:
            if numbered.split.missing:
                so_far = missing.get(numbered.source, 0)
                missing[numbered.source] = so_far + numbered.split.missing
        return missing

    def rows_of(self, source: str) -> int | None:
        """Return the number of rows of an own source; ``None`` if it is not known yet."""
        return _sum_if_known(n.split.rows for n in self.splits if n.source == source)


def _sum_if_known(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of numbers; ``None`` if any of them is ``None``."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


class Cluster(Ports, Protocol[_RowsT_contra]):
    """Port to a cluster: stages, executors, delivery and clocks, beside the coordinator's ports."""

    @property
    def executors(self) -> Mapping[str, Executor]:
        """Name → live executor, as an immutable snapshot that is replaced on changes."""

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[_RowsT_contra] | None
    ) -> list[LaneReport]:
        """Run the source side and the lanes of every level of an epoch.

        Returns the reports of all lanes, one a lane and level, in any order; an error that a lane
        reports is raised by the loop. Without a batch there is no source side.

        Raises `AttemptLostError` if the epoch is to be attempted again, and anything else if the
        query is to fail.
        """

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        """Deliver a committed epoch to every sink.

        `again`: another run committed it, and may have delivered it.
        """

    def sink_records(self) -> Mapping[str, SinkRecord]:
        """Return sink → its description for the next commit record."""

    def wait_while_held(self) -> bool:
        """Wait briefly while epochs are held; return ``False`` to abort the epoch and retry later.

        May raise an error, which ends the query.
        """

    def now_us(self) -> int:
        """Return Unix time in microseconds: processing time."""

    def monotonic_us(self) -> int:
        """Return a monotonic time in microseconds, to measure how long sources have had no rows."""
