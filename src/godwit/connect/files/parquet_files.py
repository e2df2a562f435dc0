"""Parquet files of one epoch, one per partition directory, written by the driver or by lanes.

Directories are named as Spark names them, so that Spark reads the same values back: special
characters as ``%XX``, other characters as they are, nulls and empty strings by a word of their own.

To some file systems, names that differ by case are one.  There capital letters A to Z are written
as ``%XX`` too, which readers undo; and files of directories that such a file system may still take
for one (of other letters, or other forms of Unicode) have different names, so that none is lost.

**Files of lanes** are written where the rows are.  One attempt's files have names that no other
attempt uses, so a retry or a zombie leaves only files that no commit names.  Few rows are not worth
a file of their own on every lane: they are left to be staged in the checkpoint, and the driver
writes those of all lanes together.

**Partition columns** are checked before an epoch is committed.  A directory's name has at most 255
bytes on common file systems, and a column of very many values would make as many files of a few
rows each: the first is a matter of a row, the second of the column, so it refuses the epoch.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from godwit.columns.types import is_text
from godwit.connect.row_checks import KNOWN_YEARS, NO_NANOSECONDS, ColumnCheck, RowChecks, Rule
from godwit.model.errors import SinkError
from godwit.plan.staging import WrittenFile
from godwit.sinks.rows import split_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from godwit.plan.staging import Rejections, RowCheck
    from godwit.sinks.sink import EpochOutput, SinkContext

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL: Final = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_CAPITAL: Final = re.compile("(%[0-9A-F]{2})|[A-Z]")
_OPEN_FILES: Final = 256

FILE_BYTES: Final = 2**30
"""Limit of a file's rows in memory: S3 copies objects of up to 5 GiB."""


class EpochFiles:
    """Parquet files under one directory, with a bounded number open at a time.

    `filesystem`: where to write. `directory`: directory of the epoch. `schema`: columns of the
    rows, partition columns included. `partition_by`: columns that become directories instead of
    columns of the files. `compression`: codec of the files. `prefix`: what names of files begin
    with. `fold_case`: names in the file system ignore case.
    """

    def __init__(
        self,
        *,
        filesystem: pafs.FileSystem,
        directory: str,
        schema: pa.Schema,
        partition_by: Sequence[str],
        compression: str,
        prefix: str = "part",
        fold_case: bool = False,
    ) -> None:
        self._fold_case = fold_case
        self._filesystem, self._prefix = filesystem, prefix
        self._directory = directory
        self._columns = [name for name in schema.names if name not in partition_by]
        self._schema = pa.schema([schema.field(name) for name in self._columns])
        self._partition_by = partition_by
        self._compression = compression
        self._open: dict[str, pq.ParquetWriter] = {}
        self._parts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self._open.values():
            try:
                writer.close()
            except (OSError, pa.ArrowException):
                if kind is None:  # else what went wrong first is what to tell
                    raise

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions, one row group each."""
        columns = rows.select(self._columns)
        if not self._partition_by:
            self._append_rows("", columns)
            return
        keys = rows.select(list(self._partition_by))
        for inner, positions in partition_directories(keys, fold_case=self._fold_case):
            self._append_rows(inner, columns.take(pa.array(positions)))

    def _append_rows(self, inner: str, rows: pa.RecordBatch) -> None:
        """Append rows to the file of the partition directory `inner`.

        If it is full, begin another.
        """
        if self._bytes[inner] >= FILE_BYTES and inner in self._open:
            self._open.pop(inner).close()
        writer = self._open_writer(inner)
        self._bytes[inner] += rows.nbytes
        writer.write_batch(rows)

    def write_empty(self) -> None:
        """Write a file without rows, at the depth of the partition directories.

        Spark cannot read files at different depths.
        """
        self._open_writer("/".join(f"{name}={NULL_PARTITION}" for name in self._partition_by))

    def _open_writer(self, inner: str) -> pq.ParquetWriter:
        """Return the open file of the partition directory `inner`.

        Close the oldest if too many are open.
        """
        if inner in self._open:
            return self._open[inner]
        if len(self._open) >= _OPEN_FILES:
            oldest = next(iter(self._open))
            self._open.pop(oldest).close()
        directory = f"{self._directory}/{inner}".rstrip("/")
        self._filesystem.create_dir(directory, recursive=True)
        writer = pq.ParquetWriter(
            f"{directory}/{self._prefix}-{self._parts[folded(inner)]:05d}.parquet",
            self._schema,
            filesystem=self._filesystem,
            compression=self._compression,
        )
        self._parts[folded(inner)] += 1
        self._bytes[inner] = 0
        self._open[inner] = writer
        return writer


def partition_directories(
    keys: pa.RecordBatch, *, fold_case: bool = False
) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.int64]]]]:
    """Yield each partition's directory, with the positions of its rows, ascending.

    `keys`: partition columns. `fold_case`: names in the file system ignore case.

    Examples
    --------
    >>> keys = pa.record_batch({"year": [2013, None, 2013], "at": ["a/b", "c", "a/b"]})
    >>> for directory, rows in partition_directories(keys):
    ...     print(directory, rows)
    year=2013/at=a%2Fb [0 2]
    year=__HIVE_DEFAULT_PARTITION__/at=c [1]
    """
    codes = np.zeros(keys.num_rows, np.int64)
    names: list[str] = [""]
    for column, values in zip(keys.schema.names, keys.columns, strict=True):
        encoded = values.dictionary_encode(null_encoding="encode")
        levels = [
            directory_name(column, value, fold_case=fold_case)
            for value in encoded.dictionary.to_pylist()
        ]
        codes = codes * len(levels) + encoded.indices.to_numpy()
        # Renumbered after every column, so that codes stay small however many columns there are.
        used, codes = np.unique(codes, return_inverse=True)
        names = [f"{names[c // len(levels)]}/{levels[c % len(levels)]}" for c in used.tolist()]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    for name, positions in zip(names, np.split(order, ends[:-1]), strict=True):
        yield name.removeprefix("/"), positions


def directory_name(column: str, value: Any, *, fold_case: bool = False) -> str:
    """Return the name of a partition's directory, as Spark names it, such as ``day=2024-05-01``."""
    text = _partition_text(value)
    if text is None:
        return f"{column}={NULL_PARTITION}"
    escaped = escaped_in_paths(text)
    if fold_case:
        # Escapes, whose digits have one spelling, stay as they are.
        escaped = _CAPITAL.sub(lambda match: match[1] or f"%{ord(match[0]):02X}", escaped)
    return f"{column}={escaped}"


