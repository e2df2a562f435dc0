"""Files of the last epoch that a copy of a checkpoint carries with it.

Problem: rows that lanes wrote are at the target of the query that was copied, and only there.  The
copy delivers its last epoch to a target of its own, some day, when the other query has compacted
its table, or on a machine that does not see it.

So whoever copies a checkpoint puts these files beside it, under a name made of where each is.  They
are needed until the copy has an epoch of its own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from godwit.checkpoint.blocks import read_block
from godwit.checkpoint.records import CARRIED
from godwit.checkpoint.staged_output import decode_files
from godwit.model.errors import SinkError
from godwit.sinks.file_systems import exists, open_file_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.fs as pafs

    from godwit.checkpoint.records import OutputRef
    from godwit.checkpoint.staged_output import WrittenFile
    from godwit.checkpoint.storage import CheckpointStorage

__all__ = ["CarriedFiles", "carry_files"]

_LENGTH: Final = 32


def carry_files(
    storage: CheckpointStorage, outputs: Iterable[OutputRef], *, source: CheckpointStorage
) -> Iterator[str]:
    """Put files of the last epoch beside a copy of a checkpoint.

    Parameters
    ----------
    storage
        The copy.
    outputs
        What its last record says of the output.
    source
        The checkpoint that was copied, which may be a copy itself and carry them.

    Yields
    ------
    str
        What could not be carried, for people: the target, rows, and why.
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
                    data = _read(*open_file_system(written.target), file)
                storage.write_atomic(_path(written.target, file), data.to_pybytes())
        except (OSError, SinkError, pa.ArrowInvalid) as error:
            yield f"{ref.rows} rows for sink {ref.sink!r}, in files at {written.target}: {error}"


def _read(filesystem: pafs.FileSystem, root: str, file: WrittenFile) -> pa.Buffer:
    delivered = f"{root}/{file.delivered}"
    path = delivered if exists(filesystem, delivered) else f"{root}/{file.path}"
    with filesystem.open_input_file(path) as stream:
        data = stream.read_buffer()
    if pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows != file.rows:
        raise pa.ArrowInvalid(f"{path} is not the file that was written")
    return data


class CarriedFiles:
    """The files that a copy of a checkpoint carries.

    Parameters
    ----------
    storage
        The checkpoint, which the caller owns.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._paths = {entry.path for entry in storage.list(CARRIED)}

    def read(self, target: str, file: WrittenFile) -> pa.Buffer | None:
        """Return a file that was written for a target; ``None`` if it was not carried."""
        return self._storage.read(_path(target, file)) if self.has(target, file) else None

    def has(self, target: str, file: WrittenFile) -> bool:
        """Whether a file that was written for a target was carried."""
        return _path(target, file) in self._paths

    def forget(self) -> None:
        """Let go of all files: an epoch after theirs is committed."""
        for path in self._paths:
            self._storage.delete(path)
        self._paths = set()


def _path(target: str, file: WrittenFile) -> str:
    named = hashlib.sha256(f"{target}\0{file.path}".encode()).hexdigest()
    return f"{CARRIED}/{named[:_LENGTH]}.parquet"
