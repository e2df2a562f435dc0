"""What each lane must be told in an epoch: worked out from plans, chains and what executors hold.

The work grows with the key groups that changed since an executor last saw them, not with all of
them, and what is sent is a short tail of the changelog unless somebody starts from nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.lane.messages import OperatorInstruction, Place
from godwit.migration import EpochPlan
from godwit.model.assignment import Assignment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.spark.executors import Executor
    from godwit.state.chains import Chains
    from godwit.state.records import SegmentRef, SnapshotRef

__all__ = ["Copies", "loading_plan", "operator_instruction", "places_of"]

IntArray = npt.NDArray[np.int64]


class Copies:
    """Which version of each key group every executor was last seen to hold (-1: nothing)."""

    def __init__(self, num_key_groups: int) -> None:
        self._num_key_groups = num_key_groups
        self._held: dict[tuple[str, str], IntArray] = {}

    def held(self, executor: str, operator: str) -> IntArray:
        """Shape ``(num_key_groups,)``: versions that `executor` holds of `operator`'s state."""
        key = (executor, operator)
        if key not in self._held:
            self._held[key] = np.full(self._num_key_groups, -1, np.int64)
        return self._held[key]

    def saw(self, executor: str, operator: str, versions: Mapping[int, int]) -> None:
        """Note what an executor reported."""
        held = self.held(executor, operator)
        held[list(versions)] = list(versions.values())

    def dropped(self, executor: str, operator: str, key_groups: Sequence[int]) -> None:
        """Note that copies are gone."""
        self.held(executor, operator)[list(key_groups)] = -1

    def lost(self, executor: str) -> None:
        """Note that an executor is gone with everything it held."""
        for key in [key for key in self._held if key[0] == executor]:
            del self._held[key]


def places_of(
    plans: Mapping[str, EpochPlan], executors: Mapping[str, Executor]
) -> tuple[Place, ...]:
    """Lane tasks of an epoch: every lane that owns a key group of some component, in order."""
    used: dict[tuple[str, int], None] = {}
    for name in sorted(plans):
        assignment = plans[name].assignment
        pairs = np.unique(np.stack([assignment.executor_of, assignment.lane_of]), axis=1)
        for e, lane in pairs.T.tolist():
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
    plan: EpochPlan,
    places: Sequence[Place],
    chains: Chains,
    copies: Copies,
    to_snapshot: Sequence[int],
    always_load: bool,
) -> OperatorInstruction:
    """Tell the lanes of one operator what they need for the next epoch.

    Parameters
    ----------
    operator
        Its name.
    plan
        How its component runs.
    places
        Lane tasks of the epoch.
    chains
        What leads to the committed version of every key group.
    copies
        What executors hold.
    to_snapshot
        Key groups of which a snapshot is due.
    always_load
        Whether lanes load whatever they lack in place of letting its rows wait. Operators that feed
        others need it: if an executor dies after its lane has sent its output, Spark runs the lane
        again elsewhere, and some receivers have the first attempt's rows and some the second's. So
        both must be the same, whatever the second one finds in its local store.
    """
    assignment = plan.assignment
    num_key_groups = assignment.num_key_groups
    index = {(place.executor, place.lane): i for i, place in enumerate(places)}
    of_lane = np.full((len(assignment.executors), max(assignment.lanes)), -1, np.int32)
    for e, executor in enumerate(assignment.executors):
        for lane in range(assignment.lanes[e]):
            of_lane[e, lane] = index.get((executor, lane), -1)

    held = np.stack([copies.held(name, operator) for name in assignment.executors])
    floor = held[assignment.executor_of, np.arange(num_key_groups)]
    suspended = _mask(plan.suspended, num_key_groups)
    resumed = _mask(plan.consume, num_key_groups)

    segments: dict[int, SegmentRef] = {}
    snapshots: dict[int, SnapshotRef] = {}
    behind = (chains.versions(operator) > floor) & ~suspended
    for key_group in np.flatnonzero(behind).tolist():
        chain = chains.since(operator, key_group, int(floor[key_group]))
        if chain.snapshot is not None:
            snapshots[key_group] = chain.snapshot
            floor[key_group] = -1
        segments.update((id(segment), segment) for segment in chain.segments)
    waiting: dict[int, SegmentRef] = {}
    for key_group in plan.consume:
        waiting.update((id(s), s) for s in chains.since(operator, key_group, 2**62).waiting)
    return OperatorInstruction(
        places=of_lane[assignment.executor_of, assignment.lane_of],
        floor=floor,
        segments=tuple(segments.values()),
        snapshots=snapshots,
        suspended=suspended,
        load=~suspended if always_load else _mask(plan.load, num_key_groups),
        waiting=tuple(waiting.values()),
        resumed=resumed,
        to_snapshot=tuple(to_snapshot),
    )


def _mask(key_groups: frozenset[int], size: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(size, np.bool_)
    mask[list(key_groups)] = True
    return mask


def loading_plan(num_key_groups: int, executor: str, key_groups: Sequence[int]) -> EpochPlan:
    """Plan under which `executor` would run just these key groups: to work out what they need."""
    others = frozenset(range(num_key_groups)) - frozenset(key_groups)
    zeros = np.zeros(num_key_groups, np.int32)
    assignment = Assignment(
        version=0, executors=(executor,), lanes=(1,), executor_of=zeros, lane_of=zeros.copy()
    )
    return EpochPlan(
        assignment=assignment,
        suspended=others,
        load=frozenset(key_groups),
        consume=frozenset(),
    )
