"""Paper 3, figure 9 and §7.7: windows in one component against windows in two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit_lab.cli.reproduce.figure import Data


_WINDOWS = (2, 6)


def rows_per_s(run: FigureRun, keys: int, windows: int, rounds: int) -> dict[str, float]:
    """Rows that a second of CPU processes, for windows consolidated in one component or in two.

    Of several runs, that with the median ratio of the two.
    """
    use_benchmarks()
    from benchmarks.windows.splitting import Case, measure

    case = Case(keys=keys, windows=windows, migrations=0, length=run.pick(2, 4))
    spent_ms = []
    for turn in range(rounds):
        run.progress(f"{windows} windows, {keys:,} keys, round {turn + 1} of {rounds}")
        spent_ms.append(measure(case)[0])
    middle = sorted(spent_ms, key=lambda ms: ms["split"] / ms["combined"])[rounds // 2]
    return {form: keys * windows / (ms / 1e3) for form, ms in middle.items()}


def _rates(job: str, windows: int) -> Callable[[Data], np.ndarray]:
    """Return a getter of the rates of a job by keys, from the fewest to the most."""
    return lambda data: data.column("thousand_rows_per_s", job=f"{job}, {windows} windows")


def _doubled(job: str) -> Callable[[Data], float]:
    """Return a getter of what a doubling of the keys leaves of the rate, on average."""

    def number(data: Data) -> float:
        keys = data.column("keys", job=f"{job}, 2 windows")
        rate = _rates(job, 2)(data)
        return float((rate[-1] / rate[0]) ** (1 / np.log2(keys[-1] / keys[0])))

    return number


@figure(
    title="Consolidation and throughput, split and combined",
    clauses=(
        at_most("throughput falls with the keys of a partial result", "combined: what a doubling "
                "of the keys leaves, on average", _doubled("combined"), 0.999),
        at_least("but slowly", "combined: what a doubling of the keys leaves, on average",
                 _doubled("combined"), 0.8),
        at_most("more so for the split component", "what a doubling leaves, split over combined",
                lambda data: _doubled("split")(data) / _doubled("combined")(data), 1.0),
        at_most("it is lower for the split component", "ratio with most keys",
                lambda data: _rates("split", 2)(data)[-1] / _rates("combined", 2)(data)[-1], 0.999,
                decisive=True),
        *(
            at_least("the number of overlapping windows has little impact",
                     f"{job}: 6 windows over 2, most keys",
                     lambda data, job=job: _rates(job, 6)(data)[-1] / _rates(job, 2)(data)[-1],
                     0.7)
            for job in ("split", "combined")
        ),
    ),
    workload="Hopping windows of 2 and 6 partials, a row of every key in each; real coordinator, "
    "lanes and stores in one process. A quick run has one round of each, and three of the "
    "decisive one.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="keys", y="thousand_rows_per_s", by="job", x_label="keys of a partial result",
              y_label="throughput (1000 rows/s of CPU)", log_x=True),
    ),
    reason="Rates grow with the keys, as more rows share the fixed costs of an epoch. Combined, "
    "a row changes every window that it is in, or panes are shared, whichever is cheaper; this "
    "number of windows makes splitting pay.",
)  # fmt: skip
def figure9(run: FigureRun) -> FigureResult:
    keys = run.pick((1_000, 5_000), (2_000, 10_000, 50_000, 100_000))
    rows: list[Row] = []
    for windows in _WINDOWS:
        for count in keys:
            rounds = 3 if (windows, count) == (_WINDOWS[0], keys[-1]) else 1  # the decisive one
            rows += [
                {
                    "keys": count,
                    "job": f"{form}, {windows} windows",
                    "thousand_rows_per_s": rate / 1000,
                }
                for form, rate in rows_per_s(run, count, windows, rounds).items()
            ]
    return FigureResult(rows=rows, notes=("rates are by CPU time on the machine at hand",))


_ROWS = 18e6


def _longer(data: Data) -> float:
    """Return the time in two components over that in one."""
    split, combined = (data.one("seconds", who="here", job=job) for job in ("split", "combined"))
    return split / combined


@figure(
    title="One component against two (section 7.7)",
    clauses=(
        at_least("18 million rows take 456 s in one component and 512 s in two",
                 "two over one", _longer, 1.0, decisive=True),
        at_least("more than 10 % longer", "two over one", _longer, 1.1, paper=512 / 456),
    ),
    workload="Hopping windows of two partials; real coordinator, lanes and stores in one process, "
    "so that an exchange costs its serialisation but no network.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="job", y="seconds", by="who", kind="bars", x_label="job",
              y_label="time for 18 million rows (s)"),
    ),
    reason="The paper serialises every tuple by itself; here partial results cross in columns, a "
    "few per cent of what all else takes.",
)  # fmt: skip
def section7(run: FigureRun) -> FigureResult:
    rate = rows_per_s(run, run.pick(5_000, 50_000), 2, 3)
    return FigureResult(
        rows=[
            {"job": job, "who": who, "seconds": seconds}
            for who, times in (
                ("paper", {"combined": 456.0, "split": 512.0}),
                ("here", {form: _ROWS / rate[form] for form in rate}),
            )
            for job, seconds in times.items()
        ],
        notes=("seconds of CPU on the machine at hand for 18 million rows, from a shorter run",),
    )
