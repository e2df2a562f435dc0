"""Results as a directory of Parquet files in which an epoch is there whole or not at all.

::

    out/by_plane/epoch=0/part-00000.parquet      rows of epoch 0
                         _SUCCESS                epoch 0 is complete
                 epoch=1/...
                 _godwit.json                    whose directory this is
                 _staging/                       half-written epochs

Readers of Parquet (Spark, pandas, DuckDB) pass over names that begin with ``_`` and read the rest
as a table partitioned by ``epoch``.

The invariant: ``epoch=<n>/_SUCCESS`` exists exactly when epoch n has been delivered.  Where the
file system renames directories in one step (local, HDFS), an epoch is written under ``_staging``
and renamed, so no reader ever sees a part of it; on a local disk it is forced to the disk before,
and its name after.  Object stores have no such rename: there the files go straight to their places,
each appears whole, and ``_SUCCESS`` is written last; an epoch without it is thrown away and written
again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from godwit.model.errors import SinkError
from godwit.sinks.durability import force_file, force_names, force_tree, local_path
from godwit.sinks.file_systems import exists, open_file_system, renames_directories
from godwit.sinks.parquet_files import EpochFiles, escaped_in_paths
from godwit.sinks.partitions import MAX_PARTITIONS, file_row_check
from godwit.sinks.rows import (
    checked_rejects,
    column_names,
    fit,
    gather,
    require_columns,
    storable_schema,
)
from godwit.sinks.secrets import Secrets, shown_uri
from godwit.sinks.sink import EpochOutput, Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.dataflow.staging import RowCheck

__all__ = ["ParquetSink", "latest_epoch"]

_EPOCH: Final = re.compile(r"epoch=(\d+)")
_FORMAT: Final = 1


class ParquetSink(Sink):
    """Writes each epoch to a directory of its own, ``<path>/epoch=<n>``.

    **Exactly-once**: an epoch delivered twice is written once. On local disks and HDFS an epoch
    appears in one step, and on local disks it survives a loss of power. On object stores its files
    appear one by one, and a reader that must not see half an epoch waits for its ``_SUCCESS``. One
    query writes to one directory.

    An epoch without rows leaves no directory, save in complete mode, where it means that the
    result is empty.

    Parameters
    ----------
    path
        A local path or any URI that ``pyarrow.fs`` opens (``s3://``, ``gs://``, ``hdfs://``, ...).
    partition_by
        Columns to make directories of within an epoch: strings, integers, dates or booleans.
        As in Spark, an empty string is read back as null.
    compression
        Codec of the files.
    keep
        In complete mode, the number of newest epochs to keep; ``None`` keeps all.
    filesystem
        An open file system that `path` is a plain path of, instead of one found by URI.
    max_partitions
        The most partition directories that one lane may fill in an epoch; more refuse it.
    rejects
        Sink of the rows that Parquet or a directory's name cannot take (columns as in
        `godwit.dataflow.staging.REJECTED`); ``None``: such a row refuses its epoch.

    Raises
    ------
    SinkError
        If an option has a value that is never right.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] = (),
        compression: str = "zstd",
        keep: int | None = None,
        filesystem: pafs.FileSystem | None = None,
        max_partitions: int = MAX_PARTITIONS,
        rejects: Sink | None = None,
    ) -> None:
        if compression != "none" and not _is_codec(compression):
            raise SinkError(
                f"Parquet files cannot be compressed with {compression!r} here.",
                remedy="Use zstd, snappy, gzip, lz4, brotli or none.",
            )
        if keep is not None and keep < 1:
            raise SinkError(f"keep={keep} would keep no epoch.", remedy="Keep at least one.")
        self._path = os.fspath(path)
        self._shown_path, self._secrets = shown_uri(self._path), Secrets.of_uri(self._path)
        self._max_partitions = max_partitions
        self._rejects = checked_rejects(rejects)
        self._partition_by = column_names(partition_by)
        self._compression = compression
        self._keep = keep
        self._filesystem = filesystem

    def __repr__(self) -> str:
        return f"gw.sinks.parquet({self._shown_path!r})"

    @property
    def rejects(self) -> Sink | None:
        """Where rows go that cannot be written."""
        return self._rejects

    def row_check(self) -> RowCheck:
        """Return what finds rows that Parquet or a directory's name cannot take."""
        return file_row_check(self._context, self._partition_by, self._max_partitions)

    def open(self, context: SinkContext) -> None:
        """Check columns and directory, take the directory for this query, sweep what crashes left.

        Raises
        ------
        SinkError
            If the columns cannot be written, the directory cannot be, or it holds something else.
        """
        self._context = context
        self._schema = storable_schema(context.schema)
        self._check_columns()
        self._fs, self._root = open_file_system(self._path, self._filesystem)
        self._renames = renames_directories(self._fs)
        try:
            self._fs.create_dir(self._root, recursive=True)
            self._take_directory()
            # The last run may have died before it made the name of its last epoch durable.
            self._force_names_in_root()
            if exists(self._fs, f"{self._root}/_staging"):
                self._fs.delete_dir(f"{self._root}/_staging")
        except OSError as error:
            raise self._error(
                f"cannot write to {self._shown_path}: {error}",
                "Check the path, its permissions and the credentials.",
            ) from self._secrets.cause(error)

    def deliver(self, output: EpochOutput) -> None:
        """Write the epoch's directory unless it is there.

        Raises
        ------
        SinkError
            If the directory cannot be written; an epoch without ``_SUCCESS`` does not count.
        """
        final = f"{self._root}/epoch={output.epoch}"
        empty = output.num_rows == 0 and not self._context.complete
        try:
            if not empty and not self._is_settled(output.epoch):
                if self._renames:
                    self._write_and_rename(output, final)
                else:
                    self._write_in_place(output, final)
            if self._keep is not None:
                self._forget_old_epochs(self._keep)
        except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._error(
                f"epoch {output.epoch} cannot be written to {self._shown_path}: {error}",
                "It counts only if it has its _SUCCESS; mend the cause and start the query again.",
                epoch=output.epoch,
            ) from self._secrets.cause(error)

    def _write_and_rename(self, output: EpochOutput, final: str) -> None:
        # Readers pass over a leading "_", also where HDFS puts it if another delivery of this epoch
        # came first: it renames onto a directory by moving into it. Other systems refuse.
        name = f"_{output.epoch}-{uuid.uuid4().hex}"
        staging = f"{self._root}/_staging/{name}"
        try:
            self._write(output, staging)
            if path := local_path(self._fs, staging):
                force_tree(path)
            try:
                self._fs.move(staging, final)
            except OSError:
                # The rows of the other delivery are the same.
                if not self._is_delivered(output.epoch):
                    raise
            self._force_names_in_root()
        finally:
            for left in (staging, f"{final}/{name}"):
                with contextlib.suppress(OSError):
                    self._fs.delete_dir(left)

    def _write_in_place(self, output: EpochOutput, final: str) -> None:
        if exists(self._fs, final):
            self._fs.delete_dir(final)
        try:
            self._write(output, final)
        except BaseException:
            # Files that were begun are completed when they are closed, and readers see them.
            with contextlib.suppress(OSError):
                if not self._is_delivered(output.epoch):
                    self._fs.delete_dir(final)
            raise

    def _write(self, output: EpochOutput, directory: str) -> None:
        """Write the rows as Parquet files, then ``_SUCCESS``; rows are streamed."""
        self._fs.create_dir(directory, recursive=True)
        files = EpochFiles(
            filesystem=self._fs,
            directory=directory,
            schema=self._schema,
            partition_by=self._partition_by,
            compression=self._compression,
        )
        with files:
            for rows in gather(fit(output, self._schema, self._context.name)):
                files.write(rows)
            if output.num_rows == 0:
                files.write_empty()
        with self._fs.open_output_stream(f"{directory}/_SUCCESS"):
            pass

    def _is_delivered(self, epoch: int) -> bool:
        return exists(self._fs, f"{self._root}/epoch={epoch}/_SUCCESS")

    def _is_settled(self, epoch: int) -> bool:
        if self._is_delivered(epoch):
            return True
        # An epoch that `keep` has removed is not to come back.
        return self._keep is not None and any(
            other > epoch for other in _delivered_epochs(self._fs, self._root)
        )

    def _forget_old_epochs(self, keep: int) -> None:
        kept = _delivered_epochs(self._fs, self._root)[-keep:]
        # Also what a removal that was cut short has left without its _SUCCESS.
        for epoch in _epochs_begun(self._fs, self._root):
            if epoch < kept[0]:
                self._fs.delete_dir(f"{self._root}/epoch={epoch}")

    def _force_names_in_root(self) -> None:
        if path := local_path(self._fs, self._root):
            force_names([path])

    def _check_columns(self) -> None:
        require_columns(self._context, self._partition_by, "partition_by")
        if self._keep is not None and not self._context.complete:
            raise self._error(
                "keep is for complete mode; here every epoch holds rows that no other does",
                "Leave keep out, or make the operator complete.",
            )
        if any(name.lower() == "epoch" for name in self._schema.names):
            raise self._error(
                "a column is called 'epoch', as the directories are",
                "Rename the column before the sink.",
            )
        for name in self._partition_by:
            # Readers pass over what begins with "_" or ".", and take %XX for a character.
            if name.startswith(("_", ".")) or escaped_in_paths(name) != name:
                raise self._error(
                    f"column {name!r} cannot name directories",
                    "Rename the column before the sink.",
                )
            if not _names_a_directory(self._schema.field(name).type):
                raise self._error(
                    f"column {name!r} of type {self._schema.field(name).type} cannot name "
                    f"directories",
                    "Partition by strings, integers, dates or booleans.",
                )
        if len(set(self._partition_by)) >= len(self._schema.names):
            raise self._error(
                "partition_by leaves no column for the files", "Keep at least one column back."
            )
        try:
            pq.write_table(self._schema.empty_table(), pa.BufferOutputStream())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._error(
                f"Parquet cannot hold these columns: {error}", "Cast the column before the sink."
            ) from self._secrets.cause(error)

    def _take_directory(self) -> None:
        """Write whose directory this is, or check that it is ours.

        Epoch numbers start anew with every checkpoint: without this check, the epochs of an
        older query would pass for delivered epochs of this one, and rows would be lost.
        """
        marker = f"{self._root}/_godwit.json"
        mine: dict[str, Any] = {
            "format": _FORMAT,
            "query_id": self._context.query_id,
            "sink": self._context.name,
            "columns": {field.name: str(field.type) for field in self._schema},
            "partition_by": list(self._partition_by),
        }
        if exists(self._fs, marker):
            with self._fs.open_input_stream(marker) as stream:
                text = stream.read()
            try:
                found = json.loads(text)
            except ValueError as error:
                raise self._error(
                    f"{marker} cannot be read: {error}",
                    "Use another path, or remove the directory to write it anew.",
                ) from self._secrets.cause(error)
            if found != mine:
                raise self._refusal(found, mine)
            return
        strangers = [
            info.base_name
            for info in self._fs.get_file_info(pafs.FileSelector(self._root))
            if not info.base_name.startswith(("_", "."))
        ]
        if strangers:
            raise self._error(
                f"{self._shown_path} already holds {', '.join(sorted(strangers)[:5])}, which this "
                f"sink did not write",
                "Give the sink a directory of its own.",
            )
        # Written under another name first: half a marker would belong to nobody.
        with self._fs.open_output_stream(f"{marker}.new") as stream:
            stream.write(json.dumps(mine, indent=1).encode())
        if path := local_path(self._fs, self._root):
            force_file(path / "_godwit.json.new")
            # The directories above may be new. They need not be readable, but those that are not
            # were not made here.
            force_names(above for above in path.parents if os.access(above, os.R_OK))
        self._fs.move(f"{marker}.new", marker)

    def _refusal(self, found: dict[str, Any], mine: dict[str, Any]) -> SinkError:
        changed = [field for field in mine if found.get(field) != mine[field]]
        if "query_id" in changed or "sink" in changed:
            return self._error(
                f"{self._shown_path} belongs to sink {found.get('sink')!r} of query "
                f"{found.get('query_id')}; this is query {self._context.query_id}",
                "Use another path, or remove the directory to write it anew.",
            )
        return self._error(
            f"{', '.join(changed)} changed since {self._shown_path} was begun: "
            f"{found.get(changed[0])} then, {mine[changed[0]]} now",
            "Use another path, or keep columns and layout as they were.",
        )

    def _error(self, what: str, remedy: str, **context: Any) -> SinkError:
        return SinkError(
            f"Parquet sink {self._context.name!r}: {self._secrets.hide(what)}.",
            remedy=remedy,
            sink=self._context.name,
            path=self._shown_path,
            **context,
        )


