"""Maintenance of a Delta table: ``OPTIMIZE`` if a partition has many small files, and ``VACUUM``.

Both are commits of the library. ``OPTIMIZE`` says that it changes no data, so readers of changes
skip it, and it leaves the versions of applications, which are the sink's epochs, alone.  ``VACUUM``
deletes only files that a version of the log has removed: files of epochs that lanes have written,
and that are not committed yet, stay.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from godwit.connect.delta.place import table_files
from godwit.sinks.sink import Maintained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.sinks.sink import Maintenance


def maintain_table(uri: str, options: Mapping[str, str] | None, policy: Maintenance) -> Maintained:
    """Compact a table and remove its old versions, as the policy says.

    Raises what the library does if another writer removed a file meanwhile, or the table has
    features that it does not know.
    """
    table = DeltaTable(uri, storage_options=None if options is None else dict(options))
    result = Maintained()
    small = small_files(table, policy)
    if max(small.values(), default=0) > policy.max_small_files:
        metrics = table.optimize.compact(target_size=policy.file_bytes)
        compacted, written = metrics["numFilesRemoved"], metrics["numFilesAdded"]
        result = Maintained(compacted=compacted, written=written)
    if policy.retain_s is not None:
        hours = int(policy.retain_s // 3600)
        listed = table.vacuum(hours, dry_run=True, enforce_retention_duration=False)
        removed = _num_present(table, listed, options)
        if removed:  # else the log would get two commits of nothing at each look
            table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        result = result.plus(Maintained(removed=removed))
    return result


def _num_present(table: DeltaTable, paths: list[str], options: Mapping[str, str] | None) -> int:
    """Return how many of a table's files exist: the log lists removed files for days."""
    if not paths:
        return 0
    filesystem, root = table_files(table.table_uri, options)
    infos = filesystem.get_file_info([f"{root}/{unquote(path)}" for path in paths])
    return sum(info.type == pafs.FileType.File for info in infos)


def small_files(table: DeltaTable, policy: Maintenance) -> Counter[tuple[str, ...]]:
    """Return partition → number of its small files."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [name for name in actions.column_names if name.startswith("partition.")]
    sizes = actions.column("size_bytes").to_pylist()
    partitions = [tuple(map(str, row.values())) for row in actions.select(names).to_pylist()]
    return Counter(
        partition
        for partition, size in zip(partitions or [()] * len(sizes), sizes, strict=True)
        if policy.is_small(size)
    )
