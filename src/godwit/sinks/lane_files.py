"""A lane's rows as Parquet files of the target, written where the rows are.

One attempt's files have names that no other attempt uses, so a retry or a zombie leaves only files
that nobody names.  Few rows are not worth a file of their own on every lane: they are left to be
staged in the checkpoint, and the driver writes those of all lanes together.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from godwit.sinks.parquet_files import FILE_BYTES, partition_directories

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.checkpoint.staged_output import WrittenFile
    from godwit.sinks.sink import EpochOutput

__all__ = [
    "LANE_BYTES",
    "Partition",
    "are_worth_files",
    "file_slices",
    "files_there",
    "partitioned",
    "tell_what_went",
    "went_with_target",
    "write_file",
]

_log = logging.getLogger(__name__)

LANE_BYTES: Final = 2**20
"""A lane with less for a sink leaves it to the driver, unless the sink says otherwise."""


def are_worth_files(rows: pa.Table, partitions: int, lane_bytes: int) -> bool:
    """Whether a lane's rows make files of a sensible size, on average a sixteenth of that."""
    return bool(rows.nbytes >= lane_bytes and 16 * rows.nbytes >= lane_bytes * partitions)


@dataclass(frozen=True, slots=True)
class Partition:
    """Rows of one partition.

    Attributes
    ----------
    directory
        Name of its directory; empty where nothing is partitioned.
    values
        Partition column → its value in text, None for null.
    rows
        Without the partition columns.
    """

    directory: str
    values: dict[str, str | None]
    rows: pa.Table


def partitioned(
    rows: pa.Table, partition_by: Sequence[str], *, folds: bool = False
) -> list[Partition]:
    """Divide rows by partition columns, for a file system that may fold case."""
    if not partition_by:
        return [Partition("", {}, rows)]
    columns = [name for name in rows.schema.names if name not in partition_by]
    (keys,) = rows.select(list(partition_by)).combine_chunks().to_batches()
    places: dict[str, list[npt.NDArray[np.int64]]] = {}
    for directory, positions in partition_directories(keys, folds=folds):
        places.setdefault(directory, []).append(positions)  # twice: of null, and of empty texts
    parts = []
    for directory, found in places.items():
        positions = np.sort(np.concatenate(found))
        values = keys.slice(int(positions[0]), 1)
        texts = {name: _text(values.column(name)[0]) for name in partition_by}
        parts.append(Partition(directory, texts, rows.select(columns).take(pa.array(positions))))
    return parts


def _text(value: pa.Scalar) -> str | None:
    # An empty text counts as null, as in Spark.
    plain = value.as_py()
    if plain is None or plain == "":
        return None
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def file_slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Cut rows so that each part makes a file of a size that object stores copy."""
    if rows.nbytes <= FILE_BYTES or rows.num_rows <= 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from file_slices(rows.slice(0, half))
    yield from file_slices(rows.slice(half))


def write_file(filesystem: pafs.FileSystem, path: str, rows: pa.Table, compression: str) -> int:
    """Write a file and return its size; the caller makes it durable."""
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(rows, stream, compression=compression)
        return int(stream.tell())


def files_there(
    filesystem: pafs.FileSystem, root: str, written: Sequence[WrittenFile]
) -> tuple[list[tuple[WrittenFile, pafs.FileInfo]], list[str]]:
    """Find the files that lanes wrote for an epoch.

    Returns
    -------
    list of (WrittenFile, FileInfo)
        Those that are there.
    list of str
        Paths of those that are gone; where there are any, the epoch must not be delivered.
    """
    infos = filesystem.get_file_info([f"{root}/{file.path}" for file in written])
    there = [
        (file, info)
        for file, info in zip(written, infos, strict=True)
        if info.type != pafs.FileType.NotFound
    ]
    return there, [info.path for info in infos if info.type == pafs.FileType.NotFound]


def went_with_target(gone: Sequence[str], opening: str) -> bool:
    """Whether files are gone because somebody has removed the target as a whole.

    That is so if the target is new since the opening, and none of them was written since.
    """
    return not any(f"-{opening}-" in path for path in gone)


def tell_what_went(sink: str, target: str, output: EpochOutput) -> None:
    """Warn of an epoch that is left out, since files of its rows went with the former target."""
    _log.warning(
        "Sink %r: epoch %d is not written to %s: %d of its rows were in files there, which went "
        "when it was removed, and with them all earlier epochs. It begins anew with what comes "
        "next.",
        sink,
        output.epoch,
        target,
        sum(file.rows for file in output.files()),
    )
