"""Balancing after shifts, planner beside planner, the loop around each being the same.

Sixteen executors, keys shuffled twice a minute (paper 5 §5.1); every executor starts with one range
of key groups, which planners of intervals need and others do not mind. Shown for every planner that
says where key groups should be, baselines included: how even the load was, what moved, and what it
did to delays.  State moved is given a plan, and amortised over all periods (paper 4, table 2), as
shares of all state; ``clb`` plans in every fourth period.  Plans are carried out whatever they
gain; with ``--gain positive``, if they pay.

``python -m godwit_lab.experiments.planners [--seed 0] [--gain positive]``
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from godwit.control.settings import Budget, Control, Search, Worth
from godwit.model import events
from godwit.model.assignment import Assignment
from godwit.placement.preview import table
from godwit.placement.problem import Problem
from godwit.placement.registry import PLANNERS
from godwit_lab.simulator import Simulation, controlled_by
from godwit_lab.simulator.scenario import Size, scenario

_SIZE = Size(executors=16, cores=1, key_groups=512, keys=20_000, zipf=0.7, load=0.6)
_TOO_SLOW = ("simple_ssm", "oms")
_PERIOD_S = 5.0
_EVERY = {"clb": 4}
_OPTIONS = {"milp": {"node_limit": 1, "rounds": 1}, "albic": {"node_limit": 1}}


def ranges() -> Assignment:
    """One range of key groups for each executor."""
    m, n = _SIZE.key_groups, _SIZE.executors
    return Assignment(
        version=0,
        executors=tuple(str(e) for e in range(n)),
        lanes=(_SIZE.cores,) * n,
        executor_of=(np.arange(m) * n // m).astype(np.int32),
        lane_of=np.zeros(m, np.int32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", choices=["positive", "any"], default="any")
    parser.add_argument("--figure", type=Path, default=Path("artifacts/planners.png"))
    given = parser.parse_args()
    made = replace(scenario("skew", _SIZE), assignments={"work": ranges()})
    names = [
        p.name
        for p in PLANNERS.values()
        if p.asks is Problem and p.name not in _TOO_SLOW and p.name != "albic"
    ]
    rows, runs = [], {}
    for name in ["nobody", *names]:
        settings = Control(
            planner=name if name != "nobody" else "milp",
            elasticity="static" if name == "nobody" else "resource_centric",
            search=Search(options=_OPTIONS.get(name, {}), every=_EVERY.get(name, 1)),
            worth=Worth(gain=given.gain),
            budget=Budget(max_bytes=None),
            period=f"{_PERIOD_S} seconds",
        )
        simulation = Simulation(made, seed=given.seed, control=controlled_by(settings))
        runs[name] = history = simulation.run()
        found, plans = history.summary(), history.of_kind(events.RebalancingStarted)
        periods = made.duration_s / _PERIOD_S
        share = found["moved_mb"] * 1e6 / float(simulation.flow.holdings["work"].state_bytes.sum())
        rows.append(
            (
                name,
                "" if name == "nobody" else PLANNERS[name].kind,
                f"{found['load_distance']:.1%}",
                str(len(plans)),
                f"{found['moves']:.0f}",
                f"{share / max(len(plans), 1):.1%}",
                f"{share / periods:.1%}",
                f"{found['delay_mean_s']:.2f}",
                f"{found['delay_p99_s']:.2f}",
            )
        )
    head = ("planner", "", "load distance", "plans", "moves", "state a plan", "a period",
            "delay, mean s", "99 % s")  # fmt: skip
    print(table(head, rows, left=2))
    picture = Figure(figsize=(7, 4), layout="constrained")
    axes = picture.subplots()
    for name in ("nobody", "milp", "elb", "flux", "universal_hashing"):
        history = runs[name]
        axes.plot(history.column("ended_s"), history.column("load_distance"), label=name)
    axes.set(xlabel="virtual time (s)", ylabel="load distance", ylim=(0, None))
    axes.legend(fontsize=8)
    given.figure.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(given.figure, dpi=120)


if __name__ == "__main__":
    main()
