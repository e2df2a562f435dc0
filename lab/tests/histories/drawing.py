"""A history from a seed: planner, trouble, cluster and workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from tests.support.controls import control_of

from godwit.control.scaling import utilisation
from godwit.migration import Bounds
from godwit.model.assignment import Assignment
from godwit.placement import Limits, Problem
from godwit.placement.registry import PLANNERS
from godwit_lab.simulator import (
    CostModel,
    Death,
    Keys,
    Machine,
    Pool,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Slowdown,
    Surge,
    UpstreamFeed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.control.settings import Control

__all__ = ["BASELINES", "PERIOD_S", "PLANNED_BY", "TROUBLES", "Drawn", "Trouble", "draw"]

Trouble = Literal[
    "noise", "shift", "step up", "step down", "death", "late", "drain", "straggler", "all at once"
]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
PERIOD_S = 5.0
_TROUBLE_S = 4 * PERIOD_S
_AFTER_S = 8 * PERIOD_S
_AFTER_LONG_S = 14 * PERIOD_S
_TRIGGER_S = PERIOD_S / 4
"""Four epochs a period, one more than the loop waits for: more of them show nothing else."""

_ROW_MS = 0.2
"""Some thousand rows an executor and period, so that chance alone does not look like imbalance."""
_COSTS = CostModel(fixed_ms=100, source_row_ms=0.0005, row_ms=0.001, key_ms=0.01, key_group_ms=0.03)

PLANNED_BY: tuple[str, ...] = tuple(
    p.name for p in PLANNERS.values() if p.asks is Problem and p.kind != "baseline"
)
"""Planners that say where key groups should be, all but the baselines."""
BASELINES: tuple[str, ...] = tuple(
    p.name for p in PLANNERS.values() if p.asks is Problem and p.kind == "baseline"
)

_INTERVALS = ("ssm", "simple_ssm", "oms", "mtm", "storm_default")
_FEW: Mapping[str, int] = {"simple_ssm": 32, "mtm": 16}
"""Planners that look at all assignments there are, and key groups that they can do with."""
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "milp": {"node_limit": 1, "rounds": 1},
    "albic": {"node_limit": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One history, before it happens.

    Attributes
    ----------
    seed
        Leads to it.
    planner, trouble
        Who plans, and what happens.
    at_s
        When it has happened; of several troubles, the last one.
    scenario, settings
        What runs, and how it is controlled.
    drains
        The executor that someone drains by hand; empty: none.
    """

    seed: int
    planner: str
    trouble: Trouble
    at_s: float
    scenario: Scenario
    settings: Control
    drains: str = ""


