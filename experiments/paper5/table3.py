"""Paper 5, table 3: throughput and scheduling time on 8, 16 and 32 nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.paper5.exchange import saturate
from experiments.paper5.exchange_cores import schedule
from experiments.paper5.micro import throughput
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_NODES = (8, 16, 32)
_PAPER_THROUGHPUT = (66.6, 121.3, 218.6)


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for nodes in _NODES:
        run.progress(f"{nodes} nodes")
        times = [each.seconds for each in schedule(nodes, run.pick(15, 60), run, naive=False)]
        rows.append(
            {
                "nodes": nodes,
                "thousand_rows_per_s": throughput(saturate(nodes, run)),
                "scheduling_ms": 1e3 * float(np.median(times)),
            }
        )
    ours = [float(row["thousand_rows_per_s"]) for row in rows]
    milliseconds = [float(row["scheduling_ms"]) for row in rows]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("throughput grows nearly linearly: 32 nodes over 8", ours[2] / ours[0], 2.8,
                     decisive=True),
            at_least("throughput of 16 nodes over that of 8", ours[1] / ours[0], 121.3 / 66.6,
                     paper=121.3 / 66.6, measure="throughput, 16 over 8 nodes"),
            at_least("throughput of 32 nodes over that of 8", ours[2] / ours[0], 218.6 / 66.6,
                     paper=218.6 / 66.6, measure="throughput, 32 over 8 nodes"),
            at_most("scheduling time on 32 nodes, median", milliseconds[2], 5.7, unit="ms",
                    paper=5.7, measure="scheduling time on 32 nodes"),
            at_most("scheduling time on 8 nodes, median", milliseconds[0], 4.1, unit="ms",
                    paper=4.1),
        ),
        notes=("times are medians of the CPU times of many calls on the machine at hand",),
    )  # fmt: skip


FIGURE = Figure(
    title="Scalability, and time of scheduling",
    claim="Throughput grows nearly linearly, 66.6, 121.3 and 218.6 thousand rows a second on 8, 16 "
    "and 32 nodes; scheduling takes 4.1 to 5.7 ms.",
    workload="Throughput: the exchange with more orders than the nodes can process, rows of the "
    "paper's sizes on links of 1 Gbit/s, epochs of two seconds of work. The paper does not give "
    "what operators cost: an order takes what 64 cores have for it at the paper's 66.6 thousand a "
    "second, in equal parts for each row of an operator. Scheduling: core allocation and "
    "assignment of twelve operators' executors.",
    place=RunsOn.SIMULATED,
    run=run,
    charts=(
        Chart(x="nodes", y="thousand_rows_per_s", x_label="nodes",
              y_label="throughput (1000 rows/s)"),
        Chart(x="nodes", y="scheduling_ms", x_label="nodes", y_label="scheduling time (ms)"),
    ),
    reason="An epoch has fixed costs and brings all state forward: more nodes share that, which is "
    "why 16 nodes process more than twice of 8.",
)  # fmt: skip
