"""Creation of a query's controller and policies by the options of its start.

The entry point ``default`` of the group ``godwit.controllers`` (`godwit.runtime.entry_points`). One
`PolicyLoop` decides for the controller and for the policies about operators.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from godwit.control.adaptation import Adaptation
from godwit.control.fusing import Fusing, by_attributes
from godwit.control.operators import OperatorPolicies
from godwit.control.placing import ComparePlacing, place_as_measured, place_by_attributes
from godwit.control.policy import ManualOverrides, PolicyLoop
from godwit.control.spreading import SpreadHotKeys, spreading_of
from godwit.control.thread import ControllerThread, last_memory
from godwit.control.windows import ExchangeCosts, SharePanes, SplitOrCombine, splitting_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from godwit.control.policy import AdaptationPolicy
    from godwit.control.settings import Control
    from godwit.engine.cluster import ExecutorPool
    from godwit.engine.flow_epochs import FlowEpochs
    from godwit.engine.policies import FlowEpoch
    from godwit.library.windows.sharing import PaneMeter
    from godwit.migration.coordinator import Coordinator
    from godwit.model.events import Event
    from godwit.plan.compiled import CompiledFlow
    from godwit.runtime.ports import RunController
    from godwit.runtime.settings import Options

_EXCHANGE = ExchangeCosts(byte_ms=15 / 2**20, lane_ms=15.0)
"""Costs that Spark adds to what lanes measure (docs/design/windows-and-event-time.md)."""


class Opener:
    """Creates the controller and the policies that the options of a start enable."""

    def __init__(self, options: Options) -> None:
        self._control = cast("Control | None", options.control)
        self._adaptation = cast("Adaptation", options.adaptation or Adaptation())
        self._stated_members = frozenset(
            n for members in options.components.values() for n in members
        )

    def check(self, flow: CompiledFlow) -> None:
        """Raise `InvalidFlowError` if a setting has nothing to decide in a flow."""
        splitting_of(flow, self._adaptation.splitting)
        spreading_of(flow, self._adaptation.spreading)

    def longest_epoch_s(self, trigger_s: float) -> float | None:
        """Return the max. time in seconds that an epoch over own sources should take."""
        return None if self._control is None else self._control.longest_epoch_s(trigger_s)

    def needs_past(self, flow: CompiledFlow) -> bool:
        """Return whether controller or policies continue from events of earlier runs."""
        adapting = self._adaptation
        return bool(
            self._control
            or adapting.fusion
            or splitting_of(flow, adapting.splitting)
            or adapting.spreading
        )

    def place(
        self,
        flow: CompiledFlow,
        free: frozenset[str],
        *,
        lanes: int,
        measured: Callable[[], Sequence[Event]],
    ) -> list[dict[str, Any]]:
        """Choose the key columns that select operators' key groups, if options enable it."""
        fusion = self._adaptation.fusion
        if fusion is None:
            return []
        attributes = fusion.by == "attributes"
        compared = place_by_attributes(flow, free, fusion, lanes) if attributes else []
        return [*compared, *place_as_measured(flow, measured(), fusion.confirm)]

    def fused(self, flow: CompiledFlow, named: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return component → operators to fuse from the start; none of those that are `named`."""
        fusion = self._adaptation.fusion
        fuses = fusion is not None and fusion.by == "attributes"
        return by_attributes(flow, named) if fuses else {}

    def open(
        self,
        epochs: FlowEpochs[Any],
        *,
        coordinator: Coordinator,
        pool: ExecutorPool,
        state_bytes: Mapping[str, Mapping[int, int]],
        past: list[Event],
        former: RunController | None,
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None],
        trigger_s: float,
        limits_epochs: bool,
    ) -> tuple[ControllerThread | None, OperatorPolicies]:
        """Create the controller, if options enable one, and the policies."""
        controller: ControllerThread | None = None
        if self._control is not None:
            controller = ControllerThread(
                self._control,
                epochs.flow,
                coordinator=coordinator,
                pool=pool,
                state_bytes=state_bytes,
                past=past,
                memory=last_memory(epochs.log.storage) if former is None else former.memory,
                note=note,
                trigger_s=trigger_s,
                limits_epochs=limits_epochs,
                stated=self._stated_members,
            )
            loop = controller.policy_loop
        else:
            overrides = ManualOverrides(announce=coordinator.announce, stated=self._stated_members)
            for event in past:
                overrides.restore_from_event(event, time.time())
            loop = PolicyLoop(overrides, announce=coordinator.announce)
        sharing = cast("Mapping[str, PaneMeter]", epochs.times.sharing)
        spreading = epochs.times.spreading
        changing = self._policies_that_change(epochs, loop, coordinator)
        policies = OperatorPolicies(
            epochs.flow,
            [*([SharePanes(sharing)] if sharing else ()), *changing],
            loop=loop,
            coordinator=coordinator,
            log=epochs.log,
            meters=sharing,
            spreading=spreading,
            respects=controller is not None or bool(changing),
        )
        return controller, policies

    def _policies_that_change(
        self, epochs: FlowEpochs[Any], loop: PolicyLoop, coordinator: Coordinator
    ) -> list[AdaptationPolicy[FlowEpoch]]:
        """Create the policies that may change components, key columns or parts of hot keys."""
        flow, overrides, announce = epochs.flow, loop.overrides, coordinator.announce
        fusion = self._adaptation.fusion
        splitting = splitting_of(flow, self._adaptation.splitting)
        spreading = spreading_of(flow, self._adaptation.spreading)
        policies: list[AdaptationPolicy[FlowEpoch]] = []
        if spreading is not None:
            orders = epochs.times.spreading
            policies.append(SpreadHotKeys(orders, spreading, overrides=overrides))
        if splitting is not None:
            policies.append(
                SplitOrCombine(flow, splitting, _EXCHANGE, overrides=overrides, announce=announce)
            )
        if fusion is not None and fusion.by == "traffic":
            policies.append(Fusing(flow, fusion, overrides=overrides))
        if fusion is not None and (fusion.by == "traffic" or fusion.repartition):
            policies.append(ComparePlacing(flow, fusion, _EXCHANGE, announce=announce))
        return policies
