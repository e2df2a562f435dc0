"""Routes of the copies that a plan needs, and the phases in which peer transfers fill the links.

A *phase* is a set of peer transfers in which no executor sends two or receives two, so every link
that is used serves one transfer at its full rate (Ding et al. §3.2 describe what happens
otherwise).  Executors' uplinks and downlinks are independent, so this is an open shop in which work
may be interrupted: the schedule is as long as the busiest link's bytes, which no schedule can beat
(Gonzalez and Sahni, JACM 1976).  The bytes between every two executors, filled up so that every row
and every column has the bytes of the busiest link, are a sum of matchings (Birkhoff); each is a
phase, those over large entries first, so phases are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from godwit.model.assignment import Move
from godwit.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRoute:
    """Copies that one source would send to one destination.

    Whether state comes from the checkpoint or from executors that hold it is chosen when a plan is
    carried out, by what either way delivered of late; this is what would be chosen now.
    """

    component: str  # whose key groups
    # the executor that would send; ``None`` for the checkpoint; the destination itself where copies
    # are there already and are only brought forward
    source: str | None
    destination: str  # the executor that would hold the copies
    key_groups: tuple[int, ...]  # which, as the component numbers them
    size_bytes: float  # state that would come
    # what this way delivered of late; ``None`` where nothing was measured
    bytes_per_s: float | None = None
    why: str = ""  # why from there; empty where there is nothing to choose

    def takes_s(self, assumed_bytes_per_s: float) -> float:
        """Return the seconds that the copy takes at the measured rate, or at the assumed one."""
        return self.size_bytes / (self.bytes_per_s or assumed_bytes_per_s)


def busiest_s(routes: Iterable[CopyRoute], assumed_bytes_per_s: float) -> float:
    """Return the seconds that the busiest uplink or downlink needs if all work at the same time.

    Reading the checkpoint occupies only the reader's downlink. `assumed_bytes_per_s`: throughput of
    routes that were never measured.

    Examples
    --------
    >>> far = CopyRoute(
    ...     component="c", source=None, destination="a", key_groups=(0,), size_bytes=6.0
    ... )
    >>> near = CopyRoute(
    ...     component="c",
    ...     source="b",
    ...     destination="a",
    ...     key_groups=(1,),
    ...     size_bytes=8.0,
    ...     bytes_per_s=4.0,
    ... )
    >>> busiest_s([far, near], 2.0)
    5.0
    """
    sends: dict[str, float] = {}
    receives: dict[str, float] = {}
    for route in routes:
        takes_s = route.takes_s(assumed_bytes_per_s)
        receives[route.destination] = receives.get(route.destination, 0.0) + takes_s
        if route.source is not None:
            sends[route.source] = sends.get(route.source, 0.0) + takes_s
    return max([*sends.values(), *receives.values()], default=0.0)


AnyMove = TypeVar("AnyMove", bound=Move)
Pairs = dict[tuple[str, str], int]
"""(source, destination) → bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(Generic[AnyMove]):
    """Part of one transfer, or all of it."""

    move: AnyMove  # the transfer
    size_bytes: int  # how much of it is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPhase(Generic[AnyMove]):
    """Transfers that continue at the same time, each at the full rate of its links."""

    size_bytes: int  # what each of the executors that take part sends or receives at most
    pieces: tuple[Piece[AnyMove], ...]  # in the order of the moves


def transfer_phases(moves: Sequence[AnyMove]) -> tuple[TransferPhase[AnyMove], ...]:
    """Schedule transfers between executors in phases, as short as the busiest link allows.

    `moves`: most urgent first, as the phases then are; one without known state counts as one byte.
    In a phase every executor sends to at most one and receives from at most one; moves are cut
    where a phase ends. Raises `InvalidPlanError` if a move has its source as its destination.

    Examples
    --------
    >>> from godwit.model.assignment import Move
    >>> ring = [
    ...     Move(key_group=g, source=s, destination=d, state_bytes=10)
    ...     for g, (s, d) in enumerate(["ab", "ba", "ac"])
    ... ]
    >>> [(p.size_bytes, [x.move.key_group for x in p.pieces]) for p in transfer_phases(ring)]
    [(10, [0, 1]), (10, [2])]
    """
    moves_of_pair: dict[tuple[str, str], list[int]] = {}
    for index, move in enumerate(moves):
        if move.source == move.destination:
            raise InvalidPlanError(
                f"Key group {move.key_group} moves from {move.source!r} to itself.",
                remedy="Leave key groups that stay out of the plan.",
                key_group=move.key_group,
            )
        moves_of_pair.setdefault((move.source, move.destination), []).append(index)
    sizes = [_size_of(move) for move in moves]
    pairs = {
        pair: sum(sizes[index] for index in indices) for pair, indices in moves_of_pair.items()
    }
    phases = sorted(
        _matchings(pairs), key=lambda phase: min(moves_of_pair[pair][0] for pair in phase[1])
    )
    ordered = []
    for size, chosen in phases:
        pieces: list[tuple[int, int]] = []
        for pair in chosen:
            room, remaining_moves = size, moves_of_pair[pair]
            while room and remaining_moves:
                index = remaining_moves[0]
                num_bytes = min(room, sizes[index])
                sizes[index] -= num_bytes
                room -= num_bytes
                pieces.append((index, num_bytes))
                if not sizes[index]:
                    remaining_moves.pop(0)
        ordered.append(
            TransferPhase(
                size_bytes=size,
                pieces=tuple(
                    Piece(move=moves[move_index], size_bytes=piece_bytes)
                    for move_index, piece_bytes in sorted(pieces)
                ),
            )
        )
    return tuple(ordered)


