"""A flow that runs, on a cluster or in one process, for those that look at it: `FlowRun`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.engine.outcomes import state_bytes
from godwit.plan.explain import UserNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from godwit.engine.flow_epochs import FlowEpochs
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.state import ProtocolView
    from godwit.operators.hot_keys.orders import SpreadOrders
    from godwit.plan.compiled import CompiledFlow


class FlowRun:
    """Plan, protocol and state of a run; both may be replaced while it runs."""

    epochs: FlowEpochs[Any]
    coordinator: Coordinator

    @property
    def flow(self) -> CompiledFlow:
        """The flow, under its present physical plan."""
        return self.epochs.flow

    @property
    def names(self) -> UserNames:
        """Names of operators and components as users know them."""
        return UserNames(self.flow.operators)

    @property
    def view(self) -> ProtocolView:
        """State of the migration protocol: assignments, moves and waiting key groups."""
        return self.coordinator.view

    @property
    def spreading(self) -> Mapping[str, SpreadOrders]:
        """Operator → requests to divide its hot keys, for operators that allow it."""
        return self.epochs.times.spreading

    @property
    def is_due(self) -> bool:
        """True if windows, timers or loops have work now, for an epoch without input."""
        return self.epochs.is_due(self.view)

    def state_bytes(self, component: str) -> npt.NDArray[np.int64]:
        """Return the bytes of state of each key group of a component, by its number."""
        with self.coordinator.locked() as coordinator:
            states = coordinator.copies.states(component)
        with self.epochs.log.lock:
            return state_bytes(states, self.epochs.log.chains)
