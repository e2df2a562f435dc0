"""Paper 5, figure 20: mean latency of the exchange under four policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.exchange import (
    REASON,
    WARM_UP_S,
    WORKLOAD,
    duration_s,
    simulate,
)
from experiments.paper5.policies import POLICIES, SYNCHRONISED
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    mean_s: dict[str, float] = {}
    for policy in POLICIES:
        run.progress(policy)
        delays = simulate(policy, run).between(WARM_UP_S, duration_s(run)).delays()
        mean_s[policy] = delays.mean_s
        rows.append({"policy": policy, "mean_s": delays.mean_s})
    ours = mean_s["executor-centric"]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("executor-centric has less mean latency than static: ratio",
                    ours / mean_s["static"], 0.98, decisive=True),
            at_most("and than resource-centric: ratio", ours / mean_s[SYNCHRONISED], 1.0),
            at_most("and no more than the naive one: ratio",
                    ours / mean_s["naive executor-centric"], 1.05),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Mean latency of the exchange under four policies",
    claim="The executor-centric policy has the lowest mean latency of the four.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    run=run,
    charts=(
        Chart(x="policy", y="mean_s", kind="bars", x_label="policy", y_label="mean latency (s)",
              log_y=True),
    ),
    mechanism="the executor-centric policies (static in their place)",
    reason=REASON,
)  # fmt: skip
