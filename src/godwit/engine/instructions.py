"""What each lane must be told in an epoch: worked out from plans, chains and what executors hold.

The work grows with the key groups that changed since an executor last saw them, not with all of
them, and what is sent is a short tail of the changelog unless somebody starts from nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.engine.lane.messages import OperatorInstruction, Place, StateInstruction
from godwit.operators.windows.moments import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.records import SegmentRef, StateId
    from godwit.engine.cluster import Executor
    from godwit.migration import EpochPlan
    from godwit.operators.windows.moments import OperatorTime

__all__ = [
    "mask_of",
    "operator_instruction",
    "places_of",
    "state_instruction",
]

IntArray = npt.NDArray[np.int64]


def places_of(
    plans: Mapping[str, EpochPlan], executors: Mapping[str, Executor]
) -> tuple[Place, ...]:
    """Lane tasks of an epoch: every lane that owns a key group of some component, in order."""
    used: dict[tuple[str, int], None] = {}
    for name in sorted(plans):
        assignment = plans[name].assignment
        width = max(assignment.lanes)
        owned = np.bincount(assignment.executor_of * width + assignment.lane_of)
        for e, lane in (divmod(place, width) for place in np.flatnonzero(owned).tolist()):
            used[assignment.executors[e], lane] = None
    order = sorted(used, key=lambda pair: (len(pair[0]), pair[0], pair[1]))
    return tuple(
        Place(
            executor=executor,
            lane=lane,
            location=executors[executor].location if executor in executors else None,
        )
        for executor, lane in order
    )


def operator_instruction(
    *,
    operator: str,
    level: int,
    plan: EpochPlan,
    places: Sequence[Place],
    chains: Chains,
    states: Sequence[StateInstruction],
    always_load: bool,
    time: OperatorTime = NO_TIME,
) -> OperatorInstruction:
    """Tell the lanes of one operator what they need for the next epoch.

    Parameters
    ----------
    operator
        Its name.
    level
        Level of its component.
    plan
        How its component runs.
    places
        Lane tasks of the epoch.
    chains
        What leads to the committed version of every key group.
    states
        What brings its states to that version.
    always_load
        Whether lanes load whatever they lack in place of letting its rows wait. Operators that feed
        others need it: if an executor dies after its lane has sent its output, Spark runs the lane
        again elsewhere, and some receivers have the first attempt's rows and some the second's. So
        both must be the same, whatever the second one finds in its local store. In one component,
        what is behind them would go on without their rows.
    time
        Event time of the operator in this epoch.
    """
    assignment = plan.assignment
    num_key_groups = assignment.num_key_groups
    index = {(place.executor, place.lane): i for i, place in enumerate(places)}
    of_lane = np.full((len(assignment.executors), max(assignment.lanes)), -1, np.int32)
    for e, executor in enumerate(assignment.executors):
        for lane in range(assignment.lanes[e]):
            of_lane[e, lane] = index.get((executor, lane), -1)
    suspended = mask_of(plan.suspended, num_key_groups)
    waiting: dict[int, SegmentRef] = {}
    waiting_from: dict[int, int] = {}
    for key_group in plan.consume:
        segments = chains.waiting(operator, key_group)
        waiting.update((id(s), s) for s in segments)
        if segments:
            waiting_from[key_group] = min(segment.epoch for segment in segments)
    return OperatorInstruction(
        level=level,
        places=of_lane[assignment.executor_of, assignment.lane_of],
        states=tuple(states),
        suspended=suspended,
        load=~suspended if always_load else mask_of(plan.load, num_key_groups),
        waiting=tuple(waiting.values()),
        waiting_from=waiting_from,
        resumed=mask_of(plan.consume, num_key_groups),
        time=time,
    )


def state_instruction(
    *,
    state: StateId,
    recorded_as: StateId,
    chains: Chains,
    floor: IntArray,
    wanted: npt.NDArray[np.bool_],
    to_snapshot: Sequence[int] = (),
) -> StateInstruction:
    """Tell what brings one state to the committed version.

    Parameters
    ----------
    state, recorded_as
        Whose, and its names as of the committed version.
    chains
        What leads to the committed version of every key group.
    floor
        Shape ``(num_key_groups,)``: version that is held where it is to be brought forward.
    wanted
        Shape ``(num_key_groups,)``: key groups that are to be brought forward.
    to_snapshot
        Key groups of which a snapshot is due.
    """
    segments, apart = chains.tail(state, floor, wanted)
    snapshots = {g: chain.snapshot for g, chain in apart.items() if chain.snapshot is not None}
    floor = floor.copy()
    floor[list(snapshots)] = -1
    return StateInstruction(
        state=state,
        recorded_as=recorded_as,
        floor=floor,
        segments=tuple(segments),
        snapshots=snapshots,
        to_snapshot=tuple(to_snapshot),
    )


def mask_of(key_groups: Iterable[int], size: int) -> npt.NDArray[np.bool_]:
    """Shape ``(size,)``: which key groups are among those."""
    mask = np.zeros(size, np.bool_)
    mask[list(key_groups)] = True
    return mask