def busiest_link_bytes(moves: Iterable[Move]) -> int:
    """Return the bytes of the uplink or downlink that has most; no schedule is shorter."""
    sent: dict[tuple[str, str], int] = {}
    for move in moves:
        for end in (("up", move.source), ("down", move.destination)):
            sent[end] = sent.get(end, 0) + _size_of(move)
    return max(sent.values(), default=0)


def first_phase(pairs: Pairs) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Return the bytes of the first phase, and its pairs of sender and receiver.

    `pairs`: (sender, receiver) → bytes still to be sent. Every link that has as much to transfer as
    the busiest one takes part.
    """
    return next(_matchings(pairs), (0, ()))


def _size_of(move: Move) -> int:
    """Return the bytes of a move; unknown state counts as one byte."""
    return max(round(move.state_bytes), 1)


def _matchings(pairs: Pairs) -> Iterator[tuple[int, tuple[tuple[str, str], ...]]]:
    """Yield the phases of transfers: bytes, and pairs; each uses the busiest link."""
    names = sorted({name for pair in pairs for name in pair})
    index_of = {name: index for index, name in enumerate(names)}
    n = len(names)
    real = np.zeros((n, n), np.int64)
    for (source, destination), size in pairs.items():
        real[index_of[source], index_of[destination]] = size
    left = _pad_sums(real)
    rows = np.arange(2 * n)
    matched = np.full(2 * n, -1, np.int64)
    least = 1 << int(left.max(initial=0)).bit_length()
    while left.any():
        matched[left[rows, matched] < least] = -1
        while not _match_all_rows(left >= least, matched):
            least //= 2
        size = int(left[rows, matched].min())
        left[rows, matched] -= size
        yield size, tuple((names[s], names[d]) for s, d in enumerate(matched[:n].tolist()) if d < n)


def _pad_sums(real: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a matrix padded to ``(2n, 2n)``, all rows and columns of which have one sum."""
    up, down = real.sum(axis=1), real.sum(axis=0)
    longest = max(up.max(initial=0), down.max(initial=0))
    return np.block([[real, np.diag(longest - up)], [np.diag(longest - down), real.T]])


def _match_all_rows(edges: npt.NDArray[np.bool_], matched: npt.NDArray[np.int64]) -> bool:
    """Match every row to a column of its own, in place; return whether that was possible.

    `edges`: the matches allowed. Rows without a column are matched along alternating paths, one
    after the other (Kuhn); an incomplete matching stays in `matched`.
    """
    row_of_column = np.full(len(matched), -1, np.int64)
    matched_rows = np.flatnonzero(matched >= 0)
    row_of_column[matched[matched_rows]] = matched_rows
    for start in np.flatnonzero(matched < 0).tolist():
        reached_from = np.full(len(matched), -1, np.int64)  # column → the row that it came from
        queue, end = [start], -1
        while queue and end < 0:
            row = queue.pop()
            new_columns = np.flatnonzero(edges[row] & (reached_from < 0))
            reached_from[new_columns] = row
            unmatched_columns = new_columns[row_of_column[new_columns] < 0]
            if unmatched_columns.size:
                end = int(unmatched_columns[0])
            queue.extend(row_of_column[new_columns].tolist())
        if end < 0:
            return False
        while end >= 0:  # the columns along the path move up by one row
            row = int(reached_from[end])
            row_of_column[end], matched[row], end = row, end, int(matched[row])
    return True
