"""Paper 5, figure 13: scalability of one elastic executor by costs and sizes of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.one_executor import WORKLOAD, by_series, charts, vary_rows
from godwit.cli.reproduce.figure import Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    rows = vary_rows(run)
    share = by_series(rows, "share")

    def grown(series: str) -> float:
        """Throughput of 256 cores over that of 8."""
        return share[series, 256] * 256 / (share[series, 8] * 8)

    return FigureResult(
        rows=rows,
        checks=(
            at_least("rows of 1 ms and 128 bytes use the whole cluster: 256 cores over 8",
                     grown("1 ms"), 16.0, decisive=True),
            at_most("8 KB rows use the 16 cores of two machines less than the 8 of one: ratio of "
                    "the shares", share["8,192 bytes", 16] / share["8,192 bytes", 8], 0.9),
            at_most("and so do rows of 0.01 ms: ratio of the shares",
                    share["0.01 ms", 16] / share["0.01 ms", 8], 0.9),
            at_most("with 8 KB rows, 256 cores process hardly more than 16: ratio",
                    share["8,192 bytes", 256] * 256 / (share["8,192 bytes", 16] * 16), 2.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Scalability of one executor by costs and sizes of rows",
    claim="One executor can use the whole cluster of 256 cores, but not more than 16 where rows "
    "have 8 KB or cost 0.01 ms.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    run=run,
    charts=charts("thousand_rows_per_s", "throughput (1000 rows/s)"),
    reason="The paper's rows all pass the link of one node on their way to remote tasks. Here they "
    "are read on all machines and go straight to their lanes, so that links grow with the cores.",
)  # fmt: skip
