"""Micro-benchmark of paper 5 §5.1 in the simulator: a calculator with a millisecond a row.

Ten thousand keys with Zipf frequencies that are shuffled ω times a minute, on 32 machines of 8
cores with 8192 key groups; rows come faster than all cores could process them, so throughput is
what a policy makes of the cores.  Latency is the time of an epoch: rows that wait at the source
because too many come are not counted, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper5.policies import SYNCHRONISED, play
from godwit.cluster.simulated.cluster import Machine, SimulatedCluster
from godwit.cluster.simulated.flow import SimulatedComponent
from godwit.cluster.simulated.scenario import Scenario
from godwit.cluster.simulated.workload import Keys, Rate

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun
    from godwit.cluster.simulated import History

SYSTEMS = ("static", "resource-centric", "executor-centric", SYNCHRONISED)
WORKLOAD = (
    "The paper's: 10,000 keys, 1 ms a row, 32 machines of 8 cores, 8192 key groups, more rows than "
    "the cores can process, of 128 bytes on links of 1 Gbit/s; one minute of virtual time if "
    "quick, else five; epochs of two seconds."
)
_KEYS = 10_000
_EPOCH_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """One setting of the micro-benchmark."""

    shuffles_per_min: float = 2.0  # ω
    zipf: float = 0.5  # α
    shard_bytes: float = 32e3  # state of a key group
    executors: int = 32
    key_groups: int = 8192
    cores: int = 8
    row_ms: float = 1.0
    row_bytes: int = 128


def simulate(micro: Micro, policy: str, run: FigureRun) -> History:
    """Run one policy; the same rows come under every policy."""
    executors, cores, key_groups = micro.executors, micro.cores, micro.key_groups
    duration = run.pick(60.0, 300.0)
    capacity = 1000.0 * executors * cores / micro.row_ms
    every = 60 / micro.shuffles_per_min if micro.shuffles_per_min else duration
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(cores=cores),) * executors),
        components=(
            SimulatedComponent(
                name="calculator",
                key_groups=key_groups,
                row_ms=micro.row_ms,
                key_bytes=max(1, round(micro.shard_bytes * key_groups / _KEYS)),
            ),
        ),
        rate=Rate(rows_per_s=1.1 * capacity, noise=0.05),
        keys=Keys(
            number=_KEYS,
            zipf=micro.zipf,
            shifts_s=tuple(np.arange(every, duration, every).tolist()),
        ),
        duration_s=duration,
        max_rows=int(_EPOCH_S * capacity),
        row_bytes=micro.row_bytes,
    )
    return play(scenario, policy, run, period_s=2.0)


def throughput(history: History) -> float:
    """Thousand rows a second."""
    return history.summary()["rows_per_s"] / 1000


def latency_s(history: History) -> float:
    """Median time of an epoch in seconds."""
    return history.summary()["epoch_ms"] / 1000
