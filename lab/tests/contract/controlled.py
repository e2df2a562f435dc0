"""The realization in one process, with a controller that decides while a scenario is played.

Loads are what they would be if every row took a millisecond, and every epoch a twentieth of a
second, so that decisions depend on the scenario alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.contract.one_process import OneProcess
from tests.support.controls import control_of

from godwit.control.loop import Controller
from godwit.engine.policies import CommittedEpoch, topology_of
from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.contract.scenario import Policy

    from godwit.migration import Bounds, Strategy
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView
    from godwit.model.assignment import Assignment

__all__ = ["Controlled"]

_EPOCH_S = 0.05


class Controlled(OneProcess):
    """See `tests.contract.one_process.OneProcess`; `settings` are the controller's."""

    def __init__(
        self, directory: Path, *, deep: bool, policy: Policy, control: Mapping[str, Any]
    ) -> None:
        super().__init__(directory, deep=deep, policy=policy)
        given: dict[str, Any] = {
            "planner": "flux",
            "period": f"{3 * _EPOCH_S} seconds",
            "min_epochs": 2,
            "lanes_every": f"{_EPOCH_S} seconds",
            "max_load_distance": 0.05,
            "respect": f"{2 * _EPOCH_S} seconds",
            "time_limit": None,
        }
        self._control = control_of(**(given | dict(control)))
        self._now_s = 0.0

    def start(self, executors: Mapping[str, int]) -> None:
        """See `Realization.start`; a controller that restarts is told of what was announced."""
        super().start(executors)
        clock: Any = SimpleNamespace(now_s=lambda: self._now_s)
        self.controller = Controller(
            self._control,
            topology=topology_of(self.flow),
            migrations=self.coordinator,
            clock=clock,
            past=self.events,
        )

    def committed(
        self, outcome: EpochOutcome, component_views: Mapping[str, ComponentView]
    ) -> None:
        """Let the controller know, and decide."""
        self._now_s += _EPOCH_S
        loads = {
            name: replace(load, busy_ms=load.rows.astype(np.float64))
            for name, load in outcome.loads.items()
        }
        self.controller.observe(
            CommittedEpoch(
                outcome=replace(outcome, loads=loads),
                component_views=component_views,
                took_s=_EPOCH_S,
            )
        )
        self.controller.step()

    def migrate(
        self, component: str, target: Assignment, strategy: Strategy, bounds: Bounds
    ) -> str:
        """See `Realization.migrate`; what someone wants goes before what the controller wants."""
        under_way = self.view.components[component].migration
        if under_way is not None and under_way.startswith("control"):
            with suppress(MigrationError):
                self.coordinator.cancel(under_way, "someone wants something else")
        return super().migrate(component, target, strategy, bounds)