def _partition_text(value: Any) -> str | None:
    """Return a partition's value as text; ``None`` for null and, as in Spark, for empty text."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def folded(name: str) -> str:
    """Return a name as case-insensitive file systems compare it."""
    return unicodedata.normalize("NFC", name).casefold()


def escaped_in_paths(text: str) -> str:
    """Return a text with a path's special characters escaped as ``%XX``, as Spark does.

    Examples
    --------
    >>> escaped_in_paths("a/b 50%")
    'a%2Fb 50%25'
    """
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text)


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Partition:
    """Rows of one partition."""

    directory: str  # name of its directory; empty where nothing is partitioned
    values: dict[str, str | None]  # partition column → its value in text, None for null
    rows: pa.Table  # without the partition columns


def partitioned(
    rows: pa.Table, partition_by: Sequence[str], *, fold_case: bool = False
) -> list[Partition]:
    """Return rows divided by the partition columns."""
    if not partition_by:
        return [Partition("", {}, rows)]
    columns = [name for name in rows.schema.names if name not in partition_by]
    (keys,) = rows.select(list(partition_by)).combine_chunks().to_batches()
    places: dict[str, list[npt.NDArray[np.int64]]] = {}
    for directory, positions in partition_directories(keys, fold_case=fold_case):
        places.setdefault(directory, []).append(positions)  # twice: of null, and of empty texts
    parts = []
    for directory, parts_of_directory in places.items():
        positions = np.sort(np.concatenate(parts_of_directory))
        values = keys.slice(int(positions[0]), 1)
        texts = {name: _partition_text(values.column(name)[0].as_py()) for name in partition_by}
        parts.append(Partition(directory, texts, rows.select(columns).take(pa.array(positions))))
    return parts


def partitions_worth_files(
    rows: pa.Table,
    schema: pa.Schema,
    partition_by: Sequence[str],
    lane_bytes: int,
    *,
    lane_files: int | None = None,
    fold_case: bool = False,
) -> list[Partition] | None:
    """Return a lane's rows divided by partitions; ``None`` if there are too few rows for files.

    All rows must have at least `lane_bytes` bytes, and those of a partition a sixteenth of that on
    average; all of that if there are more than `lane_files` partitions.
    """
    if rows.nbytes < lane_bytes:
        return None
    parts = partitioned(rows.cast(schema), partition_by, fold_case=fold_case)
    share = 16 if lane_files is None or len(parts) <= lane_files else 1
    return parts if share * rows.nbytes >= lane_bytes * len(parts) else None


def is_codec(name: object) -> bool:
    """Return whether Parquet files can be compressed with a codec, by a test in memory.

    Arrow has codecs that its Parquet files cannot have, such as ``bz2``.
    """
    if not isinstance(name, str):
        return False
    try:
        # A table that is made without pandas, which Arrow would import for one of Python values.
        table = pa.table({"": pa.nulls(1)})
        pq.write_table(table, pa.BufferOutputStream(), compression=name)
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True


def file_slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield parts of a lane's rows, each for one file of bounded size."""
    return split_batch(rows, rows=rows.num_rows, size_bytes=FILE_BYTES)


