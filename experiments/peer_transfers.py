"""Peer transfers in phases against transfers without a schedule, in a model with links.

Eight executors; five of them are full and three are new. A planner balances them; the plan's
transfers go between executors, every up- and downlink with the same bandwidth. Shown: how much
faster phases are (paper 1 §3.2) than transfers without a schedule, for transfers in the order of
the plan, of key groups, and destination by destination; and how much longer they take than the
busiest link alone, which no schedule can beat: phases, and whole key groups as a running query
sends them.

``python -m experiments.peer_transfers [--seed 0] [--seeds 5]``
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.drawing import figure
from experiments.transfer_schedules import shortest_s, transfer_s
from godwit.planning import Limits, Problem, planner
from godwit.planning.preview import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.planning.solution import PlannedMove

_EXECUTORS, _FULL, _KEY_GROUPS, _BYTES, _BYTES_PER_S = 8, 5, 256, 10**7, 1e8
_ORDERS: dict[str, Callable[[PlannedMove], tuple[int | str, ...]] | None] = {
    "as planned": None,
    "by key group": lambda move: (move.key_group,),
    "by destination": lambda move: (move.destination, move.key_group),
}


@cache
def moves_of(name: str, seed: int, *, even: bool) -> tuple[PlannedMove, ...]:
    rng = np.random.default_rng(seed)
    load = rng.uniform(1, 3, _KEY_GROUPS)
    mean = load.sum() / _EXECUTORS
    size = np.full(_KEY_GROUPS, float(_BYTES)) if even else rng.exponential(_BYTES, _KEY_GROUPS)
    problem = Problem(
        executors=tuple(str(e) for e in range(_EXECUTORS)),
        load=load,
        state_bytes=size,
        current=rng.integers(0, _FULL, _KEY_GROUPS, np.int32),
        limits=Limits(load_low=0.95 * mean, load_high=1.05 * mean) if name == "elb" else Limits(),
    )
    options = {"node_limit": 1, "rounds": 1} if name == "milp" else {}
    return planner(name)(problem, **options).moves


def ratios(name: str, order: str, seeds: range, *, even: bool) -> np.ndarray:
    found = []
    for seed in seeds:
        moves, key = moves_of(name, seed, even=even), _ORDERS[order]
        moves = moves if key is None else tuple(sorted(moves, key=key))
        least = shortest_s(moves, _BYTES_PER_S)
        loose = transfer_s(moves, _BYTES_PER_S, schedule="unscheduled")
        for schedule in ("phases", "whole"):
            taken = transfer_s(moves, _BYTES_PER_S, schedule=schedule)
            found.append((loose / taken, taken / least))
    return np.array(found).reshape(-1, 4).T


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first problem")
    parser.add_argument("--seeds", type=int, default=5, help="how many problems")
    parser.add_argument("--figure", type=Path, default=Path("artifacts/peer_transfers.png"))
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.seeds)
    rows, medians = [], {}
    for even in (True, False):
        for name in ("milp", "elb", "flux"):
            for order in _ORDERS:
                faster, over, whole, over_whole = ratios(name, order, seeds, even=even)
                medians[name, order, even] = float(np.median(faster))
                rows.append(
                    (
                        name,
                        order,
                        "equal" if even else "exponential",
                        f"{np.median(faster):.2f} ({faster.min():.2f} to {faster.max():.2f})",
                        f"{np.median(over):.2f}",
                        f"{np.median(whole):.2f} ({whole.min():.2f} to {whole.max():.2f})",
                        f"{np.median(over_whole):.2f}",
                    )
                )
    head = ("planner", "order", "sizes", "phases: faster by", "/ bound", "whole", "/ bound")
    print(table(head, rows, left=3))
    with figure(given.figure, size=(6, 3.5)) as axes:
        for at, order in enumerate(_ORDERS):
            names = ("milp", "elb", "flux")
            axes.bar(
                np.arange(3) + 0.27 * (at - 1),
                [medians[name, order, True] for name in names],
                0.25,
                label=order,
            )
        axes.set_xticks(range(3), names)
        axes.axhline(1, color="0.6", linewidth=1)
        axes.set(ylabel="unscheduled over phased", title="Five executors to eight, equal sizes")
        axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
