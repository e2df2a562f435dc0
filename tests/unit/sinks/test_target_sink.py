"""A complete new sink whose target stores epochs: SQLite, by nothing but the contract.

What it has in common with other targets is in test_conformance.py.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from tests.support.epoch_rows import context

import godwit as gw
from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import SinkError
from godwit.model.secrets import Secrets
from godwit.sinks.rows import cast_batches
from godwit.sinks.target_sink import TargetSink, is_shared

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.sinks.sink import CommittedEpochs, EpochOutput, SinkContext


class SqliteSink(TargetSink):
    """Appends each epoch to a table of SQLite, in one transaction with the epoch's point."""

    failures = (sqlite3.Error,)

    def __init__(self, path: Path) -> None:
        super().__init__("SQLite", secrets=Secrets.of_uri(str(path)), rejects=None, path=str(path))
        self._path = path

    def open(self, context: SinkContext) -> None:
        self._context = context
        with self._translating_errors("cannot be opened", "Check the path and its permissions."):
            self._database = sqlite3.connect(self._path)
            self._database.executescript(
                "CREATE TABLE IF NOT EXISTS rows (plane TEXT, total INTEGER, epoch INTEGER);"
                "CREATE TABLE IF NOT EXISTS epochs (query_id, history, epoch PRIMARY KEY, digest);"
            )

    def _points(self) -> list[HistoryPoint]:
        points = self._database.execute("SELECT * FROM epochs ORDER BY epoch").fetchall()
        return [
            HistoryPoint(query_id=query_id, history=history, epoch=epoch, digest=digest)
            for query_id, history, epoch, digest in points
        ]

    def last_delivered(self) -> HistoryPoint | None:
        return next(reversed(self._points()), None)

    def cannot_roll_back(self) -> None: ...

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        shared = max((p.epoch for p in self._points() if is_shared(p, epochs)), default=-1)
        if shared < min_epoch:
            raise self._rollback_error(shared, min_epoch)
        with self._database:
            for table in ("rows", "epochs"):
                self._database.execute(f"DELETE FROM {table} WHERE epoch > ?", [shared])

    def continue_after(self, point: HistoryPoint) -> None:
        with self._database:
            self._database.execute("DELETE FROM epochs")
            self._put(point)

    def _put(self, point: HistoryPoint) -> None:
        self._database.execute("INSERT INTO epochs VALUES (?, ?, ?, ?)", [*asdict(point).values()])

    def deliver(self, output: EpochOutput) -> None:
        last = self.last_delivered()
        if last is not None and output.epoch <= last.epoch:
            return
        with self._translating_errors("cannot be written", "Mend the cause."), self._database:
            for batch in cast_batches(output, self._context.schema, self._context.name):
                values = [(*row.values(), output.epoch) for row in batch.to_pylist()]
                self._database.executemany("INSERT INTO rows VALUES (?, ?, ?)", values)
            self._put(output.point)


def test_errors_of_the_library_name_sink_and_place(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "absent" / "totals.db")
    with pytest.raises(SinkError, match="SQLite sink 'by_plane': cannot be opened: unable") as e:
        sink.open(context())
    assert e.value.context["path"] == str(tmp_path / "absent" / "totals.db")
    assert isinstance(e.value.__cause__, sqlite3.Error)


def test_only_a_sink_that_says_so_gets_epochs_beside_the_next_one(tmp_path: Path) -> None:
    assert not SqliteSink(tmp_path).delivers_concurrently
    assert gw.sinks.parquet("out").delivers_concurrently
