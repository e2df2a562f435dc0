"""Paper 4, figure 3: imbalance over time, four systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper4.streams import SYSTEMS, balance, notes_of, rows_of, words_of_tweets
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    stream = words_of_tweets(run)
    found = {name: balance(name, stream, run) for name in SYSTEMS}
    mean = {name: float(balanced.variance[1:].mean()) for name, balanced in found.items()}
    return FigureResult(
        rows=rows_of(found),
        checks=(
            at_most("ELB is more even than CLB: ratio of the mean imbalances",
                    mean["ELB"] / mean["CLB"], 1.0, decisive=True),
            at_least("CLB is at least ten times less even than PKG: ratio",
                     mean["CLB"] / mean["PKG"], 10.0),
            at_least("CLB is at least ten times less even than UHLB: ratio",
                     mean["CLB"] / mean["UHLB"], 10.0),
        ),
        notes=notes_of([stream]),
    )  # fmt: skip


FIGURE = Figure(
    title="Imbalance over time",
    claim="UHLB and PKG are an order of magnitude more even than CLB; ELB is between them.",
    workload="Words of tweets in 100 substreams on 10 instances, 120 windows of a minute.",
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="window", y="variance", by="system", x_label="window (min)",
              y_label="variance of loads (rows²)", log_y=True),
    ),
    reason="Here ELB and CLB even out single substreams after their sets are made, and a hash "
    "function without regard to loads is not even: both are better than in the paper, and UHLB is "
    "worse.",
)  # fmt: skip
