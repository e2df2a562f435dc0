"""Peer transfers in phases against the order of the plan, in a model with links.

Eight executors, of which three are new and empty: a third of the state moves to them, listed
destination by destination. Every up- and downlink has the same bandwidth.
"""

from __future__ import annotations

from statistics import median

import numpy as np
from benchmarks.control.figure import Figure

from godwit.model.assignment import Move
from godwit_lab.experiments.paper1.transfer_schedules import shortest_s, transfer_s

__all__ = ["peers"]

_OLD, _NEW, _KEY_GROUPS, _BYTES_PER_S = 5, 3, 96, 1e8


def peers(seeds: int = 20) -> list[Figure]:
    """Measure, for equal and for different sizes, the worst and the median of some plans."""
    figures = []
    for sizes in ("equal", "different"):
        faster, over, whole = [], [], []
        for seed in range(seeds):
            moves = _moves(seed, even=sizes == "equal")
            least = shortest_s(moves, _BYTES_PER_S)
            loose = transfer_s(moves, _BYTES_PER_S, schedule="unscheduled")
            phased = transfer_s(moves, _BYTES_PER_S, schedule="phases")
            faster.append(loose / phased)
            over.append(phased / least)
            whole.append(transfer_s(moves, _BYTES_PER_S, schedule="whole") / least)
        figures += [
            Figure(
                what=f"{sizes} sizes: unscheduled / phases, worst of {seeds}",
                value=min(faster),
                target=1.5,
            ),
            Figure(what=f"{sizes} sizes: unscheduled / phases, median", value=median(faster)),
            Figure(
                what=f"{sizes} sizes: phases / bound, worst",
                value=max(over),
                target=1 + 1e-9,
                good="at most",
            ),
            Figure(
                what=f"{sizes} sizes: whole key groups, as a query sends them / bound, worst",
                value=max(whole),
            ),
        ]
    return figures


def _moves(seed: int, *, even: bool) -> list[Move]:
    rng = np.random.default_rng(seed)
    sizes = np.full(_KEY_GROUPS, 10**7) if even else rng.integers(10**6, 2 * 10**7, _KEY_GROUPS)
    return [
        Move(
            key_group=g,
            source=str(rng.integers(0, _OLD)),
            destination=str(_OLD + g * _NEW // _KEY_GROUPS),
            state_bytes=int(size),
        )
        for g, size in enumerate(sizes)
    ]
