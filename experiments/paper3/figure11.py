"""Paper 3, figure 11: pauses of split and combine, beside that of a disruptive migration."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.paper3.checkout import use_benchmarks
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most
from godwit.migration import Strategy

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.windows.instant import pause_ms
    from benchmarks.windows.regrouping import pauses_ms

    rows: list[Row] = []
    pause: dict[tuple[str, int], float] = {}
    epochs: list[int] = []
    counts = run.pick((10_000, 100_000), (10_000, 100_000, 1_000_000))
    for keys in counts:
        run.progress(f"{keys:,} keys")
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            disruptive, _ = pause_ms(place / "moved", Strategy.DISRUPTIVE, keys, 2_000)
            found = {"disruptive migration": (disruptive, 1)}
            found |= pauses_ms(place / "regrouped", keys)
        for name, (ms, took) in found.items():
            # Switched off, a change of layout is a disruptive migration of the state.
            pause[name, keys] = disruptive if run.off else ms
            epochs.append(took)
            rows.append({"keys": keys, "action": name, "pause_ms": max(pause[name, keys], 0.1)})
    most = counts[-1]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("splitting pauses a fraction of a disruptive migration: ratio with most keys",
                    pause["split", most] / pause["disruptive migration", most], 0.3, decisive=True),
            at_most("combining does so, too: ratio with most keys",
                    pause["combine", most] / pause["disruptive migration", most], 0.3,
                    decisive=True),
            at_most("combining ends within the longest window, of thirty seconds: epochs",
                    float(max(epochs)), 30.0),
        ),
        notes=("pauses are CPU times of one run on the machine at hand",),
    )  # fmt: skip


FIGURE = Figure(
    title="Overhead of split and combine",
    claim="A component is split without a pause. Combining it pauses as long as a disruptive "
    "migration of its state, or not at all but until the longest window has ended.",
    workload="Windows of 20 and 30 seconds that are open; they are split, all key groups of one of "
    "three executors migrate instantly, and they are combined, while epochs of a second go on. The "
    "real conductor, lanes and stores in one process, without Spark.",
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="keys", y="pause_ms", by="action", x_label="keys of the open windows",
              y_label="longest pause of an epoch (ms)", log_x=True, log_y=True),
    ),
    mechanism="changing layouts without moving state at once",
    reason="Godwit combines in a third way: state goes to its new place beside the epochs, which "
    "takes some epochs and no pause.",
)  # fmt: skip
