"""Days with a night, with and without a forecast: ``python -m benchmarks.control days``.

A day is compressed to five minutes in the simulator; executors take twenty seconds to come.
Counted from the third day on, when two have been seen.  A stream without a period is played too,
where a forecast has nothing to foresee and should cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from benchmarks.control.figure import Figure

from godwit.control.forecast import Forecast
from godwit.control.scaling import latency
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
    controlled_by,
)

__all__ = ["Days", "daily", "days", "play_days"]

TARGET_S = 1.6
_SEEN = 2.2
"""Days after which a forecast can have been used for some time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """What came of some days."""

    late_s: float  # 99th percentile of the delays of rows
    slow: float  # share of the epochs whose rows took longer than the target on average
    executor_s: float  # executors times seconds
    most: int  # executors at once
    judged: list[events.ForecastJudged]


def daily(day_s: float, num_days: float, *, height: float, noise: float = 0.1) -> Scenario:
    """Make a stream whose rate rises by `height` times the night's until noon."""
    times = np.arange(0, num_days * day_s, 2.0)
    factors = 1 + 0.5 * height * (1 - np.cos(2 * math.pi * times / day_s))
    return Scenario(
        cluster=SimulatedCluster(
            machines=(Machine(),) * 3, pool=Pool(most=16, start_s=(day_s / 15, day_s / 15))
        ),
        components=(SimulatedComponent(name="sums", key_groups=64, row_ms=1.0, key_bytes=1000),),
        rate=Rate(
            rows_per_s=1500,
            noise=noise,
            steps=tuple(zip(times.tolist(), factors.tolist(), strict=True)),
        ),
        keys=Keys(number=5000, zipf=0.2),
        duration_s=num_days * day_s,
        trigger_s=1.0,
        costs=CostModel(fixed_ms=100, source_row_ms=0, row_ms=0, key_ms=0, key_group_ms=0),
    )


def play_days(
    scenario: Scenario, forecast: Forecast | None, *, from_s: float, seed: int = 3
) -> Days:
    """Play days under a latency target."""
    control = Control(
        planner="flux",
        period="5 seconds",
        scaling=latency(f"{TARGET_S} seconds"),
        max_executors=12,
        forecast=forecast,
    )
    history = Simulation(scenario, seed=seed, control=controlled_by(control)).run()
    late = history.between(from_s, math.inf)
    there = late.column("executors")
    return Days(
        late_s=late.delays().quantile_s(0.99),
        slow=float(np.mean([e.delays.mean_s > TARGET_S for e in late.epochs if e.rows])),
        executor_s=float(there[1:] @ np.diff(late.column("ended_s"))),
        most=int(history.column("executors").max()),
        judged=history.of_kind(events.ForecastJudged),
    )


def days(day_s: float = 300.0, num_days: float = 5.0) -> list[Figure]:
    """Compare days without a forecast, with one of a known period, and with one that finds it."""
    figures = []
    for name, height, noise in (("days", 3.0, 0.1), ("no days", 0.0, 0.4)):
        scenario = daily(day_s, num_days, height=height, noise=noise)
        alone, given, found = (
            play_days(scenario, forecast, from_s=_SEEN * day_s)
            for forecast in (None, Forecast(period=f"{day_s} seconds"), Forecast())
        )
        figures.append(Figure(what=f"{name}: p99 in s, no forecast", value=alone.late_s))
        figures.append(Figure(what=f"{name}: share of epochs over the target", value=alone.slow))
        for kind, run in (("period given", given), ("period found", found)):
            figures += [
                Figure(
                    what=f"{name}: p99 in s, {kind}",
                    value=run.late_s,
                    target=alone.late_s,
                    good="at most",
                ),
                Figure(
                    what=f"{name}: share of epochs over the target, {kind}",
                    value=run.slow,
                    target=alone.slow,
                    good="at most",
                ),
                Figure(
                    what=f"{name}: executors x time over that without, {kind}",
                    value=run.executor_s / alone.executor_s,
                    target=1.2,
                    good="at most",
                ),
            ]
    return figures
