"""Instructions to the lanes of an epoch, built from component views, chains and executors' copies.

Work and message size grow with the key groups that changed since their executor's version: an
executor with recent copies gets a short tail of the changelog, a new one snapshots too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.checkpoint import partial_copies
from godwit.checkpoint.chains import choose_snapshots
from godwit.checkpoint.records import StateId
from godwit.engine.lane.messages import (
    EpochInstruction,
    OperatorInstruction,
    Place,
    StateInstruction,
)
from godwit.migration.strategy import LossPolicy
from godwit.model.key_groups import key_group_mask
from godwit.time.event_time import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy import bool_, int64, integer

    from godwit.checkpoint.chains import Chains, KeyGroupChain
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import SegmentRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.settings import Lanes
    from godwit.migration.copies import Copies
    from godwit.migration.state import ComponentView, ProtocolView, Transfer
    from godwit.model.assignment import Assignment
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.lineage import Layouts
    from godwit.time.event_time import EpochTime

IntArray = npt.NDArray[np.int64]


def places_of(component_views: Mapping[str, ComponentView]) -> tuple[Place, ...]:
    """Return the lanes that run an epoch's tasks, as (executor, lane), in order.

    Every lane that owns a key group has a task.
    """
    used: dict[Place, None] = {}
    for name in sorted(component_views):
        assignment = component_views[name].assignment
        width = max(assignment.lanes)
        owned = np.bincount(assignment.executor_of * width + assignment.lane_of)
        for e, lane in (divmod(place, width) for place in np.flatnonzero(owned).tolist()):
            used[assignment.executors[e], lane] = None
    return tuple(sorted(used, key=lambda place: (len(place[0]), *place)))


def _places_of_key_groups(assignment: Assignment, places: Sequence[Place]) -> npt.NDArray[np.int32]:
    """Return the index in `places` of the lane of each key group; -1: none there."""
    index = {place: position for position, place in enumerate(places)}
    index_of_lane = np.full((len(assignment.executors), max(assignment.lanes)), -1, np.int32)
    for number, executor in enumerate(assignment.executors):
        for lane in range(assignment.lanes[number]):
            index_of_lane[number, lane] = index.get((executor, lane), -1)
    return index_of_lane[assignment.executor_of, assignment.lane_of]


def operator_instruction(
    *,
    operator: str,
    level: int,
    view: ComponentView,
    places: Sequence[Place],
    chains: Chains,
    states: Sequence[StateInstruction],
    # lanes load missing state instead of suspending key groups. Required upstream of other
    # operators: if an executor dies after its lane has sent its output, Spark runs the lane again
    # elsewhere, and some receivers have the first attempt's rows and some the second's. So both
    # must be equal, independent of the local stores. In one component, operators downstream would
    # continue without their rows.
    always_load: bool,
    time: EpochTime = NO_TIME,
    tables: Sequence[StateInstruction] = (),
    left_parts: Sequence[KeyGroupChain] = (),
) -> OperatorInstruction:
    """Return the instruction for one operator's lanes in the next epoch.

    `level`: of its component; `view`: how the component runs. `places`: lane tasks of the epoch.
    `chains`: of every key group to the committed version; `states`: instructions for its states.
    `always_load`: load missing state; no rows wait. `time`: its event time in this epoch. `tables`:
    broadcast tables, whole. `left_parts`: parts that hot keys leave, to be merged.
    """
    assignment = view.assignment
    num_key_groups = assignment.num_key_groups
    suspended = key_group_mask(view.suspended, num_key_groups)
    waiting: dict[int, SegmentRef] = {}
    waiting_from: dict[int, int] = {}
    for key_group in view.consume:
        segments = chains.waiting_rows_of(operator, key_group)
        waiting.update((id(s), s) for s in segments)
        if segments:
            waiting_from[key_group] = min(segment.epoch for segment in segments)
    return OperatorInstruction(
        level=level,
        places=_places_of_key_groups(assignment, places),
        states=tuple(states),
        suspended=suspended,
        load=~suspended if always_load else key_group_mask(view.load, num_key_groups),
        whole=key_group_mask(view.whole, num_key_groups),
        waiting=tuple(waiting.values()),
        waiting_from=waiting_from,
        resumed=key_group_mask(view.consume, num_key_groups),
        time=time,
        tables=tuple(tables),
        left_parts=tuple(left_parts),
    )


def state_instruction(
    *,
    state: StateId,
    recorded_as: StateId,
    chains: Chains,
    floor: IntArray,
    needed: npt.NDArray[np.bool_],
    to_snapshot: Sequence[int] = (),
) -> StateInstruction:
    """Return the instruction by which lanes bring one state up to the committed version.

    `recorded_as`: id of the state as of that version. `chains`: of every key group to it. Shape
    ``(num_key_groups,)``: `floor`, the present versions of copies, and `needed`, a mask of key
    groups to bring forward. `to_snapshot`: key groups whose snapshot is due.
    """
    segments, chains_of_groups = chains.segments_since(state, floor, needed)
    snapshots = {
        key_group: chain.snapshot
        for key_group, chain in chains_of_groups.items()
        if chain.snapshot is not None
    }
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


def _intersection(few: npt.NDArray[integer], others: npt.NDArray[integer]) -> list[int]:
    """Return the key groups in both arrays; fast if `few` is empty, as it usually is."""
    return np.intersect1d(few, others).tolist() if len(few) else []


_NONE = np.empty(0, np.int64)


class Instructor:
    """Builds the instructions of one run."""

    def __init__(
        self,
        flow: CompiledFlow,
        log: CommitLog,  # the checkpoint's commits; its chains are read under its lock
        layouts: Layouts,  # operator → layouts of its states
        settings: Lanes,
        *,
        on_loss: LossPolicy,  # treatment of key groups without a local copy
        run_id: str,  # local stores belong to the run
    ) -> None:
        self._flow, self._log, self._layouts, self._settings = flow, log, layouts, settings
        self._loads = on_loss is LossPolicy.LOAD
        self.run_id = run_id
        self.num_key_groups = flow.num_key_groups

    @property
    def storage(self) -> CheckpointStorage:
        """The checkpoint's directory."""
        return self._log.storage

    @property
    def local_dir(self) -> str | None:
        """Directory of local stores, if the user set one."""
        return self._settings.local_path

    def regrouped(self, flow: CompiledFlow) -> None:
        """Continue with the flow under another physical plan."""
        self._flow = flow

    def layout_of(self, state: StateId) -> EntryLayout:
        """Return the layout of a state's entries in the checkpoint."""
        return self._layouts[state.operator][0][state.state]

    def epoch(
        self,
        epoch: int,
        component_views: Mapping[str, ComponentView],
        *,
        view: ProtocolView,
        copies: Copies,
        times: Mapping[str, EpochTime],
    ) -> EpochInstruction:
        """Return the instruction of an epoch; the caller holds the coordinator's lock."""
        places = places_of(component_views)
        instructions: dict[str, OperatorInstruction] = {}
        with self._log.lock:
            log_from = self._log.chains.log_from(self._settings.snapshot_growth)
            for component in self._flow.components:
                component_view = component_views[component.name]
                transfers = view.components[component.name].transfers
                may_snapshot = self._may_snapshot(epoch, component_view, transfers, places)
                needed = ~key_group_mask(component_view.suspended, self.num_key_groups)
                for operator in component.operators:
                    states = [
                        self._state(
                            state,
                            copies.owners_versions(component_view.assignment, state),
                            needed,
                            may_snapshot,
                            log_from=log_from,
                            drained_slots=self._drained_slots(
                                operator, state, times[operator.name]
                            ),
                        )
                        for state in operator.states
                    ]
                    instructions[operator.name] = operator_instruction(
                        operator=operator.name,
                        level=component.level,
                        view=component_view,
                        places=places,
                        chains=self._log.chains,
                        states=states,
                        # An epoch closes windows in all key groups or in none.
                        always_load=component.level < self._flow.levels
                        or bool(self._flow.inputs_fed_by(operator.name))
                        or self._loads
                        or operator.needs_state(times[operator.name]),
                        time=times[operator.name],
                        tables=self._missing_tables(operator),
                        left_parts=self._parts_to_merge(operator, times[operator.name]),
                    )
        return EpochInstruction(
            epoch=epoch,
            flow=self._log.flow,
            run_id=self.run_id,
            places=places,
            operators=tuple(instructions[operator.name] for operator in self._flow.operators),
            storage=self._log.storage,
            local_dir=self._settings.local_path,
            inline_bytes=self._settings.inline_limit(len(places)),
            compression=self._settings.compression,
            hot_keys=self._settings.hot_keys,
            restore=self._settings.restore,
            fetch_from_bytes=partial_copies.FROM_BYTES,
            state_memory=self._settings.state_memory_bytes,
        )

    def _missing_tables(self, operator: KeyedOperator) -> list[StateInstruction]:
        """Return instructions to load an operator's broadcast tables, for executors without a copy.

        One per table, from the beginning up to the committed version; none if it has no tables.
        """
        if not operator.broadcasts:
            return []
        home = key_group_mask([operator.table_key_group(self.num_key_groups)], self.num_key_groups)
        names = {broadcast.state for broadcast in operator.broadcasts}
        return [
            state_instruction(
                state=state,
                recorded_as=self._log.recorded_as(state),
                chains=self._log.chains,
                floor=np.full(self.num_key_groups, -1),
                needed=home,
            )
            for state in operator.states
            if state.state in names
        ]

    def _parts_to_merge(self, operator: KeyedOperator, time: EpochTime) -> list[KeyGroupChain]:
        """Return the snapshots and changelogs of key groups whose parts of hot keys merge now."""
        if not operator.part_states or time.spreads is None:
            return []
        states = [StateId(operator.name, state) for state in operator.part_states]
        chains = self._log.chains
        left = time.spreads.former_key_groups(self.num_key_groups)
        return [chains.chain(state, key_group) for state in states for key_group in left]

    def catching_up(
        self, state: StateId, floor: npt.NDArray[int64], key_groups: Iterable[int]
    ) -> tuple[StateInstruction, int]:
        """Return the instruction to bring copies from versions `floor` to the committed version.

        Also returns that version.
        """
        with self._log.lock:
            instruction = self._state(state, floor, key_group_mask(key_groups, self.num_key_groups))
            return instruction, self._log.latest_epoch

    def _state(
        self,
        state: StateId,
        floor: npt.NDArray[int64],
        needed: npt.NDArray[bool_],
        may_snapshot: npt.NDArray[integer] = _NONE,
        *,
        log_from: int = 0,
        drained_slots: npt.NDArray[integer] = _NONE,
    ) -> StateInstruction:
        """Return the instruction for one state, with the key groups to write snapshots of.

        `floor`, `needed`: see `state_instruction`. `may_snapshot`: key groups that get a snapshot
        if due (by `log_from` too); `drained_slots`: those of them that always get one.
        """
        due_snapshots = choose_snapshots(
            self._log.chains,
            state,
            may_snapshot,
            budget_bytes=self._settings.snapshot_budget_bytes,
            growth=self._settings.snapshot_growth,
            log_from=log_from,
        )
        return state_instruction(
            state=state,
            recorded_as=self._log.recorded_as(state),
            chains=self._log.chains,
            floor=floor,
            needed=needed,
            to_snapshot=list(
                dict.fromkeys([*due_snapshots, *_intersection(drained_slots, may_snapshot)])
            ),
        )

    def _drained_slots(
        self, operator: KeyedOperator, state: StateId, time: EpochTime
    ) -> npt.NDArray[integer]:
        """Return the key groups for which a slot of two-phase windows has only expired panes."""
        role = operator.two_phase
        if role is None or role.slot is None or time.slots is None:
            return _NONE
        drained = time.slots.is_drained(role.slot, time.closed)
        return np.flatnonzero(drained & ~self._log.chains.is_empty(state))

    def _may_snapshot(
        self,
        epoch: int,
        own: ComponentView,
        transfers: Iterable[Transfer],
        places: Sequence[Place],
    ) -> npt.NDArray[integer]:
        """Return the key groups that may get a snapshot: neither suspended nor migrating.

        Warming of a copy would have to restart from a newer snapshot, and a snapshot needs all
        entries of a key group whose state is still to come. A lane's snapshots are one
        more file, for which object stores charge: so every other lane writes some in an epoch, the
        others in the next one, and none does beside a manifest.
        """
        # A manifest in every other epoch would leave the same lanes without snapshots for ever.
        if self._log.manifest_is_due and self._log.manifest_interval > 2:
            return _NONE
        moving = {transfer.key_group for transfer in transfers} | own.suspended | own.load
        writes = _places_of_key_groups(own.assignment, places) % 2 == epoch % 2
        return np.flatnonzero(writes & ~key_group_mask(moving, self.num_key_groups))
