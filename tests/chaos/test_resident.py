"""Lanes that stay, and their executor, are killed in the middle of an epoch.

What comes out is compared row by row with what comes out where nothing is killed.  A driver of such
lanes dies in `test_driver_crash`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.flow import epochs_of, expected_epochs, expected_final
from tests.chaos.results import rows_in_order, sink_epochs
from tests.chaos.two_executors import SEED

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]


def kinds(path: Path) -> Counter[str]:
    told: list[dict[str, Any]] = json.loads(path.read_text())
    return Counter(event["kind"] for event in told)


def test_key_groups_migrate_under_lanes_that_stay_as_under_others(
    two_executors: Path,
) -> None:
    found = kinds(two_executors / "played.json")
    assert found["ResidentLanesStarted"]
    assert found["MigrationFinished"]
    assert not found["ResidentLanesFailed"]


def test_rows_come_once_though_a_lane_and_an_executor_are_killed_in_their_epoch(
    two_executors: Path,
) -> None:
    directory = two_executors / "killed"
    told = json.loads((directory / "told.json").read_text())
    found = kinds(directory / "events.json")
    assert {path.name for path in (directory / "acts").iterdir()} >= {"die", "end victim"}
    assert found["ExecutorLost"] == 1
    assert found["ResidentLanesFailed"] >= 2
    assert found["ResidentLanesStarted"] >= 3
    assert not found["QueryFailed"]
    before, lost_lane, between, lost_executor, after = told["worked"]
    assert 0 < before <= lost_lane < between <= lost_executor < after
    epochs = epochs_of(SEED, 24)[: told["epochs"]]
    numbers = defaultdict(list)
    for _, (key, number) in rows_in_order(directory / "out/order"):
        numbers[key].append(number)
    assert numbers == {k: list(range(len(n))) for k, n in numbers.items()}
    expected = expected_epochs(epochs)["order"]
    rows = sum(sink_epochs(directory / "out/order").values(), Counter())
    assert rows == sum(expected, Counter())
    for sink in ("order", "totals", "shards"):
        newest = {row[0]: row[1:] for _, row in rows_in_order(directory / "out" / sink)}
        assert newest == expected_final(epochs, sink), sink
