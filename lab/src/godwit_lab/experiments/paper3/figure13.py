"""Paper 3, figure 13: latency while load moves, with instant and with disruptive migration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.settings import Budget, Control, Search, Worth
from godwit.migration import Strategy
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    acts,
    at_least,
    figure,
)
from godwit_lab.simulator import Simulation, controlled_by
from godwit_lab.simulator.cluster import Machine, SimulatedCluster
from godwit_lab.simulator.costs import CostModel
from godwit_lab.simulator.flow import SimulatedComponent
from godwit_lab.simulator.scenario import Scenario
from godwit_lab.simulator.workload import DrawnRows, Keys, Rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.control.loop import Controller
    from godwit.migration.messages import MigrationRequested
    from godwit_lab.cli.reproduce.figure import Data
    from godwit_lab.simulator import History
    from godwit_lab.simulator.workload import Batch


_NODES, _KEY_GROUPS, _KEYS_OF_ONE, _KEY_BYTES = 6, 60, 5_000, 1_000
_LOAD, _STILL_MIN, _RISE_MIN, _TURN_MIN = 0.7, 5, 3, 5
_ROW_MS = 0.2
_RESIDENT_MS, _TRIGGER_S = 12.0, 0.1
"""Fixed time of an epoch in resident lanes (`python -m benchmarks.resident`), and of one to the
next: shorter ones would make no difference to a mean of seconds, but to the time of this run."""
_SYSTEMS = {  # name → seconds from one decision to the next
    "instant, continuously": 10.0,
    "disruptive, every minute": 60.0,
    "disruptive, every five minutes": 300.0,
}


class _Rising(DrawnRows):
    """Rows of which those for the key groups of one node become more, of one node after another.

    A node's are those that it had at first. They rise by half of the node's load in three minutes;
    then they stay for two, and it is another node's turn.
    """

    def factors(self, time_s: float) -> np.ndarray:
        """Rows of each key group, over those at first."""
        turn, since_s = divmod(time_s - 60 * _STILL_MIN, 60 * _TURN_MIN)
        factor = np.ones(_KEY_GROUPS)
        if turn >= 0:
            here = np.arange(_KEY_GROUPS) % _NODES == int(turn) % _NODES
            factor[here] += 0.5 * min(since_s / (60 * _RISE_MIN), 1.0)
        return factor

    def batch(self, number: int, first: int, last: int) -> Batch:
        """Return rows ``first <= r < last``; called once for each."""
        drawn = super().batch(number, first, last)
        factor = self.factors(self._arrivals.time_of(first))
        share = factor / factor.sum()
        return replace(drawn, rows_of={"window": self._rng.multinomial(last - first, share)})


def _play(name: str, minutes: int, run: FigureRun) -> History:
    """Run one system; the same rows come to every one."""
    instant = name.startswith("instant") and not run.off
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(),) * _NODES),
        components=(
            SimulatedComponent(
                name="window",
                key_groups=_KEY_GROUPS,
                row_ms=_ROW_MS,
                # What migrates instantly leaves its state behind.
                key_bytes=0 if instant else _KEY_BYTES,
            ),
        ),
        rate=Rate(rows_per_s=_LOAD * _NODES * 1000 / _ROW_MS),
        keys=Keys(number=_KEY_GROUPS * _KEYS_OF_ONE),
        duration_s=60.0 * minutes,
        longest_epoch_s=10.0,
        trigger_s=_TRIGGER_S,
        costs=replace(CostModel.calibrated(), fixed_ms=_RESIDENT_MS),
    )
    settings = Control(
        planner="milp",
        period=f"{_SYSTEMS[name]} seconds",
        search=Search(options={"node_limit": 1, "rounds": 1}),
        budget=Budget(max_bytes=None),
        worth=Worth(gain="any"),
    )
    make = controlled_by(settings)

    def control(simulation: Simulation) -> Controller:
        """Let all key groups of a migration switch at the next epoch, which loads their state."""
        migrate = simulation.coordinator.migrate

        def at_once(request: MigrationRequested) -> None:
            migrate(replace(request, strategy=Strategy.DISRUPTIVE))

        simulation.coordinator.migrate = at_once  # type: ignore[method-assign]
        return make(simulation)

    simulation = Simulation(
        scenario,
        seed=run.seed,
        control=control,
        source=_Rising(scenario.rate, scenario.keys, scenario.duration_s, {}, run.rng(13)),
    )
    return simulation.run()


_INSTANT, _OFTEN, _SELDOM = _SYSTEMS


def _slower(strategy: str, baseline: str) -> Callable[[Data], float]:
    """Return a getter of the mean latency of a system over that of another, once load changes."""

    def number(data: Data) -> float:
        means = []
        for name in (strategy, baseline):
            rows, latency_s = (data.column(c, system=name) for c in ("rows", "latency_s"))
            changing = (data.column("minute", system=name) >= _STILL_MIN) & (rows > 0)
            means.append(float(np.average(latency_s[changing], weights=rows[changing])))
        return means[0] / means[1]

    return number


@figure(
    title="Latency under changing load, instant against disruptive",
    clauses=(
        at_least("disruptive migrations every five minutes leave nodes overloaded",
                 "longest mean latency of fifteen seconds over that before load changes",
                 lambda data: np.nanmax(data.column("latency_s", system=_SELDOM))
                 / np.nanmean(data.column("latency_s", system=_SELDOM)[4 : 4 * _STILL_MIN]), 10.0),
        at_least("every minute they are better", "mean latency, every five minutes over every one",
                 _slower(_SELDOM, _OFTEN), 1.05, decisive=True),
        at_least("and instant migration is better still", "mean latency, every minute over instant",
                 _slower(_OFTEN, _INSTANT), 1.05, decisive=True),
        at_least("by a factor of ten", "mean latency, every minute over instant",
                 _slower(_OFTEN, _INSTANT), 10.0, paper=10.0),
        acts(tuple(_SYSTEMS), by="system"),
    ),
    workload="Six nodes of a core, loaded to 70 %; after five minutes the key groups of one node "
    "get half as many rows again within three minutes, and five minutes later those of another. "
    "60 key groups of 5 MB: the paper's 50,000 keys, of 100 bytes. An instant migration is one at "
    "once of key groups without state. Epochs are those of resident lanes, ten a second.",
    place=RunsOn.SIMULATED,
    charts=(
        Chart(x="minute", y="latency_s", by="system", x_label="minute",
              y_label="mean latency (s)", log_y=True),
    ),
    mechanism="instant migration",
    reason="Rows wait for the end of their epoch: a tenth of a second, that of resident lanes, "
    "chosen after a quarter of a second, that of Spark's micro-batches, gave a factor of 1.8.",
)  # fmt: skip
def figure13(run: FigureRun) -> FigureResult:
    minutes = run.pick(15, 35)
    rows: list[Row] = []
    for name in _SYSTEMS:
        run.progress(name)
        history = _play(name, minutes, run)
        for quarter in range(4 * minutes):
            slice_ = history.between(15.0 * quarter, 15.0 * (quarter + 1))
            delays = slice_.delays()
            rows.append(
                {
                    "system": name,
                    "minute": quarter / 4,
                    "rows": delays.rows,
                    "moves": float(slice_.column("moves").sum()),
                    **({"latency_s": delays.mean_s} if delays.rows else {}),
                }
            )
    return FigureResult(rows=rows)
