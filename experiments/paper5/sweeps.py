"""Figures of paper 5 that vary one setting of the micro-benchmark, under every system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.micro import SYSTEMS, latency_s, simulate, throughput
from godwit.cli.reproduce.figure import Chart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.paper5.micro import Micro
    from godwit.cli.reproduce.figure import FigureRun, Row


def sweep(settings: Mapping[float, Micro], column: str, run: FigureRun) -> list[Row]:
    """Simulate every setting under every system."""
    rows: list[Row] = []
    for value, micro in settings.items():
        for policy in SYSTEMS:
            run.progress(f"{column} {value:g}, {policy}")
            history = simulate(micro, policy, run)
            rows.append(
                {
                    column: value,
                    "policy": policy,
                    "thousand_rows_per_s": throughput(history),
                    "latency_s": latency_s(history),
                    "moved_mb": history.summary()["moved_mb"],
                }
            )
    return rows


def charts(column: str, label: str, *, log_x: bool = False) -> tuple[Chart, ...]:
    """Panels of throughput and latency."""
    return tuple(
        Chart(x=column, y=y, by="policy", x_label=label, y_label=y_label, log_x=log_x)
        for y, y_label in (
            ("thousand_rows_per_s", "throughput (1000 rows/s)"),
            ("latency_s", "time of an epoch, median (s)"),
        )
    )


def ratios(rows: list[Row], column: str, of: str, to: str) -> dict[float, float]:
    """Throughput of a policy over that of another, by setting."""
    found = {(float(row[column]), row["policy"]): float(row["thousand_rows_per_s"]) for row in rows}
    values = dict.fromkeys(value for value, _ in found)
    return {value: found[value, of] / found[value, to] for value in values}
