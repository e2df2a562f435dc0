"""Steps in the rate of drawn streams, in the simulator: ``python -m benchmarks.control steps``.

A stream of one to six operators runs with a latency target that some number of executors meets;
then its rate rises, up to eightfold.  Counted are decisions, the time until the target is met, and
executors beyond the fewest that meet it, which runs with fixed numbers of them find.  What no
executor helps (a lane that is full, a trigger that is too long) is in `tests.unit.control`.
``--seed S --steps N`` plays N steps from seed S on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.control.figure import Figure

from godwit.control.scaling import fixed, latency
from godwit.control.settings import Control
from godwit.model import events
from godwit_lab.simulator import (
    CostModel,
    Keys,
    Machine,
    Pool,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    Surge,
    controlled_by,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit_lab.simulator import History

__all__ = ["Step", "draw", "figures", "play", "steps"]

PERIOD_S = 5.0
STEP_S = 5 * PERIOD_S
END_S = STEP_S + 24 * PERIOD_S
MOST = 48
SOON_S = max(2 * PERIOD_S, 15.0)
"""Time in which a step is to be answered, and the target met."""
_LATE_S = 5 * PERIOD_S
_MAX_ROWS_S = 4.0
"""Rows of an epoch at most in every second stream, as the time in which they arrive in the end."""
_ROUNDING = 1.05
"""How far above its target a measured latency may be that meets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One drawn stream."""

    seed: int
    scenario: Scenario
    target_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of a step."""

    seed: int
    decisions: int  # after the step
    executors: int  # in the end
    fewest: int | None  # that meet the target; ``None``: none do
    measured_s: float  # latency in the end
    target_s: float
    until_met_s: float  # from the step on; infinite: it was not met

    @property
    def met(self) -> bool:
        """True if the target is met in the end."""
        return self.measured_s <= self.target_s * _ROUNDING

    @property
    def falls_short(self) -> bool:
        """True if it took three decisions, missed its target or has two executors too many."""
        known = self.fewest is not None
        return self.decisions > 2 or (
            known and (not self.met or self.executors > (self.fewest or 0) + 1)
        )


