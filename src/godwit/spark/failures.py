"""Errors passed from and to Spark: short texts, and no stacks in Spark's log.

Problem: Spark logs an error of an epoch with all Java stacks, although its text says in two lines
what failed.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from godwit.model.errors import CheckpointError, GodwitError
from godwit.model.secrets import shown_uri, unless_confidential
from godwit.runtime.failures import epoch_failed, parse_traceback, short_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling an epoch, which was cut short: "
    "java.lang.InterruptedException"
)
"""By this text Spark knows that an epoch did not fail, and ended because the query is to stop."""


def comes_of_cancelled_jobs(error: BaseException) -> bool:
    """Return whether an error was caused by the cancellation of the epoch's Spark jobs.

    Aborting an epoch cancels its jobs, which Py4J reports as an error.
    """
    if not isinstance(error, GodwitError):
        return True
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Py4JError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def error_for_spark(
    error: Exception, flow: str, spark: SparkSession, *, cut_short: bool
) -> Exception:
    """Return an exception with a short message, to be raised to Spark for an epoch's error.

    `cut_short`: the query is being stopped. Then Spark searches the text of an error for an
    interruption, by a regular expression that recurses once per character: on long texts, such as
    Java stacks, its thread ends with a StackOverflowError.
    """
    if cut_short:
        suppress_log_stack(spark)
        return InterruptedError(_INTERRUPTED)
    ours = error if isinstance(error, GodwitError) else parse_traceback(short_message(error))
    if ours is not None:
        suppress_log_stack(spark)
    failure = ours or epoch_failed(flow, error)
    message = failure.message.replace("py4j.protocol.Py4J", "Py4J")  # what Spark searches for
    return type(failure)(message, remedy=failure.remedy)


def suppress_log_stack(spark: SparkSession) -> None:
    """Keep Spark from logging, with its stacks, the error that ends the query of this thread.

    Callers that wait for the query get that error. Other queries are logged as usual.
    """
    query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "unknown"
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  logging has no Python API
    with suppress(Exception):  # with another logger than Log4j the stacks stay visible
        log4j = jvm.org.apache.logging.log4j
        result = getattr(log4j.core, "Filter$Result")
        pattern = rf"(?s).*id = {re.escape(query)},.*terminated with error.*"
        mine = log4j.core.filter.RegexFilter.createFilter(
            pattern, None, False, result.DENY, result.NEUTRAL
        )
        mine.start()
        logger = log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig(_LOGGER)
        for earlier in _filters:  # theirs has been logged by now, or not
            logger.removeFilter(earlier)
        _filters[:] = [mine]
        logger.addFilter(mine)


_LOGGER = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_filters: list[Any] = []


@contextmanager
def without_credentials(uri: str) -> Iterator[None]:
    """Context that replaces errors of Spark that contain the credentials in a URI."""
    try:
        yield
    except Exception as error:
        if unless_confidential(error) is not None:
            raise
        raise CheckpointError(
            f"Spark cannot start on the checkpoint {shown_uri(uri)!r}: {short_message(error)}.",
            remedy="Check that Spark, too, reaches the location, with the credentials that its "
            "Hadoop configuration has.",
            uri=shown_uri(uri),
        ) from None
