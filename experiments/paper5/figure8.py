"""Paper 5, figure 8: throughput by what a row costs and by its size, under three policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.micro import Micro, simulate, throughput
from experiments.paper5.policies import SYNCHRONISED
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_ROW_MS, _ROW_BYTES = (0.01, 0.1, 1.0), (128, 2048, 8192)
_SYSTEMS = ("static", SYNCHRONISED, "executor-centric")


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    found: dict[tuple[str, float, int], float] = {}
    for row_ms in _ROW_MS:
        for row_bytes in _ROW_BYTES:
            for system in _SYSTEMS:
                run.progress(f"{row_ms:g} ms, {row_bytes:,} bytes, {system}")
                machines = run.pick(8, 32)
                micro = Micro(
                    executors=machines,
                    key_groups=256 * machines,
                    row_ms=row_ms,
                    row_bytes=row_bytes,
                )
                found[system, row_ms, row_bytes] = throughput(simulate(micro, system, run))
                rows.append(
                    {
                        "row_ms": f"{row_ms:g} ms",
                        "row_bytes": row_bytes,
                        "policy": system,
                        "thousand_rows_per_s": found[system, row_ms, row_bytes],
                    }
                )

    def kept(system: str, row_ms: float, row_bytes: int) -> float:
        """Throughput with rows of a size, over that with the smallest ones."""
        return found[system, row_ms, row_bytes] / found[system, row_ms, _ROW_BYTES[0]]

    ours, cheap, large = "executor-centric", _ROW_MS[0], _ROW_BYTES[-1]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("at 0.01 ms a row, 8 KB rows leave a fraction of the throughput: largest share",
                    max(kept(system, cheap, large) for system in _SYSTEMS), 0.5, decisive=True),
            at_least("at 1 ms a row, 2 KB rows cost little: smallest share",
                     min(kept(system, 1.0, 2048) for system in _SYSTEMS), 0.8),
            at_least("executor-centric is best where rows are small and costly: ratio to static",
                     found[ours, 1.0, 128] / found["static", 1.0, 128], 1.05),
            at_most("executor-centric is the most sensitive to the size of cheap rows: its share "
                    "over that of static", kept(ours, cheap, large) / kept("static", cheap, large),
                    0.99),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Costs and sizes of rows against throughput",
    claim="Throughput drops with larger and with cheaper rows, as the network of 1 Gbit/s becomes "
    "the bottleneck; the executor-centric policy is the most sensitive to the size of rows, since "
    "its rows reach remote tasks by way of their executor.",
    workload="The micro-benchmark at ω = 2 on 8 machines of 8 cores if quick, else 32, with 256 "
    "key groups a machine; rows of 128 bytes to 8 KB that cost 0.01 to 1 ms. Sources are read "
    "evenly on all machines, and an epoch's exchange takes as long as its busiest link.",
    place=RunsOn.SIMULATED,
    run=run,
    charts=tuple(
        Chart(x="row_bytes", y="thousand_rows_per_s", by="policy", title=f"{row_ms:g} ms a row",
              only=("row_ms", f"{row_ms:g} ms"), x_label="size of a row (bytes)",
              y_label="throughput (1000 rows/s)", log_x=True, log_y=True)
        for row_ms in _ROW_MS
    ),
    reason="Rows go from the task that reads them straight to the lane of their key group, on "
    "whichever machine it is. There is no second hop, so no policy is more sensitive than another.",
)  # fmt: skip
