"""Verdicts on scaling decisions: what came of them beside what they expected.

A decision expects a figure, such as a latency.  Once its executors work and the stream is steady
for two periods, what was measured is compared.  More executors that brought less than a part of the
expected gain, while the target is still missed, did not help: nobody is asked for again until the
situation is another one, by its arrival rate or by the executors there are.  A model that is wrong
therefore costs one decision and not one every period.

Source: Floratou et al., "Dhalion: self-regulating stream processing in Heron" (2017), §4: cures
that did not help are blacklisted for the symptoms that they were to cure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from godwit.adapt.latency_model import why_no_faster
from godwit.model import events

if TYPE_CHECKING:
    from godwit.adapt.policy import Announce
    from godwit.adapt.scaling import ScalingSituation, WantedExecutors

_PART = 0.25
"""Part of the expected gain from which on executors that came have helped; and by which what came
may exceed what was expected of executors that went."""
_SAME = 0.25
"""Share by which arrival rates may differ in one situation."""
_PATIENCE = 10
"""Periods after which a decision is judged no more."""


@dataclass(slots=True, kw_only=True)
class _Decided:
    """A decision that waits for its verdict."""

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
    """Compares what scaling decisions expected with what came."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._decided: _Decided | None = None
        self._ineffective: _Ineffective | None = None

    def decided(
        self,
        kind: Literal["out", "in"],
        before: int,
        executors: int,
        wanted: WantedExecutors,
        situation: ScalingSituation,
    ) -> None:
        """Record a decision, if its model said what it expects."""
        self._overtaken("another decision was made")
        expected, at_first = wanted.expects(executors), wanted.expects(before)
        if expected is None or at_first is None or not math.isfinite(expected):
            return
        if not math.isfinite(at_first):
            at_first = wanted.measured or math.inf
        self._decided = _Decided(
            kind=kind,
            before=before,
            wanted=executors,
            before_figure=at_first,
            expected=expected,
            target=wanted.target,
            arrival_per_s=situation.arrival_per_s,
        )

    def recall(self, event: events.Event) -> None:
        """Restore the judgement of an earlier run from its event; ignore other events."""
        if isinstance(event, events.DecisionJudged):
            self._ineffective = None
            if event.verdict == "no help":
                self._ineffective = _Ineffective(
                    executors=event.wanted, arrival_per_s=event.arrival_per_s, reason=event.reason
                )

    def look(self, situation: ScalingSituation, wanted: WantedExecutors, *, steady: bool) -> None:
        """Judge the last decision once the stream is steady again; called once a period."""
        known = self._ineffective
        if known is not None and (
            _differ(known.arrival_per_s, situation.arrival_per_s)
            or situation.executors < known.executors
        ):
            self._ineffective = None
        one = self._decided
        if one is None:
            return
        one.age += 1
        if _differ(one.arrival_per_s, situation.arrival_per_s):
            self._overtaken("the arrival rate is another one")
        elif one.age > _PATIENCE:
            self._overtaken(f"it did not come to rest within {_PATIENCE} periods")
        elif steady and situation.executors == one.wanted and wanted.measured is not None:
            self._judge(one, wanted.measured, situation)

    def _judge(self, one: _Decided, measured: float, situation: ScalingSituation) -> None:
        """Announce whether a decision helped, and record the load at which one did not."""
        gained, due = one.before_figure - measured, one.before_figure - one.expected
        met = measured <= one.target
        if one.kind == "in":
            helped = met or measured <= one.expected * (1 + _PART)
        else:
            helped = met or gained >= _PART * due
        self._decided = None
        reason = "the target is met" if met else "the target is missed"
        if not helped and one.kind == "out":
            why = why_no_faster(situation, situation.executors)
            reason = (
                f"{one.wanted} executors brought {measured:.3g} where {one.expected:.3g} was "
                "expected, and no more are asked for until the situation is another"
            ) + (f"; {why}" if why else "")
            self._ineffective = _Ineffective(
                executors=one.wanted, arrival_per_s=one.arrival_per_s, reason=reason
            )
        self._tell(one, "helped" if helped else "no help", reason, measured)

    def _overtaken(self, reason: str) -> None:
        """Stop judging a decision, and announce the reason."""
        one, self._decided = self._decided, None
        if one is not None:
            self._tell(one, "overtaken", reason, None)

    def _tell(
        self,
        one: _Decided,
        verdict: Literal["helped", "no help", "overtaken"],
        reason: str,
        measured: float | None,
    ) -> None:
        """Announce a verdict."""
        self._announce(
            events.DecisionJudged,
            before=one.before,
            wanted=one.wanted,
            verdict=verdict,
            expected=one.expected,
            measured=measured,
            target=one.target,
            arrival_per_s=one.arrival_per_s,
            reason=reason,
        )

    def why_not_again(self) -> str:
        """Return why more executors are no cure in this situation; empty where they may be."""
        return "" if self._ineffective is None else self._ineffective.reason


def _differ(before: float, now: float) -> bool:
    """Return whether two arrival rates are of different situations."""
    return abs(now - before) > _SAME * max(before, now)
