"""Real executors come and go under a stream that does not stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.programs.scale_program import rows_of
from tests.support.long_tests import minutes_long

pytestmark = [
    pytest.mark.spark,
    pytest.mark.campaign,
    minutes_long,
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ,
        reason="Spark needs Java 17 or newer",
    ),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of the streams on one cluster."""
    directory = tmp_path_factory.mktemp("scaled")
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.scale_program", str(directory)],
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


def test_from_two_to_three_to_two_executors_no_row_is_lost_and_none_comes_twice(
    played: dict[str, Any],
) -> None:
    told = played["by_hand"]
    assert len(told["out"]) == 3
    assert sorted(told["shared"]) == sorted(told["out"])
    assert all(told["shared"].values()), "the new one has its share"

    assert told["short"].startswith(
        "4 executors were requested, and 3 executors run: the cluster had"
    )
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


def test_a_known_sequence_of_executor_counts_is_planned_at_once_and_followed_range_by_range(
    played: dict[str, Any],
) -> None:
    told = played["by_sequence"]
    assert [len(set(executors)) for executors in told["ranges"]] == [2, 3, 2]
    assert [3, 2] in [executors[-2:] for executors, _ in told["planned"]]
    happened = Counter(told["events"])
    assert happened["ExecutorLost"] == happened["EpochAborted"] == 0
    assert told["rows"] == expected(told["parts"])
