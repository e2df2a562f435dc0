"""Loads of the last epochs are added up, and small enough to be written down."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from godwit.migration.outcome import EpochOutcome, LoadSummary, RecentLoad
from godwit.model.key_groups import KeyGroupLoad


def load(key_groups: list[int], rows: int = 10, cpu_ms: float = 2.0) -> KeyGroupLoad:
    n = len(key_groups)
    return KeyGroupLoad(
        key_groups=np.array(key_groups),
        rows=np.full(n, rows),
        keys=np.full(n, 3),
        cpu_ms=np.full(n, cpu_ms),
        busy_ms=np.full(n, 2 * cpu_ms),
        state_bytes=np.array([1000 * (g + 1) for g in key_groups]),
    )


def taken(recent: RecentLoad, count: int, *key_groups: int, first: int = 0) -> None:
    for epoch in range(first, first + count):
        of = {"totals": load(list(key_groups), cpu_ms=float(epoch))}
        recent.add_epoch(EpochOutcome(epoch=epoch, batch=epoch, loads=of))


def test_a_summary_is_due_every_sixteenth_epoch_with_input_and_adds_them_up() -> None:
    recent = RecentLoad()
    taken(recent, 15, 0, 5)
    recent.add_epoch(EpochOutcome(epoch=15))
    assert recent.due_summary() is None
    taken(recent, 1, 5, 9, first=16)
    summary = recent.due_summary()
    assert summary is not None
    assert (summary.epoch, summary.epochs) == (16, 16)
    found = summary.loads["totals"]
    assert found.key_groups.tolist() == [0, 5, 9]
    assert found.rows.tolist() == [150, 160, 10]
    assert found.cpu_ms.tolist() == [105.0, 121.0, 16.0]
    assert found.busy_ms.tolist() == [210.0, 242.0, 32.0]
    assert found.state_bytes.tolist() == [1000, 6000, 10_000]
    assert recent.due_summary() is None


def test_the_more_key_groups_there_are_the_rarer_they_are_written_down() -> None:
    recent, due = RecentLoad(), 0
    many = load(list(range(32_768)))
    for epoch in range(64):
        recent.add_epoch(EpochOutcome(epoch=epoch, batch=epoch, loads={"a": many, "b": many}))
        due += recent.due_summary() is not None
    assert due == 2


def test_what_is_written_down_reads_back_nearly_exact_and_is_small() -> None:
    rng = np.random.default_rng(0)
    n = 32_768
    given = LoadSummary(
        epoch=7,
        epochs=16,
        loads={
            "totals": KeyGroupLoad(
                key_groups=np.arange(n),
                rows=rng.zipf(1.3, n) % 2**40,
                keys=np.ones(n, np.int64),
                cpu_ms=rng.exponential(5.0, n),
                busy_ms=rng.exponential(9.0, n),
                state_bytes=rng.integers(0, 2**40, n),
            ),
            "none": load([]),
        },
    )
    text = json.dumps(given.to_dict())
    assert len(text) / 16 < 20 * 1024  # an epoch
    back = LoadSummary.from_dict(json.loads(text))
    assert back is not None
    assert (back.epoch, back.epochs) == (7, 16)
    one, other = given.loads["totals"], back.loads["totals"]
    assert other.key_groups.tolist() == list(range(n))
    for column in ("rows", "cpu_ms", "busy_ms", "state_bytes"):
        assert getattr(other, column) == pytest.approx(getattr(one, column), rel=2e-3, abs=1e-3)
    assert len(back.loads["none"].key_groups) == 0


LONG = LoadSummary(epoch=1, epochs=1, loads={"a": load([1, 2, 3])}).to_dict()["loads"]["a"]["rows"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v.pop("epochs"),
        lambda v: v.update(loads=[]),
        lambda v: v["loads"]["totals"].update(rows="!!"),
        lambda v: v["loads"]["totals"].update(rows=v["loads"]["totals"]["rows"][:8]),
        lambda v: v["loads"]["totals"].update(rows=LONG),
    ],
)
def test_what_is_damaged_is_nothing(damage: Any) -> None:
    values = LoadSummary(epoch=1, epochs=1, loads={"totals": load([1, 2])}).to_dict()
    damage(values)
    assert LoadSummary.from_dict(values) is None


def test_loads_of_an_earlier_run_stand_until_there_are_rows() -> None:
    before = LoadSummary(epoch=7, epochs=4, loads={"totals": load([2], cpu_ms=8.0)})
    recent = RecentLoad(before)
    assert recent.mean_busy_ms("totals") == {2: 4.0}
    assert recent.mean_busy_ms("elsewhere") == {}
    taken(recent, 1, 3, first=8)
    assert recent.mean_busy_ms("totals") == {3: 16.0}
