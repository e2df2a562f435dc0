"""Time of the planners of papers 4 and 5: medians in milliseconds of processor time.

python -m benchmarks.planning_heuristics
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics
from godwit.planning.balancing import plan_clb, plan_elb
from godwit.planning.baselines import plan_pkg, plan_universal_hashing
from godwit.planning.cores.core_allocation import (
    CoreAllocationProblem,
    QueueingNetwork,
    plan_core_allocation,
)
from godwit.planning.cores.core_assignment import (
    CoreAssignmentProblem,
    plan_core_assignment,
    plan_naive_core_assignment,
)
from godwit.planning.cores.intra_executor import balance_lanes
from godwit.planning.problem import Limits, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.planning.solution import Solution


def median_ms(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(1e3 * (time.process_time() - began))
    return statistics.median(times)


def windows() -> None:
    """Measure 10,000 substreams, 100 instances, 60 windows."""
    rng = np.random.default_rng(1)
    rate = np.minimum(rng.zipf(1.6, 10_000), 200).astype(np.float64)
    history = rng.poisson(rate, (60, 10_000)).astype(np.float64)
    middle = float(history[-1].sum()) / 100
    problem = Problem(
        executors=tuple(f"e{i}" for i in range(100)),
        load=history[-1],
        state_bytes=history[-1] / 10,
        current=rng.integers(0, 100, 10_000).astype(np.int32),
        history=history,
        limits=Limits(load_low=0.8 * middle, load_high=1.2 * middle),
    )
    before = metrics.history_imbalance(problem, problem.current)
    total = problem.state_bytes.sum()
    plans: tuple[tuple[str, Callable[[], Solution], int], ...] = (
        ("elb", lambda: plan_elb(problem), 15),
        ("clb", lambda: plan_clb(problem), 3),
        ("clb as in the paper", lambda: plan_clb(problem, refine=0), 3),
        ("pkg", lambda: plan_pkg(problem), 15),
        ("universal_hashing", lambda: plan_universal_hashing(problem), 15),
    )
    for name, call, repeats in plans:
        solution = call()
        print(
            f"{name:20s} {median_ms(call, repeats):8.2f} ms, load distance "
            f"{100 * solution.load_distance / metrics.mean_index(problem):.2f} %, imbalance over "
            f"the windows {metrics.history_imbalance(problem, solution.assignment) / before:.3f} "
            f"of today's, state moved {100 * solution.moved_bytes / total:.1f} %",
            flush=True,
        )


def lanes() -> None:
    """Measure 8192 shards, 256 lanes, from a random and from the worst start."""
    rng = np.random.default_rng(2)
    load = rng.permutation(1 / np.arange(10.0, 8202.0) ** 0.5)
    for name, lane_of in (
        ("random start", rng.integers(0, 256, 8192).astype(np.int32)),
        ("all on one lane", np.zeros(8192, np.int32)),
    ):
        after = balance_lanes(load, lane_of, 256)
        factor = np.bincount(after, weights=load).max() / (load.sum() / 256)
        spent = median_ms(partial(balance_lanes, load, lane_of, 256), 9)
        print(
            f"intra_executor, {name}: {spent:.2f} ms, {int((after != lane_of).sum())} "
            f"reassignments, factor {factor:.3f}"
        )


def cores() -> None:
    """Measure 12 operators of 32 executors on 32 machines of 8 cores; half of them idle."""
    rng = np.random.default_rng(3)
    m, machines = 384, 32
    busy = rng.random(m) < 0.45

    def network(factor: np.ndarray) -> QueueingNetwork:
        return QueueingNetwork(
            arrival_per_s=np.where(busy, 500.0 * factor, 0.0),
            service_per_s=np.full(m, 1000.0),
            input_per_s=8000.0,
        )

    def allocate(factor: np.ndarray) -> CoreAllocationProblem:
        return CoreAllocationProblem(
            network=network(factor), latency_target_s=0.020, available_cores=256, idle_cores=0
        )

    before = plan_core_allocation(allocate(rng.uniform(0.2, 1.6, m)))
    changed = rng.uniform(0.2, 1.6, m)
    home = np.arange(m) % machines
    start = np.zeros((machines, m), np.int64)
    settled = CoreAssignmentProblem(
        current=start,
        machine_cores=np.full(machines, 8),
        cores=before.cores,
        state_bytes=np.full(m, 256 * 32e3),
        data_bytes_per_s=np.where(busy, 500.0 * changed, 0.0) * 1000,
        home=home,
    )
    today = plan_core_assignment(settled).cores

    def schedule() -> tuple[CoreAssignmentProblem, str]:
        allocation = plan_core_allocation(allocate(changed))
        problem = CoreAssignmentProblem(
            current=today,
            machine_cores=settled.machine_cores,
            cores=allocation.cores,
            state_bytes=settled.state_bytes,
            data_bytes_per_s=settled.data_bytes_per_s,
            home=home,
        )
        plan_core_assignment(problem)
        return problem, allocation.status

    problem, status = schedule()
    ours, naive = plan_core_assignment(problem), plan_naive_core_assignment(problem)
    print(
        f"core allocation ({status}, {int(problem.cores.sum())} cores) and assignment: "
        f"{median_ms(schedule, 15):.2f} ms; state moved {ours.migration_bytes / 1e6:.0f} MB "
        f"(naive {naive.migration_bytes / 1e6:.0f} MB), remote data "
        f"{ours.remote_bytes_per_s / 1e6:.1f} MB/s (naive {naive.remote_bytes_per_s / 1e6:.1f})"
    )


if __name__ == "__main__":
    windows()
    lanes()
    cores()
