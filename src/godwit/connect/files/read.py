"""``gw.sources.parquet``, ``arrow``, ``csv`` and ``json``: files that appear in a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.columns.types import to_schema
from godwit.connect.files.csv_files import CsvFormat
from godwit.connect.files.file_formats import ArrowFormat, ParquetFormat
from godwit.connect.files.json_files import JsonFormat
from godwit.connect.files.source import FileSource
from godwit.model.errors import SourceError
from godwit.model.frames import user_call
from godwit.model.naming import type_name

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any, Literal

    import pyarrow.fs as pafs

    from godwit.columns.types import SchemaLike
    from godwit.sources.source import Source


@user_call
def parquet(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
) -> Source:
    """Read Parquet files as they appear in a directory and its subdirectories.

    Each file is read once; files that are found by the same listing are read in order of
    modification time, then path. A large file is divided by row groups among lanes (parallel
    tasks). Only the columns that the flow uses are read. Directories named like ``day=2024-05-01``
    become columns.

    Parameters
    ----------
    path
        A directory or a file: a local path, or a URI that ``pyarrow.fs`` understands (``s3://``,
        ``gs://``, ``abfs://``, ``hdfs://``).
    schema
        Columns: an Arrow schema, a dict of column name → type, text such as ``"symbol string, price
        double"``, or a PySpark ``StructType``. By default the columns of the first file. A column
        that a file lacks is null; one of a narrower type is widened; one of another type is an
        error that names the file. Columns of a file that are not in the schema are ignored.
    filesystem
        Arrow file system that `path` is on; by default the one that `path` names as a URI, else the
        local one.
    pattern
        Read only files whose names match, such as ``"*.parquet"``; by default all files except
        those whose names begin with ``_`` or ``.``.
    max_rows_per_epoch, max_files_per_epoch
        Maximum rows and files that one epoch reads; by default all that are available. An epoch may
        end within a file.

    Raises
    ------
    InvalidFlowError
        If the schema is not valid.
    SourceError
        If another option is wrong. At the start or in an epoch: if the directory does not exist, or
        a file is not a Parquet file, was changed after it was listed, or was deleted before it was
        read.

    Notes
    -----
    **Limits.** ``max_rows_per_epoch=`` and ``max_files_per_epoch=`` limit how much an epoch reads.
    A large file is read by all lanes (parallel tasks): Parquet by row groups, Arrow by record
    batches, CSV and JSON by ranges of bytes. Small files are read together by one task.

    **What it costs** (design). Every commit record has 12 bytes for every file that was read and
    still exists: delete or move files that were read. Listing 100,000 files on a local disk takes
    the driver about a second, if the directory has changed. From 1,000 files on, a changed file may
    be noticed up to a minute late. With ``max_rows_per_epoch=`` the driver reads the footers of
    Parquet files, and counts the lines of text files.

    Examples
    --------
    >>> gw.sources.parquet("s3://bucket/flights", schema="plane string, delay int").schema.names
    ['plane', 'delay']
    """
    options = dict(locals())  # the arguments
    return FileSource(ParquetFormat(), **options)


@user_call
def arrow(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
) -> Source:
    """Read Arrow IPC files (Feather 2) as they appear in a directory and its subdirectories.

    Each file is read once; files that are found by the same listing are read in order of
    modification time, then path. A large file is divided by record batches among lanes (parallel
    tasks). Directories named like ``day=2024-05-01`` become columns.

    Parameters
    ----------
    path, schema, filesystem, pattern, max_rows_per_epoch, max_files_per_epoch
        As for `parquet`.

    Raises
    ------
    InvalidFlowError
        If the schema is not valid.
    SourceError
        If another option is wrong. At the start or in an epoch: if the directory does not exist, or
        a file is not an Arrow file, was changed after it was listed, or was deleted before it was
        read.

    Examples
    --------
    >>> gw.sources.arrow("in/", schema="plane string, delay int").schema.names
    ['plane', 'delay']
    """
    options = dict(locals())  # the arguments
    return FileSource(ArrowFormat(), **options)


@user_call
def csv(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    header: bool = True,
    delimiter: str = ",",
    quote: str | None = '"',
    escape: str | None = None,
    null_values: Sequence[str] = ("",),
    newlines_in_values: bool = False,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
    on_bad: Literal["refuse", "skip", "divert"] = "refuse",
    rejects: Any = None,
) -> Source:
    """Read CSV files as they appear in a directory and its subdirectories.

    Each file is read once; files that are found by the same listing are read in order of
    modification time, then path. Files whose names end in ``.gz``, ``.bz2``, ``.zst``, ``.lz4`` or
    ``.br`` are decompressed; such a file is read by one lane (parallel task), others may be divided
    among several. Files in other compressions are refused. Directories named like
    ``day=2024-05-01`` become columns.

    Parameters
    ----------
    path, filesystem, pattern, max_rows_per_epoch, max_files_per_epoch
        As for `parquet`.
    header
        ``True``: the first line of each file has the names of its columns. ``False``: columns are
        those of `schema`, in that order, and `schema` is required.
    delimiter, quote, escape
        One character each: between fields, around a field, and before a character that is meant
        literally. ``None`` for `quote` or `escape`: no character has this meaning.
    null_values
        Texts that are read as null if they are not quoted.
    newlines_in_values
        ``True``: quoted text may have line breaks; then each file is read whole, by one lane.
    schema, on_bad, rejects
        As for `json`; ``"skip"`` and ``"divert"`` are not possible with `newlines_in_values`.

    Raises
    ------
    InvalidFlowError
        If the schema is not valid, or `on_bad` and `rejects` do not fit each other.
    SourceError
        If another option is wrong. At the start or in an epoch: if the directory does not exist, or
        a file cannot be read, was changed after it was listed, or was deleted before it was read.

    Notes
    -----
    **Times as text**

    CSV and JSON files, JSON messages of Kafka and names of partition directories share one grammar
    for times, and one rule for numbers, at any depth:

    - ``date``: ``2024-01-31``
    - ``timestamp``: a date, or a date, ``T`` or a blank, and hours, minutes and seconds, of which
      the last ones may be missing: ``2024-01-31T23:59Z``. Seconds may have any number of digits
      after a point or a comma. The offset is ``Z``, ``UTC``, ``+02``, ``+0200``, ``+02:00`` or
      ``+02:00:00``, also after a blank
    - ``timestamp_ntz``: the same without an offset
    - ``time``: ``23:59:59.5``, ``23:59``
    - ``interval day to second``: ``P1DT23H59M59.5S``, and ``INTERVAL '1 23:59:59.5' DAY TO SECOND``
      as Spark writes it

    - Digits below a microsecond (or below the unit of an Arrow type) are cut, never rounded;
      nanoseconds in Parquet and Arrow files too.
    - A ``timestamp`` without an offset is in UTC. A date in a ``timestamp`` column is midnight of
      that date.
    - Refused are a ``timestamp_ntz`` with an offset, also ``Z``, hour 24, second 60, years before 1
      or after 9999 (in UTC), and numbers. ``on_bad=`` decides about the line or message.

    **Numbers as text**

    - ``1``, ``-1.50``, ``.5``, ``5.``, ``1e2``, ``+1``, ``007``, blanks or tabs around it: a
      number. In a JSON number, only what JSON permits
    - ``1.0``, ``1e2`` in an integer column: 1 and 100
    - ``1.5`` in an integer column, ``1.005`` in a ``decimal(10, 2)``, ``1e39`` in a ``float``
      column, a number outside the type's range: refused (Spark reads infinity)
    - digits that a ``float`` or ``double`` does not hold: the nearest ``float`` or ``double``,
      rounded once
    - ``-0``, ``-0.0`` in a ``float`` or ``double`` column: the negative zero; ``-0`` as a JSON
      number is zero, as in Spark
    - ``NaN``, ``inf``, ``-Infinity``, with any capitals: NaN and infinities in CSV and in names of
      directories; refused in JSON (Spark accepts them)
    - ``1_000``, ``0x1F``, digits of other scripts: refused
    - ``"1.5"`` in JSON: a number in a ``decimal`` column and as a name in a map whose keys are
      numbers; refused in all other columns
    - ``true``, ``FALSE``, ``1``, ``0`` in a ``boolean`` column: a boolean. In JSON only ``true``
      and ``false``, without quotes

    **Values as other programs write them**

    Tests read what Spark, Hive, Impala, polars, pyarrow, DuckDB, PostgreSQL, Java, .NET and Python
    write. Parquet timestamps of 96 bits are instants. Days of the hybrid calendar (Spark before 3.0
    or in ``LEGACY`` modes, Hive) are the same year, month and day, as in Spark; such timestamps
    before 1900 are read if the footer says that they were written in UTC, and refused otherwise.
    UUIDs are text, or bytes if declared ``binary``. Bytes in hexadecimal and intervals as
    ``24:00:00`` (DuckDB) are refused in JSON, and intervals as numbers (``write_csv`` of pyarrow)
    in CSV.

    Examples
    --------
    >>> gw.sources.csv("in/", schema="plane string, delay int", delimiter=";").schema.names
    ['plane', 'delay']
    """
    columns = None
    for option, value in (("header", header), ("newlines_in_values", newlines_in_values)):
        if not isinstance(value, bool):
            raise SourceError(
                f"The option {option} of a CSV source is {value!r}, of type {type_name(value)}.",
                remedy="Give True or False, without quotes.",
            )
    if not header:
        if schema is None:
            raise SourceError(
                "CSV files without a header have no column names.", remedy="Give schema=."
            )
        columns = to_schema(schema, where="The schema of a CSV source").names
    file_format = CsvFormat(
        delimiter=delimiter,
        quote=quote,
        escape=escape,
        columns=columns,
        null_values=null_values,
        newlines_in_values=newlines_in_values,
        skips_bad=on_bad != "refuse",
    )
    return FileSource(
        file_format,
        path,
        schema=schema,
        filesystem=filesystem,
        pattern=pattern,
        max_rows_per_epoch=max_rows_per_epoch,
        max_files_per_epoch=max_files_per_epoch,
        on_bad=on_bad,
        rejects=rejects,
    )


@user_call
def json(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
    on_bad: Literal["refuse", "skip", "divert"] = "refuse",
    rejects: Any = None,
) -> Source:
    """Read files with one JSON object per line as they appear in a directory tree.

    Each file is read once; files that are found by the same listing are read in order of
    modification time, then path. Files whose names end in ``.gz``, ``.bz2``, ``.zst``, ``.lz4`` or
    ``.br`` are decompressed; such a file is read by one lane (parallel task), others may be divided
    among several. Files in other compressions are refused. Directories named like
    ``day=2024-05-01`` become columns.

    Parameters
    ----------
    path, filesystem, pattern, max_rows_per_epoch, max_files_per_epoch
        As for `parquet`.
    schema
        Columns: an Arrow schema, a dict of column name → type, text such as ``"symbol string, price
        double"``, or a PySpark ``StructType``. By default names and types are inferred from the
        first lines of the first file. A column that a file lacks is null; columns of a file that
        are not in the schema are ignored.
    on_bad
        Action for a line that cannot be parsed: ``"refuse"``: fail its epoch, with an error that
        names the file; ``"skip"``: leave it out, with a warning; ``"divert"``: leave it out and
        write it to the sink `rejects`.
    rejects
        Sink of the lines that cannot be parsed; required with ``on_bad="divert"``. Its rows have
        columns ``path``, ``value`` (bytes of the line) and ``error``, and are delivered with their
        epoch.

    Raises
    ------
    InvalidFlowError
        If the schema is not valid, or `on_bad` and `rejects` do not fit each other.
    SourceError
        If another option is wrong. At the start or in an epoch: if the directory does not exist, or
        a file cannot be read, was changed after it was listed, or was deleted before it was read.

    Examples
    --------
    >>> gw.sources.json("in/", schema="plane string, delay int", on_bad="skip").schema.names
    ['plane', 'delay']
    """
    options = dict(locals())  # the arguments
    return FileSource(JsonFormat(skips_bad=on_bad != "refuse"), **options)
