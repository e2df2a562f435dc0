"""The cluster port: the engine's view of Spark, one process or the simulator.

Implementations: Spark's executors (`godwit.spark.cluster`), executors in this process, and fakes of
tests.  A cluster runs
instructions and decides nothing: the coordinator decides how components run, the instructor builds
the lanes' instructions, the commit record names the files that count.

Invariants that a cluster keeps:

- lanes of an epoch get one instruction, and all rows of its batch or none; an interrupted attempt
  raises and leaves only unreferenced files;
- a local store is a cache: an executor that is new, or whose store is gone, starts from the
  checkpoint, and late or failed background copies cost time only;
- output is delivered in the order of epochs, and again on request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from godwit.migration.coordinator import Ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.checkpoint.records import BatchRef, CommitRecord, SinkRecord
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.lane.source_side import NumberedSplit
    from godwit.sources.source import Position

ROWS_HERE: Final = 50_000
BYTES_HERE: Final = 2**20
"""Maximum rows and bytes of own sources that the driver reads itself."""
_RowsT_co = TypeVar("_RowsT_co", covariant=True)
_RowsT_contra = TypeVar("_RowsT_contra", contravariant=True)


class AttemptLostError(Exception):
    """An attempt at an epoch failed for a transient reason, and is retried at once.

    For example, an executor was lost; the next attempt is planned without it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One executor of a cluster."""

    name: str  # Spark's executor id, or local-<n>
    lanes: int  # on Spark: its cores divided by spark.task.cpus
    location: str | None  # its name as a task's preferred location, if it has one


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLook:
    """Time of a poll of the sources, and known arrivals of the batch's rows."""

    at_us: int  # Unix time, as all times here
    # source → last earlier time at which it was polled and had no new rows
    nothing_us: Mapping[str, int] = field(default_factory=dict)
    # source → earlier times, ascending, and its rows at each, beyond those of earlier batches
    before: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    # source → rows of the batch before any maps, if known: the unit of `before`
    rows: Mapping[str, int] = field(default_factory=dict)
    # source → arrival times of parts of its rows of equal size, if the source has them
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
    """Source rows of an epoch: splits of Godwit's own sources, and other rows."""

    ref: BatchRef  # stored in the commit record: equal number and digest mean equal rows
    splits: tuple[NumberedSplit, ...] = ()  # older rows of a source before newer ones
    # own source → its position before the batch; `ref` has those after it
    begins: Mapping[str, Position] = field(default_factory=dict)
    rows: _RowsT_co | None = None  # besides the splits, in the cluster's form, if any
    look: SourceLook | None = None  # ``None``: rows arrived when the epoch was planned

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

        Returns the reports of all lanes, one per lane and level, in any order; an error in a report
        is raised by the loop. Without a batch, the source side does not run.

        Raises `AttemptLostError` if the attempt must be retried, and another error if the query
        must fail.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """State of the pool of executors."""

    pending: int = 0  # executors that were asked for, are not there yet and may still come
    # executors that the cluster can ever give this application; ``None`` where it does not say
    most: int | None = None
    # why executors can never be added or removed; empty where they can
    fixed: str = ""
    # why the last ones that were asked for do not come; empty where nothing was refused
    refused: str = ""
    # why the last ones that were given back are there anyway; empty where they are not
    not_returned: str = ""


class ExecutorPool(Protocol):
    """Adds and removes executors; each call records the request and returns at once.

    An executor that comes joins the coordinator's view, and a lost one leaves it; the pool reports
    nothing else to the controller.
    """

    @property
    def view(self) -> PoolView:
        """Present state of the pool, as a value."""

    def add(self, count: int) -> None:
        """Request `count` more executors from the cluster manager."""

    def remove(self, executors: Sequence[str]) -> None:
        """Return executors to the cluster, which own no key group any more."""
