"""A complete new sink whose target stores epochs: SQLite, by nothing but the contract."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from tests.support.epoch_rows import Committed, context, point, rows

import godwit as gw
from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import SinkError
from godwit.model.secrets import Secrets
from godwit.sinks.continuity import Position, Way, continue_delivery
from godwit.sinks.rows import cast_batches
from godwit.sinks.target_sink import TargetSink, is_shared, point_of_epoch

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

    def totals(self) -> list[int]:
        return [total for (total,) in self._database.execute("SELECT total FROM rows")]


@pytest.fixture
def sink(tmp_path: Path) -> SqliteSink:
    made = SqliteSink(tmp_path / "totals.db")
    made.open(context())
    for epoch in range(4):
        made.deliver(rows(epoch, ("a", epoch)))
    return made


def go_on(sink: SqliteSink, latest: int, way: Way) -> str | None:
    epochs = Committed(latest_epoch=latest)
    position = Position(before=latest - 1, stays=True, copied=False)
    return continue_delivery(sink, "totals", epochs, position, way)


def test_an_epoch_that_is_delivered_twice_is_there_once(sink: SqliteSink) -> None:
    sink.deliver(rows(3, ("a", 3)))
    assert sink.totals() == [0, 1, 2, 3]
    assert go_on(sink, 3, "refuse") is None


def test_a_restored_checkpoint_is_noticed_and_the_target_rolled_back(sink: SqliteSink) -> None:
    with pytest.raises(SinkError, match="epochs up to 3, and the checkpoint ends with epoch 1"):
        go_on(sink, 1, "refuse")
    told = go_on(sink, 1, "roll_back")
    assert told is not None
    assert "rolled back to epoch 1" in told
    assert sink.totals() == [0, 1]
    assert sink.last_delivered() == point(1)


def test_a_new_writer_goes_on_beside_what_is_there(sink: SqliteSink) -> None:
    assert go_on(sink, 1, "new_writer") is not None
    assert sink.last_delivered() == point_of_epoch(Committed(latest_epoch=1), 1)
    assert sink.totals() == [0, 1, 2, 3]


def test_too_few_epochs_left_are_refused(sink: SqliteSink) -> None:
    epochs = Committed(latest_epoch=9, history="other", parted={"h": 1})
    with pytest.raises(SinkError, match="would have epochs up to 1, and epochs up to 2 were"):
        sink.roll_back(epochs, 2)


def test_errors_of_the_library_name_sink_and_place(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "absent" / "totals.db")
    with pytest.raises(SinkError, match="SQLite sink 'by_plane': cannot be opened: unable") as e:
        sink.open(context())
    assert e.value.context["path"] == str(tmp_path / "absent" / "totals.db")
    assert isinstance(e.value.__cause__, sqlite3.Error)


def test_only_a_sink_that_says_so_gets_epochs_beside_the_next_one(sink: SqliteSink) -> None:
    assert not sink.delivers_concurrently
    assert gw.sinks.parquet("out").delivers_concurrently
