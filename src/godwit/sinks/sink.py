"""The contract of a sink: it gets every committed epoch's output, in order, perhaps twice.

Lanes stage an epoch's output; the commit record names what counts; only then is it delivered.
After a crash the last epoch is delivered again, with the very same rows, so a sink is exactly-once
when delivering an epoch for the second time changes nothing.

A sink's life: it is made with configuration only, and touches nothing.  `Sink.open` looks at the
target.  Then it may give lanes two things: a check, which finds rows that the target can never take
while the epoch can still be refused, and a writer, which writes the target's own files where the
rows are.  `Sink.deliver` comes once for every committed epoch, in order; `Sink.close` ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.checkpoint.staged_output import WrittenFile
    from godwit.plan.staging import LaneWriter, Rejections, RowCheck
    from godwit.sinks.committed import CommittedEpochs


class Views(Protocol):
    """Port by which a sink shows rows under a name, such as a temporary view of a Spark session."""

    def show(self, name: str, rows: pa.Table) -> None:
        """Create or replace the view `name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """Description of the query that a sink serves.

    Attributes
    ----------
    name
        The sink's name in the flow.
    writer
        Name that a target knows the sink by: the one it had first, whatever it is called today.
        What a target keeps of epochs, it keeps by `query_id` and this.
    flow
        The flow's name.
    query_id
        Identifier of the query, the same over restarts from one checkpoint.
    schema
        Columns of the rows it will get.
    keys
        Names of the key columns among them.
    unique_keys
        Sets of columns, each of which tells the rows of the result apart, widest first: the key
        columns, or these and the window. Empty where a later row replaces none, such as rows that a
        function emitted.
    mapped
        Whether maps run between the operator and the sink, so that a column may be of their making.
    complete
        Whether an epoch's output is the whole result (complete mode) or the changed keys.
    views
        Where it may show rows by a name.
    """

    name: str
    writer: str
    flow: str
    query_id: str
    schema: pa.Schema
    keys: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]
    mapped: bool
    complete: bool
    views: Views


class EpochOutput(Protocol):
    """Output of one epoch for one sink."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def point(self) -> HistoryPoint:
        """The epoch, and the history that it is of: what a target keeps with the rows."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows: those of the flow that made them, which may be an older one."""

    @property
    def num_rows(self) -> int:
        """Rows in all."""

    @property
    def complete(self) -> bool | None:
        """True if they are the whole result; ``None``: as `SinkContext.complete` says.

        A flow that was changed since may have made them otherwise.
        """

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a fixed order, less those in `files`."""

    def files(self) -> Sequence[WrittenFile]:
        """Return the files that lanes wrote to the sink's `target`."""

    def dataframe(self) -> DataFrame:
        """Return the rows as a DataFrame, read by the executors; not for sinks with a writer."""

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        """Pass rows that the target refuses to the sink of rejected rows.

        They take the place of those of an attempt before; none, where it refuses none any more.
        To be called once an epoch, before the rest is made to count: then an epoch that is
        delivered again diverts them again, which changes nothing.

        Raises
        ------
        SinkError
            If there is no such sink; names the row by its key, and says why.
        """


class Sink(ABC):
    """Destination of results. Instances hold configuration only until `open` is called."""

    @property
    def wants_rows(self) -> bool:
        """True if rows are staged at all; false for a sink that discards them."""
        return True

    @property
    def destination(self) -> str | None:
        """Place that rows go to, from configuration alone and without secrets.

        Two sinks with one destination write to one place. ``None`` if only the sink knows.
        """
        return None

    @property
    def target(self) -> str | None:
        """Path or URI that `lane_writer` writes to, without secrets."""
        return None

    @property
    def rejects(self) -> Sink | None:
        """Sink of the rows that the target cannot take; ``None``: they stop the epoch."""
        return None

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Check the target and prepare it, before the first epoch.

        Raises
        ------
        SinkError
            If the target cannot take these rows; says what to do.
        """

    @property
    def keeps_epochs(self) -> bool:
        """True if the target stores the last epoch it got (`last_delivered`)."""
        return False

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch of this writer in the target; ``None`` if it never had one.

        Called once the sink is open. Its digest is empty where the target does not say which
        history the epoch is of, and its epoch -1 where all that it had was taken back.
        """
        return None

    def cannot_roll_back(self) -> str | None:
        """Return why the target cannot remove epochs; ``None`` if it can."""
        return "the target keeps no epochs apart"

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Remove from the target what is not of the committed epochs.

        Parameters
        ----------
        epochs
            The committed epochs.
        min_epoch
            Up to this one nothing may go, since it does not come again; -1 for no such epoch. Of
            no account where an epoch's rows are the whole result.

        Raises
        ------
        SinkError
            If that cannot be done; the target is as it was.
        """
        raise NotImplementedError

    def continue_after(self, point: HistoryPoint) -> None:
        """Record the epochs up to a point as delivered, whatever the target has.

        Raises
        ------
        SinkError
            If that cannot be done.
        """
        raise NotImplementedError

    def row_check(self) -> RowCheck | None:
        """Return the check for rows that the target can never take; called after `open`."""
        return None

    def lane_writer(self) -> LaneWriter | None:
        """Return the writer of the target's files in lanes; called after `open`."""
        return None

    @abstractmethod
    def deliver(self, output: EpochOutput) -> None:
        """Write one committed epoch; changes nothing if that epoch is there already."""

    def close(self) -> None:
        """Release the resources that `open` acquired."""
        return
