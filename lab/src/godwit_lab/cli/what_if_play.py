"""A measured stream played with other executors, and how far the answers may be off.

Each number of executors is a simulated run: the stream begins as it is, with today's executors and
placement; others come or go, and key groups move, by the real controller and planner; and then the
rows come as they came, at a multiple of the rate.  Latency and utilisation are of that last part,
moves of both.

Every answer is corrected, and has an error bar.  The stream is first played as it was, over the
time for which it has been measured: measured over simulated latency, by quantile, is the
correction.  How far parts of that time stray from it is one part of the error.  The other is how
far predictions were off before: those of the controller's decisions that were judged, of this very
stream; where there are too few of them, those of the simulator's epochs on real executors that it
was not fitted to.  Errors are factors, so both are standard deviations of logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from godwit.control import Budget
from godwit.control.scaling import fixed
from godwit.control.settings import Cadence, Control
from godwit_lab.simulator import (
    Keys,
    Machine,
    Pool,
    Rate,
    Scenario,
    SimulatedCluster,
    Simulation,
    calibration,
    controlled_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from godwit.control.loop import Controller
    from godwit.engine.policies import CommittedEpoch
    from godwit.model.latency import LatencyHistogram
    from godwit_lab.cli.what_if_stream import MeasuredStream, MeasuredTime

MEDIAN, TAIL = 0.5, 0.99
_SMALL = 4096
"""Key groups times executors up to which the default planner is exact."""
_BYTES_PER_S = 125e6
_PERIODS = 8
"""Statistics periods that executors and key groups have to get where they belong."""
_RATIO = (0.125, 8.0)
"""Bounds of a correction."""
_JUDGED = 3
"""Judged decisions that tell the error of predictions, at least."""
_SPREAD = 1.5
"""Standard deviations that the error bar reaches to either side: 87 % of a normal distribution."""
_FULL = 0.99
"""Share of its time that the busiest lanes may be busy at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Another rate, trigger or planner, to be played with some numbers of executors."""

    factor: float = 1.0  # times the measured rate
    executors: tuple[int, ...]
    planner: str | None = None  # ``None``: exact where that is quick
    trigger_s: float | None = None  # ``None``: as it is
    lanes_each: int | None = None  # of an executor that comes; ``None``: as they are
    target_s: float | None = None
    quantile: float = TAIL  # that is to meet the target


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One latency, with its error bar."""

    seconds: float
    low_s: float
    high_s: float

    def meets(self, target_s: float) -> Literal["yes", "likely", "unlikely", "no"]:
        """Return how sure it is that a latency target is met, by the estimate's error bar."""
        if self.seconds <= target_s:
            return "yes" if self.high_s <= target_s else "likely"
        return "unlikely" if self.low_s <= target_s else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Figures of one number of executors."""

    executors: int
    median: Estimate
    tail: Estimate  # 99th percentile
    targeted: Estimate  # the quantile that is to meet the target
    utilisation: float  # share of their time that lanes are busy
    busiest: float  # the same of the busiest lanes, stage after stage; 1: it cannot keep up
    moves: int
    moved_bytes: float
    met: Literal["yes", "likely", "unlikely", "no", ""]  # empty: there is no target
    note: str = ""  # ``"falls behind"``, where epochs grow without end; or that executors lack


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Correction of latencies, and their error."""

    ratio: dict[float, float]  # quantile → measured over simulated latency
    replayed: float  # deviation of logarithms over parts of the time that was measured
    predicted: float  # the same of earlier predictions
    source: str  # of these, in words

    def of(self, quantile: float, seconds: float, *, elsewhere: bool) -> Estimate:
        """Return the estimate for a quantile's simulated latency: corrected, with an error bar.

        `elsewhere`: it is for another configuration than the measured one.
        """
        error = math.hypot(self.replayed, self.predicted if elsewhere else 0.0)
        factor, corrected = math.exp(_SPREAD * error), seconds * self.ratio.get(quantile, 1.0)
        return Estimate(seconds=corrected, low_s=corrected / factor, high_s=corrected * factor)


