"""In which order moves are worth making.

A migration may be cut short, and its later moves come late; so every move should bring as much
relief as it can, as cheaply as it can, where relief is needed most.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.model.assignment import Assignment, Move

__all__ = ["order_moves"]


def order_moves(
    moves: Iterable[Move], current: Assignment, loads: Mapping[int, float]
) -> tuple[Move, ...]:
    """Order moves: the most overloaded executor first, and of its moves the best load per byte.

    After each move the loads are those that the moves so far would leave behind, so executors
    take turns as they become equal.  Takes O(m log m) for m moves.

    Parameters
    ----------
    moves
        The moves, in any order, each of another key group.
    current
        Where key groups are. An executor's load is that of its key groups, divided by its lanes.
    loads
        Key group → load, in any unit; a key group that is left out counts 1.

    Returns
    -------
    tuple of Move
        Ties between executors go to the smaller name, between moves to the smaller key group.
    """
    lanes = dict(zip(current.executors, current.lanes, strict=True))
    pressure = dict.fromkeys(current.executors, 0.0)
    for key_group in range(current.num_key_groups):
        executor = current.executor(key_group)
        pressure[executor] += loads.get(key_group, 1.0) / lanes[executor]

    offers: dict[str, list[tuple[float, int, Move]]] = {}
    for move in moves:
        gain = loads.get(move.key_group, 1.0) / max(move.state_bytes, 1)
        offers.setdefault(move.source, []).append((-gain, move.key_group, move))
    for offered in offers.values():
        heapq.heapify(offered)

    # Every source that still has offers has an entry that tells its pressure as it is now; entries
    # that tell an older one are passed over.
    sources = [(-pressure[name], name) for name in offers]
    heapq.heapify(sources)
    ordered: list[Move] = []
    while sources:
        told, name = heapq.heappop(sources)
        if -told != pressure[name] or not offers[name]:
            continue
        _, key_group, move = heapq.heappop(offers[name])
        ordered.append(move)
        load = loads.get(key_group, 1.0)
        for changed, sign in ((name, -1), (move.destination, 1)):
            # A destination may be new, with lanes that are not known here: it counts as one.
            pressure[changed] = pressure.get(changed, 0.0) + sign * load / lanes.get(changed, 1)
            if offers.get(changed):
                heapq.heappush(sources, (-pressure[changed], changed))
    return tuple(ordered)
