"""The contract of a sink: it gets every committed epoch's output, in order, at least once.

Lanes stage an epoch's output; the commit record names the staged output that counts; only then is
it delivered. After a crash the last epoch is delivered again, with the same rows, so a sink is
exactly-once if the second delivery of an epoch changes nothing.

Life cycle: a sink is constructed with its configuration, without access to the target. Tests may
call `Sink.check_columns` and `Sink.check`, which change nothing. `Sink.open` checks and prepares
the target. Then the sink may give two objects to lanes: a check, which finds
rows that the target can never take, before the commit; and a writer, which writes the target's own
files in the lanes. `Sink.deliver` is called for every committed epoch, in order. `Sink.close` is
called last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from godwit.model.errors import SinkError
from godwit.model.frames import user_class
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from godwit.checkpoint.ownership import HistoryPoint, Relation
    from godwit.columns.signed import Kind
    from godwit.plan.staging import LaneWriter, Rejections, RowCheck, WrittenFile
    from godwit.time.durations import Duration


LANE_BYTES: Final = 2**20
"""Default of `lane_bytes`: the driver writes the rows of lanes that have fewer bytes for a sink."""

LANE_FILES: Final = 64
"""Default of `lane_files`: with more partitions, files of a lane must be `LANE_BYTES` large."""
MAX_PARTITIONS: Final = 10_000


class Views(Protocol):
    """Protocol of ``context.views``, by which a sink shows rows under a name.

    A sink gets the object in its `SinkContext`, as ``Sink.open(context)``. For a query on Spark,
    `show` creates a temporary view of that name in the query's Spark session.

    Examples
    --------
    >>> class Printed:
    ...     def show(self, name, rows):
    ...         print(name, rows.num_rows)
    >>> views: gw.sinks.Views = Printed()
    >>> views.show("by_plane", pa.table({"plane": ["N1"]}))
    by_plane 1
    """

    def show(self, name: str, rows: pa.Table) -> None:
        """Create or replace the view `name`, so that it has these rows.

        Examples
        --------
        >>> class Kept(dict):
        ...     def show(self, name, rows):
        ...         self[name] = rows
        >>> views = Kept()
        >>> views.show("by_plane", pa.table({"plane": ["N1"]}))
        >>> views["by_plane"].num_rows
        1
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """Description of the query and the rows that a sink is opened for.

    Attributes
    ----------
    name
        The sink's name in the flow.
    writer
        Name of the sink in its target: its first name in the flow, which stays when the sink is
        renamed. A target stores epochs under `query_id` and this.
    flow
        The flow's name.
    query_id
        Identifier of the query, the same over restarts from one checkpoint.
    schema
        Columns of the rows that it will get.
    keys
        Names of the key columns among them.
    unique_keys
        Sets of columns that identify a row of the result, the largest set first: the key columns,
        or these and the window. Empty if later rows replace no earlier ones, as for rows that a
        function emitted.
    mapped
        True if there are maps between the operator and the sink, which may have changed any column.
    complete
        True if an epoch's output is the whole result (complete mode); false if it is the changed
        rows.
    kind
        ``"changes"`` or ``"upserts"`` if the column ``change`` of `schema` is the sign of a row: 1,
        or -1 for a deleted one. ``"rows"``: every row is an event of its own.
    table_keys
        Columns that identify a row of the table whose changes these are; empty: not known.
    views
        Object by which the sink shows rows under a name, such as a temporary view of Spark.
    batches_before
        Number of batches of the Spark query that the flow continues from: epoch 1 is the next batch
        after them. 0 if it continues from none.

    Examples
    --------
    >>> class Checking(gw.sinks.Sink):
    ...     def open(self, context: gw.sinks.SinkContext):
    ...         self.writer = (context.query_id, context.writer)
    ...     def deliver(self, output):
    ...         pass
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
    batches_before: int = 0
    kind: Kind = "rows"
    table_keys: tuple[str, ...] = ()


class EpochOutput(Protocol):
    """Output of one epoch for one sink, as `Sink.deliver` gets it: epoch number, rows and files.

    Examples
    --------
    >>> def count(output: gw.sinks.EpochOutput) -> int:
    ...     return sum(batch.num_rows for batch in output.batches())
    """

    @property
    def epoch(self) -> int:
        """Number of the epoch."""

    @property
    def point(self) -> HistoryPoint:
        """The epoch with its history, to be stored with the rows."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows; an epoch of an earlier flow has that flow's columns."""

    @property
    def num_rows(self) -> int:
        """Number of rows, including those in `files`."""

    @property
    def complete(self) -> bool | None:
        """True if the rows are the whole result; ``None``: as in `SinkContext.complete`.

        It differs from the context if the flow was changed after the epoch was committed.
        """

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are not in `files`, in the same order at every call."""

    def files(self) -> Sequence[WrittenFile]:
        """Return the files of this epoch that lanes wrote to the sink's `target`."""

    def dataframe(self) -> DataFrame:
        """Return the rows as a Spark DataFrame; not for sinks with a `Sink.lane_writer`."""

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        """Send rows that the target refused to the sink of rejected rows.

        They replace the rows that an earlier attempt of this epoch diverted, so call it with an
        empty batch if none are refused any more. Call it once an epoch, before the target commits
        the other rows: then repeating a delivery changes nothing.

        Parameters
        ----------
        rows
            A batch that has the refused rows.
        rejections
            Positions of the refused rows in `rows`, and the reason of each.

        Raises
        ------
        SinkError
            If there is no such sink; the message has the first row's key and the reason.
        """


