"""A scenario's picture: the same stream without a controller and with one, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from godwit.cli.demo.figure import highest_shown, label_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.cli.demo.scenarios.play import ScenarioRun
    from godwit.cli.demo.scenarios.workload import Scenario

__all__ = ["scenario_figure"]

_COLOURS = {False: "#e07a5f", True: "#2a6f97"}


def scenario_figure(scenario: Scenario, runs: Sequence[ScenarioRun]) -> Figure:
    """Draw epoch time, rows behind, imbalance, executors and bytes moved over time."""
    figure = Figure(figsize=(10, 11), layout="constrained")
    rows = figure.subplots(5, 1, sharex=True)
    for run in runs:
        epochs = run.recording.epochs
        at_s = [epoch.at_s for epoch in epochs]
        label = f"controller {'on' if run.controlled else 'off'}"
        for axes, values in zip(
            rows,
            (
                [epoch.duration_ms / 1e3 for epoch in epochs],
                run.behind_rows,
                run.imbalance,
                run.executors,
                [moved / 2**20 for moved in run.moved_bytes],
            ),
            strict=True,
        ):
            axes.plot(at_s, values, color=_COLOURS[run.controlled], label=label, linewidth=1.3,
                      marker=".", markersize=3)  # fmt: skip
    for axes, name in zip(
        rows,
        ("epoch time (s)", "rows behind", "busiest / mean", "executors", "MiB of state moved"),
        strict=True,
    ):
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        for mark in runs[0].recording.marks:
            axes.axvline(mark.at_s, color="#6c757d", linestyle="--", linewidth=0.8)
    times = [[epoch.duration_ms / 1e3 for epoch in run.recording.epochs] for run in runs]
    rows[0].set_ylim(0, max(map(highest_shown, times)) * 1.2)
    marks = runs[0].recording.marks
    end = max([*(epoch.at_s for run in runs for epoch in run.recording.epochs), 1e-3])
    for (row, is_left), mark in zip(
        label_rows([(mark.at_s / end, mark.label) for mark in marks]), marks, strict=True
    ):
        rows[0].annotate(mark.label, (mark.at_s, 0.97 - 0.12 * row),
                         xycoords=("data", "axes fraction"), textcoords="offset points",
                         xytext=(-3 if is_left else 3, 0), fontsize=8, color="#6c757d",
                         horizontalalignment="right" if is_left else "left",
                         verticalalignment="top")  # fmt: skip
    rows[0].set_title(f"{scenario.name}: {scenario.story}", fontsize=10, wrap=True)
    rows[0].legend(fontsize=8)
    rows[-1].set_xlabel("seconds since the stream began")
    return figure
