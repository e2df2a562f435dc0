"""Paper 1 §6, figures 12 to 15 and 17: migrations that follow the hourly rate of tweets.

The paper counts tweets per hour and takes executors in proportion, from 8 to 16; the transition
matrix is that of the month before.  Its tweets are not public.  Here the hourly rate has a daily
and a weekly rhythm with noise, and words have Zipf frequencies; nodes are our executors, tasks our
key groups.  Word count has bursts, as in the paper: in every hour one word is tweeted far more
often than usual.  Finer tasks are parts of coarser ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement.problem import Limits, Problem
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
    look_up,
    rank_correlation,
    sweep,
)
from godwit_lab.planners.baselines import (
    hash_choice,
    plan_consistent_hashing,
    plan_redistribution,
    plan_storm_default,
)
from godwit_lab.planners.intervals.mtm import plan_mtm
from godwit_lab.planners.intervals.pmc import approximate_projected_cost, projected_cost
from godwit_lab.planners.intervals.projected import ProjectedCost, Transitions, estimate_transitions
from godwit_lab.planners.intervals.ssm import plan_ssm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.placement.solution import Solution


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
    weights = run.rng(2).permutation(frequency)
    load = np.bincount(home, weights=weights, minlength=tasks).astype(np.float64)
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


@figure(
    title="Load balancing threshold τ against migration cost",
    claim="Storm's default moves more than twice as much state as the proposed strategies, "
    "consistent hashing moves more at every τ, and the gap grows with τ; MTM-aware migration moves "
    "less than single-step.",
    workload="100 migrations (40 if quick) between 8 and 16 executors, 64 key groups; hourly "
    "rates, words (in bursts) and patterns are generated, as the paper's tweets are not public.",
    place=RunsOn.PLANNERS,
    charts=tuple(
        Chart(
            x="tau",
            y="moved_percent",
            by="strategy",
            only=("application", application),
            title=application,
            x_label="load balancing threshold τ",
            y_label="state moved by a migration (%)",
        )
        for application in APPLICATIONS
    ),
    mechanism="the choice of what moves (SSM and MTM)",
    reason="Where τ is 0.2 the balance itself forces SSM to move, the more so after bursts; "
    "consistent hashing does not keep it. MTM's projected costs are those of usual loads and of a "
    "sample of partitionings, too small in a quick run.",
)
def figure12(run: FigureRun) -> FigureResult:
    shares: dict[tuple[str, float], dict[str, float]] = {}
    for application in APPLICATIONS:
        for tau in TAUS:
            run.progress(f"{application}, τ = {tau}")
            of = migrations(run, application, count=run.pick(40, 100), tau=tau)
            shares[application, tau] = strategies(run, of)
    every = shares.values()
    gaps = [shares["word count", tau][SSM] - shares["word count", tau][MTM] for tau in TAUS]
    falls = {
        application: shares[application, TAUS[0]][SSM] - shares[application, TAUS[-1]][SSM]
        for application in APPLICATIONS
    }
    return FigureResult(
        rows=[
            {"application": application, "tau": tau, "strategy": name, "moved_percent": 100 * share}
            for (application, tau), found in shares.items()
            for name, share in found.items()
        ],
        checks=(
            at_most("SSM moves less than consistent hashing at the default τ: larger ratio",
                    max(shares[name, 1.2][SSM] / shares[name, 1.2][RING]
                        for name in APPLICATIONS), 0.999, decisive=True),
            at_most("and at every τ: largest ratio", max(s[SSM] / s[RING] for s in every), 0.999),
            at_most("MTM moves less than SSM at the default τ: larger ratio",
                    max(shares[name, 1.2][MTM] / shares[name, 1.2][SSM]
                        for name in APPLICATIONS), 0.999, decisive=True),
            at_most("and at every τ: largest ratio", max(s[MTM] / s[SSM] for s in every), 1.0),
            at_least("Storm moves more than twice what SSM moves: smallest ratio",
                     min(s["Storm"] / s[SSM] for s in every), 2.0),
            at_most("SSM moves less as τ grows (rank correlation, word count)",
                    rank_correlation(TAUS, [shares["word count", t][SSM] for t in TAUS]), -0.5),
            at_least("the gap between SSM and MTM grows with τ (rank correlation, word count)",
                     rank_correlation(TAUS, gaps), 0.5),
            at_least("word count gains more from τ than frequent patterns: ratio of the gains",
                     falls["word count"] / max(falls["frequent patterns"], 1e-9), 1.0),
        ),
        notes=(NOTE,),
    )  # fmt: skip


def ssm_ms(of: Migrations, repeats: int) -> float:
    """Median CPU time of SSM over a sequence of migrations, in milliseconds."""
    times, problem = [], of.start
    for size in of.counts:
        problem = replace(problem, limits=replace(problem.limits, target_executors=size))
        for _ in range(repeats):
            began = process_time()
            plan = plan_ssm(problem)
            times.append(process_time() - began)
        problem = replace(problem, current=plan.assignment)
    return 1e3 * float(np.median(times))


@figure(
    title="Load balancing threshold τ against the time of SSM",
    claim="The time of SSM grows with τ and never exceeds 2 ms.",
    workload="As figure 12: 64 key groups, 8 to 16 executors; medians over all migrations.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(
            x="tau",
            y="ms",
            by="application",
            x_label="load balancing threshold τ",
            y_label="time of SSM (ms)",
            paper=2.0,
        ),
    ),
    reason="SSM here looks at whole arrays at once, so that its time hardly depends on τ.",
)
def figure13(run: FigureRun) -> FigureResult:
    def measure(application: str, tau: float) -> Row:
        of = migrations(run, application, count=run.pick(40, 100), tau=tau)
        return {"ms": ssm_ms(of, run.pick(5, 20))}

    rows = sweep(run, measure, application=APPLICATIONS, tau=TAUS)
    times = look_up(rows, "application", "tau", column="ms")
    growth = [times[name, TAUS[-1]] / times[name, TAUS[0]] for name in APPLICATIONS]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("SSM never takes more than 2 ms: largest median", max(times.values()), 2.0,
                    unit="ms", paper=2.0, decisive=True, measure="time of SSM, m = 64"),
            at_least("SSM takes longer as τ grows: smallest ratio of the last to the first",
                     min(growth), 1.0),
        ),
        notes=(NOTE, "times are medians of the CPU times of many calls on the machine at hand"),
    )  # fmt: skip


_PMC_TAUS = (0.4, 0.6, 0.8, 1.0, 1.2)
_PMC_SIZES = (2, 3, 4)


@figure(
    title="Load balancing threshold τ against the time of PMC",
    claim="The pre-computation takes hundreds of minutes on 64 executors, and longer as τ grows.",
    workload="Exact projected costs of 18 key groups (24 in full) on 2 to 4 executors, on one "
    "core; the paper has 64 key groups on 8 to 16, too many to enumerate on two cores.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(
            x="tau",
            y="seconds",
            x_label="load balancing threshold τ",
            y_label="time of the pre-computation (s)",
        ),
        Chart(
            x="tau",
            y="partitionings",
            x_label="load balancing threshold τ",
            y_label="partitionings within τ",
        ),
    ),
)
def figure14(run: FigureRun) -> FigureResult:
    rng, tasks = run.rng(1), run.pick(18, 24)
    load = rng.gamma(8.0, 1, tasks)
    distance = np.abs(np.subtract.outer(_PMC_SIZES, _PMC_SIZES))
    weight = np.exp(-distance / 2.0) * (distance > 0)
    chain = Transitions(sizes=_PMC_SIZES, probability=weight / weight.sum(axis=1, keepdims=True))
    rows: list[dict[str, float | str]] = []
    for tau in _PMC_TAUS:
        run.progress(f"τ = {tau}")
        problem = Problem(
            executors=tuple(f"e{i}" for i in range(_PMC_SIZES[-1])),
            load=load,
            state_bytes=1e6 * rng.random(tasks),
            current=(np.arange(tasks) * 2 // tasks).astype(np.int32),
            limits=Limits(tau=tau, target_executors=3),
        )
        tables = [projected_cost(problem, chain) for _ in range(run.pick(1, 3))]
        rows.append(
            {
                "tau": tau,
                "seconds": float(np.median([table.elapsed_s for table in tables])),
                "partitionings": tables[0].num_partitionings,
            }
        )
    online = ssm_ms(migrations(run, "word count", count=20, tau=1.2), 3)
    seconds = [float(row["seconds"]) for row in rows]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("the pre-computation takes longer as τ grows (rank correlation)",
                     rank_correlation(_PMC_TAUS, seconds), 0.8, decisive=True),
            at_least("it takes much longer than planning online: ratio to SSM at the largest τ",
                     seconds[-1] / (online / 1e3), 10.0),
        ),
        notes=(NOTE, "times are of the machine at hand, on one core"),
    )  # fmt: skip


_TASKS = (32, 64, 128, 256, 512)
_TIGHT_AND_DEFAULT = {f"τ = {tau}": tau for tau in (0.2, 1.2)}


@figure(
    title="Number of tasks m against single-step migration",
    claim="The time of SSM grows with the square of m, and the migration cost falls, since finer "
    "tasks leave more to choose from.",
    workload="Word count of figure 12 with 32 to 512 key groups, at the default τ = 1.2 and at a "
    "tight one; means of several sequences.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="tasks", y="ms", by="tau", x_label="key groups m", y_label="time of SSM (ms)",
              log_x=True, log_y=True),
        Chart(x="tasks", y="moved_percent", by="tau", x_label="key groups m",
              y_label="state moved by a migration (%)", log_x=True),
    ),
    reason="What binds at the default τ are bursts of single words; without them the cost would "
    "hardly depend on m.",
)  # fmt: skip
def figure15(run: FigureRun) -> FigureResult:
    def measure(tau: str, tasks: int) -> Row:
        sequences = [
            migrations(
                replace(run, seed=run.seed + at),
                "word count",
                count=run.pick(40, 100),
                tau=_TIGHT_AND_DEFAULT[tau],
                tasks=tasks,
            )
            for at in range(run.pick(8, 16))
        ]
        moved = [moved_share(of, plan_ssm) for of in sequences]
        return {
            "ms": ssm_ms(sequences[0], run.pick(1, 10)),
            "moved_percent": 100 * float(np.mean(moved)),
        }

    rows = sweep(run, measure, tau=_TIGHT_AND_DEFAULT, tasks=_TASKS)
    ms, moved = (look_up(rows, "tau", "tasks", column=column) for column in ("ms", "moved_percent"))
    tight, default = ([moved[tau, m] for m in _TASKS] for tau in _TIGHT_AND_DEFAULT)
    times = [ms["τ = 1.2", m] for m in _TASKS]
    exponent = float(np.polyfit(np.log(_TASKS), np.log(times), 1)[0])
    return FigureResult(
        rows=rows,
        checks=(
            at_most("a migration moves less as m grows, τ = 1.2 (rank correlation)",
                    rank_correlation(_TASKS, default), -0.5, decisive=True),
            at_most("a migration moves less as m grows, τ = 0.2 (rank correlation)",
                    rank_correlation(_TASKS, tight), -0.5),
            at_most("the time of SSM grows with the square of m, or less: fitted exponent",
                    exponent, 2.2, paper=2.0),
        ),
        notes=(NOTE,),
    )  # fmt: skip


_SEQUENCES = 3
_GAMMAS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)


@figure(
    title="Discount factor γ against MTM-aware migration",
    claim="As γ grows the migration cost falls and the pre-computation takes longer; at 0 it is "
    "single-step migration.",
    workload="Word count of figure 12 with τ = 1.2; projected costs of a sample of partitionings.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="gamma", y="moved_percent", x_label="discount factor γ",
              y_label="state moved by a migration (%)"),
        Chart(x="gamma", y="seconds", x_label="discount factor γ",
              y_label="time of the pre-computation (s)"),
    ),
    mechanism="the look at later migrations (γ = 0 throughout)",
    reason="At γ = 0 each migration is as cheap as single-step, but of equally cheap ones another "
    "is taken, on which later ones depend. The pre-computation solves its equations by policy "
    "iteration, whose time hardly depends on γ; value iteration needs more sweeps as γ grows.",
)  # fmt: skip
def figure17(run: FigureRun) -> FigureResult:
    sequences = [
        migrations(each, "word count", count=run.pick(60, 100), tau=1.2)
        for each in (replace(run, seed=run.seed + at) for at in range(_SEQUENCES))
    ]
    ssm = 100 * float(np.mean([moved_share(of, plan_ssm) for of in sequences]))
    rows: list[dict[str, float | str]] = []
    for gamma in _GAMMAS:
        run.progress(f"γ = {gamma}")
        tables = [projected(run, of, gamma=0.0 if run.off else gamma) for of in sequences]
        shares = [moved_share(of, mtm(at)) for of, at in zip(sequences, tables, strict=True)]
        rows.append(
            {
                "gamma": gamma,
                "moved_percent": 100 * float(np.mean(shares)),
                "seconds": sum(table.elapsed_s for table in tables),
            }
        )
    moved = [float(row["moved_percent"]) for row in rows]
    seconds = [float(row["seconds"]) for row in rows]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("the cost falls as γ grows (rank correlation)",
                    rank_correlation(_GAMMAS, moved), -0.5, decisive=True),
            at_most("at γ = 0.8 less is moved than at 0: ratio", moved[4] / moved[0], 0.999,
                    decisive=True),
            at_most("at γ = 0 it is single-step migration: distance from SSM",
                    abs(moved[0] / ssm - 1), 0.1),
            at_least("the pre-computation takes longer as γ grows (rank correlation)",
                     rank_correlation(_GAMMAS, seconds), 0.3),
        ),
        notes=(NOTE,),
    )  # fmt: skip
