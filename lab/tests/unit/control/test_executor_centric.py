"""Cores lent to where the work is, where elastic executors are more than cores."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.control.settings import Control
from godwit_lab.control.executor_centric import _allocate_servers
from godwit_lab.simulator import (
    History,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    UpstreamFeed,
    controlled_by,
)


def run(elasticity: str, *, chain: bool) -> History:
    """Three components on eight executors of one core; after 20 s the keys are shuffled."""
    components = tuple(
        SimulatedComponent(
            name=f"c{i}",
            key_groups=128,
            row_ms=1.0,
            key_bytes=1000,
            feeds=(UpstreamFeed(upstream=f"c{i - 1}", paired=0.5),) if chain and i else (),
        )
        for i in range(3)
    )
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(),) * 8),
        components=components,
        rate=Rate(rows_per_s=1600, noise=0.1),
        keys=Keys(number=5000, zipf=0.9, shifts_s=(20.0,)),
        duration_s=60.0,
    )
    settings = Control(elasticity=elasticity, period="4 seconds")
    return Simulation(scenario, seed=0, control=controlled_by(settings)).run()


@pytest.mark.parametrize("chain", [False, True])
def test_cores_are_lent_where_components_times_homes_are_more_than_cores(chain: bool) -> None:
    lent, static = (run(name, chain=chain) for name in ("executor_centric", "static"))
    left = float(lent.column("load_distance")[-8:].mean())
    assert left < 0.6 * float(static.column("load_distance")[-8:].mean())
    assert lent.summary()["delay_p99_s"] < static.summary()["delay_p99_s"]


def test_servers_that_are_too_few_are_shared_out_by_work() -> None:
    of = np.array([0, 0, 1, 2])
    busy, rows = np.array([2.0, 2.0, 8.0, 0.0]), np.array([5.0, 5.0, 10.0, 0.0])
    assert _allocate_servers(busy, rows, of, 9).tolist() == [3, 6, 0]  # stability needs 5 and 9
    assert _allocate_servers(busy, rows, of, 14).tolist() == [5, 9, 0]