class CommittedEpochs(Protocol):
    """Port: committed epochs of a checkpoint (`godwit.checkpoint.commit_log.CommitLog`)."""

    @property
    def latest_epoch(self) -> int:
        """Number of the last committed epoch; -1 before the first."""

    @property
    def retained_epochs(self) -> range:
        """Epochs whose commit records are still there."""

    def point(self, epoch: int) -> HistoryPoint:
        """Return a retained epoch with its history and the digest of its commit record."""

    def relation(self, point: HistoryPoint) -> Relation:
        """Compare an epoch of some history, as a target has it, with this history."""

    def last_shared_epoch(self, point: HistoryPoint) -> int:
        """Return the last epoch shared with the history of a point; -1 if none is known."""


class Sink(ABC):
    """Base class of sinks: derive from it, and define `open` and `deliver`.

    `open` gets a `SinkContext` and prepares the target before the first epoch of a run; until then
    an instance has configuration only. `deliver` gets an `EpochOutput`, the rows of one committed
    epoch, and writes them; it must change nothing if the target has that epoch already.

    Examples
    --------
    >>> class Counting(gw.sinks.Sink):
    ...     def open(self, context):
    ...         self.rows = {}
    ...     def deliver(self, output):
    ...         self.rows[output.epoch] = output.num_rows  # twice is as good as once
    >>> Counting().delivers_concurrently  # deliver may not run beside the next epoch
    False
    """

    @property
    def wants_rows(self) -> bool:
        """False if lanes need not stage rows, since the sink discards them.

        Examples
        --------
        >>> gw.sinks.noop().wants_rows, gw.sinks.memory().wants_rows
        (False, True)
        """
        return True

    @property
    def destination(self) -> str | None:
        """Text that identifies the target, from configuration alone and without secrets.

        Used to find two sinks that write to the same place. ``None`` if it is unknown.

        Examples
        --------
        >>> gw.sinks.parquet("s3://bucket/out").destination
        's3://bucket/out'
        """
        return None

    @property
    def datasets(self) -> tuple[str, ...]:
        """URIs or absolute paths of the target, without secrets, for lineage; empty: unknown.

        By default `destination`, if it is one.

        Examples
        --------
        >>> gw.sinks.parquet("s3://bucket/out").datasets
        ('s3://bucket/out',)
        """
        target = self.destination or ""
        return (target,) if target.startswith("/") or "://" in target.partition(" ")[0] else ()

    @property
    def target(self) -> str | None:
        """Path or URI that `lane_writer` writes to, without secrets; ``None``: no writer.

        Examples
        --------
        >>> gw.sinks.parquet("s3://bucket/out").target
        's3://bucket/out'
        """
        return None

    @property
    def row_keys(self) -> tuple[str, ...]:
        """Columns by which the target tells rows apart, as far as the configuration says so.

        Rows of a stream without a key stay in order where these columns are equal.

        Examples
        --------
        >>> gw.sinks.postgres("host=db", "users", mode="upsert", keys=["id"]).row_keys
        ('id',)
        """
        return ()

    @property
    def delivers_concurrently(self) -> bool:
        """True if `deliver` may run on a thread of its own, while lanes work on the next epoch.

        Deliveries still do not overlap, and the next epoch is committed only after this delivery.
        It matters in flows over Godwit's own sources. Such a `deliver` must not use Spark, nor
        share anything with lanes.

        Examples
        --------
        >>> gw.sinks.memory().delivers_concurrently
        False
        """
        return False

    @property
    def maintenance(self) -> Maintenance | None:
        """Policy by which `maintain` is called beside the epochs; ``None``: never.

        Examples
        --------
        >>> gw.sinks.memory().maintenance is None
        True
        """
        return None

    def maintain(self) -> Maintained:
        """Compact the target and remove old versions, as far as the `maintenance` asks for it.

        Called on a thread of its own, while epochs are delivered, so it must not use what `deliver`
        uses. What it raises becomes an event.

        Examples
        --------
        >>> bool(gw.sinks.memory().maintain())
        False
        """
        return Maintained()

    @property
    def rejects(self) -> Sink | None:
        """Sink of the rows that the target cannot take; ``None``: such a row fails its epoch.

        Examples
        --------
        >>> rejected = gw.sinks.memory()
        >>> gw.sinks.parquet("out/", rejects=rejected).rejects is rejected
        True
        """
        return None

    def check_columns(self, context: SinkContext) -> None:  # noqa: B027  most check nothing
        """Raise if the sink's configuration does not fit the rows; without access to the target.

        ``gw.testing`` and ``flow.explain`` call it, before any epoch and perhaps while the sink is
        open for a query, so it must not change the sink. By default nothing is checked.

        Raises
        ------
        SinkError
            If `open` would fail for every target, as for an upsert of rows without keys.

        Examples
        --------
        >>> upserts = gw.sinks.delta("out/", mode="upsert")
        >>> delays.sink("raw", of_rows, upserts)
        >>> try:
        ...     gw.testing.run(delays, {"flights": ROWS})
        ... except gw.errors.SinkError as error:
        ...     print(error.message)
        Sink 'raw' is to upsert, but no columns identify its rows.
        """

    def check(self, context: SinkContext) -> RowCheck | None:  # noqa: ARG002  for others
        """Check what `open` checks, without changing target or sink; return the rows' check.

        Called by ``gw.testing`` with ``check_sinks=True``, after `check_columns`, perhaps while the
        sink is open for a query. By default nothing is checked. A sink of yours may look here
        whether its target can be reached, and has the columns.

        Returns
        -------
        RowCheck or None
            As `row_check`, which needs an open sink.

        Raises
        ------
        SinkError
            If the target cannot take rows with these columns, or cannot be reached.

        Examples
        --------
        >>> gw.testing.run(delays, {"flights": ROWS}, check_sinks=True).rows("by_plane").num_rows
        1
        """
        return None

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Check the target and prepare it; called before the first epoch of a run.

        `context`: the query and the columns of the rows.

        Raises
        ------
        SinkError
            If the target cannot take rows with these columns, or cannot be reached.
        """

    @property
    def keeps_epochs(self) -> bool:
        """True if the target stores the last epoch that it got, for `last_delivered`.

        Examples
        --------
        >>> gw.sinks.parquet("out/").keeps_epochs, gw.sinks.console().keeps_epochs
        (True, False)
        """
        return False

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch of this query and sink in the target; ``None`` if it has none.

        Called after `open`. The point's digest is empty if the target stores none; its epoch is -1
        if all epochs were rolled back.

        Examples
        --------
        >>> gw.sinks.console().last_delivered() is None
        True
        """
        return None

    def cannot_roll_back(self) -> str | None:
        """Return why the target cannot remove epochs that it has already; ``None`` if it can.

        Asked when the target has epochs that the checkpoint does not have. ``None`` allows
        ``flow.start(on_divergence="roll_back")``, which calls `roll_back`. By default a target
        cannot remove epochs.

        Examples
        --------
        >>> gw.sinks.console().cannot_roll_back()
        'the target keeps no epochs apart'
        """
        return "the target keeps no epochs apart"

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Remove the rows of epochs that are not committed in the checkpoint from the target.

        Parameters
        ----------
        epochs
            The epochs that are committed in the checkpoint.
        min_epoch
            Last epoch whose rows must stay, since it cannot be delivered again; -1: any may be
            removed. Ignored if each epoch's rows are the whole result.

        Raises
        ------
        SinkError
            If that is not possible; the target is unchanged then.
        """
        raise NotImplementedError

    def continue_after(self, point: HistoryPoint) -> None:
        """Record in the target that all epochs up to `point` are delivered, without checking.

        Raises
        ------
        SinkError
            If the target cannot be written.
        """
        raise NotImplementedError

    def row_check(self) -> RowCheck | None:
        """Return a check for rows that the target can never take, or ``None``; after `open`.

        The function is pickled and sent to lanes. It gets an Arrow batch, and returns the positions
        and reasons of such rows (`godwit.plan.staging.Rejections`) or ``None``; the rows go to the
        sink `rejects`.

        Examples
        --------
        >>> gw.sinks.console().row_check() is None
        True
        """
        return None

    def lane_writer(self) -> LaneWriter | None:
        """Return an object by which lanes (parallel tasks) write files of the target themselves.

        ``None``, the default: lanes write rows to the checkpoint, and `deliver` reads them from
        there. Called after `open`. Godwit's Parquet and Delta sinks have such an object; a sink of
        yours needs none.

        Examples
        --------
        >>> gw.sinks.console().lane_writer() is None
        True
        """
        return None

    @abstractmethod
    def deliver(self, output: EpochOutput) -> None:
        """Write one committed epoch to the target; must change nothing if the target has it.

        Called once per epoch, in order, and after a crash again for the last one. `output`: rows,
        epoch and files. An exception stops the query; the epoch is delivered again after the next
        start.
        """

    def close(self) -> None:
        """Release the resources that `open` acquired.

        Examples
        --------
        >>> gw.sinks.memory().close()
        """
        return


_MIN_BYTES = 2**20


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Policy by which a Delta or Iceberg sink maintains its table, beside the epochs.

    Maintenance changes no row, and nothing by which a sink finds its epochs. Each step is one
    commit to the table or deletes only files that no version of it names any more, so it may end
    anywhere, and another writer's commit makes a step give up, not the writer.

    Attributes
    ----------
    max_small_files
        Number of small files in a partition above which they are compacted.
    file_bytes
        Size of a compacted file; a file of less than half of it is small.
    retain
        Age at which versions of the table are removed, with the files that only they have;
        ``None``: never. Readers of the table's changes, roll-backs and time travel need versions:
        choose more than the longest pause of any of them.
    every
        Time from one look at the table to the next.

    Raises
    ------
    SinkError
        If a number is too small.
    InvalidControlError
        If a duration is none.

    Notes
    -----
    - **Exactly-once** stays: compaction is a commit that changes no row.
    - **Readers of changes** skip it (``dataChange`` false in Delta, the operation ``replace`` in
      Iceberg). But a reader that was away for longer than ``retain`` misses its version, and a
      roll-back past it is refused: choose ``retain`` longer than either.
    - **Other writers.** If one replaces the files meanwhile, the compaction gives up until the next
      look. Failures are events (``BackgroundFailed``); ``TargetMaintained`` has the result.

    Examples
    --------
    >>> weekly = gw.sinks.Maintenance(max_small_files=100, retain="7 days")
    >>> gw.sinks.delta("s3://bucket/by_plane", maintain=weekly)
    gw.sinks.delta('s3://bucket/by_plane', mode='append')
    """

    max_small_files: int = 64
    file_bytes: int = 128 * 2**20
    retain: Duration | None = "7 days"
    every: Duration = "10 minutes"

    def __post_init__(self) -> None:
        for name, least in (("max_small_files", 1), ("file_bytes", _MIN_BYTES)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SinkError(
                    f"The setting {name} of gw.sinks.Maintenance is {value!r}.",
                    remedy=f"Give a whole number of at least {least}.",
                )
        _ = self.every_s, self.retain_s

    @property
    def every_s(self) -> float:
        """Seconds from one look at the table to the next.

        Examples
        --------
        >>> gw.sinks.Maintenance(every="1 hour").every_s
        3600.0
        """
        return seconds(self.every, "every of gw.sinks.Maintenance")

    @property
    def retain_s(self) -> float | None:
        """Age in seconds at which versions are removed; ``None``: never.

        Examples
        --------
        >>> gw.sinks.Maintenance(retain="1 day").retain_s
        86400.0
        """
        if self.retain is None:
            return None
        return seconds(self.retain, "retain of gw.sinks.Maintenance", least_s=0.0)

    def is_small(self, size_bytes: int) -> bool:
        """Return whether a file is small.

        Examples
        --------
        >>> gw.sinks.Maintenance(file_bytes=2**21).is_small(2**20)
        False
        """
        return size_bytes < self.file_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """Result of a look at a table."""

    compacted: int = 0  # small files that were replaced
    written: int = 0  # files that replace them
    removed: int = 0  # files that were deleted with the versions that had them
    expired: int = 0  # versions that were removed

    def __bool__(self) -> bool:
        return any((self.compacted, self.written, self.removed, self.expired))

    def plus(self, other: Maintained) -> Maintained:
        """Return the sum of both."""
        return replace(
            self,
            compacted=self.compacted + other.compacted,
            written=self.written + other.written,
            removed=self.removed + other.removed,
            expired=self.expired + other.expired,
        )


def check_maintenance(sink: str, maintain: object) -> None:
    """Raise `SinkError` unless an option `maintain` of a sink is a policy or ``None``."""
    if maintain is not None and not isinstance(maintain, Maintenance):
        raise SinkError(
            f"The {sink} sink was given maintain={maintain!r}.",
            remedy="Give gw.sinks.Maintenance(...), or leave it out.",
        )
