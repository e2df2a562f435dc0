"""Three schedules of a plan's transfers, over the links of the simulator.

Executors that send one transfer after the other, each in the order that its plan happens to have,
meet at the same receivers: one downlink is shared by all while the others idle (paper 1 §3.2:
"asymmetric network traffic").

*Unscheduled*: every sender sends its transfers one after the other in the order of the plan, and
senders that meet at a receiver share its downlink.  *Phases*: the schedule of
`godwit.placement.copy_routes`, in which no executor sends or receives two at once, and transfers
are cut where a phase ends.  *Whole*: `godwit.migration.sources.PeerLinks`, as in a running query:
the phases' order, but key groups are not cut, and no transfer waits for a phase to end.

No schedule is shorter than the busiest link alone (`shortest_s`), and phases are as short as that.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from godwit.migration.messages import PeerCopies, StartWarming
from godwit.migration.sources import PeerLinks
from godwit.placement.copy_routes import busiest_link_bytes, transfer_phases
from godwit_lab.simulator import Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.model.assignment import Move

__all__ = ["shortest_s", "transfer_s"]


def shortest_s(moves: Sequence[Move], bytes_per_s: float) -> float:
    """Return what the busiest link needs at full rate, in seconds."""
    return busiest_link_bytes(moves) / bytes_per_s


def transfer_s(
    moves: Sequence[Move],  # transfers, in the order of the plan
    bytes_per_s: float,  # bandwidth of every uplink and of every downlink
    *,
    schedule: Literal["phases", "whole", "unscheduled"],  # how they are sent
) -> float:
    """Seconds until the last transfer has ended."""
    links: Links[str] = Links()
    for place in sorted({end for move in moves for end in (move.source, move.destination)}):
        links.connect(place, up_bytes_per_s=bytes_per_s, down_bytes_per_s=bytes_per_s)
    play = {"phases": _in_phases, "whole": _whole, "unscheduled": _unscheduled}[schedule]
    play(moves, links)
    return links.now_s


def _in_phases(moves: Sequence[Move], links: Links[str]) -> None:
    for phase in transfer_phases(moves):
        streams: dict[tuple[str, str], int] = {}
        for piece in phase.pieces:
            pair = piece.move.source, piece.move.destination
            streams[pair] = streams.get(pair, 0) + piece.size_bytes
        for (source, destination), size in streams.items():
            links.start(source, source, destination, size)
        while links.busy:
            links.advance(float("inf"))


def _whole(moves: Sequence[Move], links: Links[str]) -> None:
    sizes = {move.key_group: move.state_bytes for move in moves}
    orders: dict[str, StartWarming] = {}
    peers = PeerLinks()
    for place in sorted({move.destination for move in moves}):
        sent: dict[str, list[int]] = {}
        for move in moves:
            if move.destination == place:
                sent.setdefault(move.source, []).append(move.key_group)
        orders[place] = StartWarming(
            component="",
            executor=place,
            key_groups=tuple(g for groups in sent.values() for g in groups),
            attempt=place,
            peers=tuple(
                PeerCopies(executor=source, key_groups=tuple(groups))
                for source, groups in sent.items()
            ),
        )
        peers.add(orders[place], sizes)
    receiving: set[str] = set()
    while True:
        for place, order in orders.items():
            if place not in receiving:
                begun = peers.begin(order)
                if begun is not None and begun.key_groups:
                    size = sum(sizes[g] for g in begun.key_groups)
                    links.start(place, begun.executor, place, size)
                    receiving.add(place)
        if not links.busy:
            return
        for place in links.advance(float("inf")):
            receiving.discard(place)
            peers.ended(orders[place])


def _unscheduled(moves: Sequence[Move], links: Links[str]) -> None:
    waiting: dict[str, deque[Move]] = {}
    for move in moves:
        waiting.setdefault(move.source, deque()).append(move)
    sending: set[str] = set()
    while True:
        for source, queue in waiting.items():
            if source not in sending and queue:
                move = queue.popleft()
                links.start(source, source, move.destination, move.state_bytes)
                sending.add(source)
        if not links.busy:
            return
        sending -= set(links.advance(float("inf")))
