"""Local search for collocation: where load is even enough, moves go to traffic instead.

Problem: more traffic between units of one executor, without a deviation above a given one.

Invariant: every step raises the traffic that stays on one executor, keeps all deviations it touches
within the limit, and keeps budgets, room and pins as `Placement` does.

Source: our own.  ALBIC's pairs (paper 2 §4.3.2) see only traffic that is concentrated.  What is
spread evenly can be collocated as well, if only by a few per cent: a static partitioner does, and
the MILP, which does not know of traffic, takes it apart again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.allocation.graph_partition import with_executors

if TYPE_CHECKING:
    from collections.abc import Callable

    from scipy import sparse

    from godwit.planning.allocation.placement import Placement
    from godwit.planning.arrays import FloatArray

__all__ = ["collocate"]

_PROGRESS = 1e-9
"""Smallest gain of a step, as a share of all traffic: above the noise of summing floats."""


def collocate(
    placement: Placement,
    traffic: sparse.csr_matrix,
    *,
    limit: float,
    go_on: Callable[[], bool] = lambda: True,
) -> float:
    """Move or exchange units, the greatest gain first, until none is left.

    `placement`: what is changed. `traffic`: symmetric, shape ``(U, U)``: traffic between units,
    both directions added up. `limit`: largest deviation, in fair shares, that a step may leave
    where it changes loads. `go_on`: asked before every step, and before every pair of executors is
    looked at. Returns traffic gained.
    """
    total = float(traffic.sum()) / 2
    gained = 0.0
    if total == 0:
        return gained
    with_executor = with_executors(traffic, placement.place, len(placement.model.speed))
    while go_on():
        step, gain = _best_step(placement, traffic, with_executor, limit=limit, go_on=go_on)
        if gain <= _PROGRESS * total:
            break
        for unit, executor in step:
            row = traffic.indptr[unit], traffic.indptr[unit + 1]
            peers, rates = traffic.indices[slice(*row)], traffic.data[slice(*row)]
            with_executor[peers, placement.place[unit]] -= rates
            with_executor[peers, executor] += rates
            placement.put(unit, executor)
        gained += gain
    return gained


def _best_step(
    placement: Placement,
    traffic: sparse.csr_matrix,
    with_executor: FloatArray,
    *,
    limit: float,
    go_on: Callable[[], bool],
) -> tuple[list[tuple[int, int]], float]:
    """Find the move or exchange that gains most, and its gain; 0 if there is none.

    Pairs of executors are looked at in descending order of what their units could gain at most.
    """
    place, stays = placement.place, placement.model.stays
    gain = with_executor - with_executor[np.arange(len(place)), place][:, None]
    members = [np.flatnonzero((place == e) & placement.movable) for e in range(len(stays))]
    most_of = np.array([gain[mine].max(axis=0, initial=0.0) for mine in members])
    most_of[:, ~stays] = 0.0  # nothing may go there
    bound = np.triu(most_of + most_of.T, 1)
    between = [np.empty((0, 0))] * len(stays)
    best: list[tuple[int, int]] = []
    most = 0.0
    for at in np.argsort(-bound, axis=None, kind="stable").tolist():
        a, b = divmod(at, len(stays))
        if bound[a, b] <= most or not go_on():
            break
        for own, other in ((a, b), (b, a)):
            alone = gain[members[own], other]
            if most_of[own, other] > most:
                alone = np.where(
                    placement.permits_moves(members[own], other, limit=limit), alone, -np.inf
                )
                if alone.max() > most:
                    best, most = [(int(members[own][alone.argmax()]), other)], float(alone.max())
        if not (stays[a] and stays[b] and len(members[a]) and len(members[b])):
            continue
        if not between[a].size:
            between[a] = traffic[members[a]].toarray()
        both = gain[members[a], b][:, None] + gain[members[b], a] - 2 * between[a][:, members[b]]
        if both.max() <= most:
            continue
        both[~placement.permits_exchanges(members[a], members[b], limit=limit)] = -np.inf
        if both.max() > most:
            u, v = divmod(int(both.argmax()), both.shape[1])
            best, most = [(int(members[a][u]), b), (int(members[b][v]), a)], float(both.max())
    return best, most
