"""Regrouping a run: what it would take, and what is asked for because of what was measured."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt.deciding import EpochSeen
from godwit.cluster.spark.run.threads import Guard
from godwit.engine.outcomes import state_bytes
from godwit.engine.regrouping import RegroupingPlan, plan_regrouping
from godwit.migration import Bounds, Regrouping
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from godwit.adapt.deciding import Decider, Wanted
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import StateId
    from godwit.engine.shared_conductor import SharedConductor
    from godwit.migration import EpochOutcome, EpochPlan
    from godwit.plan.compiled import CompiledFlow

__all__ = ["Deciding", "planned_regrouping", "regrouping_of"]


def planned_regrouping(
    flow: CompiledFlow,
    components: Mapping[str, Iterable[str]],
    *,
    conducting: SharedConductor,
    log: CommitLog,
) -> RegroupingPlan:
    """Say what it would take to regroup components, as things stand."""
    with conducting.locked() as conductor:
        flow = flow.under(conductor.plan)
        standing = conductor.view.components

    def sizes(states: tuple[StateId, ...]) -> dict[int, int]:
        with log.lock:
            known = state_bytes(states, log.chains)
        return {g: int(known[g]) for g in np.flatnonzero(known).tolist()}

    return plan_regrouping(flow, components, components=standing, state_bytes=sizes)


def regrouping_of(plan: RegroupingPlan, bounds: Bounds, reason: str = "") -> Regrouping:
    """Make of a plan what the conductor is asked for."""
    return Regrouping(
        id=f"regroup-{uuid.uuid4().hex[:8]}",
        stages=plan.stages,
        components=plan.components,
        reason=reason,
        bounds=bounds,
    )


class Deciding:
    """Asks the conductor for what a run's deciders want, and tells what they say.

    Whoever regroups by hand goes first: what this has asked for and is under way gives way, and
    nothing is asked meanwhile.

    deciders: In the order in which they are asked; one regrouping goes on at a time.
    """

    def __init__(
        self, deciders: Sequence[Decider], *, conducting: SharedConductor, log: CommitLog
    ) -> None:
        self._deciders, self._conducting, self._log = deciders, conducting, log
        self._own = ""
        self._lock = threading.Lock()
        self._guard = Guard("deciding on components", conducting.background_failed)

    @contextmanager
    def by_hand(self, operators: Iterable[str]) -> Iterator[None]:
        """Give way to somebody who regroups operators, and decide nothing about them any more."""
        with self._lock:
            named = set(operators)
            for decider in self._deciders:
                decider.leave_alone(named)
            with self._conducting.locked() as conductor:
                if self._own and conductor.ended_regrouping(self._own) is None:
                    conductor.cancel(self._own, "somebody regroups by hand")
            self._own = ""
            yield

    def observe(
        self, outcome: EpochOutcome, flow: CompiledFlow, plans: Mapping[str, EpochPlan]
    ) -> None:
        """Take a committed epoch, the flow and the plans that it ran under; ask for what is due.

        What a decider raises is told: the epoch is committed, and still to be delivered.
        """
        self._guard(self._observe, outcome, flow, plans)

    def _observe(
        self, outcome: EpochOutcome, flow: CompiledFlow, plans: Mapping[str, EpochPlan]
    ) -> None:
        with self._lock:
            with self._conducting.locked() as conductor:
                speeds = [speed for speed in conductor.copies_bytes_per_s if speed]
            seen = EpochSeen(
                outcome=outcome,
                flow=flow,
                plans=plans,
                copies_bytes_per_s=max(speeds, default=None),
            )
            for decider in self._deciders:
                verdict = decider.observe(seen)
                with self._conducting.locked() as conductor:
                    for kind, values in verdict.told:
                        conductor.announce(kind, **values)
                if verdict.wanted is not None and self._ask(verdict.wanted, flow):
                    decider.settled(verdict.wanted)

    def _ask(self, wanted: Wanted, flow: CompiledFlow) -> bool:
        """Ask for a regrouping; whether that was answered."""
        try:
            plan = planned_regrouping(
                flow, wanted.components, conducting=self._conducting, log=self._log
            )
            if sum(part.state_bytes for part in plan.moving) > wanted.worth_bytes:
                return True  # the next decisions see whether there is less to move, or more to save
            asked = regrouping_of(plan, Bounds(), wanted.reason)
            with self._conducting.locked() as conductor:
                if conductor.plan != flow.physical_plan:
                    return False  # decided on components that are others by now
                conductor.regroup(asked)
        except GodwitError:
            return False  # another regrouping is under way
        self._own = asked.id
        return True
