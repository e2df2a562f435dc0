"""Paper 3, figure 9 and §7.7: windows in one component against windows in two."""

from __future__ import annotations

from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
)
from godwit_lab.experiments.paper3.checkout import use_benchmarks

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


@figure(
    title="Consolidation and throughput, split and combined",
    claim="Throughput falls slowly with the keys of a partial result, is lower for the split "
    "component, and hardly depends on the number of overlapping windows.",
    workload="Hopping windows of 2 and 6 partials, a row of every key in each; the real "
    "coordinator, lanes and stores in one process, without Spark.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="keys", y="thousand_rows_per_s", by="job", x_label="keys of a partial result",
              y_label="throughput (1000 rows/s of CPU)", log_x=True),
    ),
    reason="Combined, a row changes the state of every window that it is in, or panes are shared, "
    "whichever is cheaper; this number of windows makes splitting pay.",
)  # fmt: skip
def figure9(run: FigureRun) -> FigureResult:
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


_ROWS = 18e6


@figure(
    title="One component against two (section 7.7)",
    claim="18 million rows take 456 s in one component and 512 s in two, more than 10 % longer.",
    workload="Hopping windows of two partials; the real coordinator, lanes and stores in one "
    "process without Spark, so that an exchange costs its serialisation but no network.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="job", y="seconds", by="who", kind="bars", x_label="job",
              y_label="time for 18 million rows (s)"),
    ),
    reason="The paper serialises every tuple between two components by itself; here partial "
    "results cross in columns, a few per cent of what all else takes.",
)  # fmt: skip
def section7(run: FigureRun) -> FigureResult:
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
