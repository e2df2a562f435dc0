"""An executor that Spark gave up and that continues all the same adds nothing and takes nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from tests.chaos.flow import epochs_of, expected_final
from tests.chaos.results import rows_in_order, run_program
from tests.support.long_tests import minutes_long

from godwit.checkpoint.storage import CheckpointStorage
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign, minutes_long]

SEED = 31


def test_what_an_executor_does_that_woke_up_too_late_does_not_count(tmp_path: Path) -> None:
    status = run_program("paused", {"directory": str(tmp_path), "seed": SEED}, timeout_s=300)
    assert status == 0, (tmp_path / "paused.log").read_text()[-4000:]
    directory = tmp_path / "paused"
    told = json.loads((directory / "told.json").read_text())
    events = json.loads((directory / "events.json").read_text())
    lost = [event["executor"] for event in events if event["kind"] == "ExecutorLost"]
    assert told["dead"] in lost
    assert not [event for event in events if event["kind"] == "QueryFailed"]
    epochs = epochs_of(SEED, 24)[: told["epochs"]]
    numbers = defaultdict(list)
    for _, (key, number) in rows_in_order(directory / "out/order"):
        numbers[key].append(number)
    assert numbers == {key: list(range(len(of))) for key, of in numbers.items()}
    assert sum(map(len, numbers.values())) == sum(map(len, epochs))
    for sink in ("order", "totals", "shards"):
        newest = {row[0]: row[1:] for _, row in rows_in_order(directory / "out" / sink)}
        assert newest == expected_final(epochs, sink), sink
    assert verify(CheckpointStorage.open(directory / "ck")).findings == ()
