"""Errors of Spark shortened to the lines that say what failed.

Problem: an error of Spark's comes with the Java stacks of driver and executor, hundreds of lines in
which the one that matters stands somewhere; and Spark logs an error of ours, which has been told in
two lines, with the same stacks once more.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from godwit.model import errors
from godwit.model.errors import CheckpointError, EpochFailedError, GodwitError
from godwit.model.secrets import shown_uri, unless_confidential

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_STACK = re.compile(r"\n\s+at [\w.$/]+\(")
_PREAMBLES = (
    # Of the driver, around what the executor said.
    re.compile(
        r"^.*?most recent failure: (?:Lost|Killed) task \S+ in stage \S+ \(.*?\)"
        r"(?: \(.*?\))?: ",
        re.DOTALL,
    ),
    re.compile(r"^An error occurred while calling \S+\n: "),
    re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL),
    re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): "),
)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = "\ngodwit.model.errors."
"""Beginning of the last line of a traceback whose error is one of ours."""
_REMEDY = (
    "Nothing of the unfinished epoch was committed; start the flow again from its checkpoint once "
    "the cause is gone."
)
_CRASHED = "Python worker exited unexpectedly"
_INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling an epoch, which was cut short: "
    "java.lang.InterruptedException"
)
"""By this text Spark knows that an epoch did not fail, and ended because the query is to stop."""


def short_message(error: BaseException) -> str:
    """Return an error's message without Java stacks and Spark's wrapping."""
    text = str(error)
    text = text[: found.start()] if (found := _STACK.search(text)) else text
    for preamble in _PREAMBLES:
        text = preamble.sub("", text, count=1)
    return text.strip() or repr(error)


def _parse_traceback(text: str) -> GodwitError | None:
    """Return the `GodwitError` in the text of an executor's Python traceback; ``None`` if none."""
    traceback, found, raised = text.rpartition(_RAISED)
    name, _, message = raised.partition(": ")
    kind = getattr(errors, name, None)
    if not found or kind is None or _TRACEBACK not in traceback:
        return None
    raised_by: GodwitError = kind(message.strip(), details=text)
    return raised_by


def epoch_failed(flow: str, cause: BaseException) -> GodwitError:
    """Return an `EpochFailedError` for a foreign error; ``details`` has its full text."""
    told = short_message(cause)
    if (ours := _parse_traceback(told)) is not None:
        return ours
    if _CRASHED in told:
        return EpochFailedError(
            f"Flow {flow!r} failed: a Python process of an executor ended in the middle of an "
            "epoch.",
            remedy=f"A function that ends its process (os._exit), a crash in a library, or too "
            f"little memory (spark.executor.memoryOverhead) does that. {_REMEDY}",
            details=str(cause),
        )
    kind = type(cause).__name__
    named = "" if kind.startswith("Py4J") else f"{kind}: "
    return EpochFailedError(
        f"Flow {flow!r} failed: {named}{told}{'' if told.endswith('.') else '.'}",
        remedy=_REMEDY,
        details=str(cause),
    )


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
    ours = error if isinstance(error, GodwitError) else _parse_traceback(short_message(error))
    if ours is not None:
        suppress_log_stack(spark)
    told = ours or epoch_failed(flow, error)
    message = told.message.replace("py4j.protocol.Py4J", "Py4J")  # what Spark searches for
    return type(told)(message, remedy=told.remedy)


def suppress_log_stack(spark: SparkSession) -> None:
    """Keep Spark from logging, with its stacks, the error that ends the query of this thread.

    Callers that wait for the query get that error. Other queries are logged as usual.
    """
    query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "unknown"
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  logging has no Python API
    with suppress(Exception):  # whoever has put another logger in Log4j's place sees the stacks
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
