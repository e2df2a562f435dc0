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
    at_least,
    at_most,
    figure,
    look_up,
    sweep,
)
from godwit_lab.experiments.paper5.micro import Micro, simulate, throughput

if TYPE_CHECKING:
    from collections.abc import Iterable


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


@figure(
    title="Scalability of one executor by costs and sizes of rows",
    claim="One executor can use the whole cluster of 256 cores, but not more than 16 where rows "
    "have 8 KB or cost 0.01 ms.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=charts("thousand_rows_per_s", "throughput (1000 rows/s)"),
    reason="The paper's rows all pass the link of one node on their way to remote tasks. Here they "
    "are read on all machines and go straight to their lanes, so that links grow with the cores.",
)  # fmt: skip
def figure13(run: FigureRun) -> FigureResult:
    rows = vary_rows(run)
    share = look_up(rows, "series", "cores", column="share")

    def grown(series: str) -> float:
        """Throughput of 256 cores over that of 8."""
        return share[series, 256] * 256 / (share[series, 8] * 8)

    return FigureResult(
        rows=rows,
        checks=(
            at_least("rows of 1 ms and 128 bytes use the whole cluster: 256 cores over 8",
                     grown("1 ms"), 16.0, decisive=True),
            at_most("8 KB rows use the 16 cores of two machines less than the 8 of one: ratio of "
                    "the shares", share["8,192 bytes", 16] / share["8,192 bytes", 8], 0.9),
            at_most("and so do rows of 0.01 ms: ratio of the shares",
                    share["0.01 ms", 16] / share["0.01 ms", 8], 0.9),
            at_most("with 8 KB rows, 256 cores process hardly more than 16: ratio",
                    share["8,192 bytes", 256] * 256 / (share["8,192 bytes", 16] * 16), 2.0),
        ),
    )  # fmt: skip


@figure(
    title="99th percentile of latency as one executor grows",
    claim="Latency does not grow noticeably as the executor scales out, except where rows of 2 KB "
    "and more, or of 0.1 ms and less, make the network the bottleneck.",
    workload=WORKLOAD + " Latency is the time of an epoch, which takes what the cores process in "
    "two seconds.",
    place=RunsOn.SIMULATED,
    charts=charts("p99_s", "time of an epoch, 99th percentile (s)"),
    reason="Rows wait for the end of their epoch, so that latency is seconds with one core, too.",
)  # fmt: skip
def figure14(run: FigureRun) -> FigureResult:
    rows = vary_rows(run)
    p99_s = look_up(rows, "series", "cores", column="p99_s")
    return FigureResult(
        rows=rows,
        checks=(
            at_most("with rows of 1 ms and 128 bytes it hardly grows: 64 cores over 8",
                    p99_s["1 ms", 64] / p99_s["1 ms", 8], 1.5, decisive=True),
            at_least("with 8 KB rows it grows with remote cores: 16 cores over 8",
                     p99_s["8,192 bytes", 16] / p99_s["8,192 bytes", 8], 1.1),
            at_least("with rows of 0.01 ms it grows with remote cores: 16 cores over 8",
                     p99_s["0.01 ms", 16] / p99_s["0.01 ms", 8], 1.1),
            at_most("it does not grow without bound: 8 KB rows, 256 cores over 16",
                    p99_s["8,192 bytes", 256] / p99_s["8,192 bytes", 16], 4.0),
        ),
    )  # fmt: skip


_OMEGAS = {f"ω = {omega}": omega for omega in (2, 16)}
_BYTES = {f"{kilobytes:,} kB a shard": 1e3 * kilobytes for kilobytes in (32, 2_048, 32_768)}


@figure(
    title="Scalability of one elastic executor by state size",
    claim="The executor scales out with every size of state but 32 MB a shard, where migration is "
    "the bottleneck, the more so the more often keys are shuffled.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=charts("thousand_rows_per_s", "throughput (1000 rows/s)",
                  panels=_OMEGAS),
    reason="Every epoch here changes the state of all keys, and brings it forward; with 32 MB a "
    "shard that takes the time, more than migration does.",
)  # fmt: skip
def figure15(run: FigureRun) -> FigureResult:
    rows = sweep(
        run,
        lambda panel, series, cores: measure(
            cores, Micro(shuffles_per_min=_OMEGAS[panel], shard_bytes=_BYTES[series]), run
        ),
        panel=_OMEGAS,
        series=_BYTES,
        cores=(8, 64, 256),
    )
    rate = look_up(rows, "panel", "series", "cores", column="thousand_rows_per_s")
    (slow, fast), (small, *_, large) = _OMEGAS, _BYTES
    return FigureResult(
        rows=rows,
        checks=(
            at_least("with 32 kB a shard it scales at ω = 2: 256 cores over 8",
                     rate[slow, small, 256] / rate[slow, small, 8], 16.0, decisive=True),
            at_most("with 32 MB a shard it does not: throughput of 256 cores over that with 32 kB",
                    rate[slow, large, 256] / rate[slow, small, 256], 0.7),
            at_most("and less so at ω = 16: throughput of 256 cores over that at ω = 2",
                    rate[fast, large, 256] / rate[slow, large, 256], 1.0),
        ),
    )  # fmt: skip
