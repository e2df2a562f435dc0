"""Tells lanes and warming jobs what they need: plans, chains and copies put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.checkpoint.chains import choose_snapshots
from godwit.engine.instructions import mask_of, operator_instruction, places_of, state_instruction
from godwit.engine.lane.messages import EpochInstruction
from godwit.migration import LossPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt
    from numpy import bool_, int64, integer

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.cluster import Executor
    from godwit.engine.lane.messages import OperatorInstruction, StateInstruction
    from godwit.engine.settings import LaneSettings
    from godwit.migration import Copies, EpochPlan, ProtocolView
    from godwit.operators.operator import KeyedOperator
    from godwit.operators.windows.moments import OperatorTime
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.lineage import Layouts

__all__ = ["Instructor"]

_NONE = np.empty(0, np.int64)


class Instructor:
    """Makes instructions of one run.

    Parameters
    ----------
    flow
        The compiled flow.
    log
        The checkpoint's commits; its chains are read under its lock.
    layouts
        Operator → how its states are read.
    settings
        As the user gave them.
    on_loss
        What becomes of key groups whose state is nowhere near.
    run_id
        The run; local stores belong to it.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        log: CommitLog,
        layouts: Layouts,
        settings: LaneSettings,
        *,
        on_loss: LossPolicy,
        run_id: str,
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
        """Where local stores lie, if the user said so."""
        return self._settings.local_dir

    def regrouped(self, flow: CompiledFlow) -> None:
        """Go on with the flow under another physical plan."""
        self._flow = flow

    def layout_of(self, state: StateId) -> EntryLayout:
        """How a state is read from the checkpoint."""
        return self._layouts[state.operator][0][state.state]

    def epoch(
        self,
        epoch: int,
        plans: Mapping[str, EpochPlan],
        *,
        view: ProtocolView,
        copies: Copies,
        executors: Mapping[str, Executor],
        times: Mapping[str, OperatorTime],
    ) -> EpochInstruction:
        """Tell the lanes of an epoch what they need; the caller holds the conductor."""
        places = places_of(plans, executors)
        told: dict[str, OperatorInstruction] = {}
        with self._log.lock:
            for component in self._flow.components:
                plan = plans[component.name]
                settled = self._settled(view, component.name, plan)
                wanted = ~mask_of(plan.suspended, self.num_key_groups)
                for operator in component.operators:
                    states = [
                        self._state(
                            state,
                            copies.held_by(plan.assignment, state),
                            wanted,
                            settled,
                            also=self._drained(operator, state, times[operator.name]),
                        )
                        for state in operator.states
                    ]
                    told[operator.name] = operator_instruction(
                        operator=operator.name,
                        level=component.level,
                        plan=plan,
                        places=places,
                        chains=self._log.chains,
                        states=states,
                        # What is over in an epoch is over in all key groups, or in none.
                        always_load=component.level < self._flow.levels
                        or bool(self._flow.fed_by(operator.name))
                        or self._loads
                        or operator.needs_state(times[operator.name]),
                        time=times[operator.name],
                    )
        return EpochInstruction(
            epoch=epoch,
            flow=self._log.flow,
            run_id=self.run_id,
            places=places,
            operators=tuple(told[operator.name] for operator in self._flow.operators),
            storage=self._log.storage,
            local_dir=self._settings.local_dir,
            inline_bytes=self._settings.inline_bytes,
            compression=self._settings.compression,
            hot_keys=self._settings.hot_keys,
        )

    def catching_up(
        self, state: StateId, floor: npt.NDArray[int64], key_groups: Iterable[int]
    ) -> tuple[StateInstruction, int]:
        """Tell what brings copies at `floor` to the committed version, and which that is."""
        with self._log.lock:
            told = self._state(state, floor, mask_of(key_groups, self.num_key_groups))
            return told, self._log.latest_epoch

    def _state(
        self,
        state: StateId,
        floor: npt.NDArray[int64],
        wanted: npt.NDArray[bool_],
        settled: npt.NDArray[integer] = _NONE,
        *,
        also: npt.NDArray[integer] = _NONE,
    ) -> StateInstruction:
        chosen = choose_snapshots(
            self._log.chains,
            state,
            settled,
            budget_bytes=self._settings.snapshot_budget_bytes,
            growth=self._settings.snapshot_growth,
        )
        return state_instruction(
            state=state,
            recorded_as=self._log.recorded_as(state),
            chains=self._log.chains,
            floor=floor,
            wanted=wanted,
            to_snapshot=list(dict.fromkeys([*chosen, *np.intersect1d(also, settled).tolist()])),
        )

    def _drained(
        self, operator: KeyedOperator, state: StateId, time: OperatorTime
    ) -> npt.NDArray[integer]:
        """Key groups of which a slot holds only panes that are gone: a snapshot empties it."""
        role = operator.two_phase
        if role is None or role.slot is None or time.slots is None:
            return _NONE
        drained = time.slots.drained(role.slot, time.closed)
        return np.flatnonzero(drained & ~self._log.chains.is_empty(state))

    def _settled(self, view: ProtocolView, component: str, plan: EpochPlan) -> npt.NDArray[integer]:
        """Key groups to take snapshots of: those that run here and are not on their way.

        A copy that is being warmed would have to start again from a newer snapshot.
        """
        transfers = view.components[component].transfers
        moving = {transfer.key_group for transfer in transfers} | plan.suspended
        return np.flatnonzero(~mask_of(moving, self.num_key_groups))
