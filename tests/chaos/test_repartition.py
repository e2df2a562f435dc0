"""Columns that place state change on a cluster, and executors die at every moment of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.results import run_program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

PLAYS: list[dict[str, Any]] = [
    {
        "own": True,
        "resident": True,
        "moments": ["before", "record", "after", "at once"],
    },
    {"own": False, "resident": False, "moments": ["recovered"]},
]
if "GODWIT_LONG" in os.environ:
    PLAYS[0]["moments"].append("recovered")
    PLAYS[1]["moments"] += ["record", "at once"]
    PLAYS += [
        {"own": True, "resident": False, "moments": ["before"]},
        {"own": False, "resident": True, "moments": ["recovered"]},
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run on one cluster, whose rows and sums were right."""
    directory = tmp_path_factory.mktemp("repartitioned")
    config = {"directory": str(directory), "seed": 3, "plays": PLAYS}
    status = run_program("repartitioned", config, timeout_s=900)
    assert status == 0, (directory / "repartitioned.log").read_text()[-4000:]
    return directory


@pytest.mark.parametrize("number", range(len(PLAYS)))
def test_rows_come_once_and_in_order_whenever_an_executor_dies(ran: Path, number: int) -> None:
    told = json.loads((ran / f"play-{number}.json").read_text())
    kinds = Counter(event["kind"] for event in told["events"])
    moments = PLAYS[number]["moments"]
    assert kinds["OperatorsRepartitioned"] == len(moments)
    lost = [event["executor"] for event in told["events"] if event["kind"] == "ExecutorLost"]
    assert lost == told["killed"]
    assert not kinds["QueryFailed"]
    if PLAYS[number]["resident"]:
        assert kinds["ResidentLanesStarted"]
