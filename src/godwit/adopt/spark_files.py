"""Directories and tables of files that Spark's own file sink writes, batch by batch.

Spark's sink names the files of each batch in its log ``_spark_metadata``, which its readers follow,
and leaves a batch out that the log already has.  So a batch that is delivered again is there once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from godwit.model.errors import GodwitError, SinkError
from godwit.model.naming import error_line, listing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_FORMATS: Final = {
    "csv": "csv.CSVFileFormat",
    "json": "json.JsonFileFormat",
    "orc": "orc.OrcFileFormat",
    "parquet": "parquet.ParquetFileFormat",
    "text": "text.TextFileFormat",
}
"""Format → class of Spark's that writes it, in ``org.apache.spark.sql.execution.datasources``."""
FILE_FORMATS: Final = tuple(_FORMATS)
LOG: Final = "_spark_metadata"
_BATCH: Final = re.compile(r"[0-9]+(?=(\.compact)?$)")


class SparkFiles:
    """Function of the rows of a batch and its number, which writes them by Spark's file sink."""

    condition = "STREAM_FAILED"

    def __init__(
        self,
        session: SparkSession,
        path: str,
        file_format: str,
        *,
        partition_by: Sequence[str],
        options: Mapping[str, str],
    ) -> None:
        self._session, self._path = session, path
        jvm: Any = session._jvm  # noqa: SLF001  not in PySpark's API
        part: Any = jvm.org.apache.spark.sql.execution
        for name in f"datasources.{_FORMATS[file_format]}".split("."):
            part = getattr(part, name)
        utilities, (directory, system) = jvm.PythonUtils, _hadoop_directory(session, path)
        self._sink = jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            session._jsparkSession,  # noqa: SLF001
            str(system.makeQualified(directory).toString()),  # absolute, as the sink wants it
            part(),
            utilities.toSeq([*partition_by]),
            utilities.toScalaMap({**options, "path": path}),
        )

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a batch, unless the log has it; raise `SinkError` if it cannot be."""
        last = last_batch(self._session, self._path)
        if last is not None and batch < last:
            raise SinkError(
                f"The log of {self._path!r} has batches up to {last}, but the next batch is "
                f"{batch}.",
                remedy="Another query has written to it: give this query a new directory.",
            )
        try:
            self._sink.addBatch(batch, rows._jdf)  # noqa: SLF001
        except Exception as error:
            raise SinkError(
                f"Spark cannot write batch {batch} to {self._path!r}: {error_line(error)}.",
                remedy="Correct the query or the path, and start the query again.",
            ) from error


def last_batch(session: SparkSession, path: str) -> int | None:
    """Return the number of the last batch in a directory's log, -1 if it is empty.

    ``None``: there is no log.
    """
    names = _names_in(session, f"{path.rstrip('/')}/{LOG}")
    if names is None:
        return None
    matches = [match for name in names if (match := _BATCH.match(name)) is not None]
    return max((int(match[0]) for match in matches), default=-1)


def has_epochs_of_lanes(session: SparkSession, path: str) -> bool:
    """Return whether a directory has output of `gw.sinks.parquet`."""
    return any(name.startswith("epoch=") for name in _names_in(session, path) or ())


def _names_in(session: SparkSession, path: str) -> list[str] | None:
    """Return the names in a directory; ``None`` if it does not exist."""
    directory, system = _hadoop_directory(session, path)
    if not system.exists(directory):
        return None
    return [str(status.getPath().getName()) for status in system.listStatus(directory)]


def _hadoop_directory(session: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's path of a directory, and its file system."""
    jvm: Any = session._jvm  # noqa: SLF001
    directory = jvm.org.apache.hadoop.fs.Path(path)
    conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    return directory, directory.getFileSystem(conf)


def place_of_table(
    session: SparkSession,
    name: str,
    schema: Any,
    *,
    file_format: str | None,
    partition_by: Sequence[str],
    path: str | None,
) -> tuple[str, str, tuple[str, ...]]:
    """Return directory, format and partition columns of a table in Spark's catalog.

    A table that is missing is created with the columns of `schema`, as ``toTable`` of Spark's does.
    Raises `SinkError` if its files are not written by Spark's file sink, or its format is another.
    """
    if not session.catalog.tableExists(name):
        text = f"CREATE TABLE {name} ({schema.toDDL()}) USING {file_format or 'parquet'}"
        if partition_by:
            text += f" PARTITIONED BY ({', '.join(f'`{column}`' for column in partition_by)})"
        if path is not None:
            text += " LOCATION '{}'".format(path.replace("\\", "\\\\").replace("'", "\\'"))
        session.sql(text)
    rows = session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    known = {str(row[0]): str(row[1]) for row in rows}
    provider, place = known.get("Provider", "").lower(), known.get("Location")
    if place is None or provider not in _FORMATS:
        raise _refused_table(
            name, f"a {known.get('Type', '')} {provider}".lower(), listing(FILE_FORMATS)
        )
    if file_format is not None and file_format != provider:
        raise _refused_table(name, f"of the format {provider!r}", file_format)
    columns = [column.name for column in session.catalog.listColumns(name) if column.isPartition]
    return place, provider, tuple(columns)


def _refused_table(name: str, kind: str, wanted: str) -> GodwitError:
    """Return the error that the query cannot write to a table of this kind."""
    return SinkError(
        f"The table {name!r} is {kind}, but the query writes {wanted}.",
        remedy="Give the table's format, or another table.",
    )
