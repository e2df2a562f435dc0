"""The lanes' part of a Delta sink: data files in the table's directory that no version names yet.

A data file counts from the commit that adds it, and nobody looks at it before; one that no version
ever adds is removed by ``VACUUM``, as what any writer of the format leaves behind.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from godwit.checkpoint.staged_output import WrittenFile
from godwit.model.errors import SinkError
from godwit.sinks.durability import force_file, force_names, local_path
from godwit.sinks.lane_files import are_worth_files, partitioned, write_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.model.secrets import Secrets

__all__ = ["DeltaLaneWriter", "add_action", "mark", "table_files"]

_LONGEST_TEXT: Final = 32  # engines cut longer ones off, each in its own way


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLaneWriter:
    """Writes a lane's rows as data files (see `godwit.plan.staging.LaneWriter`).

    Attributes
    ----------
    sink
        Name of the sink.
    target
        Where it writes, as it may be shown.
    uri, storage_options, secrets
        The table.
    marker
        Path within the table of a file that says that this is it.
    opening
        What tells files that were written since the sink was opened from others.
    schema, partition_by
        Columns of the rows as the table keeps them, and which of them are not in files.
    lane_bytes
        As the sink was given it.
    """

    sink: str
    target: str
    uri: str
    storage_options: Mapping[str, str] | None
    secrets: Secrets
    marker: str
    opening: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    lane_bytes: int

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> Sequence[WrittenFile] | None:
        """Write a file for each partition.

        Raises
        ------
        SinkError
            If the table is there and cannot be written.
        """
        if not are_worth_files(rows, 1, self.lane_bytes):
            return None
        rows = rows.cast(self.schema)
        partitions = len(partitioned(rows, self.partition_by)) if self.partition_by else 1
        filesystem, root = table_files(self.uri, self.storage_options)
        info = filesystem.get_file_info(f"{root}/{self.marker}")
        if info.type == pafs.FileType.NotFound:
            return None
        if not are_worth_files(rows, partitions, self.lane_bytes):
            return None
        return self.write_files(rows, f"{epoch}-{place}")

    def write_files(self, rows: pa.Table, name: str) -> Sequence[WrittenFile]:
        """Write files whose names begin with ``godwit-<name>``.

        Raises
        ------
        SinkError
            If the table cannot be written.
        """
        filesystem, root = table_files(self.uri, self.storage_options)
        attempt = f"{self.opening}-{uuid.uuid4().hex}"
        written = []
        try:
            for number, part in enumerate(partitioned(rows, self.partition_by)):
                path = f"godwit-{name}-{attempt}-{number:05d}.zstd.parquet"
                size = write_file(filesystem, f"{root}/{path}", part.rows, "zstd")
                if local := local_path(filesystem, f"{root}/{path}"):
                    force_file(local)
                written.append(
                    WrittenFile(
                        path=path,
                        delivered=path,
                        rows=part.rows.num_rows,
                        size_bytes=size,
                        partition=part.values,
                        facts={"statistics": _statistics(part.rows)},
                    )
                )
            if local := local_path(filesystem, root):
                force_names([local])
        except OSError as error:
            raise SinkError(
                f"Delta sink {self.sink!r}: {self.target} cannot be written: "
                f"{self.secrets.hide(str(error))}.",
                remedy="Check the path, its permissions and its room, and start the query again.",
                sink=self.sink,
                path=self.target,
            ) from self.secrets.cause(error)
        return written


def table_files(uri: str, storage_options: Mapping[str, str] | None) -> tuple[pafs.FileSystem, str]:
    """Open the files of a table: a file system, and the table's directory in it."""
    if urlsplit(uri).scheme == "file":
        return pafs.LocalFileSystem(), unquote(urlsplit(uri).path).rstrip("/")
    options = dict(storage_options) if storage_options else None
    return pafs.PyFileSystem(DeltaStorageHandler(uri, options)), ""


def mark(uri: str, storage_options: Mapping[str, str] | None, marker: str) -> None:
    """Write a file by which lanes recognize the table."""
    filesystem, root = table_files(uri, storage_options)
    filesystem.create_dir(f"{root}/{Path(marker).parent}", recursive=True)
    with filesystem.open_output_stream(f"{root}/{marker}") as stream:
        stream.write(b"Lanes of the query write data files where they see this.\n")


def add_action(file: WrittenFile) -> AddAction:
    """Describe a data file as the log of the table does."""
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=file.partition,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows, **file.facts.get("statistics", {})}),
    )


def _statistics(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """Nulls, least and greatest values of plain columns, by which readers pass over files."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if not _is_plain(column.type):
            continue
        found = pc.min_max(column)
        low, high = (_plain(found[end].as_py()) for end in ("min", "max"))
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls}


def _is_plain(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(dtype)
        or pa.types.is_date32(dtype)
        or pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value.encode()) <= _LONGEST_TEXT else None
    return value if value is None or isinstance(value, int) else value.isoformat()