class _Metered:
    """A controller, and the work of lanes from some time on."""

    def __init__(self, controller: Controller, simulation: Simulation, since_s: float) -> None:
        self._controller, self._simulation, self._since_s = controller, simulation, since_s
        self.lane_ms = 0.0

    def begun(self, rows: int, backlog_rows: int | None) -> None:
        """Pass the begin of an epoch to the controller."""
        self._controller.begun(rows, backlog_rows)

    def observe(self, epoch: CommittedEpoch) -> None:
        """Pass a committed epoch to the controller, and add up its lanes' busy time."""
        self._controller.observe(epoch)
        if self._simulation.now_s() >= self._since_s:
            self.lane_ms += sum(epoch.outcome.lane_ms.values())

    def delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """Pass latencies and phases of an epoch to the controller."""
        self._controller.delivered(latency, spent_s)

    def step(self) -> None:
        """Let the controller decide."""
        self._controller.step()


def accuracy(stream: MeasuredStream, question: Question, *, seed: int) -> Accuracy:
    """Simulate the recorded stream, and return how accurate the simulation is."""
    quantiles = sorted({MEDIAN, TAIL, question.quantile})
    predicted, source = _earlier(stream.misses)
    time = stream.steady
    if not time.parts:
        return Accuracy(
            ratio={},
            replayed=predicted,
            predicted=predicted,
            source=f"{source}; latency was not measured",
        )
    history = Simulation(_as_it_was(stream, time), seed=seed).run(settle_s=_settling_s(stream))
    measured, simulated = time.latency, history.delays()
    ratio = {
        q: _bound_ratio(measured.quantile_s(q) / max(simulated.quantile_s(q), 1e-9))
        for q in quantiles
    }
    strays = []
    for from_s, to_s, part in time.parts:
        played = history.between(from_s, to_s).delays()
        for q in quantiles:
            if played.rows:
                now = _bound_ratio(part.quantile_s(q) / max(played.quantile_s(q), 1e-9))
                strays.append(math.log(now / ratio[q]))
    return Accuracy(
        ratio=ratio,
        replayed=float(np.sqrt(np.mean(np.square(strays)))) if strays else 0.0,
        predicted=predicted,
        source=source,
    )


def _earlier(misses: Sequence[float]) -> tuple[float, str]:
    """Return the typical error of earlier predictions, and a text that says which those were.

    `misses`: logarithms of measured over predicted latencies; the error is one too.
    """
    if len(misses) >= _JUDGED:
        deviation = float(np.sqrt(np.mean(np.square(misses))))
        return deviation, f"{len(misses)} decisions of this stream that were judged"
    runs = [run for run in calibration()["runs"] if not run["fitted"]]
    known = [math.log(run["measured_ms"] / run["simulated_ms"]) for run in runs]
    every = [*known, *misses]
    return float(np.sqrt(np.mean(np.square(every)))), (
        f"{len(known)} runs that the simulator was not fitted to"
        + (f" and {len(misses)} judged decisions of this stream" if misses else "")
    )


def _bound_ratio(ratio: float) -> float:
    """Return a ratio limited to the bounds `_RATIO`."""
    return min(max(ratio, _RATIO[0]), _RATIO[1])


def _settling_s(stream: MeasuredStream) -> float:
    """Return the seconds after the last row in which its epoch ends."""
    return 3 * max(stream.topology.trigger_s, 1.0)


def _as_it_was(stream: MeasuredStream, time: MeasuredTime) -> Scenario:
    """Return the scenario of the stream as it was measured."""
    lanes = sum(stream.executors.values())
    return Scenario(
        cluster=SimulatedCluster(
            machines=tuple(Machine(cores=count) for count in stream.executors.values()),
            names=tuple(stream.executors),
        ),
        components=stream.components,
        rate=Rate(rows_per_s=time.rate_per_s, steps=time.steps),
        keys=Keys(number=1),
        duration_s=time.duration_s,
        trigger_s=stream.topology.trigger_s,
        costs=stream.costs_at(lanes),
        assignments=dict(stream.assignments),
    )


def answers(
    stream: MeasuredStream, question: Question, known: Accuracy, *, seed: int
) -> Iterable[Answer]:
    """Yield the answer for each number of executors, by simulation; `known`: its accuracy."""
    for executors in question.executors:
        yield _answer(stream, question, known, executors, seed=seed)


