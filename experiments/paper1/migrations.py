"""Workload of paper 1 §6: migrations that follow the hourly rate of tweets, 8 to 16 executors.

The paper counts tweets per hour and takes executors in proportion, from 8 to 16; the transition
matrix is that of the month before.  Its tweets are not public.  Here the hourly rate has a daily
and a weekly rhythm with noise, and words have Zipf frequencies; nodes are our executors, tasks our
key groups.  Word count has bursts, as in the paper: in every hour one word is tweeted far more
often than usual.  Finer tasks are parts of coarser ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.baselines import (
    hash_choice,
    plan_consistent_hashing,
    plan_redistribution,
    plan_storm_default,
)
from godwit.planning.intervals.mtm import plan_mtm
from godwit.planning.intervals.pmc import approximate_projected_cost
from godwit.planning.intervals.projected import ProjectedCost, Transitions, estimate_transitions
from godwit.planning.intervals.ssm import plan_ssm
from godwit.planning.problem import Limits, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.cli.reproduce.figure import FigureRun
    from godwit.planning.solution import Solution

SIZES = tuple(range(8, 17))
APPLICATIONS = ("word count", "frequent patterns")
SSM, MTM, RING = "single-step (SSM)", "MTM-aware", "consistent hashing"
TAUS = (0.2, 0.4, 0.8, 1.2, 1.6)
NOTE = (
    "the paper's tweets are not public: hourly rates and words are generated (a daily and a weekly "
    "rhythm; Zipf frequencies, bursts of single words)"
)

_MONTH_H = 30 * 24
# Exponent of the frequencies of words and of patterns; most patterns are rare and filtered early.
_ZIPF = {"word count": 0.7, "frequent patterns": 0.4}
_WORDS, _MAX_TASKS = 20_000, 1 << 16
_BURST = 0.1  # greatest rate of the word of the hour, over the usual rate of all words


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """One application and a sequence of executor counts."""

    start: Problem
    counts: tuple[int, ...]  # executors after each migration
    loads: np.ndarray  # of the tasks at each migration
    transitions: Transitions  # estimated from the month before


def hourly_executors(rng: np.random.Generator, hours: int) -> np.ndarray:
    """Executors in each hour, in proportion to the tweets in it and from 8 to 16."""
    hour = np.arange(hours)
    noise = np.zeros(hours)
    for at, shock in enumerate(rng.normal(0, 0.08, hours)):
        noise[at] = 0.7 * noise[at - 1] + shock
    rate = 1 + 0.5 * np.sin(2 * np.pi * hour / 24) + 0.15 * np.sin(2 * np.pi * hour / 168) + noise
    low, high = np.quantile(rate, (0.01, 0.99))
    share = np.clip((rate - low) / (high - low), 0, 1)
    executors: np.ndarray = np.rint(SIZES[0] + share * (SIZES[-1] - SIZES[0])).astype(np.int64)
    return executors


def migrations(
    run: FigureRun,
    application: str,
    *,
    count: int,
    tau: float,
    tasks: int = 64,
    window_s: float = 90.0,  # of frequent patterns, which have an entry for every occurrence in it
) -> Migrations:
    """Draw an application's key groups, and a sequence of migrations."""
    hours = hourly_executors(run.rng(1), _MONTH_H + 24 * count)
    changes = [int(hours[_MONTH_H])]
    for size in hours[_MONTH_H:].tolist():
        if size != changes[-1]:
            changes.append(size)
    frequency = np.arange(1, _WORDS + 1, dtype=np.float64) ** -_ZIPF[application]
    home = hash_choice(_WORDS, _MAX_TASKS, run.seed) * tasks // _MAX_TASKS
    load = np.bincount(home, weights=run.rng(2).permutation(frequency), minlength=tasks)
    # Counters: one for each word that there is, and in a sliding window also its occurrences.
    words = np.bincount(home, minlength=tasks).astype(np.float64)
    in_window = window_s / 90 * _WORDS / load.sum()
    occurrences = load * in_window if application == "frequent patterns" else 0.0
    first, counts = changes[0], tuple(changes[1 : count + 1])
    load /= load.sum()
    loads = np.tile(load, (len(counts), 1))
    if application == "word count":
        bursts = run.rng(7)
        bursting = home[bursts.integers(0, _WORDS, len(counts))]
        loads[np.arange(len(counts)), bursting] += bursts.uniform(0, _BURST, len(counts))
    start = Problem(
        executors=tuple(f"e{i}" for i in range(SIZES[-1])),
        load=load,
        state_bytes=32 * (words + occurrences),
        current=(np.arange(tasks) * first // tasks).astype(np.int32),
        limits=Limits(tau=tau, target_executors=first),
    )
    return Migrations(
        start=replace(start, current=plan_ssm(start).assignment),
        counts=counts,
        loads=loads,
        transitions=estimate_transitions(hours[:_MONTH_H].tolist(), sizes=SIZES),
    )


def projected(run: FigureRun, of: Migrations, *, gamma: float = 0.8) -> ProjectedCost:
    """Pre-compute projected costs (PMC) over a sample of partitionings."""
    return approximate_projected_cost(
        of.start,
        of.transitions,
        rng=run.rng(3),
        gamma=gamma,
        num_partitionings=run.pick(300, 1_000),
    )


def follow(of: Migrations, plan: Callable[[Problem], Solution]) -> Iterator[Solution]:
    """Plan the migrations of a sequence, each from where the one before leads."""
    problem = of.start
    for size, load in zip(of.counts, of.loads, strict=True):
        limits = replace(problem.limits, target_executors=size)
        problem = replace(problem, load=load, limits=limits)
        solution = plan(problem)
        yield solution
        problem = replace(problem, current=solution.assignment)


def moved_share(of: Migrations, plan: Callable[[Problem], Solution]) -> float:
    """Share of all state that one migration of the sequence moves, on average."""
    moved = sum(solution.moved_bytes for solution in follow(of, plan))
    return moved / len(of.counts) / float(of.start.state_bytes.sum())


def mtm(table: ProjectedCost) -> Callable[[Problem], Solution]:
    """Return MTM-aware migration by a table of the usual loads, whatever bursts there are."""
    return partial(plan_mtm, projected=table, max_drift=1.0)


def proposed(run: FigureRun, of: Migrations) -> dict[str, Callable[[Problem], Solution]]:
    """Return the paper's two strategies.

    Switched off, they are Storm's default: intervals without regard to what moves.
    """
    if run.off:
        return dict.fromkeys((SSM, MTM), plan_storm_default)
    return {SSM: plan_ssm, MTM: mtm(projected(run, of))}


def strategies(run: FigureRun, of: Migrations) -> dict[str, float]:
    """Share of the state that each of the five strategies moves in one migration."""
    rings = [moved_share(of, consistent_hashing(seed)) for seed in range(run.pick(10, 100))]
    return {
        **{name: moved_share(of, plan) for name, plan in proposed(run, of).items()},
        RING: float(np.mean(rings)),
        "Redist": moved_share(of, plan_redistribution),
        "Storm": moved_share(of, plan_storm_default),
    }


def consistent_hashing(seed: int) -> Callable[[Problem], Solution]:
    """Return consistent hashing on the ring of a seed."""
    return lambda problem: plan_consistent_hashing(problem, seed=seed, equal_counts=True)