def draw(seed: int) -> Stream:
    """Draw a stream, and a target that is above what an epoch takes by itself."""
    rng = np.random.default_rng([seed, 18])
    cores, executors = int(rng.choice([1, 2, 4])), int(rng.integers(2, 5))
    operators = int(rng.choice([1, 2, 6]))
    trigger_s = float(rng.choice([0.0, 0.0, 2.0]))
    fixed_s = float(rng.uniform(0.2, 0.5))
    machine = Machine(cores=cores)
    row_ms = 1.0 / operators
    usual_per_s = float(rng.uniform(0.2, 0.5)) * executors * cores * 1000
    factor = float(2 ** rng.uniform(0.6, 3.0))
    rate = Rate(
        rows_per_s=usual_per_s,
        noise=0.05,
        surges=(Surge(start_s=STEP_S, end_s=END_S + 1, factor=factor),),
    )
    scenario = Scenario(
        cluster=SimulatedCluster(
            machines=(machine,) * executors, added=machine, pool=Pool(start_s=(1.0, 5.0))
        ),
        components=tuple(
            SimulatedComponent(
                name=f"o{n}", key_groups=max(192 // operators, 48), row_ms=row_ms, key_bytes=100
            )
            for n in range(operators)
        ),
        rate=rate,
        keys=Keys(number=20_000, zipf=float(rng.uniform(0.0, 0.5))),
        duration_s=END_S,
        trigger_s=trigger_s,
        longest_epoch_s=max(PERIOD_S / 2, trigger_s),  # as the loop over own sources has it
        costs=CostModel(
            fixed_ms=1000 * fixed_s, source_row_ms=0, row_ms=0, key_ms=0, key_group_ms=0
        ),
    )
    floor_s = max(trigger_s, fixed_s) / 2 + fixed_s
    target_s = floor_s * float(rng.uniform(1.6, 4.0))
    if rng.random() < 0.5:
        scenario = replace(scenario, max_rows=int(_MAX_ROWS_S * usual_per_s * factor))
    return Stream(seed=seed, scenario=scenario, target_s=target_s)


def play(stream: Stream) -> Step:
    """Play a stream with its target, and find the fewest executors that would have done."""
    control = Control(
        planner="flux",
        period=f"{PERIOD_S} seconds",
        scaling=latency(f"{stream.target_s} seconds"),
        max_executors=MOST,
    )
    history = Simulation(stream.scenario, seed=stream.seed, control=controlled_by(control)).run()
    after = history.between(STEP_S, END_S)
    executors = after.epochs[-1].executors
    return Step(
        seed=stream.seed,
        decisions=len(after.of_kind(events.ScaledOut, events.ScaledIn)),
        executors=executors,
        fewest=_fewest(stream, executors),
        measured_s=history.between(END_S - _LATE_S, END_S).delays().mean_s,
        target_s=stream.target_s,
        until_met_s=until_met_s(history, stream.target_s),
    )


def until_met_s(history: History, target_s: float) -> float:
    """Return the time from the step to the first commit from which on the target is kept.

    It is kept from a commit on if the rows of that epoch meet the target, and so does the mean of
    the period after each commit from there to the end.  Infinite if that is not long before the
    end.
    """
    epochs = [epoch for epoch in history.between(STEP_S, END_S).epochs if epoch.delays.rows]
    rows = np.array([epoch.delays.rows for epoch in epochs])
    ended_s = np.array([epoch.ended_s for epoch in epochs])
    waited_s = rows * [epoch.delays.mean_s for epoch in epochs]
    last = np.searchsorted(ended_s, ended_s + PERIOD_S)
    rows_sum, waited_sum = (np.concatenate(([0.0], np.cumsum(each))) for each in (rows, waited_s))
    mean_s = (waited_sum[last] - waited_sum[:-1]) / (rows_sum[last] - rows_sum[:-1])
    allowed_s = target_s * _ROUNDING
    above = np.flatnonzero((mean_s > allowed_s) & (ended_s <= END_S - PERIOD_S))
    met = int(above[-1]) + 1 if len(above) else 0
    if not met and waited_s[0] <= allowed_s * rows[0]:
        return 0.0
    kept = met + np.flatnonzero(waited_s[met:] <= allowed_s * rows[met:])
    until_s = float(ended_s[kept[0]]) - STEP_S if len(kept) else float("inf")
    return until_s if until_s < END_S - STEP_S - 2 * PERIOD_S else float("inf")


def _fewest(stream: Stream, start: int) -> int | None:
    """Fewest executors that meet the target at the rate after the step, near those there are."""
    count = start
    if not _meets(stream, count):
        while count < min(start + _SEARCHED, MOST) and not _meets(stream, count):
            count += 1
        return count if _meets(stream, count) else None
    while count > max(start - _SEARCHED, 1) and _meets(stream, count - 1):
        count -= 1
    return count


_SEARCHED = 4
"""By how many executors more, and fewer, the fewest are looked for."""


def _meets(stream: Stream, executors: int) -> bool:
    """Return whether so many executors meet the target at the rate after the step."""
    scenario = stream.scenario
    factor = scenario.rate.surges[0].factor
    steady = replace(
        scenario,
        cluster=replace(scenario.cluster, machines=(scenario.cluster.added,) * executors),
        rate=replace(scenario.rate, rows_per_s=scenario.rate.rows_per_s * factor, surges=()),
        duration_s=6 * PERIOD_S,
    )
    control = Control(planner="flux", period=f"{PERIOD_S} seconds", scaling=fixed(executors))
    history = Simulation(steady, seed=stream.seed, control=controlled_by(control)).run()
    late = history.between(3 * PERIOD_S, 6 * PERIOD_S).delays()
    return late.mean_s <= stream.target_s


def steps(seeds: range = range(500)) -> list[Figure]:
    """Play steps in the rate, print those that fall short, and return figures of all."""
    played = []
    for seed in seeds:
        step = play(draw(seed))
        played.append(step)
        if step.falls_short:
            print(step, flush=True)
    return figures(played)


def figures(played: Sequence[Step]) -> list[Figure]:
    """Return the figures of steps that were played."""
    known = [step for step in played if step.fewest is not None]
    more = np.array([step.executors - (step.fewest or 0) for step in known])
    decisions = np.array([step.decisions for step in played])
    until_s = np.array([step.until_met_s for step in known])
    return [
        Figure(what="steps", value=len(played)),
        Figure(
            what="share of targets met, of those that some number near it meets",
            value=float(np.mean([step.met for step in known])),
            target=1.0,
        ),
        Figure(
            what="executors beyond the fewest: median",
            value=float(np.median(more)),
            target=0,
            good="at most",
        ),
        Figure(
            what="executors beyond the fewest: 95th percentile",
            value=float(np.quantile(more, 0.95)),
            target=1,
            good="at most",
        ),
        Figure(
            what="share of steps with at most one executor beyond the fewest",
            value=float(np.mean(more <= 1)),
            target=0.95,
        ),
        Figure(
            what="share of steps with at most two decisions",
            value=float(np.mean(decisions <= 2)),
            target=1.0,
        ),
        Figure(
            what="decisions a step: 95th percentile",
            value=float(np.quantile(decisions, 0.95)),
            target=2,
            good="at most",
        ),
        Figure(
            what=f"share of steps with the target met within {SOON_S:g} s",
            value=float(np.mean(until_s <= SOON_S)),
            target=1.0,
        ),
        Figure(
            what="seconds from a step to the target met: median",
            value=float(np.median(until_s)),
            target=15,
            good="at most",
        ),
        Figure(
            what="seconds from a step to the target met: 95th percentile",
            value=float(np.quantile(until_s, 0.95, method="lower")),
        ),
    ]
