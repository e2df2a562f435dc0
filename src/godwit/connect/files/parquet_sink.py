"""Results as a directory of Parquet files, where each epoch becomes visible at once.

::

    out/by_plane/epoch=0/part-00000.parquet      rows of epoch 0
                         _SUCCESS                epoch 0 is complete
                 epoch=1/...
                 _godwit.json                    whose directory this is
                 _delivered.json                 the last epoch, even if its directory is removed
                 _staging/                       files of lanes, incomplete epochs
                 _manifest/                      with ``manifest=``, the files of delivered epochs

Readers of Parquet (Spark, pandas, DuckDB) pass over names that begin with ``_`` and read the rest
as a table partitioned by ``epoch``.

Lanes write their rows as files under ``_staging`` while the epoch runs, and delivery links them
into the epoch's directory (on object stores the store copies them); rows of lanes with
too few are written by the driver, into one file.

The invariant: ``epoch=<n>/_SUCCESS`` exists exactly when epoch n has been delivered.  Where the
file system renames directories in one step (local, HDFS), an epoch is written under ``_staging``
and renamed, so no reader ever sees a part of it; on a local disk it is forced to the disk before,
and its name after.  Object stores have no such rename: there the store copies the files to their
places, each appears whole, and ``_SUCCESS`` is written last; an epoch without it is written again
over the files present.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.fs as pafs

from godwit.connect.files.parquet_directory import (
    ParquetDirectory,
    base_uri,
    belongs_to,
    check_columns,
    files_under,
    link_or_copy,
    write_point,
)
from godwit.connect.files.parquet_files import (
    EpochFiles,
    file_row_check,
    file_slices,
    files_there,
    folded,
    is_codec,
    is_target_replaced,
    partitions_worth_files,
    require_types,
    write_file,
)
from godwit.connect.files.parquet_manifest import ParquetManifest
from godwit.model.errors import SinkError
from godwit.model.locations import spelled_location
from godwit.model.secrets import Secrets, shown_uri
from godwit.sinks.file_systems import (
    destination_of,
    exists,
    force_names,
    force_tree,
    local_path,
    open_file_system,
    renames_directories,
    try_directory,
)
from godwit.sinks.rows import (
    cast_batches,
    column_names,
    is_complete_result,
    join_small_batches,
    require_columns,
    storable_schema,
)
from godwit.sinks.sink import Maintained, Maintenance
from godwit.sinks.target_sink import (
    RESERVED_NAMES,
    TargetSink,
    is_shared,
    point_without_history,
)
from godwit.sinks.writing import Writing
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.plan.staging import LaneWriter, RowCheck, WrittenFile
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, Sink, SinkContext
    from godwit.time.durations import Duration

_opened = functools.lru_cache(maxsize=8)(open_file_system)  # S3 asks for the bucket's region


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetLaneWriter:
    """Writes a lane's rows under ``_staging`` (see `godwit.plan.staging.LaneWriter`)."""

    sink: str  # name of the sink
    target: str  # where it writes, as it may be shown
    path: str  # path or URI, as lanes open it
    # the query, and the name that the directory knows the sink by. Where ``_godwit.json`` does not
    # say that the directory is its, lanes are on another machine than the directory.
    query_id: str
    writer: str
    opening: str  # what tells files that were written since the sink was opened from others
    # as in `godwit.connect.files.parquet_files.EpochFiles`
    schema: pa.Schema
    partition_by: tuple[str, ...]
    compression: str
    lane_bytes: int  # as the sink was given it
    lane_files: int
    fold_case: bool = False

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> Sequence[WrittenFile] | None:
        """Write files of a lane under ``_staging``; ``None`` if there are too few rows for files.

        Also ``None`` if the directory is another sink's by now. `place`: number of the lane.
        """
        parts = partitions_worth_files(
            rows,
            self.schema,
            self.partition_by,
            self.lane_bytes,
            lane_files=self.lane_files,
            fold_case=self.fold_case,
        )
        if parts is None:
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
            next_numbers: Counter[str] = Counter()
            for part in parts:
                for sliced in file_slices(part.rows):
                    number = next_numbers[folded(part.directory)]
                    next_numbers[folded(part.directory)] += 1
                    name = f"part-{place:05d}{f'-{number}' if number else ''}.parquet"
                    path_in_epoch = f"{part.directory}/{name}".removeprefix("/")
                    path = f"{attempt}/{path_in_epoch}"
                    filesystem.create_dir(f"{root}/{path}".rsplit("/", 1)[0], recursive=True)
                    file = write_file(
                        filesystem,
                        root,
                        path,
                        sliced,
                        partition=part,
                        compression=self.compression,
                        delivered=f"epoch={epoch}/{path_in_epoch}",
                    )
                    written.append(file)
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
                remedy="Check the path, its permissions and free space, and start the query again.",
                sink=self.sink,
                path=self.target,
                epoch=epoch,
            ) from secrets.cause(error)
        return written


