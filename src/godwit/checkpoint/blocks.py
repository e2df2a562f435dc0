"""Blocks: byte ranges that a lane writes in an epoch, in one file, or in the record if small.

A lane writes a segment for each operator, now and then snapshots, and staged output; a file for
each would be too many small files.

Invariants: the name of a file has its epoch and a unique part per attempt, so a retry, a
speculative copy or a zombie never touches files of another attempt; a block is verified against its
checksum before it is decoded.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

import pyarrow as pa

from godwit.checkpoint.records import BLOCKS, BlockRef, SegmentRef, padded
from godwit.model.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from godwit.checkpoint.records import SnapshotRef
    from godwit.checkpoint.storage import CheckpointStorage, OutputFile

DEFAULT_INLINE_BYTES: Final = 32 * 1024

Compression = Literal["lz4", "zstd"]

# Arrow's exceptions for invalid streams and names.
_UNREADABLE = (pa.ArrowException, OSError, StopIteration, UnicodeDecodeError)


class BlockWriter:
    """Writer of the blocks of one attempt at a lane task.

    Leaving the context without `close`, or by an exception, discards the blocks.

    `epoch`: the epoch whose record will name the blocks; an earlier one may, a later one may not.
    `inline_limit_bytes`: if all blocks together have at most this many bytes, they are not written
    to a file but travel in the commit record.
    `attempt`: a name that no other attempt has; random by default.

    Examples
    --------
    >>> from godwit.checkpoint.storage import CheckpointStorage
    >>> with BlockWriter(CheckpointStorage.open("unused"), epoch=3, name="lane0") as writer:
    ...     index = writer.add(b"seven bytes would do")
    ...     blocks = writer.close()
    >>> blocks[index].length, blocks[index].file
    (20, '')
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        epoch: int,
        name: str,
        inline_limit_bytes: int = DEFAULT_INLINE_BYTES,
        attempt: str | None = None,
    ) -> None:
        label = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:80] or "_"
        attempt = uuid4().hex[:16] if attempt is None else attempt
        self.path: Final = f"{BLOCKS}/{epoch:012d}-{label}-{attempt}.blk"
        self._storage = storage
        self._inline_limit_bytes = inline_limit_bytes
        self._unwritten_blocks: list[bytes | pa.Buffer] = []
        self._refs: list[BlockRef] = []
        self._file: OutputFile | None = None
        self._end_of_file = 0

    def add(self, data: bytes | pa.Buffer) -> int:
        """Add a block of bytes; return its position in the list that `close` returns."""
        length = memoryview(data).nbytes
        padding = bytes(padded(length) - length)
        checksum = zlib.crc32(padding, zlib.crc32(data))
        index = len(self._refs)
        self._refs.append(
            BlockRef(file=self.path, offset=self._end_of_file, length=length, checksum=checksum)
        )
        self._end_of_file += length + len(padding)
        self._unwritten_blocks += (data, padding)
        if self._file is not None or self._end_of_file > self._inline_limit_bytes:
            if self._file is None:
                self._file = self._storage.open_output(self.path)
            for part in self._unwritten_blocks:
                self._file.write(part)
            self._unwritten_blocks.clear()
        return index

    @property
    def file_bytes(self) -> int:
        """Bytes in the file so far; 0 while there is none."""
        return 0 if self._file is None else self._end_of_file

    def close(self) -> list[BlockRef]:
        """Make the blocks durable; return a reference to each, in the order of `add`."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            return self._refs
        return [
            BlockRef(file="", offset=0, length=ref.length, checksum=ref.checksum, data=bytes(data))
            for ref, data in zip(self._refs, self._unwritten_blocks[::2], strict=True)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.abort()


def read_block(storage: CheckpointStorage, ref: BlockRef) -> pa.Buffer:
    """Read a block's bytes and verify their checksum; a local file is mapped, not copied."""
    if ref.data or not ref.file:
        buffer = pa.py_buffer(ref.data + bytes(padded(ref.length) - ref.length))
    else:
        buffer = storage.read(ref.file, ref.offset, padded(ref.length))
    if zlib.crc32(buffer) != ref.checksum or buffer.size < ref.length:
        raise CorruptCheckpointError(
            f"The block of {ref.length} bytes at {ref.offset} of {ref.file!r} in the checkpoint "
            f"{storage.uri!r} fails its checksum.",
            remedy="Restore this file from a copy of the checkpoint; run `godwit checkpoint "
            "verify` to see what else is affected.",
            file=ref.file,
            offset=ref.offset,
            uri=storage.uri,
        )
    return buffer.slice(0, ref.length)


def encode_batch(batch: pa.RecordBatch, compression: Compression | None = None) -> pa.Buffer:
    """Write a record batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def decode_batch(data: bytes | pa.Buffer, *, is_verified: bool = False) -> pa.RecordBatch:
    """Decode an Arrow IPC stream of one record batch, without a copy unless it is compressed.

    A checksum detects changed bytes, but invalid offsets in a batch can still crash the process.
    So every batch is validated in full, unless it was before (`is_verified`).
    """
    try:
        with pa.ipc.open_stream(data) as stream:
            batch = stream.read_next_batch()
        batch.validate(full=not is_verified)
        batch.schema.names  # noqa: B018  raises for invalid names
    except _UNREADABLE as error:
        raise CorruptCheckpointError(
            f"A block is not an Arrow record batch: {error}.",
            remedy="Run `godwit checkpoint verify` to see which file is affected.",
        ) from error
    return batch


def read_batch(storage: CheckpointStorage, ref: BlockRef) -> pa.RecordBatch:
    """Read a block as an Arrow record batch; raise if its checksum fails or it is not one."""
    buffer = read_block(storage, ref)
    try:
        return decode_batch(buffer)
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(
            f"The block at {ref.offset} of {ref.file!r} in the checkpoint {storage.uri!r} is "
            f"not a valid Arrow record batch, although its checksum is right ({error.__cause__}).",
            remedy="It was not written by this version of Godwit.",
            file=ref.file,
            offset=ref.offset,
            uri=storage.uri,
        ) from error


def read_segment(storage: CheckpointStorage, segment: SegmentRef) -> pa.RecordBatch:
    """Read the rows of a changelog segment; raise if their number differs from the recorded one."""
    batch = read_batch(storage, segment.block)
    check_num_rows(storage, segment, batch)
    return batch


def check_num_rows(
    storage: CheckpointStorage, ref: SegmentRef | SnapshotRef, batch: pa.RecordBatch
) -> None:
    """Raise if the number of rows of a segment or snapshot differs from the recorded one."""
    if isinstance(ref, SegmentRef):
        name, expected = f"A segment of epoch {ref.epoch}", ref.row_ends[-1] if ref.row_ends else 0
    else:
        name, expected = f"A snapshot of epoch {ref.version}", ref.rows
    if batch.num_rows != expected:
        raise CorruptCheckpointError(
            f"{name} of '{ref.id}' has {batch.num_rows} rows, not {expected}.",
            remedy="Run `godwit checkpoint verify`, and restore the checkpoint from a copy.",
            file=ref.block.file,
            uri=storage.uri,
        )
