"""Paper 5 §5.4, figures 19 and 20: the exchange in the simulator, a transactor before 11 operators.

`examples/exchange.py` is the application; here its operators have costs and states, and machines
the paper's cores.  The orders of the Shanghai exchange are not public: stocks are popular by Zipf's
law, their rates change places every few seconds, and the rate of all of them strays.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    acts,
    at_least,
    at_most,
    figure,
)
from godwit_lab.experiments.paper5 import policies
from godwit_lab.experiments.paper5.policies import POLICIES, SYNCHRONISED, play
from godwit_lab.simulator.cluster import Machine, SimulatedCluster
from godwit_lab.simulator.flow import SimulatedComponent, UpstreamFeed
from godwit_lab.simulator.scenario import Scenario
from godwit_lab.simulator.workload import Keys, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit_lab.cli.reproduce.figure import Data
    from godwit_lab.simulator import History


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
    "its end: orders of magnitude cannot show. Only the naive policy moves key groups in this run; "
    "why the others do not was not looked for."
)
WORKLOAD = (
    "A transactor and eleven operators behind it, keyed by 2,000 stocks of Zipf 0.5 that change "
    "places every ten seconds; 8 machines of 8 cores if quick, else 16, with as many orders as "
    "they can just process (36 % of what they could were epochs free). Costs of rows are chosen; "
    "states and sizes of rows are the paper's."
)


def duration_s(run: FigureRun) -> float:
    """Return the virtual seconds of a run."""
    return run.pick(50.0, 180.0)


@cache  # two figures show the same runs
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


_SLICE_S = 5.0


_OURS, _NAIVE = "executor-centric", "naive executor-centric"
_OTHERS = ("static", SYNCHRONISED)
_ACT = acts((_OURS, _NAIVE, SYNCHRONISED), by="policy")


def _rate(policy: str) -> Callable[[Data], float]:
    """Return a getter of a policy's throughput."""
    return lambda data: float(np.nanmean(data.column("thousand_rows_per_s", policy=policy)))


def _late_s(policy: str) -> Callable[[Data], float]:
    """Return a getter of the median over time of a policy's 99th percentile."""
    return lambda data: float(np.nanmedian(data.column("p99_s", policy=policy)))


@figure(
    title="The exchange under four policies over time",
    clauses=(
        *(
            at_least("both executor-centric policies have about twice the throughput of the others",
                     f"{policy} over the better of the others",
                     lambda data, policy=policy: _rate(policy)(data)
                     / max(_rate(other)(data) for other in _OTHERS), 1.8, paper=2.0)
            for policy in (_OURS, _NAIVE)
        ),
        *(
            at_most("and one to two orders of magnitude less latency",
                    f"99th percentile of {policy} over the lower of the others",
                    lambda data, policy=policy: _late_s(policy)(data)
                    / min(_late_s(other)(data) for other in _OTHERS), 0.1)
            for policy in (_OURS, _NAIVE)
        ),
        at_most("the naive one differs little", "its throughput over ours, distance from 1",
                lambda data: abs(_rate(_NAIVE)(data) / _rate(_OURS)(data) - 1), 0.2),
        at_most("and is a little worse", "its throughput over ours",
                lambda data: _rate(_NAIVE)(data) / _rate(_OURS)(data), 1.0),
        at_least("executor-centric has more throughput than static", "ratio",
                 lambda data: _rate(_OURS)(data) / _rate("static")(data), 1.02, decisive=True,
                 beyond=True),
        _ACT,
    ),
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=(
        Chart(x="second", y="thousand_rows_per_s", by="policy", x_label="second",
              y_label="throughput (1000 orders/s)"),
        Chart(x="second", y="p99_s", by="policy", x_label="second",
              y_label="latency, 99th percentile (s)", log_y=True),
    ),
    mechanism="the executor-centric policies (static in their place)",
    reason=REASON,
)  # fmt: skip
def figure19(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for policy in POLICIES:
        run.progress(policy)
        history = simulate(policy, run)
        for from_s in np.arange(WARM_UP_S, duration_s(run), _SLICE_S).tolist():
            slice_ = history.between(from_s, from_s + _SLICE_S)
            delays = slice_.delays()
            rows.append(
                {
                    "second": from_s,
                    "policy": policy,
                    "thousand_rows_per_s": delays.rows / _SLICE_S / 1000,
                    "moves": float(slice_.column("moves").sum()),
                    **({"p99_s": delays.quantile_s(0.99)} if delays.rows else {}),
                }
            )
    return FigureResult(rows=rows)


@figure(
    title="Mean latency of the exchange under four policies",
    clauses=(
        *(
            at_most("the executor-centric policy has the lowest mean latency of the four",
                    f"over that of {other}",
                    lambda data, other=other: data.one("mean_s", policy=_OURS)
                    / data.one("mean_s", policy=other), 1.0, decisive=other == "static")
            for other in ("static", SYNCHRONISED, _NAIVE)
        ),
        _ACT,
    ),
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=(
        Chart(x="policy", y="mean_s", kind="bars", x_label="policy", y_label="mean latency (s)",
              log_y=True),
    ),
    mechanism="the executor-centric policies (static in their place)",
    reason=REASON,
)  # fmt: skip
def figure20(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for policy in POLICIES:
        run.progress(policy)
        history = simulate(policy, run).between(WARM_UP_S, duration_s(run))
        rows.append(
            {
                "policy": policy,
                "mean_s": history.delays().mean_s,
                "moves": float(history.column("moves").sum()),
            }
        )
    return FigureResult(rows=rows)
