"""Data files of an Iceberg table: those that an epoch replaces, writing them, and a trial write.

**Upserts** replace whole files, and only files that have a row with a key of the epoch.  All other
rows of such a file are written again as they are, also rows of other writers and repeated rows.
Positional deletes of other writers are applied to them; equality deletes cannot be read.

**A commit that lost** need not be computed again if what others committed has no row with a key of
the epoch, and the replaced files are still there as they were.  So slow upserts can be committed
beside a writer that commits often.

**Partitions** are those of the rows' bits: NaN is a partition, and -0.0 is not that of 0.0.  The
library's own division compares values, and so loses rows with NaN, and writes rows with 0.0 twice.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThanOrEqual,
    Or,
)
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _get_parquet_writer_kwargs,
    bin_pack_arrow_table,
    pyarrow_to_schema,
    write_file,
)
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, partition_record_value
from pyiceberg.table import WriteTask
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles, _SnapshotProducer
from pyiceberg.typedef import Record

import godwit.connect.iceberg.repairs  # noqa: F401
from godwit.sinks.changes import is_newest
from godwit.sinks.rows import has_key_among

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

_MAX_LISTED_KEYS: Final = 200  # of more, the library does not compare each with a file's bounds
_READERS: Final = 8
_LONGEST_NAME: Final = 128  # of directories, in bytes; disks take 255, and S3 1024 for all
_FILE_BYTES: Final = 512 * 2**20  # default of the property of the table


class ReplacedFiles:
    """Data files that an epoch of upserts replaces, and their rows to keep.

    `rows`: the epoch's rows, each key once. `keys`: names of the key columns.
    """

    def __init__(self, table: Table, rows: pa.Table, keys: Sequence[str]) -> None:
        # The library cannot compare a partition that is null, and truncates small integers wrongly.
        fields = [field for spec in table.specs().values() for field in spec.fields]
        partitioned = {table.schema().find_column_name(field.source_id) for field in fields}
        self._keys, self._epoch_keys = list(keys), rows.select(list(keys))
        self._near_filter = rows_near(rows, [key for key in keys if key not in partitioned])
        tasks = self._scan_tasks_by_path(table)
        for task in tasks.values():
            if (what := _unreadable_reason(task.file)) is not None:
                msg = f"the table {what}"
                raise ValueError(msg)
        self._delete_files_seen = {path: _delete_file_paths(task) for path, task in tasks.items()}
        touched = self._with_keys_of_epoch(table, tasks.values())
        self.files = [task.file for task in touched]
        self.rows_that_stay = [self._other_rows(table, task) for task in touched]

    def still_apply(self, table: Table) -> bool:
        """Return whether the files are also valid for a newer version of the table."""
        tasks = self._scan_tasks_by_path(table)
        for file in self.files:
            task = tasks.get(file.file_path)
            if task is None or _delete_file_paths(task) != self._delete_files_seen[file.file_path]:
                return False
        new = [task for path, task in tasks.items() if path not in self._delete_files_seen]
        if any(_unreadable_reason(task.file) for task in new) or self._with_keys_of_epoch(
            table, new
        ):
            return False
        self._delete_files_seen |= {task.file.file_path: _delete_file_paths(task) for task in new}
        return True

    def without_older(self, table: Table, rows: pa.Table, version: str) -> pa.Table:
        """Return the epoch's rows, without those for which the table has a newer version."""
        tasks, columns = self._scan_tasks_by_path(table), [*self._keys, version]
        typed = pa.schema([rows.schema.field(name).with_nullable(True) for name in columns])
        parts = [rows.select(columns).cast(typed)]
        for file in self.files:
            read = read_file(table, tasks[file.file_path], columns).cast(typed)
            with_keys = has_key_among(read.select(self._keys), parts[0].select(self._keys))
            parts.append(read.filter(pa.array(with_keys)))
        return rows.filter(pa.array(is_newest(pa.concat_tables(parts), rows.num_rows)))

    def _scan_tasks_by_path(self, table: Table) -> dict[str, FileScanTask]:
        """Return the tasks that read the files which may have keys of the epoch, by path."""
        tasks = table.scan(row_filter=self._near_filter).plan_files()
        return {task.file.file_path: task for task in tasks}

    def _with_keys_of_epoch(
        self, table: Table, tasks: Iterable[FileScanTask]
    ) -> list[FileScanTask]:
        """Return the tasks whose files have a row with a key of the epoch."""

        def is_touched(task: FileScanTask) -> bool:
            keys = read_file(table, task, self._keys).cast(self._epoch_keys.schema)
            return bool(has_key_among(keys, self._epoch_keys).any())

        all_tasks = list(tasks)
        with ThreadPoolExecutor(_READERS) as pool:
            is_replaced = list(pool.map(is_touched, all_tasks))
        return list(itertools.compress(all_tasks, is_replaced))

    def _other_rows(self, table: Table, task: FileScanTask) -> pa.Table:
        """Return the rows of a file whose keys are not in the epoch."""
        rows = read_file(table, task, [field.name for field in table.schema().fields])
        keys = rows.select(self._keys).cast(self._epoch_keys.schema)
        return rows.filter(pa.array(~has_key_among(keys, self._epoch_keys)))


