"""Executors are killed between epochs and within one: no row is lost, doubled or out of order.

What else may happen then is played in one process, by `tests.contract`.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.flow import epochs_of, expected_epochs, expected_final
from tests.chaos.results import (
    insist_on_each_row_once,
    rows_in_order,
    run_program,
    sink_epochs,
)
from tests.chaos.timed import expected_timers, expected_windows, timed_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

SEED = 29
CONTRACT = ["a migration of copies that executors send one another"]
FURTHER = ["the source of a migration is lost"]
# Over a source of Godwit's own, as executors also die in `test_repartition`.
OWN = ("the rows of a lost executor wait and the others continue",)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run on one cluster; its contract was kept."""
    directory = tmp_path_factory.mktemp("cluster")
    config: dict[str, Any] = {"directory": str(directory), "seed": SEED, "contract": CONTRACT}
    if "GODWIT_LONG" in os.environ:
        config["contract"] = CONTRACT + FURTHER
        config["own"] = OWN
    status = run_program("cluster", config, timeout_s=900)
    log = (directory / "cluster.log").read_text()
    assert status == 0, log[-4000:]
    return directory


def events_of(directory: Path, *kinds: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads((directory / "events.json").read_text())
    return [event for event in told if event["kind"] in kinds]


def test_every_row_is_processed_once_and_in_order_whatever_dies(ran: Path) -> None:
    directory = ran / "fetched"
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


def test_windows_and_timers_come_once_though_an_executor_dies(ran: Path) -> None:
    directory = ran / "timed"
    told = json.loads((directory / "events.json").read_text())
    assert "ExecutorLost" in {event["kind"] for event in told}
    epochs = timed_rows(SEED, 8)
    windows = [row for _, row in rows_in_order(directory / "out/windows")]
    assert len({row[:2] for row in windows}) == len(windows)
    assert {(row[0], row[1]): row[3:] for row in windows} == expected_windows(epochs)
    timers = [row for _, row in rows_in_order(directory / "out/timers")]
    assert Counter(timers) == expected_timers(epochs)
    of_key = defaultdict(list)
    for key, second in timers:
        of_key[key].append(second)
    assert all(seconds == sorted(seconds) for seconds in of_key.values())


def test_rows_of_both_kinds_of_sources_come_once_though_key_groups_move_and_an_executor_dies(
    ran: Path,
) -> None:
    directory = ran / "mixed"
    told = {event["kind"] for event in json.loads((directory / "events.json").read_text())}
    assert {"ExecutorLost", "MigrationFinished"} <= told
    insist_on_each_row_once(directory / "out", epochs_of(SEED, 8))


def test_executors_sent_one_another_copies_through_the_shuffle(ran: Path) -> None:
    asked = CONTRACT.index("a migration of copies that executors send one another")
    assert sum(json.loads((ran / f"sent-{asked}.json").read_text()))