_FORMAT: Final = 1


class ParquetSink(TargetSink):
    """Writes each epoch to a directory of its own (see `godwit.sinks.parquet`)."""

    failures = (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError)
    reserved_names = RESERVED_NAMES | {"_manifest"}
    delivers_concurrently = True  # it touches nothing that lanes of the next epoch write

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["append", "changes"],
        partition_by: str | Sequence[str],
        compression: str,
        keep: int | None,
        filesystem: pafs.FileSystem | None,
        max_partitions: int,
        lane_bytes: int,
        lane_files: int,
        manifest: Duration | None,
        rejects: Sink | None,
    ) -> None:
        self._writing = Writing(mode=mode)
        self._writing.check("Parquet sink", ("append", "changes"))
        if not is_codec(compression):
            raise SinkError(
                f"Parquet files cannot be compressed with {compression!r} here.",
                remedy="Use zstd, snappy, gzip, lz4, brotli or none.",
            )
        if keep is not None and keep < 1:
            raise SinkError(
                f"keep={keep} would not keep any epoch.", remedy="Give keep= as at least 1."
            )
        if keep is not None and manifest is not None:
            raise SinkError(
                "A manifest would name files of epochs that keep= removes.",
                remedy="Omit manifest= or keep=; gw.sinks.latest_epoch finds the newest epoch.",
            )
        if manifest is not None:
            seconds(manifest, "manifest of gw.sinks.parquet")
        self._manifest_every = manifest
        self._manifest: ParquetManifest | None = None
        self._path = os.fspath(path)
        if filesystem is None:
            self._path = spelled_location(self._path, error=SinkError)
        self._shown_path = shown_uri(self._path)
        secrets = Secrets.of_uri(self._path)
        super().__init__("Parquet", secrets=secrets, rejects=rejects, path=self._shown_path)
        if not isinstance(lane_files, int) or isinstance(lane_files, bool) or lane_files < 1:
            raise SinkError(
                f"The Parquet sink has lane_files={lane_files!r}.",
                remedy="Give a whole number of at least 1.",
            )
        self._max_partitions, self._lane_bytes = max_partitions, lane_bytes
        self._lane_files = lane_files
        self._partition_by = column_names(partition_by)
        self._compression = compression
        self._keep = keep
        self._filesystem = filesystem

    def __repr__(self) -> str:
        return f"gw.sinks.parquet({self._shown_path!r})"

    @property
    def maintenance(self) -> Maintenance | None:
        """Policy by which the manifest is written; nothing else is maintained."""
        every = self._manifest_every
        return None if every is None else Maintenance(every=every)

    def maintain(self) -> Maintained:
        """Write the manifest if epochs were delivered since the last one."""
        manifest = self._manifest  # a query that ends closes the sink beside a slow writing
        if manifest is not None:
            with self._writing_manifest():
                manifest.write_if_due(self._complete_to)
        return Maintained()

    def close(self) -> None:
        """Write the manifest of all delivered epochs."""
        manifest, self._manifest = self._manifest, None
        if manifest is not None:
            with self._writing_manifest():
                manifest.write(self._complete_to)

    @contextlib.contextmanager
    def _writing_manifest(self) -> Iterator[None]:
        """Context that translates errors of the manifest; raises if it belongs to another sink."""
        with self._translating_errors(
            f"the manifest of {self._shown_path} cannot be written",
            "Check permissions and free space. No data is lost: the next manifest has all epochs.",
        ):
            self._directory.check_claim(self._marker(), self._target_error)
            yield

    def row_check(self) -> RowCheck:
        """Return the check for rows that Parquet or names of directories cannot hold."""
        return file_row_check(
            self._context, self._partition_by, self._max_partitions, fold_case=self._fold_case
        )

    @functools.cached_property
    def destination(self) -> str:
        """Canonical path or URI of the directory, without secrets."""
        if self._filesystem is not None and not isinstance(self._filesystem, pafs.LocalFileSystem):
            return self._shown_path
        return destination_of(self._path)

    @property
    def target(self) -> str:
        return self.destination

    def lane_writer(self) -> LaneWriter | None:
        """Return the writer for lanes; ``None`` if their files could not be published by renaming.

        HDFS has no hard links, and copying passes all data through the driver.
        """
        local = local_path(self._fs, self._root) is not None
        if self._filesystem is not None or (self._renames and not local):
            return None
        return ParquetLaneWriter(
            sink=self._context.name,
            target=self.target,
            path=self._path if not local else self._root,
            query_id=self._context.query_id,
            writer=self._context.writer,
            opening=self._opening,
            schema=self._schema,
            partition_by=self._partition_by,
            compression=self._compression,
            lane_bytes=self._lane_bytes,
            lane_files=self._lane_files,
            fold_case=self._fold_case,
        )

    def _fit(self, context: SinkContext) -> None:
        """Set the columns of files; raise if files or directories cannot have them."""
        context = self._set_layout(context)
        # Rows of an earlier flow have nulls in columns that are new, whatever these are declared.
        self._schema = pa.schema([f.with_nullable(True) for f in storable_schema(context.schema)])
        self._require_columns()

    def _try_target(self) -> RowCheck:
        """Read the owner of the directory; raise if it is another sink, or cannot be created."""
        self._open_directory()
        with self._opening_errors():
            self._fold_case = False
            if try_directory(self._fs, self._root):
                self._directory.check_claim(self._marker(), self._target_error)
                self._fold_case = bool(self._partition_by) and self._directory.ignores_case()
        return self.row_check()

    def _open_directory(self) -> None:
        """Open the file system of the directory."""
        self.__dict__.pop("destination", None)  # of another run, started elsewhere
        self._fs, self._root = open_file_system(self._path, self._filesystem)
        self._directory = ParquetDirectory(self._fs, self._root)

    def _opening_errors(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that translates errors of the file system as the sink is opened."""
        return self._translating_errors(
            f"cannot write to {self._shown_path}",
            "Check the path, its permissions and the credentials.",
        )

    def open(self, context: SinkContext) -> None:
        """Claim the directory for this query and sink; raise if it belongs to another one."""
        self._fit(context)
        self._open_directory()
        self._renames = renames_directories(self._fs)
        self._opening = uuid.uuid4().hex[:12]
        with self._opening_errors():
            self._fs.create_dir(self._root, recursive=True)
            self._is_new = self._directory.claim(self._marker(), self._target_error)
            self._fold_case = self._directory.ignores_case() if self._partition_by else False
            # The last run may have died before it made the name of its last epoch durable.
            self._force_root()
            # Not what lanes wrote: an epoch of the last run may be delivered only now.
            self._directory.remove_staged(lambda name: name.startswith("_"))
            self._last_point = self._directory.last_point()
            self._last = self._noted = -1 if self._last_point is None else self._last_point.epoch
            self._complete_to = self._last
            manifest = ParquetManifest(self._directory, self._manifest_uri())
            if self._manifest_every is None:
                manifest.remove()  # it would be of epochs long ago
            else:
                self._manifest = manifest

    def _manifest_uri(self) -> str | None:
        """Return the URI that the lines of the manifest begin with; ``None`` if it has none."""
        if self._filesystem is not None or self._partition_by:
            return None
        uri = base_uri(self.destination)
        if "\n" in uri:
            return None
        return uri if "://" in uri else f"file://{uri}"

    def last_delivered(self) -> HistoryPoint | None:
        """Return the directory's last epoch, as found when it was opened or rolled back."""
        return self._last_point

    def cannot_roll_back(self) -> None:
        """Return ``None``: every epoch is a directory of its own, which can be removed."""

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Remove the directories of epochs that the checkpoint does not have, newest first.

        Raises if epoch `min_epoch` would not stay.
        """
        last: HistoryPoint | None = None
        removed_epochs: list[int] = []
        with self._translating_errors(
            "cannot be rolled back", "Check the permissions, and start the query again."
        ):
            for epoch in reversed(self._directory.delivered_epochs()):
                point = self._directory.epoch_point(epoch)
                if is_shared(point, epochs):
                    last = point
                    break
                removed_epochs.append(epoch)
            last_epoch = -1 if last is None else last.epoch
            if self._keep is None and last_epoch < min_epoch:
                raise self._rollback_error(last_epoch, min_epoch)
            if self._manifest is not None:
                self._manifest.write(last_epoch)
            for epoch in removed_epochs:
                self._directory.remove_epoch(epoch)
            if last is None or (self._keep is not None and last.epoch < epochs.latest_epoch):
                # Results that were not kept are gone: the next one is whole again.
                last = epochs.point(epochs.latest_epoch) if self._keep is not None else last
            self._record_last(last or point_without_history(-1))

    def continue_after(self, point: HistoryPoint) -> None:
        """Record in the directory that all epochs up to `point` are delivered.

        Raises `SinkError` if there are directories of later epochs, which could not be
        distinguished from new ones.
        """
        newest = max(self._directory.delivered_epochs(), default=-1)
        if newest > point.epoch:
            raise self._target_error(
                f"a new writer would begin with epoch {point.epoch + 1}, but the directory has "
                f"epochs up to {newest}",
                'Give the sink another path, or start with on_divergence="roll_back".',
            )
        self._record_last(point)

    def _record_last(self, point: HistoryPoint) -> None:
        """Record in the directory that an epoch is the last delivered one."""
        self._directory.record_last(point)
        self._last_point = point
        self._last = self._noted = self._complete_to = point.epoch

    def deliver(self, output: EpochOutput) -> None:
        """Write the epoch's directory unless it exists.

        Raises `SinkError` if the directory cannot be written; an epoch without ``_SUCCESS`` does
        not count.
        """
        final = f"{self._root}/epoch={output.epoch}"
        empty = output.num_rows == 0 and not is_complete_result(output, self._context)
        with self._translating_errors(
            f"epoch {output.epoch} cannot be written to {self._shown_path}",
            "Readers ignore it until it has its _SUCCESS file; fix the cause and start the query "
            "again.",
            epoch=output.epoch,
        ):
            if not empty and not self._was_delivered(output):
                self._assemble_epoch(output, final)
                if output.epoch > self._noted:
                    self._directory.record_last(output.point)
                    self._noted = output.epoch
            if self._keep is not None:
                self._remove_old_epochs(self._keep)
            if not empty:
                # Also what attempts left that were given up.
                epoch = output.epoch
                self._directory.remove_staged(lambda name: _epoch_of_attempt(name) <= epoch)
        self._complete_to = max(self._complete_to, output.epoch)  # the manifest may have it

    def _assemble_epoch(self, output: EpochOutput, final: str) -> None:
        """Write the epoch's directory `final`; raise if files that lanes wrote are gone."""
        self._directory.check(self._marker(), self._target_error)
        written, gone = files_there(self._fs, self._root, output.files())
        if gone:
            opening = self._opening if self._is_new else ""
            if is_target_replaced(self._context.name, self._shown_path, output, gone, opening):
                return
            if self._is_delivered(output):
                return  # by another driver, which removed them afterwards
            raise self._target_error(
                f"epoch {output.epoch}: {len(gone)} of the files that lanes wrote no longer exist, "
                f"among them {gone[0]}",
                "They must stay under _staging until the epoch is delivered: restore them; or "
                "remove the whole directory, with its epochs, to start with a new one.",
                epoch=output.epoch,
            )
        # They stay where they are until the epoch is delivered, so that it can be delivered again.
        lane_files = {
            file.delivered.removeprefix(f"epoch={output.epoch}/"): info.path
            for file, info in written
        }
        if self._renames:
            self._write_and_rename(output, final, lane_files)
        else:
            self._write_and_copy(output, final, lane_files)

    def _write_and_rename(
        self, output: EpochOutput, final: str, lane_files: Mapping[str, str]
    ) -> None:
        """Write the epoch under ``_staging``, and rename its directory to `final`.

        `lane_files`: path in the epoch's directory → present path.
        """
        # Readers pass over a leading "_", also where HDFS puts it if another delivery of this epoch
        # came first: it renames onto a directory by moving into it. Other systems refuse.
        name = f"_{output.epoch}-{uuid.uuid4().hex}"
        staging = f"{self._root}/_staging/{name}"
        try:
            self._write_remaining(output, staging)
            for inner, source in lane_files.items():
                link_or_copy(self._fs, source, f"{staging}/{inner}")
            write_point(self._fs, f"{staging}/_SUCCESS", output.point)
            if path := local_path(self._fs, staging):
                force_tree(path)
            try:
                self._fs.move(staging, final)
            except OSError:
                # The rows of the other delivery are the same.
                if not self._is_delivered(output):
                    raise
            if not self._is_delivered(output):  # HDFS has moved it into a directory of this name
                raise FileExistsError(errno.EEXIST, "it exists without _SUCCESS", final)
            self._force_root()
        finally:
            for left in (staging, f"{final}/{name}"):
                with contextlib.suppress(OSError):
                    self._fs.delete_dir(left)

    def _write_and_copy(
        self, output: EpochOutput, final: str, lane_files: Mapping[str, str]
    ) -> None:
        """Write the epoch under ``_staging``, and link or copy its files to `final`.

        For file systems that cannot rename directories; ``_SUCCESS`` is written last.

        Another driver, late or new, may do the same at the same time: it writes the same rows under
        the same names, so neither removes files of the other. Parameters: see `_write_and_rename`.
        """
        staging = f"{self._root}/_staging/_{output.epoch}-{uuid.uuid4().hex}"
        try:
            self._write_remaining(output, staging)
            staged = files_under(self._fs, staging)
            files = {**lane_files, **{inner: f"{staging}/{inner}" for inner in staged}}
            for inner, source in files.items():
                link_or_copy(self._fs, source, f"{final}/{inner}")
            # An earlier attempt may have had other files, if the flow has changed since.
            for inner in files_under(self._fs, final):
                if inner not in files and not self._is_delivered(output):
                    self._fs.delete_file(f"{final}/{inner}")
            write_point(self._fs, f"{final}/_SUCCESS", output.point)
        finally:
            with contextlib.suppress(OSError):
                self._fs.delete_dir(staging)

    def _write_remaining(self, output: EpochOutput, directory: str) -> None:
        """Write the rows that are not in lanes' files to Parquet files in a directory."""
        self._fs.create_dir(directory, recursive=True)
        files = EpochFiles(
            filesystem=self._fs,
            directory=directory,
            schema=self._schema,
            partition_by=self._partition_by,
            compression=self._compression,
            prefix="part-rest" if output.files() else "part",
            fold_case=self._fold_case,
        )
        with files:
            for rows in join_small_batches(cast_batches(output, self._schema, self._context.name)):
                files.write(rows)
            if output.num_rows == 0:
                files.write_empty()

    def _is_delivered(self, output: EpochOutput) -> bool:
        """Return whether the directory of an epoch has its ``_SUCCESS`` file.

        Raises if that is of another history's epoch, whose rows are others.
        """
        if not exists(self._fs, f"{self._root}/epoch={output.epoch}/_SUCCESS"):
            return False
        other = self._directory.epoch_point(output.epoch)
        if other.digest and output.point.digest and other != output.point:
            raise self._target_error(
                f"epoch {output.epoch} exists already, with the rows of history {other.history}, "
                f"but this query continues history {output.point.history}",
                "Another query writes to the directory, from a copy of this checkpoint. Stop one "
                'of them, and start the other again, perhaps with on_divergence="roll_back".',
                epoch=output.epoch,
            )
        return True

    def _was_delivered(self, output: EpochOutput) -> bool:
        """Return whether an epoch was delivered, even if its directory was removed since."""
        if output.epoch <= self._last or self._is_delivered(output):
            return True
        # An epoch that `keep` has removed is not to come back.
        return self._keep is not None and any(
            other > output.epoch for other in self._directory.delivered_epochs()
        )

    def _remove_old_epochs(self, keep: int) -> None:
        """Remove the directories of all but the newest `keep` epochs."""
        oldest_kept = min(self._directory.delivered_epochs()[-keep:], default=0)
        # Also what a removal that was cut short has left without its _SUCCESS.
        for epoch in self._directory.epochs_begun():
            if epoch < oldest_kept:
                self._directory.remove_epoch(epoch)

    def _marker(self) -> dict[str, Any]:
        """Return the content of the owner file ``_godwit.json``."""
        return {
            "format": _FORMAT,
            "query_id": self._context.query_id,
            "sink": self._context.writer,
            "columns": {field.name: str(field.type) for field in self._schema},
            "partition_by": list(self._partition_by),
        }

    def _require_columns(self) -> None:
        """Raise if options of the sink do not fit its columns or its output mode."""
        if self._keep is not None and not self._context.complete:
            raise self._target_error(
                "keep= needs complete mode; in this mode, each epoch has rows that no other "
                "epoch has",
                'Omit keep=, or use output="complete" in the operator.',
            )
        require_columns(self._context, self._partition_by, "partition_by")
        require_types(self._context, self._schema, "a Parquet file", self._target_error)
        check_columns(self._schema, self._partition_by, self._target_error)

    def _force_root(self) -> None:
        """Sync the sink's directory to disk, so that the names of its files last."""
        if path := local_path(self._fs, self._root):
            force_names([path])


def _epoch_of_attempt(name: str) -> float:
    """Return the epoch in the name of a lane's staging directory; infinity for other names."""
    epoch = name.partition("-")[0]
    return int(epoch) if epoch.isdecimal() else math.inf
