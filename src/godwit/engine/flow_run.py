"""A flow that runs, on a cluster or in one process, for those that look at it: `FlowRun`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.engine.outcomes import state_bytes
from godwit.model import events
from godwit.plan.explain import UserNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from godwit.engine.flow_epochs import FlowEpochs
    from godwit.engine.source_positions import SourcePositions
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

    def background_failed(self, what: str, error: str) -> None:
        """Announce, as an event, that background work `what` has failed with `error`."""
        self.coordinator.background_failed(what, error)

    def state_bytes(self, component: str) -> npt.NDArray[np.int64]:
        """Return the bytes of state of each key group of a component, by its number."""
        with self.coordinator.locked() as coordinator:
            states = coordinator.copies.states(component)
        with self.epochs.log.lock:
            return state_bytes(states, self.epochs.log.chains)


def announce_problems(positions: SourcePositions, run: FlowRun) -> None:
    """Let problems of a run's sources become events: failed calls, reports, loops that pause."""
    positions.on_failure = run.background_failed
    positions.on_pause = lambda loop, rounds, rows: run.coordinator.announce(
        events.FeedbackPaused, loop=loop, rounds=rounds, rows=rows
    )
    positions.on_report = lambda source, message: run.coordinator.announce(
        events.SourceReported, source=source, message=message
    )
