"""Staged output: the contract between sinks on the driver and the lanes that produce rows.

A sink lives on the driver and is given an epoch once it is committed.  Two things cannot wait for
that.  A row that its target will never take has to be found while the epoch can still be refused,
or the row set aside: afterwards it would stop every delivery.  And the bytes should be written
where the rows are, by the lanes, so that delivery has only to name them.  Both are done by small
picklable objects that a sink makes once it is open.  Their types stand here, below both sides,
since sinks and lanes do not know each other.

*Written files* (`WrittenFiles`): the rows are at the target; the checkpoint has a list of their
files as one block.  A delivery links and removes these files, so a path that leads out of the
target is refused when the list is read.

*Diverted rows* (`DivertedRows`): a server may refuse a row only in delivery, after the commit,
which therefore cannot name it.  Invariant: the rows are durable in the checkpoint before the target
commits the others, and stay until the epoch cannot be delivered again.  So after any crash of the
driver, the sink of rejected rows gets the same rows: those staged by lanes, then the diverted ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, encode_batch
from godwit.checkpoint.framing import encode_record, load_record
from godwit.checkpoint.records import DIVERTED, Size
from godwit.model.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.plan.feedback import Feedback
    from godwit.plan.maps import ArrowMap


REJECTED: Final = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""Columns of rows that a sink could not take: plain ASCII, so that every target takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejections:
    """Rows that a target cannot take, with reasons."""

    rows: npt.NDArray[np.int64]  # their positions, ascending
    reasons: Sequence[str]  # why, one for each: names the column


RowCheck: TypeAlias = "Callable[[pa.RecordBatch], Rejections | None]"
"""Finds the rows that a target cannot take; ``None`` if it takes all. Picklable."""


class LaneWriter(Protocol):
    """Port: writes a lane's rows of one epoch as files of the target; picklable."""

    @property
    def target(self) -> str:
        """Path or URI of the target, without secrets."""

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> Sequence[WrittenFile] | None:
        """Write rows to files with unique names that readers of the target do not see yet.

        Returns ``None`` if the target cannot be reached from here, or the rows are too few for a
        file: they must be staged in the checkpoint instead. `place`: number of the lane.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSink:
    """A sink's part that the lanes of its operator use; picklable."""

    name: str
    maps: tuple[ArrowMap, ...]  # on the way to it
    keys: tuple[str, ...]  # columns that tell its rows apart, for messages
    check: RowCheck | None  # finds the rows that its target cannot take; ``None`` if it takes any
    rejects: str | None  # sink that gets those rows; ``None`` if they are to stop the epoch
    writer: LaneWriter | None  # writes the target's own files; ``None``: rows go to the checkpoint
    time: str | None = None  # column of event time of which the least is recorded with the rows


def loop_sink(edge: Feedback) -> StagedSink:
    """Return the sink at the end of a loop: lanes stage its rows, which stay in the checkpoint."""
    return StagedSink(
        name=edge.staged_as,
        maps=edge.maps,
        keys=(),
        check=None,
        rejects=None,
        writer=None,
        time=edge.time,
    )


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a lane wrote at a target, invisible to readers until its epoch is delivered."""

    path: str  # path within the target
    # path within the target once its epoch is delivered; the same if it stays where it is
    delivered: str
    # rows, size_bytes: rows in it, and its size
    rows: Size
    size_bytes: Size
    # partition column → its value in text, None for null; the file leaves those columns out
    partition: dict[str, str | None] = msgspec.field(default_factory=dict)
    # other data of the target about a file, as plain values
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class WrittenFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a lane wrote for one target in one epoch."""

    target: str  # path or URI of the target, without anything confidential
    files: tuple[WrittenFile, ...]  # the files


def encode_files(files: WrittenFiles) -> bytes:
    """Encode the list of files that a lane wrote to a target, as a block of the checkpoint."""
    return msgspec.msgpack.encode(files)


def decode_files(data: bytes | pa.Buffer) -> WrittenFiles:
    """Decode a block that `encode_files` encoded; refuse paths that lead out of the target."""
    try:
        written = msgspec.msgpack.decode(data, type=WrittenFiles)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptCheckpointError(
            f"A block does not describe files of a sink: {error}.",
            remedy="Run `godwit checkpoint verify` to see which file is affected.",
        ) from error
    for file in written.files:
        for path in (file.path, file.delivered):
            steps = path.split("/")
            if not all(steps) or {".", ".."} & set(steps) or "\0" in path:
                raise CorruptCheckpointError(
                    f"A block names {path!r} as a file within the target of a sink.",
                    remedy="The checkpoint was changed by something else than Godwit; restore it "
                    "from a copy.",
                    path=path,
                )
    return written


class RefusedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one epoch that one sink rejected, as Arrow IPC."""

    epoch: int
    sink: str
    rows: bytes


class DivertedRows:
    """Store of rejected rows of the last epochs."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._paths = set(storage.list(DIVERTED))

    def store(self, sink: str, epoch: int, rows: Iterable[pa.Table]) -> None:
        """Store rows that a sink rejected, replacing those of an earlier attempt."""
        (batch,) = pa.concat_tables(rows).combine_chunks().to_batches()
        record = RefusedRows(epoch=epoch, sink=sink, rows=bytes(encode_batch(batch)))
        path = _path_of_rejected_rows(sink, epoch)
        self._storage.write_atomic(path, encode_record(record))
        self._paths.add(path)

    def read(self, sink: str, epoch: int) -> tuple[pa.RecordBatch, ...]:
        """Return the rows of an epoch that a sink rejected."""
        path = _path_of_rejected_rows(sink, epoch)
        if path not in self._paths:
            return ()
        return (decode_batch(pa.py_buffer(load_record(self._storage, path, RefusedRows).rows)),)

    def delete(self, sink: str, epoch: int) -> None:
        """Delete the stored rows that a sink rejected in an epoch, before another attempt."""
        self._delete_files({_path_of_rejected_rows(sink, epoch)})

    def delete_before(self, epoch: int) -> None:
        """Delete the stored rows of epochs before `epoch`, which are not delivered again."""
        self._delete_files({path for path in self._paths if path < f"{DIVERTED}/{epoch:012d}"})

    def _delete_files(self, paths: set[str]) -> None:
        """Delete the files of rejected rows at the given paths."""
        for path in paths & self._paths:
            self._storage.delete(path)
        self._paths -= paths


def _path_of_rejected_rows(sink: str, epoch: int) -> str:
    """Return the path, in the checkpoint, of the rows of an epoch that a sink rejected."""
    # Names of sinks may have characters that names of files cannot have.
    return f"{DIVERTED}/{epoch:012d}-{hashlib.sha256(sink.encode()).hexdigest()[:16]}.rec"
