"""Versions of Python on executors, and the refusal of one that cannot do."""

from __future__ import annotations

import sys
import venv
from typing import TYPE_CHECKING, Any

import pytest

from godwit.model.errors import ExecutorEnvironmentError
from godwit.spark.platform import executors_python
from godwit.spark.platform.executors_python import check_executors_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def unchecked(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the context, as if nothing had been checked yet; its Python is put back."""
    monkeypatch.setattr(executors_python, "_checked", set())
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    settings: Any = spark.sparkContext._jsc.sc().conf()
    daemon = settings.get("spark.python.daemon.module")
    settings.set("spark.python.daemon.module", "pyspark.daemon")  # as users have it
    yield spark.sparkContext
    settings.set("spark.python.daemon.module", daemon)


def test_a_python_without_godwit_is_named_with_what_it_lacks(
    unchecked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PySpark itself reaches executors by PYTHONPATH; nothing else does.
    venv.create(tmp_path / "bare", with_pip=False)
    bare = tmp_path / "bare" / "bin" / "python"
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    monkeypatch.setattr(unchecked, "pythonExec", str(bare))
    with pytest.raises(ExecutorEnvironmentError, match=r"has no godwit.*PYSPARK_PYTHON") as caught:
        check_executors_python(unchecked)
    assert str(bare) in caught.value.message


def test_a_python_that_does_not_exist_is_named_in_one_line(
    unchecked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    monkeypatch.setattr(unchecked, "pythonExec", "/nowhere/python")
    with pytest.raises(ExecutorEnvironmentError, match="/nowhere/python") as caught:
        check_executors_python(unchecked)
    assert len(caught.value.message.splitlines()) == 1


def test_it_is_asked_once_for_an_application(
    unchecked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_executors_python(unchecked)
    monkeypatch.setattr(unchecked, "parallelize", None)
    check_executors_python(unchecked)


def test_python_starts_also_on_executors_that_have_yet_to_register(
    unchecked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives a task to each, once it is there; else the first epoch would wait for Python."""
    asked: list[int] = []
    run = unchecked.parallelize

    def parallelize(rows: range, tasks: int) -> Any:
        asked.append(tasks)
        return run(rows, tasks)

    monkeypatch.setattr(unchecked, "parallelize", parallelize)
    monkeypatch.setattr(unchecked, "master", "spark://127.0.0.1:1")
    check_executors_python(unchecked, 3)
    assert set(asked) == {3}


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"python": (3, 8)}, r"is 3\.8, the driver's 3\."),
        ({"packages": {"pyspark": "4.0.0"}}, r"has pyspark 4\.0\.0, the driver 4\.3"),
        ({"packages": {"pyarrow": None}}, "has no pyarrow"),
    ],
)
def test_what_differs_is_said(told: dict[str, Any], named: str) -> None:
    whole: dict[str, Any] = {
        "executable": "/usr/bin/python3",
        "python": tuple(sys.version_info[:2]),
        "packages": {},
    }
    with pytest.raises(ExecutorEnvironmentError, match=named):
        executors_python._check_versions(whole | told, "python3")
