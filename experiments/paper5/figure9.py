"""Paper 5, figure 9: throughput and latency by the size of a shard's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.micro import WORKLOAD, Micro
from experiments.paper5.policies import REASON, SYNCHRONISED
from experiments.paper5.sweeps import charts, ratios, sweep
from godwit.cli.reproduce.figure import Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

_KILOBYTES = (32, 256, 2048, 32_768)


def run(run: FigureRun) -> FigureResult:
    settings = {float(kb): Micro(shard_bytes=1e3 * kb) for kb in _KILOBYTES}
    rows = sweep(settings, "kilobytes", run)
    central = ratios(rows, "kilobytes", "executor-centric", SYNCHRONISED)
    static = ratios(rows, "kilobytes", "executor-centric", "static")
    return FigureResult(
        rows=rows,
        checks=(
            at_least("executor-centric is better than resource-centric at every size: smallest",
                     min(central.values()), 1.0),
            at_least("executor-centric is better than static with small state: ratio",
                     static[_KILOBYTES[0]], 1.05, decisive=True),
            at_most("its lead over static shrinks as state grows: ratio of the last to the first",
                    static[_KILOBYTES[-1]] / static[_KILOBYTES[0]], 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Policies by the size of state",
    claim="Both elastic policies lose as state grows; with 32 MB a shard both are worse than "
    "static, and the executor-centric one is better than the resource-centric one at every size.",
    workload=WORKLOAD + " ω = 2.",
    place=RunsOn.SIMULATED,
    run=run,
    charts=charts("kilobytes", "state of a shard (kB)", log_x=True),
    reason=REASON,
)
