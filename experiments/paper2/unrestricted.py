"""Runs of paper 2 §5.2.2: the MILP with 10, 13, and any number of migrations a period."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper2.drifting import System, play

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

PAUSE_S = 2.5
"""Seconds that a migration pauses a key group in the paper, on average."""
LIMITS = {"at most 10": 10, "at most 13": 13, "unrestricted": None}


def play_limits(run: FigureRun) -> list[Row]:
    """Let the MILP balance under each limit, with the pauses that its migrations would take."""
    systems = {name: System(planner="milp", max_moves=most) for name, most in LIMITS.items()}
    return [{**row, "pause_s": PAUSE_S * float(row["moves"])} for row in play(systems, run)]
