"""Policies of one loop: observe → evaluate → decide → act.

A *policy* observes committed epochs and proposes changes, each with its reason, and with what it is
expected to gain and to cost.  How it measures, and how it prices, is its own.  `PolicyLoop` decides
and has an *actor* execute the decision, the same way for all:

1. Manual changes are respected (`ManualOverrides`).
2. A proposal stands until it is answered, or its policy takes it back: so a change that cannot be
   made now, since another one is under way, is made when it can.
3. A change that costs more than it gains is answered by not making it.  Then it must be confirmed
   again (`Hysteresis`), which sees whether there is less to pay, or more to gain.

Invariant: policies ask nothing of the world, so that equal epochs lead to equal decisions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import check_number

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from godwit.engine.policies import Proposal
    from godwit.migration.state import ProtocolView
    from godwit.plan.compiled import CompiledFlow

RESPECT_S = 60.0
"""Default time for which manual overrides are respected."""

Announce: TypeAlias = Callable[..., None]
"""Function of an event's kind and its values."""

Epoch_contra = TypeVar("Epoch_contra", contravariant=True)


class AdaptationPolicy(Protocol[Epoch_contra]):
    """Policy that measures and prices one kind of change."""

    def observe(self, epoch: Epoch_contra) -> None:
        """Add a committed epoch to the policy's measurements."""

    def propose(self, now_s: float) -> Iterable[Proposal]:
        """Yield the changes that measurements suggest, and earlier ones without an answer.

        Lazy: each proposal is decided and carried out before the next one is made.
        """

    def answered(self, proposal: Proposal) -> None:
        """Drop a proposal that was carried out, or rejected because it does not pay."""


class Actor(Protocol):
    """Executes the decisions of policies."""

    def cost(self, proposal: Proposal) -> float:
        """Return the current cost of a proposed change, in the unit of its gain."""

    def act(self, proposal: Proposal) -> bool:
        """Begin a change and announce it; return ``False`` if it is not possible now."""


class Hysteresis:
    """Rule that changes need consecutive confirming evaluations, and a cool-down after them."""

    def __init__(self, *, confirm: int = 1, rest_s: float = 0.0) -> None:
        self._num_confirmations, self._min_rest_s = confirm, rest_s
        self._proposals_in_a_row: dict[str, tuple[Hashable, int]] = {}
        self._last_change: dict[str, tuple[str, float]] = {}

    def is_confirmed(self, subject: str, change: Hashable) -> bool:
        """Count an evaluation; return whether enough consecutive ones gave the same change.

        A falsy change (``None``, an empty tuple) means no change, and resets the count.
        """
        before, times = self._proposals_in_a_row.pop(subject, (None, 0))
        if not change:
            return False
        times = times + 1 if before == change else 1
        self._proposals_in_a_row[subject] = change, times
        return times >= self._num_confirmations

    def record(self, subject: str, change: str, at_s: float) -> None:
        """Record that a change of a subject was made: its cool-down begins."""
        self.reset(subject)
        self._last_change[subject] = change, at_s

    def cooling_down(self, subject: str, now_s: float) -> str:
        """Return the last change of a subject during its cool-down; else empty."""
        change, at_s = self._last_change.get(subject, ("", -math.inf))
        return change if now_s - at_s < self._min_rest_s else ""

    def reset(self, subject: str) -> None:
        """Reset the confirmations of a subject's next change."""
        self._proposals_in_a_row.pop(subject, None)


