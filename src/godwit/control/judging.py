"""Verdicts on scaling decisions: their effect compared with the predicted one.

A decision expects a figure, such as a latency.  Once its executors work and the stream is steady
for two periods, the measured figure is compared.  More executors that brought less than a part of
the expected gain, while the target is still missed, did not help: no executor is requested again
until the situation has changed, by its arrival rate or by the executors there are.  A model that is
wrong therefore costs one decision and not one every period.

Moves of key groups expect a load distance.  Where they ended it is measured by the time for which
lanes were busy over one period, and not by the model that the plan was made with.  The result is
reported as an event; the next plan decides how to react, from newer measurements.

Source: Floratou et al., "Dhalion: self-regulating stream processing in Heron" (2017), §4: cures
that did not help are blacklisted for the symptoms that they were to cure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from godwit.control.cost_benefit import CERTAIN
from godwit.control.latency_model import why_no_faster
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from godwit.control.interfaces import MeasuredProblem
    from godwit.control.planning import Planned
    from godwit.control.policy import Announce
    from godwit.control.scaling import WantedExecutors
    from godwit.control.situation import ScalingSituation
    from godwit.control.statistics import PeriodStatistics

_MIN_GAIN_SHARE = 0.25
"""Min. share of the expected gain for a scale-out to have helped; and the max. share by which the
measured figure may exceed the expected one after a scale-in."""
_SAME_RATE_SHARE = 0.25
"""Max. relative difference of arrival rates within one situation."""
_RISEN_FACTOR = 1.1
"""Factor over a decision's arrival rate above which the decision is not judged by its rate."""
_MAX_PERIODS = 10
"""Number of periods after which a decision is no longer judged."""


@dataclass(slots=True, kw_only=True)
class _Decided:
    """A decision that has no verdict yet."""

    kind: Literal["out", "in"]
    before: int  # executors
    wanted: int
    before_figure: float  # what it was to change: measured, or predicted where the load was lower
    expected: float
    target: float
    arrival_per_s: float
    age: int = 0  # periods since it was made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ineffective:
    """A situation in which more executors did not help."""

    executors: int  # that there were in the end
    arrival_per_s: float
    reason: str


