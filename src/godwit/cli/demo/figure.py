"""The demo's picture: what the migration and the loss of an executor did to epoch times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.cli.demo.recording import Recording

__all__ = ["epoch_figure", "highest_shown", "label_rows", "save"]


_STARTING_UP = 2
"""Epochs that would flatten all others: Python processes start in them."""
_ROW = 0.06
"""Height of a row of labels, as a part of that of the axes."""

_COLOURS = ("#2a6f97", "#e9c46a", "#2a9d8f", "#e07a5f", "#8d6a9f", "#b0b7c3")


def epoch_figure(recording: Recording) -> Figure:
    """Draw epoch time over time (above) and the key groups of each executor (below)."""
    epochs = recording.epochs
    at_s = np.array([epoch.at_s for epoch in epochs])
    figure = Figure(figsize=(10, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    durations = [epoch.duration_ms / 1e3 for epoch in epochs]
    above.plot(at_s, durations, color="#264653", marker="o", markersize=3, linewidth=1)
    above.set_ylabel("epoch time (s)")
    highest = highest_shown(durations)
    title = "New York's flights of 2013: a live migration and a killed executor"
    above_it = [f"{duration:.1f} s" for duration in durations if duration > highest]
    if above_it:
        title += f"\noff the scale: the first {_counted(above_it)}, in which Python processes start"
    above.set_title(title, fontsize=11)
    begin = float(at_s[0]) if len(at_s) else 0.0
    span = max([*at_s, *(mark.at_s for mark in recording.marks), begin + 1.0]) - begin
    above.set_xlim(begin - 0.02 * span, begin + 1.02 * span)
    starts = [(mark.at_s - begin) / span for mark in recording.marks]
    labels = [mark.label for mark in recording.marks]
    rows = label_rows(list(zip(starts, labels, strict=True)))
    above.set_ylim(
        0, highest / (0.94 - _ROW * max([row for row, _ in rows], default=0))
    )  # labels have the space above
    for (row, is_left), mark in zip(rows, recording.marks, strict=True):
        colour = "#c1121f" if "killed" in mark.label else "#6c757d"
        for axes in (above, below):
            axes.axvline(mark.at_s, color=colour, linestyle="--", linewidth=1)
        above.annotate(
            mark.label,
            (mark.at_s, 0.98 - _ROW * row),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(-4 if is_left else 4, 0),
            color=colour,
            fontsize=8,
            horizontalalignment="right" if is_left else "left",
            verticalalignment="top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
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


def highest_shown(durations: Sequence[float]) -> float:
    """Epoch time up to which a picture shows any: the first epochs do not count."""
    usual = durations[_STARTING_UP:] if len(durations) > _STARTING_UP else durations
    return 1.1 * float(max([*usual, 1e-3]))


def label_rows(labels: Sequence[tuple[float, str]]) -> list[tuple[int, bool]]:
    """Row of each label, so that none covers another, and whether it stands left of its moment.

    `labels`: where each begins, as a part of the width, and its text.
    """
    taken: list[list[tuple[float, float]]] = []
    rows = []
    for at, text in labels:
        width = _width(text)
        is_left = at + width > 1
        start = at - width if is_left else at
        free = (
            number
            for number, spans in enumerate(taken)
            if all(start >= end or start + width <= begin for begin, end in spans)
        )
        row = next(free, len(taken))
        if row == len(taken):
            taken.append([])
        taken[row].append((start, start + width))
        rows.append((row, is_left))
    return rows


def _width(text: str) -> float:
    """Width of a label, as a part of that of the axes."""
    return 0.02 + 0.0085 * len(text)


def _counted(durations: Sequence[str]) -> str:
    return f"epoch ({durations[0]})" if len(durations) == 1 else f"epochs ({', '.join(durations)})"


def save(recording: Recording, path: Path) -> None:
    """Write the picture; the suffix of `path` chooses the format."""
    epoch_figure(recording).savefig(path, dpi=150)
