"""Drawn sources of Godwit's own, and which of their rows an epoch reads, from the guide's words.

The rows of a source are in files of some format that turn up in a directory, in memory, or are
computed from their numbers.  `DrawnSource.due` says what the next epoch is to read: files by time
and path, those that were listed together first, as many rows and files as the limits allow.
"""

from __future__ import annotations

import base64
import bz2
import datetime as dt
import decimal
import gzip
import json
import math
import os
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import godwit as gw
from godwit.sources.simple_sources import GeneratedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.streams import reference as ref
    from tests.streams.drawing import Drawn

__all__ = ["DrawnFiles", "DrawnMemory", "DrawnNumbers", "DrawnSource", "draw_source"]

Row = dict[str, Any]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SUFFIXES = ("parquet", "arrow", "csv", "json", "csv.gz", "json.gz", "json.bz2")


def draw_source(
    drawn: Drawn, source: ref.Source, directory: Path, clock: Callable[[], int] | None
) -> DrawnSource:
    """Draw what a source of a flow reads; `clock` says what time it is, if the test decides it."""
    rng = drawn.rng
    rows = rng.choice([None, None, 1, 3, 5, 10])
    if (chance := rng.random()) < 0.2:
        return DrawnMemory(drawn, source, max_rows=rows)
    if chance < 0.35 and clock is not None:
        return DrawnNumbers(drawn, source, max_rows=rows, clock=clock)
    files = rng.choice([None, None, None, 1, 2])
    path = directory / source.name
    path.mkdir()
    return DrawnFiles(drawn, source, max_rows=rows, directory=path, max_files=files)


class DrawnSource(ABC):
    """A source as the product reads it, and as the reference does."""

    kind: str

    def __init__(self, drawn: Drawn, source: ref.Source, *, max_rows: int | None) -> None:
        self._drawn, self._source, self.max_rows = drawn, source, max_rows
        self.is_mapped = drawn.rng.random() < 0.3  # its columns are put in order by a map

    @property
    def _types(self) -> pa.Schema:
        return pa.schema(self._drawn.types)

    @property
    def _schema(self) -> pa.Schema:
        """Columns as the source is told."""
        types = [*self._drawn.types.items()]
        if self.is_mapped:
            self._drawn.rng.shuffle(types)
        return pa.schema(types)

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=self._types)

    @abstractmethod
    def add(self, at: float) -> None:
        """Let rows arrive that happen about so many units after the beginning."""

    @abstractmethod
    def made(self) -> Any:
        """Make the source, as a start of the flow does."""

    @abstractmethod
    def due(self) -> list[Row]:
        """Return the rows that the next epoch reads; again until they are taken."""

    @abstractmethod
    def take(self) -> None:
        """Take note that these are read permanently."""

    @property
    def has_more(self) -> bool:
        """True if there is anything to be read."""
        return bool(self.due())

    def restarted(self) -> None:  # noqa: B027  most have nothing to do
        """Take note that the flow was started again."""

    def __str__(self) -> str:
        return f"{self._source.name}: {self.kind}, limit {self.max_rows}"


class DrawnMemory(DrawnSource):
    """Rows that a program adds."""

    kind = "memory"

    def __init__(self, drawn: Drawn, source: ref.Source, *, max_rows: int | None) -> None:
        super().__init__(drawn, source, max_rows=max_rows)
        self._rows: list[Row] = []
        self._read = 0
        self._made: Any = None

    def add(self, at: float) -> None:
        """See `DrawnSource.add`."""
        rows = self._drawn.rows(self._source, at, 14)
        self._rows += rows
        if self._made is not None and rows:
            self._made.add(self._table(rows))

    def made(self) -> Any:
        """Make a source with all rows that there ever were."""
        self._made = gw.sources.memory(self._schema, max_rows_per_epoch=self.max_rows)
        cut = self._drawn.rng.randrange(len(self._rows) + 1)
        for rows in (self._rows[:cut], self._rows[cut:]):
            self._made.add(self._table(rows))
        return self._made

    def due(self) -> list[Row]:
        """See `DrawnSource.due`."""
        return self._rows[self._read :][: self.max_rows]

    def take(self) -> None:
        """See `DrawnSource.take`."""
        self._read += len(self.due())


