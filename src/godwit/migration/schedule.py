"""Letting moves begin as far as the bounds allow, which bounds a pause.

A *mini-migration* is what may be in flight at once: a run of the ordered moves within bounds on
key groups and bytes (Ding et al. §3.2, "progressively").  Phases of peer transfers are in
`godwit.planning.copy_routes`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.migration.strategy import Bounds
    from godwit.model.assignment import Move

__all__ = ["admit"]


def admit(
    moves: Iterable[Move], bounds: Bounds, *, in_flight: int = 0, in_flight_bytes: int = 0
) -> list[Move]:
    """Return the longest prefix of `moves` that still fits beside what is in flight.

    Where nothing is in flight the first move fits whatever its size; otherwise a key group
    larger than the bound could never move.
    """
    admitted: list[Move] = []
    for move in islice(moves, max(bounds.max_moves - in_flight, 0)):
        if in_flight + len(admitted) and in_flight_bytes + move.state_bytes > bounds.max_bytes:
            break
        admitted.append(move)
        in_flight_bytes += move.state_bytes
    return admitted