def _answer(
    stream: MeasuredStream, question: Question, known: Accuracy, executors: int, *, seed: int
) -> Answer:
    """Return the answer for a number of executors, by simulation; `known`: its accuracy."""
    as_now = executors == len(stream.executors)
    each = question.lanes_each or stream.lanes_each
    lanes = executors * each
    if as_now and question.lanes_each is None:
        lanes = sum(stream.executors.values())
    trigger_s = stream.topology.trigger_s if question.trigger_s is None else question.trigger_s
    costs = stream.costs_at(lanes)
    usual_s = max(trigger_s, costs.fixed_ms / 1e3, 0.1)
    period_s = max(2.0, 4 * usual_s)
    moved_s = stream.state_bytes / _BYTES_PER_S
    first_s = _PERIODS * period_s + 2 * moved_s
    base, played = _as_it_was(stream, stream.played), stream.played
    low = min(question.factor, 1.0)
    machine = Machine(cores=each)
    other_lanes = question.lanes_each is not None and question.lanes_each != stream.lanes_each
    scenario = replace(
        base,
        cluster=SimulatedCluster(
            machines=(machine,) * executors, added=machine, pool=Pool(most=executors)
        )
        if other_lanes
        else replace(
            base.cluster,
            added=machine,
            pool=Pool(most=max(executors, len(stream.executors)), start_s=(0.5, 0.5)),
        ),
        assignments={} if other_lanes else base.assignments,
        rate=Rate(
            rows_per_s=played.rate_per_s,
            steps=(
                (0.0, low),
                *((first_s + since, question.factor * times) for since, times in played.steps),
            ),
        ),
        duration_s=first_s + played.duration_s,
        trigger_s=trigger_s,
        costs=costs,
    )
    simulation, meter = _metered(
        scenario, _settings(stream, question, executors, period_s), first_s, seed
    )
    simulation.run(settle_s=3 * usual_s)
    history = simulation.history
    while history.epochs[-1].lag_rows and simulation.now_s() < 2 * scenario.duration_s:
        simulation.step()  # rows that are still to be taken would be missed among the slow ones
    after = history.between(first_s, math.inf)
    lane_ms = meter().lane_ms
    length_s = max(history.epochs[-1].ended_s - first_s, played.duration_s)
    busy_s = sum(max(e.took_s - costs.fixed_ms / 1e3, 0.0) for e in after.epochs)
    busiest = busy_s / played.duration_s
    elsewhere = not (
        as_now and question.factor == 1 and question.trigger_s is None and not question.lanes_each
    )
    delays = after.delays()

    def estimate(quantile: float) -> Estimate:
        if not delays.rows:
            return Estimate(seconds=math.inf, low_s=math.inf, high_s=math.inf)
        return known.of(quantile, delays.quantile_s(quantile), elsewhere=elsewhere)

    targeted = estimate(question.quantile)
    keeps_up, note = busiest < _FULL, ""
    if not keeps_up:
        note = "falls behind"
    elif len(simulation.executors.alive) != executors:
        note = f"{len(simulation.executors.alive)} executors when it ended"
    met: Literal["yes", "likely", "unlikely", "no", ""] = ""
    if question.target_s is not None:
        met = targeted.meets(question.target_s) if keeps_up else "no"
    return Answer(
        executors=executors,
        median=estimate(MEDIAN),
        tail=estimate(TAIL),
        targeted=targeted,
        utilisation=lane_ms / 1e3 / (length_s * lanes),
        busiest=busiest,
        moves=int(history.column("moves").sum()),
        moved_bytes=float(history.column("moved_bytes").sum()),
        met=met,
        note=note,
    )


def _settings(
    stream: MeasuredStream, question: Question, executors: int, period_s: float
) -> Control:
    """Return settings of the controller that brings the stream to `executors` executors."""
    size = stream.key_groups * max(executors, len(stream.executors))
    return Control(
        planner=question.planner or ("milp" if size <= _SMALL else "flux"),
        scaling=fixed(executors),
        max_executors=executors,
        period=f"{period_s} seconds",
        budget=Budget(max_moves=None, max_bytes=None),
        cadence=Cadence(cool_down=f"{period_s} seconds"),
    )


def _metered(
    scenario: Scenario, settings: Control, since_s: float, seed: int
) -> tuple[Simulation, Callable[[], _Metered]]:
    """Return a simulation, and a function for its controller that adds up lanes' work.

    `since_s`: time from which work is added up.
    """
    make, meters = controlled_by(settings), list[_Metered]()

    def metered(simulation: Simulation) -> Any:
        meters.append(_Metered(make(simulation), simulation, since_s))
        return meters[-1]

    return Simulation(scenario, seed=seed, control=metered), lambda: meters[-1]


def fewest(answered: Sequence[Answer]) -> Answer | None:
    """Return the answer with the fewest executors that meet the target by the best estimate.

    ``None`` if none does.
    """
    meeting = [answer for answer in answered if answer.met in ("yes", "likely")]
    return min(meeting, key=lambda answer: answer.executors) if meeting else None
