"""Paper 1, figure 16: window size against response time after a migration, frequent patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement.copy_routes import transfer_phases
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
    rank_correlation,
)
from godwit_lab.experiments.paper1.migrations import (
    MTM,
    NOTE,
    RING,
    SSM,
    consistent_hashing,
    follow,
    migrations,
    proposed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from godwit.placement.arrays import FloatArray
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution
    from godwit_lab.cli.reproduce.figure import Data
    from godwit_lab.experiments.paper1.migrations import Migrations


_WINDOWS_S = (30.0, 60.0, 90.0, 120.0)
_USUAL_WINDOW_S, _USUAL_BYTES, _BYTES_PER_S = 90.0, 1e9, 1.25e8
_MEASURED_S = 120.0
"""Time after the start of a migration over which the paper takes the mean."""
_DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Key groups that have moved: how long their rows wait at first, and their shares of the rows.

    A key group's rows wait until its state is there, so one that comes t later waits t less.
    """

    until_s: FloatArray
    share: FloatArray

    @property
    def mean_ms(self) -> float:
        """Mean delay of all rows of the measured time."""
        return 1e3 * float(self.share @ (self.until_s**2 / 2)) / _MEASURED_S

    def slower_than(self, delay_s: float) -> float:
        """Share of all rows that wait for longer."""
        return float(self.share @ (self.until_s - delay_s).clip(min=0)) / _MEASURED_S


def waits(of: Migrations, plan: Callable[[Problem], Solution], bytes_per_s: float) -> list[Waits]:
    """Play the transfers of every migration of a sequence, in phases."""
    found = []
    for solution in follow(of, plan):
        until_s: dict[int, float] = {}
        now_s = 0.0
        for phase in transfer_phases(solution.moves):
            now_s += phase.size_bytes / bytes_per_s
            until_s |= dict.fromkeys((piece.move.key_group for piece in phase.pieces), now_s)
        key_groups = np.fromiter(until_s, np.int64)
        load = of.start.load[key_groups, 0] / of.start.load.sum()
        found.append(Waits(until_s=np.fromiter(until_s.values(), np.float64), share=load))
    return found


def _mean_ms(every: Iterable[Waits]) -> float:
    return float(np.mean([each.mean_ms for each in every]))


def _largest(strategy: str, baseline: str) -> Callable[[Data], float]:
    """Return a getter of the largest ratio of two strategies' delays, of all windows."""

    def number(data: Data) -> float:
        first, second = (
            data.column("delay_ms", panel="mean", strategy=n) for n in (strategy, baseline)
        )
        return float((first / second).max())

    return number


def _grows(strategy: str) -> Callable[[Data], float]:
    """Return a getter of the rank correlation of a strategy's delay with the window."""
    return lambda data: rank_correlation(
        _WINDOWS_S, data.column("delay_ms", panel="mean", strategy=strategy).tolist()
    )


@figure(
    title="Window size against the delay by a migration, frequent patterns",
    clauses=(
        at_least("the response time in the two minutes after a migration grows with the window",
                 "rank correlation, smallest of all methods",
                 lambda data: min(_grows(name)(data) for name in (SSM, MTM, RING)), 0.9),
        at_most("single-step is far below consistent hashing", "largest ratio", _largest(SSM, RING),
                0.67, decisive=True),
        at_most("so is MTM-aware", "largest ratio", _largest(MTM, RING), 0.67),
        at_most("MTM-aware delays rows less than single-step", "largest ratio", _largest(MTM, SSM),
                0.999),
    ),
    workload="40 migrations (100 in full) of figure 12 with windows of 30 to 120 s; with 90 s, "
    "the usual one, state is a gigabyte, and links carry 1 Gbit/s (chosen). Transfers go in "
    "phases; the time in which rows wait for state counts.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="window_s", y="delay_ms", by="strategy", only=("panel", "mean"),
              title="mean of two minutes", x_label="window (s)",
              y_label="delay of a row by the migration (ms)"),
        Chart(x="longer_than_s", y="percent", by="strategy", only=("panel", "distribution"),
              title="window of 90 s", x_label="delay (s)", y_label="rows that wait longer (%)"),
    ),
    mechanism="the choice of what moves (SSM and MTM)",
    reason="The protocol is the paper's, with our plans: in a running query rows do not wait.",
)  # fmt: skip
def figure16(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for window_s in _WINDOWS_S:
        run.progress(f"window of {window_s:g} s")
        of = migrations(
            run, "frequent patterns", count=run.pick(40, 100), tau=1.2, window_s=window_s
        )
        # The same bytes an entry for every window: the usual one is a gigabyte in all.
        usual = migrations(run, "frequent patterns", count=1, tau=1.2)
        rate = _BYTES_PER_S * float(usual.start.state_bytes.sum()) / _USUAL_BYTES
        played = {name: waits(of, plan, rate) for name, plan in proposed(run, of).items()}
        played[RING] = [
            each
            for seed in range(run.pick(5, 20))
            for each in waits(of, consistent_hashing(seed), rate)
        ]
        for name, every in played.items():
            rows.append(
                {"panel": "mean", "strategy": name, "window_s": window_s,
                 "delay_ms": _mean_ms(every)}
            )  # fmt: skip
            if window_s == _USUAL_WINDOW_S:
                rows += [
                    {"panel": "distribution", "strategy": name, "longer_than_s": delay_s,
                     "percent": 100 * float(np.mean([e.slower_than(delay_s) for e in every]))}
                    for delay_s in _DELAYS_S
                ]  # fmt: skip
    return FigureResult(rows=rows, notes=(NOTE,))
