"""Paper 3, figures 10 to 12: pauses and costs of instant migration, and of split and combine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration import Strategy
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
from godwit_lab.experiments.paper3.checkout import use_benchmarks

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit_lab.cli.reproduce.figure import Data


def _largest(data: Data, strategy: str) -> float:
    """Return the pause with the largest state."""
    return float(data.column("pause_ms", strategy=strategy)[-1])


@figure(
    title="Size of state against the latency of a migration",
    clauses=(
        at_most("instant migration has negligible latency", "largest state: ratio to disruptive",
                lambda data: _largest(data, "instant") / _largest(data, "disruptive"), 0.2,
                decisive=True),
        at_least("that of disruptive migration grows with the size of the state",
                 "rank correlation",
                 lambda data: rank_correlation(
                     data.column("keys", strategy="disruptive").tolist(),
                     data.column("pause_ms", strategy="disruptive").tolist()), 0.9),
        at_most("the larger the state, the more efficient is an instant one",
                "ratio to disruptive with the largest state over that with the smallest",
                lambda data: _largest(data, "instant") / _largest(data, "disruptive")
                / (data.column("pause_ms", strategy="instant")[0]
                   / data.column("pause_ms", strategy="disruptive")[0]), 1.0),
    ),
    workload="All key groups of one of three executors migrate while a window is open; real "
    "coordinator, lanes and stores in one process. The pause is what the three epochs after the "
    "migration take longer than others.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="mib", y="pause_ms", by="strategy", x_label="state that migrates (MiB)",
              y_label="pause (ms)", log_x=True, log_y=True),
    ),
    mechanism="instant migration",
    reason="An instant migration takes some tens of milliseconds whatever the state.",
)  # fmt: skip
def figure10(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.instant import pause_ms

    strategies = {
        "instant": Strategy.DISRUPTIVE if run.off else Strategy.INSTANT,
        "disruptive": Strategy.DISRUPTIVE,
    }
    keys = run.pick((100_000, 400_000, 2_000_000), (10_000, 100_000, 1_000_000, 5_000_000))

    def measure(keys: int, strategy: str) -> Row:
        with tempfile.TemporaryDirectory() as directory:
            pause, size = pause_ms(Path(directory), strategies[strategy], keys, 2_000)
        return {"mib": size / 2**20, "pause_ms": max(pause, 0.1)}

    rows = sweep(run, measure, keys=keys, strategy=strategies)
    return FigureResult(
        rows=rows,
        notes=("pauses are CPU times on the machine at hand, medians of three streams",),
    )


_MOVED = "disruptive migration"


def _share(action: str) -> Callable[[Data], float]:
    """Return a getter of a pause over that of a disruptive migration, with most keys."""
    return lambda data: float(
        data.column("pause_ms", action=action)[-1] / data.column("pause_ms", action=_MOVED)[-1]
    )


@figure(
    title="Overhead of split and combine",
    clauses=(
        at_most("a component is always split very efficiently", "ratio to a disruptive migration, "
                "most keys", _share("split"), 0.3, decisive=True),
        at_most("combining smoothly incurs no latency", "ratio to a disruptive migration, most "
                "keys", _share("combine"), 0.3, decisive=True),
        at_most("but lasts, at most until the longest window, of thirty seconds, has ended",
                "epochs of a second", lambda data: data.column("epochs", action="combine").max(),
                30.0),
        at_least("combining disruptively pauses relative to the state",
                 "rank correlation of its migration with the keys",
                 lambda data: rank_correlation(
                     data.column("keys", action=_MOVED).tolist(),
                     data.column("pause_ms", action=_MOVED).tolist()), 0.9),
    ),
    workload="Open windows of 20 and 30 seconds are split, all key groups of one of three "
    "executors migrate instantly, and they are combined, while epochs of a second go on; real "
    "coordinator, lanes and stores in one process.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="keys", y="pause_ms", by="action", x_label="keys of the open windows",
              y_label="longest pause of an epoch (ms)", log_x=True, log_y=True),
    ),
    mechanism="changing layouts without moving state at once",
    reason="Godwit combines in a third way: state goes to its new place beside the epochs, which "
    "takes some epochs and no pause.",
)  # fmt: skip
def figure11(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.instant import pause_ms
    from benchmarks.windows.regrouping import pauses_ms

    rows: list[Row] = []
    counts = run.pick((100_000, 1_000_000), (10_000, 100_000, 1_000_000))
    for keys in counts:
        run.progress(f"{keys:,} keys")
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            disruptive, _ = pause_ms(place / "moved", Strategy.DISRUPTIVE, keys, 2_000)
            measured = {_MOVED: (disruptive, 1)}
            measured |= pauses_ms(place / "regrouped", keys)
        for name, (ms, took) in measured.items():
            # Switched off, a change of layout is a disruptive migration of the state.
            pause = max(disruptive if run.off else ms, 0.1)
            rows.append({"keys": keys, "action": name, "pause_ms": pause, "epochs": took})
    return FigureResult(rows=rows, notes=("pauses are CPU times on the machine at hand",))


_STRATEGIES = {"instant": Strategy.INSTANT, "disruptive": Strategy.DISRUPTIVE}


def _overhead(strategy: str) -> Callable[[Data], np.ndarray]:
    """Return a getter of the overhead of a strategy by share, none where it is negative."""
    return lambda data: np.maximum(data.column("overhead", strategy=strategy), 0)


@figure(
    title="Overhead of instant and disruptive migration by share of the state",
    clauses=(
        at_most("both cost about the same in all", "largest difference",
                lambda data: np.abs(_overhead("instant")(data)
                                    - _overhead("disruptive")(data)).max(), 15.0,
                unit="percentage points", decisive=True),
        *(
            at_least("the more the larger the share of the state that migrates",
                     f"{name}: overhead with all of it over that with none",
                     lambda data, name=name: _overhead(name)(data)[-1] - _overhead(name)(data)[0],
                     0.1, unit="percentage points")
            for name in _STRATEGIES
        ),
        unchecked("what instant migration does not move, it consolidates later",
                  "only the sum of both is measured"),
        at_most("instant migration of all of it costs little in all", "overhead",
                lambda data: data.one("overhead", strategy="instant", share=100.0), 30.0, unit="%",
                beyond=True),
    ),
    workload="Two windows in a row with a row of every key; while the first is open, 0 to 100 % of "
    "the key groups of one of three executors migrate. CPU time until both windows have come out; "
    "real coordinator, lanes and stores in one process.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="share", y="overhead", by="strategy", x_label="key groups that migrate (%)",
              y_label="additional CPU time (%)"),
    ),
)  # fmt: skip
def figure12(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.regrouping import spent_ms

    keys, rounds = run.pick((200_000, 7), (300_000, 9))
    shares = run.pick((0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    took: dict[tuple[str, float], list[float]] = {}
    for turn in range(rounds):
        for name, strategy in _STRATEGIES.items():
            for share in shares:
                run.progress(f"round {turn + 1} of {rounds}, {name}, {share:.0%}")
                with tempfile.TemporaryDirectory() as directory:
                    spent = spent_ms(Path(directory), keys, share, strategy)
                took.setdefault((name, share), []).append(spent)
    nothing = median(ms for (_, share), times in took.items() for ms in times if not share)
    over = {key: 100 * (median(times) / nothing - 1) for key, times in took.items()}
    rows: list[Row] = [
        {"strategy": name, "share": 100 * share, "overhead": percent}
        for (name, share), percent in over.items()
    ]
    return FigureResult(
        rows=rows,
        notes=(
            (
                "CPU times are medians of few rounds on the machine at hand; an executor without "
                "key groups costs less than one with few, which counts as no overhead"
            ),
        ),
    )