def write_file(
    filesystem: pafs.FileSystem,
    root: str,
    path: str,
    rows: pa.Table,
    *,
    partition: Partition,
    compression: str,
    delivered: str,
    facts: dict[str, Any] | None = None,
) -> WrittenFile:
    """Write a partition's rows to a Parquet file below `root`, without fsync.

    `delivered`: path of the file once its epoch is delivered. `facts`: what the commit of the
    file needs besides, such as statistics; part of the result.
    """
    with filesystem.open_output_stream(f"{root}/{path}") as stream:
        pq.write_table(rows, stream, compression=compression)
        size = int(stream.tell())
    return WrittenFile(
        path=path,
        delivered=delivered,
        rows=rows.num_rows,
        size_bytes=size,
        partition=partition.values,
        facts=facts or {},
    )


def files_there(
    filesystem: pafs.FileSystem, root: str, written: Sequence[WrittenFile]
) -> tuple[list[tuple[WrittenFile, pafs.FileInfo]], list[str]]:
    """Return the files `written` by lanes that exist below `root`, and the missing paths.

    If any is missing, the epoch must not be delivered.
    """
    infos = filesystem.get_file_info([f"{root}/{file.path}" for file in written])
    existing = [
        (file, info)
        for file, info in zip(written, infos, strict=True)
        if info.type != pafs.FileType.NotFound
    ]
    return existing, [info.path for info in infos if info.type == pafs.FileType.NotFound]


def is_target_replaced(
    sink: str, target: str, output: EpochOutput, gone: Sequence[str], opening: str
) -> bool:
    """Return whether to skip an epoch whose files were removed with the whole target.

    True if the target was created when the sink was opened, and all missing files (`gone`) were
    written before. `opening`: part of the names of files written since; empty if the target was not
    created. The epoch is lost then, with all earlier ones: a warning says so.
    """
    if not opening or any(f"-{opening}-" in path for path in gone):
        return False
    _log.warning(
        "Sink %r: epoch %d is not written, because the target %s was removed, with files of %d "
        "rows of this epoch and with all earlier epochs. The next epoch starts a new target.",
        sink,
        output.epoch,
        target,
        sum(file.rows for file in output.files()),
    )
    return True


LONGEST_NAME: Final = 255