class Judge:
    """Compares the predicted effect of scaling decisions with the measured one."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._judged_decision: _Decided | None = None
        self._ineffective_decision: _Ineffective | None = None

    def decided(
        self,
        kind: Literal["out", "in"],
        before: int,
        executors: int,
        wanted: WantedExecutors,
        situation: ScalingSituation,
    ) -> None:
        """Record a scaling decision to judge later by its effect, if its model predicted one.

        `before`, `executors`: numbers of executors before and after.
        """
        self._stop_judging("another decision was made")
        expected, figure_before = wanted.expects(executors), wanted.expects(before)
        if expected is None or figure_before is None or not math.isfinite(expected):
            return
        if not math.isfinite(figure_before):
            figure_before = wanted.measured or math.inf
        self._judged_decision = _Decided(
            kind=kind,
            before=before,
            wanted=executors,
            before_figure=figure_before,
            expected=expected,
            target=wanted.target,
            arrival_per_s=situation.arrival_per_s,
        )

    def recall(self, event: events.Event) -> None:
        """Restore the verdict of an earlier run from its event; other events are ignored."""
        if isinstance(event, events.DecisionJudged):
            self._ineffective_decision = None
            if event.verdict == "no help":
                self._ineffective_decision = _Ineffective(
                    executors=event.wanted, arrival_per_s=event.arrival_per_s, reason=event.reason
                )

    def judge_if_steady(
        self, situation: ScalingSituation, wanted: WantedExecutors, *, steady: bool
    ) -> None:
        """Judge the last scaling decision if the stream is steady again; called once a period.

        Stops waiting if it is not for long, or the arrival rate has changed. `wanted`: the scaling
        model's present answer.
        """
        ineffective = self._ineffective_decision
        if ineffective is not None and (
            _rates_differ(ineffective.arrival_per_s, situation.arrival_per_s)
            or situation.executors < ineffective.executors
        ):
            self._ineffective_decision = None
        decision = self._judged_decision
        if decision is None:
            return
        decision.age += 1
        # Before that, a little more load may be noise that passes.
        at_rest = steady and situation.executors == decision.wanted
        risen = at_rest and situation.arrival_per_s > _RISEN_FACTOR * decision.arrival_per_s
        if risen or _rates_differ(decision.arrival_per_s, situation.arrival_per_s):
            self._stop_judging("the arrival rate has changed")
        elif decision.age > _MAX_PERIODS:
            self._stop_judging(f"it did not stabilize within {_MAX_PERIODS} periods")
        elif at_rest and wanted.measured is not None:
            self._announce_result(decision, wanted.measured, situation)

    def _announce_result(
        self, decision: _Decided, measured: float, situation: ScalingSituation
    ) -> None:
        """Announce whether a decision helped; if not, it is not repeated in the same situation."""
        gain, expected_gain = (
            decision.before_figure - measured,
            decision.before_figure - decision.expected,
        )
        is_met = measured <= decision.target
        if decision.kind == "in":
            has_helped = is_met or measured <= decision.expected * (1 + _MIN_GAIN_SHARE)
        else:
            has_helped = is_met or gain >= _MIN_GAIN_SHARE * expected_gain
        self._judged_decision = None
        reason = "the target is met" if is_met else "the target is missed"
        if not has_helped and decision.kind == "out":
            bottleneck = why_no_faster(situation, situation.executors)
            reason = (
                f"{decision.wanted} executors gave {measured:.3g}, but {decision.expected:.3g} "
                "was expected; no more are requested until the situation changes"
            ) + (f"; {bottleneck}" if bottleneck else "")
            self._ineffective_decision = _Ineffective(
                executors=decision.wanted, arrival_per_s=decision.arrival_per_s, reason=reason
            )
        self._announce_verdict(decision, "helped" if has_helped else "no help", reason, measured)

    def _stop_judging(self, reason: str) -> None:
        """Give up judging the effect of a decision, and announce the reason."""
        decision, self._judged_decision = self._judged_decision, None
        if decision is not None:
            self._announce_verdict(decision, "overtaken", reason, None)

    def _announce_verdict(
        self,
        decision: _Decided,
        verdict: Literal["helped", "no help", "overtaken"],
        reason: str,
        measured: float | None,
    ) -> None:
        """Announce the verdict on a scaling decision; `measured`: the current figure, if known."""
        self._announce(
            events.DecisionJudged,
            before=decision.before,
            wanted=decision.wanted,
            verdict=verdict,
            expected=decision.expected,
            measured=measured,
            target=decision.target,
            arrival_per_s=decision.arrival_per_s,
            reason=reason,
        )

    def no_help_reason(self) -> str:
        """Return the reason why more executors would not help; empty if they might."""
        return "" if self._ineffective_decision is None else self._ineffective_decision.reason


def _rates_differ(before: float, now: float) -> bool:
    """Return whether two arrival rates differ so much that a verdict no longer applies."""
    return abs(now - before) > _SAME_RATE_SHARE * max(before, now)


@dataclass(slots=True, kw_only=True)
class _Rebalanced:
    """Moves that have no verdict yet."""

    executors: frozenset[str]  # that there were
    before: float  # load distances, as shares of the mean
    expected: float
    age: int = 0  # periods since they were decided


class BalanceJudge:
    """Compares the predicted load distances of moves of key groups with the measured ones."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._judged_decision: dict[tuple[str, ...], _Rebalanced] = {}

    def decided(self, plan: Planned) -> None:
        """Record moves that have begun, to judge later by their effect."""
        components = plan.measured.components
        self._stop_judging(components, "other moves were decided on")
        self._judged_decision[components] = _Rebalanced(
            executors=frozenset(plan.measured.problem.executors),
            before=plan.selected.distance_before,
            expected=plan.selected.distance_after,
        )

    def abandoned(self, component: str) -> None:
        """Drop the moves of a component that were abandoned; another event reports them."""
        self._judged_decision = {
            group: decision
            for group, decision in self._judged_decision.items()
            if component not in group
        }

    def judge_ended(
        self, planned: Sequence[Planned], period: PeriodStatistics, under_way: AbstractSet[str]
    ) -> None:
        """Judge the moves that ended before this period began; called once a period.

        `under_way`: components whose moves have not ended.
        """
        problems = {plan.measured.components: plan.measured for plan in planned}
        for components, decision in list(self._judged_decision.items()):
            decision.age += 1
            measured = problems.get(components)
            if measured is None or decision.executors != set(measured.problem.executors):
                self._stop_judging(components, "the executors have changed")
            elif decision.age > _MAX_PERIODS:
                self._stop_judging(
                    components, f"they did not stabilize within {_MAX_PERIODS} periods"
                )
            elif period.settled and under_way.isdisjoint(components):
                distance_and_error = _busy_distance(measured, period)
                if distance_and_error is not None:
                    self._announce_result(components, decision, *distance_and_error)

    def _announce_result(
        self, components: tuple[str, ...], decision: _Rebalanced, measured: float, error: float
    ) -> None:
        """Announce whether the load of components became as balanced as the plan predicted.

        `measured`, `error`: load distance now, and its standard error.
        """
        due = max(decision.expected, CERTAIN * error)
        gained = decision.before - measured >= _MIN_GAIN_SHARE * (
            decision.before - decision.expected
        )
        helped = measured <= due or gained
        reason = "the load is as balanced as expected"
        if measured > due:
            reason = "key groups cost more or less on their new executors than expected"
        self._announce_verdict(
            components, decision, "helped" if helped else "no help", reason, measured
        )

    def _stop_judging(self, components: tuple[str, ...], reason: str) -> None:
        """Give up judging the effect of moves, and announce the reason."""
        decision = self._judged_decision.get(components)
        if decision is not None:
            self._announce_verdict(components, decision, "overtaken", reason, None)

    def _announce_verdict(
        self,
        components: tuple[str, ...],
        decision: _Rebalanced,
        verdict: Literal["helped", "no help", "overtaken"],
        reason: str,
        measured: float | None,
    ) -> None:
        """Announce the verdict on the moves of components; `measured`: load distance, if known."""
        del self._judged_decision[components]
        self._announce(
            events.RebalancingJudged,
            components=components,
            verdict=verdict,
            before=decision.before,
            expected=decision.expected,
            measured=measured,
            reason=reason,
        )


