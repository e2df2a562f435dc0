"""The sinks of a flow on Spark's driver: opened, given what is staged, closed.

Lanes stage rows in the checkpoint, or write them to the target and stage the names of the files;
the commit record names what counts, so whatever a sink is given, now or after a crash, is the same
rows in the same order.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.dataflow.staging import Rejections, StagedSink
from godwit.lane.outputs import refusal, rejected_rows
from godwit.model.errors import GodwitError, SinkError
from godwit.sinks.former_target import read_former_target
from godwit.sinks.sink import SinkContext
from godwit.state.blocks import decode_batch, read_block
from godwit.state.written_files import decode_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from godwit.dataflow.compiled import CompiledFlow, Output
    from godwit.dataflow.staging import RowCheck
    from godwit.sinks.sink import EpochOutput
    from godwit.state.records import CommitRecord, OutputRef
    from godwit.state.storage import CheckpointStorage
    from godwit.state.written_files import WrittenFile, WrittenFiles

__all__ = [
    "SessionViews",
    "StagedOutput",
    "close_sinks",
    "deliver",
    "open_sinks",
    "staged_sinks",
]

_LOCAL_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class SessionViews:
    """Temporary views of a Spark session (see `godwit.sinks.sink.Views`)."""

    spark: SparkSession

    def show(self, name: str, rows: pa.Table) -> None:
        """Keep a temporary view."""
        self.spark.createDataFrame(rows).createOrReplaceTempView(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutput:
    """The rows of one epoch for one sink (see `godwit.sinks.EpochOutput`).

    Attributes
    ----------
    output
        The sink, as the flow describes it.
    epoch
        The epoch.
    refs
        Where the rows are, in order.
    storage
        The checkpoint.
    spark
        The session.
    on_divert
        Gets rows that the sink rejects while it delivers; ``None`` if nobody does.
    check
        Finds rows that the sink cannot take, where lanes have not looked for them: another run
        staged them, perhaps for another sink.
    """

    output: Output
    epoch: int
    refs: Sequence[OutputRef]
    storage: CheckpointStorage
    spark: SparkSession
    on_divert: Callable[[pa.Table], None] | None = None
    check: RowCheck | None = None

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows: staged rows say it themselves."""
        held = next((ref for ref in self.refs if ref.kind == "rows"), None)
        return self.output.schema if held is None else self._batch(held).schema

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(ref.rows for ref in self.refs)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows on the driver, one batch at a time, but for the sink's own files."""
        if self.check is None or self.schema.names != self.output.schema.names:
            yield from self._staged()
            return
        rejected: list[pa.RecordBatch] = []
        reasons: list[str] = []
        for batch in self._staged():
            found = self.check(batch)
            if found is None:
                yield batch
                continue
            rejected.append(batch.take(pa.array(found.rows)))
            reasons += found.reasons
            kept = np.ones(batch.num_rows, np.bool_)
            kept[found.rows] = False
            yield batch.filter(pa.array(kept))
        if rejected:
            rows = pa.concat_batches(rejected)
            self.divert(rows, Rejections(rows=np.arange(rows.num_rows), reasons=reasons))

    def _staged(self) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for ref in self.refs:
            if ref.kind == "rows":
                yield self._batch(ref)
            elif (written := self._written(ref)).target != self.output.sink.target:
                yield from read_former_target(written, schema, self.output.name)

    def files(self) -> Sequence[WrittenFile]:
        """Files that lanes wrote to the sink's target."""
        written = [self._written(ref) for ref in self.refs if ref.kind == "files"]
        own = [files for files in written if files.target == self.output.sink.target]
        return [file for files in own for file in files.files]

    def dataframe(self) -> DataFrame:
        """Make a DataFrame of the rows; executors read them, unless they are few."""
        held = [ref for ref in self.refs if ref.kind == "rows"]
        size = sum(ref.block.length for ref in held)
        if size <= _LOCAL_BYTES or len(held) < len(self.refs):
            table = pa.Table.from_batches(self.batches(), schema=self.schema)
            return self.spark.createDataFrame(table)
        storage = self.storage
        rows = [(pickle.dumps(ref.block),) for ref in held]

        def read(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in blocks:
                for block in batch.column(0).to_pylist():
                    yield decode_batch(read_block(storage, pickle.loads(block)))  # noqa: S301  our own

        blocks = self.spark.createDataFrame(rows, "block binary").repartition(len(rows))
        return blocks.mapInArrow(read, from_arrow_schema(self.schema))

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        """Give rows to the sink of rejected rows.

        Raises
        ------
        SinkError
            If there is none.
        """
        rejected = rejected_rows(self.output.name, self.output.keys, rows, rejections)
        if self.on_divert is None:
            raise refusal(
                self.output.name,
                rejected,
                keyed=bool(self.output.keys),
                where=f"epoch {self.epoch}, which is committed",
            )
        self.on_divert(rejected)

    def _batch(self, ref: OutputRef) -> pa.RecordBatch:
        return decode_batch(read_block(self.storage, ref.block))

    def _written(self, ref: OutputRef) -> WrittenFiles:
        return decode_files(read_block(self.storage, ref.block))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithDiverted:
    """Rejected rows of an epoch: those that lanes staged, then those found in delivery."""

    staged: StagedOutput
    diverted: pa.Table

    @property
    def epoch(self) -> int:
        return self.staged.epoch

    @property
    def schema(self) -> pa.Schema:
        return self.staged.schema

    @property
    def num_rows(self) -> int:
        return self.staged.num_rows + int(self.diverted.num_rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.staged.batches()
        yield from self.diverted.to_batches()

    def files(self) -> Sequence[WrittenFile]:
        return self.staged.files()

    def dataframe(self) -> DataFrame:
        spark = self.staged.spark
        return self.staged.dataframe().unionByName(spark.createDataFrame(self.diverted))

    def divert(self, rows: pa.RecordBatch, rejections: Rejections) -> None:
        self.staged.divert(rows, rejections)


def open_sinks(flow: CompiledFlow, query_id: str, spark: SparkSession) -> None:
    """Open every sink of a flow.

    Raises
    ------
    SinkError
        If a target cannot take what it will get.
    """
    for output in flow.outputs:
        # Rejected rows are never the whole of anything.
        complete = flow.operator(output.operator).complete and output.rejects_of is None
        output.sink.open(
            SinkContext(
                name=output.name,
                flow=flow.name,
                query_id=query_id,
                schema=output.schema,
                keys=output.keys,
                complete=complete,
                views=SessionViews(spark),
            )
        )


def close_sinks(flow: CompiledFlow) -> None:
    """Close every sink of a flow."""
    for output in flow.outputs:
        output.sink.close()


def staged_sinks(flow: CompiledFlow) -> list[StagedSink]:
    """Collect what the open sinks of a flow give to lanes, as far as these stage rows for them."""
    rejects = {output.rejects_of: output.name for output in flow.outputs if output.rejects_of}
    return [
        StagedSink(
            name=output.name,
            maps=output.maps,
            keys=output.keys,
            check=output.sink.row_check(),
            rejects=rejects.get(output.name),
            writer=output.sink.lane_writer(),
        )
        for output in flow.outputs
        if output.rejects_of is None and output.sink.wants_rows
    ]


def deliver(
    flow: CompiledFlow,
    record: CommitRecord,
    storage: CheckpointStorage,
    spark: SparkSession,
    *,
    again: bool = False,
) -> None:
    """Give every sink what the record of an epoch names for it.

    Parameters
    ----------
    flow, record, storage, spark
        The flow, the epoch, the checkpoint, the session.
    again
        Whether another run may have staged the epoch, before the sinks were what they are.

    Raises
    ------
    SinkError
        If a sink failed; the epoch is committed all the same.
    """
    rejecting = {output.rejects_of: output for output in flow.outputs if output.rejects_of}

    def staged(output: Output) -> StagedOutput:
        return StagedOutput(
            output=output,
            epoch=record.epoch,
            refs=[ref for ref in record.outputs if ref.sink == output.name],
            storage=storage,
            spark=spark,
            on_divert=None if output.name not in rejecting else divert_to(rejecting[output.name]),
            check=output.sink.row_check() if again and output.rejects_of is None else None,
        )

    def divert_to(output: Output) -> Callable[[pa.Table], None]:
        def divert(rows: pa.Table) -> None:
            _give(output, _WithDiverted(staged=staged(output), diverted=rows))

        return divert

    for output in flow.outputs:
        _give(output, staged(output))


def _give(output: Output, epoch: EpochOutput) -> None:
    try:
        output.sink.deliver(epoch)
    except GodwitError:
        raise
    except Exception as error:
        raise SinkError(
            f"Sink {output.name!r} failed on epoch {epoch.epoch}: {type(error).__name__}: {error}",
            remedy="The epoch is committed; it is delivered again when the query is started again.",
            sink=output.name,
            epoch=epoch.epoch,
        ) from error
