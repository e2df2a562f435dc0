"""Spark sessions: DataFrames of local rows, and the errors of sessions that were stopped.

A stopped session answers every call with another error of Java's or Python's, and none of them says
the cause. So errors from Spark are checked here first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.model.errors import CheckpointError, EpochFailedError, GodwitError, InvalidFlowError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def settings_of(context: SparkContext) -> SparkConf:
    """Return the settings of a Spark context, to read.

    Its ``getConf`` copies all of them, each by several calls of the JVM: tens of milliseconds.
    """
    return context._conf  # noqa: SLF001


def context_is_stopped(context: SparkContext) -> bool:
    """Return whether a Spark context was stopped, or its JVM has ended."""
    jsc: Any = context._jsc  # noqa: SLF001  no public way to ask
    try:
        return jsc is None or bool(jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  whatever Py4J raises when its JVM is gone
        return True


def check_session(session: SparkSession, flow: str) -> None:
    """Raise `InvalidFlowError` if a flow's Spark session was stopped."""
    if context_is_stopped(session.sparkContext):
        raise InvalidFlowError(
            f"The Spark session of flow {flow!r} was stopped.",
            remedy="Create a new one with SparkSession.builder.getOrCreate(), and read the flow's "
            "DataFrames in that; a session that was stopped cannot be used again.",
            flow=flow,
        )


def check_encoding(context: SparkContext, location: str) -> None:
    """Raise `CheckpointError` if Java cannot name the files of a checkpoint in Hadoop's spelling.

    Java takes the encoding of file names from the locale; in ``C`` or ``POSIX`` it is ASCII.
    """
    if location.isascii() or not location.startswith("file:"):
        return
    jvm: Any = context._jvm  # noqa: SLF001  no public way to ask
    encoding = str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))
    if not jvm.java.nio.charset.Charset.forName(encoding).newEncoder().canEncode(location):
        raise CheckpointError(
            f"Spark's JVM cannot name the directory {location!r}: by its locale, names of files "
            f"are of {encoding}.",
            remedy="Set LC_ALL=C.UTF-8 in the environment before the session starts, or give a "
            "directory with ASCII letters.",
            uri=location,
        )


def unless_stopped(error: BaseException, context: SparkContext, flow: str) -> BaseException:
    """Return an error of a running query; one that says so if the Spark session was stopped."""
    if isinstance(error, GodwitError) or not isinstance(error, Exception):
        return error
    return session_stopped(flow) if context_is_stopped(context) else error


class RunSession:
    """The Spark session of a run, whose jobs are in a job group of the run's id."""

    def __init__(self, context: SparkContext, run_id: str) -> None:
        self._context, self._group = context, run_id

    @property
    def is_stopped(self) -> bool:
        """True if the Spark session was stopped, or its JVM has ended."""
        return context_is_stopped(self._context)

    def check(self, flow: str) -> None:
        """Raise `EpochFailedError` if the session was stopped; asks only this process."""
        if self._context._jsc is None:  # noqa: SLF001  quick to ask
            raise session_stopped(flow)

    def use_this_thread(self, flow: str) -> None:
        """Prepare the calling thread, which is not Spark's, to start jobs of the run."""
        self._context.setJobGroup(self._group, f"godwit: epochs of {flow}")

    def cancel_jobs(self) -> None:
        """Cancel the jobs started by threads that are not Spark's."""
        if not self.is_stopped:
            self._context.cancelJobGroup(self._group)


def session_stopped(flow: str) -> EpochFailedError:
    """Return the error that a query's Spark session was stopped before the query."""
    return EpochFailedError(
        f"Flow {flow!r} failed: its Spark session was stopped while the query ran.",
        remedy="Nothing of the unfinished epoch was committed; start the flow again from its "
        "checkpoint. Call query.stop() before spark.stop(), or use `with flow.start(...) as "
        "query:`, which stops the query at its end.",
        flow=flow,
    )


def _with_nullable_parts(rows: pa.Table) -> pa.Table:
    """Return rows of which all parts of nested columns may be null.

    PySpark converts all columns to the schema of the DataFrame, and Arrow does not convert a null
    struct to a type in which a field of it is never null, not even from that type.
    """
    columns = [column.with_type(_nullable(column.type)) for column in rows.schema]
    schema = pa.schema(columns, rows.schema.metadata)
    return rows if schema.types == rows.schema.types else rows.cast(schema)


def _nullable(dtype: pa.DataType) -> pa.DataType:
    """Return a type whose parts may be null."""

    def part(field: pa.Field) -> pa.Field:
        return field.with_type(_nullable(field.type)).with_nullable(True)

    if pa.types.is_struct(dtype):
        return pa.struct([part(field) for field in dtype])
    if pa.types.is_map(dtype):
        key = dtype.key_field
        return pa.map_(key.with_type(_nullable(key.type)), part(dtype.item_field))
    return pa.list_(part(dtype.value_field)) if pa.types.is_list(dtype) else dtype


_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_RECORDS_LOCK: Final = threading.Lock()


def dataframe_of(
    spark: SparkSession, rows: pa.Table, schema: StructType | None = None
) -> DataFrame:
    """Return a DataFrame of local rows; PySpark cannot make one of a table without any row.

    Nor can it if batches of Arrow have no limit, so they get one meanwhile.
    """
    if not rows.num_rows and schema is not None:
        return spark.createDataFrame([], schema)
    nullable = _with_nullable_parts(rows)
    if nullable is not rows:
        from godwit.spark.platform.pyspark_versions import (  # noqa: PLC0415  it loads Spark
            spark_schema_of,
        )

        schema, rows = spark_schema_of(nullable.schema), nullable
    create: Any = spark.createDataFrame
    frame: DataFrame
    with _RECORDS_LOCK:
        limit = spark.conf.get(_RECORDS)
        if limit is None or int(limit) > 0:
            frame = create(rows, schema)
        else:
            spark.conf.set(_RECORDS, str(rows.num_rows + 1))
            try:
                frame = create(rows, schema)
            finally:
                spark.conf.set(_RECORDS, limit)
    return frame
