"""Policies about a run's operators: what shares a component, and what windows share."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.control.policy import RESPECT_S, ManualOverrides, PolicyLoop
from godwit.control.windows import ChooseWindowState
from godwit.engine.changes import Regroup, Repartition
from godwit.engine.outcomes import state_bytes
from godwit.engine.regrouping import plan_from_present, to_regrouping
from godwit.migration.strategy import Bounds
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import GodwitError
from godwit.operators.hot_keys.orders import SpreadKeyOver
from godwit.runtime.threads import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.control.policy import AdaptationPolicy, Announce
    from godwit.engine.changes import Proposal
    from godwit.engine.committed import FlowEpoch
    from godwit.engine.regrouping import RegroupingPlan
    from godwit.engine.sharing import PaneMeter
    from godwit.migration.coordinator import Coordinator
    from godwit.model.events import Event
    from godwit.operators.hot_keys.orders import SpreadOrders
    from godwit.plan.compiled import CompiledFlow


_PAUSE_MS, _REWRITE_MS_PER_BYTE = 150.0, 1e-4
"""Milliseconds without epochs around a repartitioning, and to rewrite a byte of state."""


class OperatorPolicies:
    """Runs the policies about a run's operators, and carries out their proposals.

    Manual regroupings have priority: a step of a policy that is under way is cancelled, and no
    policy runs meanwhile.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        policies: Callable[[ManualOverrides, Announce], Sequence[AdaptationPolicy[FlowEpoch]]],
        *,
        coordinator: Coordinator,
        log: CommitLog,
        meters: Mapping[str, PaneMeter],  # operator → the way that its windows go
        # operator → how its hot keys are spread
        spreading: Mapping[str, SpreadOrders] | None = None,
        stated: Iterable[str] = (),  # operators that the options of the start name
        respect_s: float = RESPECT_S,
        past: Iterable[Event] = (),
    ) -> None:
        self._flow, self._meters, self._spreading = flow, meters, spreading or {}
        self._coordinator, self._log = coordinator, log
        self._overrides = ManualOverrides(respect_s, announce=coordinator.announce, stated=stated)
        for event in past:
            self._overrides.restore_from_event(event, time.time())
        self._policies = policies(self._overrides, coordinator.announce)
        self._loop = PolicyLoop(
            self._policies,
            actor=self,
            overrides=self._overrides,
            announce=self._coordinator.announce,
        )
        self._own = self._by_hand = ""  # ids of regroupings
        self._regrouped: tuple[str, ...] = ()  # what the one by hand was about
        self._plan: RegroupingPlan | None = None
        self._repartitioning: Proposal | None = None
        self._lock = threading.Lock()
        self._guard = Guard("deciding on components", coordinator.background_failed)

    @contextmanager
    def manual_regrouping(self, operators: Iterable[str]) -> Iterator[Callable[[str], None]]:
        """Context of a user's regrouping of operators, which policies then do not reverse.

        Call the yielded function with the regrouping's id. A policy's own regrouping is cancelled.
        """
        with self._lock:
            with self._coordinator.locked() as coordinator:
                if self._own and coordinator.ended_regrouping(self._own) is None:
                    coordinator.cancel(self._own, "superseded by a manual regrouping")
            self._own = self._by_hand = ""
            self._regrouped = tuple(map(ManualChange.COMPONENTS.of, operators))
            if self._policies:
                self._overrides.record(self._regrouped, time.time())
            yield self._record_manual

    def _record_manual(self, regrouping: str) -> None:
        """Record a user's regrouping, which policies do not reverse for a while."""
        self._by_hand = regrouping

    def observe(self, epoch: FlowEpoch) -> None:
        """Pass a committed epoch to the policies.

        Errors of a policy are reported, not raised: the epoch is committed, and has to be
        delivered.
        """
        self._guard(self._run_policies, epoch)

    def _run_policies(self, epoch: FlowEpoch) -> None:
        """Pass an epoch to the policies, and carry out their proposals."""
        with self._lock:
            now_s, self._flow = epoch.at_s, epoch.flow
            with self._coordinator.locked() as coordinator:
                speeds = [speed for speed in coordinator.copies_bytes_per_s if speed]
                if self._by_hand and coordinator.ended_regrouping(self._by_hand) is None:
                    self._overrides.record_ongoing(self._regrouped, now_s)
                else:
                    self._by_hand = ""
            self._loop.observe(replace(epoch, copies_bytes_per_s=max(speeds, default=None)))
            self._loop.step(now_s)

    def respect(self, operators: Iterable[str]) -> None:
        """Record that a user has chosen key columns of operators, so that policies keep them."""
        if self._policies:
            self._overrides.record(map(ManualChange.COMPONENTS.of, operators), time.time())

    def take_repartitioning(self) -> Proposal | None:
        """Return the decided change of an operator's columns, and clear it; ``None`` if none is."""
        proposal, self._repartitioning = self._repartitioning, None
        return proposal

    def divide_manually(self, change: SpreadKeyOver) -> bool:
        """Divide the rows of a hot key into other parts, as a user requested.

        ``False`` if that is impossible now.
        """
        with self._lock:
            if not self._divide_key(change, "asked for", {}):
                return False
            if self._policies:
                self._overrides.record([ManualChange.HOT_KEYS.of(change.operator)], time.time())
            return True

    def _divide_key(self, change: SpreadKeyOver, reason: str, numbers: Mapping[str, float]) -> bool:
        """Request a change of a key's parts, and announce it.

        ``False`` if that is impossible now.
        """
        orders = self._spreading[change.operator]
        if not orders.order(change.hash, change.key, change.grid):
            return False
        self._coordinator.announce(
            events.HotKeySpread,
            operator=change.operator,
            key=change.key,
            rows=change.grid.rows,
            columns=change.grid.columns,
            reason=reason,
            numbers=dict(numbers),
        )
        return True

    def cost(self, proposal: Proposal) -> float:
        """Return bytes that a regrouping moves, or milliseconds that a repartitioning pauses."""
        change, self._plan = proposal.change, None
        if isinstance(change, Repartition):
            return self._pause_ms(change.operator)
        if not isinstance(change, Regroup):
            return 0.0
        try:
            self._plan = plan_from_present(
                self._flow, change.components, coordinator=self._coordinator, log=self._log
            )
        except GodwitError:
            return 0.0  # it cannot be, which is found again when it is asked for
        return float(sum(part.state_bytes for part in self._plan.moving))

    def _pause_ms(self, operator: str) -> float:
        """Estimate the milliseconds that no epoch runs while an operator's state is rewritten."""
        parts = [o for o in self._flow.operators if operator in (o.name, o.part_of)]
        with self._log.lock:
            sizes = [state_bytes(part.states, self._log.chains).sum() for part in parts]
        return _PAUSE_MS + _REWRITE_MS_PER_BYTE * float(sum(sizes))

    def act(self, proposal: Proposal) -> bool:
        """Begin a change and announce it; return ``False`` if it is not possible now."""
        change = proposal.change
        if isinstance(change, ChooseWindowState):
            self._meters[change.operator].duplicated = change.duplicated
            self._coordinator.announce(
                events.WindowStateChosen,
                operator=change.operator,
                duplicated=change.duplicated,
                reason=proposal.reason,
                numbers=dict(proposal.numbers),
            )
            return True
        if isinstance(change, SpreadKeyOver):
            return self._divide_key(change, proposal.reason, proposal.numbers)
        if isinstance(change, Repartition):
            self._repartitioning = proposal
            return True
        if self._plan is None:
            return False
        asked = to_regrouping(self._plan, Bounds(), proposal.reason)
        try:
            with self._coordinator.locked() as coordinator:
                if coordinator.plan != change.plan:
                    return False  # decided on components that are others by now
                coordinator.regroup(asked)
        except GodwitError:
            return False  # another regrouping is under way
        self._own = asked.id
        return True
