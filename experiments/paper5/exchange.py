"""The exchange of paper 5 §5.4 in the simulator: a transactor and eleven operators behind it.

`examples/exchange.py` is the application; here its operators have costs and states, and machines
the paper's cores.  The orders of the Shanghai exchange are not public: stocks are popular by Zipf's
law, their rates change places every few seconds, and the rate of all of them strays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper5 import policies
from experiments.paper5.policies import play
from godwit.cluster.simulated.cluster import Machine, SimulatedCluster
from godwit.cluster.simulated.flow import SimulatedComponent, UpstreamFeed
from godwit.cluster.simulated.scenario import Scenario
from godwit.cluster.simulated.workload import Keys, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.cli.reproduce.figure import FigureRun
    from godwit.cluster.simulated import History

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
_ORDER_BYTES, _TRANSACTION_BYTES = 96, 160
_EVEN_ORDER_MS = 64 / 66.6
"""An order's time where all operators cost the same: what the paper's 64 cores have for each."""
REASON = (
    f"{policies.REASON} Twelve operators make an epoch of a second or two, and a row waits for "
    "its end: orders of magnitude cannot show."
)
WORKLOAD = (
    "A transactor and eleven operators behind it, keyed by 2,000 stocks of Zipf 0.5 that change "
    "places every ten seconds; 8 machines of 8 cores if quick, else 16, with as many orders as "
    "they can just process (36 % of what they could were epochs free). Costs of rows are chosen, "
    "as the paper does not give them; states and the sizes of rows are the paper's."
)


def duration_s(run: FigureRun) -> float:
    """Return the virtual seconds of a run."""
    return run.pick(50.0, 180.0)


def simulate(policy: str, run: FigureRun) -> History:
    """Run one policy; the same orders come under every policy."""
    row_ms = {name: ms for name, (ms, _) in _COSTS.items()}
    scenario = _scenario(run, run.pick(8, 16), row_ms, _LOAD)
    return play(replace(scenario, longest_epoch_s=2.0), policy, run, period_s=1.0)


def saturate(machines: int, run: FigureRun) -> History:
    """Give a cluster more orders than it can process, in epochs of what takes it two seconds."""
    row_ms = _EVEN_ORDER_MS / (1 + _TRADES * (len(_COSTS) - 1))
    scenario = _scenario(run, machines, dict.fromkeys(_COSTS, row_ms), 1.1)
    orders = int(2.0 * 1000 * machines * _CORES / _EVEN_ORDER_MS)
    return play(replace(scenario, max_rows=orders), "executor-centric", run, period_s=1.0)


def _scenario(run: FigureRun, machines: int, row_ms: Mapping[str, float], load: float) -> Scenario:
    """Build the exchange on some machines.

    `row_ms`: milliseconds of a row in each operator; `load`: orders, as a share of what the cores
    could process if an epoch cost nothing.
    """
    duration = duration_s(run)
    order_ms = sum(ms * (1 if name == "transactor" else _TRADES) for name, ms in row_ms.items())
    feeds = (
        UpstreamFeed(upstream="transactor", selectivity=_TRADES, row_bytes=_TRANSACTION_BYTES),
    )
    return Scenario(
        cluster=SimulatedCluster(machines=(Machine(cores=_CORES),) * machines),
        components=tuple(
            SimulatedComponent(
                name=name,
                key_groups=max(_KEY_GROUPS, 4 * _CORES * machines),
                row_ms=row_ms[name],
                key_bytes=size,
                feeds=() if name == "transactor" else feeds,
            )
            for name, (_, size) in _COSTS.items()
        ),
        rate=Rate(rows_per_s=load * 1000 * machines * _CORES / order_ms, noise=0.2, noise_s=5.0),
        keys=Keys(
            number=_STOCKS, zipf=0.5, shifts_s=tuple(np.arange(10.0, duration, 10.0).tolist())
        ),
        duration_s=duration,
        row_bytes=_ORDER_BYTES,
    )
