"""The order of a migration's moves: `godwit.planning.solution`, for assignments with names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.solution import move_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.model.assignment import Assignment, Move

__all__ = ["order_moves"]


def order_moves(
    moves: Iterable[Move], current: Assignment, loads: Mapping[int, float]
) -> tuple[Move, ...]:
    """Order moves: the most overloaded executor first, and of its moves the best load per byte.

    Parameters
    ----------
    moves
        The moves, in any order, each of another key group.
    current
        Where key groups are. An executor's load is that of its key groups, divided by its lanes; a
        destination that is not listed counts as having one.
    loads
        Key group → load, in any unit; a key group that is left out counts 1.

    Returns
    -------
    tuple of Move
        Ties between executors go to the smaller name, between moves to the smaller key group.
    """
    by_key_group = {move.key_group: move for move in moves}
    names = sorted({*current.executors, *(m.destination for m in by_key_group.values())})
    place = {name: at for at, name in enumerate(names)}
    lanes = dict(zip(current.executors, current.lanes, strict=True))
    size = current.num_key_groups
    now = np.array([place[name] for name in current.executors], np.int32)[current.executor_of]
    after, state_bytes, load = now.copy(), np.zeros(size), np.ones(size)
    for key_group, weight in loads.items():
        load[key_group] = weight
    for key_group, move in by_key_group.items():
        after[key_group], state_bytes[key_group] = place[move.destination], move.state_bytes
    order = move_order(
        now,
        after,
        load=load,
        state_bytes=state_bytes,
        speed=np.array([lanes.get(name, 1) for name in names], np.float64),
        draining=np.zeros(len(names), np.bool_),
    )
    return tuple(by_key_group[key_group] for key_group in order.tolist())
