"""Paper 1, figure 11: response time around a migration, live and with everything stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.scaling import scripted
from godwit.control.settings import Control, Search
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
)
from godwit_lab.simulator import Simulation, controlled_by
from godwit_lab.simulator.cluster import Machine, Pool, SimulatedCluster, Slowdown
from godwit_lab.simulator.flow import SimulatedComponent
from godwit_lab.simulator.scenario import Scenario
from godwit_lab.simulator.workload import Keys, Rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit_lab.cli.reproduce.figure import Clause, Data
    from godwit_lab.simulator import History


_BEFORE, _AFTER, _MIGRATION_MIN = 10, 8, 7
_KEYS, _KEY_BYTES = 20_000, 10_000
_RESTART_S, _SERVER_BYTES_PER_S = 20.0, 1e8
_EPOCH_S = 0.5
"""Length of an epoch here: the one that meets the stop takes as long as the stop."""


def _scenario(minutes: int) -> Scenario:
    """Ten executors of two cores, of which half is used: 8 suffice, too."""
    machines = (Machine(cores=2),) * _BEFORE
    return Scenario(
        cluster=SimulatedCluster(machines=machines, added=machines[0], pool=Pool(most=_BEFORE)),
        components=(
            SimulatedComponent(name="count", key_groups=128, row_ms=1.0, key_bytes=_KEY_BYTES),
        ),
        rate=Rate(rows_per_s=0.5 * 1000 * 2 * _BEFORE, noise=0.1),
        keys=Keys(number=_KEYS, zipf=0.5),
        duration_s=60.0 * minutes,
        longest_epoch_s=10.0,
    )


def _stopped(scenario: Scenario) -> Scenario:
    """Stop all executors while all state goes to a file server and back, and they start again."""
    pause_s = _RESTART_S + 2 * _KEYS * _KEY_BYTES / _SERVER_BYTES_PER_S
    at_s = 60.0 * _MIGRATION_MIN
    stops = tuple(
        Slowdown(executor=str(e), start_s=at_s, end_s=at_s + 1, factor=pause_s / _EPOCH_S)
        for e in range(_BEFORE)
    )
    return replace(scenario, cluster=replace(scenario.cluster, slowdowns=stops))


def by_minute(history: History, minutes: int) -> list[float]:
    """Mean response time of the rows that were processed in each minute, in milliseconds."""
    return [
        1e3 * history.between(60.0 * at, 60.0 * (at + 1)).delays().mean_s for at in range(minutes)
    ]


def _around(migration: str) -> Callable[[Data], float]:
    """Return a getter of the largest response time in the minutes from the migration on."""
    return lambda data: float(
        max(data.one("response_ms", migration=migration, minute=_MIGRATION_MIN + 1 + later)
            for later in range(3))
    )  # fmt: skip


def _usual(data: Data) -> float:
    """Return the median response time before the migration, live."""
    return float(np.median(data.column("response_ms", migration="live")[2:_MIGRATION_MIN]))


def live_or_stopped(
    around: Callable[[str], Callable[[Data], float]],
    usual: Callable[[Data], float],
    max_rise: float,
    workers: str = "",
) -> tuple[Clause, ...]:
    """Return the clauses of the figure, of response times around a migration and before it.

    `max_rise`: bound on the former over the latter where the migration is live.
    """

    def gain(data: Data) -> float:
        return around("stop everything")(data) / around("live")(data)

    return (
        at_least(f"live migration reduces the response time around a migration{workers} by several "
                 "orders of magnitude, against all nodes stopping", "stopped over live", gain,
                 100.0),
        at_least("by one order of magnitude", "stopped over live", gain, 10.0, decisive=True,
                 beyond=True),
        at_most("a live migration hardly shows", "response time over that before",
                lambda data: around("live")(data) / usual(data), max_rise, beyond=True),
    )  # fmt: skip


@figure(
    title="Response time around a migration, live and stopped",
    clauses=live_or_stopped(_around, _usual, 2.0, " from 10 to 8 workers"),
    workload="10 executors of 2 cores, half used, 8 from the seventh minute on; 200 MB of state. "
    "Stopped: all state goes to a file server of 100 MB/s and back, and workers start in 20 s "
    "(chosen).",
    place=RunsOn.SIMULATED,
    charts=(
        Chart(x="minute", y="response_ms", by="migration", x_label="minute",
              y_label="mean response time (ms)", log_y=True),
    ),
    mechanism="live migration",
    reason="Rows wait for the end of their epoch, a second or more without any migration.",
)  # fmt: skip
def figure11(run: FigureRun) -> FigureResult:
    minutes = run.pick(11, 14)
    scenario = _scenario(minutes)
    settings = Control(
        scaling=scripted({0: _BEFORE, f"{_MIGRATION_MIN} minutes": _AFTER}),
        period="10 seconds",
        search=Search(options={"node_limit": 1, "rounds": 1}),
    )
    rows: list[Row] = []
    for name, played in (
        ("live", _stopped(scenario) if run.off else scenario),
        ("stop everything", _stopped(scenario)),
    ):
        run.progress(name)
        history = Simulation(played, seed=run.seed, control=controlled_by(settings)).run()
        told = by_minute(history, minutes)
        rows += [
            {"migration": name, "minute": minute, "response_ms": ms}
            for minute, ms in enumerate(told, 1)
            if np.isfinite(ms)
        ]
    return FigureResult(rows=rows)
