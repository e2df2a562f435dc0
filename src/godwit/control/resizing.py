"""Changes of the number of executors: request, drain and release them.

A scaling model says how many executors a stream needs (`godwit.control.scaling`), and `Pace` when
that becomes a decision.  Here a decision is carried out: which executors leave, and what cannot be.

Invariants: an executor is given back only once no key group is on it, and no epoch runs that may
still use it; and one is drained only if the rest could be balanced without it (paper 2 §4.1), by
the same planner that will have to.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from godwit.control.forecast import raise_to_forecast
from godwit.control.judging import Judge
from godwit.control.latency_model import busy_share, least_busy, predicted_latency_s
from godwit.control.model_error import ModelError
from godwit.control.pace import SCALING, Pace, ScalingStep, with_reserve
from godwit.control.scaling import RESERVE, WantedExecutors, at_rate
from godwit.engine.cluster import PoolView
from godwit.engine.policies import Proposal
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import GodwitError, InvalidControlError
from godwit.placement import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from godwit.control.interfaces import PlannerRunner
    from godwit.control.memory import ControllerMemory
    from godwit.control.planning import Planned
    from godwit.control.policy import Announce
    from godwit.control.scaling import ScalingModel
    from godwit.control.settings import Control
    from godwit.control.situation import ScalingSituation
    from godwit.engine.cluster import ExecutorPool
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.state import ProtocolView
    from godwit.placement.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """The change that follows a scaling model."""

    executors: int  # how many there are to be
    leaving: tuple[str, ...] = ()  # those that are emptied; none: others are asked for
    situation: ScalingSituation
    wanted: WantedExecutors


_REMEMBERED_LEADS = 8
"""Number of requests from which the time to join is estimated."""
_FLICKER = 2
"""Number of consecutive periods without a request after which a refusal is announced again."""
_OUT_OF_REACH = "the target is unreachable"
_MAX_STRAY_RATIO = 1.5
"""Max. ratio of an epoch's busiest lane to that of the mean epoch."""
_MAX_BUSY_SHARE = 0.9
"""Max. busy share of any executor's lanes after others have left."""


