"""Data sources as others write them for PySpark, over numbers that a file holds."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = "n bigint, text string, price decimal(10,2), day date, ts timestamp, tags array<string>"


def row(n: int) -> tuple[Any, ...]:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n)
    text = None if n % 5 == 0 else f"t{n}"
    return n, text, Decimal(n) / 4, moment.date(), moment, [text, "x"]


def count_of(options: Any) -> int:
    return int(Path(options["path"]).read_text())


class Range(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Partitioned(DataSourceStreamReader):
    """Reader with partitions of three rows; the file says how many rows there are."""

    def __init__(self, options: Any, *, batches: bool) -> None:
        self._options, self._batches = options, batches
        self.calls: list[Any] = []

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        most = getattr(limit, "max_rows", None)
        end = count_of(self._options)
        return {"next": end if most is None else min(end, start["next"] + most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        steps = range(start["next"], end["next"], 3)
        return [Range(n, min(n + 3, end["next"])) for n in steps]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Range)
        numbers = range(partition.start, partition.end)
        if not self._batches:
            return iter([row(n) for n in numbers])
        return iter([pa.RecordBatch.from_pylist([{"n": n, "text": f"t{n}"} for n in numbers])])

    def commit(self, end: dict[str, int]) -> None:
        Path(self._options["path"] + ".committed").write_text(str(end["next"]))

    def stop(self) -> None:
        Path(self._options["path"] + ".stopped").touch()


class Simple(SimpleDataSourceStreamReader):
    """Reader of two rows at a time."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = min(count_of(self._options), start["next"] + 2)
        return iter([row(n) for n in range(start["next"], end)]), {"next": end}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([row(n) for n in range(start["next"], end["next"])])

    def commit(self, end: dict[str, int]) -> None:
        Path(self._options["path"] + ".committed").write_text(str(end["next"]))


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Partitioned(self.options, batches=False)


class Batches(Numbers):
    def schema(self) -> str:
        return "n bigint, text string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Partitioned(self.options, batches=True)


class SimpleNumbers(DataSource):
    def schema(self) -> str:
        return COLUMNS

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return Simple(self.options)


class Counted(WriterCommitMessage):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines


class Writer(DataSourceStreamWriter):
    """Writes a file for each batch, which it replaces if the batch comes again."""

    def __init__(self, options: Any, schema: Any) -> None:
        self._options, self._schema = options, schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        lines = []
        for each in iterator:
            if each.total == 13:
                raise ValueError(f"unlucky, says {self._options['token']}")
            lines.append(f"{each.plane} {each.total}")
        return Counted(lines)

    def commit(self, messages: list[Any], batchId: int) -> None:
        lines = [line for message in messages for line in message.lines]
        (Path(self._options["path"]) / f"{batchId}.txt").write_text("\n".join(lines))

    def abort(self, messages: list[Any], batchId: int) -> None:
        (Path(self._options["path"]) / f"{batchId}.aborted").write_text(repr(messages))


class ArrowWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Any) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        rows = pa.Table.from_batches(list(iterator)).to_pylist()
        return Counted([f"{each['plane']} {each['total']}" for each in rows])

    def commit(self, messages: list[Any], batchId: int) -> None:
        Writer.commit(self, messages, batchId)  # type: ignore[arg-type]

    def abort(self, messages: list[Any], batchId: int) -> None:
        raise AssertionError(messages)


class Files(DataSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        if self.options.get("arrow") == "true":
            return ArrowWriter(self.options)
        return Writer(self.options, schema)
