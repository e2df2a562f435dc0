"""Lanes that stay, their executor and their driver are killed in the middle of an epoch.

What comes out is compared row by row with what comes out where nothing is killed.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.flow import epochs_of, expected_epochs, expected_final, is_alive
from tests.chaos.results import put, rows_in_order, run_program, sink_epochs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

SEED = 31
KILLED = -9
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run on one cluster; its contract was kept."""
    directory = tmp_path_factory.mktemp("resident")
    contract = "a live migration on two levels"
    config = {"directory": str(directory), "seed": SEED, "contract": contract}
    status = run_program("resident", config, timeout_s=600)
    assert status == 0, (directory / "resident.log").read_text()[-4000:]
    return directory


def kinds(path: Path) -> Counter[str]:
    told: list[dict[str, Any]] = json.loads(path.read_text())
    return Counter(event["kind"] for event in told)


def test_key_groups_migrate_under_lanes_that_stay_as_under_others(ran: Path) -> None:
    found = kinds(ran / "played.json")
    assert found["ResidentLanesStarted"]
    assert found["MigrationFinished"]
    assert not found["ResidentLanesFailed"]


def test_rows_come_once_though_a_lane_and_an_executor_are_killed_in_their_epoch(ran: Path) -> None:
    directory = ran / "killed"
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


def test_lanes_end_with_a_driver_that_is_killed_in_their_epoch_and_rows_come_once(
    tmp_path: Path,
) -> None:
    epochs = epochs_of(17, 7)
    for number, rows in enumerate(epochs):
        act = "1 signal driver" if number == 4 else ""
        put(tmp_path / "in", number, [*rows[:-1], (*rows[-1][:2], act)])
    config = {"directory": str(tmp_path), "dsn": None, "kill": None, "resident": True}
    assert run_program("driver", config) == KILLED
    lanes = json.loads((tmp_path / "lanes").read_text())
    assert len(lanes) == 2
    assert int((tmp_path / "worked").read_text()) > 0
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_alive, lanes)):
        assert time.monotonic() < deadline, "lanes outlive their driver"
        time.sleep(0.05)
    assert run_program("driver", config) == 0
    for sink, rows_of in expected_epochs(epochs).items():
        assert sink_epochs(tmp_path / "out" / sink) == dict(enumerate(rows_of)), sink
