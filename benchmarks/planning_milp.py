"""MILP against Flux: figures 2-4 and 6-7 of paper 2.

    python benchmarks/planning_milp.py                # 1, 3 and 5 s for the three cluster sizes
    python benchmarks/planning_milp.py --reference 0  # without what is reached in 60 s
    python benchmarks/planning_milp.py --drift        # 50 periods of drifting load, 13 moves each

Load distances are percent of the mean load. *Reference* is what the same planner reaches in 60 s
when it never gives up before. It is left out (``-``) where the plans are within 0.1 % of the mean
of the proved bound, so that it could not be further below them. ``--cpu`` counts the processor's
seconds instead of the wall's: on a busy machine that is what an idle one would do.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics
from godwit.planning.allocation.milp import plan_milp
from godwit.planning.baselines import plan_flux
from godwit.planning.problem import Limits, Problem
from godwit.planning.solution import validate_solution

if TYPE_CHECKING:
    from collections.abc import Callable

CLUSTERS = ((20, 400), (40, 800), (60, 1200))


def synthetic_cluster(
    executors: int, key_groups: int, *, max_moves: int, varies: float, rng: np.random.Generator
) -> Problem:
    """Set up paper 2 §5.1: key groups within 5 % of each other, a fifth of the executors changed.

    Half of those lose, half gain ``varies / 2`` percent of an executor, spread over a random half
    of their key groups. An executor's load is 50 before.
    """
    per = key_groups // executors
    current = np.repeat(np.arange(executors, dtype=np.int32), per)
    load = 50.0 / per * (1 + rng.uniform(-0.05, 0.05, key_groups))
    for j, e in enumerate(rng.choice(executors, executors // 5, replace=False).tolist()):
        some = rng.choice(np.flatnonzero(current == e), per // 2, replace=False)
        change = 0.5 * varies / 100 * 50.0 / len(some)
        load[some] = np.maximum(load[some] + (change if j % 2 else -change), 0.01)
    return Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=load,
        state_bytes=np.full(key_groups, 1e6),
        current=current,
        limits=Limits(max_moves=max_moves),
    )


def quality_against_time(reference_s: float, clock: Callable[[], float]) -> None:
    print("executors key_groups moves |   flux |    1 s |    3 s |    5 s |  bound | reference")
    for executors, key_groups in CLUSTERS:
        for max_moves in (10, 20, 30, 40):
            problem = synthetic_cluster(
                executors,
                key_groups,
                max_moves=max_moves,
                varies=40.0,
                rng=np.random.default_rng(executors + max_moves),
            )
            mean = metrics.mean_index(problem)
            row = [100 * plan_flux(problem).load_distance / mean]
            bound = 0.0
            for limit_s in (1.0, 3.0, 5.0):
                solution = plan_milp(problem, time_limit_s=limit_s, clock=clock)
                validate_solution(solution)
                row.append(100 * solution.load_distance / mean)
                bound = 100 * (solution.bound or 0.0) / mean
            reference = "     -"
            if reference_s and max(row[1:]) - bound > 0.1:
                never = 10**9
                long = plan_milp(
                    problem, time_limit_s=reference_s, rounds=never, patience=never, clock=clock
                )
                reference = f"{100 * long.load_distance / mean:6.3f}"
            print(
                f"{executors:9d} {key_groups:10d} {max_moves:5d} | "
                + " | ".join(f"{value:6.3f}" for value in [*row, bound])
                + f" | {reference}",
                flush=True,
            )


def drifting_load(periods: int) -> None:
    """Compare over time: 20 executors, 300 key groups, 13 moves a period (figures 6 and 7)."""
    rng = np.random.default_rng(7)
    executors, key_groups = 20, 300
    base = rng.uniform(0.5, 1.5, key_groups)
    current = {name: np.arange(key_groups, dtype=np.int32) % executors for name in ("milp", "flux")}
    distance: dict[str, list[float]] = {"milp": [], "flux": []}
    seconds = []
    for _ in range(periods):
        base *= np.exp(rng.normal(0, 0.05, key_groups))
        for name, start in current.items():
            problem = Problem(
                executors=tuple(f"e{i}" for i in range(executors)),
                load=base,
                state_bytes=np.full(key_groups, 1e6),
                current=start,
                limits=Limits(max_moves=13),
            )
            began = time.perf_counter()
            solution = plan_flux(problem) if name == "flux" else plan_milp(problem, time_limit_s=1)
            if name == "milp":
                seconds.append(time.perf_counter() - began)
            current[name] = solution.assignment
            distance[name].append(100 * solution.load_distance / metrics.mean_index(problem))
    settled = {name: np.array(values[5:]) for name, values in distance.items()}
    for name, values in settled.items():
        print(f"{name}: mean {values.mean():.2f} %, worst {values.max():.2f} %")
    print(f"milp: {np.median(seconds):.2f} s a plan")


def scale_in(*, overloaded: int) -> None:
    """Drain 10 of 60 executors while some are overloaded, 20 moves a period (figure 5)."""
    problem = synthetic_cluster(
        60, 1200, max_moves=20, varies=0.0, rng=np.random.default_rng(overloaded)
    )
    load = problem.load[:, 0].copy()
    load[problem.current < overloaded] *= 2
    draining = np.arange(60) >= 50
    problem = replace(problem, load=load, draining=draining)
    for period in range(1, 60):
        solution = plan_milp(problem, time_limit_s=1, patience=50)
        left = int(draining[solution.assignment].sum())
        share = 100 * solution.load_distance / metrics.mean_index(problem)
        if period <= 3 or left == 0:
            print(f"{overloaded} overloaded, period {period}: {share:.2f} %, {left} left to drain")
        if left == 0:
            return
        problem = replace(problem, current=solution.assignment)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--scale-in", action="store_true")
    arguments = parser.parse_args()
    if arguments.drift:
        drifting_load(50)
    elif arguments.scale_in:
        scale_in(overloaded=1)
        scale_in(overloaded=5)
    else:
        quality_against_time(
            arguments.reference, time.process_time if arguments.cpu else time.perf_counter
        )