class Resizing:
    """Carries out a scaling model's answers through the pool of executors."""

    def __init__(
        self,
        settings: Control,
        migrations: Coordinator,
        pool: ExecutorPool | None,
        run: PlannerRunner,
        announce: Announce,
    ) -> None:
        self._settings, self._migrations, self._pool = settings, migrations, pool
        self._run, self._announce = run, announce
        self._limit_s = settings.planning_limit_s
        self._pace = Pace(cool_down_s=settings.cool_down_s)
        self._empty_since: dict[str, int] = {}
        self._pool_view = PoolView()
        self._refusal, self._restarted_s = "", float("-inf")
        self._judge = Judge(announce)
        self._model_error = ModelError(announce)
        self._requested_s: float | None = None  # when those that are on their way were asked for
        self._last_leads_s: deque[float] = deque(maxlen=_REMEMBERED_LEADS)
        self._periods_without_change = 0  # periods in a row in which nothing was wanted
        self.draining: frozenset[str] = frozenset()
        self.returned: frozenset[str] = frozenset()
        """Executors that were released and have not left yet."""

    def look_at_pool(self) -> None:
        """Store the state of the pool for the decisions of this step; called at its beginning.

        An executor that joins while a decision is made counts as pending, and perhaps as present,
        too. Otherwise it would count as neither, and another would be requested in its place.
        """
        if self._pool is not None:
            self._pool_view = self._pool.view

    @property
    def pending(self) -> int:
        """Number of requested executors that have not joined yet."""
        return 0 if self._pool is None else self._pool.view.pending

    def restore_from_event(self, event: events.Event, now_s: float) -> None:
        """Restore cool-down and verdicts from an event of an earlier run; ignore other events."""
        if isinstance(event, events.ScaledOut):
            self._pace.record_decision("out", min(event.at_s, now_s))
        elif isinstance(event, events.ScaledIn):
            self._pace.record_decision("in", min(event.at_s, now_s))
        self._judge.recall(event)

    def restore(self, memory: ControllerMemory, now_s: float) -> None:
        """Restore the cool-down of an earlier run's last decision from its memory."""
        if memory.scaled and memory.scaled_s > self._pace.last[1]:
            kind: Literal["out", "in"] = "out" if memory.scaled == "out" else "in"
            self._pace.record_decision(kind, min(memory.scaled_s, now_s))

    @property
    def last(self) -> tuple[str, float]:
        """Kind (``"out"``, ``"in"`` or empty) and time of the last decision."""
        return self._pace.last

    @property
    def many_lent(self) -> bool:
        """True if all executors have joined, a third of them only to work off a backlog."""
        return self._pace.many_lent and not self.pending

    @property
    def lead_s(self) -> float:
        """Usual seconds from a request of executors until all have joined, or an estimate."""
        return (
            float(np.median(self._last_leads_s)) if self._last_leads_s else self._settings.period_s
        )

    def update(self, view: ProtocolView, now_s: float) -> None:
        """Forget lost executors, and measure the time that requested executors took to join."""
        if self._requested_s is not None and not self.pending:
            self._last_leads_s.append(now_s - self._requested_s)
            self._requested_s = None
        self.draining &= view.draining
        self.returned &= view.executors.keys()

    def release_drained(self, view: ProtocolView) -> tuple[str, ...]:
        """Return drained executors that are empty to the cluster; return their names."""
        if self._pool is None:
            return ()
        empty = {
            name for name in self.draining if name in view.executors and view.owns_nothing(name)
        }
        for name in empty:
            self._empty_since.setdefault(name, view.committed)
        self._empty_since = {n: e for n, e in self._empty_since.items() if n in empty}
        ready = tuple(
            sorted(
                name
                for name, epoch in self._empty_since.items()
                if view.running is None or view.committed > epoch
            )
        )
        if not ready:
            return ()
        try:
            self._pool.remove(ready)
        except GodwitError as error:
            self._announce_refusal(
                len(view.executors), len(view.executors) - len(ready), str(error), {}
            )
            return ()
        self.draining -= set(ready)
        self.returned |= set(ready)
        for name in ready:
            self._empty_since.pop(name, None)
        self._announce(events.ExecutorsReturned, executors=ready)
        return ready

    def request_first(self, now_s: float) -> None:
        """Request the minimum number of executors if there are none."""
        pool, least = self._pool, self._settings.min_executors
        if pool is None or self._settings.scaling_model is None or pool.view.pending:
            return
        if now_s - self._restarted_s < self._settings.cool_down_s:
            return
        self._restarted_s = now_s
        self._pace.record_decision("out", now_s)
        try:
            pool.add(least)
        except GodwitError as error:
            self._announce_refusal(0, least, str(error), {})
            return
        self._announce(events.ScaledOut, before=0, wanted=least, reason="no executors are left")

    def propose(
        self,
        situation: ScalingSituation,
        view: ProtocolView,
        planned: list[Planned],
        *,
        trial: Callable[[frozenset[str]], list[Planned]] | None,
        steady: bool,
    ) -> Iterator[Proposal]:
        """Evaluate the scaling model; yield its answer if cool-down and limits allow.

        `trial`: plans without some executors, to test if the others suffice; ``None`` while not all
        components may be planned. `steady`: nothing changes any more, see `Planning.learn`.
        """
        model = self._settings.scaling_model
        assert model is not None, "called only if there is a pool"
        wanted = self._ask_scaling_model(model, situation)
        if wanted is None:
            return
        resizing, shown = bool(self._pool_view.pending or view.draining), False
        if not wanted.unattainable:
            shown = self._model_error.update(situation, wanted, resizing=resizing)
        if self._model_error.factor > 1:
            situation = self._model_error.corrected(situation)
            wanted = with_reserve(self._ask_scaling_model(model, situation) or wanted)
        have, numbers = situation.executors, wanted.numbers
        if self._pool is None:
            self._announce_refusal(have, wanted.executors, "this cluster has no pool", numbers)
            return
        self._judge.judge_if_steady(situation, wanted, steady=steady)
        step = self._pace.step(
            wanted,
            situation,
            self._pool_view,
            paced=model.paced,
            steady=steady,
            shown=shown,
            answer_at=lambda rate: self._ask_scaling_model(model, at_rate(situation, rate)),
        )
        if step.kind in ("out", "in") and self._pool_view.fixed:
            fixed = self._pool_view.fixed
            reason = f"{fixed} Besides, {wanted.unattainable}." if wanted.unattainable else fixed
            step = ScalingStep(kind="refused", executors=have, reason=reason)
        elif step.kind == "out" and model.paced and (why := self._judge.no_help_reason()):
            step = ScalingStep(kind="refused", executors=have, reason=why)
        leaving: tuple[str, ...] = ()
        fault, budget = "", self._settings.budget
        beyond = _OUT_OF_REACH if wanted.unattainable else ""
        self._periods_without_change = (
            self._periods_without_change + 1 if step.kind == "stay" else 0
        )
        if step.kind == "refused":
            far = bool(wanted.unattainable) and step.reason.startswith(wanted.unattainable)
            about = _OUT_OF_REACH if far else step.reason
            self._announce_refusal(have, wanted.executors, step.reason, numbers, about=about)
        elif self._periods_without_change > _FLICKER:
            self._refusal = ""
        elif step.kind == "in" and 0 in (budget.max_moves, budget.max_bytes):
            self._announce_refusal(
                have,
                step.executors,
                "the budget allows no moves of key groups",
                numbers,
                about=beyond,
            )
        elif step.kind == "in" and trial is None:
            self._announce_refusal(
                have, step.executors, "key groups are migrating", numbers, about=beyond
            )
        elif step.kind == "in" and trial is not None:
            leaving = self._select_leaving(step.executors, wanted, situation, view, planned)
            fault = "" if leaving else "the remaining executors would be too slow"
            # One fewer may still be had where several are too many.
            while leaving:
                plans = trial(frozenset(leaving))
                fault = self._shortage_reason(plans, situation)
                fault = fault or slowness_reason(plans, situation, wanted, have - len(leaving))
                if not fault:
                    break
                leaving = leaving[:-1]
            if not leaving:
                self._announce_refusal(have, step.executors, fault, numbers, about=beyond)
        if step.kind == "out" or leaving:
            yield Proposal(
                subject=SCALING,
                change=Resize(
                    executors=step.executors if step.kind == "out" else have - len(leaving),
                    leaving=leaving,
                    situation=situation,
                    wanted=wanted,
                ),
                reason=wanted.reason,
                numbers=numbers,
                reverses=frozenset({ManualChange.SCALING.value}),
            )

    def _ask_scaling_model(
        self, model: ScalingModel, situation: ScalingSituation
    ) -> WantedExecutors | None:
        """Return a scaling model's answer; ``None`` if it fails, which is announced."""
        try:
            return self._run(lambda: _evaluate_model(model, situation), time_limit_s=self._limit_s)
        except TimeoutError:
            self._announce_failure(model.name, f"it has not returned after {self._limit_s:g} s")
        except Exception as error:  # noqa: BLE001  a function of the user's may raise anything
            self._announce_failure(model.name, f"it raised {type(error).__name__}: {error}")
        return None

    def _select_leaving(
        self,
        executors: int,
        wanted: WantedExecutors,
        situation: ScalingSituation,
        view: ProtocolView,
        planned: list[Planned],
    ) -> tuple[str, ...]:
        """Return the executors to drain so that about `executors` stay, those with least state.

        The model takes all executors for equally fast. Where they are not, it is asked again for
        those that would stay, since it would want another number as soon as the others are gone.
        """
        model, have = self._settings.scaling_model, situation.executors
        leaving = _cheapest_to_drain(view, planned)
        lanes = {
            name: float(standard)
            for plan in planned
            for name, standard in zip(
                plan.measured.problem.executors, plan.measured.problem.capacity[:, 0], strict=True
            )
            if name in leaving
        }
        assert model is not None, "called only if there is a pool"
        if len(set(lanes.values())) < 2 or not model.paced:
            return leaving[: have - executors]
        by_measurement = wanted.sufficient is not None and executors < wanted.comfortable

        def needed(answer: WantedExecutors) -> int:
            """Return the number of executors that an answer keeps."""
            fewest = answer.sufficient if by_measurement else answer.comfortable
            return max(fewest or answer.executors, answer.executors, situation.least)

        more = executors - needed(wanted)
        for count in range(1, len(leaving)):
            stay = leaving[count:]
            answer = self._ask_scaling_model(
                model,
                replace(
                    situation,
                    lanes=sum(lanes[name] for name in stay) / len(stay),
                    cores=sum(view.executors[name] for name in stay) / len(stay),
                ),
            )
            if answer is None or needed(answer) + more > len(stay):
                return leaving[: count - 1]
        return leaving[:-1]

    def act(self, change: Resize) -> bool:
        """Change the number of executors; return ``False`` if it is not possible."""
        return self._scale_in(change) if change.leaving else self._scale_out(change)

    def _scale_out(self, change: Resize) -> bool:
        """Keep draining executors and request others; return ``False`` if neither is possible."""
        pool, wanted, situation = self._pool, change.wanted, change.situation
        assert pool is not None
        self._pace.record_decision(
            "out",
            situation.now_s,
            arrival_per_s=situation.arrival_per_s or math.inf,
            expected_per_s=situation.expected_per_s,
        )
        coming = situation.executors + self._pool_view.pending
        staying = self._cancel_draining(change.executors - coming)
        more = change.executors - coming - len(staying)
        try:
            if more:
                pool.add(more)
                self._requested_s = situation.now_s
        except GodwitError as error:
            self._announce_refusal(
                coming + len(staying), wanted.executors, str(error), wanted.numbers
            )
            return bool(staying)
        self._refusal = _OUT_OF_REACH if wanted.unattainable else ""
        self._judge.decided("out", coming, change.executors, wanted, situation)
        self._announce(
            events.ScaledOut,
            before=coming,
            wanted=change.executors,
            kept=staying,
            reason=wanted.unattainable or wanted.reason,
            numbers=_add_prediction(wanted, change.executors),
        )
        return True

    def _scale_in(self, change: Resize) -> bool:
        """Drain the executors that are to leave, and announce it; return ``True``."""
        for name in change.leaving:
            self._migrations.drain(name)
        self.draining |= set(change.leaving)
        self._pace.record_decision(
            "in",
            change.situation.now_s,
            arrival_per_s=change.situation.arrival_per_s or math.inf,
            expected_per_s=change.situation.expected_per_s,
        )
        reason = change.wanted.unattainable or change.wanted.reason
        if change.wanted.unattainable and self._refusal == _OUT_OF_REACH:
            # The reason why it is unreachable was announced before.
            reason = "fewer executors come as close to the target, which is unreachable anyway"
        self._refusal = _OUT_OF_REACH if change.wanted.unattainable else ""
        before = change.situation.executors
        self._judge.decided("in", before, change.executors, change.wanted, change.situation)
        self._announce(
            events.ScaledIn,
            before=change.situation.executors,
            wanted=change.executors,
            executors=change.leaving,
            reason=reason,
            numbers=_add_prediction(change.wanted, change.executors),
        )
        return True

    def _cancel_draining(self, count: int) -> tuple[str, ...]:
        """Keep up to `count` draining executors, those with most key groups first.

        Return their names.
        """
        view = self._migrations.view
        owned = {name: _count_key_groups(view, name) for name in self.draining & view.draining}
        staying = tuple(sorted(owned, key=lambda name: (-owned[name], name))[:count])
        for name in staying:
            self._migrations.stay(name)
            self._empty_since.pop(name, None)
        self.draining -= set(staying)
        return staying

    def _shortage_reason(self, plans: list[Planned], situation: ScalingSituation) -> str:
        """Return the reason why the remaining executors would not suffice; empty if they would."""
        index: dict[str, float] = {}
        total = room = 0.0
        for plan in plans:
            problem = plan.measured.problem
            if problem.draining[plan.assignment].any():
                return "the planner would not drain them completely"
            after = metrics.load_index(problem, plan.assignment)
            for e in problem.available.tolist():
                name = problem.executors[e]
                index[name] = index.get(name, 0.0) + float(after[e])
            total += float(problem.weight.sum())
            room = float(problem.speed[problem.available].sum())
        mean = total / room if room else 0.0
        busiest = max(index.values(), default=0.0)
        if busiest > _MAX_BUSY_SHARE:
            return f"the remaining executors would be busy for {busiest:.0%} of the time"
        # How even they must be is how even they are now, or the bound.
        bound = max(self._settings.worth.max_load_distance, self._settings.search.limits.tau or 0.0)
        allowed = max(1 + bound, situation.evenness)
        if mean > 0 and busiest / mean > allowed * (1 + 1e-9):
            return (
                f"the remaining executors could not be balanced: {busiest / mean:.2f} times the "
                "mean"
            )
        return ""

    def _announce_refusal(
        self,
        before: int,
        wanted: int,
        reason: str,
        numbers: Mapping[str, float],
        *,
        about: str = "",
    ) -> None:
        """Announce that a number of executors is not possible, once per reason.

        `about`: the reason without its figures; empty: `reason` has none.
        """
        about = about or reason
        if about != self._refusal:
            self._refusal = about
            self._announce(
                events.ScalingRefused,
                before=before,
                wanted=wanted,
                reason=reason,
                numbers=dict(numbers),
            )

    def _announce_failure(self, model: str, reason: str) -> None:
        """Announce the reason why a scaling model failed, once per reason."""
        if reason != self._refusal:
            self._refusal = reason
            self._announce(events.PlannerFailed, planner=model, reason=reason)


