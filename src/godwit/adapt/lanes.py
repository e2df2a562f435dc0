"""Balance between the lanes of each executor, between two epochs.

Problem: key groups of one executor are dealt out over its lanes, and an epoch waits for the busiest
lane of all.  To change lane within an executor costs nothing: its processes share one local store.

Invariant: nothing changes executor; no lane changes unless its executor's busiest lane is above
theta times the mean and comes down by more than noise.

Source: paper 5 §3.1 (theta = 1.2, every half second); state is shared within a process (§3.1), here
within an executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration import LanesRequested
from godwit.planning.cores.intra_executor import balance_lanes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.adapt.ports import EpochObserved
    from godwit.model.assignment import Assignment
    from godwit.planning.arrays import FloatArray

__all__ = ["LaneChange", "rebalance_lanes", "recent_load"]

_LEAST_GAIN = 0.1
"""Share of the mean lane by which the busiest one must come down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChange:
    """Other lanes for some key groups of a component."""

    request: LanesRequested  # what to ask the conductor for
    executors: tuple[str, ...]  # those on which key groups change lane
    before: float  # before, after: Busiest lane over mean lane, of the worst of these executors
    after: float


def recent_load(component: str, epochs: Iterable[EpochObserved], num_key_groups: int) -> FloatArray:
    """Shape ``(G,)``: seconds that lanes were busy with each key group in the last epochs."""
    load = np.zeros(num_key_groups)
    for epoch in epochs:
        seen = epoch.outcome.loads.get(component)
        if seen is not None:
            load[seen.key_groups] += seen.busy_s
    return load


def rebalance_lanes(
    component: str, assignment: Assignment, load: FloatArray, theta: float
) -> LaneChange | None:
    """Balance the lanes of every executor that needs it; ``None`` where none does.

    component, assignment: Whose lanes, as they are now.
    load: Shape ``(G,)``: of each key group, in any unit.
    theta: Busiest lane over mean lane that is put up with.
    """
    lane_of: dict[int, int] = {}
    changed, before, after = [], 1.0, 1.0
    for executor, (name, lanes) in enumerate(
        zip(assignment.executors, assignment.lanes, strict=True)
    ):
        mine = np.flatnonzero(assignment.executor_of == executor)
        mean = float(load[mine].sum()) / lanes
        if lanes < 2 or len(mine) < 2 or mean <= 0:
            continue
        current = assignment.lane_of[mine]
        was = float(np.bincount(current, load[mine], lanes).max()) / mean
        if was <= theta:
            continue
        wanted = balance_lanes(load[mine], current, lanes, theta=theta)
        becomes = float(np.bincount(wanted, load[mine], lanes).max()) / mean
        if was - becomes < _LEAST_GAIN:
            continue
        moved = wanted != current
        lane_of.update(zip(mine[moved].tolist(), wanted[moved].tolist(), strict=True))
        changed.append(name)
        if was > before:
            before, after = was, becomes
    if not lane_of:
        return None
    return LaneChange(
        request=LanesRequested(component=component, lane_of=lane_of),
        executors=tuple(changed),
        before=before,
        after=after,
    )
