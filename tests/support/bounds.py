"""Bounds on the memory of state that make lanes evict all that they may, in every epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.index_steps import index_grows_in_steps_of_two

from godwit.checkpoint import partial_copies
from godwit.engine.lane import state_memory
from godwit.engine.settings import Lanes

if TYPE_CHECKING:
    import pytest


def evict_always(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every lane evict all that it may, before and after it brings state forward.

    Blocks are indexed ahead, a step in each epoch, and indexes of tables grow in steps. Return a
    list to which each eviction adds the number of its key groups.
    """
    evicted: list[int] = []
    evict_state = state_memory.StateMemory._evict_state

    def counted(memory: state_memory.StateMemory, state: object, key_groups: object) -> None:
        before = sum(memory.evicted.values())
        evict_state(memory, state, key_groups)  # type: ignore[arg-type]
        evicted.append(sum(memory.evicted.values()) - before)

    monkeypatch.setattr(state_memory.StateMemory, "_evict_state", counted)
    monkeypatch.setattr(state_memory, "is_over", lambda used, bound: used >= 0 <= bound)
    monkeypatch.setattr(Lanes, "state_memory_bytes", property(lambda _: 1 << 40))
    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    monkeypatch.setattr(partial_copies, "_TABLE_SHARE", 1 << 50)  # nothing is completed again
    monkeypatch.setattr(partial_copies, "_AHEAD_SHARE", 1 << 50)
    index_grows_in_steps_of_two(monkeypatch)
    return evicted