def slowness_reason(
    plans: list[Planned], situation: ScalingSituation, wanted: WantedExecutors, executors: int
) -> str:
    """Return the reason why `executors` would miss the target by the plans; empty if they meet it.

    The model predicts by the most even lanes that there can be; few key groups a lane, and loads
    that are even enough for a planner, keep the plans' lanes from that.  They are to meet it at a
    little more load, as executors that suffice do: one that just meets it is soon one too few.
    """
    expected, least = wanted.expects(executors), least_busy(situation, executors)
    if not wanted.target or wanted.unattainable:
        return ""
    if expected is None or len(plans) != len(situation.stages) or not least:
        return ""
    offered = sum(float(plan.measured.problem.load[:, 0].sum()) for plan in plans)
    to_share = situation.offered / offered if offered else 0.0
    busy = to_share * sum(_busiest_lane(plan, _places_after(plan)) for plan in plans)
    before = to_share * sum(_busiest_lane(plan, plan.measured.problem.current) for plan in plans)
    # Which lane is busiest differs from epoch to epoch, by rows that come by chance: the more rows
    # a lane has, the less. Epochs under other places say nothing of it.
    if not situation.settled:
        busy *= min(situation.learned.unevenness_at(executors, situation.cores), _MAX_STRAY_RATIO)
    elif 0 < before < situation.busiest and busy:
        strays = min(situation.busiest / before, _MAX_STRAY_RATIO) - 1
        busy *= 1 + strays * math.sqrt(min(before / busy, 1.0))
    modelled = busy_share(situation, executors, situation.learned)
    if busy <= modelled:
        return ""
    learned = replace(situation.learned, unevenness={executors: busy / least})
    loaded = at_rate(replace(situation, learned=learned), RESERVE * situation.arrival_per_s)
    planned_s = predicted_latency_s(loaded, executors)
    slower = planned_s / predicted_latency_s(situation, executors)
    if expected * slower <= wanted.target:
        return ""
    return (
        f"the remaining executors' lanes would be busy for {busy:.0%} of the time, and miss the "
        "target"
    )


