"""Simple sources: rows that a program adds, for tests, and rows computed from their numbers.

Of the latter (`GeneratedSource`), any process makes any row, always the same.  A row's values are
hashes of the seed, the column and the row's number, so a range of rows needs no row before it (a
counter-based generator, as in Salmon et al., SC 2011; the mixing function is splitmix64's). Row *i*
happens ``i / rows per second`` after the start. Where the source is paced, it is there from that
moment on, else as soon as someone asks.
"""

from __future__ import annotations

import datetime as dt
import itertools
import threading
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from godwit.columns.tables import table_of
from godwit.columns.types import to_schema
from godwit.model.errors import SourceError
from godwit.model.frames import user_class
from godwit.model.naming import check_name, check_number
from godwit.model.text import counted
from godwit.sources.source import Lag, Source, Split, moment_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from godwit.columns.types import SchemaLike
    from godwit.sources.source import Position

    Words = npt.NDArray[np.uint64]


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


_INSTANT: Final = pa.timestamp("us", tz="UTC")
_BATCH_ROWS: Final = 1 << 16
_GOLDEN: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


def _now_us() -> int:
    """Return Unix time in microseconds."""
    return time.time_ns() // 1000


class GeneratedSource(Source):
    """Rows made of their numbers. A position is a number of rows and the start's moment."""

    def __init__(
        self,
        *,
        rows_per_s: float,
        paced: bool,
        max_rows_per_epoch: int | None,
        num_rows: int | None,
        start: dt.datetime | str | None,
        seed: int,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        check_number("rows_per_second", rows_per_s, least=0, error=SourceError, whole=False)
        for option, value, least in (
            ("max_rows_per_epoch", max_rows_per_epoch, 1),
            ("num_rows", num_rows, 0),
            ("seed", seed, 0),
        ):
            if value is not None:
                check_number(option, value, least=least, error=SourceError)
        if not 0 < rows_per_s < 1e12:
            raise SourceError(
                f"A generated source has rows_per_s={rows_per_s!r}.",
                remedy="Give a rate above 0; for rows as fast as they are read, paced=False.",
            )
        if not paced and max_rows_per_epoch is None and num_rows is None:
            raise SourceError(
                "A generated source with paced=False has no end, so an epoch that reads all rows "
                "would never end.",
                remedy="Give max_rows_per_epoch=, or num_rows=.",
            )
        self._rows_per_s, self._paced = float(rows_per_s), bool(paced)
        self._max_rows, self._num_rows, self._seed = max_rows_per_epoch, num_rows, seed
        self._start_us = None if start is None else moment_us(start, "A generated source has start")
        self._now_us = now_us

    def __getstate__(self) -> dict[str, Any]:
        """Leave the clock behind: copies read splits only."""
        return {**self.__dict__, "_now_us": _now_us}

    @abstractmethod
    def generate(
        self, numbers: npt.NDArray[np.int64], start_us: int, columns: Sequence[str]
    ) -> dict[str, pa.Array]:
        """Return these columns of the rows with these numbers."""

    def event_time_us(self, number: int, start_us: int) -> int:
        """Return the event time of row `number`, in microseconds of Unix time."""
        return start_us + int(number * 1e6 / self._rows_per_s)

    def options(self) -> str:
        """Return the options that determine the rows, as text for `identity`."""
        start = "" if self._start_us is None else f", start={_iso(self._start_us)}"
        return f"rows_per_second={self._rows_per_s:g}{start}, seed={self._seed}"

    # -- the contract -----------------------------------------------------------------------------

    def start(self) -> Position:
        """Return the position before the first row.

        It has the start time, from which rows follow.
        """
        return {
            "start_us": self._now_us() if self._start_us is None else self._start_us,
            "rows": 0,
        }

    def end(self, position: Position) -> Position:
        """Return the position after all rows that are due by the clock.

        Rows that are not paced are all due; if they never end, those of one epoch are.
        """
        if not self._paced and self._num_rows is None:
            return self.latest(position)
        return {**position, "rows": max(position["rows"], self._num_due(position["start_us"]))}

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after an epoch of at most `limit` rows, not beyond `until`."""
        rows = position["rows"]
        ends = [self._num_due(position["start_us"])]
        ends += [rows + max_rows for max_rows in (limit, self._max_rows) if max_rows is not None]
        ends += [] if until is None else [until["rows"]]
        return {**position, "rows": max(rows, min(ends))}

    def _num_due(self, start_us: int) -> int:
        """Return the number of rows that are due now, by the clock."""
        most = (1 << 62) if self._num_rows is None else self._num_rows
        if not self._paced:
            return most
        passed_us = self._now_us() - start_us
        return 0 if passed_us < 0 else min(most, self._num_within(passed_us))

    def _num_within(self, passed_us: int) -> int:
        """Return the number of rows that are due `passed_us` microseconds after the start."""
        return int(passed_us * self._rows_per_s / 1e6) + 1

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return splits: equal ranges of row numbers."""
        first, stop = begin["rows"], end["rows"]
        parts = max(1, min(parallelism, stop - first))
        edges = [first + (stop - first) * part // parts for part in range(parts + 1)]
        row_bytes = sum(8 if pa.types.is_primitive(dtype) else 32 for dtype in self.schema.types)
        return [
            Split(
                rows=end_row - begin_row,
                size_bytes=(end_row - begin_row) * row_bytes,
                what=f"rows {begin_row} to {end_row - 1}",
                payload=(begin_row, end_row, begin["start_us"]),
            )
            for begin_row, end_row in itertools.pairwise(edges)
            if end_row > begin_row
        ]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        first, stop, start_us = split.payload
        schema = pa.schema([self.schema.field(name) for name in columns])
        for row in range(first, stop, _BATCH_ROWS):
            numbers = np.arange(row, min(row + _BATCH_ROWS, stop), dtype=np.int64)
            generated = self.generate(numbers, start_us, columns)
            yield pa.RecordBatch.from_arrays([generated[name] for name in columns], schema=schema)

    def lag(self, position: Position) -> Lag:
        """Return the number of rows due but not read, and the event time of the oldest."""
        if not self._paced and self._num_rows is None:
            return Lag()
        rows = max(0, self._num_due(position["start_us"]) - position["rows"])
        oldest_us = self.event_time_us(position["rows"], position["start_us"])
        return Lag(rows=rows, oldest_us=oldest_us if rows and self._paced else None)

    def describe(self, position: Position) -> dict[str, Any]:
        return {"rows": position["rows"], "start": _iso(position["start_us"])}


class RateSource(GeneratedSource):
    """Numbered rows with their moments, and a key if one is asked for: `gw.sources.rate`."""

    def __init__(self, *, num_keys: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        if num_keys is not None:
            check_number("num_keys", num_keys, least=1, error=SourceError)
        self._num_keys = num_keys
        self.arrival_time = "timestamp" if self._paced else None
        keys = [] if num_keys is None else [("key", pa.int64())]
        self._schema = pa.schema([("timestamp", _INSTANT), ("value", pa.int64()), *keys])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def identity(self) -> str:
        """Options that determine the rows, as text."""
        keys = "" if self._num_keys is None else f", num_keys={self._num_keys}"
        return f"rate({self.options()}{keys})"

    def generate(
        self, numbers: npt.NDArray[np.int64], start_us: int, columns: Sequence[str]
    ) -> dict[str, pa.Array]:
        generated = {"value": pa.array(numbers)}
        if "timestamp" in columns:
            generated["timestamp"] = event_times_of(numbers, start_us, self._rows_per_s)
        if "key" in columns and self._num_keys is not None:
            drawn = draw(numbers, self._seed, "key") % np.uint64(self._num_keys)
            generated["key"] = pa.array(drawn.astype(np.int64))
        return generated


def draw(numbers: npt.NDArray[np.int64], seed: int, column: str) -> Words:
    """Return a pseudo-random 64-bit word for each row, which depends on its number alone.

    `column`: name of the column, which with `seed` selects the sequence.
    """
    stream = _mix_bits(np.array([_stream(seed, column)], np.uint64))
    return _mix_bits(stream + numbers.astype(np.uint64) * np.uint64(_GOLDEN))


def fractions(words: Words) -> npt.NDArray[np.float64]:
    """Return random 64-bit words as floats from 0 to below 1."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def event_times_of(numbers: npt.NDArray[np.int64], start_us: int, rows_per_s: float) -> pa.Array:
    """Return the event times of rows with these numbers."""
    after = (numbers * 1e6 / rows_per_s).astype(np.int64)
    return pa.array(start_us + after).cast(_INSTANT)


def _stream(seed: int, column: str) -> int:
    """Return the seed of a column's random words, from the source's seed."""
    mixed = seed & _WORD
    for byte in column.encode():
        mixed = ((mixed ^ byte) * 0x100000001B3 + _GOLDEN) & _WORD
    return mixed


def _mix_bits(words: Words) -> Words:
    """Return 64-bit words mixed as splitmix64 does; sums and products wrap around."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _iso(time_us: int) -> str:
    """Return microseconds of Unix time as ISO 8601 text."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time_us)
    return moment.isoformat()
