"""Paper 3, figure 12: cost of instant and disruptive migration by the share that migrates."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.paper3.checkout import use_benchmarks
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most
from godwit.migration import Strategy

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_STRATEGIES = {"instant": Strategy.INSTANT, "disruptive": Strategy.DISRUPTIVE}


def run(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.regrouping import spent_ms

    keys, rounds = run.pick((50_000, 5), (300_000, 7))
    shares = run.pick((0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    took: dict[tuple[str, float], list[float]] = {}
    for turn in range(rounds):
        for name, strategy in _STRATEGIES.items():
            for share in shares:
                run.progress(f"round {turn + 1} of {rounds}, {name}, {share:.0%}")
                with tempfile.TemporaryDirectory() as directory:
                    spent = spent_ms(Path(directory), keys, share, strategy)
                took.setdefault((name, share), []).append(spent)
    over = {
        (name, share): 100 * (min(times) / min(took[name, 0.0]) - 1)  # what disturbs can only add
        for (name, share), times in took.items()
    }
    rows: list[Row] = [
        {"strategy": name, "share": 100 * share, "overhead": percent}
        for (name, share), percent in over.items()
    ]
    apart = [abs(over["instant", s] - over["disruptive", s]) for s in shares]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("the overhead of both is similar: largest difference", max(apart), 15.0,
                    unit="percentage points", decisive=True),
            at_most("instant migration of all of it costs little in all",
                    over["instant", 1.0], 30.0, unit="%"),
        ),
        notes=("CPU times are the least of few rounds on the machine at hand",),
    )  # fmt: skip


FIGURE = Figure(
    title="Overhead of instant and disruptive migration by share of the state",
    claim="Both cost about the same in all, the more the larger the share of the state that "
    "migrates: what instant migration does not move, it consolidates later.",
    workload="Two windows in a row with a row of every key; while the first is open, 0 to 100 % of "
    "the key groups of one of three executors migrate. CPU time until both windows have come out; "
    "the real conductor, lanes and stores in one process, without Spark.",
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="share", y="overhead", by="strategy", x_label="key groups that migrate (%)",
              y_label="additional CPU time (%)"),
    ),
)  # fmt: skip
