"""How long peer transfers take: in phases, and without a schedule.

Problem: executors that send one transfer after the other, each in the order that its plan happens
to have, meet at the same receivers: one downlink is shared by all while the others idle (paper 1
§3.2: "asymmetric network traffic").

Two ways over the same links.  *Unscheduled*: every sender sends its transfers one after the other
in the given order, and senders that meet at a receiver share its downlink.  *Phases*: the schedule
of `godwit.planning.transfer_phases`, in which nobody sends two or receives two at once; every
executor goes on to its next phase as soon as both ends are free.

No schedule is shorter than the busiest link alone (`shortest_s`), and phases of equal transfers are
as short as that.  Where sizes differ, a phase waits for its largest; cut into pieces of one size
they are as short again, up to a piece (preemptive open shop: Gonzalez and Sahni, JACM 1976).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from godwit.planning.transfer_phases import transfer_phases
from godwit.sim.links import Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.model.assignment import Move

__all__ = ["shortest_s", "transfer_s"]


def shortest_s(moves: Sequence[Move], bytes_per_s: float) -> float:
    """Return what the busiest link needs at full rate, in seconds."""
    sent: dict[tuple[str, str], int] = {}
    for move in moves:
        for end in (("up", move.source), ("down", move.destination)):
            sent[end] = sent.get(end, 0) + move.state_bytes
    return max(sent.values(), default=0) / bytes_per_s


def transfer_s(
    moves: Sequence[Move],
    bytes_per_s: float,
    *,
    schedule: Literal["phases", "unscheduled"],
    piece_bytes: int | None = None,
) -> float:
    """Seconds until the last transfer has ended.

    Parameters
    ----------
    moves
        Transfers, in the order of the plan.
    bytes_per_s
        Bandwidth of every uplink and of every downlink.
    schedule
        How they are sent.
    piece_bytes
        Into pieces of which size transfers are cut; by default each is sent whole.
    """
    if piece_bytes is not None:
        moves = [piece for move in moves for piece in _pieces(move, piece_bytes)]
    places = sorted({end for move in moves for end in (move.source, move.destination)})
    links: Links[Move] = Links()
    for place in places:
        links.connect(place, up_bytes_per_s=bytes_per_s, down_bytes_per_s=bytes_per_s)
    if schedule == "phases":
        ordered = [move for phase in transfer_phases(moves) for move in phase]
    else:
        ordered = list(moves)
    waiting: dict[str, deque[Move]] = {place: deque() for place in places}
    for move in ordered:
        waiting[move.source].append(move)
    due = {place: deque(m for m in ordered if m.destination == place) for place in places}
    sending: set[str] = set()
    while True:
        for place in places:
            while place not in sending and waiting[place]:
                move = waiting[place][0]
                if schedule == "phases" and due[move.destination][0] is not move:
                    break  # its receiver is not that far yet
                waiting[place].popleft()
                sending.add(place)
                links.start(move, move.source, move.destination, move.state_bytes)
        if not links.busy:
            return links.now_s
        for move in links.advance(float("inf")):
            sending.discard(move.source)
            due[move.destination].remove(move)


def _pieces(move: Move, piece_bytes: int) -> list[Move]:
    whole, rest = divmod(move.state_bytes, piece_bytes)
    return [replace(move, state_bytes=size) for size in [piece_bytes] * whole + [rest] * (rest > 0)]
