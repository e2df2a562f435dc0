"""Pictures of stateful stages: time per micro-batch, and work per partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.cli.advise.advice import StageAdvice

__all__ = ["figure_of"]

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