def _places_after(plan: Planned) -> IntArray:
    """Return the placement after the moves that pay, or after all moves."""
    places = plan.selected.assignment
    return plan.assignment if plan.measured.problem.draining[places].any() else places


def _busiest_lane(plan: Planned, places: IntArray) -> float:
    """Return the busy share of the busiest lane if key groups are spread evenly.

    `places`: executor of each key group.
    """
    problem = plan.measured.problem
    lanes = [[0.0] * max(int(cores), 1) for cores in problem.cores]
    for key_group in np.argsort(-problem.load[:, 0], kind="stable").tolist():
        mine = lanes[places[key_group]]
        heapq.heapreplace(mine, mine[0] + float(problem.load[key_group, 0]))
    of_speed_1: list[float] = (problem.speed / problem.cores).tolist()
    return max(max(mine) / speed for mine, speed in zip(lanes, of_speed_1, strict=True))


def _evaluate_model(model: ScalingModel, situation: ScalingSituation) -> WantedExecutors:
    """Return a scaling model's answer, checked, and raised to that for the forecast rate."""
    wanted: Any = model.wanted(situation)
    if not isinstance(wanted, WantedExecutors):
        raise InvalidControlError(
            f"The scaling model returned {wanted!r}.",
            remedy="Return a godwit.control.scaling.WantedExecutors instead.",
        )
    expected_per_s = situation.expected_per_s
    if expected_per_s is None or expected_per_s <= situation.arrival_per_s or not model.paced:
        return wanted
    to_come = replace(at_rate(situation, expected_per_s), backlog_rows=None, expected_per_s=None)
    return raise_to_forecast(wanted, _evaluate_model(model, to_come), expected_per_s)


