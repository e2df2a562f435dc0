"""In which order moves are worth making.

Problem: a migration may be cut short, and its later moves come late; so every move should bring as
much relief as it can, as cheaply as it can, where relief is needed most.

Invariant: this is the only place that orders moves: previews, the carrying out of plans, and plans
that a user writes by hand all ask it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.assignment import Move

if TYPE_CHECKING:
    from godwit.planning.arrays import BoolArray, FloatArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["PlannedMove", "move_order", "planned_moves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove(Move):
    """A move, and what it is worth."""

    load: float  # load of the key group, that its source is relieved of

    @property
    def relief_per_byte(self) -> float:
        """Load that leaves the source for every byte that has to be carried."""
        return self.load / max(self.state_bytes, 1)


def move_order(
    current: IntArray,
    after: IntArray,
    *,
    load: FloatArray,
    state_bytes: FloatArray,
    speed: FloatArray,
    draining: BoolArray,
) -> IntArray:
    """Order the key groups that move: relieve the most overloaded executor first.

    Repeatedly takes the executor with the highest load index among those with moves left (draining
    ones after all others; ties: the lower index), and of its moves the one with the most load per
    byte (ties: the lower key group). After each move the loads are those that the moves so far
    would leave behind, so executors take turns as they become equal. O(m log m) for m moves.

    `current`, `after`: shape ``(m,)``: executor of each key group. `load`, `state_bytes`: shape
    ``(m,)``: of each key group; state of no size counts as one byte. `speed`, `draining`: shape
    ``(n,)``: capacity of each executor, and whether it is marked for removal. Returns shape
    ``(moves,)``: key groups.
    """
    moved = np.flatnonzero(after != current)
    relief = load[moved] / np.maximum(state_bytes[moved], 1.0)
    queues: dict[int, list[int]] = {}
    for k in moved[np.lexsort((moved, -relief))][::-1].tolist():
        queues.setdefault(int(current[k]), []).append(k)
    held = np.bincount(current, weights=load, minlength=len(speed)).tolist()
    heap = [(bool(draining[e]), -held[e] / speed[e], e) for e in queues]
    heapq.heapify(heap)
    order = []
    while heap:
        _, negative_index, e = heapq.heappop(heap)
        if not queues[e] or -held[e] / speed[e] != negative_index:
            continue  # whatever changed its load has pushed it anew
        k = queues[e].pop()
        order.append(k)
        destination, weight = int(after[k]), float(load[k])
        held[e] -= weight
        held[destination] += weight
        for changed in (e, destination):
            if queues.get(changed):
                entry = (bool(draining[changed]), -held[changed] / speed[changed], changed)
                heapq.heappush(heap, entry)
    return np.asarray(order, np.int32)


def planned_moves(problem: Problem, assignment: IntArray) -> tuple[PlannedMove, ...]:
    """List the moves that lead from a problem's current assignment to another, in order."""
    order = move_order(
        problem.current,
        assignment,
        load=problem.weight,
        state_bytes=problem.state_bytes,
        speed=problem.speed,
        draining=problem.draining,
    )
    return tuple(
        PlannedMove(
            key_group=k,
            source=problem.executors[problem.current[k]],
            destination=problem.executors[assignment[k]],
            state_bytes=int(problem.state_bytes[k]),
            load=float(problem.weight[k]),
        )
        for k in order.tolist()
    )
