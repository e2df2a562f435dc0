"""What travels to executors is unpacked once in each of their Python processes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.stages import stages
from godwit.cluster.spark.stages.stages import ship_orders

if TYPE_CHECKING:
    import pytest


def instruction(epoch: int) -> Any:
    return SimpleNamespace(run_id="run", epoch=epoch)


def test_lanes_of_one_process_share_their_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_unpacked", {})
    shipped = ship_orders((instruction(7), {1: [b"a", b"b"]}))
    here, there = (pickle.loads(pickle.dumps(shipped)) for _ in range(2))
    assert here.here is None
    assert here.get() is there.get()
    assert here.get()[0].epoch == 7
    assert here.get()[1] == {1: [b"a", b"b"]}


def test_another_attempt_at_an_epoch_has_orders_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "_unpacked", {})
    first, second = ship_orders((instruction(7), {})), ship_orders((instruction(7), {0: [b"x"]}))
    assert first.get()[1] == {}
    assert second.get()[1] == {0: [b"x"]}
    assert second.get()[0] is not first.get()[0]
    assert len(stages._unpacked) == 1  # of the epochs before, nothing is kept
