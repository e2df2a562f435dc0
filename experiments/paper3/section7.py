"""Paper 3 §7.7: the simple job as one component, and as two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper3.figure9 import rows_per_s
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

_ROWS = 18e6


def run(run: FigureRun) -> FigureResult:
    rate = rows_per_s(run.pick(5_000, 50_000), 2)
    ours = {form: _ROWS / rate[form] for form in rate}
    ratio = ours["split"] / ours["combined"]
    return FigureResult(
        rows=[
            {"job": job, "who": who, "seconds": seconds}
            for who, times in (
                ("paper", {"combined": 456.0, "split": 512.0}),
                ("here", ours),
            )
            for job, seconds in times.items()
        ],
        checks=(
            at_least("two components take longer than one: ratio", ratio, 1.0, decisive=True),
            at_least("by more than 10 %: ratio", ratio, 1.1, paper=512 / 456,
                     measure="time of two components over that of one"),
        ),
        notes=("seconds of CPU on the machine at hand for 18 million rows, from a shorter run",),
    )  # fmt: skip


FIGURE = Figure(
    title="One component against two (section 7.7)",
    claim="18 million rows take 456 s in one component and 512 s in two, more than 10 % longer.",
    workload="Hopping windows of two partials; the real conductor, lanes and stores in one "
    "process without Spark, so that an exchange costs its serialisation but no network.",
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="job", y="seconds", by="who", kind="bars", x_label="job",
              y_label="time for 18 million rows (s)"),
    ),
    reason="The paper serialises every tuple between two components by itself; here partial "
    "results cross in columns, a few per cent of what all else takes.",
)  # fmt: skip
