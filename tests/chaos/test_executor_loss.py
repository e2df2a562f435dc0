"""Executors are killed between epochs and within one: no row is lost, doubled or out of order.

What else may happen then is played in one process, by `tests.contract`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.flow import epochs_of, expected_epochs, expected_final
from tests.chaos.results import rows_in_order, run_program, sink_epochs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.chaos

SEED = 29
SCENARIOS = ("suspended", "fetched")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of all scenarios, run on one cluster."""
    directory = tmp_path_factory.mktemp("cluster")
    config = {"directory": str(directory), "seed": SEED, "scenarios": SCENARIOS}
    status = run_program("cluster", config, timeout_s=900)
    log = (directory / "cluster.log").read_text()
    assert status == 0, log[-4000:]
    return directory


def events_of(directory: Path, *kinds: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads((directory / "events.json").read_text())
    return [event for event in told if event["kind"] in kinds]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_row_is_processed_once_and_in_order_whatever_dies(ran: Path, scenario: str) -> None:
    directory = ran / scenario
    put = json.loads((directory / "told.json").read_text())["epochs"]
    epochs = epochs_of(SEED, 24)[:put]
    assert events_of(directory, "ExecutorLost")
    assert not events_of(directory, "QueryFailed")
    numbers = defaultdict(list)
    for _, (key, number) in rows_in_order(directory / "out/order"):
        numbers[key].append(number)
    assert numbers == {k: list(range(len(n))) for k, n in numbers.items()}
    for sink in ("order", "totals", "shards"):
        newest = {row[0]: row[1:] for _, row in rows_in_order(directory / "out" / sink)}
        assert newest == expected_final(epochs, sink), sink


def test_the_rows_of_a_dead_executor_wait_while_all_other_key_groups_go_on(ran: Path) -> None:
    directory = ran / "suspended"
    owned = json.loads((directory / "told.json").read_text())["owned"]
    suspended = {e["component"]: e for e in events_of(directory, "KeyGroupsSuspended")}
    assert {name: sorted(e["key_groups"]) for name, e in suspended.items()} == owned
    for name, key_groups in owned.items():
        resumed = events_of(directory, "KeyGroupsResumed")
        again = [g for e in resumed if e["component"] == name for g in e["key_groups"]]
        assert sorted(again) == key_groups
    between = [
        e
        for e in events_of(directory, "EpochCommitted")
        if e["epoch"] > suspended["order"]["epoch"] and e["rows_in"]
    ][:3]
    assert len(between) == 3
    assert all(e["waiting_key_groups"] > 0 for e in between)
    # What is not suspended gives in these epochs just what an undisturbed run gives.
    expected = expected_epochs(epochs_of(SEED, 24))
    found = sink_epochs(directory / "out/order")
    late = 0
    # Three micro-batches came before; epochs have numbers of their own.
    for batch, epoch in enumerate((e["epoch"] for e in between), start=3):
        undisturbed = expected["order"][batch]
        assert found[epoch] <= undisturbed
        assert found[epoch]
        late += (undisturbed - found[epoch]).total()
    assert late > 0


def test_an_epoch_that_lost_an_executor_is_planned_anew_and_each_row_comes_once(ran: Path) -> None:
    directory = ran / "fetched"
    told = json.loads((directory / "told.json").read_text())
    assert (directory / "acts/signal victim").exists()
    lost = [e["executor"] for e in events_of(directory, "ExecutorLost")]
    assert lost == [told["dead"]]
    # What the first attempt sent counts for nothing, although some lanes had fetched it; rows of
    # key groups that the executor had may come an epoch later.
    expected = expected_epochs(epochs_of(SEED, 24)[: told["epochs"]])["order"]
    found = [rows for _, rows in sorted(sink_epochs(directory / "out/order").items()) if rows]
    assert found[:3] == expected[:3]
    assert sum(found, Counter()) == sum(expected, Counter())
