"""The contract of a source: the driver keeps positions, and any process reads splits.

A position is how far a query has read, such as an offset for each partition. It is a plain value in
the commit record of the epoch that read up to it, and there is no other log: after a crash the
query continues from the position of its last committed epoch. For every epoch the driver asks the
source how far the epoch may read (`Source.latest`), and divides the rows between the two positions
into splits (`Source.splits`). Any process may read a split (`Source.read`), several times, in any
order, and concurrently.

*The rule*: the same split gives the same rows, in the same order, or an error. After an executor is
lost, its splits are read again while other lanes have rows of the first attempt; a source that
cannot give the same rows again has to raise.

Life cycle: a source is constructed with its configuration, without access to the data.
`Source.open` accesses it, on the driver. All other methods are called by one thread on the driver,
except `Source.read`, which is called on pickled copies of the source in other processes, without
`open`. `Source.close` is called last. If the same flow is started again in one process, the source
is opened again.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from godwit.model.errors import InvalidFlowError, SourceError
from godwit.model.naming import type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from godwit.columns.signed import Kind

Position: TypeAlias = Any
"""Progress in a source: a number, text, bytes, ``None``, or lists and dicts of these."""

_MAX_REPORTS: Final = 1000  # of a source that nothing takes them from


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Part of the rows of an epoch that one task reads.

    Attributes
    ----------
    rows
        Number of rows; ``None`` if it is not known before reading.
    size_bytes
        Approximate number of stored bytes; ``None`` if unknown. An epoch with few rows and bytes is
        read on the driver, which saves a Spark stage.
    what
        Text that names the rows in errors and plans, such as a file and its row groups.
    payload
        Any picklable value from which `Source.read` knows what to read, such as a path and the
        numbers of row groups; or the rows themselves.
    arrived_us
        Arrival times of the rows, in microseconds of Unix time, such as the modification time of
        each file; every time stands for an equal share of the rows. Latency is measured from them.
        Empty if they are unknown, or if the rows have them in the column `Source.arrival_time`.
    exact
        ``True``: the split has exactly `rows` rows; ``False``: at most, as between two offsets of a
        log with gaps (offsets that have no row).
    missing
        Number of rows that the source has lost and that the user chose to skip, such as messages
        that retention deleted. They are counted as unreadable when the epoch is committed.

    Examples
    --------
    >>> split = gw.sources.Split(rows=2, size_bytes=16, what="numbers 0 to 1", payload=(0, 2))
    >>> split.what
    'numbers 0 to 1'
    """

    rows: int | None
    size_bytes: int | None
    what: str
    payload: Any
    exact: bool = True
    arrived_us: tuple[int, ...] = ()
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of a query behind the end of a source.

    Attributes
    ----------
    rows
        Number of available rows that are not read yet; ``None`` if unknown.
    size_bytes
        Stored bytes of these rows; ``None`` if unknown.
    oldest_us
        Arrival time of the oldest of these rows, in microseconds of Unix time; ``None`` if there
        are none, or it is unknown.

    Examples
    --------
    >>> gw.sources.Lag(rows=120, oldest_us=1_700_000_000_000_000).rows
    120
    """

    rows: int | None = None
    size_bytes: int | None = None
    oldest_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Rows of a split that could not be read; `Source.read` yields this in their place.

    The event `godwit.events.RowsUnreadable` and a metric report their number. If the source has a
    sink `Source.rejects`, they are written to it, together with the results of their epoch.

    Attributes
    ----------
    rows
        One row for each row that could not be read, such as its bytes and the error, with the
        columns of `Source.unreadable`.

    Examples
    --------
    >>> rejected = pa.record_batch({"line": ["{"], "reason": ["no JSON"]})
    >>> gw.sources.Unreadable(rows=rejected).rows.num_rows
    1
    """

    rows: pa.RecordBatch


