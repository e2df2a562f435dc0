"""Broadcast values are unpacked once in each Python process of an executor."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from godwit.engine.lane.messages import InstructionParts
from godwit.spark.stages import stages
from godwit.spark.stages.stages import Shipped, ship_orders

if TYPE_CHECKING:
    import pytest


def shipped_orders(epoch: int, payloads: dict[int, list[bytes]]) -> Shipped[InstructionParts]:
    parts = InstructionParts(pickle.dumps(epoch), {}, payloads, ())
    instruction: Any = SimpleNamespace(run_id="run")
    parts._routes = instruction
    return ship_orders(parts)


def test_lanes_of_one_process_share_their_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_unpacked", {})
    shipped = shipped_orders(7, {1: [b"a", b"b"]})
    here, there = (pickle.loads(pickle.dumps(shipped)) for _ in range(2))
    assert here.here is None
    assert here.get() is there.get()
    assert pickle.loads(here.get().packed_routes) == 7
    assert here.get().payloads == {1: [b"a", b"b"]}


def test_another_attempt_at_an_epoch_has_orders_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "_unpacked", {})
    first, second = shipped_orders(7, {}), shipped_orders(7, {0: [b"x"]})
    assert first.get().payloads == {}
    assert second.get().payloads == {0: [b"x"]}
    assert second.get() is not first.get()
    assert len(stages._unpacked) == 1  # of the epochs before, nothing is kept
