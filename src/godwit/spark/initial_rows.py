"""Rows of a batch DataFrame on the driver, partition by partition, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.engine.initial_state import InitialRows
from godwit.model.errors import InvalidInputError
from godwit.spark.stages.source_rows import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_BYTES = 4 << 20


def rows_of_dataframe(value: Any) -> InitialRows | None:
    """Return the rows of a batch DataFrame; ``None`` for values of other types.

    Raises `InvalidInputError` for a streaming DataFrame.
    """
    if not (type(value).__module__.startswith("pyspark.") and hasattr(value, "mapInArrow")):
        return None
    if value.isStreaming:
        raise InvalidInputError(
            "The initial state is a streaming DataFrame.",
            remedy="Give a batch DataFrame, such as one from spark.read.",
        )

    def batches() -> Iterator[pa.RecordBatch]:
        """Yield the rows as they arrive from the executors, two partitions at a time."""
        packed = value.mapInArrow(_packed, "rows binary")
        for row in packed.toLocalIterator(prefetchPartitions=True):
            with pa.ipc.open_stream(row[0]) as stream:
                yield from stream

    return InitialRows(schema=arrow_schema(value), batches=batches)


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield record batches as Arrow streams of a few megabytes, each in one binary value."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _BYTES:
            yield _stream_of(waiting)
            waiting, size = [], 0
    if waiting:
        yield _stream_of(waiting)


def _stream_of(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one row with record batches as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()])], ["rows"])
