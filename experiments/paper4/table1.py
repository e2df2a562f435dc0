"""Paper 4, table 1: mean and standard deviation of the imbalance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper4.streams import (
    CLB_EVERY,
    SYSTEMS,
    balance,
    notes_of,
    synthetic,
    words_of_tweets,
)
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
    streams = {
        "S1": synthetic(run, "gaussian"),
        "S2": synthetic(run, "zipf"),
        "tweets": words_of_tweets(run),
    }
    rows: list[Row] = []
    mean: dict[tuple[str, str], float] = {}
    for stream, histograms in streams.items():
        for system in SYSTEMS:
            run.progress(f"{stream}, {system}")
            variance = balance(system, histograms, run).variance[CLB_EVERY:]
            mean[stream, system] = float(variance.mean())
            rows.append(
                {
                    "stream": stream,
                    "system": system,
                    "mean": float(variance.mean()),
                    "deviation": float(variance.std()),
                }
            )
    return FigureResult(
        rows=rows,
        checks=(
            at_most("ELB is more even than a new hash function, on every stream: largest ratio",
                    max(mean[s, "ELB"] / mean[s, "UHLB"] for s in streams), 1.0, decisive=True),
            at_most("ELB is more even than CLB on tweets: ratio",
                    mean["tweets", "ELB"] / mean["tweets", "CLB"], 1.0),
        ),
        notes=notes_of(list(streams.values())),
    )  # fmt: skip


FIGURE = Figure(
    title="Mean and standard deviation of the imbalance",
    claim="Table 1 gives both for every algorithm; UHLB and PKG have the least imbalance, CLB the "
    "most.",
    workload="S1, S2 and words of tweets, 10 instances; from the first balancing of CLB on. The "
    "text of the paper at hand has lost the table's numbers.",
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="stream", y="mean", by="system", kind="bars", x_label="stream",
              y_label="mean variance of loads (rows²)", log_y=True),
        Chart(x="stream", y="deviation", by="system", kind="bars", x_label="stream",
              y_label="standard deviation of it (rows²)", log_y=True),
    ),
    reason="A hash function without regard to loads is not more even than ELB here.",
)  # fmt: skip
