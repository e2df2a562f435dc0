"""Pace of scaling: when a scaling model's answer becomes a decision on the number of executors.

Scaling models answer every period, from measurements that are noisy and that the last answer has
not yet changed. The rules of the pace: (1) nothing is decided while executors that were asked for
are on their way and would be enough; (2) out at once, in only after several periods have wanted it;
(3) between wanting more and wanting fewer lies a range in which nothing changes
(`WantedExecutors.comfortable`), and who needs more gets well into it (`WantedExecutors.aim`); (4)
no decision is taken back within the cool-down, and one in the same direction waits for the last one
to show: one period after everybody has come, however long it is; both unless the rate, as measured
or to come, is a quarter above the one that it was made for; (5) what a cluster refuses is asked for
again only after the cool-down; (6) where a latency is measured, a decision is corrected once: by as
many executors as all of three periods at rest show to be too many; and what noise may explain does
not ask for more; (7) no executor is removed while a backlog is worked off, and of executors of
unequal speeds as many as those that stay allow; (8) executors that were asked for only to work a
backlog off are given back as soon as it is, without (2) and (4), but for those that sufficed for
such a rate.

Invariant: a step in the rate needs at most two decisions, the second for what a period that saw
only part of it could not tell.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from godwit.control.backlog_trend import BacklogTrend
from godwit.control.latency_model import busy_share
from godwit.control.policy import Hysteresis
from godwit.control.rate_bounds import RateBounds
from godwit.control.scaling import RESERVE, WantedExecutors, backlog_to_come
from godwit.model.decision_events import ManualChange

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.control.situation import ScalingSituation
    from godwit.engine.cluster import PoolView


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStep:
    """Decision on the number of executors."""

    # ``"out"``, ``"in"``, ``"refused"``: it is wanted and cannot be, or ``"stay"``
    kind: Literal["out", "in", "refused", "stay"]
    executors: int  # how many there are to be
    reason: str = ""  # why it cannot be, or has to wait; the model's own reason otherwise


class Pace:
    """Hysteresis and cool-down between a scaling model's answers and scaling decisions."""

    def __init__(
        self,
        *,
        cool_down_s: float,  # how long a decision is not taken back
        patience: int = 2,  # periods in a row that must want fewer executors
    ) -> None:
        self._hysteresis = Hysteresis(confirm=patience, rest_s=cool_down_s)
        self._executors_arrived = True
        # Arrival rate that the last decision was made for, as measured and with that to come.
        self._arrival_per_s = self._expected_per_s = math.inf
        # Arrival rate since a step, and the decisions made for it.
        self._rate_since_step, self._decisions_since_step = math.inf, 0
        self._target = self._met_target = 0.0  # of the last answer, and of the last decision
        # Of the last periods at rest: how many executors sufficed, and the arrival rate.
        self._sufficient_at_rest: deque[tuple[int, float]] = deque(maxlen=_AT_REST)
        # Periods in a row that asked for more where noise may have done so.
        self._periods_asking_more = 0
        self._periods_missing_target = 0  # periods in a row whose measured figure missed the target
        self._present_or_coming = 0  # executors that there were or were to come
        self._present_last_period = (
            math.inf
        )  # executors that there were in the last period; infinite: unknown
        self._backlog = BacklogTrend()
        self._rates = RateBounds()
        # Whether the stream is at rest, and was when the last decision was made.
        self._is_at_rest = self._decided_at_rest = False
        self._target_met_since = False  # whether the target was met at rest since the last decision
        # Whether more executors than suffice for the rate were asked for, to work a backlog off;
        # and whether the last answer asks for such.
        self._lent = self._lends = False
        # Executors that sufficed without the backlog when such were last asked for, and the rate
        # then; and whether these were many.
        self._sufficed, self._lends_many = (0, math.inf), False
        self.last: tuple[str, float] = "", 0.0
        """Kind (``"out"``, ``"in"`` or empty) and time of the last decision."""

    @property
    def many_lent(self) -> bool:
        """True if at least a third of the executors were requested only to work off a backlog."""
        return self._lent and self._lends_many

    def record_decision(
        self,
        kind: Literal["out", "in"],
        at_s: float,
        *,
        arrival_per_s: float = math.inf,
        expected_per_s: float | None = None,
    ) -> None:
        """Record a scaling decision (``"out"`` or ``"in"``) of this run or of an earlier one.

        `arrival_per_s`: rate that it was made for; infinite if unknown, or not the reason.
        `expected_per_s`: the rate to come, if it was foreseen.
        """
        decisions = self._made_for(kind, arrival_per_s, at_s)
        self._hysteresis.record(SCALING, kind, at_s)
        self._executors_arrived, self._arrival_per_s, self.last = False, arrival_per_s, (kind, at_s)
        self._expected_per_s = max(arrival_per_s, expected_per_s or 0.0)
        if not self._is_same_step(arrival_per_s):
            self._rate_since_step = arrival_per_s
        self._decisions_since_step, self._met_target = decisions + 1, self._target
        self._decided_at_rest, self._target_met_since = self._is_at_rest, False
        self._lent, self._lends = self._lends and kind == "out", False
        self._sufficient_at_rest.clear()

    def _made_for(self, kind: Literal["out", "in"], arrival_per_s: float, at_s: float) -> int:
        """Return the number of decisions already made for the current change of the load.

        `kind`: of the decision that comes next; 0 if it is the first. A second decision soon after
        the first follows the same change, since the first came too early to see all of it.
        """
        again = self._hysteresis.cooling_down(SCALING, at_s) == kind and not self._decided_at_rest
        return self._decisions_since_step if again or self._is_same_step(arrival_per_s) else 0

    def _is_same_step(self, arrival_per_s: float) -> bool:
        """Return whether an arrival rate is within 25 % of that of the last step decided for.

        False if no decision was made for a known rate.
        """
        step = self._rate_since_step
        return max(arrival_per_s, step) <= _TOO_LITTLE_FACTOR * min(arrival_per_s, step) < math.inf

    def _as_decided(self, wanted: WantedExecutors, situation: ScalingSituation) -> bool:
        """Return whether the last decision still meets its target, up to noise.

        It does if the measured figure nearly meets its target, and the arrival rate is that of the
        decision.
        """
        if wanted.measured is None or wanted.measured > _NOISE_RATIO * wanted.target:
            return False
        to_come = max(situation.arrival_per_s, situation.expected_per_s or 0.0)
        return to_come <= _SAME_RATE * self._arrival_per_s < math.inf

    def _is_as_decided_for(self, wanted: WantedExecutors, situation: ScalingSituation) -> bool:
        """Return whether target and arrival rate are those of the last decision, up to noise."""
        rates = sorted((situation.arrival_per_s, self._arrival_per_s))
        same_rate = rates[1] <= _SAME_RATE * rates[0] < math.inf
        return same_rate and wanted.target == self._met_target

    def _fewest_at_rest(
        self, wanted: WantedExecutors, situation: ScalingSituation, *, at_rest: bool
    ) -> int | None:
        """Record an answer; return the executors that suffice for all recent steady periods.

        At rest: load steady, target met. ``None`` if too few such periods agree, this period was
        not `at_rest`, or the last decision is corrected by it already: more corrections would only
        follow the noise.
        """
        decisions = self._decisions_since_step if self._is_same_step(situation.arrival_per_s) else 0
        if not at_rest or wanted.sufficient is None or decisions > 1:
            self._sufficient_at_rest.clear()
            return None
        self._sufficient_at_rest.append((wanted.sufficient, situation.arrival_per_s))
        rates = [rate for _, rate in self._sufficient_at_rest]
        if len(rates) < _AT_REST or max(rates) > _SAME_RATE * min(rates):
            return None
        return max(count for count, _ in self._sufficient_at_rest)

    def step(
        self,
        wanted: WantedExecutors,
        situation: ScalingSituation,
        pool: PoolView,
        *,
        paced: bool,
        steady: bool = False,
        shown: bool = False,
        answer_at: Callable[[float], WantedExecutors | None] = lambda _: None,
    ) -> ScalingStep:
        """Return the decision that follows from a scaling model's answer; called once a period.

        `paced`: the answer is an estimate, subject to hysteresis. `steady`: the load was steady.
        `shown`: several periods have shown that more are needed than a model said. `answer_at`: the
        model's answer at another arrival rate; ``None`` if it has none.
        """
        self._rates.add(situation.arrival_per_s, situation.arrival_error)
        self._lends = False
        have, self._is_at_rest = situation.executors, steady
        coming = have + pool.pending
        lost, self._present_or_coming = coming < self._present_or_coming, coming
        came, self._present_last_period = have > self._present_last_period, have
        arrived, self._executors_arrived = self._executors_arrived, pool.pending == 0
        most = situation.most if pool.most is None else min(situation.most, pool.most)
        # With a backlog, latency is above the model's for a stream at rest: no executor is
        # removed before the target is met, or missed at rest for reasons other than executors.
        missed = wanted.target and wanted.measured is not None and wanted.measured > wanted.target
        if missed and steady and paced and not wanted.unattainable:
            # At rest the model's prediction is wrong by less than a correction needs.
            wanted = with_reserve(wanted)
        bounded = min(max(wanted.executors, situation.least), most)
        roomy = max(bounded, min(max(wanted.comfortable, situation.least), most))
        self._periods_missing_target = self._periods_missing_target + 1 if missed else 0
        backlog = situation.backlog_rows or 0
        behind = backlog > situation.arrival_per_s * situation.epoch_s
        rising = (situation.expected_per_s or 0.0) > situation.arrival_per_s
        # Fewer will do once it is worked off, and then one decision does. It grows until executors
        # that have come have their key groups; one that stays is the sources' own.
        catching_up = self._backlog.is_changing(backlog, have, behind=behind) and paced
        self._target_met_since = self._target_met_since or (steady and not missed and not behind)
        # One alone is not worth a third decision for one rate: noise would ask for it again.
        settled = paced and self._decisions_since_step > 1 and have - roomy == 1
        settled = settled and self._is_as_decided_for(wanted, situation)
        self._target = wanted.target
        # Those that were only to work a backlog off are known to be too many once it is, and the
        # last epoch shows it first. A period without rows does not show how many suffice.
        late = missed if wanted.latest is None else wanted.latest > wanted.target
        owed = self._lent and not (behind or late or rising) and situation.arrival_per_s > 0
        spare = not missed or steady or owed or bool(wanted.unattainable)
        spare = spare and have > roomy and not settled
        spare = spare and not catching_up
        noisy = self._rates.noisy
        if noisy and spare and paced and not wanted.unattainable:
            # As far as noise lets the rate be known, these may be needed.
            needed = answer_at(self._rates.high) or wanted
            roomy = max(roomy, min(max(needed.executors, needed.comfortable), have))
            spare = have > roomy
        fewer = self._hysteresis.is_confirmed(SCALING, "in" if spare else None)
        repaid = owed and spare
        fewer = fewer or repaid
        if repaid and not noisy:
            # At rest shortly after a step, fewer seem to do than the rate needs in the end.
            count, rate = self._sufficed
            grown = situation.arrival_per_s / rate
            # They suffice for a little more load, too.
            sufficed = math.ceil(count * max(min(grown, 1.0), grown / RESERVE) - _ROUNDING)
            roomy = min(roomy, max(wanted.sufficient or roomy, bounded, sufficed))
        fewest = self._fewest_at_rest(wanted, situation, at_rest=steady and paced and not missed)
        if fewest is not None and max(fewest, bounded) < min(have, roomy):
            above = answer_at(self._rates.high) if noisy else None
            fewest = fewest if above is None else min(max(fewest, above.executors), have)
        if fewest is not None and max(fewest, bounded) < min(have, roomy):
            spare, fewer, roomy = True, True, max(fewest, bounded)
        self._periods_asking_more = self._periods_asking_more + 1 if bounded > coming else 0
        if bounded > coming and paced and situation.idle:
            reason = f"{situation.idle}, so an additional executor would be idle"
            return ScalingStep(kind="refused", executors=coming, reason=reason)
        if bounded > coming:
            as_decided = (
                not (lost or behind or shown) and paced and self._as_decided(wanted, situation)
            )
            if as_decided and self._periods_asking_more < _AT_REST:
                return ScalingStep(kind="stay", executors=have, reason="it may pass")
            if noisy and paced and not (lost or behind or self._periods_missing_target > 1):
                below = answer_at(self._rates.low)
                if below is not None and below.executors <= coming:
                    return ScalingStep(kind="stay", executors=have, reason=_NOISE)
            # Into the range: at its edge noise would soon ask for one more. A surplus is
            # corrected once, so a second decision for a step asks for what suffices. A backlog
            # after a step that was answered is a matter of its own.
            aim = (bounded + roomy) // 2 if wanted.aim is None else wanted.aim
            decisions = self._made_for("out", situation.arrival_per_s, situation.now_s)
            again = decisions and not rising and not (behind and self._target_met_since)
            if again and wanted.sufficient is not None:
                aim = wanted.sufficient
            within = bounded if as_decided else min(max(aim, bounded), roomy)
            step = self._decide_more(
                within, situation, pool, paced=paced, arrived=arrived, came=came
            )
            waiting = max(backlog_to_come(situation), wanted.waiting_rows)
            waits = waiting > situation.arrival_per_s * situation.epoch_s
            beyond = within > (wanted.sufficient or within)
            self._lends = step.kind == "out" and waits and beyond
            if self._lends:
                count = wanted.sufficient_without_backlog or wanted.sufficient or 0
                self._sufficed = count, situation.arrival_per_s or math.inf
                self._lends_many = within >= _MANY_RATIO * (wanted.sufficient or 0)
            return step
        if spare and not pool.pending:
            step = self._decide_fewer(roomy, situation, paced=paced, confirmed=fewer, repaid=repaid)
            # Out of reach is a target also while a backlog is worked off: no executor is
            # removed meanwhile. At rest those are removed that make no difference, unless a lane
            # is so busy that a little more load would make one.
            calm = steady and busy_share(situation, roomy, situation.learned) < _CALM_BUSY_SHARE
            if not wanted.unattainable or (calm and step.kind == "in"):
                return step
        if max(wanted.executors, situation.least) > most <= coming:
            limit = "limit" if most == situation.most else "cluster's limit"
            return ScalingStep(kind="refused", executors=coming, reason=f"{most} is the {limit}")
        if wanted.unattainable:
            stay = f"; keeping {have} executors" if have > roomy else ""
            return ScalingStep(kind="refused", executors=coming, reason=wanted.unattainable + stay)
        return ScalingStep(kind="stay", executors=have)

    def _decide_more(
        self,
        bounded: int,
        situation: ScalingSituation,
        pool: PoolView,
        *,
        paced: bool,
        arrived: bool,
        came: bool,
    ) -> ScalingStep:
        """Return the decision on an increase to `bounded` executors.

        `paced`: see `step`. `arrived`: requested executors had all joined when the period began.
        `came`: some joined in the period.
        """
        have, resting = (
            situation.executors,
            self._hysteresis.cooling_down(SCALING, situation.now_s),
        )
        if pool.refused and resting:
            return ScalingStep(kind="refused", executors=have, reason=pool.refused)
        more = situation.arrival_per_s > _TOO_LITTLE_FACTOR * self._arrival_per_s
        more = more or (situation.expected_per_s or 0.0) > _TOO_LITTLE_FACTOR * self._expected_per_s
        if paced and resting == "in" and not more:
            return ScalingStep(kind="stay", executors=have, reason="cooling down")
        # A period of long epochs may outlast the cool-down, and shows them no better for that.
        unshown = not arrived and came and self.last[0] == "out"
        if paced and (unshown or (resting and (not arrived or pool.pending))) and not more:
            reason = "the last ones were requested only recently"
            return ScalingStep(kind="stay", executors=have, reason=reason)
        return ScalingStep(kind="out", executors=bounded)

    def _decide_fewer(
        self, roomy: int, situation: ScalingSituation, *, paced: bool, confirmed: bool, repaid: bool
    ) -> ScalingStep:
        """Return the decision on a decrease to `roomy` executors.

        `paced`: see `step`. `confirmed`: several periods want it. `repaid`: the others were asked
        for to work a backlog off, and have.
        """
        have = situation.executors
        if paced and not repaid and self._hysteresis.cooling_down(SCALING, situation.now_s):
            return ScalingStep(kind="stay", executors=have, reason="cooling down")
        if paced and not confirmed:
            return ScalingStep(kind="stay", executors=have, reason="it may pass")
        return ScalingStep(kind="in", executors=roomy)


SCALING = ManualChange.SCALING.value


_TOO_LITTLE_FACTOR = 1.25
"""Factor over a decision's arrival rate above which the decision was for too low a rate."""


_AT_REST = 3
"""Number of consecutive periods that show how many executors suffice, if the target is met."""


_SAME_RATE = 1.1
"""Max. ratio of measurements of the same arrival rate."""


_NOISE = "the rate that requires more may be noise"


_MANY_RATIO = 1.5
"""Ratio to the sufficient executors above which surplus executors are released early."""


_ROUNDING = 1e-6
"""Share of an executor that is negligible."""


_NOISE_RATIO = 1.05
"""Max. ratio of a figure to its target at which noise may explain the miss."""


_CALM_BUSY_SHARE = 0.7
"""Max. busy share of the busiest lane at which executors without benefit are released."""


def with_reserve(wanted: WantedExecutors) -> WantedExecutors:
    """Return a model's answer, raised to the executors that suffice at a slightly higher load."""
    fewest = max(wanted.executors, wanted.sufficient or 0)
    return replace(wanted, executors=fewest, comfortable=max(wanted.comfortable, fewest))
