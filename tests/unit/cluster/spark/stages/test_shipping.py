"""What travels to executors is unpacked once in each of their Python processes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.stages import shipping
from godwit.cluster.spark.stages.shipping import ShippedEpoch

if TYPE_CHECKING:
    import pytest


def instruction(epoch: int) -> Any:
    return SimpleNamespace(run_id="run", epoch=epoch)


def test_lanes_of_one_process_share_what_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_epochs", {})
    shipped = ShippedEpoch(instruction(7), {1: [b"a", b"b"]})
    here, there = (pickle.loads(pickle.dumps(shipped)) for _ in range(2))
    assert here.instruction is there.instruction
    assert here.instruction.epoch == 7
    assert (here.arrived(0), here.arrived(1)) == ([], [b"a", b"b"])


def test_another_attempt_at_an_epoch_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_epochs", {})
    first, second = ShippedEpoch(instruction(7), {}), ShippedEpoch(instruction(7), {0: [b"x"]})
    assert first.arrived(0) == []
    assert second.arrived(0) == [b"x"]
    assert second.instruction is not first.instruction
    assert len(shipping._epochs) == 1  # of the epochs before, nothing is kept
