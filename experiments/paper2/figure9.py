"""Paper 2, figure 9: pauses by migrations, with limited and with any number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper2.drifting import KEY_GROUPS, WORKLOAD, column
from experiments.paper2.unrestricted import LIMITS, PAUSE_S, play_limits
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

_PERIOD_S = 300.0
NOTE = (
    f"a migration counts as the paper's {PAUSE_S} s; in Godwit a key group moves without a pause, "
    "between two epochs"
)


def run(run: FigureRun) -> FigureResult:
    rows = play_limits(run)
    _, thirteen, free = (column(rows, name, "pause_s") for name in LIMITS)
    share = 100 * float(thirteen.mean()) / (KEY_GROUPS * _PERIOD_S)
    paused = f"with 13 migrations {share:.3f} % of the processing is paused; the limit bounds it"
    return FigureResult(
        rows=rows,
        checks=(
            at_least("unrestricted pauses more than with 13 migrations: ratio of the means",
                     float(free.mean() / max(thirteen.mean(), PAUSE_S)), 2.0, decisive=True),
        ),
        notes=(NOTE, paused),
    )  # fmt: skip


FIGURE = Figure(
    title="Pauses by the number of migrations allowed",
    claim="Without a limit, migrations pause very much; 13 of 300 key groups a period pause 0.04 % "
    "of the processing.",
    workload=WORKLOAD + " Each migration counts 2.5 s, the paper's mean.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="period", y="pause_s", by="system", x_label="period",
              y_label="pauses, all key groups (s)"),
    ),
)  # fmt: skip
