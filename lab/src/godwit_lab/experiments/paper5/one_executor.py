"""Paper 5 §5.2, figures 13 to 15: one elastic executor on 1 to 256 cores of the simulator.

The paper's executor is a process whose tasks run on cores of any node; rows come to the process and
continue to its remote tasks.  Ours is the lanes that share the key groups of one operator: a row
goes straight to its lane.  The first eight cores are of one machine, and more are of others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    acts,
    at_least,
    at_most,
    figure,
    sweep,
)
from godwit_lab.experiments.paper5.micro import Micro, simulate, throughput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from godwit_lab.cli.reproduce.figure import Data


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
        "moves": history.summary()["moves"],
    }


_CORES = (1, 8, 16, 64, 256)
_SMALL, _LARGE, _CHEAP = "1 ms", "8,192 bytes", "0.01 ms"
_PANELS = {
    "costs of rows of 128 bytes": {f"{ms:g} ms": Micro(row_ms=ms) for ms in (0.01, 0.1, 1.0)},
    "sizes of rows of 1 ms": {
        f"{size:,} bytes": Micro(row_bytes=size) for size in (128, 2048, 8192)
    },
}


@cache  # two figures show the same runs
def vary_rows(run: FigureRun) -> tuple[Row, ...]:
    """Measure rows of several costs and of several sizes."""
    return tuple(
        {"panel": panel, **row}
        for panel, settings in _PANELS.items()
        for row in sweep(
            run,
            lambda series, cores, settings=settings: measure(cores, settings[series], run),
            series=settings,
            cores=_CORES,
        )
    )


def charts(y: str, y_label: str, *, panels: Iterable[str] = _PANELS) -> tuple[Chart, ...]:
    """Panels with a line for each series."""
    return tuple(
        Chart(x="cores", y=y, by="series", only=("panel", panel), title=panel, x_label="cores",
              y_label=y_label, log_x=True, log_y=True)
        for panel in panels
    )  # fmt: skip


def _ratio(column: str, series: str, last: int, first: int) -> Callable[[Data], float]:
    """Return a getter of a column of a series with `of` cores, over that with `to`."""

    def number(data: Data) -> float:
        measured = data.table("series", "cores", column=column)
        return measured[series, last] / measured[series, first]

    return number


@figure(
    title="Scalability of one executor by costs and sizes of rows",
    clauses=(
        at_least("one executor can use the whole cluster of 256 cores",
                 "rows of 1 ms and 128 bytes: throughput of 256 cores over 8",
                 _ratio("thousand_rows_per_s", _SMALL, 256, 8), 16.0, decisive=True),
        at_most("but not more than 16 where rows have 8 KB", "throughput of 256 cores over 16",
                _ratio("thousand_rows_per_s", _LARGE, 256, 16), 2.0),
        at_most("or cost 0.01 ms", "throughput of 256 cores over 16",
                _ratio("thousand_rows_per_s", _CHEAP, 256, 16), 2.0),
        acts((_SMALL, _LARGE, _CHEAP), by="series", cores=256),
    ),
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=charts("thousand_rows_per_s", "throughput (1000 rows/s)"),
    reason="The paper's rows all pass the link of one node. Here they are read on all machines and "
    "go straight to their lanes, so that links grow with the cores.",
)  # fmt: skip
def figure13(run: FigureRun) -> FigureResult:
    return FigureResult(rows=vary_rows(run))


@figure(
    title="99th percentile of latency as one executor grows",
    clauses=(
        at_most("latency does not grow noticeably as the executor scales out",
                "rows of 1 ms and 128 bytes: 256 cores over 8",
                _ratio("p99_s", _SMALL, 256, 8), 1.5, decisive=True),
        *(
            at_least("except where rows of 2 KB and more, or of 0.1 ms and less, make the network "
                     "the bottleneck", f"{series}: largest of 64 and 256 cores over 8",
                     lambda data, series=series: max(
                         _ratio("p99_s", series, n, 8)(data) for n in (64, 256)), 1.5)
            for series in ("2,048 bytes", _LARGE, "0.1 ms", _CHEAP)
        ),
        at_most("it does not grow infinitely", "8 KB rows, 256 cores over 16",
                _ratio("p99_s", _LARGE, 256, 16), 4.0),
    ),
    workload=WORKLOAD + " Latency is the time of an epoch, which takes what the cores process in "
    "two seconds.",
    place=RunsOn.SIMULATED,
    charts=charts("p99_s", "time of an epoch, 99th percentile (s)"),
    reason="Rows wait for the end of their epoch, seconds with one core, too; links grow with the "
    "cores.",
)  # fmt: skip
def figure14(run: FigureRun) -> FigureResult:
    return FigureResult(rows=vary_rows(run))


_OMEGAS = {f"ω = {omega}": omega for omega in (2, 16)}
_BYTES = {f"{kilobytes:,} kB a shard": 1e3 * kilobytes for kilobytes in (32, 2_048, 32_768)}


def _state(
    panel: str, numerator: tuple[str, int], denominator: tuple[str, int]
) -> Callable[[Data], float]:
    """Return a getter of the throughput of a size of state and cores over that of others."""

    def number(data: Data) -> float:
        measured = data.table("series", "cores", column="thousand_rows_per_s", panel=panel)
        return measured[numerator] / measured[denominator]

    return number


(_SLOW, _FAST), (_KB32, _MB2, _MB32) = _OMEGAS, _BYTES


@figure(
    title="Scalability of one elastic executor by state size",
    clauses=(
        *(
            at_least("the executor scales out with every size of state but 32 MB a shard",
                     f"{size}, ω = 2: 256 cores over 8",
                     _state(_SLOW, (size, 256), (size, 8)), 16.0, decisive=size == _KB32)
            for size in (_KB32, _MB2)
        ),
        at_most("the executor scales out with every size of state but 32 MB a shard",
                "32 MB: 256 cores over 8", _state(_SLOW, (_MB32, 256), (_MB32, 8)), 16.0),
        at_most("where migration is the bottleneck", "256 cores over those with 32 kB",
                _state(_SLOW, (_MB32, 256), (_KB32, 256)), 0.7),
        at_most("the more so the more often keys are shuffled",
                "256 cores over 8 at ω = 16, over the same at ω = 2",
                lambda data: _state(_FAST, (_MB32, 256), (_MB32, 8))(data)
                / _state(_SLOW, (_MB32, 256), (_MB32, 8))(data), 0.99),
        acts((_KB32, _MB32), by="series", cores=256),
    ),
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=charts("thousand_rows_per_s", "throughput (1000 rows/s)",
                  panels=_OMEGAS),
    reason="Every epoch changes the state of all keys; with 32 MB a shard that takes the time, and "
    "migration is not worth it.",
)  # fmt: skip
def figure15(run: FigureRun) -> FigureResult:
    return FigureResult(
        rows=sweep(
            run,
            lambda panel, series, cores: measure(
                cores, Micro(shuffles_per_min=_OMEGAS[panel], shard_bytes=_BYTES[series]), run
            ),
            panel=_OMEGAS,
            series=_BYTES,
            cores=(8, 64, 256),
        )
    )
