"""Pictures of `godwit advise` and `demo`; imported late, as matplotlib is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.ops.advise.stage_advice import StageAdvice
    from godwit.ops.demo.show import PhaseMark

_PALE, _BLUE, _RED, _GREY = "#b0b7c3", "#2a6f97", "#e07a5f", "#6c757d"
_STAGES = 6
_PARTITIONS = 200


def advice_figure(stages: Sequence[tuple[str, StageAdvice]]) -> Figure:
    """Return a figure of the advice on the first stages, one row each."""
    shown = stages[:_STAGES]
    figure = Figure(figsize=(11, 3.4 * len(shown)), layout="constrained")
    for row, (title, stage) in zip(
        figure.subplots(len(shown), 2, squeeze=False, width_ratios=(3, 2)), shown, strict=True
    ):
        time_axes, work_axes = row
        batches = [batch.first for batch in stage.drawn]
        for label, color, seconds in (
            ("as it ran", _RED, [batch_.as_run_s / batch_.count for batch_ in stage.drawn]),
            ("partitions moved", _BLUE, [batch_.moved_s / batch_.count for batch_ in stage.drawn]),
            ("mean of the slots", _GREY, [batch_.mean_s / batch_.count for batch_ in stage.drawn]),
        ):
            time_axes.plot(batches, seconds, color=color, label=label, linewidth=1.2)
        time_axes.set_xlabel("micro-batch")
        time_axes.set_ylabel("seconds")
        time_axes.set_ylim(bottom=0)
        # A dollar sign would begin a formula.
        time_axes.set_title(title.replace("$", r"\$"), loc="left", fontsize=10)
        time_axes.legend(fontsize=8)
        partition_work_s = sorted(
            (partition.work_s for partition in stage.partitions.values()), reverse=True
        )
        work_axes.bar(
            range(len(partition_work_s[:_PARTITIONS])),
            partition_work_s[:_PARTITIONS],
            color=_RED,
            width=1.0,
        )
        work_axes.axhline(
            sum(partition_work_s) / len(partition_work_s), color=_GREY, linestyle="--", linewidth=1
        )
        work_axes.set_xlabel("partitions, by work")
        work_axes.set_ylabel("seconds in all")
    return figure


_STARTING_UP = 2  # epochs that would flatten all others: Python processes start in them
_ROW = 0.06  # height of a row of labels, as a part of that of the axes
_COLOURS = (_BLUE, "#e9c46a", "#2a9d8f", _RED, "#8d6a9f", _PALE)


def epoch_figure(epochs: Sequence[Mapping[str, Any]], marks: Sequence[PhaseMark]) -> Figure:
    """Return a figure of epoch times, and of the key groups of each executor, over time.

    `epochs`: see `godwit.ops.demo.show.Show.epochs`.
    """
    at_s = np.array([epoch["at_s"] for epoch in epochs])
    figure = Figure(figsize=(10, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    durations = [epoch["duration_ms"] / 1e3 for epoch in epochs]
    above.plot(at_s, durations, color="#264653", marker="o", markersize=3, linewidth=1)
    above.set_ylabel("epoch time (s)")
    highest = _highest_shown(durations)
    title = "New York's flights of 2013: a live migration and a killed executor"
    above_it = [f"{duration:.1f} s" for duration in durations if duration > highest]
    if above_it:
        first = f"epoch{'s' if len(above_it) > 1 else ''} ({', '.join(above_it)})"
        title += f"\noff the scale: the first {first}, in which Python processes start"
    above.set_title(title, fontsize=11)
    begin = float(at_s[0]) if len(at_s) else 0.0
    span = max([*at_s, *(mark.at_s for mark in marks), begin + 1.0]) - begin
    above.set_xlim(begin - 0.02 * span, begin + 1.02 * span)
    num_rows = _draw_marks([above, below], marks, begin, span, row_height=_ROW)
    above.set_ylim(0, highest / (1 - _ROW * num_rows))  # labels have the space above
    names = {name for epoch in epochs for name in epoch["key_groups"]}
    executors = sorted(names, key=lambda name: (len(name), name))
    if executors:
        owned = [[e["key_groups"].get(name, 0) for e in epochs] for name in executors]
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


def _draw_marks(
    panels: Sequence[Any],
    marks: Sequence[PhaseMark],
    begin_s: float,
    span_s: float,
    *,
    row_height: float,
) -> int:
    """Draw a line for each mark through all panels; return the number of rows of labels.

    `row_height`: of a row of labels, as a share of the uppermost panel's height. `begin_s`,
    `span_s`: time axis.
    """
    rows = label_rows([((mark.at_s - begin_s) / span_s, mark.label) for mark in marks])
    for (row, is_left), mark in zip(rows, marks, strict=True):
        colour = "#c1121f" if "killed" in mark.label else _GREY
        for axes in panels:
            axes.axvline(mark.at_s, color=colour, linestyle="--", linewidth=1)
        panels[0].annotate(
            mark.label,
            (mark.at_s, 0.98 - row_height * row),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(-4 if is_left else 4, 0),
            color=colour,
            fontsize=8,
            horizontalalignment="right" if is_left else "left",
            verticalalignment="top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    return max((row for row, _ in rows), default=0) + 1


def _highest_shown(durations: Sequence[float]) -> float:
    """Return the upper limit of the axis of epoch times, which ignores the first epochs."""
    after_start = durations[_STARTING_UP:] if len(durations) > _STARTING_UP else durations
    return 1.1 * float(max([*after_start, 1e-3]))


def label_rows(labels: Sequence[tuple[float, str]]) -> list[tuple[int, bool]]:
    """Place labels without overlap; return the row of each, and whether it is left of its mark.

    `labels`: position of each, as a share of the width, and its text.
    """
    spans_by_row: list[list[tuple[float, float]]] = []
    rows = []
    for position, text in labels:
        width = 0.02 + 0.0085 * len(text)  # as a share of that of the axes
        is_left = position + width > 1
        start = position - width if is_left else position
        free = (
            number
            for number, spans in enumerate(spans_by_row)
            if all(start >= end or start + width <= begin for begin, end in spans)
        )
        row = next(free, len(spans_by_row))
        if row == len(spans_by_row):
            spans_by_row.append([])
        spans_by_row[row].append((start, start + width))
        rows.append((row, is_left))
    return rows