def read_file(table: Table, task: FileScanTask, columns: Sequence[str]) -> pa.Table:
    """Return columns of one data file, without deleted rows."""
    schema = table.schema().select(*columns)
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    return scan.to_table([task]).select(list(columns))


def _delete_file_paths(task: FileScanTask) -> frozenset[str]:
    """Return the paths of the delete files that apply to a task's file."""
    return frozenset(file.file_path for file in task.delete_files)


def rows_near(rows: pa.Table, keys: Sequence[str]) -> BooleanExpression:
    """Return a filter that selects all rows with the keys of `rows`, and few others.

    It compares the key columns whose order is the same for all readers.
    """
    near: BooleanExpression = AlwaysTrue()
    for key in keys:
        column = rows.column(key)
        if _is_ordered(column.type):
            near = And(near, _near_in_column(key, column))
    return near


def _near_in_column(key: str, column: pa.ChunkedArray) -> BooleanExpression:
    """Return a filter that selects all values of a key column, and few others."""
    values = pc.drop_null(pc.unique(column))
    if len(values) == 0:
        return IsNull(key)
    near: BooleanExpression
    if len(values) <= _MAX_LISTED_KEYS:
        near = In(key, [_expression_literal(value) for value in values.to_pylist()])
    else:
        ends = pc.min_max(values)
        low, high = (_expression_literal(ends[end].as_py()) for end in ("min", "max"))
        near = And(GreaterThanOrEqual(key, low), LessThanOrEqual(key, high))
    return Or(near, IsNull(key)) if column.null_count else near


def _is_ordered(dtype: pa.DataType) -> bool:
    """Return whether all readers of Iceberg order values of a type in the same way."""
    return bool(
        pa.types.is_integer(dtype) or pa.types.is_string(dtype) or pa.types.is_date32(dtype)
    )


def _expression_literal(value: Any) -> Any:
    """Convert a key value to a value for Iceberg's expressions."""
    return value.isoformat() if isinstance(value, dt.date) else value


def all_files(table: Table) -> list[DataFile]:
    """Return all data files of a table's current version."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    return [
        entry.data_file
        for manifest in manifests
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def unreadable_files(table: Table) -> str | None:
    """Return why an upsert cannot read some of a table's files, as text; ``None`` if it can."""
    snapshot = table.current_snapshot()
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if (what := _unreadable_reason(entry.data_file)) is not None:
                return what
    return None


def _unreadable_reason(file: DataFile) -> str | None:
    """Return why an upsert cannot read a file, as text; ``None`` if it can.

    Of ORC, pyiceberg reads times as nanoseconds, and no values of fixed types.
    """
    if file.content == DataFileContent.EQUALITY_DELETES:
        return "has equality deletes"
    if file.content == DataFileContent.DATA and file.file_format != "PARQUET":
        return f"has data files in {file.file_format.name}"
    return None


