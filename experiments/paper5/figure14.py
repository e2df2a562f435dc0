"""Paper 5, figure 14: 99th percentile of latency as one elastic executor grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.one_executor import WORKLOAD, by_series, charts, vary_rows
from godwit.cli.reproduce.figure import Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    rows = vary_rows(run)
    p99_s = by_series(rows, "p99_s")
    return FigureResult(
        rows=rows,
        checks=(
            at_most("with rows of 1 ms and 128 bytes it hardly grows: 64 cores over 8",
                    p99_s["1 ms", 64] / p99_s["1 ms", 8], 1.5, decisive=True),
            at_least("with 8 KB rows it grows with remote cores: 16 cores over 8",
                     p99_s["8,192 bytes", 16] / p99_s["8,192 bytes", 8], 1.1),
            at_least("with rows of 0.01 ms it grows with remote cores: 16 cores over 8",
                     p99_s["0.01 ms", 16] / p99_s["0.01 ms", 8], 1.1),
            at_most("it does not grow without bound: 8 KB rows, 256 cores over 16",
                    p99_s["8,192 bytes", 256] / p99_s["8,192 bytes", 16], 4.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="99th percentile of latency as one executor grows",
    claim="Latency does not grow noticeably as the executor scales out, except where rows of 2 KB "
    "and more, or of 0.1 ms and less, make the network the bottleneck.",
    workload=WORKLOAD + " Latency is the time of an epoch, which takes what the cores process in "
    "two seconds.",
    place=RunsOn.SIMULATED,
    run=run,
    charts=charts("p99_s", "time of an epoch, 99th percentile (s)"),
    reason="Rows wait for the end of their epoch, so that latency is seconds with one core, too.",
)  # fmt: skip
