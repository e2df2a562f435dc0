"""Rows that a program adds, for tests: `gw.sources.memory`."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from godwit.columns.tables import table_of
from godwit.columns.types import to_schema
from godwit.model.errors import SourceError
from godwit.model.frames import user_class
from godwit.model.naming import check_name, check_number
from godwit.model.text import counted
from godwit.sources.source import Lag, Source, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.columns.types import SchemaLike
    from godwit.sources.source import Position


@user_class
class MemorySource(Source):
    """Source of rows that the program adds by `add`; for tests.

    Make one by `gw.sources.memory`. Rows are kept in the driver's memory only: add them again after
    a restart of the process. A position is the number of rows read, and a split contains its rows.

    Parameters
    ----------
    schema
        Columns: an Arrow schema, a dict of column name → type, text such as
        ``"symbol string, price double"``, or a PySpark ``StructType``.
    name
        Name of the source in errors, and its identity in the checkpoint.
    max_rows_per_epoch
        Maximum rows that one epoch reads; by default all that were added.

    Raises
    ------
    InvalidFlowError
        If the schema or the name is not valid.
    SourceError
        If `max_rows_per_epoch` is not a positive number.

    Examples
    --------
    >>> numbers = gw.sources.memory("n int")
    >>> numbers.add([{"n": 1}, {"n": 2}])
    >>> numbers.latest(numbers.start())
    2
    """

    _MEANT: ClassVar = dict.fromkeys(
        ("put", "append", "push", "write", "insert", "addData", "add_data", "send", "emit"),
        "add([...])",
    )

    def __init__(
        self, schema: SchemaLike, *, name: str = "memory", max_rows_per_epoch: int | None = None
    ) -> None:
        if max_rows_per_epoch is not None:
            check_number("max_rows_per_epoch", max_rows_per_epoch, least=1, error=SourceError)
        self._name = check_name("source", name)
        self._schema = to_schema(schema, where="The schema of a memory source")
        self._max_rows = max_rows_per_epoch
        self._tables: list[tuple[int, pa.Table]] = []  # number of its first row, rows
        self._count = 0
        self._lock = threading.Lock()  # rows are added by other threads than the query's

    def __repr__(self) -> str:
        return f"<memory source {self._name!r}: {counted(self._count, 'row')}>"

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the rows: splits contain theirs."""
        return {"name": self._name, "schema": self._schema, "max_rows": self._max_rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(  # type: ignore[misc]
            state["schema"], name=state["name"], max_rows_per_epoch=state["max_rows"]
        )

    def add(self, rows: Any) -> None:
        """Add rows, from any thread; the next epochs read them, in the order in which they came.

        Parameters
        ----------
        rows
            A list of dicts or tuples, an Arrow table or record batch, or a pandas DataFrame. A
            column that a dict lacks is null.

        Raises
        ------
        InvalidInputError
            If a row does not fit the source's columns; then none of `rows` is added.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}])
        >>> numbers
        <memory source 'memory': 2 rows>
        """
        table = table_of(self._name, rows, self._schema).combine_chunks()
        with self._lock:
            if table.num_rows:
                self._tables.append((self._count, table))
                self._count += table.num_rows

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows, as they were passed to the source.

        Examples
        --------
        >>> gw.sources.memory("n int").schema.names
        ['n']
        """
        return self._schema

    @property
    def identity(self) -> str:
        """The word ``memory`` and the source's name; the checkpoint stores it.

        Examples
        --------
        >>> gw.sources.memory("n int", name="numbers").identity
        'memory numbers'
        """
        return f"memory {self._name}"

    def open(self, position: Position | None) -> None:
        """Check, at a restart, that the program has added the rows of the earlier run again.

        Parameters
        ----------
        position
            Number of rows that the query had read. ``None``, for a new query: nothing to check.

        Raises
        ------
        SourceError
            If the source has fewer rows than that.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}])
        >>> numbers.open(2)
        """
        if position is not None and position > self._count:
            raise SourceError(
                f"The memory source {self._name!r} has {counted(self._count, 'row')}, and the "
                f"query has read {position} of it.",
                remedy="Add the rows of the earlier run before the start, or start with a new "
                "checkpoint.",
                source=self._name,
            )

    def start(self) -> Position:
        """Return the first position of a new query, 0: it reads all rows that were added.

        Examples
        --------
        >>> gw.sources.memory("n int").start()
        0
        """
        return 0

    def end(self, position: Position) -> Position:
        """Return the number of rows that were added so far, whatever `position` is.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int", max_rows_per_epoch=1)
        >>> numbers.add([{"n": 1}, {"n": 2}])
        >>> numbers.end(0), numbers.latest(0)
        (2, 1)
        """
        del position
        return self._count

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the number of rows up to which an epoch that begins at `position` reads.

        Parameters
        ----------
        position
            Number of rows that were read before the epoch.
        limit
            Maximum rows of the epoch, in addition to `max_rows_per_epoch`; ``None``: no other
            limit.
        until
            Position not to exceed; ``None``: all rows that were added.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int", max_rows_per_epoch=2)
        >>> numbers.add([{"n": 1}, {"n": 2}, {"n": 3}])
        >>> numbers.latest(0), numbers.latest(0, limit=1), numbers.latest(2)
        (2, 1, 3)
        """
        ends = [self._count]
        ends += [
            position + max_rows for max_rows in (limit, self._max_rows) if max_rows is not None
        ]
        ends += [] if until is None else [until]
        return max(position, min(ends))

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Divide the rows with numbers `begin` to `end` - 1 into at most `parallelism` splits.

        Rows are numbered from 0 in the order in which they were added. Each split contains its
        rows, so that tasks need not read them from the driver.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}, {"n": 3}])
        >>> [split.what for split in numbers.splits(0, 3, 2)]
        ['rows 0 to 0', 'rows 1 to 2']
        """
        parts = max(1, min(parallelism, end - begin))
        edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
        return [
            self._make_split(first, stop)
            for first, stop in itertools.pairwise(edges)
            if stop > first
        ]

    def _make_split(self, first: int, stop: int) -> Split:
        """Make the split of rows `first` to `stop` - 1, which carries the rows."""
        rows = pa.concat_tables(
            [
                table.slice(max(first - start, 0), stop - max(first, start))
                for start, table in list(self._tables)
                if start < stop and first < start + table.num_rows
            ]
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_table(rows)
        payload = sink.getvalue().to_pybytes()  # a slice that is pickled brings all of its table
        return Split(
            rows=stop - first,
            size_bytes=len(payload),
            what=f"rows {first} to {stop - 1}",
            payload=payload,
        )

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, with `columns` in this order.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}])
        >>> [split] = numbers.splits(0, 2, 1)
        >>> [batch.to_pylist() for batch in numbers.read(split, ["n"])]
        [[{'n': 1}, {'n': 2}]]
        """
        with pa.ipc.open_stream(split.payload) as reader:
            for batch in reader:
                yield batch.select(list(columns))

    def lag(self, position: Position) -> Lag:
        """Return the number of rows after `position`, which are not read yet.

        Examples
        --------
        >>> numbers = gw.sources.memory("n int")
        >>> numbers.add([{"n": 1}, {"n": 2}])
        >>> numbers.lag(0)
        Lag(rows=2, size_bytes=None, oldest_us=None)
        """
        return Lag(rows=self._count - position)