def _null_texts(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of texts that name the directory of null; ``None`` for other types."""
    return pc.equal(values, NULL_PARTITION) if is_text(values.type) else None


_NO_NULL_TEXT: Final = Rule(
    f"is {NULL_PARTITION}, which stands for null in a partition column", _null_texts
)


def short_directory_name(column: str, *, fold_case: bool) -> Rule:
    """Return a rule that rejects values whose directory name ``column=value`` would be too long."""
    reason = f"would name a directory of more than {LONGEST_NAME} bytes"
    return Rule(reason, partial(_with_long_directory_name, column, fold_case))


def _with_long_directory_name(
    column: str, fold_case: bool, values: pa.Array
) -> pa.BooleanArray | None:
    """Return a mask of values whose partition directory would have too long a name."""
    if not is_text(values.type):
        return None
    room = (LONGEST_NAME - len(column.encode()) - 1) // 3  # a character may become %XX
    long = pc.greater(pc.binary_length(values), room)
    if not pc.any(long).as_py():
        return long
    return pa.array(
        [
            bool(may_be)
            and len(directory_name(column, value, fold_case=fold_case).encode()) > LONGEST_NAME
            for may_be, value in zip(long.to_pylist(), values.to_pylist(), strict=True)
        ],
        pa.bool_(),
    )


@dataclass(frozen=True, slots=True)
class PartitionedRows:
    """Rows for a partitioned target (see `godwit.plan.staging.RowCheck`)."""

    sink: str  # name of the sink
    checks: RowChecks  # the rules for single rows
    partition_by: tuple[str, ...]  # partition columns
    max_partitions: int  # the most partitions that one lane may write in an epoch

    def __call__(self, rows: pa.RecordBatch) -> Rejections | None:
        """Find the rows that break a rule."""
        rejected = self.checks(rows)
        keys = pa.Table.from_batches([rows.select(list(self.partition_by))])
        partitions = keys.group_by(list(self.partition_by)).aggregate([]).num_rows
        if partitions > self.max_partitions:
            raise SinkError(
                f"Sink {self.sink!r}: in one epoch, a lane has rows of {partitions:,} partitions "
                f"by {', '.join(map(repr, self.partition_by))}, and each would become a file.",
                remedy="Partition by columns with fewer distinct values; or raise the limit, as "
                f"in max_partitions={partitions}.",
                sink=self.sink,
                partitions=partitions,
            )
        return rejected


def require_types(
    context: SinkContext,
    schema: pa.Schema,
    target: str,
    error: Callable[[str, str], SinkError],
    convert: Callable[[pa.Schema], object] = lambda _: None,
) -> None:
    """Raise `error` for the first column whose type Parquet files or the target do not support.

    `schema`: columns as the target stores them. `target`: as in "an Iceberg table". `convert`:
    makes columns of the target's library; it may raise anything for types that it does not have.
    """
    for field in schema:
        column = pa.schema([field])
        try:
            pq.write_table(column.empty_table(), pa.BufferOutputStream())
            convert(column)
        except Exception as cause:
            dtype = context.schema.field(field.name).type
            reason = str(cause).splitlines()[0].rpartition("error: ")[2].rstrip(".")
            raise error(
                f"column {field.name!r} of type {dtype} cannot be a column of {target}: {reason}",
                "Cast the column to another type in a map before the sink, or leave it out.",
            ) from cause


def file_row_check(
    context: SinkContext,
    partition_by: tuple[str, ...],
    max_partitions: int,
    never_null: Collection[str] = (),
    *,
    fold_case: bool = False,
) -> RowCheck:
    """Return the check of rows for a target of files, partitioned or not.

    `max_partitions`: the most partitions that one lane may write in an epoch. `never_null`: columns
    that must not be null in the target.
    """
    columns = []
    for field in context.schema:
        rules: tuple[Rule, ...] = (KNOWN_YEARS, NO_NANOSECONDS)
        if field.name in partition_by:
            rules = (*rules, _NO_NULL_TEXT, short_directory_name(field.name, fold_case=fold_case))
        columns.append(ColumnCheck(field.name, rules, nullable=field.name not in never_null))
    return check_of_columns(context, columns, partition_by, max_partitions)


def check_of_columns(
    context: SinkContext,
    columns: Iterable[ColumnCheck],
    partition_by: tuple[str, ...],
    max_partitions: int,
) -> RowCheck:
    """Return a check of rows, from checks of their columns and of the number of partitions.

    `max_partitions`: the most partitions that one lane may write in an epoch.
    """
    checks = RowChecks(tuple(columns))
    if not partition_by:
        return checks
    return PartitionedRows(
        sink=context.name,
        checks=checks,
        partition_by=partition_by,
        max_partitions=max_partitions,
    )
