"""Pictures of `godwit plan`, `sim` and `what-if`; imported late, as matplotlib is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.placement.preview import PlanPreview
    from godwit_lab.arena.table import TableRow
    from godwit_lab.cli.what_if_play import Answer
    from godwit_lab.simulator import History

_PALE, _BLUE, _RED, _GREY = "#b0b7c3", "#2a6f97", "#e07a5f", "#6c757d"


def preview_figure(preview: PlanPreview) -> Figure:
    """Return a figure of a plan per executor: load before and after, bytes sent and received."""
    figure = Figure(figsize=(max(6.0, 0.35 * len(preview.executors)), 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    place = np.arange(len(preview.executors))
    above.bar(
        place - 0.2, [e.load_before for e in preview.executors], 0.4, color=_PALE, label="before"
    )
    above.bar(
        place + 0.2, [e.load_after for e in preview.executors], 0.4, color=_BLUE, label="after"
    )
    above.axhline(preview.mean_index, color="black", linewidth=0.8, linestyle="--", label="mean")
    above.set_ylabel("load index")
    above.set_title(
        f"{preview.method}: {len(preview.moves)} moves, load distance "
        f"{preview.load_distance_before:.3g} → {preview.load_distance_after:.3g}"
    )
    above.legend()
    below.bar(place, [-e.bytes_out for e in preview.executors], color=_PALE, label="sends")
    below.bar(place, [e.bytes_in for e in preview.executors], color=_RED, label="receives")
    below.set_ylabel("bytes of state")
    below.set_xticks(
        place, [e.name for e in preview.executors], rotation=90 if len(place) > 8 else 0
    )
    below.legend()
    return figure


def compare_figure(previews: Sequence[PlanPreview]) -> Figure:
    """Return a figure with a point per planner: bytes moved against load distance."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for plan in previews:
        within = plan.status != "infeasible"
        axes.scatter(plan.moved_bytes, plan.load_distance_after, color=_BLUE if within else _RED,
                     marker="o" if within else "x")  # fmt: skip
        axes.annotate(plan.method, (plan.moved_bytes, plan.load_distance_after), fontsize=8,
                      textcoords="offset points", xytext=(4, 4))  # fmt: skip
    axes.set_xlabel("bytes of state moved")
    axes.set_ylabel("load distance afterwards")
    axes.set_title("Plans side by side (crosses break a limit)")
    return figure


_PANELS = (
    ("took_s", "epoch (s)"),
    ("lag_rows", "rows behind"),
    ("load_distance", "load distance"),
    ("executors", "executors"),
    ("moved_bytes", "bytes moved"),
)


def histories_figure(runs: Mapping[str, History], *, title: str) -> Figure:
    """Return a figure of runs over time.

    It shows epoch time, lag, load distance, executors and bytes moved of each run.
    """
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


def what_if_figure(answers: Sequence[Answer], *, target_s: float | None, title: str) -> Figure:
    """Return a figure of latencies with error bars, and of busy lanes, by number of executors."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    executors = [answer.executors for answer in answers]
    for label, estimates in (
        ("median", [answer.median for answer in answers]),
        ("99th percentile", [answer.tail for answer in answers]),
    ):
        middle = [e.seconds for e in estimates]
        bars = ([e.seconds - e.low_s for e in estimates], [e.high_s - e.seconds for e in estimates])
        above.errorbar(executors, middle, yerr=bars, marker="o", capsize=3, label=label)
    if target_s is not None:
        above.axhline(target_s, color="grey", linestyle="--", label="target")
    above.set_yscale("log")
    above.set_ylabel("latency (s)")
    above.set_title(title)
    above.legend()
    below.plot(executors, [a.utilisation for a in answers], marker="o", label="all lanes")
    below.plot(executors, [a.busiest for a in answers], marker="o", label="busiest lanes")
    below.set_ylabel("share of time busy")
    below.set_xlabel("executors")
    below.set_ylim(bottom=0)
    below.legend()
    return figure


def arena_figure(rows: Sequence[TableRow]) -> Figure:
    """Return a figure of an arena: for each mechanism and pattern, missed time against cost."""
    panels = list(dict.fromkeys((row.mechanism, row.pattern) for row in rows))
    wide = min(len(panels), 3)
    high = -(-len(panels) // wide)
    figure = Figure(figsize=(4.2 * wide, 3.4 * high), layout="constrained")
    axes = figure.subplots(high, wide, squeeze=False).ravel()
    for panel, (mechanism, pattern) in zip(axes, panels, strict=False):
        for row in rows:
            if (row.mechanism, row.pattern) != (mechanism, pattern):
                continue
            own = row.autoscaler == "godwit"
            place = row.mean["cost"], 100 * row.mean["violated"]
            panel.scatter(*place, color=_RED if own else _BLUE if row.rank else _GREY)
            panel.annotate(row.autoscaler, place, fontsize=8, textcoords="offset points",
                           xytext=(4, 4))  # fmt: skip
        panel.set_title(f"{pattern} ({mechanism})", fontsize=9)
        panel.set_xlabel("executor-seconds over the least")
        panel.set_ylabel("% of the time missed")
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    return figure


_STAGES = 6
_PARTITIONS = 200
