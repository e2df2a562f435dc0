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
    rank_correlation,
    sweep,
    unchecked,
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
    from godwit_lab.cli.reproduce.figure import Data


SIZES = tuple(range(8, 17))
APPLICATIONS = ("word count", "frequent patterns")
SSM, MTM, RING = "single-step (SSM)", "MTM-aware", "consistent hashing"
WITHIN, SSM_THERE = "consistent hashing, rings within τ", "single-step beside those rings"
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
        num_partitionings=1_000,
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
    """Share of the state that each of the five strategies moves in one migration.

    Of consistent hashing there are two: as it comes, and with the rings only that keep τ, from
    where SSM is; `WITHIN` is the mean of those, and `SSM_THERE` what SSM moves in the same
    migrations.
    """
    rings = [moved_share(of, consistent_hashing(seed)) for seed in range(run.pick(10, 100))]
    plans = proposed(run, of)
    return {
        **{name: moved_share(of, plan) for name, plan in plans.items()},
        RING: float(np.mean(rings)),
        **_rings_within(of, plans[SSM], run.pick(20, 100)),
        "Redist": moved_share(of, plan_redistribution),
        "Storm": moved_share(of, plan_storm_default),
    }


def _rings_within(
    sequence: Migrations, plan: Callable[[Problem], Solution], seeds: int
) -> dict[str, float]:
    """Share of the state that rings within τ move, and a plan in the same migrations."""
    ring, ours = [], []
    for solution in follow(sequence, plan):
        asked = solution.problem
        limit = (1 + (asked.limits.tau or 0.0)) * asked.load.sum() / asked.target_executors
        tried = (consistent_hashing(seed)(asked) for seed in range(seeds))
        within_tau = [
            each.moved_bytes
            for each in tried
            if np.bincount(each.assignment, weights=asked.load[:, 0]).max() <= limit * (1 + 1e-9)
        ]
        if within_tau:
            ring.append(float(np.mean(within_tau)))
            ours.append(solution.moved_bytes)
    state = float(sequence.start.state_bytes.sum())
    return (
        {WITHIN: float(np.mean(ring)) / state, SSM_THERE: float(np.mean(ours)) / state}
        if ring
        else {}
    )


def consistent_hashing(seed: int) -> Callable[[Problem], Solution]:
    """Return consistent hashing on the ring of a seed."""
    return lambda problem: plan_consistent_hashing(problem, seed=seed, equal_counts=True)


def _over(data: Data, strategy: str, baseline: str, **where: float) -> list[float]:
    """Return what a strategy moves over what another does, wherever both moved anything."""
    keys = ("application", "tau")
    first, second = (
        data.table(*keys, column="moved_percent", strategy=name, **where)
        for name in (strategy, baseline)
    )
    return [first[key] / second[key] for key in second if key in first]


def _series(data: Data, application: str, strategy: str) -> list[float]:
    """Return what a strategy moves, by τ."""
    moved = data.column("moved_percent", application=application, strategy=strategy)
    return [float(percent) for percent in moved]


def _gaps(data: Data, application: str) -> list[float]:
    """Return what SSM moves less than consistent hashing, by τ."""
    pairs = zip(_series(data, application, RING), _series(data, application, SSM), strict=True)
    return [ring - ssm for ring, ssm in pairs]


