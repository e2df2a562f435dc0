"""Paper 5, figure 16: throughput by the number of shards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.paper5.micro import SYSTEMS, WORKLOAD, Micro, simulate, throughput
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_EXECUTORS, _SHARDS = 32, (16, 64, 256)
_LOADS = {
    "default (ω = 2)": Micro(),
    "data-intensive (8 KB rows)": Micro(row_bytes=8192),
    "dynamic (ω = 16)": Micro(shuffles_per_min=16),
}


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    found: dict[tuple[str, int], float] = {}
    for load, usual in _LOADS.items():
        for shards in _SHARDS:
            for policy in SYSTEMS[:3]:
                run.progress(f"{load}, {shards} shards, {policy}")
                micro = replace(usual, key_groups=shards * _EXECUTORS)
                rows.append(
                    {
                        "load": load,
                        "shards": shards,
                        "policy": policy,
                        "thousand_rows_per_s": throughput(simulate(micro, policy, run)),
                    }
                )
                if policy == "executor-centric":
                    found[load, shards] = float(rows[-1]["thousand_rows_per_s"])
    few = [found[load, 256] / found[load, 16] for load in _LOADS]
    more = [found[load, 256] / found[load, 64] - 1 for load in _LOADS]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("more shards give more throughput: smallest ratio of 256 to 16", min(few), 1.0,
                     decisive=True),
            at_most("the gain diminishes: largest gain from 64 to 256 shards", max(more), 0.1),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Number of shards per executor",
    claim="Throughput grows with the number of shards, ever less so; 256 to 1024 per executor are "
    "good.",
    workload=WORKLOAD + " Besides, rows of 8 KB. One elastic executor for each machine; their "
    "number is not varied, as an executor of the simulator is a machine.",
    place=RunsOn.SIMULATED,
    run=run,
    charts=tuple(
        Chart(x="shards", y="thousand_rows_per_s", by="policy", only=("load", load), title=load,
              x_label="shards per executor", y_label="throughput (1000 rows/s)", log_x=True)
        for load in _LOADS
    ),
)  # fmt: skip
