"""Policies side by side on sixty executors (paper 5 §5), and under a surge and with a straggler.

Sixty executors of four cores, 8192 key groups, 100,000 keys that are shuffled twice a minute. The
same rows arrive under every policy.

``python -m experiments.policies [--seed 0] [--scenario skew] [--executors 60]``
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from experiments.drawing import figure
from godwit.adapt import Control
from godwit.adapt.scaling import utilisation
from godwit.cluster.simulated import Simulation, controlled_by
from godwit.cluster.simulated.scenario import SCENARIOS, Size, scenario
from godwit.planning.preview import table

_POLICIES = ("static", "resource_centric", "executor_centric", "naive_executor_centric")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", choices=[*SCENARIOS], default="skew")
    parser.add_argument("--executors", type=int, default=60)
    parser.add_argument("--key-groups", type=int, default=8192)
    parser.add_argument("--duration", type=float, default=120.0)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    made = scenario(
        given.scenario,
        Size(
            executors=given.executors,
            cores=4,
            key_groups=given.key_groups,
            keys=100_000,
            zipf=0.7,
            duration_s=given.duration,
        ),
    )
    scales = made.cluster.pool.most is not None
    rows, runs = [], {}
    for policy in _POLICIES:
        began = time.process_time()
        settings = Control(elasticity=policy, period=5.0, scaling=utilisation() if scales else None)
        simulation = Simulation(made, seed=given.seed, control=controlled_by(settings))
        runs[policy] = history = simulation.run()
        found = history.summary()
        rows.append(
            (
                policy,
                f"{found['rows_per_s']:,.0f}",
                f"{found['load_distance']:.1%}",
                f"{found['epoch_ms']:,.0f}",
                f"{found['epoch_p99_ms']:,.0f}",
                f"{found['delay_mean_s']:.2f}",
                f"{found['delay_p99_s']:.2f}",
                f"{found['moves']:.0f}",
                f"{found['moved_mb']:.0f}",
                f"{found['executors']:.1f}",
                f"{time.process_time() - began:.0f}",
            )
        )
    head = ("policy", "rows/s", "load distance", "epoch ms", "99 % ms", "delay s", "99 % s",
            "moves", "MB", "executors", "CPU s")  # fmt: skip
    print(table(head, rows))
    with figure(
        given.figure or Path(f"artifacts/policies_{given.scenario}.png"), size=(8, 7), panels=3
    ) as panels:
        for axes, column in zip(panels, ("took_s", "load_distance", "executors"), strict=True):
            for policy, history in runs.items():
                axes.plot(history.column("ended_s"), history.column(column), label=policy)
            axes.set(ylabel=column, ylim=(0, None))
        panels[0].legend(fontsize=8)
        panels[-1].set_xlabel("virtual time (s)")


if __name__ == "__main__":
    main()
