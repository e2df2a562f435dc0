"""Paper 5, table 2: state migrated and remote data of the naive scheduler and of Elasticutor's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.paper5.exchange_cores import SCHEDULE_S, schedule
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_PAPER = {
    ("naive", "state migrated"): 13.9,
    ("Elasticutor", "state migrated"): 2.4,
    ("naive", "remote data"): 235.3,
    ("Elasticutor", "remote data"): 21.6,
}


def run(run: FigureRun) -> FigureResult:
    found: dict[tuple[str, str], float] = {}
    for name in ("naive", "Elasticutor"):
        run.progress(name)
        naive = name == "naive" or run.off
        told = list(schedule(32, run.pick(15, 60), run, naive=naive))
        moved = float(np.mean([each.moved_bytes for each in told]))
        found[name, "state migrated"] = moved / SCHEDULE_S / 1e6
        remote = float(np.mean([each.remote_bytes_per_s for each in told]))
        found[name, "remote data"] = remote / 1e6
    rows: list[Row] = [
        {"scheduler": name, "who": f"{what}, {who}", "mb_per_s": value}
        for who, values in (("here", found), ("paper", _PAPER))
        for (name, what), value in values.items()
    ]
    ratio = {
        what: found["naive", what] / max(found["Elasticutor", what], 1e-9)
        for what in ("state migrated", "remote data")
    }
    return FigureResult(
        rows=rows,
        checks=(
            at_least("the naive scheduler migrates more state: ratio", ratio["state migrated"],
                     13.9 / 2.4, paper=13.9 / 2.4, decisive=True,
                     measure="state migrated, naive over ours"),
            at_least("the naive scheduler sends more to remote cores: ratio", ratio["remote data"],
                     235.3 / 21.6, paper=235.3 / 21.6,
                     measure="remote data, naive over ours"),
            *(
                at_most(f"{what}, Elasticutor's scheduling", found["Elasticutor", what], paper,
                        unit="MB/s", paper=paper, measure=what)
                for (name, what), paper in _PAPER.items()
                if name == "Elasticutor"
            ),
        ),
        notes=("the paper's orders are not public: rates of stocks drift at random",),
    )  # fmt: skip


FIGURE = Figure(
    title="Naive scheduling of cores against Elasticutor's",
    claim="Naive scheduling migrates 13.9 MB/s of state and sends 235.3 MB/s to remote cores, "
    "Elasticutor's 2.4 and 21.6.",
    workload="Twelve operators of 32 executors on 32 machines of 8 cores, with the paper's state "
    "sizes; rates drift, cores are scheduled once a second.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="scheduler", y="mb_per_s", by="who", kind="bars", x_label="scheduler",
              y_label="rate (MB/s)", log_y=True),
    ),
    mechanism="minimal migration and locality",
    reason="Absolute rates depend on the drift of the rates, which is chosen here; the ratio is "
    "what the schedulers differ in.",
)  # fmt: skip
