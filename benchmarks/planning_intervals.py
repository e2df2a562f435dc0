"""Time the planners of intervals: SSM, projected costs (exact and sampled), MTM against SSM.

    python -m benchmarks.planning_intervals [ssm] [exact] [sampled] [future]
    python -m benchmarks.planning_intervals largest --seconds 600

Medians of several runs, fixed seeds. ``largest`` finds how many partitionings can be solved exactly
in the time given, on Spark with two cores: spaces grow until one takes a twentieth of it, and then
the largest is taken that should fit, as the time grows with the square of the partitionings.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from statistics import median

import numpy as np

from godwit.planning.intervals.mtm import plan_mtm
from godwit.planning.intervals.oms import count_partitionings
from godwit.planning.intervals.pmc import approximate_projected_cost, projected_cost
from godwit.planning.intervals.projected import Transitions, last_cuts_within_tau
from godwit.planning.intervals.ssm import plan_ssm
from godwit.planning.problem import Limits, Problem


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
            problem, times = line(m, n, target, tau=tau), []
            for _ in range(runs):
                began = time.perf_counter()
                plan = plan_ssm(problem)
                times.append(time.perf_counter() - began)
            print(f"  {m}, {n} -> {target}, {tau}: {median(times) * 1e3:.3f} ms, {plan.status}")


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


def largest(seconds: float) -> None:
    from pyspark.sql import SparkSession  # only this part needs Spark

    from godwit.cluster.spark.query.pmc import SparkBlockMap

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
    parts = {f.__name__: f for f in (ssm, exact, sampled, future)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*parts, "largest"], default=list(parts))
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part == "largest":
            largest(arguments.seconds)
        else:
            parts[part]()