def change_of_files(
    transaction: Transaction, removed: Sequence[DataFile], summary: dict[str, str]
) -> _SnapshotProducer[Any]:
    """Return the transaction's snapshot that removes the files `removed` from a table.

    Add files to it. `summary`: its properties.
    """
    if removed:
        change = _FileReplacement(
            operation=Operation.OVERWRITE,
            transaction=transaction,
            io=transaction._table.io,  # noqa: SLF001
            snapshot_properties=summary,
        )
        for file in removed:
            change.delete_data_file(file)
        return change
    update = transaction.update_snapshot(summary)
    properties = transaction.table_metadata.properties
    merges = properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
    return update.merge_append() if merges else update.fast_append()


class _FileReplacement(_OverwriteFiles):
    """Snapshot that removes and adds the given files, in any partitions."""

    def _build_delete_files_partition_predicate(self) -> None:
        """Ignore partitions: the library cannot compare all values with a partition's."""

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        """Return a test for manifests that may name removed files."""
        has_removed = any(file.spec_id == spec_id for file in self._deleted_data_files)
        return lambda _: has_removed

    def _validate_concurrency(self) -> None:
        """No-op: the code that repeats the commit has validated it."""


def data_files_of(table: Table, rows: pa.Table) -> list[DataFile]:
    """Write rows to data files that no version of the table refers to yet; return the files."""
    if not rows.num_rows:
        return []
    metadata = table.metadata
    schema = pyarrow_to_schema(
        rows.schema,
        name_mapping=table.schema().name_mapping,
        format_version=metadata.format_version,
    )
    size = int(metadata.properties.get("write.target-file-size-bytes", _FILE_BYTES))
    write_uuid, numbers = uuid.uuid4(), itertools.count()
    outputs = _Outputs(table.io)
    tasks = (
        WriteTask(
            write_uuid=write_uuid,
            task_id=next(numbers),
            schema=schema,
            record_batches=batches,
            partition_key=partition,
        )
        for partition, part in _rows_by_partition(metadata, rows)
        for batches in bin_pack_arrow_table(part, size)
    )
    try:
        return list(write_file(outputs, metadata, tasks))
    except BaseException:
        _try_to_delete(table, outputs.paths)
        raise


class _Outputs(FileIO):
    """Files of a store, with a record of the paths to be written."""

    def __init__(self, store: FileIO) -> None:
        super().__init__(store.properties)
        self._store = store
        self.paths: list[str] = []

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return self._store.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write, and record its path."""
        self.paths.append(location)
        return self._store.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._store.delete(location)


def delete_files(table: Table, files: Iterable[DataFile]) -> None:
    """Try to delete data files that no version of the table refers to."""
    _try_to_delete(table, (file.file_path for file in files))


def _try_to_delete(table: Table, paths: Iterable[str]) -> None:
    """Try to delete files by their paths."""
    for path in paths:
        with contextlib.suppress(Exception):  # it is only space
            table.io.delete(path)


class _Partition(PartitionKey):
    """Partition of rows; several fields may have the same source column."""

    @cached_property
    def partition(self) -> Record:
        """Values of the fields, as manifests store them."""
        return Record(*(self._stored_partition_value(value) for value in self.field_values))

    def to_path(self) -> str:
        """Return the directory of the partition's files, with names short enough for any store."""
        parts = super().to_path().split("/")
        return "/".join(map(_short_name, parts))

    def _stored_partition_value(self, value: PartitionFieldValue) -> Any:
        """Return the value of a field; integers, such as those of buckets, are stored as such."""
        if isinstance(value.value, int):
            return value.value
        return partition_record_value(value.field, value.value, self.schema)


def _short_name(name: str) -> str:
    """Return the name of a directory, truncated if it is long, since readers use manifests."""
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    start = re.sub("%.?$", "", name[: _LONGEST_NAME - len(digest) - 1])
    return f"{start}-{digest}"


