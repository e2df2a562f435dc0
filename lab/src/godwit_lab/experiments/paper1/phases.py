"""Paper 1 §3.2: transfers in phases against transfers without a schedule.

Eight executors; five of them are full and three are new.  A planner balances them; the plan's
transfers go between executors, every up- and downlink with the same bandwidth.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement import Limits, Problem, planner
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
)
from godwit_lab.experiments.paper1.transfer_schedules import shortest_s, transfer_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.solution import PlannedMove


_EXECUTORS, _FULL, _KEY_GROUPS, _BYTES, _BYTES_PER_S = 8, 5, 256, 10**7, 1e8
_PLANNERS = ("milp", "elb", "flux")
_ORDERS: dict[str, Callable[[PlannedMove], tuple[int | str, ...]] | None] = {
    "as planned": None,
    "by key group": lambda move: (move.key_group,),
    "by destination": lambda move: (move.destination, move.key_group),
}


@cache
def moves_of(name: str, seed: int, *, even: bool) -> tuple[PlannedMove, ...]:
    """Plan the moves from the full executors to all of them."""
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
    return tuple(planner(name)(problem, **options).moves)


def ratios(name: str, order: str, run: FigureRun, *, even: bool) -> tuple[float, float, float]:
    """Medians: phases faster by, phases over the bound, and whole key groups faster by."""
    found = []
    for seed in range(run.seed, run.seed + run.pick(3, 10)):
        moves, key = moves_of(name, seed, even=even), _ORDERS[order]
        moves = moves if key is None else tuple(sorted(moves, key=key))
        least = shortest_s(moves, _BYTES_PER_S)
        loose = transfer_s(moves, _BYTES_PER_S, schedule="unscheduled")
        phases = loose if run.off else transfer_s(moves, _BYTES_PER_S, schedule="phases")
        whole = transfer_s(moves, _BYTES_PER_S, schedule="whole")
        found.append((loose / phases, phases / least, loose / whole))
    faster, over, whole = np.median(np.array(found), axis=0).tolist()
    return faster, over, whole


@figure(
    title="Transfers in phases (section 3.2)",
    clauses=(
        at_most("phases in which no executor sends or receives two transfers at once saturate the "
                "links", "time over that of the busiest link alone, largest",
                lambda data: data.column("phases_over_bound").max(), 1.001, decisive=True),
        at_least("without a schedule, senders meet at one receiver while others idle",
                 "time without a schedule over that of phases, smallest",
                 lambda data: data.column("phases_faster").min(), 1.0),
        at_least("whole key groups, as a running query sends them, are no slower", "smallest ratio",
                 lambda data: data.column("whole_faster").min(), 1.0, beyond=True),
    ),
    workload="Five full executors and three new ones, 256 key groups of 10 MB, links of 100 MB/s; "
    "plans of three planners in three orders, medians of several problems.",
    place=RunsOn.SIMULATED,
    charts=tuple(
        Chart(
            x="planner",
            y="phases_faster",
            by="order",
            kind="bars",
            only=("sizes", sizes),
            title=sizes,
            x_label="planner",
            y_label="time without a schedule / in phases",
        )
        for sizes in ("equal sizes", "exponential sizes")
    ),
    mechanism="the schedule in phases",
)  # fmt: skip
def phases(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for even in (True, False):
        for name in _PLANNERS:
            for order in _ORDERS:
                run.progress(f"{name}, {order}")
                faster, over, whole = ratios(name, order, run, even=even)
                rows.append(
                    {
                        "sizes": "equal sizes" if even else "exponential sizes",
                        "planner": name,
                        "order": order,
                        "phases_faster": faster,
                        "phases_over_bound": over,
                        "whole_faster": whole,
                    }
                )
    return FigureResult(rows=rows)
