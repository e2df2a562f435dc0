"""Pictures of `godwit plan`, `sim` and `advise`; apart, since matplotlib loads slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from godwit.cli.advise.advice import StageAdvice
    from godwit.cluster.simulated import History
    from godwit.planning.preview import PlanPreview

__all__ = ["compare_figure", "figure_of", "histories_figure", "preview_figure", "save"]


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


_AS_RUN, _MOVED, _MEAN = "#e07a5f", "#2a6f97", "#6b7280"
_STAGES = 6
_PARTITIONS = 200


def figure_of(stages: Sequence[tuple[str, StageAdvice]]) -> Figure:
    """Draw the first stages, each with its title: one row each."""
    shown = stages[:_STAGES]
    figure = Figure(figsize=(11, 3.4 * len(shown)), layout="constrained")
    for row, (title, stage) in zip(
        figure.subplots(len(shown), 2, squeeze=False, width_ratios=(3, 2)), shown, strict=True
    ):
        time, work = row
        batches = [batch.first for batch in stage.drawn]
        for label, color, seconds in (
            ("as it ran", _AS_RUN, [b.as_run_s / b.count for b in stage.drawn]),
            ("partitions moved", _MOVED, [b.moved_s / b.count for b in stage.drawn]),
            ("mean of the slots", _MEAN, [b.mean_s / b.count for b in stage.drawn]),
        ):
            time.plot(batches, seconds, color=color, label=label, linewidth=1.2)
        time.set_xlabel("micro-batch")
        time.set_ylabel("seconds")
        time.set_ylim(bottom=0)
        # A dollar sign would begin a formula.
        time.set_title(title.replace("$", r"\$"), loc="left", fontsize=10)
        time.legend(fontsize=8)
        spent = sorted((p.work_s for p in stage.partitions.values()), reverse=True)
        work.bar(range(len(spent[:_PARTITIONS])), spent[:_PARTITIONS], color=_AS_RUN, width=1.0)
        work.axhline(sum(spent) / len(spent), color=_MEAN, linestyle="--", linewidth=1)
        work.set_xlabel("partitions, by work")
        work.set_ylabel("seconds in all")
    return figure
