"""Connector for SQLite: ``gw.sources.sqlite(...)`` and ``gw.sinks.sqlite(...)``.

The sink commits the rows of an epoch and the epoch's number in one transaction, so that a second
delivery changes nothing, and a start can compare the table with the checkpoint. The source reads
the rows of a table in the order of their ``rowid``; rows may be added, and never changed.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import godwit as gw
from godwit.checkpoint.ownership import HistoryPoint
from godwit.columns.types import to_schema
from godwit.model.errors import SourceError
from godwit.model.secrets import Secrets
from godwit.sinks.rows import cast_batches
from godwit.sinks.target_sink import TargetSink, is_shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.columns.types import SchemaLike
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, Sink, SinkContext


def to_table(path: str, table: str, *, rejects: Sink | None = None) -> SqliteSink:
    """Append each epoch to a table of the database at `path`; exactly-once."""
    return SqliteSink(path, table, rejects)


def from_table(path: str, table: str, *, schema: SchemaLike) -> SqliteSource:
    """Read the rows of a table of the database at `path` as they are added."""
    return SqliteSource(path, table, to_schema(schema, where="The SQLite source"))


class SqliteSink(TargetSink):
    """Sink to a table of SQLite."""

    failures = (sqlite3.Error,)
    _database: sqlite3.Connection

    def __init__(self, path: str, table: str, rejects: Sink | None) -> None:
        secrets = Secrets.of_uri(path)
        super().__init__("SQLite", secrets=secrets, rejects=rejects, path=path, table=table)
        self._path, self._table = path, table

    @property
    def destination(self) -> str:
        return f"sqlite:{Path(self._path).resolve()}#{self._table}"

    def open(self, context: SinkContext) -> None:
        self._fit(context)
        columns = ", ".join(f'"{name}"' for name in (*context.schema.names, "epoch"))
        with self._translating_errors("cannot be opened", "Check the path and its permissions."):
            # An epoch may be delivered on another thread.
            self._database = sqlite3.connect(self._path, check_same_thread=False)
            self._database.executescript(
                f'CREATE TABLE IF NOT EXISTS "{self._table}" ({columns});'
                "CREATE TABLE IF NOT EXISTS godwit_epochs "
                "(target, query_id, history, epoch, digest, PRIMARY KEY (target, epoch));"
            )

    def _points(self) -> list[HistoryPoint]:
        rows = self._database.execute(
            "SELECT query_id, history, epoch, digest FROM godwit_epochs WHERE target = ? "
            "ORDER BY epoch",
            [self._table],
        )
        return [HistoryPoint(query_id=q, history=h, epoch=e, digest=d) for q, h, e, d in rows]

    def last_delivered(self) -> HistoryPoint | None:
        return next(reversed(self._points()), None)

    def deliver(self, output: EpochOutput) -> None:
        last = self.last_delivered()
        if last is not None and output.epoch <= last.epoch:
            return
        marks = ", ".join("?" * (len(self._context.schema) + 1))
        with self._translating_errors("cannot be written", "Mend the cause."), self._database:
            for batch in cast_batches(output, self._context.schema, self._context.name):
                values = [(*row.values(), output.epoch) for row in batch.to_pylist()]
                self._database.executemany(f'INSERT INTO "{self._table}" VALUES ({marks})', values)
            self._store(output.point)

    def _store(self, point: HistoryPoint) -> None:
        values = [self._table, *asdict(point).values()]
        self._database.execute("INSERT INTO godwit_epochs VALUES (?, ?, ?, ?, ?)", values)

    def cannot_roll_back(self) -> None: ...

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        shared = max((p.epoch for p in self._points() if is_shared(p, epochs)), default=-1)
        if shared < min_epoch:
            raise self._rollback_error(shared, min_epoch)
        with self._database:
            self._database.execute(f'DELETE FROM "{self._table}" WHERE epoch > ?', [shared])
            self._forget(shared)

    def continue_after(self, point: HistoryPoint) -> None:
        with self._database:
            self._forget(-1)
            self._store(point)

    def _forget(self, epoch: int) -> None:
        statement = "DELETE FROM godwit_epochs WHERE target = ? AND epoch > ?"
        self._database.execute(statement, [self._table, epoch])


class SqliteSource(gw.sources.Source):
    """Source of the rows of a table; a position is the largest ``rowid`` that was read."""

    def __init__(self, path: str, table: str, schema: pa.Schema) -> None:
        self._path, self._table, self._schema = str(Path(path).resolve()), table, schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def identity(self) -> str:
        return f"sqlite {self._path} {self._table}"

    def _rows(self, columns: str, condition: str, *values: object) -> list[Any]:
        statement = f'SELECT {columns} FROM "{self._table}" WHERE {condition}'
        try:
            with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
                return database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            what = f"Table {self._table!r} of {self._path} cannot be read: {error}."
            raise SourceError(what, remedy="Check the path, the table and its columns.") from error

    def start(self) -> int:
        return 0

    def latest(self, position: int, *, limit: int | None = None, until: int | None = None) -> int:
        [[end]] = self._rows("max(rowid)", "rowid > ?", position)
        last = position if end is None else end
        last = last if until is None else min(last, until)
        return last if limit is None else min(last, position + limit)

    def splits(self, begin: int, end: int, parallelism: int) -> list[gw.sources.Split]:
        size = max(1, -(-(end - begin) // parallelism))
        ranges = [(first, min(first + size, end)) for first in range(begin, end, size)]
        return [
            gw.sources.Split(rows=None, size_bytes=None, what=f"rows {range_}", payload=range_)
            for range_ in ranges
        ]

    def read(self, split: gw.sources.Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = ", ".join(f'"{name}"' for name in columns)
        rows = self._rows(names, "rowid > ? AND rowid <= ? ORDER BY rowid", *split.payload)
        schema = pa.schema([self._schema.field(name) for name in columns])
        values = [dict(zip(columns, row, strict=True)) for row in rows]
        yield pa.RecordBatch.from_pylist(values, schema)
