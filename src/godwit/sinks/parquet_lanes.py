"""The lanes' part of a Parquet sink: files under ``_staging``, which delivery links into place."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.checkpoint.staged_output import WrittenFile
from godwit.model.errors import SinkError
from godwit.model.secrets import Secrets
from godwit.sinks.durability import force_names, force_tree, local_path
from godwit.sinks.file_systems import open_file_system
from godwit.sinks.lane_files import (
    are_worth_files,
    file_slices,
    partitioned,
    write_file,
)
from godwit.sinks.parquet_directory import belongs_to
from godwit.sinks.parquet_files import folded

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["ParquetLaneWriter"]

_opened = functools.lru_cache(maxsize=8)(open_file_system)  # S3 asks for the bucket's region


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetLaneWriter:
    """Writes a lane's rows under ``_staging`` (see `godwit.plan.staging.LaneWriter`).

    Attributes
    ----------
    sink
        Name of the sink.
    target
        Where it writes, as it may be shown.
    path
        Path or URI, as lanes open it.
    query_id, writer
        The query, and the name that the directory knows the sink by. Where ``_godwit.json`` does
        not say that the directory is its, lanes are on another machine than the directory.
    opening
        What tells files that were written since the sink was opened from others.
    schema, partition_by, compression
        As in `godwit.sinks.parquet_files.EpochFiles`.
    lane_bytes
        As the sink was given it.
    folds
        Whether names that differ by case are one there.
    """

    sink: str
    target: str
    path: str
    query_id: str
    writer: str
    opening: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    compression: str
    lane_bytes: int
    folds: bool = False

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> Sequence[WrittenFile] | None:
        """Write a file for each partition, in a directory of this attempt's own.

        Raises
        ------
        SinkError
            If the directory is there and cannot be written.
        """
        if not are_worth_files(rows, 1, self.lane_bytes):
            return None
        parts = partitioned(rows.cast(self.schema), self.partition_by, folds=self.folds)
        if not are_worth_files(rows, len(parts), self.lane_bytes):
            return None
        filesystem, root = _opened(self.path)
        try:
            with filesystem.open_input_stream(f"{root}/_godwit.json") as stream:
                if not belongs_to(stream.read(), self.query_id, self.writer):
                    return None
        except OSError:
            return None
        attempt = f"_staging/{epoch}-{place}-{self.opening}-{uuid.uuid4().hex}"
        try:
            written = []
            numbers: Counter[str] = Counter()
            for part in parts:
                for sliced in file_slices(part.rows):
                    number = numbers[folded(part.directory)]
                    numbers[folded(part.directory)] += 1
                    name = f"part-{place:05d}{f'-{number}' if number else ''}.parquet"
                    inner = f"{part.directory}/{name}".removeprefix("/")
                    path = f"{root}/{attempt}/{inner}"
                    filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
                    size = write_file(filesystem, path, sliced, self.compression)
                    written.append(
                        WrittenFile(
                            path=f"{attempt}/{inner}",
                            delivered=f"epoch={epoch}/{inner}",
                            rows=sliced.num_rows,
                            size_bytes=size,
                            partition=part.values,
                        )
                    )
            if local := local_path(filesystem, f"{root}/{attempt}"):
                force_tree(local)
                force_names([local.parent, local.parent.parent])
        except OSError as error:
            with contextlib.suppress(OSError):
                filesystem.delete_dir(f"{root}/{attempt}")
            secrets = Secrets.of_uri(self.path)
            raise SinkError(
                f"Parquet sink {self.sink!r}: a lane cannot write to {self.target}: "
                f"{secrets.hide(str(error))}. Nothing of epoch {epoch} was committed.",
                remedy="Check the path, its permissions and its room, and start the query again.",
                sink=self.sink,
                path=self.target,
                epoch=epoch,
            ) from secrets.cause(error)
        return written
