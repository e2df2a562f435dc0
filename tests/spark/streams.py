"""Streams for tests: a directory whose files are the epochs, and what a flow made of them."""

from __future__ import annotations

import math
import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

import godwit as gw
from godwit.checkpoint.chains import choose_snapshots
from godwit.spark.platform.pyspark_versions import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


__all__ = [
    "Inbox",
    "as_texts",
    "by_epoch",
    "comparable",
    "counted",
    "drain",
    "rows_of",
    "snapshots_of_small_changelogs",
    "totals",
]

Row = tuple[Any, ...]

_OLDEST_S = 1_600_000_000


@dataclass(slots=True, kw_only=True)
class Inbox:
    """A directory that a stream reads one file per epoch from, in the order they were put there.

    Attributes
    ----------
    spark
        The session.
    directory
        Where the files are.
    columns
        Names and types, as in ``"k string, v double"``.
    files_per_epoch
        How many files make an epoch.
    """

    spark: SparkSession
    directory: Path
    columns: str
    files_per_epoch: int = 1
    _schema: pa.Schema = field(init=False)
    _put: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        schema = StructType.fromDDL(self.columns)
        assert isinstance(schema, StructType)
        self._schema = arrow_schema_of(schema, zone="UTC")
        self._put = len(list(self.directory.glob("*.parquet")))

    def put(self, *epochs: Sequence[Row]) -> None:
        """Add files, one for each list of rows."""
        for rows in epochs:
            arrays = [
                pa.array([row[i] for row in rows], f.type) for i, f in enumerate(self._schema)
            ]
            hidden = self.directory / f"_{self._put:06d}"
            pq.write_table(pa.Table.from_arrays(arrays, schema=self._schema), hidden)
            # Spark orders files by their time of modification, which is coarse.
            os.utime(hidden, (_OLDEST_S + self._put, _OLDEST_S + self._put))
            hidden.rename(self.directory / f"{self._put:06d}.parquet")
            self._put += 1

    def stream(self) -> DataFrame:
        """Return the rows as a stream."""
        reader = self.spark.readStream.schema(self.columns)
        return reader.option("maxFilesPerTrigger", self.files_per_epoch).parquet(
            str(self.directory)
        )

    def batch(self) -> DataFrame:
        """Return the rows as a table."""
        return self.spark.read.schema(self.columns).parquet(str(self.directory))


def totals(inbox: Inbox, sink: Any, name: str = "query") -> gw.Flow:
    """Make a flow that adds up column v by column k."""
    flow = gw.Flow(name, num_key_groups=8)
    stream = flow.source("rows", inbox.stream()).key_by("k").compute(name="t", total=gw.sum("v"))
    flow.sink("out", stream, sink)
    return flow


def drain(flow: gw.Flow, checkpoint: Path, **options: Any) -> gw.types.Query:
    """Run a flow over everything there is, and close what is open then unless told otherwise."""
    options = {"close_at_end": True, **options}
    query = flow.start(checkpoint=checkpoint, trigger={"availableNow": True}, **options)
    query.awaitTermination()
    return query


@contextmanager
def snapshots_of_small_changelogs() -> Iterator[None]:
    """Let runs take a snapshot of whatever has a changelog, at the first opportunity."""
    with pytest.MonkeyPatch.context() as patch:
        eager = partial(choose_snapshots, min_changelog_bytes=1)
        patch.setattr("godwit.engine.instructions.choose_snapshots", eager)
        yield


def comparable(value: Any) -> Any:
    """Make NaN equal to itself, and tell 0.0 from -0.0 and 1 from 1.0."""
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else value.hex())
    if isinstance(value, list | tuple):
        return tuple(comparable(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, comparable(v)) for k, v in sorted(value.items()))
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def rows_of(table: pa.Table | DataFrame) -> list[Row]:
    """Rows as tuples."""
    if isinstance(table, pa.Table):
        return [tuple(row.values()) for row in table.to_pylist()]
    return [tuple(row) for row in table.collect()]


def counted(rows: Iterable[Row]) -> Counter[Any]:
    """Rows as a bag: how often each of them is there."""
    return Counter(comparable(row) for row in rows)


def as_texts(rows: Iterable[Row]) -> list[str]:
    """Rows as texts in one order."""
    return sorted(map(repr, rows))


def by_epoch(epochs: Mapping[int, pa.Table]) -> dict[int, Counter[Any]]:
    """Rows of each epoch as a bag; the order of lanes within an epoch is of no meaning."""
    return {epoch: counted(rows_of(table)) for epoch, table in epochs.items()}
