"""Spark's errors without their stacks."""

from __future__ import annotations

import traceback
from unittest.mock import MagicMock

import pytest

from godwit.model.errors import CheckpointError, EpochFailedError, SinkError
from godwit.model.secrets import Secrets
from godwit.runtime.failures import epoch_failed, short_message
from godwit.spark.start import error_for_spark, without_credentials

LOST = "most recent failure: Lost task 0.0 in stage 87.0 (TID 130) (localhost executor driver): "
CRASHED = (
    "Python worker exited unexpectedly (crashed). Consider setting "
    "'spark.sql.execution.pyspark.udf.faulthandler.enabled'."
)
RAISED = (
    'Traceback (most recent call last):\n  File "job.py", line 3, in <lambda>\n'
    "ZeroDivisionError: division by zero"
)
STACK = "\n\tat org.apache.spark.api.python.PythonRunner$$anon$5.read(PythonRunner.scala:1647)\n"
CRASH = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 87.0 "
    f"failed 1 times, {LOST}org.apache.spark.SparkException: {CRASHED}{STACK}Driver stacktrace:"
    "\n\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)\n"
)
PASSED_ON = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling o1.count.\n"
    f": org.apache.spark.SparkException: {CRASHED}" + 2000 * STACK
)
FUNCTION = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage "
    "failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 "
    "(TID 9) (10.0.0.1 executor 3): org.apache.spark.api.python.PythonException: "
    f"{RAISED}\n{STACK}"
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("it is so", "it is so"),
        ("java.lang.IllegalStateException: no" + STACK, "no"),
        (CRASH, CRASHED),
        (FUNCTION, RAISED),
        ("", "RuntimeError('')"),
    ],
    ids=["plain", "java", "crash", "function", "empty"],
)
def test_what_matters_is_left(text: str, left: str) -> None:
    assert short_message(RuntimeError(text)) == left


def test_a_crash_of_a_python_process_says_what_may_be_behind_it() -> None:
    error = epoch_failed("delays", RuntimeError(CRASH))
    assert "'delays' failed: a Python process of an executor ended" in error.message
    assert "too little memory" in error.remedy
    assert len(str(error).splitlines()) == 1
    assert error.context["details"] == CRASH


def test_another_error_is_named_by_its_kind() -> None:
    assert epoch_failed("delays", KeyError("x")).message == "Flow 'delays' failed: KeyError: 'x'."


def test_an_error_of_ours_from_an_executor_is_told_as_what_it_is() -> None:
    told = "Aggregate 'n' of operator 'o': the sum for key ('b',) does not fit int64. Cast it."
    frames = "".join(f'  File "rows.py", line {i}, in combine\n' for i in range(40))
    raised = (
        f"{RAISED}\n\nThe above exception was the direct cause of the following exception:\n\n"
        f"Traceback (most recent call last):\n{frames}godwit.model.errors.EpochFailedError: {told}"
    )
    error = epoch_failed("delays", RuntimeError(FUNCTION.replace(RAISED, raised)))
    passed_on = error_for_spark(
        RuntimeError(FUNCTION.replace(RAISED, raised)), "delays", MagicMock(), cut_short=False
    )
    for one in (error, passed_on):
        assert type(one) is EpochFailedError
        assert str(one) == told


@pytest.mark.parametrize("cut_short", [True, False])
def test_spark_gets_an_error_in_a_few_lines_without_what_py4j_wrote(cut_short: bool) -> None:
    """Spark searches the text of what is raised by a regular expression that recurses."""
    raised = error_for_spark(RuntimeError(PASSED_ON), "delays", MagicMock(), cut_short=cut_short)
    told = str(raised)
    assert len(told) < 400
    found = "py4j.protocol.Py4JJavaError: An error occurred while calling" in told
    assert (found, "java.lang.InterruptedException" in told) == (cut_short, cut_short)


def test_spark_gets_an_error_of_ours_as_it_is() -> None:
    error = SinkError("py4j.protocol.Py4JJavaError: An error", remedy="Do.")
    raised = error_for_spark(error, "delays", MagicMock(), cut_short=False)
    assert isinstance(raised, SinkError)
    assert str(raised) == str(SinkError("Py4JJavaError: An error", remedy="Do."))


def test_what_spark_says_of_a_checkpoint_is_told_without_its_credentials() -> None:
    uri = "s3a://AKIA:hunter2secret@bucket/ck"
    Secrets.of_uri(uri)
    with pytest.raises(CheckpointError, match="cannot start") as told, without_credentials(uri):
        raise OSError(f"Cannot create {uri}/spark/metadata")
    assert "hunter2secret" not in "".join(traceback.format_exception(told.value))
    assert "s3a://***@bucket/ck/spark/metadata" in told.value.message
    with pytest.raises(OSError, match="no room"), without_credentials(uri):
        raise OSError("no room")
