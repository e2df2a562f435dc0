"""The demo's picture: what the migration and the loss of an executor did to epoch times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.cli.demo.recording import Recording

__all__ = ["epoch_figure", "save"]

_COLOURS = ("#2a6f97", "#e9c46a", "#2a9d8f", "#e07a5f", "#8d6a9f", "#b0b7c3")


def epoch_figure(recording: Recording) -> Figure:
    """Draw epoch time over time (above) and the key groups of each executor (below)."""
    epochs = recording.epochs
    at_s = np.array([epoch.at_s for epoch in epochs])
    figure = Figure(figsize=(10, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.plot(at_s, [e.duration_ms / 1e3 for e in epochs], color="#264653", marker="o",
               markersize=3, linewidth=1)  # fmt: skip
    above.set_ylabel("epoch time (s)")
    above.set_ylim(bottom=0)
    above.set_title("New York's flights of 2013: a live migration and a killed executor")
    for number, mark in enumerate(recording.marks):
        colour = "#c1121f" if "killed" in mark.label else "#6c757d"
        for axes in (above, below):
            axes.axvline(mark.at_s, color=colour, linestyle="--", linewidth=1)
        above.annotate(
            mark.label,
            (mark.at_s, 0.97 - 0.07 * (number % 2)),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(4, 0),
            color=colour,
            fontsize=8,
            verticalalignment="top",
        )
    executors = recording.executors
    if executors:
        owned = [[e.key_groups.get(name, 0) for e in epochs] for name in executors]
        below.stackplot(
            at_s,
            owned,
            step="post",
            labels=[f"executor {name}" for name in executors],
            colors=[_COLOURS[i % len(_COLOURS)] for i in range(len(executors))],
        )
        below.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, reverse=True)
    below.set_ylabel("key groups")
    below.set_xlabel("seconds since the stream began")
    return figure


def save(recording: Recording, path: Path) -> None:
    """Write the picture; the suffix of `path` chooses the format."""
    epoch_figure(recording).savefig(path, dpi=150)
