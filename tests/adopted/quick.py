"""One drawn query compared with Spark at a small part of the usual cost.

Most of that was Spark's: every batch of ``foreachBatch`` plans another query, and so does every
batch of a scan below the adopted query.  So the native query writes to memory where it can, and the
adopted one reads by own sources where these can.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark.errors import (
    AnalysisException,
    PySparkNotImplementedError,
    StreamingQueryException,
)
from tests.support import native
from tests.support.native import RAW_FILES, Outcome, RefusedBySparkError, plain_rows, session_with

import godwit as gw
from godwit.model.errors import UnsupportedQueryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.support.native import Case

_KEPT = "1000000"  # of what Spark notes of queries; to look for old notes takes longer
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Plans and metrics for the UI, which is off, are a part of the time.
    "spark.ui.liveUpdate.period": "-1",
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.retainedJobs": _KEPT,
    "spark.ui.retainedStages": _KEPT,
    "spark.ui.retainedTasks": _KEPT,
    "spark.sql.ui.retainedExecutions": _KEPT,
    # The default one starts a process (chmod) for every file that it makes, twice.
    "spark.hadoop.fs.file.impl": RAW_FILES,
    "spark.sql.adaptive.enabled": "false",
    # It changes the order of rows whose keys may be null, so `first` has the value of another row.
    "spark.sql.sort.enableRadixSort": "false",
    # It loses rows with NaN, which a filter such as `v > 0` passes.
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
}
"""Settings of a session for many small queries."""


class Compared(TypedDict):
    """Outcome of one query."""

    failure: str  # as text for `tests.adopted.drawn.Outcome.add`
    rows: int  # that both gave
    own: bool  # it read by own sources


def quick_outcome(spark: SparkSession, name: str, case: Case) -> Compared:
    """Run a query natively and adopted, and return what came of it."""
    session = session_with(spark, case.settings) if case.settings else spark
    both = _Both()
    try:
        batches = native.compared(
            session, case, name, natively=both.native_outcome, adopted=both.run
        )
    except Exception as error:  # noqa: BLE001  the campaign goes on
        failure = f"{type(error).__name__}: {error}"
        return {"failure": failure, "rows": 0, "own": case.own_sources}
    return {"failure": "", "rows": sum(map(len, batches.values())), "own": case.own_sources}


class _Both:
    """Native and adopted run of a query over the same files."""

    def __init__(self) -> None:
        self._native: Outcome | StreamingQueryException = Outcome(batches={}, schema=None)

    def native_outcome(self) -> Outcome:
        """Return what the native runs gave; raise as they did."""
        if isinstance(self._native, StreamingQueryException):
            raise self._native
        return self._native

    def run(self, query: DataFrame, case: Case, checkpoint: str) -> Outcome:
        """Run the query natively, then adopted; return what it gave adopted."""
        before = self._native
        if isinstance(before, Outcome):
            try:
                now = _natively(query, case, f"{checkpoint}-native")
                batches = before.batches | now.batches
                self._native = Outcome(batches=batches, schema=now.schema or before.schema)
            except StreamingQueryException as error:
                self._native = error
        return _adopted(query, case, checkpoint)


def _natively(query: DataFrame, case: Case, checkpoint: str) -> Outcome:
    """Run a query natively: to memory, unless it restarts, or repeats its rows in every batch."""
    if case.parts > 1 or case.mode == "complete":
        return native.run_natively(query, case, checkpoint)
    name = f"native_{uuid.uuid4().hex}"
    writer = query.writeStream.outputMode(case.mode).queryName(name).format("memory")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    try:
        running = writer.start()
    except AnalysisException as error:
        raise RefusedBySparkError(str(error)) from error
    session = query.sparkSession
    try:
        running.awaitTermination()
        table = session.table(name)
        rows = table.collect()  # in the order of the batches
        sink: Any = running._jsq.streamingQuery().sink()
    except PySparkNotImplementedError as error:
        raise RefusedBySparkError(str(error)) from error
    finally:
        running.stop()
        session.catalog.dropTempView(name)
    batches: native.Batches = {}
    last = -1 if sink.latestBatchId().isEmpty() else int(sink.latestBatchId().get())
    left = len(rows)
    for batch in range(last + 1):
        after = int(sink.dataSinceBatch(batch).size())
        if left > after:
            batches[batch] = plain_rows(rows[len(rows) - left : len(rows) - after])
        left = after
    return Outcome(batches=batches, schema=table.schema)


def _adopted(query: DataFrame, case: Case, checkpoint: str) -> Outcome:
    """Run a query adopted, by Spark's scans if own sources are refused."""
    if case.own_sources:
        try:
            writer = gw.write_stream(query).own_sources()
            return native.run(writer, mode=case.mode, checkpoint=checkpoint)
        except UnsupportedQueryError:
            case.own_sources = False
    return native.run_adopted(query, case, checkpoint)
