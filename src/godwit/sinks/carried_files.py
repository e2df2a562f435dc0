"""Files of the last epoch: carried along with a copied checkpoint, read for another target.

**Carried files.** Rows that lanes wrote are at the target of the query that was copied, and only
there.  The copy delivers its last epoch to a target of its own, perhaps after the other query has
compacted its table, or on a machine that cannot reach that table.

So a copy of a checkpoint has these files beside it, under a name made of where each is.  They
are needed until the copy has an epoch of its own.

**Former target.** After a restart the last epoch is delivered once more, perhaps to another target
than the one its files were written for.  Then its rows are read from those files, from where lanes
put them or from where delivery did.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from godwit.checkpoint.blocks import read_block
from godwit.checkpoint.records import CARRIED
from godwit.model.errors import SinkError
from godwit.model.secrets import HIDDEN
from godwit.plan.staging import decode_files
from godwit.sinks.file_systems import exists, open_file_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.fs as pafs

    from godwit.checkpoint.records import OutputRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.plan.staging import WrittenFile, WrittenFiles

_LENGTH: Final = 32


def carry_files(
    storage: CheckpointStorage, outputs: Iterable[OutputRef], *, source: CheckpointStorage
) -> Iterator[str]:
    """Copy the data files of the last epoch into a copied checkpoint.

    `storage`, `source`: the copy, and the checkpoint that was copied. `outputs`: staged output of
    the copy's last record. Yields a text for each part of the output that cannot be copied.
    """
    carried = CarriedFiles(source)
    for ref in outputs:
        if ref.kind != "files":
            continue
        written = decode_files(read_block(storage, ref.block))
        try:
            for file in written.files:
                data = carried.read(written.target, file)
                if data is None:
                    data = _read_file(*open_file_system(written.target), file)
                storage.write_atomic(_path(written.target, file), data.to_pybytes())
        except (OSError, SinkError, pa.ArrowInvalid) as error:
            yield f"{ref.rows} rows for sink {ref.sink!r}, in files at {written.target}: {error}"


def _read_file(filesystem: pafs.FileSystem, root: str, file: WrittenFile) -> pa.Buffer:
    """Read a data file that a lane wrote, staged or delivered; raise if it is another file."""
    delivered = f"{root}/{file.delivered}"
    path = delivered if exists(filesystem, delivered) else f"{root}/{file.path}"
    with filesystem.open_input_file(path) as stream:
        data = stream.read_buffer()
    if pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows != file.rows:
        raise pa.ArrowInvalid(f"{path} is not the file that was written")
    return data


class CarriedFiles:
    """The files carried by a copied checkpoint.

    `storage`: the checkpoint, which the caller owns.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._paths = set(storage.list(CARRIED))

    def read(self, target: str, file: WrittenFile) -> pa.Buffer | None:
        """Return the bytes of a data file of a target; ``None`` if the checkpoint lacks it."""
        return self._storage.read(_path(target, file)) if self.has(target, file) else None

    def has(self, target: str, file: WrittenFile) -> bool:
        """Return whether the checkpoint has a copy of a target's data file."""
        return _path(target, file) in self._paths

    def forget(self) -> None:
        """Delete the copies of data files; the next committed epoch does not need them."""
        for path in self._paths:
            self._storage.delete(path)
        self._paths = set()


def _path(target: str, file: WrittenFile) -> str:
    """Return the checkpoint's path for the copy of a target's data file."""
    named = hashlib.sha256(f"{target}\0{file.path}".encode()).hexdigest()
    return f"{CARRIED}/{named[:_LENGTH]}.parquet"


def read_former_target(
    written: WrittenFiles, schema: pa.Schema, sink: str, carried: CarriedFiles | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of data files that lanes wrote to a target which the sink no longer has.

    `written`: the target and its files. `carried`: copies of such files in a copied checkpoint.
    """
    copies = [None if carried is None else carried.read(written.target, f) for f in written.files]
    if copies and all(copy is not None for copy in copies):
        for file, copy in zip(written.files, copies, strict=True):
            yield from _read_rows(pa.BufferReader(copy), file, schema)
        return
    try:
        if HIDDEN in written.target:
            raise PermissionError("its password is not known here")
        filesystem, root = open_file_system(written.target)
        if not exists(filesystem, root):
            rows = sum(file.rows for file in written.files)
            raise SinkError(
                f"Sink {sink!r}: {rows} rows of the last epoch were written to {written.target}, "
                "another target, which does not exist.",
                remedy="Bring it back to that path until the epoch is delivered. If it was removed "
                "on purpose, start the query once with gw.sinks.noop() instead of the sink, until "
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
    """Yield the rows of a data file of a lane, staged or delivered, in the columns of `schema`."""
    path = file.delivered if exists(filesystem, f"{root}/{file.delivered}") else file.path
    with filesystem.open_input_file(f"{root}/{path}") as stream:
        yield from _read_rows(stream, file, schema)


def _read_rows(
    stream: pa.NativeFile, file: WrittenFile, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in the columns of `schema`, partition columns included."""
    for batch in pq.ParquetFile(stream).iter_batches():
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else _constant_column(file.partition.get(field.name), field.type, batch.num_rows)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _constant_column(text: str | None, dtype: pa.DataType, rows: int) -> pa.Array:
    """Return a partition column: the value of `text`, parsed, for each of `rows` rows."""
    return pa.nulls(rows, dtype) if text is None else pa.repeat(pa.scalar(text).cast(dtype), rows)