class ManualOverrides:
    """Decisions by hand, and the times until which all policies of a query respect them.

    Problem: a user who migrates, drains, scales or regroups knows something that the statistics do
    not; a loop that took it back a period later would be at war with its owner.

    The rule: an override ends a stated time after the change was last under way.  Choices
    stated when the query starts, by its options or in the flow, are respected as long as it runs.

    Manual migrations and drains are detected from the coordinator's view.  It says which
    migrations were requested by a user, and counts those that have begun, so that none is too
    short to be noticed; a drain that the controller did not request is a manual one.

    Thread-safe: the controller's thread, epochs and users record and read at the same time.
    """

    def __init__(
        self,
        respect_s: float = RESPECT_S,
        *,
        announce: Announce,
        stated: Iterable[str] = (),  # operators that the start's options name
    ) -> None:
        self._override_s, self._announce = respect_s, announce
        self._stated_subjects = frozenset(stated)
        self._override_ends_s: dict[str, float] = {}  # manual change → end of its override
        self._manual_migrations_noted: Mapping[
            str, int
        ] = {}  # component → migrations by hand noted so far
        self._drained_executors: frozenset[str] = frozenset()
        self._lock = threading.RLock()

    def record(self, decisions: Iterable[str], now_s: float) -> None:
        """Record and announce decisions of a user, as texts of `ManualChange`."""
        until_s = now_s + self._override_s
        for name in map(str, decisions):
            self._override_ends_s[name] = until_s
            self._announce(events.ManualOverrideRespected, what=name, until_s=until_s)

    def record_ongoing(self, decisions: Iterable[str], now_s: float) -> None:
        """Record decisions made by hand that are still under way; announce new ones."""
        for name in decisions:
            with self._lock:
                if self.holds(name, now_s):
                    self._override_ends_s[name] = now_s + self._override_s
                else:
                    self.record([name], now_s)

    def detect(
        self, view: ProtocolView, now_s: float, *, own_draining: Collection[str] | None = None
    ) -> None:
        """Record migrations and drains that a user started since the last call.

        `own_draining`: executors that the controller drains; ``None``: drains are not looked at.
        """
        with self._lock:
            begun = view.begun_by_hand
            moved = {
                name for name in begun if begun[name] > self._manual_migrations_noted.get(name, 0)
            }
            moved.update(name for name, c in view.components.items() if c.by_hand)
            self._manual_migrations_noted = begun
            self.record_ongoing(map(ManualChange.MIGRATION.of, sorted(moved)), now_s)
        if own_draining is None:
            return
        drained = view.draining - set(own_draining)
        for executor in sorted(drained - self._drained_executors):
            until_s = now_s + self._override_s
            what = ManualChange.DRAINING.of(executor)
            self._announce(events.ManualOverrideRespected, what=what, until_s=until_s)
        self._drained_executors = drained

    def restore_from_event(self, event: events.Event, now_s: float) -> None:
        """Restore an override from an event of an earlier run; other events are ignored."""
        if isinstance(event, events.ManualOverrideRespected) and (
            ManualChange.DRAINING.name_in(event.what) is None
        ):
            self.restore({event.what: event.until_s}, now_s)

    def restore(self, until_s: Mapping[str, float], now_s: float) -> None:
        """Restore the overrides of an earlier run: decision → time until which it holds."""
        for what, then_s in until_s.items():
            most_s = min(then_s, now_s + self._override_s)
            self._override_ends_s[what] = max(self._override_ends_s.get(what, most_s), most_s)

    def holds(self, decision: str, now_s: float) -> bool:
        """Return whether the override of a decision, a text of `ManualChange`, is still valid."""
        stated = ManualChange.COMPONENTS.name_in(decision) in self._stated_subjects
        return stated or self._override_ends_s.get(decision, now_s) > now_s

    def operators(self, flow: CompiledFlow, now_s: float) -> frozenset[str]:
        """Return the operators of a flow whose components must not change."""
        valid = [what for what, until_s in list(self._override_ends_s.items()) if until_s > now_s]
        migrated = set(map(ManualChange.MIGRATION.name_in, valid))
        moved = (o.name for c in flow.components if c.name in migrated for o in c.operators)
        regrouped = filter(None, map(ManualChange.COMPONENTS.name_in, valid))
        return self._stated_subjects.union(moved, regrouped)

    def seconds_left(self, now_s: float) -> Mapping[str, float]:
        """Return decision made by hand → seconds for which its override is still valid."""
        return {what: t - now_s for what, t in list(self._override_ends_s.items()) if t > now_s}


def reversed_by_regrouping(flow: CompiledFlow, *operators: str) -> frozenset[str]:
    """Return the manual changes that other components or columns of operators would reverse.

    Those of their components, and migrations of these: to share a component, key groups move.
    """
    components = {flow.component_of(name).name for name in operators}
    return frozenset(
        (
            *map(ManualChange.COMPONENTS.of, operators),
            *map(ManualChange.MIGRATION.of, components),
        )
    )


class PolicyLoop:
    """The loop of a query over its policies: proposals are decided on and carried out.

    Policies are driven where their actor may act: those about operators between two epochs, the
    controller's on its thread.
    """

    def __init__(self, overrides: ManualOverrides, *, announce: Announce) -> None:
        self.overrides, self._announce = overrides, announce
        self.skipped: dict[str, str] = {}  # subject → why nothing was done about it

    def step(self, policies: Iterable[AdaptationPolicy[Any]], actor: Actor, now_s: float) -> None:
        """Decide on the policies' proposals; the actor carries out those that pay."""
        for policy in policies:
            for proposal in policy.propose(now_s):
                if self._carry_out_or_skip(proposal, actor, now_s):
                    policy.answered(proposal)

    def _carry_out_or_skip(self, proposal: Proposal, actor: Actor, now_s: float) -> bool:
        """Carry out a proposal, or skip it; return ``False`` if it must be decided again."""
        if proposal.change is None:
            self.announce_skipped(proposal.subject, proposal.reason, proposal.numbers)
            return True
        if any(self.overrides.holds(what, now_s) for what in proposal.reverses):
            self.announce_skipped(proposal.subject, "it was decided by hand", proposal.numbers)
            return True
        cost = max(proposal.cost, actor.cost(proposal))
        if cost > proposal.gain:
            numbers = {**proposal.numbers, "gain": proposal.gain, "cost": cost}
            self.announce_skipped(proposal.subject, "it costs more than it gains", numbers)
            return True
        acted = actor.act(proposal)
        if acted:
            self.skipped.pop(proposal.subject, None)
        return acted

    def announce_skipped(self, subject: str, reason: str, numbers: Mapping[str, float]) -> None:
        """Announce why a proposal about a subject is skipped, once per reason."""
        if self.skipped.get(subject) != reason:
            self.skipped[subject] = reason
            self._announce(
                events.DecisionSkipped, what=subject, reason=reason, numbers=dict(numbers)
            )


def check_epoch_settings(settings: Any) -> None:
    """Raise `InvalidFlowError` unless a policy's settings that count epochs are integers from 1."""
    for name in ("epochs", "confirm", "payback_epochs"):
        if not hasattr(settings, name):
            continue
        check_number(
            f"The setting {name} of gw.control.{type(settings).__name__}",
            getattr(settings, name),
            least=1,
            whole=True,
            error=InvalidFlowError,
        )
