"""A reader of a PySpark data source as a source: offsets are positions, partitions are splits."""

from __future__ import annotations

import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.adopt.data_source.calls import DataSourceCalls
from godwit.columns.types import to_schema
from godwit.model.errors import SourceError
from godwit.sources.source import Source, Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.datasource import DataSource

    from godwit.columns.types import SchemaLike
    from godwit.sources.source import Position

_ROWS: Final = 8_192  # of a batch


class DataSourceSource(Source):
    """Source over a PySpark data source (see `godwit.sources.data_source`)."""

    def __init__(
        self, kind: type[DataSource], options: Mapping[str, str], schema: SchemaLike | None
    ) -> None:
        self._calls = DataSourceCalls(kind, options, SourceError)
        if schema is None:
            with self._calls.errors("does not name its columns"):
                schema = self._calls.open().schema()
        self._schema = to_schema(schema, where=f"The schema of {self._calls.name}")
        self._reader: Any = None  # a stream reader, on the driver
        self._is_simple = False
        # of a simple reader: begin, end, and rows of the last read
        self._rows_ahead: tuple[Position, Position, list[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the reader; copies create their own."""
        return {**self.__dict__, "_reader": None, "_rows_ahead": None}

    def __repr__(self) -> str:
        return f"gw.sources.data_source({self._calls.name})"

    @property
    def schema(self) -> pa.Schema:
        """Columns that the user or the data source defines."""
        return self._schema

    @property
    def identity(self) -> str:
        """Class and options, without secrets."""
        return f"data source {self._calls.name}({self._calls.shown_options})"

    def open(self, position: Position | None) -> None:
        """Create the reader; raise if the data source has none for streams."""
        del position
        if self._reader is None:
            self._reader = self._open_reader()

    def _open_reader(self) -> Any:
        """Return a new stream reader."""
        columns = from_arrow_schema(self._schema)
        with self._calls.errors("has no reader for streams"):
            opened = self._calls.open()
            try:
                return opened.streamReader(schema=columns)
            except PySparkNotImplementedError:
                self._is_simple = True
                return opened.simpleStreamReader(schema=columns)

    def start(self) -> Position:
        """Return the reader's initial offset."""
        with self._calls.errors("has no initial offset"):
            return self._reader.initialOffset()

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the reader's latest offset, within a limit of rows if it supports one."""
        with self._calls.errors("failed to return its latest offset"):
            if self._is_simple:
                end = self._read_ahead(position)
            else:
                end = self._latest_offset(position, limit)
        # Offsets are the reader's: one that cannot be compared with `until` may be after it.
        return end if until is None or self.precedes(end, until) else until

    def _latest_offset(self, position: Position, limit: int | None) -> Position:
        """Return the latest offset, for any version of PySpark's readers."""
        latest = self._reader.latestOffset
        if not inspect.signature(latest).parameters:
            return latest()
        from pyspark.sql.streaming.datasource import (  # noqa: PLC0415  new in 4.2
            ReadMaxRows,
        )

        read_limit = (
            self._reader.getDefaultReadLimit() if limit is None else ReadMaxRows(max_rows=limit)
        )
        return latest(position, read_limit)

    def _read_ahead(self, position: Position) -> Position:
        """Read the rows after a position with a simple reader, and return the end."""
        if (
            self._rows_ahead is None
            or self._rows_ahead[0] != position
            or self._rows_ahead[1] == position
        ):
            rows, end = self._reader.read(position)
            self._rows_ahead = position, end, list(rows)
        return self._rows_ahead[1]

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return a split for each partition, or, for a simple reader, one with the rows."""
        del parallelism
        if begin == end:
            return []
        what = f"{self._calls.name} from {begin} to {end}"
        with self._calls.errors(f"failed to partition its rows from {begin} to {end}"):
            if self._is_simple:
                if self._rows_ahead is not None and self._rows_ahead[:2] == (begin, end):
                    rows = self._rows_ahead[2]
                else:
                    rows = list(self._reader.readBetweenOffsets(begin, end))
                return [Split(rows=len(rows), size_bytes=None, what=what, payload=rows)]
            return [
                Split(rows=None, size_bytes=None, what=f"{what}, {number}", payload=partition)
                for number, partition in enumerate(self._reader.partitions(begin, end))
            ]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, converted as Spark converts them."""
        with self._calls.errors(f"cannot read {split.what}"):
            if self._reader is None:
                self._reader = self._open_reader()
            rows = split.payload if self._is_simple else self._reader.read(split.payload)
            yield from self._to_batches(iter(rows), list(columns))

    def _to_batches(self, rows: Iterator[Any], columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield rows, tuples or record batches, as batches of the columns that are read."""
        target = pa.schema([self._schema.field(name) for name in columns])
        for first in rows:
            if isinstance(first, pa.RecordBatch):
                tables: Iterable[pa.Table] = [pa.Table.from_batches([first])]
            else:
                chunk = [first, *islice(rows, _ROWS - 1)]
                kinds = from_arrow_schema(self._schema)
                tables = [LocalDataToArrowConversion.convert(chunk, kinds, False)]
            for table in tables:
                for batch in table.select(columns).cast(target).to_batches():
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=target)

    def committed(self, position: Position) -> None:
        """Report the committed offset to the reader."""
        with self._calls.errors("failed in commit"):
            self._reader.commit(position)

    def close(self) -> None:
        """Stop the reader."""
        reader, self._reader = self._reader, None
        if reader is not None and not self._is_simple:
            with self._calls.errors("failed in stop"):
                reader.stop()
