"""`godwit demo --scenario`: play it without the controller and with it, and show both."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.cli.demo.display import LivePage, PlainLines
from godwit.cli.demo.scenarios.picture import scenario_figure
from godwit.cli.demo.scenarios.play import ScenarioSettings, play_scenario
from godwit.cli.demo.scenarios.workload import SCENARIOS
from godwit.model.events import deciding
from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.cli.demo.scenarios.play import ScenarioRun

__all__ = ["figures_of", "play_both"]

_RUNS = {"off": (False,), "on": (True,), "both": (False, True)}
_DECISIONS = frozenset(deciding.__all__) - {"LoadMeasured"}
_SHOWN = 10
_WIDE = 120


def play_both(args: argparse.Namespace, work_dir: Path, console: Console) -> int:
    """Play a scenario as it is asked for, tell what came of it, and return the exit status."""
    settings = ScenarioSettings(
        work_dir=work_dir, scenario=SCENARIOS[args.scenario], seconds=args.seconds
    )
    console.print(Text(f"{settings.scenario.name}: {settings.scenario.story}"), soft_wrap=True)
    runs = []
    for controlled in _RUNS[args.controller]:
        live = console.is_terminal and not args.plain
        with LivePage(console) if live else PlainLines(console) as audience:
            runs.append(play_scenario(settings, controlled=controlled, audience=audience))
    picture = work_dir / "scenario.png"
    scenario_figure(settings.scenario, runs).savefig(picture, dpi=150)
    if args.json is not None:
        args.json.write_text(json.dumps(_measured(settings, runs), indent=1) + "\n")
    _tell(console, runs)
    console.print(Text(f"picture: {picture}"), soft_wrap=True)
    return 0 if all(run.comparison and run.comparison.equal for run in runs) else 1


def figures_of(run: ScenarioRun) -> dict[str, float]:
    """Sum a run up: times in seconds."""
    epochs = run.recording.epochs
    took_s = [epoch.duration_ms / 1e3 for epoch in epochs] or [0.0]
    return {
        "rows_per_s": run.recording.rows / epochs[-1].at_s if epochs else 0.0,
        "epoch_s_median": float(np.median(took_s)),
        "epoch_s_99th": float(np.quantile(took_s, 0.99)),
        "rows_behind_at_most": max(run.behind_rows, default=0),
        "busiest_over_mean_median": float(np.median(run.imbalance or [1.0])),
        "executors_at_most": max(run.executors, default=0),
        "moved_bytes": run.moved_bytes[-1] if run.moved_bytes else 0,
        "decisions": sum(type(e).__name__ in _DECISIONS for e in run.recording.told),
    }


def _measured(settings: ScenarioSettings, runs: Sequence[ScenarioRun]) -> dict[str, Any]:
    return {
        "scenario": asdict(settings.scenario),
        "seconds": settings.seconds,
        "runs": [
            {
                "controlled": run.controlled,
                "figures": figures_of(run),
                "equal": run.comparison is not None and run.comparison.equal,
                "imbalance": run.imbalance,
                "executors": run.executors,
                "moved_bytes": run.moved_bytes,
                "behind_rows": run.behind_rows,
                **run.recording.to_dict(),
            }
            for run in runs
        ],
    }


def _tell(console: Console, runs: Sequence[ScenarioRun]) -> None:
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("controller")
    for column in (
        "rows/s",
        "epoch: median",
        "99th percentile",
        "rows behind, at most",
        "busiest / mean",
        "executors",
        "state moved",
        "decisions",
    ):
        table.add_column(column, justify="right")
    for run in runs:
        made = figures_of(run)
        table.add_row(
            "on" if run.controlled else "off",
            f"{made['rows_per_s']:,.0f}",
            f"{made['epoch_s_median']:.2f} s",
            f"{made['epoch_s_99th']:.2f} s",
            f"{made['rows_behind_at_most']:,.0f}",
            f"{made['busiest_over_mean_median']:.2f}",
            f"{made['executors_at_most']:.0f}",
            human_bytes(made["moved_bytes"]),
            f"{made['decisions']:.0f}",
        )
    console.print(table)
    for run in runs:
        name = f"controller {'on' if run.controlled else 'off'}"
        comparison = run.comparison
        if comparison is None or comparison.equal:
            rows = 0 if comparison is None else comparison.rows
            console.print(f"{name}: equal to the batch query, all {rows:,} rows", soft_wrap=True)
            continue
        differences = counted(len(comparison.differences), "difference")
        console.print(Text(f"{name}: {differences} from the batch query"), soft_wrap=True)
        for difference in comparison.differences[:_SHOWN]:
            console.print(Text(f"  {difference}"), soft_wrap=True)
