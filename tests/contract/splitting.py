"""Windows whose form is decided while they run, in one process."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.contract.windows_apart import WindowsApart

from godwit.control.operators import OperatorPolicies
from godwit.control.policy import ManualOverrides, PolicyLoop
from godwit.control.windows import ExchangeCosts, SplitOrCombine, Splitting, layout_of
from godwit.engine.policies import FlowEpoch
from godwit.library.windows.two_phase import ConsolidatePart
from godwit.model.decision_events import ManualChange
from godwit.model.events import LayoutsCompared, RegroupingStarted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from godwit.control.planners.splitting import WindowLayout
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView

__all__ = ["Decided"]


class Decided(WindowsApart):
    """Windows that are split and combined as costs say; a controller asks for migrations."""

    migrations_by_hand = False

    def __init__(
        self,
        directory: Path,
        settings: Splitting,
        *,
        exchange: ExchangeCosts | None = None,
        **options: Any,
    ) -> None:
        self._splitting = settings
        self._exchange = ExchangeCosts() if exchange is None else exchange
        super().__init__(directory, **{"consolidate": "measured", **options})

    def start(self, executors: Mapping[str, int]) -> None:
        """Begin a run, with a policy of its own."""
        super().start(executors)
        announce = self.coordinator.announce
        overrides = ManualOverrides(announce=announce)
        policy = SplitOrCombine(
            self.flow, self._splitting, self._exchange, overrides=overrides, announce=announce
        )
        self.deciding = OperatorPolicies(
            self.flow,
            [policy],
            loop=PolicyLoop(overrides, announce=announce),
            meters={},
            coordinator=self.coordinator,
            log=self.log,
        )

    def committed(
        self, outcome: EpochOutcome, component_views: Mapping[str, ComponentView]
    ) -> None:
        """Let the policy see the epoch."""
        super().committed(outcome, component_views)
        epoch = FlowEpoch(
            outcome=self.seen(outcome),
            component_views=component_views,
            took_s=0.0,
            at_s=time.time(),
            flow=self.flow,
        )
        self.deciding.observe(epoch)

    def seen(self, outcome: EpochOutcome) -> EpochOutcome:
        """Give an epoch whose CPU time is the same on every machine: a millisecond a component."""
        loads = {
            name: replace(load, cpu_ms=np.full(len(load.rows), 1 / max(len(load.rows), 1)))
            for name, load in outcome.loads.items()
        }
        traffic = {name: replace(sent, cpu_ms=0.0) for name, sent in outcome.traffic.items()}
        return replace(outcome, loads=loads, traffic=traffic)

    def regroup(self, components: Mapping[str, tuple[str, ...]]) -> None:
        """Regroup by hand."""
        members = (name for group in components.values() for name in group)
        with self.deciding.manual_change(map(ManualChange.COMPONENTS.of, members)) as record:
            super().regroup(components)
            record()

    def form(self) -> WindowLayout | None:
        """Give the form of the next epoch."""
        part = self.flow.operator("w_windows")
        assert isinstance(part, ConsolidatePart)
        return layout_of(self.flow.with_plan(self.coordinator.plan), part)

    @property
    def compared(self) -> list[LayoutsCompared]:
        """Events about window layouts."""
        return [event for event in self.events if isinstance(event, LayoutsCompared)]

    @property
    def reasons(self) -> list[str]:
        """Reasons of regroupings that nobody asked for."""
        return [e.reason for e in self.events if isinstance(e, RegroupingStarted) and e.reason]
