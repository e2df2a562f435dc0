"""One elastic executor on 1 to 256 cores of the simulator (paper 5 §5.2).

The paper's executor is a process whose tasks run on cores of any node; rows come to the process and
go on to its remote tasks.  Ours is the lanes that share the key groups of one operator: a row goes
straight to its lane.  The first eight cores are of one machine, and more are of others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from experiments.paper5.micro import Micro, simulate, throughput
from godwit.cli.reproduce.figure import Chart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.cli.reproduce.figure import FigureRun, Row

_CORES_OF_MACHINE = 8
WORKLOAD = (
    "The micro-benchmark of figure 6 at ω = 2 as one operator on 1 to 256 cores, eight a machine; "
    "8192 key groups, of which the lanes have as many as balances them."
)


def measure(cores: int, micro: Micro, run: FigureRun) -> dict[str, float]:
    """Throughput on some cores, as a share of what they could process, and latency.

    `micro`: everything but the machines.
    """
    machines = -(-cores // _CORES_OF_MACHINE)
    history = simulate(
        replace(micro, executors=machines, cores=min(cores, _CORES_OF_MACHINE)),
        "resource-centric",
        run,
    )
    thousands = throughput(history)
    return {
        "thousand_rows_per_s": thousands,
        "share": thousands * micro.row_ms / cores,
        "p99_s": history.summary()["epoch_p99_ms"] / 1000,
    }


_CORES = (1, 8, 16, 64, 256)
_PANELS = {
    "costs of rows of 128 bytes": {f"{ms:g} ms": Micro(row_ms=ms) for ms in (0.01, 0.1, 1.0)},
    "sizes of rows of 1 ms": {
        f"{size:,} bytes": Micro(row_bytes=size) for size in (128, 2048, 8192)
    },
}


@cache  # two figures show the same runs
def vary_rows(run: FigureRun) -> tuple[dict[str, float | str], ...]:
    """Measure rows of several costs and of several sizes."""
    rows: list[dict[str, float | str]] = []
    for panel, settings in _PANELS.items():
        for series, micro in settings.items():
            for cores in _CORES:
                run.progress(f"{series}, {cores} cores")
                measured = measure(cores, micro, run)
                rows.append({"panel": panel, "series": series, "cores": cores, **measured})
    return tuple(rows)


def by_series(rows: Iterable[Row], column: str) -> dict[tuple[str, int], float]:
    """Series and cores → a column."""
    return {(str(row["series"]), int(row["cores"])): float(row[column]) for row in rows}


def charts(y: str, y_label: str, *, panels: Iterable[str] = _PANELS) -> tuple[Chart, ...]:
    """Panels with a line for each series."""
    return tuple(
        Chart(x="cores", y=y, by="series", only=("panel", panel), title=panel, x_label="cores",
              y_label=y_label, log_x=True, log_y=True)
        for panel in panels
    )  # fmt: skip
