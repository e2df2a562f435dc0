"""Paper 3, figure 10: size of state against the latency of instant and disruptive migration."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.paper3.checkout import use_benchmarks
from godwit.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    RunsOn,
    at_least,
    at_most,
    rank_correlation,
)
from godwit.migration import Strategy

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.instant import pause_ms

    strategies = {
        "instant": Strategy.DISRUPTIVE if run.off else Strategy.INSTANT,
        "disruptive": Strategy.DISRUPTIVE,
    }
    keys = run.pick((10_000, 100_000, 400_000), (10_000, 100_000, 1_000_000, 5_000_000))
    rows: list[Row] = []
    found: dict[str, list[float]] = {name: [] for name in strategies}
    for count in keys:
        for name, strategy in strategies.items():
            run.progress(f"{count:,} keys, {name}")
            with tempfile.TemporaryDirectory() as directory:
                pause, size = pause_ms(Path(directory), strategy, count, 2_000)
            found[name].append(pause)
            rows.append(
                {"keys": count, "strategy": name, "mib": size / 2**20, "pause_ms": max(pause, 0.1)}
            )
    return FigureResult(
        rows=rows,
        checks=(
            at_least("disruptive migration pauses longer with more state (rank correlation)",
                     rank_correlation(keys, found["disruptive"]), 0.9),
            at_most("instant migration is negligible with the largest state: ratio to disruptive",
                    found["instant"][-1] / max(found["disruptive"][-1], 1e-9), 0.2,
                    decisive=True),
        ),
        notes=("pauses are CPU times of one run on the machine at hand",),
    )  # fmt: skip


FIGURE = Figure(
    title="Size of state against the latency of a migration",
    claim="Instant migration has negligible latency; that of disruptive migration grows with the "
    "size of the state.",
    workload="All key groups of one of three executors migrate while a window is open; the real "
    "conductor, lanes and stores in one process, without Spark.",
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="mib", y="pause_ms", by="strategy", x_label="state that migrates (MiB)",
              y_label="pause (ms)", log_x=True, log_y=True),
    ),
    mechanism="instant migration",
    reason="A pause is of one run, and varies by tens of milliseconds on a busy machine; another "
    "run of the same day agreed.",
)  # fmt: skip
