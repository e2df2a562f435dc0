"""Paper 5, figure 19: throughput and latency of the exchange over time, under four policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.paper5.exchange import (
    REASON,
    WARM_UP_S,
    WORKLOAD,
    duration_s,
    simulate,
)
from experiments.paper5.policies import POLICIES, SYNCHRONISED
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_SLICE_S = 5.0


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    throughput: dict[str, float] = {}
    late_s: dict[str, float] = {}
    for policy in POLICIES:
        run.progress(policy)
        history = simulate(policy, run)
        for from_s in np.arange(WARM_UP_S, duration_s(run), _SLICE_S).tolist():
            delays = history.between(from_s, from_s + _SLICE_S).delays()
            rows.append(
                {
                    "second": from_s,
                    "policy": policy,
                    "thousand_rows_per_s": delays.rows / _SLICE_S / 1000,
                    "p99_s": delays.quantile_s(0.99) if delays.rows else float("nan"),
                }
            )
        own = [row for row in rows if row["policy"] == policy]
        throughput[policy] = float(np.mean([float(row["thousand_rows_per_s"]) for row in own]))
        late_s[policy] = float(np.nanmedian([float(row["p99_s"]) for row in own]))
    ours = "executor-centric"
    others = ("static", SYNCHRONISED)
    return FigureResult(
        rows=[row for row in rows if np.isfinite(float(row["p99_s"]))],
        checks=(
            at_least("executor-centric has more throughput than static: ratio",
                     throughput[ours] / throughput["static"], 1.02, decisive=True),
            at_least("about twice that of static and resource-centric: smaller ratio",
                     min(throughput[ours] / throughput[other] for other in others), 1.8,
                     paper=2.0, measure="exchange: throughput over static and resource-centric"),
            at_most("its 99th percentile of latency is one to two orders of magnitude lower than "
                    "that of static: ratio", late_s[ours] / late_s["static"], 0.1),
            at_most("the naive one differs little: ratio of throughputs, its over ours",
                    abs(1 - throughput["naive executor-centric"] / throughput[ours]), 0.2),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="The exchange under four policies over time",
    claim="Both executor-centric policies have about twice the throughput of the others, and one "
    "to two orders of magnitude less latency; the naive one is a little worse.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    run=run,
    charts=(
        Chart(x="second", y="thousand_rows_per_s", by="policy", x_label="second",
              y_label="throughput (1000 orders/s)"),
        Chart(x="second", y="p99_s", by="policy", x_label="second",
              y_label="latency, 99th percentile (s)", log_y=True),
    ),
    mechanism="the executor-centric policies (static in their place)",
    reason=REASON,
)  # fmt: skip
