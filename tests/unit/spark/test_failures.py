"""What is left of Spark's errors once the stacks are gone."""

from __future__ import annotations

import pytest

from godwit.spark.failures import epoch_failed, said

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
    assert said(RuntimeError(text)) == left


def test_a_crash_of_a_python_process_says_what_may_be_behind_it() -> None:
    error = epoch_failed("delays", RuntimeError(CRASH))
    assert "'delays' failed: a Python process of an executor ended" in error.message
    assert "too little memory" in error.remedy
    assert len(str(error).splitlines()) == 1
    assert error.context["details"] == CRASH


def test_another_error_is_named_by_its_kind() -> None:
    assert epoch_failed("delays", KeyError("x")).message == "Flow 'delays' failed: KeyError: 'x'."