@figure(
    title="Load balancing threshold τ against migration cost",
    clauses=(
        *(
            at_least("Storm's default moves more than twice as much state as the proposed "
                     "strategies", f"smallest ratio to {name}",
                     lambda data, name=name: min(_over(data, "Storm", name)), 2.0)
            for name in (SSM, MTM)
        ),
        at_most("consistent hashing moves more at every τ", "largest ratio of SSM to rings that "
                "keep τ", lambda data: max(_over(data, SSM_THERE, WITHIN)), 0.999),
        at_most("consistent hashing moves more at every τ", "largest ratio of SSM to it as it "
                "comes", lambda data: max(_over(data, SSM, RING)), 0.999),
        at_most("at the default τ it does as it comes, too", "larger ratio of SSM to it",
                lambda data: max(_over(data, SSM, RING, tau=1.2)), 0.999, decisive=True,
                beyond=True),
        at_least("the gap to consistent hashing grows with τ", "rank correlation, smaller one",
                 lambda data: min(rank_correlation(TAUS, _gaps(data, name))
                                  for name in APPLICATIONS), 0.5),
        at_most("MTM-aware migration moves less than single-step", "largest ratio of all τ",
                lambda data: max(_over(data, MTM, SSM)), 0.999),
        at_most("and at the default τ", "larger ratio",
                lambda data: max(_over(data, MTM, SSM, tau=1.2)), 0.999, decisive=True,
                beyond=True),
    ),
    workload="100 migrations (40 if quick) between 8 and 16 executors, 64 key groups. Consistent "
    "hashing ignores τ: SSM is compared with the mean of the rings that keep it, where one of 20 "
    "(100 in full) does.",
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
    reason="At τ = 0.2 balance forces SSM to move, which consistent hashing as it comes ignores; "
    "rings that keep τ were added after that was seen. MTM's projected costs are those of usual "
    "loads and a sample of partitionings.",
)  # fmt: skip
def figure12(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for application in APPLICATIONS:
        for tau in TAUS:
            run.progress(f"{application}, τ = {tau}")
            of = migrations(run, application, count=run.pick(40, 100), tau=tau)
            rows += [
                {"application": application, "tau": tau, "strategy": name,
                 "moved_percent": 100 * share}
                for name, share in strategies(run, of).items()
            ]  # fmt: skip
    return FigureResult(rows=rows, notes=(NOTE,))


def ssm_ms(of: Migrations, repeats: int) -> float:
    """CPU time of SSM on a migration of a sequence, in milliseconds: the median of all.

    A migration's is the least of some calls: nothing makes a call faster than it is.
    """
    times, problem = [], of.start
    for size in of.counts:
        problem = replace(problem, limits=replace(problem.limits, target_executors=size))
        calls = []
        for _ in range(repeats):
            began = process_time()
            plan = plan_ssm(problem)
            calls.append(process_time() - began)
        times.append(min(calls))
        problem = replace(problem, current=plan.assignment)
    return 1e3 * float(np.median(times))


def _rounds(data: Data, application: str, tau: float) -> np.ndarray:
    """Return the times of a setting, round by round."""
    ms = data.column("ms", application=application, tau=tau)
    return np.asarray(ms[np.isfinite(ms)])


def _growth(data: Data) -> float:
    """Return the time at the largest τ over that at the smallest, medians of rounds."""
    return min(
        float(np.median(_rounds(data, name, TAUS[-1]) / _rounds(data, name, TAUS[0])))
        for name in APPLICATIONS
    )


def _noise(data: Data) -> float:
    """Return the largest distance of quartiles of the rounds, over their median."""
    measured = (_rounds(data, name, tau) for name in APPLICATIONS for tau in TAUS)
    return max(float(np.subtract(*np.percentile(ms, (75, 25))) / np.median(ms)) for ms in measured)


@figure(
    title="Load balancing threshold τ against the time of SSM",
    clauses=(
        at_least(
            "the time of SSM grows with τ",
            "last over first, median of the rounds, the smaller of two applications",
            _growth,
            1.1,
        ),
        at_most(
            "and never exceeds 2 ms",
            "largest of all rounds",
            lambda data: float(np.nanmax(data.column("ms"))),
            2.0,
            unit="ms",
            paper=2.0,
            decisive=True,
        ),
        at_most(
            "rounds differ by less than the growth that is looked for",
            "largest distance of quartiles over the median",
            _noise,
            0.5,
            beyond=True,
        ),
    ),
    workload="As figure 12: 64 key groups, 8 to 16 executors; seven rounds, each with the least "
    "CPU time of five calls.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(
            x="tau",
            y="median_ms",
            by="application",
            x_label="load balancing threshold τ",
            y_label="time of SSM (ms)",
            paper=2.0,
        ),
    ),
    reason="SSM looks at whole arrays at once, so that its time grows by a tenth only. The least "
    "of five calls was chosen after medians of single calls did not show that.",
)
def figure13(run: FigureRun) -> FigureResult:
    taus = [(name, tau) for name in APPLICATIONS for tau in TAUS]
    sequences = {key: migrations(run, key[0], count=run.pick(20, 100), tau=key[1]) for key in taus}
    rows: list[Row] = []
    for turn in range(7):
        for application, tau in taus:
            run.progress(f"round {turn + 1} of 7, {application}, τ = {tau}")
            ms = ssm_ms(sequences[application, tau], 5)
            rows.append({"application": application, "tau": tau, "round": turn, "ms": ms})
    medians = {
        key: float(np.median([float(row["ms"]) for row in rows
                              if (row["application"], row["tau"]) == key]))
        for key in taus
    }  # fmt: skip
    rows += [{"application": name, "tau": tau, "median_ms": ms}
             for (name, tau), ms in medians.items()]  # fmt: skip
    return FigureResult(rows=rows, notes=(NOTE,))


_PMC_TAUS = (0.4, 0.6, 0.8, 1.0, 1.2)
_PMC_SIZES = (2, 3, 4)


