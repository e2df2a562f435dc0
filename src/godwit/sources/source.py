"""The contract of a source: positions on the driver, splits that any process can read.

A position says how far a query has read. It is a plain value, goes into the commit record of the
epoch that read up to it, and is the only log there is: after a crash the query goes on from the
position of its last committed epoch. For every epoch the driver asks the source how far it may go
(`Source.latest`), cuts what lies between the two positions into splits (`Source.splits`), and any
process reads these (`Source.read`), perhaps several times, in any order, and at once.

*The rule*: the same split gives the same rows, in the same order, or raises. What lies between two
positions may be read again after an executor is lost, while other lanes have rows of the first
attempt; a source that cannot give them again says so by an error.

A source's life: it is made with configuration only, and touches nothing. `Source.open` looks at
what it reads, on the driver. The methods that follow are called by one thread, on the driver, but
for `Source.read`, which is called on a copy of the source in any process, one that was never opened
too. `Source.close` ends it. Where a process starts the same flow again, it is opened again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

Position: TypeAlias = Any
"""Progress in a source: numbers, text, bytes, ``None``, and lists and dicts of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A part of an epoch's rows that one task reads.

    Attributes
    ----------
    rows
        How many rows it has; ``None`` if that is not known before it is read.
    size_bytes
        About how many bytes they take where they are stored; ``None`` if that is not known. Few
        rows and bytes are read on the driver, which spares the epoch a job.
    what
        What it is called in errors and plans, such as a file and its row groups.
    payload
        What `Source.read` needs to find the rows; anything that can be pickled.
    arrived_us
        When parts of its rows, of like size, arrived at the source, in microseconds of Unix time,
        such as the times at which its files were written; empty if that is not known, or a column
        says it (`Source.arrival_time`). Latency is measured from it.
    exact
        Whether it has `rows` rows exactly; ``False``: that many at most, as between two offsets of
        a log that has gaps.
    """

    rows: int | None
    size_bytes: int | None
    what: str
    payload: Any
    exact: bool = True
    arrived_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Distance between a query and the end of a source.

    Attributes
    ----------
    rows
        Rows that are there and have not been read; ``None`` if unknown.
    size_bytes
        Bytes of them; ``None`` if unknown.
    oldest_us
        When the oldest of them arrived, in microseconds of Unix time; ``None`` if there are none or
        that is unknown.
    """

    rows: int | None = None
    size_bytes: int | None = None
    oldest_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Rows of a split that could not be read, and are left out of its rows.

    They are counted, by an event and a metric, and go to `Source.rejects` with their epoch.

    Attributes
    ----------
    rows
        What is known of each, in the columns of `Source.unreadable`.
    """

    rows: pa.RecordBatch


def check_on_bad(where: str, on_bad: str, rejects: object) -> None:
    """Refuse what a user says of rows that cannot be read, if it means nothing."""
    if on_bad not in {"refuse", "skip", "divert"}:
        raise InvalidFlowError(
            f"{where}: on_bad={on_bad!r} is not known.",
            remedy='Give "refuse", "skip" or "divert".',
        )
    if (rejects is None) == (on_bad == "divert"):
        raise InvalidFlowError(
            f"{where}: on_bad={on_bad!r} and rejects={rejects!r} say different things.",
            remedy='Give both on_bad="divert" and a sink as rejects=, or neither.',
        )


class Source(ABC):
    """Rows that arrive, for ``flow.source(name, source)``.

    Attributes
    ----------
    arrival_time
        Name of the timestamp column that says when a row arrived at the source, such as a broker's
        timestamp; ``None`` if there is none. Latency is measured from it.
    unreadable
        Columns of rows that could not be read, where it may yield `Unreadable` in their place.
    rejects
        Sink of those rows; ``None``: they are counted only. Of the driver's source alone: copies
        that read splits need not have it.
    """

    arrival_time: str | None = None
    unreadable: pa.Schema | None = None
    rejects: Any = None

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of the rows. Known without touching anything, or looked up once."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Name of the data it reads, as users say it, without secrets; the same over restarts.

        A checkpoint's position counts for a source of the same identity alone: another directory,
        topic or seed is refused at the start.
        """

    def open(self, position: Position | None) -> None:  # noqa: B027  many have nothing to do here
        """Prepare to be asked, on the driver; raise if what it reads is not there.

        `position` is that of the last committed epoch, ``None`` where none is: a position that the
        source cannot go on from is refused here.
        """

    @abstractmethod
    def start(self) -> Position:
        """Return the position before the first row that a new query is to read."""

    @abstractmethod
    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return how far an epoch that begins at `position` may read.

        Parameters
        ----------
        position
            Where it begins.
        limit
            Rows at most, as near as the source can tell; ``None``: as its own settings say.
        until
            Do not go beyond this earlier result of `end` or `latest`: where a query that ends with
            what was there when it began is to end.

        Returns
        -------
        Position
            `position` itself, an equal value, if there is nothing to read.
        """

    def end(self, position: Position) -> Position:
        """Return how far the rows reach that are there now, whatever limits the source has.

        Where a query that has read up to `position` and ends with what is there now is to end. By
        default what `latest` says, which suits sources that have no limits of their own.
        """
        return self.latest(position)

    def precedes(self, position: Position, other: Position) -> bool:
        """Return whether rows before `other` would be read again from `position` on.

        A query refuses `latest` and `end` that go back behind what it has read, since those rows
        would be processed twice. By default numbers are compared; of other positions nothing is
        known, and `False` returned.
        """
        return _is_number(position) and _is_number(other) and position < other

    @abstractmethod
    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Cut the rows between two positions into about `parallelism` splits of like size.

        All rows are in exactly one split. Order counts: rows of an earlier split are older.
        """

    @abstractmethod
    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, with these columns in this order, in types of the schema.

        Where the user wants to go on without rows that cannot be read, it yields `Unreadable` for
        these, the same ones each time.
        """

    def lag(self, position: Position) -> Lag:
        """Return how far a query that has read up to `position` is behind."""
        del position
        return Lag()

    def committed(self, position: Position) -> None:  # noqa: B027  many have nothing to do here
        """React to a commit: everything up to `position` is processed for good.

        Called after every commit, and again at a restart. What it tells others, such as a consumer
        group, is for their eyes alone: a query goes on from its own record.
        """

    def describe(self, position: Position) -> dict[str, Any]:
        """Return a position for people, in few short values, as ``godwit checkpoint`` shows it."""
        return {"position": position}

    def close(self) -> None:  # noqa: B027  many have nothing to do here
        """Release what `open` has opened. Called also after an error; again, it does nothing."""


def _is_number(position: Position) -> bool:
    """Return whether positions can be compared as numbers."""
    return isinstance(position, int | float) and not isinstance(position, bool)
