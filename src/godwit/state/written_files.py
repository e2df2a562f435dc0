"""Files that lanes wrote for a sink's target, as the checkpoint describes them.

The rows themselves are at the target; the checkpoint holds a list of their files as one block.
What a delivery names, renames or removes comes from here, so a path that leads out of the target
is refused when it is read, whoever wrote it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from godwit.model.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["WrittenFile", "decode_files", "encode_files"]


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a lane wrote for a target and that nobody reads until its epoch is delivered.

    Attributes
    ----------
    path
        Path within the target.
    rows, size_bytes
        Rows in it, and its size.
    partition
        Partition column → value, as the target writes it in text; None for null.
    facts
        What else the target keeps about a file, as plain values.
    """

    path: str
    rows: int
    size_bytes: int
    partition: dict[str, str | None] = msgspec.field(default_factory=dict)
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


def encode_files(files: Sequence[WrittenFile]) -> bytes:
    """Describe files as a block."""
    return msgspec.msgpack.encode(files)


def decode_files(data: bytes | pa.Buffer) -> list[WrittenFile]:
    """Undo `encode_files`.

    Raises
    ------
    CorruptCheckpointError
        If the bytes are no such description, or a path in it leads out of the target.
    """
    try:
        files = msgspec.msgpack.decode(data, type=list[WrittenFile])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptCheckpointError(
            f"A block does not describe files of a sink: {error}.",
            remedy="Run a verification of the checkpoint to see which file is affected.",
        ) from error
    for file in files:
        steps = file.path.split("/")
        if not all(steps) or {".", ".."} & set(steps) or "\0" in file.path:
            raise CorruptCheckpointError(
                f"A block names {file.path!r} as a file within the target of a sink.",
                remedy="The checkpoint was changed by something else than Godwit; restore it from "
                "a copy.",
                path=file.path,
            )
        if file.rows < 0 or file.size_bytes < 0:
            raise CorruptCheckpointError(
                f"A block gives the file {file.path!r} of a sink {file.rows} rows and "
                f"{file.size_bytes} bytes.",
                remedy="The checkpoint was changed by something else than Godwit; restore it from "
                "a copy.",
                path=file.path,
            )
    return files
