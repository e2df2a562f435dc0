"""Facts about runs with a bound on the memory of state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lane_flows import flow_of, summed
from tests.support.manual_run import ManualRun

from godwit.engine.lane.lane_flow import LaneInput
from godwit.engine.settings import Lanes
from godwit.model.errors import StateMemoryError

if TYPE_CHECKING:
    from pathlib import Path


def rows_from(keys: np.ndarray[Any, Any]) -> dict[LaneInput | str, list[pa.RecordBatch]]:
    """One row for each key."""
    names = pa.array([f"key {i}" for i in keys.tolist()])
    return {LaneInput(index=0): [pa.record_batch({"k": names, "v": pa.array(keys)})]}


def new_run(directory: Path, state_memory: int | None, **settings: Any) -> ManualRun:
    lanes = Lanes(state_memory=state_memory, snapshot_growth=1.0, **settings)
    return ManualRun(flow_of(summed, 8), directory, {"e": 2}, settings=lanes)


def table_bytes(directory: Path) -> int:
    files = (directory / "local").rglob("*.table")
    return sum(512 * path.stat().st_blocks for path in files)


def test_tables_stay_below_the_bound_with_more_state_than_it_and_results_are_the_same(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(1)
    bound = 3 << 20
    bounded, free = new_run(tmp_path / "1", bound), new_run(tmp_path / "2", None)
    evicted, snapshots = 0, 0
    for number in range(24):
        first = 4_000 * (number % 12)
        rows = rows_from(
            np.unique(np.append(np.arange(first, first + 4_000), rng.integers(0, 48_000, 99)))
        )
        outcome = bounded.epoch(rows)
        free.epoch(rows)
        evicted += sum(outcome.evicted.values())
        snapshots += outcome.snapshot_bytes
        assert table_bytes(tmp_path / "1") <= bound
        assert outcome.table_bytes == table_bytes(tmp_path / "1")
    assert table_bytes(tmp_path / "2") > bound
    assert evicted > 0
    assert snapshots > 0
    assert bounded.held() == free.held()


def test_state_that_fits_is_completed_and_never_evicted(tmp_path: Path) -> None:
    run = new_run(tmp_path, 64 << 20)
    run.epoch(rows_from(np.arange(3_000)))
    again = new_run(tmp_path, 64 << 20)
    for _ in range(12):
        outcome = again.epoch(rows_from(np.arange(40)))
        assert sum(outcome.evicted.values()) == 0
    assert outcome.unread_bytes == outcome.fetched_keys == 0


def test_an_epoch_that_needs_more_at_once_is_refused_by_name(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1 << 20)
    run.epoch(rows_from(np.arange(40_000)))
    with pytest.raises(StateMemoryError, match=r"operator 'sums'.* of the 1\.0 MiB") as refused:
        run.epoch(rows_from(np.arange(40_000)))
    assert "Limit the rows of an epoch" in refused.value.remedy
    run = new_run(tmp_path, 64 << 20)
    run.epoch(rows_from(np.arange(40_000)))


@pytest.mark.parametrize(
    ("restore", "maps", "reason"),
    [
        ("whole", True, "because the setting restore of lanes is 'whole'"),
        ("touched", False, "because the checkpoint is not on a disk of this machine"),
    ],
)
def test_state_that_cannot_be_read_by_keys_is_refused_where_it_needs_more(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    restore: str,
    maps: bool,
    reason: str,
) -> None:
    monkeypatch.setattr("godwit.checkpoint.storage.is_on_own_disk", lambda _: maps)
    run = new_run(tmp_path, 1 << 20, restore=restore)
    assert "State is read whole in spite of state_memory, since" in caplog.text
    run.epoch(rows_from(np.arange(40_000)))
    with pytest.raises(StateMemoryError, match="'sums'") as refused:
        run.epoch(rows_from(np.arange(9)))
    assert reason in refused.value.remedy
