"""Real executors come and go under a stream that does not stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.scale_program import rows_of
from tests.spark.streams import Inbox

import godwit as gw
from godwit.model.errors import InvalidProblemError, ScalingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


def on_a_cluster(test: Any) -> Any:
    """Mark a test that needs processes."""
    missing = shutil.which("java") is None and "JAVA_HOME" not in os.environ
    return pytest.mark.chaos(
        pytest.mark.skipif(missing, reason="Spark needs Java 17 or newer")(test)
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two streams on one cluster told."""
    directory = tmp_path_factory.mktemp("scaled")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.scale_program", str(directory)],
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def expected(parts: int) -> list[list[int]]:
    """Return key, number of rows and last row, by key, of a batch over the same rows."""
    every = [row for part in range(parts) for row in rows_of(part)]
    counts, last = Counter(k for k, _ in every), dict(every)
    return [[k, counts[k], last[k]] for k in sorted(counts)]


@on_a_cluster
def test_from_two_to_three_to_two_executors_no_row_is_lost_and_none_comes_twice(
    played: dict[str, Any],
) -> None:
    told = played["by_hand"]
    assert len(told["out"]) == 3
    assert sorted(told["shared"]) == sorted(told["out"])
    assert all(told["shared"].values()), "the new one has its share"

    assert told["short"].startswith("There are 3 executors where 4 were asked for: the cluster had")
    assert len(told["executors"]) == 3
    assert all(told["used"][name] for name in told["executors"])

    assert len(told["in"]) == 2
    assert {name for name, owned in told["kept"].items() if owned} == {*told["in"]}
    assert sorted(told["processes"]) == sorted(told["in"]), "its process has ended"
    assert len(told["again"]) == 3

    happened = Counter(told["events"])
    assert happened["ScalingFinished"] == 3
    assert happened["ScalingFailed"] == happened["ExecutorsMissing"] == 1
    assert happened["ExecutorRemoved"] == 1
    assert happened["ExecutorLost"] == happened["EpochAborted"] == 0
    assert told["rows"] == expected(told["parts"])


@on_a_cluster
def test_a_controller_gives_an_executor_back_and_gets_one_when_there_is_too_much_to_do(
    played: dict[str, Any],
) -> None:
    told = played["by_itself"]
    # On a busy machine two may be too few at once, and the next one be on its way.
    there = set(told["processes"])
    assert {*told["in"]} <= there <= {*told["in"], *told["out"]}, "its process has ended"
    assert len(told["in"]) == 2
    assert len(told["out"]) == 3
    assert all(told["out"].values()), "the new one has its share"
    assert told["out"].keys() > told["in"].keys()

    happened = Counter(told["events"])
    assert happened["ScaledIn"] >= 1
    assert happened["ScaledOut"] >= 1
    # With no more rows another one may be given back, and the stream end before it is gone.
    assert happened["ExecutorsReturned"] >= happened["ExecutorRemoved"] >= 1
    assert happened["ExecutorLost"] == happened["EpochAborted"] == 0
    assert told["rows"] == expected(told["parts"])


def test_what_cannot_be_scaled_says_so_and_the_stream_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put([(1, 1)])
    flow, sink = gw.Flow("flow", num_key_groups=4), gw.sinks.memory()
    totals = flow.source("rows", inbox.stream()).key_by("k").compute(n=gw.count())
    flow.sink("out", totals, sink)
    query = flow.start(checkpoint=tmp_path / "ck")
    for wrong, text in (
        (0, "asked for 0 executors"),
        (-3, "asked for -3 executors"),
        (True, "asked for True executors"),
        ("4", "asked for '4' executors, of type str"),
        (1.5, "asked for 1.5 executors, of type float"),
    ):
        with pytest.raises(ScalingError, match=text):
            query.scale(wrong)  # type: ignore[arg-type]
    with pytest.raises(ScalingError, match="timeout_s of scale"):
        query.scale(2, timeout_s=-1)
    with pytest.raises(ScalingError, match=r"local\[2\] is one process, .*LocalCluster"):
        query.scale(4)
    with pytest.raises(InvalidProblemError, match="'milk' is not a planner"):
        query.scale(4, planner="milk")
    inbox.put([(1, 1)])
    query.processAllAvailable()
    assert sink.table().to_pylist() == [{"k": 1, "n": 2}]
    assert query.scaling is None
    query.stop()
    with pytest.raises(ScalingError, match="query has stopped"):
        query.scale(4)
