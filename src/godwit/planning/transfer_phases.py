"""Phases of a plan's transfers, which fill the links.

A *phase* is a set of peer transfers in which no executor sends two or receives two, so every link
that is used serves one transfer at its full rate (Ding et al. §3.2, "Optimizations").  Executors'
uplinks and downlinks are independent, so transfers form a bipartite multigraph, phases are its edge
colours, and by König's theorem as many colours suffice as the busiest link has transfers: no
schedule can have fewer phases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from godwit.model.assignment import Move
from godwit.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["transfer_phases"]

AnyMove = TypeVar("AnyMove", bound=Move)


def transfer_phases(moves: Sequence[AnyMove]) -> tuple[tuple[AnyMove, ...], ...]:
    """Schedule peer transfers in the least number of phases.

    Edges of the bipartite multigraph (sources, destinations) are coloured one by one: an edge takes
    a colour free at its source; where that colour is taken at its destination, the alternating
    path of the two ends' free colours is flipped first.  O(m·n) for m moves and n executors.

    Parameters
    ----------
    moves
        Transfers, most urgent first.

    Returns
    -------
    tuple of tuple of Move
        Phases, the one with the most urgent transfer first; within a phase in the given order. In
        a phase every executor is the source of at most one and the destination of at most one.

    Raises
    ------
    InvalidPlanError
        If a move has its source as its destination.

    Examples
    --------
    >>> from godwit.model.assignment import Move
    >>> ring = [Move(key_group=g, source=s, destination=d) for g, (s, d) in enumerate(["ab", "ba"])]
    >>> [[move.key_group for move in phase] for phase in transfer_phases(ring)]
    [[0, 1]]
    """
    sent: dict[str, dict[int, int]] = {}
    received: dict[str, dict[int, int]] = {}
    for index, move in enumerate(moves):
        if move.source == move.destination:
            raise InvalidPlanError(
                f"Key group {move.key_group} moves from {move.source!r} to itself.",
                remedy="Leave key groups that stay out of the plan.",
                key_group=move.key_group,
            )
        up = sent.setdefault(move.source, {})
        down = received.setdefault(move.destination, {})
        mine, theirs = _free_colour(up), _free_colour(down)
        if mine in down:
            _flip(moves, sent, received, start=down[mine], colours=(mine, theirs))
        up[mine] = down[mine] = index

    phases: dict[int, list[int]] = {}
    for colours in sent.values():
        for colour, index in colours.items():
            phases.setdefault(colour, []).append(index)
    ordered = sorted(sorted(indices) for indices in phases.values())
    return tuple(tuple(moves[index] for index in indices) for indices in ordered)


def _free_colour(taken: dict[int, int]) -> int:
    return next(colour for colour in range(len(taken) + 1) if colour not in taken)


def _flip(
    moves: Sequence[Move],
    sent: dict[str, dict[int, int]],
    received: dict[str, dict[int, int]],
    *,
    start: int,
    colours: tuple[int, int],
) -> None:
    """Swap two colours along the alternating path that begins with edge `start` at its destination.

    The path cannot come back to the source that caused it: it reaches sources only by edges of
    the first colour, which is free there.
    """
    path = [start]
    here, there = colours
    ends = sent  # the edge `start` was reached from its destination, so its source is next
    while True:
        move = moves[path[-1]]
        at = ends[move.source if ends is sent else move.destination]
        if there not in at:
            break
        path.append(at[there])
        here, there = there, here
        ends = received if ends is sent else sent
    for step, index in enumerate(path):
        move, old = moves[index], colours[step % 2]
        for taken in (sent[move.source], received[move.destination]):
            if taken.get(old) == index:
                del taken[old]
    for step, index in enumerate(path):
        move, new = moves[index], colours[1 - step % 2]
        sent[move.source][new] = received[move.destination][new] = index
