"""A job in an environment that is not activated: its executors run the same Python."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

_JOB = """
import sys
import godwit as gw
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .getOrCreate()
)
flow = gw.Flow("counting")
rows = flow.source("rows", spark.readStream.schema("k string").json(sys.argv[1] + "/in"))
sink = gw.sinks.memory()
flow.sink("counts", rows.key_by("k").compute(n=gw.count()), sink)
query = flow.start(checkpoint=sys.argv[1] + "/checkpoint", trigger={"availableNow": True})
query.awaitTermination()
print(sorted(sink.table().to_pylist(), key=str))
spark.stop()
"""


def plain_environment(path: str) -> dict[str, str]:
    hidden = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "PYTHONPATH")
    return {k: v for k, v in os.environ.items() if k not in hidden} | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": path,
    }


def test_a_job_runs_in_an_environment_that_was_not_activated(tmp_path: Path) -> None:
    # First on the PATH is a python3 that has nothing.
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"k": "a"}\n{"k": "a"}\n')
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    done = subprocess.run(
        [sys.executable, str(job), str(tmp_path)],
        env=plain_environment(f"{bare / 'bin'}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[{'k': 'a', 'n': 2}]"