def _rows_by_partition(
    metadata: TableMetadata, rows: pa.Table
) -> Iterator[tuple[_Partition | None, pa.Table]]:
    """Yield the rows of each partition of a table."""
    spec, schema = metadata.spec(), metadata.schema()
    if spec.is_unpartitioned():
        yield None, rows
        return
    values = [
        field.transform.pyarrow_transform(schema.find_type(field.source_id))(
            _source_column(schema, field.source_id, rows)
        )
        for field in spec.fields
    ]
    names = [str(position) for position in range(len(values))]
    numbered = pa.array(range(rows.num_rows))
    groups = (
        pa.table([*map(_distinguishable_values, values), numbered], names=[*names, "row"])
        .group_by(names, use_threads=False)
        .aggregate([("row", "list")])
    )
    for positions in groups.column("row_list"):
        first = positions.values[0].as_py()
        partition = _Partition(
            field_values=[
                PartitionFieldValue(field=field, value=value[first].as_py())
                for field, value in zip(spec.fields, values, strict=True)
            ],
            partition_spec=spec,
            schema=schema,
        )
        yield partition, rows.take(positions.values).combine_chunks()


def _source_column(schema: Schema, source_id: int, rows: pa.Table) -> pa.ChunkedArray:
    """Return a partition's source: a column, or a field within a column of structs."""
    name = schema.find_column_name(source_id)
    if name is None:
        msg = f"the partition's source field {source_id} is not a column"
        raise ValueError(msg)
    if name in rows.column_names:
        return rows.column(name)
    first, *path = name.split(".")
    return pc.struct_field(rows.column(first), path)


def _distinguishable_values(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Encode partition values so that groups distinguish -0.0 from 0.0, but not NaN from NaN."""
    if not pa.types.is_floating(values.type):
        return values
    number = pa.int32() if values.type == pa.float32() else pa.int64()
    one_nan = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    return pa.chunked_array([chunk.view(number) for chunk in one_nan.chunks], number)


def try_to_write(table: Table, schema: pa.Schema, names: Collection[str]) -> None:
    """Write a row with columns of `schema` as for an epoch, and remove it; or raise.

    Everything is done but the commit: no version of the table ever has the row. `names`: columns of
    the rows of epochs, which have null in the others.
    """
    columns = [
        _one_value_array(field.type) if field.name in names else pa.nulls(1, field.type)
        for field in schema
    ]
    row = pa.table(columns, schema=schema)
    options = _get_parquet_writer_kwargs(table.properties)
    with pq.ParquetWriter(pa.BufferOutputStream(), schema, **options) as writer:
        writer.write(row)  # a store may keep the file of a writer that fails
    files = data_files_of(table, row)
    transaction = table.transaction()
    try:
        transaction.append(schema.empty_table())  # compares the columns
        with change_of_files(transaction, [], {}) as snapshot:
            for file in files:
                snapshot.append_data_file(file)
    finally:
        for producer in transaction._snapshot_producers:  # noqa: SLF001  as a refused commit does
            producer._clean_all_uncommitted()  # noqa: SLF001
        delete_files(table, files)


def _one_value_array(dtype: pa.DataType) -> pa.Array:
    """Return an array with one value of a type, which is not null at any depth outside of maps."""
    if pa.types.is_struct(dtype):
        return pa.StructArray.from_arrays(
            [_one_value_array(f.type) for f in dtype], fields=list(dtype)
        )
    if pa.types.is_list(dtype):
        return pa.ListArray.from_arrays(
            pa.array([0, 1], pa.int32()), _one_value_array(dtype.value_type), dtype
        )
    if pa.types.is_large_list(dtype):
        return pa.LargeListArray.from_arrays(
            pa.array([0, 1], pa.int64()), _one_value_array(dtype.value_type), dtype
        )
    if pa.types.is_map(dtype):
        return pa.array([[]], dtype)
    if isinstance(dtype, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(dtype, _one_value_array(dtype.storage_type))
    if pa.types.is_fixed_size_binary(dtype):
        return pa.array([bytes(dtype.byte_width)], dtype)
    if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
        return pa.array([b""], pa.binary()).cast(dtype)
    if pa.types.is_boolean(dtype):
        return pa.array([False])
    if pa.types.is_decimal(dtype):
        return pa.array([Decimal(0)], dtype)
    is_date = pa.types.is_date(dtype) or pa.types.is_time32(dtype)
    return pa.array([0], pa.int32() if is_date else pa.int64()).cast(dtype)