@figure(
    title="Load balancing threshold τ against the time of PMC",
    clauses=(
        unchecked("the pre-computation takes hundreds of minutes on 64 executors",
                  "64 key groups have too many partitionings to enumerate on two cores"),
        at_least("it takes longer as τ grows", "rank correlation",
                 lambda data: rank_correlation(
                     data.column("tau").tolist(), data.column("seconds").tolist()), 0.8,
                 decisive=True),
        at_least("and much longer than planning online", "ratio to SSM at the largest τ",
                 lambda data: 1e3 * data.column("seconds")[-1] / data.column("ssm_ms")[-1], 10.0),
    ),
    workload="Exact projected costs of 18 key groups (24 in full) on 2 to 4 executors, on one "
    "core; the paper has 64 on 8 to 16.",
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
)  # fmt: skip
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
    return FigureResult(
        rows=[{**row, "ssm_ms": online} for row in rows],
        notes=(NOTE, "times are of the machine at hand, on one core"),
    )


_TASKS = (32, 64, 128, 256, 512)
_TIGHT_AND_DEFAULT = {f"τ = {tau}": tau for tau in (0.2, 1.2)}


def _exponent(data: Data) -> float:
    """Return the exponent of m that the times fit."""
    times = data.column("ms", tau="τ = 1.2")
    return float(np.polyfit(np.log(_TASKS), np.log(times), 1)[0])


def _falls(tau: str) -> Callable[[Data], float]:
    """Return a getter of the rank correlation of the migration cost with m."""
    return lambda data: rank_correlation(_TASKS, data.column("moved_percent", tau=tau).tolist())


@figure(
    title="Number of tasks m against single-step migration",
    clauses=(
        at_most("the time of SSM grows with the square of m", "fitted exponent, not more",
                _exponent, 2.2, paper=2.0),
        at_least("the time of SSM grows with the square of m", "fitted exponent, not less",
                 _exponent, 1.8, paper=2.0),
        at_most("and the migration cost falls, since finer tasks leave more to choose from",
                "rank correlation, τ = 1.2", _falls("τ = 1.2"), -0.5, decisive=True),
        at_most("and the migration cost falls, since finer tasks leave more to choose from",
                "rank correlation, τ = 0.2", _falls("τ = 0.2"), -0.5),
    ),
    workload="Word count of figure 12 with 32 to 512 key groups, at the default τ = 1.2 and at a "
    "tight one; means of several sequences.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="tasks", y="ms", by="tau", x_label="key groups m", y_label="time of SSM (ms)",
              log_x=True, log_y=True),
        Chart(x="tasks", y="moved_percent", by="tau", x_label="key groups m",
              y_label="state moved by a migration (%)", log_x=True),
    ),
    reason="SSM looks at whole arrays at once, so that its time grows about as m. At the default "
    "τ, bursts of single words bind; without them the cost would hardly depend on m.",
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
    return FigureResult(rows=rows, notes=(NOTE,))


_SEQUENCES = 3
_GAMMAS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)


@figure(
    title="Discount factor γ against MTM-aware migration",
    clauses=(
        at_most("as γ grows the migration cost falls", "rank correlation",
                lambda data: rank_correlation(_GAMMAS, data.column("moved_percent").tolist()),
                -0.5, decisive=True),
        at_most("as γ grows the migration cost falls", "cost at γ = 0.8 over that at 0",
                lambda data: data.one("moved_percent", gamma=0.8)
                / data.one("moved_percent", gamma=0.0), 0.999, decisive=True),
        at_least("and the pre-computation takes longer", "rank correlation",
                 lambda data: rank_correlation(_GAMMAS, data.column("seconds").tolist()), 0.3),
        at_most("at 0 it is single-step migration", "cost over that of SSM, distance from 1",
                lambda data: abs(data.one("moved_percent", gamma=0.0)
                                 / data.one("ssm_percent", gamma=0.0) - 1), 0.1),
    ),
    workload="Word count of figure 12 with τ = 1.2; projected costs of a sample of partitionings.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="gamma", y="moved_percent", x_label="discount factor γ",
              y_label="state moved by a migration (%)"),
        Chart(x="gamma", y="seconds", x_label="discount factor γ",
              y_label="time of the pre-computation (s)"),
    ),
    mechanism="the look at later migrations (γ = 0 throughout)",
    reason="The pre-computation solves its equations by policy iteration, whose time hardly "
    "depends on γ; value iteration needs more sweeps as γ grows.",
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
                "ssm_percent": ssm,
                "seconds": sum(table.elapsed_s for table in tables),
            }
        )
    return FigureResult(rows=rows, notes=(NOTE,))
