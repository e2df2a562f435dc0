"""Pictures of plans: load per executor before and after, and planners side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.planning.preview import PlanPreview

__all__ = ["compare_figure", "preview_figure", "save"]

BEFORE, AFTER, MOVED = "#b0b7c3", "#2a6f97", "#e07a5f"


def preview_figure(preview: PlanPreview) -> Figure:
    """Draw load before and after (above) and bytes sent and received (below) per executor."""
    figure = Figure(figsize=(max(6.0, 0.35 * len(preview.executors)), 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    place = np.arange(len(preview.executors))
    above.bar(place - 0.2, [e.load_before for e in preview.executors], 0.4, color=BEFORE,
              label="before")  # fmt: skip
    above.bar(place + 0.2, [e.load_after for e in preview.executors], 0.4, color=AFTER,
              label="after")  # fmt: skip
    above.axhline(preview.mean_index, color="black", linewidth=0.8, linestyle="--", label="mean")
    above.set_ylabel("load index")
    above.set_title(
        f"{preview.method}: {len(preview.moves)} moves, load distance "
        f"{preview.load_distance_before:.3g} → {preview.load_distance_after:.3g}"
    )
    above.legend()
    below.bar(place, [-e.bytes_out for e in preview.executors], color=BEFORE, label="sends")
    below.bar(place, [e.bytes_in for e in preview.executors], color=MOVED, label="receives")
    below.set_ylabel("bytes of state")
    below.set_xticks(
        place, [e.name for e in preview.executors], rotation=90 if len(place) > 8 else 0
    )
    below.legend()
    return figure


def compare_figure(previews: Sequence[PlanPreview]) -> Figure:
    """Draw every planner as a point: bytes moved against load distance."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for plan in previews:
        within = plan.status != "infeasible"
        axes.scatter(plan.moved_bytes, plan.load_distance_after, color=AFTER if within else MOVED,
                     marker="o" if within else "x")  # fmt: skip
        axes.annotate(plan.method, (plan.moved_bytes, plan.load_distance_after), fontsize=8,
                      textcoords="offset points", xytext=(4, 4))  # fmt: skip
    axes.set_xlabel("bytes of state moved")
    axes.set_ylabel("load distance afterwards")
    axes.set_title("Plans side by side (crosses break a limit)")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the file's suffix chooses the format."""
    figure.savefig(path, dpi=150)
