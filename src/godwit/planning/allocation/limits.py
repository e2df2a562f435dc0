"""How long a solver may look for a better plan."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.arrays import wrong_value

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock

__all__ = ["SolverLimits", "solver_limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverLimits:
    """How long to look for a better plan."""

    # seconds for the whole plan, by `clock`; infinite: nothing in the plan depends on time
    time_limit_s: float = 5.0
    # branch-and-bound nodes of each program; gives the same plan on every machine when the time
    # limit is not reached
    node_limit: int | None = None
    rounds: int = 10_000  # searches after the first, at most
    patience: int = 400  # searches in a row that bring nothing before it stops
    clock: Clock = time.perf_counter  # where time is read
    # draws what is taken back or re-planned
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


def solver_limits(
    *,
    time_limit_s: float,
    node_limit: int | None,
    rounds: int,
    patience: int,
    clock: Clock,
    rng: np.random.Generator | None,
) -> SolverLimits:
    """Check a planner's options and gather them.

    Raises `InvalidProblemError` if a limit is not positive, or `rounds` negative.
    """
    for name, value in (
        ("time_limit_s", time_limit_s),
        ("node_limit", node_limit),
        ("patience", patience),
    ):
        if value is not None and not value > 0:
            raise wrong_value(f"options.{name}", value, "give a number above 0")
    if not rounds >= 0:
        raise wrong_value("options.rounds", rounds, "give a number of at least 0")
    return SolverLimits(
        time_limit_s=time_limit_s,
        node_limit=node_limit,
        rounds=rounds,
        patience=patience,
        clock=clock,
        rng=np.random.default_rng(0) if rng is None else rng,
    )
