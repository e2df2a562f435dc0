"""Manifest of a Parquet directory: one file that names the files of delivered epochs.

::

    out/by_plane/_manifest/files.parquet      path, epoch, rows, bytes, partition; one row a file
                           symlink/files.txt  the same paths as absolute URIs, one a line

Readers get a list of files in one step, also from an object store, where the files of an epoch
appear one by one.  The second form is the one that Hive, Trino and Athena read as a table.  It is
left out for a sink with partition columns, whose values they would not find, and for a
``filesystem=`` object, whose URI is not known.

The invariant: a manifest names all files of the delivered epochs up to some epoch, and no other.
That epoch is known before the directory is listed, since a listing beside a delivery may show an
epoch and not the one before it.  A roll-back writes the manifest without the epochs that go before
it removes them.

A manifest is continued: only epochs after its last one are listed and read.  It stores the last
epoch's point, whose digest covers all epochs before it, and a digest of its own rows; if that epoch
has another point by now, or is gone, or the rows are others, the manifest is written from the whole
directory.  The first time in a run, lines that are not those of the manifest are written again,
such as those of a directory that was moved or copied.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from godwit.checkpoint.ownership import HistoryPoint
from godwit.connect.files.parquet_directory import delivered_in, replace_file
from godwit.connect.files.parquet_files import NULL_PARTITION
from godwit.sinks.file_systems import exists, force_file, local_path, renames_directories

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.connect.files.parquet_directory import ParquetDirectory

_FOLDER: Final = "_manifest"
_FILES: Final = f"{_FOLDER}/files.parquet"
_LINES: Final = f"{_FOLDER}/symlink/files.txt"
_POINT: Final = b"godwit.last_epoch"
_DIGEST: Final = b"godwit.digest"
_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("epoch", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.map_(pa.string(), pa.string())),
    ]
)
_READERS: Final = 16  # files whose footers are read at a time
_PAUSE: Final = 20  # between two writings, in durations of the former: 5 % of the time at most


class ParquetManifest:
    """Manifest of a directory; `uri`: its absolute URI, ``None`` without the manifest of lines."""

    def __init__(
        self,
        directory: ParquetDirectory,
        uri: str | None,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._uri, self._now_s = directory, uri, now_s
        self._lock = threading.Lock()
        self._due_s = 0.0
        self._has_lines = False  # the lines are known to be those of the manifest

    def write_if_due(self, last: int) -> None:
        """Write the manifest, unless the last write is too recent for how long it took."""
        start_s = self._now_s()
        if start_s >= self._due_s:
            self.write(last)
            end_s = self._now_s()
            self._due_s = end_s + _PAUSE * (end_s - start_s)

    def write(self, last: int) -> None:
        """Write the manifest of the delivered epochs up to `last`, unless it exists."""
        with self._lock:
            old_files, point = self._read()
            epochs = [epoch for epoch in self._directory.epochs_begun() if epoch <= last]
            new_epochs = None
            if point is not None and self._directory.epoch_point(point.epoch) == point:
                new_epochs = [epoch for epoch in epochs if epoch > point.epoch]
            else:
                old_files = _SCHEMA.empty_table()
            is_kept = pc.is_in(old_files.column("epoch"), pa.array(epochs, pa.int64()))
            continued, new_files = old_files.filter(is_kept), self._new_files(new_epochs, last)
            is_changed = (
                new_epochs is None or new_files.num_rows or continued.num_rows < old_files.num_rows
            )
            if is_changed or not (self._has_lines or self._read_lines() == self._lines(continued)):
                self._publish(pa.concat_tables([continued, new_files]))
            self._has_lines = True

    def remove(self) -> None:
        """Remove the manifest of an earlier run that is not updated any longer."""
        filesystem, path = self._directory.filesystem, f"{self._directory.root}/{_FOLDER}"
        if exists(filesystem, path):
            filesystem.delete_dir(path)

    def _at(self, name: str) -> str:
        """Return the path of a file of the manifest."""
        return f"{self._directory.root}/{name}"

    def _read(self) -> tuple[pa.Table, HistoryPoint | None]:
        """Return the manifest, and the last epoch in it; ``None`` if it is missing or damaged."""
        try:
            with self._directory.filesystem.open_input_stream(self._at(_FILES)) as stream:
                data = stream.read()
        except FileNotFoundError:
            return _SCHEMA.empty_table(), None
        try:
            table = pq.read_table(pa.BufferReader(data))
            metadata = table.schema.metadata
            point = msgspec.json.decode(metadata[_POINT], type=HistoryPoint)
            table = table.select(_SCHEMA.names).cast(_SCHEMA)
            if metadata[_DIGEST] == _digest_of(table):
                return table, point
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, msgspec.MsgspecError):
            pass
        return _SCHEMA.empty_table(), None

    def _lines(self, table: pa.Table) -> bytes | None:
        """Return the files of a table as lines of URIs; ``None`` without the manifest of lines."""
        if self._uri is None:
            return None
        return "".join(
            f"{self._uri}/{path}\n" for path in table.column("path").to_pylist()
        ).encode()

    def _read_lines(self) -> bytes | None:
        """Return the current lines; ``None`` if there are none."""
        try:
            with self._directory.filesystem.open_input_stream(self._at(_LINES)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def _new_files(self, after: list[int] | None, last: int) -> pa.Table:
        """Return the delivered files of some epochs; ``None``: of all epochs up to `last`."""
        filesystem, root = self._directory.filesystem, self._directory.root
        folders = [""] if after is None else [f"epoch={epoch}" for epoch in after]
        files = [
            (epoch, inner, size)
            for folder in folders
            for epoch, inner, size in delivered_in(filesystem, root, folder)
            if epoch <= last
        ]

        def rows_of(file: tuple[int, str, int]) -> int:
            with filesystem.open_input_file(f"{root}/{file[1]}") as stream:
                return int(pq.read_metadata(stream).num_rows)

        with ThreadPoolExecutor(_READERS) as pool:
            rows = list(pool.map(rows_of, files))
        columns = [
            [inner for _, inner, _ in files],
            [epoch for epoch, _, _ in files],
            rows,
            [size for _, _, size in files],
            [_partition_of(inner) for _, inner, _ in files],
        ]
        return pa.table(dict(zip(_SCHEMA.names, columns, strict=True)), schema=_SCHEMA)

    def _publish(self, table: pa.Table) -> None:
        """Replace the manifest, each of its files in one step, the authoritative one last."""
        last = pc.max(table.column("epoch")).as_py()
        point = self._directory.epoch_point(-1 if last is None else last)
        lines = self._lines(table)
        if lines is not None:
            self._replace(_LINES, lines)
        elif not self._has_lines and exists(self._directory.filesystem, self._at(_LINES)):
            self._directory.filesystem.delete_file(self._at(_LINES))
        sink = pa.BufferOutputStream()
        metadata = {_POINT: msgspec.json.encode(point), _DIGEST: _digest_of(table)}
        pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
        self._replace(_FILES, sink.getvalue())

    def _replace(self, name: str, data: bytes | pa.Buffer) -> None:
        """Replace a file of the manifest in one step.

        Object stores show a file once it is complete. Elsewhere it is written under ``_staging``
        and renamed.
        """
        filesystem, root = self._directory.filesystem, self._directory.root
        final = f"{root}/{name}"
        staging = f"{root}/_staging/{_FOLDER}-{uuid.uuid4().hex}"
        renames = renames_directories(filesystem)
        written = f"{staging}/{name.rpartition('/')[2]}" if renames else final
        for path in {written, final}:
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(written) as stream:
            stream.write(data)
        if not renames:
            return
        if local := local_path(filesystem, written):
            force_file(local)
        try:
            replace_file(filesystem, written, final)
        finally:
            with suppress(OSError):
                filesystem.delete_dir(staging)


def _digest_of(table: pa.Table) -> bytes:
    """Return a digest of a manifest's rows; the partition columns are part of the paths."""
    digest = hashlib.blake2b("\n".join(table.column("path").to_pylist()).encode(), digest_size=16)
    for name in ("epoch", "rows", "bytes"):
        digest.update(table.column(name).to_numpy().tobytes())
    return digest.hexdigest().encode()


def _partition_of(inner: str) -> list[tuple[str, str | None]]:
    """Return the partition columns and values in a path such as ``epoch=7/year=2013/a.parquet``."""
    levels = [level.partition("=") for level in inner.split("/")[1:-1]]
    return [(name, None if text == NULL_PARTITION else unquote(text)) for name, _, text in levels]
