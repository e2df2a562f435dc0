"""Policies about a run's operators: components, layouts of windows, and shared panes."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.control.windows import ChooseWindowState
from godwit.engine.outcomes import state_bytes
from godwit.engine.policies import Regroup, Repartition
from godwit.engine.regrouping import plan_from_present, to_regrouping
from godwit.migration.strategy import Bounds
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import GodwitError
from godwit.operators.hot_key_orders import SpreadKeyOver, divide_key
from godwit.runtime.threads import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.control.policy import AdaptationPolicy, PolicyLoop
    from godwit.engine.policies import FlowEpoch, Proposal
    from godwit.engine.regrouping import RegroupingPlan
    from godwit.library.windows.sharing import PaneMeter
    from godwit.migration.coordinator import Coordinator
    from godwit.operators.hot_key_orders import SpreadOrders
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
        policies: Sequence[AdaptationPolicy[FlowEpoch]],
        *,
        loop: PolicyLoop,  # which decides on proposals, also on the controller's
        coordinator: Coordinator,
        log: CommitLog,
        meters: Mapping[str, PaneMeter],  # operator → the way that its windows go
        # operator → how its hot keys are spread
        spreading: Mapping[str, SpreadOrders] | None = None,
        respects: bool = True,  # whether manual changes matter to a policy or to the controller
    ) -> None:
        self._flow, self._layout_meters, self._hot_key_policies = flow, meters, spreading or {}
        self._coordinator, self._log = coordinator, log
        self._policies, self._loop, self._respects_overrides = policies, loop, respects
        self._own_regrouping = ""  # id of a policy's regrouping
        self._manual_regrouping: tuple[str, Sequence[str]] = (
            "",
            (),
        )  # a user's regrouping, and its changes
        self._plan: RegroupingPlan | None = None
        self._repartitioning: Proposal | None = None
        self._lock = threading.Lock()
        self._guard = Guard("deciding on components", coordinator.background_failed)

    @contextmanager
    def manual_change(self, changes: Iterable[str]) -> Iterator[Callable[..., None]]:
        """Context for changes (texts of `ManualChange`) by a user, in which no policy acts.

        Call the yielded function once they are made, or with the id of their regrouping once it is
        requested: then they are left alone for a while. A regrouping by a policy is cancelled where
        components are to change.
        """
        changes = tuple(changes)

        def record(regrouping: str = "") -> None:
            """Record the changes; the override starts again while their regrouping continues."""
            if regrouping:
                self._manual_regrouping = regrouping, changes
            if self._respects_overrides:
                self._loop.overrides.record(changes, time.time())

        with self._lock:
            regroups = any(ManualChange.COMPONENTS.name_in(change) for change in changes)
            with self._coordinator.locked() as coordinator:
                if (
                    regroups
                    and self._own_regrouping
                    and coordinator.ended_regrouping(self._own_regrouping) is None
                ):
                    coordinator.cancel(self._own_regrouping, "superseded by a manual regrouping")
            yield record

    def observe(self, epoch: FlowEpoch) -> None:
        """Pass a committed epoch to the policies.

        Errors of a policy are reported, not raised: the epoch is committed, and has to be
        delivered.
        """
        if self._policies:
            self._guard(self._run_policies, epoch)

    def _run_policies(self, epoch: FlowEpoch) -> None:
        """Pass an epoch to the policies, and carry out their proposals."""
        with self._lock:
            now_s, self._flow = epoch.at_s, epoch.flow
            regrouping, changes = self._manual_regrouping
            with self._coordinator.locked() as coordinator:
                view = coordinator.view
                speeds = [speed for speed in coordinator.copies_bytes_per_s if speed]
                ongoing = regrouping and coordinator.ended_regrouping(regrouping) is None
            if self._respects_overrides:
                self._loop.overrides.detect(view, now_s)
                if ongoing:
                    self._loop.overrides.record_ongoing(changes, now_s)
            if not ongoing:
                self._manual_regrouping = "", ()
            measured = replace(epoch, copies_bytes_per_s=max(speeds, default=None))
            for policy in self._policies:
                policy.observe(measured)
            self._loop.step(self._policies, self, now_s)

    def take_repartitioning(self) -> Proposal | None:
        """Return and clear the decided change of an operator's columns, if there is one."""
        proposal, self._repartitioning = self._repartitioning, None
        return proposal

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
            self._layout_meters[change.operator].duplicated = change.duplicated
            self._coordinator.announce(
                events.WindowStateChosen,
                operator=change.operator,
                duplicated=change.duplicated,
                reason=proposal.reason,
                numbers=dict(proposal.numbers),
            )
            return True
        if isinstance(change, SpreadKeyOver):
            return divide_key(
                self._hot_key_policies,
                change,
                announce=self._coordinator.announce,
                reason=proposal.reason,
                numbers=proposal.numbers,
            )
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
        self._own_regrouping = asked.id
        return True
