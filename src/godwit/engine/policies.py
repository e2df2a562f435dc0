"""Committed epochs, as the controller, policies and the journal observe them, and proposals.

Policies propose changes of a running flow: other components, or other key columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.plan.compiled import UpstreamInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.records import PhysicalPlan
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView, ProtocolView
    from godwit.placement.arrays import FloatArray
    from godwit.plan.compiled import CompiledFlow


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch:
    """One committed epoch, as the controller observes it."""

    outcome: EpochOutcome  # what it did
    component_views: Mapping[str, ComponentView]  # component → how it ran
    took_s: float  # from its start to its commit, in seconds
    # rows that the sources had beside those that it took; ``None`` where they do not say
    backlog_rows: int | None = None
    # when they had them, by the controller's clock; ``None``: when the epoch began
    backlog_s: float | None = None
    # when it was committed, by the controller's clock; ``None``: just now
    committed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEpoch(CommittedEpoch):
    """A committed epoch with its flow, for policies about operators and the journal."""

    at_s: float = 0.0  # when it was committed, in Unix time
    flow: CompiledFlow  # under the plan that it ran under
    # state that copies brought of late from the quicker side; ``None`` where none was measured
    copies_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposal:
    """A change that a policy proposes, or its reason against any."""

    subject: str  # what it is about, for people
    change: Any = None  # what the actor is to do; ``None``: nothing
    reason: str = ""
    gain: float = math.inf  # in the unit of the cost; infinite: it must be, whatever it costs
    cost: float = 0.0  # as far as the policy knows it; the actor may know more
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on
    reverses: frozenset[str] = frozenset()  # manual changes that it would, texts of `ManualChange`


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """Change of the components that operators belong to."""

    components: Mapping[str, tuple[str, ...]]  # component → its operators
    plan: PhysicalPlan  # that it was decided under


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Change of the key columns that place an operator's rows."""

    operator: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Components of a flow by stage, and the links between them."""

    # components by the stage of an epoch that they run in, upstream first. Within an epoch a
    # stage begins when the one before has ended, so each is balanced by itself; an engine whose
    # components all run at the same time has one stage.
    stages: tuple[tuple[str, ...], ...]
    downstream: tuple[tuple[str, str], ...] = ()  # pairs (upstream component, downstream component)
    # whether a row waits for the end of an epoch, and not only for its own processing
    epochs: bool = True
    trigger_s: float = 0.0  # least time between the beginnings of epochs with input
    # time of an epoch to which its rows are limited where the stream is overloaded
    longest_epoch_s: float = math.inf

    @property
    def components(self) -> tuple[str, ...]:
        """Names of all components, upstream before downstream."""
        return tuple(name for stage in self.stages for name in stage)


def topology_of(
    flow: CompiledFlow, trigger_s: float = 0.0, longest_epoch_s: float = math.inf
) -> Topology:
    """Return the topology of a flow: its stages, each of the components of one level.

    `trigger_s`: interval of the trigger; `longest_epoch_s`: see `Topology`.
    """
    of_operator = {operator.name: c.name for c in flow.components for operator in c.operators}
    pairs = {
        (of_operator[stream.upstream], of_operator[stream.operator])
        for stream in flow.inputs
        if isinstance(stream, UpstreamInput)
    }
    levels = sorted({component.level for component in flow.components})
    return Topology(
        stages=tuple(
            tuple(c.name for c in flow.components if c.level == level) for level in levels
        ),
        downstream=tuple(sorted(pairs)),
        trigger_s=trigger_s,
        longest_epoch_s=longest_epoch_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChange:
    """Difference between the places of key groups in the last epoch and in the next one."""

    # seconds of the busiest lanes of all stages in the last epoch, and as key groups are placed
    # now; both are 0 if nothing is placed otherwise, or components have changed since
    lanes_s: float = 0.0
    next_s: float = 0.0
    # whether as many executors as have key groups have joined without any, or are to join
    awaits_many: bool = False


def placement_change(
    stages: tuple[tuple[str, ...], ...], epoch: CommittedEpoch, view: ProtocolView, pending: int
) -> PlacementChange:
    """Return what has changed since an epoch, by the present view.

    While copies are made, or an executor has no key groups yet, `next_s` is at least `lanes_s`:
    a short epoch under places that are about to change is soon over. `pending`: executors that are
    to join.
    """
    components_before, components_now = epoch.component_views, view.components
    owners: set[str] = set()
    for component in components_now.values():
        assignment = component.assignment
        owned = np.bincount(assignment.executor_of, minlength=len(assignment.executors))
        owners.update(assignment.executors[executor] for executor in np.flatnonzero(owned).tolist())
    idle = len(view.executors.keys() - view.draining - owners)
    awaits_many = idle + pending >= len(owners)
    if components_now.keys() != components_before.keys() or all(
        component.assignment is components_before[name].assignment
        for name, component in components_now.items()
    ):
        return PlacementChange(awaits_many=awaits_many)
    epoch_now = replace(epoch, component_views=components_now)
    lanes_s, next_s = (
        sum(busiest_lane_s(stage, executor) for stage in stages) for executor in (epoch, epoch_now)
    )
    if idle or any(component.transfers or component.moves for component in components_now.values()):
        next_s = max(next_s, lanes_s)
    return PlacementChange(lanes_s=lanes_s, next_s=next_s, awaits_many=awaits_many)


def busiest_lane_s(stage: tuple[str, ...], epoch: CommittedEpoch) -> float:
    """Return the seconds that the busiest lane was busy in one stage of an epoch."""
    # lanes by executors and their numbers of lanes, which components mostly have in common
    busy_by_layout: dict[tuple[tuple[str, ...], tuple[int, ...]], FloatArray] = {}
    for name in stage:
        load, component = epoch.outcome.loads.get(name), epoch.component_views.get(name)
        if load is None or component is None or not len(load.key_groups):
            continue
        assignment = component.assignment
        lane = assignment.flat_lanes()[load.key_groups]
        sums = np.bincount(lane, load.busy_s, sum(assignment.lanes)).astype(np.float64, copy=False)
        lanes = assignment.executors, assignment.lanes
        busy_by_layout[lanes] = busy_by_layout[lanes] + sums if lanes in busy_by_layout else sums
    if len(busy_by_layout) < 2:
        return float(max((sums.max() for sums in busy_by_layout.values()), default=0.0))
    busy_by_lane: dict[tuple[str, int], float] = {}
    for (executors, lanes_of), sums in busy_by_layout.items():
        lane_places = [
            (executor, lane)
            for executor, num_lanes in zip(executors, lanes_of, strict=True)
            for lane in range(num_lanes)
        ]
        for place, busy_s in zip(lane_places, sums.tolist(), strict=True):
            busy_by_lane[place] = busy_by_lane.get(place, 0.0) + busy_s
    return max(busy_by_lane.values())
