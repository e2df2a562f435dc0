"""Paper 5, figure 6: throughput and latency by ω, shuffles of the keys a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.micro import WORKLOAD, Micro
from experiments.paper5.policies import REASON, SYNCHRONISED
from experiments.paper5.sweeps import charts, ratios, sweep
from godwit.cli.reproduce.figure import Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

_OMEGAS = (0, 2, 4, 8, 16)


def run(run: FigureRun) -> FigureResult:
    rows = sweep({w: Micro(shuffles_per_min=w) for w in _OMEGAS}, "omega", run)
    static = ratios(rows, "omega", "executor-centric", "static")
    central = ratios(rows, "omega", "executor-centric", SYNCHRONISED)
    still = ratios(rows, "omega", SYNCHRONISED, "static")
    return FigureResult(
        rows=rows,
        checks=(
            at_least("executor-centric outperforms static at every ω: smallest ratio",
                     min(static.values()), 1.0, decisive=True,
                     measure="throughput over static, ω = 0 to 16, least"),
            at_least("executor-centric outperforms resource-centric at every ω > 0: smallest ratio",
                     min(ratio for omega, ratio in central.items() if omega), 1.0,
                     measure="throughput over resource-centric, ω = 2 to 16, least"),
            at_least("its lead over resource-centric grows with ω: ratio of the last to the first",
                     central[_OMEGAS[-1]] / central[_OMEGAS[1]], 1.0),
            at_least("resource-centric outperforms static at ω = 2", still[2], 1.0),
            at_most("resource-centric is useless at ω = 16: ratio to static", still[16], 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Policies by the dynamics of the keys, ω",
    claim="The executor-centric policy outperforms the others at every ω > 0 and hardly degrades; "
    "the resource-centric one outperforms static at small ω and is useless at 16.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    run=run,
    charts=charts("omega", "shuffles a minute, ω"),
    mechanism="the executor-centric policy (static in its place)",
    reason=REASON,
)
