"""Rows that lanes wrote for the target that a sink had before: read back from its files.

After a restart the last epoch is delivered once more, perhaps to another target than the one its
files were written for.  Then its rows are read from those files, from where lanes put them or from
where delivery did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from godwit.model.errors import SinkError
from godwit.model.secrets import HIDDEN
from godwit.sinks.file_systems import exists, open_file_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.fs as pafs

    from godwit.checkpoint.staged_output import WrittenFile, WrittenFiles
    from godwit.sinks.carried_files import CarriedFiles

__all__ = ["read_former_target", "rows_of_file"]


def read_former_target(
    written: WrittenFiles, schema: pa.Schema, sink: str, carried: CarriedFiles | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files that were written for a target that `sink` does not write to.

    A copy of a checkpoint carries such files with it.

    Raises
    ------
    SinkError
        If the target or a file is not there, or cannot be reached.
    """
    copies = [None if carried is None else carried.read(written.target, f) for f in written.files]
    if copies and all(copy is not None for copy in copies):
        for file, copy in zip(written.files, copies, strict=True):
            yield from _rows(pa.BufferReader(copy), file, schema)
        return
    try:
        if HIDDEN in written.target:
            raise PermissionError("its password is not known here")
        filesystem, root = open_file_system(written.target)
        if not exists(filesystem, root):
            rows = sum(file.rows for file in written.files)
            raise SinkError(
                f"Sink {sink!r}: {rows} rows of the last epoch were written to {written.target}, "
                "another target, which is not there.",
                remedy="Bring it back to that path until the epoch is delivered. If it was removed "
                "on purpose, start the query once with gw.sinks.noop() in place of the sink, until "
                "an epoch has passed: that gives these rows up.",
                sink=sink,
                path=written.target,
            )
        for file in written.files:
            yield from rows_of_file(filesystem, root, file, schema)
    except OSError as error:
        raise SinkError(
            f"Sink {sink!r}: the last epoch was written to {written.target}, another target, and "
            f"cannot be read there: {error}.",
            remedy="Start the query once with the sink as it was, which delivers the epoch; then "
            "change it. Or make the former target readable without options.",
            sink=sink,
            path=written.target,
        ) from error


def rows_of_file(
    filesystem: pafs.FileSystem, root: str, file: WrittenFile, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that a lane wrote, from where it is now."""
    path = file.delivered if exists(filesystem, f"{root}/{file.delivered}") else file.path
    with filesystem.open_input_file(f"{root}/{path}") as stream:
        yield from _rows(stream, file, schema)


def _rows(stream: pa.NativeFile, file: WrittenFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in pq.ParquetFile(stream).iter_batches():
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else _repeated(file.partition.get(field.name), field.type, batch.num_rows)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(text: str | None, dtype: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, dtype) if text is None else pa.repeat(pa.scalar(text).cast(dtype), rows)
