"""A Spark session, as sinks know it (see `godwit.engine.outputs.Session`)."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from godwit.checkpoint.blocks import decode_batch, read_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from godwit.checkpoint.records import BlockRef
    from godwit.checkpoint.storage import CheckpointStorage

__all__ = ["SinkSession"]


@dataclass(frozen=True, slots=True)
class SinkSession:
    """Makes DataFrames and temporary views in a Spark session."""

    spark: SparkSession

    def show(self, name: str, rows: pa.Table) -> None:
        """Keep a temporary view."""
        self.spark.createDataFrame(rows).createOrReplaceTempView(name)

    def dataframe(self, rows: pa.Table) -> DataFrame:
        """Make a DataFrame of rows that are here."""
        return self.spark.createDataFrame(rows)

    def stored_dataframe(
        self, storage: CheckpointStorage, blocks: Sequence[BlockRef], schema: pa.Schema
    ) -> DataFrame:
        """Make a DataFrame of rows in the checkpoint, which executors read."""

        def read(pickled: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in pickled:
                for block in batch.column(0).to_pylist():
                    yield decode_batch(read_block(storage, pickle.loads(block)))  # noqa: S301  our own

        rows = [(pickle.dumps(block),) for block in blocks]
        frame = self.spark.createDataFrame(rows, "block binary").repartition(len(rows))
        return frame.mapInArrow(read, from_arrow_schema(schema))