def _busy_distance(
    measured: MeasuredProblem, period: PeriodStatistics
) -> tuple[float, float] | None:
    """Return the load distance by lanes' busy time, and its error, as shares of the mean.

    ``None`` in a period without load, or if another resource is the bottleneck.
    """
    problem = measured.problem
    if problem.resources[problem.bottleneck] != "time":
        return None
    number = {name: position for position, name in enumerate(problem.executors)}
    busy_s, variance = np.zeros((2, problem.num_executors))
    for name in measured.components:
        part = period.components.get(name)
        if part is None or not number.keys() >= set(part.by_assignment[0].assignment.executors):
            return None
        (span,) = part.by_assignment
        owner = np.array([number[e] for e in span.assignment.executors])[
            span.assignment.executor_of
        ]
        busy_s += np.bincount(owner, span.busy_s, len(busy_s))
        counted = span.busy_s**2 / np.maximum(span.rows, 1.0)
        variance += np.bincount(owner, counted, len(busy_s))
    standard_s = busy_s * problem.speed / problem.cores
    mean = float(standard_s.sum() / problem.speed[problem.available].sum())
    if not mean > 0:
        return None
    index = (busy_s / problem.cores)[problem.available]
    error = float(np.sqrt((variance / problem.cores**2)[problem.available].max()))
    return float(np.abs(index - mean).max()) / mean, error / mean
