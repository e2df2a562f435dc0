"""Columns that place state change on a cluster, and executors die at every moment of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.chaos.two_executors import PLAYS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]


@pytest.mark.parametrize("number", range(len(PLAYS)))
def test_rows_come_once_and_in_order_whenever_an_executor_dies(
    two_executors: Path, number: int
) -> None:
    told = json.loads((two_executors / f"play-{number}.json").read_text())
    kinds = Counter(event["kind"] for event in told["events"])
    moments = PLAYS[number]["moments"]
    assert kinds["OperatorsRepartitioned"] == len(moments)
    lost = [event["executor"] for event in told["events"] if event["kind"] == "ExecutorLost"]
    assert lost == told["killed"]
    assert not kinds["QueryFailed"]
    if PLAYS[number]["resident"]:
        assert kinds["ResidentLanesStarted"]