def draw(seed: int, planners: Sequence[str] = PLANNED_BY) -> Drawn:
    """Draw a history; planners take turns, and so do troubles."""
    rng = np.random.default_rng([seed, 5])
    planner = planners[seed % len(planners)]
    trouble = TROUBLES[seed // len(planners) % len(TROUBLES)]
    at_s = float(_TROUBLE_S + rng.uniform(0, PERIOD_S))
    everything = trouble == "all at once"
    intervals = planner in _INTERVALS
    executors = int(rng.integers(3, 5) if planner in _FEW else rng.integers(5, 9))
    key_groups = _FEW.get(planner) or int(rng.choice([128, 192]))
    cores = int(rng.integers(1, 3))
    # Steady input is to lie between too little and too much for the executors that there are.
    load = float(rng.uniform(0.5, 0.55) if trouble == "noise" else rng.uniform(0.3, 0.55))
    rows_per_s = load * executors * cores * 1000 / _ROW_MS
    surges: tuple[Surge, ...] = ()
    if trouble in ("step up", "late") or everything:
        rows_per_s *= 0.4
        surges = (Surge(start_s=at_s, end_s=float("inf"), factor=float(rng.uniform(2.5, 4))),)
    elif trouble == "step down":
        surges = (Surge(start_s=at_s, end_s=float("inf"), factor=float(rng.uniform(0.2, 0.4))),)
    machine = Machine(cores=cores)
    late = trouble == "late" or everything
    long = late or trouble == "straggler"  # whose epochs, and so periods, are long at first
    slow = Slowdown(executor="2", start_s=at_s, factor=float(rng.uniform(2, 4)))
    # All at once is within two epochs; the executors that are asked for come late besides.
    dies_s = at_s - float(rng.uniform(0, 2 * _TRIGGER_S)) if everything else at_s
    cluster = SimulatedCluster(
        machines=(machine,) * executors,
        added=machine,
        deaths=(Death(executor="1", at_s=dies_s),) if trouble == "death" or everything else (),
        slowdowns=(slow,) if trouble == "straggler" or everything else (),
        pool=Pool(
            most=int(rng.integers(executors, 4 * executors)) if late else None,
            start_s=(2.0, 10.0) if late else (1.0, 3.0),
            never=0.3 if late else 0.0,
            patience_s=12.0,
        ),
    )
    chained = planner == "albic" or (not intervals and bool(rng.random() < 0.3))
    components = _components(key_groups, chained=chained)
    scenario = Scenario(
        cluster=cluster,
        components=components,
        rate=Rate(rows_per_s=rows_per_s / len(components), noise=0.1, surges=surges),
        keys=Keys(
            number=int(rng.choice([2_000, 5_000, 10_000])),
            zipf=float(rng.uniform(0, 0.7)),
            shifts_s=(at_s,) if trouble == "shift" else (),
        ),
        duration_s=_TROUBLE_S + (_AFTER_LONG_S if long else _AFTER_S),
        trigger_s=_TRIGGER_S,
        max_rows=int(8 * _TRIGGER_S * rows_per_s / len(components)),
        costs=_COSTS,
        assignments={c.name: _first(c, executors, cores) for c in components} if intervals else {},
    )
    return Drawn(
        seed=seed,
        planner=planner,
        trouble=trouble,
        at_s=at_s,
        scenario=scenario,
        settings=control_of(
            planner=planner,
            options=_sizes(executors) if planner == "mtm" else _OPTIONS.get(planner, {}),
            period=f"{PERIOD_S} seconds",
            # Few key groups are coarse ones: no ranges of them are within a tenth of the mean.
            limits=Limits(tau=0.5) if planner == "mtm" else Limits(),
            scaling=utilisation() if surges or trouble == "noise" else None,
            max_executors=4 * executors,
            bounds=Bounds(max_moves=int(rng.integers(4, 33)), max_bytes=16 * 2**20),
        ),
        drains="0" if trouble == "drain" else "",
    )


def _sizes(executors: int) -> Mapping[str, Any]:
    """Numbers of executors to expect, each as likely after each."""
    sizes = list(range(1, executors + 2))
    each = np.full((len(sizes), len(sizes)), 1 / len(sizes)).tolist()
    return {"transitions": {"sizes": sizes, "probability": each}}


def _components(key_groups: int, *, chained: bool) -> tuple[SimulatedComponent, ...]:
    first = SimulatedComponent(name="first", key_groups=key_groups, row_ms=_ROW_MS, key_bytes=2_000)
    if not chained:
        return (first,)
    feeds = (UpstreamFeed(upstream="first", paired=0.8),)
    return (
        first,
        SimulatedComponent(
            name="second", key_groups=key_groups, row_ms=_ROW_MS, key_bytes=500, feeds=feeds
        ),
    )


def _first(component: SimulatedComponent, executors: int, cores: int) -> Assignment:
    """One range of key groups for each executor."""
    m = component.key_groups
    owner = np.arange(m) * executors // m
    return Assignment(
        version=0,
        executors=tuple(str(e) for e in range(executors)),
        lanes=(cores,) * executors,
        executor_of=owner.astype(np.int32),
        lane_of=(np.arange(m) % cores).astype(np.int32),
    )
