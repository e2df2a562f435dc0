"""The Parquet files of one epoch: one per partition directory, streamed.

Directories are named as Spark names them, so that Spark reads the same values back: special
characters as ``%XX``, other characters as they are, nulls and empty strings by a word of their own.

To some file systems, names that differ by case are one.  There capital letters A to Z are written
as ``%XX`` too, which readers undo; and files of directories that such a file system may still take
for one (of other letters, or other forms of Unicode) have different names, so that none is lost.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow.fs as pafs

__all__ = [
    "FILE_BYTES",
    "NULL_PARTITION",
    "EpochFiles",
    "directory_name",
    "escaped_in_paths",
    "folded",
    "partition_directories",
]

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL: Final = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_CAPITAL: Final = re.compile("(%[0-9A-F]{2})|[A-Z]")
_OPEN_FILES: Final = 256

FILE_BYTES: Final = 2**30
"""Rows in memory that go into one file at most: S3 copies objects of up to 5 GiB."""


class EpochFiles:
    """Parquet files under one directory; of very many partitions, some are open at a time.

    Parameters
    ----------
    filesystem
        Where to write.
    directory
        Directory of the epoch.
    schema
        Columns of the rows, partition columns included.
    partition_by
        Columns that become directories instead of columns of the files.
    compression
        Codec of the files.
    prefix
        What names of files begin with.
    folds
        Whether names that differ by case are one.
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
        folds: bool = False,
    ) -> None:
        self._folds = folds
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
        """Append `rows` to the files that they belong to, in their order: a row group each."""
        columns = rows.select(self._columns)
        if not self._partition_by:
            self._append("", columns)
            return
        keys = rows.select(list(self._partition_by))
        for inner, positions in partition_directories(keys, folds=self._folds):
            self._append(inner, columns.take(pa.array(positions)))

    def _append(self, inner: str, rows: pa.RecordBatch) -> None:
        if self._bytes[inner] >= FILE_BYTES and inner in self._open:
            self._open.pop(inner).close()
        writer = self._writer(inner)
        self._bytes[inner] += rows.nbytes
        writer.write_batch(rows)

    def write_empty(self) -> None:
        """Write a file without rows, as deep as files with rows are.

        Files at different depths would stop Spark from reading any.
        """
        self._writer("/".join(f"{name}={NULL_PARTITION}" for name in self._partition_by))

    def _writer(self, inner: str) -> pq.ParquetWriter:
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
    keys: pa.RecordBatch, *, folds: bool = False
) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.int64]]]]:
    """Yield each directory that `keys` name, with the positions of its rows, ascending.

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
            directory_name(column, value, folds=folds) for value in encoded.dictionary.to_pylist()
        ]
        codes = codes * len(levels) + encoded.indices.to_numpy()
        # Renumbered after every column, so that codes stay small however many columns there are.
        used, codes = np.unique(codes, return_inverse=True)
        names = [f"{names[c // len(levels)]}/{levels[c % len(levels)]}" for c in used.tolist()]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    for name, positions in zip(names, np.split(order, ends[:-1]), strict=True):
        yield name.removeprefix("/"), positions


def directory_name(column: str, value: Any, *, folds: bool = False) -> str:
    """Name of the directory for the rows in which `column` has this value."""
    if value is None or value == "":
        return f"{column}={NULL_PARTITION}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    escaped = escaped_in_paths(text)
    if folds:
        # Not the digits of what is escaped already, of which only one spelling occurs.
        escaped = _CAPITAL.sub(lambda match: match[1] or f"%{ord(match[0]):02X}", escaped)
    return f"{column}={escaped}"


def folded(name: str) -> str:
    """Spell a name as all names are spelled that a file system may take for the same."""
    return unicodedata.normalize("NFC", name).casefold()


def escaped_in_paths(text: str) -> str:
    """Write characters that mean something in a path as ``%XX``, the same ones as Spark.

    Examples
    --------
    >>> escaped_in_paths("a/b 50%")
    'a%2Fb 50%25'
    """
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text)
