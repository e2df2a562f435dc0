"""Regrouping a run: what it would take, and what is asked for because of what rows do."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np

from godwit.epoch.outcomes import state_bytes
from godwit.epoch.regrouping import RegroupingPlan, plan_regrouping
from godwit.migration import Bounds, Regrouping
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.dataflow.compiled import CompiledFlow
    from godwit.epoch.fusing import Fusing, Fusion
    from godwit.migration import EpochOutcome
    from godwit.spark.conducting import Conducting
    from godwit.state.commit_log import CommitLog
    from godwit.state.records import StateId

__all__ = ["MeasuredFusion", "planned_regrouping", "regrouping_of"]


def planned_regrouping(
    flow: CompiledFlow,
    components: Mapping[str, Iterable[str]],
    *,
    conducting: Conducting,
    log: CommitLog,
) -> RegroupingPlan:
    """Say what it would take to regroup components, as things stand."""
    with conducting.turn() as conductor:
        flow = flow.under(conductor.plan)
        assignments = {name: c.assignment for name, c in conductor.view.components.items()}

    def sizes(states: tuple[StateId, ...]) -> dict[int, int]:
        with log.lock:
            known = state_bytes(states, log.chains)
        return {g: int(known[g]) for g in np.flatnonzero(known).tolist()}

    return plan_regrouping(flow, components, assignments=assignments, state_bytes=sizes)


def regrouping_of(plan: RegroupingPlan, bounds: Bounds, reason: str = "") -> Regrouping:
    """Make of a plan what the conductor is asked for."""
    return Regrouping(
        id=f"regroup-{uuid.uuid4().hex[:8]}",
        stages=plan.stages,
        components=plan.components,
        reason=reason,
        bounds=bounds,
    )


class MeasuredFusion:
    """Fuses operators of a run, and lets them part, by what they send each other.

    Parameters
    ----------
    fusing, settings
        Decides, and by what.
    conducting, log
        Of the run.
    """

    def __init__(
        self, fusing: Fusing, settings: Fusion, *, conducting: Conducting, log: CommitLog
    ) -> None:
        self._fusing, self._settings = fusing, settings
        self._conducting, self._log = conducting, log

    def leave_alone(self, operators: Iterable[str]) -> None:
        """Decide nothing any more about operators that somebody has named."""
        self._fusing.leave_alone(set(operators))

    def observe(self, outcome: EpochOutcome, flow: CompiledFlow) -> None:
        """Take the outcome of an epoch; ask for what is worth it."""
        wanted = self._fusing.observe(outcome, flow)
        if wanted is None:
            return
        try:
            plan = planned_regrouping(
                flow, wanted.components, conducting=self._conducting, log=self._log
            )
            moving = sum(part.state_bytes for part in plan.moving)
            if wanted.saved_bytes and moving > self._settings.payback_epochs * wanted.saved_bytes:
                return  # the next decisions see whether there is less to move, or more to save
            with self._conducting.turn() as conductor:
                conductor.regroup(regrouping_of(plan, Bounds(), wanted.reason))
        except GodwitError:
            return  # somebody regroups by hand just now, or has since
