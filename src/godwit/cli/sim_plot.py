"""Simulated runs over time, one above the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.cluster.simulated import History

__all__ = ["histories_figure"]

_PANELS = (
    ("took_s", "epoch (s)"),
    ("lag_rows", "rows behind"),
    ("load_distance", "load distance"),
    ("executors", "executors"),
    ("moved_bytes", "bytes moved"),
)


def histories_figure(runs: Mapping[str, History], *, title: str) -> Figure:
    """Draw epoch time, lag, load distance, executors and bytes moved of each run over time."""
    figure = Figure(figsize=(8, 9), layout="constrained")
    for axes, (column, label) in zip(
        figure.subplots(len(_PANELS), 1, sharex=True), _PANELS, strict=True
    ):
        for name, history in runs.items():
            values = history.column(column)
            if column == "moved_bytes":
                values = values.cumsum()
            axes.plot(history.column("ended_s"), values, linewidth=1, label=name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    figure.axes[0].legend()
    figure.axes[0].set_title(title)
    figure.axes[-1].set_xlabel("virtual time (s)")
    return figure
