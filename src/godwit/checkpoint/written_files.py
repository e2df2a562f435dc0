"""Files that lanes wrote for a sink's target, as the checkpoint describes them.

The rows themselves are at the target; the checkpoint holds a list of their files as one block.
What a delivery names, links or removes comes from here, so a path that leads out of the target
is refused when it is read, whoever wrote it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from godwit.model.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WrittenFile", "WrittenFiles", "decode_files", "encode_files"]


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a lane wrote for a target and that nobody reads until its epoch is delivered."""

    path: str  # path within the target
    # path within the target once its epoch is delivered; the same if it stays where it is
    delivered: str
    # rows, size_bytes: rows in it, and its size
    rows: int
    size_bytes: int
    # partition column → its value in text, None for null; the file leaves those columns out
    partition: dict[str, str | None] = msgspec.field(default_factory=dict)
    # what else the target keeps about a file, as plain values
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class WrittenFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a lane wrote for one target in one epoch."""

    target: str  # path or URI of the target, without anything confidential
    files: tuple[WrittenFile, ...]  # the files


def encode_files(files: WrittenFiles) -> bytes:
    """Describe files as a block."""
    return msgspec.msgpack.encode(files)


def decode_files(data: bytes | pa.Buffer) -> WrittenFiles:
    """Undo `encode_files`."""
    try:
        written = msgspec.msgpack.decode(data, type=WrittenFiles)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptCheckpointError(
            f"A block does not describe files of a sink: {error}.",
            remedy="Run a verification of the checkpoint to see which file is affected.",
        ) from error
    for file in written.files:
        for path in (file.path, file.delivered):
            steps = path.split("/")
            if not all(steps) or {".", ".."} & set(steps) or "\0" in path:
                raise _damage(f"names {path!r} as a file within the target of a sink", path)
        if file.rows < 0 or file.size_bytes < 0:
            facts = f"{file.rows} rows and {file.size_bytes} bytes"
            raise _damage(f"gives the file {file.path!r} of a sink {facts}", file.path)
    return written


def _damage(what: str, path: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"A block {what}.",
        remedy="The checkpoint was changed by something else than Godwit; restore it from a copy.",
        path=path,
    )