def check_on_bad(where: str, on_bad: str, rejects: object) -> None:
    """Raise `InvalidFlowError` if `on_bad` is unknown, or does not fit the sink `rejects`.

    `where`: the source or sink, for errors.
    """
    if on_bad not in {"refuse", "skip", "divert"}:
        raise InvalidFlowError(
            f"{where}: on_bad={on_bad!r} is not known.",
            remedy='Give "refuse", "skip" or "divert".',
        )
    if (rejects is None) == (on_bad == "divert"):
        raise InvalidFlowError(
            f"{where}: on_bad={on_bad!r} and rejects={rejects!r} contradict each other.",
            remedy='Give both on_bad="divert" and a sink as rejects=, or neither.',
        )


class Source(ABC):
    """Base class of sources for ``flow.source(name, source)``; derive from it to write your own.

    Define `schema`, `identity`, `start`, `latest`, `splits` and `read`; the other methods have
    defaults. A *position* is where an epoch begins or ends in the input, such as an offset: a
    number, text, bytes, ``None``, or lists and dicts of these. An epoch reads the rows between two
    positions, and its commit record stores the second one, from which a restarted query continues.

    The driver calls all methods but `read`, which is called on pickled copies of the source in any
    process. Check a source of your own by `godwit.testing.check_source`.

    Attributes
    ----------
    arrival_time
        Name of the timestamp column with a row's arrival time at the source, such as a broker's
        timestamp, from which latency is measured; ``None`` if there is none.
    trace_headers
        Name of a column with the headers of messages, a list of structs of ``key`` and ``value``,
        whose header ``traceparent`` is the W3C trace context of the row; ``None`` if there is none.
        The trace of an epoch links to some of them, if there is an `arrival_time` too.
    kind
        ``"rows"``; ``"changes"`` or ``"upserts"`` if the rows are changes of a table, with a column
        ``change`` (int8): 1 for a row that is inserted, -1 for one that is deleted.
    table_keys
        Columns that identify a row of the table, if `kind` is not ``"rows"``.
    unreadable
        Columns of `Unreadable.rows`; ``None`` if `read` never yields `Unreadable`.
    rejects
        Sink of unreadable rows; ``None``: they are only counted. Used on the driver only, so copies
        that read splits need not have it.

    Examples
    --------
    >>> class Numbers(gw.sources.Source):
    ...     schema = pa.schema([("n", pa.int64())])
    ...     identity = "numbers"
    ...     def start(self):
    ...         return 0
    ...     def latest(self, position, *, limit=None, until=None):
    ...         end = 100 if until is None else until
    ...         return end if limit is None else min(end, position + limit)
    ...     def splits(self, begin, end, parallelism):
    ...         size = end - begin
    ...         payload = (begin, end)
    ...         split = gw.sources.Split(rows=size, size_bytes=8 * size, what="n", payload=payload)
    ...         return [split] if size else []
    ...     def read(self, split, columns):
    ...         yield pa.record_batch({"n": list(range(*split.payload))})
    >>> flow = gw.Flow("numbers")
    >>> numbers = flow.source("numbers", Numbers()).key_by("n").compute(times=gw.count())
    >>> flow.sink("numbers", numbers, gw.sinks.noop())
    >>> gw.testing.run(flow).rows("numbers").num_rows
    100
    """

    arrival_time: str | None = None
    trace_headers: str | None = None
    kind: Kind = "rows"
    table_keys: tuple[str, ...] = ()
    unreadable: pa.Schema | None = None
    rejects: Any = None

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of the rows: known from the configuration, or read from the data once.

        Examples
        --------
        >>> gw.sources.memory("n int").schema.names
        ['n']
        """

    @property
    @abstractmethod
    def identity(self) -> str:
        """Text that identifies the data, without secrets; must not change at a restart.

        A position in a checkpoint is valid only for a source of the same identity, such as the same
        directory or topic; with another one the start fails.

        Examples
        --------
        >>> gw.sources.memory("n int", name="numbers").identity
        'memory numbers'
        """

    @property
    def datasets(self) -> tuple[str, ...]:
        """URIs or absolute paths of the data, without secrets, for lineage; empty: unknown.

        Examples
        --------
        >>> gw.sources.memory("n int").datasets
        ()
        """
        return ()

    def open(self, position: Position | None) -> None:  # noqa: B027  many have nothing to do here
        """Prepare for reading, on the driver, before the first epoch of a run.

        By default nothing is done. A source of your own should raise `godwit.errors.SourceError` if
        its data does not exist, or if it cannot continue from `position`.

        Parameters
        ----------
        position
            Position that the last committed epoch read up to; ``None`` in a new query.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> try:
        ...     numbers.open(3)
        ... except gw.errors.SourceError as error:
        ...     print(error.message)
        The memory source 'memory' has 0 rows, and the query has read 3 of it.
        """

    @abstractmethod
    def start(self) -> Position:
        """Return the position at which a new query begins: before the first row to read.

        Examples
        --------
        >>> gw.sources.memory("n int").start()
        0
        """

    @abstractmethod
    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position up to which an epoch that begins at `position` may read.

        Parameters
        ----------
        position
            Position at which the epoch begins.
        limit
            Maximum rows of the epoch, as exactly as the source can keep it, in addition to the
            source's own limits; ``None``: only the latter apply.
        until
            Position not to exceed, an earlier result of `end` or `latest`: with ``availableNow``,
            the end of the input at the start of the query.

        Returns
        -------
        Position
            A position at or after `position`; equal to it if there are no rows to read.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}, {"n": 3}])
        >>> numbers.latest(0), numbers.latest(0, limit=2), numbers.latest(3)
        (3, 2, 3)
        """

    def end(self, position: Position) -> Position:
        """Return the position after the last row that is available now, ignoring all limits.

        A query with ``availableNow`` that has read up to `position` ends there. By default the
        result of `latest`, which suits sources that have no limits of their own.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int", max_rows_per_epoch=1)
        >>> numbers.add([{"n": 1}, {"n": 2}, {"n": 3}])
        >>> numbers.end(0), numbers.latest(0)
        (3, 1)
        """
        return self.latest(position)

    def precedes(self, position: Position, other: Position) -> bool:
        """Return true if `position` is before `other`; false if it is equal, after it, or neither.

        A query fails if `latest` or `end` returns a position before the one that it has read up to,
        since rows would be processed twice. By default numbers are compared. Lists of one length,
        and dicts of the same keys, are compared item by item: a position is before another if some
        number in it is smaller, none is greater, and all else is equal. Other positions, such as
        text, are never before each other. Define this method if positions are text, or if some
        number in them may become smaller while the source advances.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.precedes(2, 3), numbers.precedes({"a": 7, "b": 2}, {"a": 7, "b": 3})
        (True, True)
        >>> numbers.precedes([2, 0], [1, 500])
        False
        """
        return bool(position != other) and _is_not_after(position, other)

    @abstractmethod
    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Divide the rows from `begin` to `end` into about `parallelism` splits of equal size.

        Every row must be in exactly one split. The rows of a split count as having arrived before
        those of the next split in the list.

        Parameters
        ----------
        begin, end
            Positions: the rows after `begin`, up to `end`.
        parallelism
            Number of tasks that can read at the same time.

        Returns
        -------
        list of Split
            Fewer or more than `parallelism` are allowed; empty if there are no rows.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}, {"n": 3}])
        >>> [split.what for split in numbers.splits(0, 3, 2)]
        ['rows 0 to 0', 'rows 1 to 2']
        """

    @abstractmethod
    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split as record batches.

        They must have exactly `columns`, in this order, of the types of `schema`. For a row that
        cannot be read, raise `godwit.errors.SourceError`; or, if your source has an option to skip
        or divert such rows, yield an `Unreadable` in its place. A split may be read several times,
        in several processes, and must give the same rows and `Unreadable` objects each time.

        Parameters
        ----------
        split
            A split that `splits` returned.
        columns
            Names of the columns to read: those of `schema` that the flow uses.

        Yields
        ------
        pyarrow.RecordBatch or Unreadable
            Rows in arrival order, in batches of any size.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}])
        >>> [split] = numbers.splits(0, 2, 1)
        >>> [batch.to_pylist() for batch in numbers.read(split, ["n"])]
        [[{'n': 1}, {'n': 2}]]
        """

    def lag(self, position: Position) -> Lag:
        """Return how far a query that has read up to `position` is behind the source's end.

        Metrics and the controller use it. By default all fields of the `Lag` are ``None``, for
        unknown.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}, {"n": 3}])
        >>> numbers.lag(1).rows
        2
        """
        del position
        return Lag()

    def committed(self, position: Position) -> None:  # noqa: B027  many have nothing to do here
        """Take notice of a commit: all rows up to `position` are processed and committed.

        Called after each commit that advanced the position, and once more at a restart. By default
        nothing is done. A source may report progress here for monitoring, such as the offsets of a
        consumer group; a query always resumes from its checkpoint. If this method raises, an event
        reports it, and the query continues.

        Examples
        --------
        >>> class Reporting(gw.sources.MemorySource):
        ...     def committed(self, position):
        ...         print("committed up to", position)
        >>> Reporting("n int").committed(2)
        committed up to 2
        """

    def report(self, message: str) -> None:
        """Report something that users should know of, and that does not fail the query.

        Call it in any method but `read`: the event `godwit.events.SourceReported` has the message
        and the source's name, and is logged as a warning. A message is reported once in a run.

        Parameters
        ----------
        message
            A sentence about the data, without secrets, such as a column that is new and not read.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.report("the table has a new column 'm', which is not read")
        >>> numbers.take_reports()
        ["the table has a new column 'm', which is not read"]
        """
        self.__dict__.setdefault("_reports", deque(maxlen=_MAX_REPORTS)).append(message)

    def take_reports(self) -> list[str]:
        """Return what `report` got since the last call; a query calls it after other methods.

        Define it only for a source that reads other sources, to return what these report.

        Examples
        --------
        >>> gw.sources.memory("n int").take_reports()
        []
        """
        reports: deque[str] = self.__dict__.get("_reports", deque())
        # `report` may be called by a thread of the source.
        return [reports.popleft() for _ in range(len(reports))]

    def describe(self, position: Position) -> dict[str, Any]:
        """Return a position as a few named values, which ``godwit checkpoint inspect`` shows.

        Examples
        --------
        >>> gw.sources.memory("n int").describe(2)
        {'position': 2}
        """
        return {"position": position}

    def close(self) -> None:  # noqa: B027  many have nothing to do here
        """Release the resources that `open` acquired; by default nothing is done.

        Called at the end of a run, also after an error, and perhaps twice.

        Examples
        --------
        >>> gw.sources.memory("n int").close()
        """


def _is_not_after(position: Position, other: Position) -> bool:
    """Return whether two positions differ at most by numbers that are smaller in the first."""
    match position, other:
        case bool(), bool():
            return position == other
        case int() | float(), int() | float():
            return position <= other
        case dict(), dict():
            same = position.keys() == other.keys()
            return same and all(_is_not_after(position[key], other[key]) for key in other)
        case list(), list():
            same = len(position) == len(other)
            return same and all(map(_is_not_after, position, other))
        case _:
            return bool(position == other)


def moment_us(value: object, given: str) -> int:
    """Return a user's datetime, or text of one, in microseconds of Unix time (UTC without zone).

    Raises `SourceError` for anything else; `given`: source and option, as in "A source has start".
    """
    try:
        moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, dt.datetime):
        shown = repr(value) if isinstance(value, str) else f"a value of type {type_name(value)}"
        raise SourceError(
            f"{given}={shown}.",
            remedy='Give a datetime, or text such as "2024-05-01T08:00:00Z".',
        )
    moment = moment.replace(tzinfo=moment.tzinfo or dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