def _add_prediction(wanted: WantedExecutors, executors: int) -> dict[str, float]:
    """Return the figures of a model's answer, with the predicted effect of the decision."""
    expected = wanted.expects(executors)
    numbers = dict(wanted.numbers)
    if expected is not None and np.isfinite(expected):
        numbers["expected_s"] = expected
    return numbers


def _count_key_groups(view: ProtocolView, executor: str) -> int:
    """Return the number of key groups that an executor owns."""
    return sum(
        len(component.assignment.key_groups(executor))
        for component in view.components.values()
        if executor in component.assignment.executors
    )


def _cheapest_to_drain(view: ProtocolView, planned: list[Planned]) -> tuple[str, ...]:
    """Return the executors that do not drain, least state first, then newest first."""
    held_bytes = dict.fromkeys(view.executors.keys() - view.draining, 0.0)
    for plan in planned:
        problem = plan.measured.problem
        sizes = np.bincount(problem.current, plan.measured.held_bytes, problem.num_executors)
        for name, size in zip(problem.executors, sizes.tolist(), strict=True):
            if name in held_bytes:
                held_bytes[name] += size
    newest_first = {name: [-len(name), *(-ord(c) for c in name)] for name in held_bytes}
    return tuple(sorted(held_bytes, key=lambda name: (held_bytes[name], newest_first[name])))
