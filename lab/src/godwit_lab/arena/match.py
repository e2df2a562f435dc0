"""One match: an autoscaler on a pattern and a query, and the figures of what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from godwit.control.scaling import Scripted
from godwit.control.settings import Control, Means, Search, Worth
from godwit.model import events
from godwit.placement import Limits
from godwit_lab.arena.autoscalers import AUTOSCALERS, PERIOD_S
from godwit_lab.arena.least import GRID_S, LeastExecutors
from godwit_lab.arena.patterns import DURATION_S, MOST, START_S, first_share
from godwit_lab.arena.restarts import (
    Restart,
    RestartingSimulation,
    place_by_number,
    plan_by_number,
)
from godwit_lab.simulator.run import Simulation, controlled_by

if TYPE_CHECKING:
    from godwit.control.scaling import ScalingModel
    from godwit_lab.arena.patterns import Pattern
    from godwit_lab.arena.queries import QueryModel
    from godwit_lab.simulator.history import History
    from godwit_lab.simulator.scenario import Scenario

Mechanism = Literal["live", "restart"]
MECHANISMS: tuple[Mechanism, ...] = ("live", "restart")
ORACLE = "oracle"
TARGET_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one match."""

    pattern: str
    query: str
    autoscaler: str
    mechanism: str
    seed: int
    # share of the periods, by time of arrival, in which the mean latency misses the target
    violated: float
    cost: float  # executor-seconds over the least that suffices
    reconfigurations: int  # decisions that changed the number of executors
    late: float  # share of the rows that took more than twice the target
    moved_mb: float  # state moved or read again
    p99_s: float  # 99th percentile of rows' latency
    changes: int  # steps in the load of the pattern

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One match to play: equal ones give equal figures."""

    pattern: Pattern
    query: QueryModel
    autoscaler: str  # its name, or ``"oracle"``
    mechanism: Mechanism = "live"
    seed: int = 0
    duration_s: float = DURATION_S
    target_s: float = TARGET_S
    planner: str = "flux"
    restart: Restart = field(default_factory=Restart)

    def play(self) -> tuple[Figures, History]:
        """Play the match; return its figures and the history that they sum up."""
        best = optimum(replace(self, autoscaler=ORACLE, mechanism="live"))
        if self.autoscaler == ORACLE:
            model: ScalingModel = best.schedule
        else:
            model = AUTOSCALERS[self.autoscaler].make(self.target_s)
        return self.play_with(model, best.executor_s)

    def play_with(self, model: ScalingModel, least_s: float) -> tuple[Figures, History]:
        """Play with a scaling model; `least_s`: executor-seconds that costs are divided by."""
        simulation = self._simulation(self._scenario(), model)
        history = simulation.run(settle_s=5 * PERIOD_S)
        again = getattr(simulation, "read_bytes", 0.0)
        return self._figures(history, least_s, again), history

    def least(self) -> LeastExecutors:
        """Return the fewest executors that suffice for the load of this match."""
        return LeastExecutors(
            self._scenario(),
            self.target_s,
            seed=self.seed,
            most=MOST,
            first_share=first_share if self.pattern.source else None,
        )

    def _scenario(self) -> Scenario:
        """Return the pattern's scenario of the query, with a limit of rows per epoch."""
        scenario = self.pattern.scenario(self.query, self.duration_s)
        control = Control(period=f"{PERIOD_S} seconds", scaling=AUTOSCALERS["godwit"].make(1.0))
        scenario = replace(scenario, longest_epoch_s=control.longest_epoch_s(scenario.trigger_s))
        if self.mechanism == "restart":
            placed = place_by_number([str(i) for i in range(len(scenario.cluster.machines))])
            names = [component.name for component in scenario.components]
            scenario = replace(scenario, assignments=dict.fromkeys(names, placed))
        return scenario

    def _simulation(self, scenario: Scenario, model: ScalingModel) -> Simulation:
        """Return the run, with the controller and the mechanism."""
        shared: dict[str, Any] = {
            "period": f"{PERIOD_S} seconds",
            "scaling": model,
            "max_executors": MOST,
            # Rows take no time on links here, so there is no use in balancing links.
            "worth": Worth(means=Means(link_bytes_per_s=None)),
        }
        source = self.pattern.source(scenario, self.seed) if self.pattern.source else None
        if self.mechanism == "live":
            settings = Control(planner=self.planner, **shared)
            return Simulation(
                scenario, seed=self.seed, control=controlled_by(settings), source=source
            )
        settings = Control(
            planner=plan_by_number,
            search=Search(limits=Limits(tau=_ANY_BALANCE)),
            **shared,
        )
        return RestartingSimulation(
            scenario,
            seed=self.seed,
            control=controlled_by(settings),
            source=source,
            restart=self.restart,
        )

    def _figures(self, history: History, least_s: float, again: float) -> Figures:
        """Return the figures of a history."""
        delays = history.delays()
        return Figures(
            pattern=self.pattern.name,
            query=self.query.name,
            autoscaler=self.autoscaler,
            mechanism=self.mechanism,
            seed=self.seed,
            violated=violated_share(history, self.target_s, self.duration_s),
            cost=executor_seconds(history, self.duration_s) / least_s,
            reconfigurations=len(history.of_kind(events.ScaledOut, events.ScaledIn)),
            late=late_share(history, 2 * self.target_s),
            moved_mb=(float(history.column("moved_bytes").sum()) + again) / 1e6,
            p99_s=delays.quantile_s(0.99),
            changes=self.pattern.changes,
        )


