"""Paper 3, figure 9: keys to consolidate against throughput, split and combined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper3.checkout import use_benchmarks
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_WINDOWS = (2, 6)


def rows_per_s(keys: int, windows: int, rounds: int = 3) -> dict[str, float]:
    """Rows that a second of CPU processes, for windows consolidated in one component or in two.

    Of several runs, that with the median ratio of the two.
    """
    use_benchmarks()
    from benchmarks.windows.splitting import Case, measure

    runs = [measure(Case(keys=keys, windows=windows, migrations=0))[0] for _ in range(rounds)]
    spent_ms = sorted(runs, key=lambda ms: ms["split"] / ms["combined"])[rounds // 2]
    return {form: keys * windows / (ms / 1e3) for form, ms in spent_ms.items()}


def run(run: FigureRun) -> FigureResult:
    keys = run.pick((1_000, 5_000), (2_000, 10_000, 50_000, 100_000))
    rows: list[Row] = []
    found: dict[tuple[str, int, int], float] = {}
    for windows in _WINDOWS:
        for count in keys:
            run.progress(f"{windows} windows, {count:,} keys")
            rounds = 3 if (windows, count) == (_WINDOWS[0], keys[-1]) else 1  # the decisive one
            for form, rate in rows_per_s(count, windows, rounds).items():
                found[form, windows, count] = rate
                rows.append(
                    {
                        "keys": count,
                        "job": f"{form}, {windows} windows",
                        "thousand_rows_per_s": rate / 1000,
                    }
                )
    most = keys[-1]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("one component is faster than two with few windows: ratio of split",
                    found["split", 2, most] / found["combined", 2, most], 1.0, decisive=True),
            at_least("the number of overlapping windows has little impact on split: ratio of 6 "
                     "windows to 2", found["split", 6, most] / found["split", 2, most], 0.7),
        ),
        notes=("rates are by CPU time on the machine at hand",),
    )  # fmt: skip


FIGURE = Figure(
    title="Consolidation and throughput, split and combined",
    claim="Throughput falls slowly with the keys of a partial result, is lower for the split "
    "component, and hardly depends on the number of overlapping windows.",
    workload="Hopping windows of 2 and 6 partials, a row of every key in each; the real conductor, "
    "lanes and stores in one process, without Spark.",
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="keys", y="thousand_rows_per_s", by="job", x_label="keys of a partial result",
              y_label="throughput (1000 rows/s of CPU)", log_x=True),
    ),
    reason="Combined, a row changes the state of every window that it is in, or panes are shared, "
    "whichever is cheaper; so many windows make splitting pay.",
)  # fmt: skip
