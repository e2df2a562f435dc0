"""Maintenance of an Iceberg table: rewrite small files, remove old snapshots and files.

A compaction is a snapshot of the operation ``replace``, which readers of changes skip, as the
specification has it.  It is committed only if all files that it replaces are in the table with the
same deletes, on whatever snapshot that is; so epochs that are committed meanwhile do not end it,
and no delete is lost.

The library removes snapshots from the metadata and no files.  So files are deleted here, after the
commit: those that expired snapshots name and none that is left then.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Operation, Summary

from godwit.connect.iceberg.files import (
    _delete_file_paths,
    _FileReplacement,
    _try_to_delete,
    _unreadable_reason,
    data_files_of,
    delete_files,
    read_file,
)
from godwit.sinks.sink import Maintained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

    from godwit.sinks.sink import Maintenance

_MAX_BYTES: Final = 256 * 2**20  # of the files that one commit rewrites: they are in memory
_MAX_COMMITS: Final = 16  # in one look
_ATTEMPTS: Final = 5  # to remove snapshots, while others commit


def maintain_table(
    table: Table, policy: Maintenance, repeating: Callable[[Table, Callable[[Table], None]], Table]
) -> Maintained:
    """Compact a table and remove its old snapshots, as the policy says.

    `repeating`: makes a table whose commits are repeated after a test on the newest version.

    Raises what the catalog and the library do.
    """
    result = Maintained()
    for _ in range(_MAX_COMMITS):
        chosen = next(_worth_compacting(table, policy), None)
        if chosen is None:
            break
        result = result.plus(_compact_small_files(table, chosen, repeating))
        table = table.refresh()
    if policy.retain_s is not None:
        result = result.plus(_expire_snapshots(table, policy.retain_s))
    return result


def _worth_compacting(table: Table, policy: Maintenance) -> Iterator[list[FileScanTask]]:
    """Yield the small files of each partition that has too many, in groups to rewrite at once.

    Files with equality deletes, and in formats that lose values, are left alone.
    """
    partitions: dict[tuple[int, str], list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        file = task.file
        is_plain = not any(map(_unreadable_reason, (file, *task.delete_files)))
        if policy.is_small(file.file_size_in_bytes) and is_plain:
            partitions[file.spec_id, repr(file.partition)].append(task)
    for tasks in partitions.values():
        if len(tasks) <= policy.max_small_files:
            continue
        chosen: list[FileScanTask] = []
        size = 0
        for task in sorted(tasks, key=lambda task: task.file.file_size_in_bytes):
            size += task.file.file_size_in_bytes
            if len(chosen) > 1 and size > _MAX_BYTES:
                break
            chosen.append(task)
        yield chosen


def _compact_small_files(
    table: Table,
    tasks: Sequence[FileScanTask],
    repeating: Callable[[Table, Callable[[Table], None]], Table],
) -> Maintained:
    """Write the rows of small files to larger ones, in one commit."""
    names = [field.name for field in table.schema().fields]
    deletes_of_file = {task.file.file_path: _delete_file_paths(task) for task in tasks}
    metadata_before = table.metadata
    rows = pa.concat_tables(
        [read_file(table, task, names) for task in tasks], promote_options="default"
    )
    files = data_files_of(table, rows)

    def check(newest: Table) -> None:
        """Raise unless the newest version has the files, with the same deletes and columns."""
        current = {
            task.file.file_path: _delete_file_paths(task) for task in newest.scan().plan_files()
        }
        metadata = newest.metadata
        if (
            any(current.get(path) != deletes for path, deletes in deletes_of_file.items())
            or metadata.current_schema_id != metadata_before.current_schema_id
            or metadata.default_spec_id != metadata_before.default_spec_id
        ):
            raise CommitFailedException("The files were replaced or changed meanwhile.")

    try:
        with repeating(table, check).transaction() as transaction:
            change = _Compaction(operation=Operation.REPLACE, transaction=transaction, io=table.io)
            with change:
                for task in tasks:
                    change.delete_data_file(task.file)
                for file in files:
                    change.append_data_file(file)
    except CommitFailedException:
        delete_files(table, files)
        raise
    return Maintained(compacted=len(tasks), written=len(files))


class _Compaction(_FileReplacement):
    """Snapshot that has the same rows in other files."""

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        """Return the summary, whose numbers the library counts for an overwriting snapshot."""
        operation, self._operation = self._operation, Operation.OVERWRITE
        try:
            summary = super()._summary(snapshot_properties or {})
        finally:
            self._operation = operation
        return Summary(operation=operation, **summary.additional_properties)


def _expire_snapshots(table: Table, retain_s: float) -> Maintained:
    """Remove snapshots older than `retain_s` seconds, and the files that only they refer to."""
    for attempt in range(_ATTEMPTS):
        try:
            return _expire_once(table, retain_s)
        except CommitFailedException:  # an epoch was committed meanwhile
            if attempt == _ATTEMPTS - 1:
                raise
            table = table.refresh()
    raise AssertionError("unreachable")


def _expire_once(table: Table, retain_s: float) -> Maintained:
    """Do what `_expire_snapshots` does; raise if the table was changed meanwhile."""
    before_ms = int((time.time() - retain_s) * 1000)
    metadata = table.metadata
    protected = {ref.snapshot_id for ref in metadata.refs.values()}
    expired = [
        snapshot
        for snapshot in metadata.snapshots
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in protected
    ]
    if not expired:
        return Maintained()
    expired_manifests = {
        manifest.manifest_path: manifest
        for expired_snapshot in expired
        for manifest in expired_snapshot.manifests(table.io)
    }
    table.maintenance.expire_snapshots().by_ids(
        [expired_snapshot.snapshot_id for expired_snapshot in expired]
    ).commit()
    remaining = table.refresh().metadata.snapshots
    removed = _delete_files_of(table, expired, expired_manifests, remaining)
    return Maintained(expired=len(expired), removed=removed)


def _delete_files_of(
    table: Table,
    expired: Sequence[Snapshot],
    expired_manifests: dict[str, ManifestFile],
    remaining: Sequence[Snapshot],
) -> int:
    """Delete the files of expired snapshots that no other snapshot has; count data files.

    `expired_manifests`: path → manifest of the expired ones.
    """
    needed_manifests = {
        manifest_file.manifest_path: manifest_file
        for snapshot in remaining
        for manifest_file in snapshot.manifests(table.io)
    }
    unneeded_manifests = {
        path: manifest
        for path, manifest in expired_manifests.items()
        if path not in needed_manifests
    }
    unneeded_files = {
        file.file_path
        for manifest_file in unneeded_manifests.values()
        for file in _files_in(table, manifest_file, live=False)
    }
    if unneeded_files:
        unneeded_files -= {
            file.file_path
            for manifest_file in needed_manifests.values()
            for file in _files_in(table, manifest_file, live=True)
        }
    manifest_lists = {snapshot.manifest_list for snapshot in expired} - {
        snapshot.manifest_list for snapshot in remaining
    }
    _try_to_delete(
        table, [*sorted(unneeded_files), *unneeded_manifests, *filter(None, manifest_lists)]
    )
    return len(unneeded_files)


def _files_in(table: Table, manifest: ManifestFile, *, live: bool) -> Iterator[DataFile]:
    """Yield the files in a manifest; `live`: without those that it marks as deleted."""
    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=live):
        yield entry.data_file