_ANY_BALANCE = 50.0
"""A bound on imbalance that placement by number always keeps."""
_LEAD_S = START_S[1] + 2 * GRID_S
_RESERVES = (0.05, 0.15, 0.3)
_SUFFICES = 0.02
"""Share of the time that the offline optimum may miss the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """Cheapest schedule known that meets the target, and what it costs."""

    schedule: Scripted
    executor_s: float
    violated: float  # share of the time that it still misses the target
    reserve: float  # share by which it provides for more than the load


@cache
def optimum(match: Match) -> Optimum:
    """Return the offline optimum of a match: the load is known, before it comes.

    The fewest executors that suffice (`LeastExecutors`) are asked for before they are needed.
    They would suffice at rest, evenly loaded and without noise; so the schedule provides for a
    little more load: the least reserve that keeps the target for 98 % of the time when played, or
    that of which the target is missed least.
    """
    least, best = match.least(), None
    for reserve in _RESERVES:
        schedule = _schedule(least, reserve)
        figures, history = match.play_with(schedule, 1.0)
        if best is None or figures.violated < best.violated:
            best = Optimum(
                schedule=schedule,
                executor_s=executor_seconds(history, match.duration_s),
                violated=figures.violated,
                reserve=reserve,
            )
        if best.violated <= _SUFFICES:
            break
    assert best is not None, "there is a reserve"
    return best


def _schedule(least: LeastExecutors, reserve: float) -> Scripted:
    """Return the fewest executors for the load and a reserve, asked for before they are needed.

    Fewer follow only where they suffice for as long as an executor takes to come.
    """
    fewest = least.over_time(1 + reserve)
    ahead = int(_LEAD_S / GRID_S)
    steps = [max(fewest[i : i + ahead]) for i in range(len(fewest))]
    changes = [0, *(i for i in range(1, len(steps)) if steps[i] != steps[i - 1])]
    times = least.times_s()
    return Scripted(steps=tuple((float(times[i]), steps[i]) for i in changes), name=ORACLE)


def violated_share(history: History, target_s: float, duration_s: float) -> float:
    """Return the share of periods, by the time of arrival, in which rows missed the target.

    In the mean of a period, as the target of `gw.control.latency` is meant.  Periods of which no
    row was processed by the end of the run count as missed.
    """
    periods = int(duration_s / PERIOD_S)
    rows, waited_s = np.zeros(periods), np.zeros(periods)
    for epoch in history.epochs:
        count, fewest_s, most_s = epoch.delays.pieces.T
        mean_s = (fewest_s + most_s) / 2
        period = ((epoch.ended_s - mean_s) / PERIOD_S).astype(np.int64).clip(0, periods - 1)
        np.add.at(rows, period, count)
        np.add.at(waited_s, period, count * mean_s)
    missed = (rows == 0) | (waited_s > target_s * np.maximum(rows, 1e-9))
    return float(missed.mean())


def late_share(history: History, beyond_s: float) -> float:
    """Return the share of all rows, also of those never processed, that took longer than that."""
    count, fewest_s, most_s = history.delays().pieces.T
    width = np.maximum(most_s - fewest_s, 1e-9)
    above = ((most_s - beyond_s) / width).clip(0, 1)
    # A row counts in `delays` once for every operator that reads the source.
    left = history.epochs[-1].lag_rows if history.epochs else 0
    sources = count.sum() / max(float(history.column("rows").sum()), 1.0)
    return float((count @ above / sources + left) / (count.sum() / sources + left))


def executor_seconds(history: History, until_s: float) -> float:
    """Return the seconds of all executors that were there, up to a time."""
    ended = np.minimum(history.column("ended_s"), until_s)
    return float(np.diff(ended, prepend=0.0) @ history.column("executors"))
