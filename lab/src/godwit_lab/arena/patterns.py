"""Patterns of load of the arena, each a scenario made for a query.

Levels are in *lanes*: the load that keeps that many cores busy all the time, so that a pattern asks
about as much of every query.  Shapes are those of published evaluations of autoscalers: steps and
ramps (DS2), a cosine (the Delft evaluation; ContTune's periodic rates), flash crowds, and traces;
besides, what fools a rule that looks at means: drifting skew, a straggler, a serial sink, and two
sources whose rates change against each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit_lab.simulator.cluster import Machine, Pool, SimulatedCluster, Slowdown
from godwit_lab.simulator.costs import CostModel
from godwit_lab.simulator.flow import SimulatedFlow, levels_of
from godwit_lab.simulator.scenario import Scenario
from godwit_lab.simulator.workload import DrawnRows, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit_lab.arena.queries import QueryModel
    from godwit_lab.simulator.workload import Batch, SimulatedSource

DURATION_S = 240.0
TRIGGER_S = 1.0
MOST = 40
START_S = (3.0, 6.0)
_AT_FIRST = 0.7
"""Share of its time that lanes are busy at the beginning: nothing is behind."""
_GRID_S = 2.0
_NOISE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pattern:
    """One pattern of load."""

    name: str
    purpose: str
    # share of the run in [0, 1) → load in lanes; or the points of a curve, from a file
    lanes: Callable[[float], float]
    changes: int  # steps in the load, that reconfigurations are counted by
    make: Callable[[Scenario, QueryModel], Scenario] = lambda scenario, _query: scenario
    # for a scenario and a seed: where rows come from, if not as the scenario's rate says
    source: Callable[[Scenario, int], SimulatedSource] | None = None

    def scenario(self, query: QueryModel, duration_s: float = DURATION_S) -> Scenario:
        """Return the pattern as a scenario of a query."""
        unit_per_s = 1000 / query.row_ms
        times = np.arange(0.0, duration_s, _GRID_S)
        levels = [self.lanes(float(t / duration_s)) for t in times]
        starts = [0, *(i for i in range(1, len(levels)) if levels[i] != levels[i - 1])]
        rate = Rate(
            rows_per_s=unit_per_s,
            steps=tuple((float(times[i]), levels[i]) for i in starts),
            noise=_NOISE,
        )
        machine = Machine(cores=1)
        scenario = Scenario(
            cluster=SimulatedCluster(
                machines=(machine,) * math.ceil(levels[0] / _AT_FIRST),
                added=machine,
                pool=Pool(most=MOST, start_s=START_S),
            ),
            components=query.components(),
            rate=rate,
            keys=query.keys_of(),
            duration_s=duration_s,
            trigger_s=TRIGGER_S,
            # a query's rows cost what they do with their keys
            costs=replace(CostModel.calibrated(), row_ms=0.0, key_ms=0.0),
        )
        return self.make(scenario, query)


def _steps(*levels: float) -> Callable[[float], float]:
    """Return a load that takes each level for an equal share of the run."""
    return lambda share: levels[min(int(share * len(levels)), len(levels) - 1)]


def _cosine(share: float) -> float:
    """Return a load that rises and falls twice, from two to ten lanes."""
    return round(6 - 4 * math.cos(4 * math.pi * share), 1)


def _ramp(share: float) -> float:
    """Return a load that rises slowly and falls slowly."""
    return round(2 + 16 * min(share, 1 - share), 1)


def _crowd(share: float) -> float:
    """Return a load with two flash crowds: up at once, down by halves."""
    since = min((share - start for start in (0.2, 0.6) if share >= start), default=math.inf)
    return 2 + (round(8 * 0.5 ** (since / 0.04), 1) if since < 0.24 else 0.0)


def _with_keys(*, zipf: float, every: float) -> Callable[[Scenario, QueryModel], Scenario]:
    """Return a change of a scenario: skewed keys, shuffled at every such share of the run."""

    def make(scenario: Scenario, query: QueryModel) -> Scenario:
        shifts = np.arange(every, 0.999, every) * scenario.duration_s
        return replace(scenario, keys=query.keys_of(zipf=zipf, shifts_s=tuple(shifts.tolist())))

    return make


def _with_straggler(scenario: Scenario, _query: QueryModel) -> Scenario:
    """Return the scenario with an executor that is three times slower from a quarter on."""
    slow = Slowdown(executor="0", start_s=scenario.duration_s / 4, factor=3)
    return replace(scenario, cluster=replace(scenario.cluster, slowdowns=(slow,)))


def _with_two_sources(scenario: Scenario, _query: QueryModel) -> Scenario:
    """Return the scenario with a second copy of all operators, which a second source feeds."""
    copies = tuple(
        replace(
            component,
            name=f"{component.name}_2",
            feeds=tuple(replace(feed, upstream=f"{feed.upstream}_2") for feed in component.feeds),
        )
        for component in scenario.components
    )
    return replace(scenario, components=(*scenario.components, *copies))


class TwoSources:
    """Rows of two sources in one stream: the share of the first one changes with time.

    Operators whose names end in ``_2`` read the second source.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        levels = levels_of(scenario.components)
        rng = np.random.default_rng([seed, 4])
        spreads = {
            name: spread
            for name, spread in SimulatedFlow(
                scenario.components, scenario.keys, scenario.costs, seed=seed, rng=rng
            ).spreads.items()
            if name in {component.name for component in levels[0]}
        }
        self._rows = DrawnRows(scenario.rate, scenario.keys, scenario.duration_s, {}, rng)
        self._spreads, self._rng, self._duration_s = spreads, rng, scenario.duration_s

    def arrived_by(self, time_s: float) -> int:
        """Return the number of rows of both that have arrived by `time_s`."""
        return self._rows.arrived_by(time_s)

    def batch(self, number: int, first: int, last: int) -> Batch:
        """Return micro-batch `number`, of rows ``first <= r < last``; called once per range."""
        batch = self._rows.batch(number, first, last)
        share = first_share(float(batch.arrived[0, 1]) / self._duration_s)
        ours = int(self._rng.binomial(last - first, share))
        counts = {
            name: last - first - ours if name.endswith("_2") else ours for name in self._spreads
        }
        rows = {
            name: self._rng.multinomial(counts[name], spread.phase(batch.phase).share)
            for name, spread in self._spreads.items()
        }
        return replace(batch, rows_of=rows)

    def empty_batch(self, time_s: float, first: int) -> Batch:
        """Return an empty batch, for an epoch without input."""
        return self._rows.empty_batch(time_s, first)


