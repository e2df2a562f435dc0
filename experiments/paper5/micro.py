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

from godwit.adapt import Control
from godwit.adapt.settings import Budget, Search
from godwit.cluster.simulated import Simulation, controlled_by
from godwit.cluster.simulated.cluster import Machine, SimulatedCluster
from godwit.cluster.simulated.flow import SimulatedComponent
from godwit.cluster.simulated.scenario import Scenario
from godwit.cluster.simulated.workload import Keys, Rate

if TYPE_CHECKING:
    from godwit.adapt.settings import Elasticity
    from godwit.cli.reproduce.figure import FigureRun
    from godwit.cluster.simulated import History

POLICIES: dict[str, Elasticity] = {
    "static": "static",
    "resource-centric": "resource_centric",
    "executor-centric": "executor_centric",
}
WORKLOAD = (
    "The paper's: 10,000 keys, 1 ms a row, 32 machines of 8 cores, 8192 key groups, more rows than "
    "the cores can process; one minute of virtual time if quick, else five; epochs of two seconds."
)
NO_SYNCHRONISATION = (
    "Key groups move between two epochs here, and warm copies go ahead, so that moving them "
    "between executors needs no synchronisation of senders: resource-centric balancing does not "
    "degrade as the paper's does."
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


def simulate(micro: Micro, policy: str, run: FigureRun) -> History:
    """Run one policy; the same rows come under every policy.

    Switched off, the executor-centric policy is the static one.
    """
    executors, cores, key_groups = micro.executors, micro.cores, micro.key_groups
    duration = run.pick(60.0, 300.0)
    elasticity = POLICIES[policy]
    if run.off and elasticity == "executor_centric":
        elasticity = "static"
    capacity = 1000.0 * executors * cores
    every = 60 / micro.shuffles_per_min if micro.shuffles_per_min else duration
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(cores=cores),) * executors),
        components=(
            SimulatedComponent(
                name="calculator",
                key_groups=key_groups,
                row_ms=1.0,
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
    )
    settings = Control(
        planner="milp",
        elasticity=elasticity,
        period=2.0,
        search=Search(options={"node_limit": 1, "rounds": 1}),
        budget=Budget(max_bytes=None),
    )
    return Simulation(scenario, seed=run.seed, control=controlled_by(settings)).run()


def throughput(history: History) -> float:
    """Thousand rows a second."""
    return history.summary()["rows_per_s"] / 1000


def latency_s(history: History) -> float:
    """Median time of an epoch in seconds."""
    return history.summary()["epoch_ms"] / 1000
