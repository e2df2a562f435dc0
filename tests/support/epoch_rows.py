"""Doubles that sinks are tested with: an epoch's rows in memory, and a context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.checkpoint.ownership import HistoryPoint
from godwit.model.errors import SinkError
from godwit.sinks.sink import SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from godwit.checkpoint.ownership import Relation
    from godwit.plan.staging import Rejections, WrittenFile

SCHEMA = pa.schema([("plane", pa.string()), ("total", pa.int64())])


def refuse(rows: pa.RecordBatch, rejections: Rejections) -> None:
    """Nobody takes rejected rows."""
    if not len(rejections.rows):
        return
    first = rows.slice(rejections.rows[0], 1).to_pylist()[0]
    raise SinkError(f"{first}: {rejections.reasons[0]}")


@dataclass(slots=True)
class Shown:
    """Views that only remember."""

    tables: dict[str, pa.Table] = field(default_factory=dict)

    def show(self, name: str, rows: pa.Table) -> None:
        self.tables[name] = rows


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRows:
    """An epoch's output from a table.

    ``on_batch`` is called before each batch is read and may raise, as a broken checkpoint does.
    """

    epoch: int
    table: pa.Table
    batch_rows: int = 2
    on_batch: Callable[[int], None] = lambda _: None
    spark: SparkSession | None = None
    announced: pa.Schema | None = None
    written: Sequence[WrittenFile] = ()
    on_divert: Callable[[pa.RecordBatch, Rejections], None] = refuse
    complete: bool | None = None
    history: str = "h"

    @property
    def point(self) -> HistoryPoint:
        return point(self.epoch, self.history)

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows) + sum(file.rows for file in self.written)

    @property
    def schema(self) -> pa.Schema:
        return self.announced or self.table.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for index, batch in enumerate(self.table.to_batches(max_chunksize=self.batch_rows)):
            self.on_batch(index)
            yield batch

    def files(self) -> Sequence[WrittenFile]:
        return self.written

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        self.on_divert(rows, rejections)

    def dataframe(self) -> DataFrame:
        assert self.spark is not None
        return self.spark.createDataFrame(self.table)


def point(epoch: int, history: str = "h") -> HistoryPoint:
    """An epoch of a history of the query of `context`."""
    digest = f"{history}{epoch}"
    return HistoryPoint(query_id="query-1", history=history, epoch=epoch, digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The epochs of a checkpoint, whose history parted from others after some epochs."""

    latest_epoch: int
    history: str = "h"
    parted: dict[str, int] = field(default_factory=dict)

    @property
    def retained_epochs(self) -> range:
        return range(self.latest_epoch + 1)

    def point(self, epoch: int) -> HistoryPoint:
        history = next((h for h, last in self.parted.items() if epoch <= last), self.history)
        return point(epoch, history)

    def relation(self, point: HistoryPoint) -> Relation:
        if point.epoch > self.latest_epoch and point.history == self.history:
            return "ahead"
        return "shared" if point == self.point(point.epoch) else "diverged"

    def last_shared_epoch(self, point: HistoryPoint) -> int:
        if self.relation(point) == "diverged":
            return min(self.parted.get(point.history, -1), point.epoch, self.latest_epoch)
        return min(point.epoch, self.latest_epoch)


def rows(epoch: int, *pairs: tuple[str | None, int | None]) -> EpochRows:
    """An epoch of (plane, total) rows."""
    planes, totals = zip(*pairs, strict=True) if pairs else ((), ())
    return EpochRows(epoch=epoch, table=pa.table({"plane": planes, "total": totals}, schema=SCHEMA))


def context(**changes: Any) -> SinkContext:
    """A context for (plane, total) rows keyed by plane, with some fields changed."""
    fields: dict[str, Any] = {
        "name": "by_plane",
        "writer": changes.get("name", "by_plane"),
        "flow": "delays",
        "query_id": "query-1",
        "schema": SCHEMA,
        "keys": ("plane",),
        "mapped": False,
        "complete": False,
        "views": Shown(),
    }
    fields |= changes
    fields.setdefault("unique_keys", (fields["keys"],) if fields["keys"] else ())
    return SinkContext(**fields)