class DrawnNumbers(DrawnSource):
    """Rows that are computed from their numbers, and are there when their moment has come."""

    kind = "numbers"

    def __init__(
        self,
        drawn: Drawn,
        source: ref.Source,
        *,
        max_rows: int | None,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(drawn, source, max_rows=max_rows)
        self._clock, self._read = clock, 0
        self._per_s = drawn.rng.choice([0.3, 1.0, 2.0]) * 1e6 / drawn.unit
        self._seed = drawn.rng.randrange(2**32)

    def add(self, at: float) -> None:
        """Leave it to the clock."""

    def made(self) -> Any:
        """See `DrawnSource.made`."""
        return _Numbers(
            self._row,
            self._schema,
            rows_per_s=self._per_s,
            paced=True,
            max_rows_per_epoch=self.max_rows,
            num_rows=None,
            start=_EPOCH + dt.timedelta(microseconds=self._drawn.base),
            seed=self._seed,
            now_us=self._clock,
        )

    def _row(self, number: int) -> Row:
        """Compute a row."""
        rng, drawn = random.Random(f"{self._seed} {number}"), self._drawn
        mine, drawn.rng = drawn.rng, rng
        try:
            at = number * 1e6 / self._per_s / drawn.unit
            while not (rows := drawn.rows(self._source, at, 1)):
                pass
        finally:
            drawn.rng = mine
        return rows[0]

    def due(self) -> list[Row]:
        """See `DrawnSource.due`."""
        passed_us = self._clock() - self._drawn.base
        there = 0 if passed_us < 0 else int(passed_us * self._per_s / 1e6) + 1
        end = there if self.max_rows is None else min(there, self._read + self.max_rows)
        return [self._row(number) for number in range(self._read, end)]

    def take(self) -> None:
        """See `DrawnSource.take`."""
        self._read += len(self.due())


class _Numbers(GeneratedSource):
    """Rows of a function of their numbers."""

    def __init__(self, row: Callable[[int], Row], types: pa.Schema, **options: Any) -> None:
        super().__init__(**options)
        self._row, self._types = row, types

    @property
    def schema(self) -> pa.Schema:
        return self._types

    @property
    def identity(self) -> str:
        return f"drawn numbers ({self.options()})"

    def generate(self, numbers: Any, start_us: int, columns: Sequence[str]) -> dict[str, pa.Array]:
        del start_us  # the rows know
        rows = pa.Table.from_pylist([self._row(n) for n in numbers.tolist()], schema=self._types)
        return {name: rows[name].combine_chunks() for name in columns}


@dataclass(slots=True)
class _File:
    """A file of rows."""

    modified_s: int
    path: str
    rows: list[Row]
    is_cut: bool  # may an epoch end within it?


@dataclass(slots=True)
class _Due:
    """What an epoch reads: whole files, and rows of one more."""

    files: int = 0
    more: int = 0
    rows: list[Row] = field(default_factory=list)


class DrawnFiles(DrawnSource):
    """Files of one format that turn up in a directory, and in one within it."""

    _MAKE: ClassVar[dict[str, Any]] = {
        "parquet": gw.sources.parquet,
        "arrow": gw.sources.arrow,
        "csv": gw.sources.csv,
        "json": gw.sources.json,
    }

    def __init__(
        self,
        drawn: Drawn,
        source: ref.Source,
        *,
        max_rows: int | None,
        directory: Path,
        max_files: int | None,
    ) -> None:
        super().__init__(drawn, source, max_rows=max_rows)
        self.kind = drawn.rng.choice(_SUFFIXES)
        self._directory, self._max_files = directory, max_files
        self._new: list[_File] = []  # since the last listing
        self._listed: list[_File] = []
        self._is_open = False
        self._names = 0
        self._begun = False  # the first file that is listed is read in part

    def __str__(self) -> str:
        return f"{super().__str__()} and {self._max_files} files"

    def add(self, at: float) -> None:
        """Write some files."""
        rng = self._drawn.rng
        for _ in range(rng.choice([1, 1, 2])):
            rows = self._drawn.rows(self._source, at, rng.choice([0, 3, 9, 14]))
            if self.kind.startswith("json"):
                for row in rows:  # which has no numbers like these
                    row.update((n, None) for n, v in row.items() if _is_no_number(v))
            self._names += 1
            name = f"{rng.choice('abc')}{self._names}.{self.kind}"
            path = f"{rng.choice(['', 'sub/'])}{name}"
            modified_s = 1_600_000_000 + rng.randrange(4 * self._names)
            if self._write(self._directory / path, rows, modified_s):
                whole = self.kind.count(".") == 1
                self._new.append(_File(modified_s, path, rows, is_cut=not whole))

    def _write(self, path: Path, rows: list[Row], modified_s: int) -> bool:
        """Write a file, of columns in any order; say whether it has bytes."""
        rng, table = self._drawn.rng, self._table(rows)
        order = list(table.schema.names)
        rng.shuffle(order)
        table = table.select(order)
        if rng.random() < 0.3:
            table = table.append_column("more", pa.array(range(len(rows)), pa.int64()))
        if rng.random() < 0.3:
            narrow = table["v"].cast(pa.int8())
            table = table.set_column(table.schema.get_field_index("v"), "v", narrow)
        if rng.random() < 0.3 and table["d"].null_count == len(rows):
            table = table.drop_columns(["d"])
        path.parent.mkdir(exist_ok=True)
        kind, _, packed = self.kind.partition(".")
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=rng.choice([2, 5, 100]))
        elif kind == "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=rng.choice([2, 5, 100]))
        else:
            text = _csv(table) if kind == "csv" else _json(table)
            if text and packed:
                text = gzip.compress(text) if packed == "gz" else bz2.compress(text)
            path.write_bytes(text)
        os.utime(path, (modified_s, modified_s))
        return path.stat().st_size > 0

    def made(self) -> Any:
        """See `DrawnSource.made`."""
        make = self._MAKE[self.kind.partition(".")[0]]
        return make(
            self._directory,
            schema=self._schema,
            max_rows_per_epoch=self.max_rows,
            max_files_per_epoch=self._max_files,
        )

    @property
    def has_more(self) -> bool:
        """See `DrawnSource.has_more`; files may have no rows."""
        return bool(self._listed or self._new)

    def restarted(self) -> None:
        """See `DrawnSource.restarted`: it is listed anew when it is opened."""
        self._is_open = False

    def _list(self) -> None:
        begun, rest = self._listed[: self._begun], self._listed[self._begun :]
        rest = sorted([*rest, *self._new], key=lambda file: (file.modified_s, file.path))
        self._listed, self._new = [*begun, *rest], []

    def _due(self) -> _Due:
        if not self._is_open or not self._listed:
            self._is_open = True
            self._list()
        due, left = _Due(), self.max_rows
        for file in self._listed[: self._max_files]:
            if left is None or not file.is_cut or len(file.rows) <= left:
                due.files += 1
                due.rows += file.rows
                if left is not None:
                    left = left - len(file.rows) if file.is_cut else 0
            else:
                due.rows += file.rows[:left]
                due.more, left = left, 0
            if left == 0:
                break
        return due

    def due(self) -> list[Row]:
        """See `DrawnSource.due`."""
        return self._due().rows

    def take(self) -> None:
        """See `DrawnSource.take`."""
        due = self._due()
        self._listed = self._listed[due.files :]
        self._begun = due.more > 0 or (self._begun and due.files == 0)
        if due.more:
            first = self._listed[0]
            first.rows = first.rows[due.more :]


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _csv(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pacsv.write_csv(table, sink)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _json(table: pa.Table) -> bytes:
    lines = [json.dumps(dict(row), default=_plain) for row in table.to_pylist()]
    return "".join(f"{line}\n" for line in lines).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC)  # zones were off by seconds long ago, which ISO has not
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()
