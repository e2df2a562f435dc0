"""Python of the executors: the driver's own on the same machine, and checked everywhere.

PySpark starts ``python3`` from the executors' PATH unless ``PYSPARK_PYTHON`` says otherwise, which
is another Python than the driver's as soon as someone runs ``.venv/bin/python job.py`` without
activating the environment.  Found out in the first epoch, that costs hundreds of lines of other
people's stack; so it is put right, or said, before anything starts.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from godwit.model.errors import ExecutorEnvironmentError
from godwit.spark.platform.executors import is_one_process, registered_executors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark import SparkContext

_PACKAGES = ("godwit", "pyspark", "pyarrow")
_EXACT = ("godwit", "pyspark")  # asked of the module: a package of another project may be godwit
_TASKS_AT_MOST = 64
_logger = logging.getLogger("godwit")
_checked: set[tuple[str, str]] = set()


def check_executors_python(spark: SparkContext, executors: int = 1) -> None:
    """Check that the executors' Python can run Godwit; on this machine, let Spark use this Python.

    Runs a task on every executor, once for each application: it also starts their Python processes,
    all at the same time, before an epoch would wait for one after the other. `executors`: number
    that the query waits for, some of which may have yet to register. Raises
    `ExecutorEnvironmentError` if their Python cannot be started, is of another version, or lacks
    Godwit or the same PySpark.
    """
    if "PYSPARK_PYTHON" not in os.environ and (spark.master or "").startswith("local"):
        spark.pythonExec = sys.executable
    key = (spark.applicationId, spark.pythonExec)
    if key not in _checked:
        reports = _query_versions(spark, executors)
        for report in reports:
            _check_versions(report, spark.pythonExec)
        _check_names(spark, [report["executor"] for report in reports])
        _checked.add(key)


def _query_versions(spark: SparkContext, executors: int) -> list[dict[str, Any]]:
    """Return versions of Python and packages on every executor; raise if Python does not run.

    `executors`: as for `check_executors_python`.
    """
    packages = _PACKAGES

    # By value: a Python without Godwit could not import this function from it.
    def report(_rows: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield this executor's Python version and packages."""
        import importlib as imports  # noqa: PLC0415
        import sys as system  # noqa: PLC0415

        versions: dict[str, str | None] = {}
        for package in packages:
            try:
                module = imports.import_module(package)
                versions[package] = str(getattr(module, "__version__", "of another project"))
            except ImportError:
                versions[package] = None
        try:
            place = imports.import_module("godwit.engine.lane.executor")
            executor = getattr(place, "executor_of_process", lambda: None)()
        except ImportError:  # the check of versions reports it
            executor = None
        yield {
            "executor": executor,
            "executable": system.executable,
            "python": tuple(system.version_info[:2]),
            "packages": versions,
        }

    tasks = 1
    if not (spark.master or "").startswith("local"):
        executor_ids: Any = spark._jsc.sc().getExecutorIds()  # noqa: SLF001  no public Python API
        tasks = min(max(executor_ids.size(), executors), _TASKS_AT_MOST)
    try:
        return spark.parallelize(range(tasks), tasks).mapPartitions(report).collect()
    except Exception as error:  # noqa: BLE001  Spark's and Python's alike
        raise ExecutorEnvironmentError(
            f"The executors could not run a line of Python with {spark.pythonExec!r}: "
            f"{_relevant_line(error)}",
            remedy=_REMEDY,
            executable=spark.pythonExec,
        ) from None


def _check_names(spark: SparkContext, names: list[str | None]) -> None:
    """Raise if Python processes read a stand-in for the names of their executors.

    `names`: those that processes read; ``None``: nothing. A lane with a wrong name finds no state.
    """
    known = {name for name in names if name is not None}
    # Spark logs a warning of its own if it is asked for executors where there are none.
    for name in sorted(known - registered_executors(spark)) if known else ():
        # An executor may have been lost since its answer; names are numbers, but for a stand-in
        # that Spark's backend replaces after the start of the process.
        if not name.isdigit():
            raise ExecutorEnvironmentError(
                f"Executors are not called by their names on their command line, but "
                f"--executor-id {name}, so that lanes cannot tell on which one they run.",
                remedy="On Kubernetes, set spark.kubernetes.allocation.pods.allocator=direct, "
                "which is Spark's default.",
                executable=spark.pythonExec,
            )
    if None in names and not is_one_process(spark):
        _logger.warning(
            "Lanes cannot read on which executor they run from the command line of its process "
            "(--executor-id): a lane that Spark runs elsewhere is not noticed. Results stay right; "
            "epochs may take longer."
        )


_REMEDY = (
    "Set PYSPARK_PYTHON, before the session is made, to a Python that every executor has, of "
    f"version {sys.version_info[0]}.{sys.version_info[1]} and with the driver's packages; or ship "
    "one with spark.archives."
)


def _relevant_line(error: Exception) -> str:
    """Return the line of Spark's error that names the fault."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for mark in ("PYTHON_VERSION_MISMATCH", "Cannot run program", "Error:", "Exception:"):
        for line in lines:
            if mark in line:
                return line
    return lines[0] if lines else repr(error)


def _check_versions(versions: dict[str, Any], executable: str) -> None:
    """Raise if an executor's Python lacks Godwit, or has other versions than the driver's.

    `versions`: those of the executor.
    """
    where = f"The executors' Python ({versions['executable']})"
    problems = []
    if versions["python"] != tuple(sys.version_info[:2]):
        problems.append(
            f"is {versions['python'][0]}.{versions['python'][1]}, the driver's "
            f"{sys.version_info[0]}.{sys.version_info[1]}"
        )
    for package, version in versions["packages"].items():
        own_version = importlib.import_module(package).__version__
        if version is None:
            problems.append(f"has no {package}")
        elif package in _EXACT and version != own_version:
            problems.append(f"has {package} {version}, the driver {own_version}")
    if problems:
        raise ExecutorEnvironmentError(
            f"{where} {', '.join(problems)}.",
            remedy=_REMEDY,
            executable=executable,
            executors_executable=versions["executable"],
        )
