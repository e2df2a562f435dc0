"""Paper 5, figure 15: scalability of one elastic executor by the size of state and by ω."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.micro import Micro
from experiments.paper5.one_executor import WORKLOAD, charts, measure
from godwit.cli.reproduce.figure import Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_CORES, _KILOBYTES, _OMEGAS = (8, 64, 256), (32, 2_048, 32_768), (2, 16)


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    rate: dict[tuple[int, int, int], float] = {}
    for omega in _OMEGAS:
        for kilobytes in _KILOBYTES:
            micro = Micro(shuffles_per_min=omega, shard_bytes=1e3 * kilobytes)
            for cores in _CORES:
                run.progress(f"ω = {omega}, {kilobytes:,} kB, {cores} cores")
                measured = measure(cores, micro, run)
                rate[omega, kilobytes, cores] = measured["thousand_rows_per_s"]
                rows.append(
                    {
                        "panel": f"ω = {omega}",
                        "series": f"{kilobytes:,} kB a shard",
                        "cores": cores,
                        **measured,
                    }
                )
    small, large = _KILOBYTES[0], _KILOBYTES[-1]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("with 32 kB a shard it scales at ω = 2: 256 cores over 8",
                     rate[2, small, 256] / rate[2, small, 8], 16.0, decisive=True),
            at_most("with 32 MB a shard it does not: throughput of 256 cores over that with 32 kB",
                    rate[2, large, 256] / rate[2, small, 256], 0.7),
            at_most("and less so at ω = 16: throughput of 256 cores over that at ω = 2",
                    rate[16, large, 256] / rate[2, large, 256], 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Scalability of one elastic executor by state size",
    claim="The executor scales out with every size of state but 32 MB a shard, where migration is "
    "the bottleneck, the more so the more often keys are shuffled.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    run=run,
    charts=charts("thousand_rows_per_s", "throughput (1000 rows/s)",
                  panels=[f"ω = {omega}" for omega in _OMEGAS]),
    reason="Every epoch here changes the state of all keys, and brings it forward; with 32 MB a "
    "shard that takes the time, more than migration does.",
)  # fmt: skip
