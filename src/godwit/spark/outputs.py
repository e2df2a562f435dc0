"""An epoch's staged output, read back for a sink.

Lanes stage rows in the checkpoint and the commit record names them, so whatever a sink is given,
now or after a crash, is the same rows in the same order.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.model.errors import GodwitError, SinkError
from godwit.state.blocks import decode_batch, read_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from godwit.dataflow.compiled import CompiledFlow
    from godwit.state.records import CommitRecord, OutputRef
    from godwit.state.storage import CheckpointStorage

__all__ = ["StagedOutput", "deliver"]

_LOCAL_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutput:
    """The rows of one epoch for one sink (see `godwit.sinks.EpochOutput`).

    Attributes
    ----------
    epoch
        The epoch.
    schema
        Columns.
    refs
        Where the rows are, in order.
    storage
        The checkpoint.
    spark
        The session.
    """

    epoch: int
    schema: pa.Schema
    refs: Sequence[OutputRef]
    storage: CheckpointStorage
    spark: SparkSession

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(ref.rows for ref in self.refs)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows on the driver, one batch at a time."""
        for ref in self.refs:
            yield decode_batch(read_block(self.storage, ref.block))

    def dataframe(self) -> DataFrame:
        """Make a DataFrame of the rows; executors read them, unless they are few."""
        if sum(ref.block.length for ref in self.refs) <= _LOCAL_BYTES:
            table = pa.Table.from_batches(self.batches(), schema=self.schema)
            return self.spark.createDataFrame(table)
        storage = self.storage
        rows = [(pickle.dumps(ref.block),) for ref in self.refs]

        def read(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in blocks:
                for block in batch.column(0).to_pylist():
                    yield decode_batch(read_block(storage, pickle.loads(block)))  # noqa: S301  our own

        blocks = self.spark.createDataFrame(rows, "block binary").repartition(len(rows))
        return blocks.mapInArrow(read, from_arrow_schema(self.schema))


def deliver(
    flow: CompiledFlow, record: CommitRecord, storage: CheckpointStorage, spark: SparkSession
) -> None:
    """Give every sink what the record of an epoch names for it.

    Raises
    ------
    SinkError
        If a sink failed; the epoch is committed all the same.
    """
    for output in flow.outputs:
        staged = StagedOutput(
            epoch=record.epoch,
            schema=output.schema,
            refs=[ref for ref in record.outputs if ref.sink == output.name],
            storage=storage,
            spark=spark,
        )
        try:
            output.sink.deliver(staged)
        except GodwitError:
            raise
        except Exception as error:
            raise SinkError(
                f"Sink {output.name!r} failed on epoch {record.epoch}: "
                f"{type(error).__name__}: {error}",
                remedy="The epoch is committed; it is delivered again when the query is started "
                "again.",
                sink=output.name,
                epoch=record.epoch,
            ) from error
