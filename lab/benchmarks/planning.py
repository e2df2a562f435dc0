"""Time the planners of papers 1, 4 and 5; MILP and ALBIC are of `godwit reproduce paper2`.

    python -m lab.benchmarks.planning [ssm] [exact] [sampled] [future] [windows] [lanes] [cores]
    python -m lab.benchmarks.planning largest --seconds 600

Medians of several runs by processor time, fixed seeds.  ``ssm``; projected costs, ``exact`` and
``sampled``; ``future``: MTM against SSM.  ``windows``: ELB, CLB and their baselines; ``lanes`` and
``cores``: paper 5.  ``largest`` finds how many partitionings can be solved exactly in the time
given, on Spark with two cores: spaces grow until one takes a twentieth of it, and then the largest
is taken that should fit, as the time grows with the square of the partitionings.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.cores.core_allocation import (
    CoreAllocationProblem,
    QueueingNetwork,
    plan_core_allocation,
)
from godwit.control.planners.cores.intra_executor import balance_lanes
from godwit.placement import metrics
from godwit.placement.problem import Limits, Problem
from godwit_lab.planners.balancing import plan_clb, plan_elb
from godwit_lab.planners.baselines import plan_pkg, plan_universal_hashing
from godwit_lab.planners.cores.core_assignment import (
    CoreAssignmentProblem,
    plan_core_assignment,
    plan_naive_core_assignment,
)
from godwit_lab.planners.intervals.mtm import plan_mtm
from godwit_lab.planners.intervals.oms import count_partitionings
from godwit_lab.planners.intervals.pmc import approximate_projected_cost, projected_cost
from godwit_lab.planners.intervals.projected import Transitions, last_cuts_within_tau
from godwit_lab.planners.intervals.ssm import plan_ssm

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.solution import Solution


def median_ms(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(1e3 * (time.process_time() - began))
    return median(times)


def line(m: int, n: int, target: int, *, tau: float, seed: int = 0, skew: float = 2.0) -> Problem:
    rng = np.random.default_rng(seed)
    cuts = np.concatenate(([0], np.sort(rng.choice(np.arange(1, m), n - 1, replace=False)), [m]))
    return Problem(
        executors=tuple(f"e{i}" for i in range(max(n, target))),
        load=rng.gamma(skew, 1, m),
        state_bytes=rng.random(m) * 1e6,
        current=np.repeat(np.arange(n), np.diff(cuts)),
        intervals=True,
        limits=Limits(tau=tau, target_executors=target),
    )


def chain(sizes: tuple[int, ...], seed: int = 0) -> Transitions:
    """Sizes wander: near ones are likelier, staying does not count."""
    rng = np.random.default_rng(seed)
    distance = np.abs(np.subtract.outer(sizes, sizes))
    weight = np.exp(-distance / 2.0) * (distance > 0) * (0.5 + rng.random(distance.shape))
    return Transitions(sizes=sizes, probability=weight / weight.sum(axis=1, keepdims=True))


def ssm() -> None:
    print("SSM: m, n -> n', tau: median ms, status")
    for m, n, target, runs in ((64, 16, 12, 200), (64, 12, 16, 200), (1024, 60, 64, 15),
                               (8192, 250, 256, 3)):  # fmt: skip
        for tau in (0.4, 1.2):
            plan = partial(plan_ssm, line(m, n, target, tau=tau))
            print(f"  {m}, {n} -> {target}, {tau}: {median_ms(plan, runs):.3f} ms, {plan().status}")


def exact() -> None:
    print("PMC, exact: m, sizes, tau: partitionings, sweeps, seconds")
    for m, sizes, tau in (
        (20, (2, 3, 4), 0.8),
        (32, (2, 3, 4), 0.8),
        (20, (3, 4, 5), 1.2),
        (24, (3, 4, 5), 1.2),
        (30, (3, 4, 5), 1.2),
    ):
        problem = line(m, sizes[0], sizes[1], tau=tau, skew=8.0)
        table = projected_cost(problem, chain(sizes), max_partitionings=100_000)
        print(
            f"  {m}, {sizes}, {tau}: {table.num_partitionings}, {table.sweeps}, "
            f"{table.elapsed_s:.2f} s"
        )


def sampled() -> None:
    print("PMC, sampled where exact runs too: sample of all, greatest and mean error, s")
    for m, sizes, tau in ((16, (2, 3, 4), 0.8), (20, (3, 4, 5), 0.8), (24, (3, 4, 5), 0.6)):
        problem = line(m, sizes[0], sizes[1], tau=tau, skew=8.0)
        for count in (100, 200, 400):
            table = approximate_projected_cost(
                problem,
                chain(sizes),
                rng=np.random.default_rng(0),
                num_partitionings=count,
                check_partitionings=20_000,
            )
            if table.measured_error is None or table.measured_mean_error is None:
                break  # the sample would hold all of them
            print(
                f"  {m}, {sizes}, {tau}: {table.num_partitionings} of "
                f"{table.partitionings_in_all}, "
                f"{table.measured_error:.2%}, {table.measured_mean_error:.2%}, "
                f"{table.elapsed_s:.2f} s"
            )


def future() -> None:
    print("Bytes moved by 100 migrations, m = 64, 8-16 executors: share of the state per migration")
    sizes = tuple(range(8, 17))
    transitions = chain(sizes)
    for tau in (0.4, 0.8, 1.2):
        start = line(64, 8, 16, tau=tau, skew=8.0)
        began = time.perf_counter()
        table = approximate_projected_cost(start, transitions, rng=np.random.default_rng(0))
        built = time.perf_counter() - began
        share, online = {}, {}
        for name in ("ssm", "mtm"):
            rng, problem, size, moved, times = np.random.default_rng(1), start, 0, [], []
            for _ in range(100):
                size = int(rng.choice(len(sizes), p=transitions.probability[size]))
                limits = Limits(tau=tau, target_executors=sizes[size])
                problem = dataclasses.replace(problem, limits=limits)
                asked = time.perf_counter()
                plan = plan_ssm(problem) if name == "ssm" else plan_mtm(problem, projected=table)
                times.append(time.perf_counter() - asked)
                moved.append(plan.moved_bytes)
                problem = dataclasses.replace(problem, current=plan.assignment)
            share[name] = float(np.mean(moved) / start.state_bytes.sum())
            online[name] = median(times)
        print(
            f"  tau {tau}: SSM {share['ssm']:.2%} ({online['ssm'] * 1e3:.2f} ms), MTM "
            f"{share['mtm']:.2%} ({online['mtm'] * 1e3:.1f} ms), {table.num_partitionings} of "
            f"{table.partitionings_in_all:.3g} partitionings in {built:.1f} s"
        )


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
    settled = CoreAssignmentProblem(
        current=np.zeros((machines, m), np.int64),
        machine_cores=np.full(machines, 8),
        cores=before.cores,
        state_bytes=np.full(m, 256 * 32e3),
        data_bytes_per_s=np.where(busy, 500.0 * changed, 0.0) * 1000,
        home=np.arange(m) % machines,
    )
    today = plan_core_assignment(settled).cores

    def schedule() -> tuple[CoreAssignmentProblem, str]:
        allocation = plan_core_allocation(allocate(changed))
        problem = dataclasses.replace(settled, current=today, cores=allocation.cores)
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


def largest(seconds: float) -> None:
    from pyspark.sql import SparkSession  # only this part needs Spark

    from godwit_lab.planners.intervals.on_spark import SparkBlockMap

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sizes, tau = (3, 4, 5), 1.2
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")

    def count(m: int) -> int:
        problem = line(m, sizes[0], sizes[1], tau=tau, skew=8.0)
        return sum(count_partitionings(last_cuts_within_tau(problem, n), n) for n in sizes)

    def solve(m: int) -> tuple[int, float]:
        table = projected_cost(
            line(m, sizes[0], sizes[1], tau=tau, skew=8.0),
            chain(sizes),
            max_partitionings=count(m),
            block_map=SparkBlockMap(session.sparkContext),
        )
        print(
            f"  {m}, {sizes}, {tau}: {table.num_partitionings}, {table.sweeps}, "
            f"{table.elapsed_s:.1f} s",
            flush=True,
        )
        return table.num_partitionings, table.elapsed_s

    print("PMC, exact, on Spark: m, sizes, tau: partitionings, sweeps, seconds")
    m = 24
    found, spent = solve(m)
    while spent < seconds / 20:
        m += 4
        found, spent = solve(m)
    last = m
    while spent * (count(m + 1) / found) ** 2 < 0.9 * seconds:
        m += 1
    if m > last:
        solve(m)
    session.stop()


if __name__ == "__main__":
    parts = {f.__name__: f for f in (ssm, exact, sampled, future, windows, lanes, cores)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*parts, "largest"], default=list(parts))
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part == "largest":
            largest(arguments.seconds)
        else:
            parts[part]()
