"""ALBIC against COLA: figures 10 and 11 of paper 2.

    python benchmarks/planning_collocation.py                     # 40 executors, 0 to 100 %
    python benchmarks/planning_collocation.py --executors 20 --periods 60 --share 0.5

A job is a chain of operators; a share of the key groups sends everything to one key group of the
next operator, the others to all of them alike. ALBIC starts at random and may move 20 key groups a
period; COLA plans the last period from scratch.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from godwit.planning import metrics
from godwit.planning.allocation.albic import plan_albic
from godwit.planning.allocation.cola import plan_cola
from godwit.planning.problem import Limits, Problem, Traffic
from godwit.planning.solution import validate_solution


def chain(operators: int, per_operator: int, share: float, rng: np.random.Generator) -> Traffic:
    """Build the traffic of a chain of operators in which `share` of the key groups talk 1-1."""
    source, target, rate = [], [], []
    for o in range(operators - 1):
        partner = (o + 1) * per_operator + rng.permutation(per_operator)
        for j, one_to_one in enumerate((rng.random(per_operator) < share).tolist()):
            receivers = (
                [int(partner[j])]
                if one_to_one
                else list(range((o + 1) * per_operator, (o + 2) * per_operator))
            )
            source += [o * per_operator + j] * len(receivers)
            target += receivers
            rate += [100.0 / len(receivers)] * len(receivers)
    return Traffic(
        source=np.array(source, np.int32), target=np.array(target, np.int32), rate=np.array(rate)
    )


def compare(executors: int, share: float, *, periods: int, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    operators, key_groups = executors // 2, 20 * executors
    traffic = chain(operators, key_groups // operators, share, rng)
    current = rng.permutation(np.repeat(np.arange(executors, dtype=np.int32), 20))
    load = 2.5 * (1 + rng.uniform(-0.05, 0.05, key_groups))
    distance, seconds = [], []
    for _ in range(periods):
        for e in rng.choice(executors, executors // 5, replace=False).tolist():
            load[current == e] *= 1 + rng.uniform(-0.02, 0.02)
        problem = Problem(
            executors=tuple(f"e{i}" for i in range(executors)),
            load=load,
            state_bytes=np.full(key_groups, 1e6),
            current=current,
            traffic=traffic,
            operators=tuple(f"o{i}" for i in range(operators)),
            operator_of=np.repeat(np.arange(operators, dtype=np.int32), key_groups // operators),
            limits=Limits(max_moves=20),
        )
        began = time.perf_counter()
        albic = plan_albic(problem, **options)
        seconds.append(time.perf_counter() - began)
        validate_solution(albic)
        current = albic.assignment
        distance.append(100 * albic.load_distance / metrics.mean_index(problem))
    began = time.perf_counter()
    cola = plan_cola(problem)
    cola_s = time.perf_counter() - began
    cola_distance = 100 * cola.load_distance / metrics.mean_index(problem)
    print(
        f"{100 * share:3.0f} % one-to-one | albic: distance {np.mean(distance):.2f} % "
        f"(worst {max(distance):.2f} %), collocation {albic.collocation_factor:.3f}, "
        f"{np.median(seconds):.2f} s a plan | cola: distance {cola_distance:.2f} %, collocation "
        f"{cola.collocation_factor:.3f}, {cola.num_moves} moves, {cola_s:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executors", type=int, default=40)
    parser.add_argument("--periods", type=int, default=160)
    parser.add_argument("--pairs", type=int, default=None)
    parser.add_argument("--score-factor", type=float, default=None)
    parser.add_argument("--share", type=float, nargs="*", default=[0.0, 0.25, 0.5, 0.75, 1.0])
    arguments = parser.parse_args()
    given = {"pairs": arguments.pairs, "score_factor": arguments.score_factor}
    options = {name: value for name, value in given.items() if value is not None}
    for share in arguments.share:
        compare(arguments.executors, share, periods=arguments.periods, options=options)
