"""The exchange of paper 5 §5.4 in the simulator: a transactor and eleven operators behind it.

`examples/exchange.py` is the application; here its operators have costs and states, and machines
the paper's cores.  The orders of the Shanghai exchange are not public: stocks are popular by Zipf's
law, their rates change places every few seconds, and the rate of all of them strays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt import Control
from godwit.adapt.settings import Budget, Search
from godwit.cluster.simulated import Simulation, controlled_by
from godwit.cluster.simulated.cluster import Machine, SimulatedCluster
from godwit.cluster.simulated.flow import SimulatedComponent, UpstreamFeed
from godwit.cluster.simulated.scenario import Scenario
from godwit.cluster.simulated.workload import Keys, Rate

if TYPE_CHECKING:
    from godwit.adapt.settings import Elasticity
    from godwit.cli.reproduce.figure import FigureRun
    from godwit.cluster.simulated import History

POLICIES: dict[str, Elasticity] = {
    "static": "static",
    "resource-centric": "resource_centric",
    "naive executor-centric": "naive_executor_centric",
    "executor-centric": "executor_centric",
}
WARM_UP_S = 10.0
_STOCKS, _CORES, _KEY_GROUPS = 2_000, 8, 256
_TRADES = 0.5  # an order
_LOAD = 0.36  # of what the cores could process if an epoch of twelve operators cost nothing
# Milliseconds of a row, bytes of a stock; statistics have 300 MB in all, events 8 MB.
_COSTS = {
    "transactor": (1.0, 25_000),
    **{f"statistic {number}": (0.3, 150_000) for number in range(1, 7)},
    **{f"event {number}": (0.1, 4_000) for number in range(1, 6)},
}
_TRANSACTION_BYTES = 160
REASON = (
    "Key groups move between two epochs here, so that resource-centric balancing needs no "
    "synchronisation of senders and does as well. Twelve operators make an epoch of a second or "
    "two, and a row waits for its end: orders of magnitude cannot show."
)
WORKLOAD = (
    "A transactor and eleven operators behind it, keyed by 2,000 stocks of Zipf 0.5 that change "
    "places every ten seconds; 8 machines of 8 cores if quick, else 16, with as many orders as "
    "they can just process (36 % of what they could were epochs free). Costs of rows are chosen, "
    "as the paper does not give them; states are the paper's."
)


def duration_s(run: FigureRun) -> float:
    """Return the virtual seconds of a run."""
    return run.pick(50.0, 180.0)


def simulate(policy: str, run: FigureRun) -> History:
    """Run one policy; the same orders come under every policy.

    Switched off, the executor-centric policies are the static one.
    """
    elasticity = POLICIES[policy]
    if run.off and elasticity.endswith("executor_centric"):
        elasticity = "static"
    machines, duration = run.pick(8, 16), duration_s(run)
    order_ms = sum(
        ms * (1 if name == "transactor" else _TRADES) for name, (ms, _) in _COSTS.items()
    )
    feeds = (
        UpstreamFeed(upstream="transactor", selectivity=_TRADES, row_bytes=_TRANSACTION_BYTES),
    )
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(cores=_CORES),) * machines),
        components=tuple(
            SimulatedComponent(
                name=name,
                key_groups=_KEY_GROUPS,
                row_ms=ms,
                key_bytes=size,
                feeds=() if name == "transactor" else feeds,
            )
            for name, (ms, size) in _COSTS.items()
        ),
        rate=Rate(rows_per_s=_LOAD * 1000 * machines * _CORES / order_ms, noise=0.2, noise_s=5.0),
        keys=Keys(
            number=_STOCKS, zipf=0.5, shifts_s=tuple(np.arange(10.0, duration, 10.0).tolist())
        ),
        duration_s=duration,
        longest_epoch_s=2.0,
    )
    settings = Control(
        planner="milp",
        elasticity=elasticity,
        period=1.0,
        search=Search(options={"node_limit": 1, "rounds": 1}),
        budget=Budget(max_bytes=None),
    )
    return Simulation(scenario, seed=run.seed, control=controlled_by(settings)).run()