def latest_epoch(
    path: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None
) -> int | None:
    """Newest epoch that a Parquet sink has delivered to `path`; ``None`` before the first.

    In complete mode ``<path>/epoch=<latest>`` holds the whole result.

    Parameters
    ----------
    path
        What the sink was given.
    filesystem
        What the sink was given.
    """
    opened, root = open_file_system(os.fspath(path), filesystem)
    if not exists(opened, root):
        return None
    return max(_delivered_epochs(opened, root), default=None)


def _epochs_begun(filesystem: pafs.FileSystem, root: str) -> list[int]:
    """Epochs that have a directory, ascending."""
    names = (info.base_name for info in filesystem.get_file_info(pafs.FileSelector(root)))
    return sorted(int(match[1]) for name in names if (match := _EPOCH.fullmatch(name)))


def _delivered_epochs(filesystem: pafs.FileSystem, root: str) -> list[int]:
    """Delivered epochs, ascending."""
    epochs = _epochs_begun(filesystem, root)
    infos = filesystem.get_file_info([f"{root}/epoch={epoch}/_SUCCESS" for epoch in epochs])
    return [
        epoch
        for epoch, info in zip(epochs, infos, strict=True)
        if info.type != pafs.FileType.NotFound
    ]


def _names_a_directory(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_integer(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_boolean(dtype)
    )


def _is_codec(name: str) -> bool:
    try:
        return bool(pa.Codec.is_available(name))
    except ValueError:
        return False