def first_share(share: float) -> float:
    """Return the share of the rows that the first of two sources has, over the run."""
    return 0.5 + 0.4 * math.sin(4 * math.pi * share)


_SERIAL_LANES = 14
"""Load in lanes at which a serial sink alone would be busy all the time."""


def _with_serial_sink(scenario: Scenario, query: QueryModel) -> Scenario:
    """Return the scenario with a sink that takes rows one after another."""
    costs = replace(scenario.costs, serial_row_ms=query.row_ms / _SERIAL_LANES)
    return replace(scenario, costs=costs)


PATTERNS: Mapping[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        Pattern(
            name="constant",
            purpose="four lanes, always",
            lanes=_steps(4),
            changes=1,
        ),
        Pattern(
            name="steps",
            purpose="2, 6, 3, 8 and 2 lanes",
            lanes=_steps(2, 6, 3, 8, 2),
            changes=5,
        ),
        Pattern(name="cosine", purpose="two waves of 2 to 10 lanes", lanes=_cosine, changes=8),
        Pattern(name="ramp", purpose="from 2 lanes to 10 and back", lanes=_ramp, changes=4),
        Pattern(
            name="crowd",
            purpose="two flash crowds: 2 lanes to 10 at once, halved every 4 % of the run",
            lanes=_crowd,
            changes=4,
        ),
        Pattern(
            name="drift",
            purpose="4 lanes; keys of Zipf exponent 1 change frequencies eight times",
            lanes=_steps(4),
            changes=8,
            make=_with_keys(zipf=1.0, every=0.125),
        ),
        Pattern(
            name="straggler",
            purpose="3 lanes; one executor is three times slower from a quarter on",
            lanes=_steps(3),
            changes=2,
            make=_with_straggler,
        ),
        Pattern(
            name="sink",
            purpose="2, 5 and 2 lanes before a serial sink",
            lanes=_steps(2, 5, 2),
            changes=3,
            make=_with_serial_sink,
        ),
        Pattern(
            name="sources",
            purpose="4, 7 and 4 lanes of two sources; the share of each goes between 10 and 90 %",
            lanes=_steps(4, 7, 4),
            changes=3,
            make=_with_two_sources,
            source=TwoSources,
        ),
    )
}


def trace(name: str, rates: Sequence[float] | np.ndarray, peak: float = 9.0) -> Pattern:
    """Return a pattern that follows measured rates, scaled in time to the run and to `peak` lanes.

    Raises `InvalidProblemError` if there are no rates, all are 0, or one is negative or not finite.
    """
    values = np.asarray(rates, np.float64)
    points = int(DURATION_S / _GRID_S)
    width = max(len(values) // points, 1)
    coarse = values[: len(values) // width * width].reshape(-1, width).mean(axis=1)
    if not len(coarse) or coarse.max() == 0 or not (np.isfinite(values) & (values >= 0)).all():
        raise InvalidProblemError(
            f"The trace {name!r} has no rates, or values that are none.",
            remedy="Give rows per second, one value after another, none below 0 and some above.",
            field="rates",
        )
    scaled = np.maximum(coarse * (peak / coarse.max()), 0.2)

    def lanes(share: float) -> float:
        return round(float(scaled[min(int(share * len(scaled)), len(scaled) - 1)]), 1)

    return Pattern(name=name, purpose="measured rates", lanes=lanes, changes=8)
