"""Bounds on moves in flight, and transfer phases."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.migration import Bounds
from godwit.migration.component import admit
from godwit.model.assignment import Move
from godwit.model.errors import InvalidPlanError
from godwit.placement.copy_routes import busiest_link_bytes, transfer_phases

NAMES = "abcdef"


def moves(*sizes: int) -> list[Move]:
    return [
        Move(key_group=g, source="a", destination="b", state_bytes=n) for g, n in enumerate(sizes)
    ]


plans = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(0, 50)).filter(
        lambda m: m[0] != m[1]
    ),
    max_size=60,
).map(
    lambda drawn: [
        Move(key_group=g, source=s, destination=d, state_bytes=n)
        for g, (s, d, n) in enumerate(drawn)
    ]
)


def admitted(sizes: tuple[int, ...], bounds: Bounds, in_flight: int = 0, size: int = 0) -> int:
    return len(admit(moves(*sizes), bounds, in_flight=in_flight, in_flight_bytes=size))


def test_moves_begin_until_their_number_or_their_bytes_are_reached() -> None:
    assert admitted((1, 1, 1), Bounds(max_moves=2)) == 2
    assert admitted((6, 4, 1), Bounds(max_bytes=10)) == 2
    assert admitted((), Bounds()) == 0


def test_a_key_group_larger_than_the_bound_moves_alone() -> None:
    assert admitted((99, 1), Bounds(max_bytes=10)) == 1
    assert admitted((99, 1), Bounds(max_bytes=10), in_flight=1, size=1) == 0


def test_what_is_in_flight_takes_room() -> None:
    bounds = Bounds(max_moves=3, max_bytes=10)
    assert admitted((2, 2, 2), bounds, in_flight=2, size=6) == 1
    assert admitted((5,), bounds, in_flight=1, size=6) == 0
    assert admitted((1,), bounds, in_flight=3) == 0


@settings(derandomize=True, deadline=None, max_examples=200)
@given(plans)
def test_phases_are_matchings_that_together_take_what_the_busiest_link_needs(
    plan: list[Move],
) -> None:
    phases = transfer_phases(plan)
    sent: Counter[int] = Counter()
    for phase in phases:
        pairs = Counter[tuple[str, str]]()
        for piece in phase.pieces:
            pairs[piece.move.source, piece.move.destination] += piece.size_bytes
            sent[piece.move.key_group] += piece.size_bytes
        assert len({source for source, _ in pairs}) == len(pairs)
        assert len({destination for _, destination in pairs}) == len(pairs)
        assert max(pairs.values()) == phase.size_bytes
    assert sent == Counter({move.key_group: max(move.state_bytes, 1) for move in plan})
    assert sum(phase.size_bytes for phase in phases) == busiest_link_bytes(plan)


def test_a_large_transfer_keeps_its_link_while_small_ones_share_the_other() -> None:
    plan = [
        Move(key_group=0, source="a", destination="b", state_bytes=30),
        Move(key_group=1, source="c", destination="d", state_bytes=10),
        Move(key_group=2, source="e", destination="d", state_bytes=20),
    ]
    assert [
        (phase.size_bytes, [(piece.move.key_group, piece.size_bytes) for piece in phase.pieces])
        for phase in transfer_phases(plan)
    ] == [(20, [(0, 20), (2, 20)]), (10, [(0, 10), (1, 10)])]


def test_the_first_phase_has_the_most_urgent_transfer() -> None:
    plan = [
        Move(key_group=g, source=s, destination=d)
        for g, (s, d) in enumerate([("a", "b"), ("a", "c"), ("d", "b"), ("d", "c"), ("a", "e")])
    ]
    first = [phase.pieces[0].move.key_group for phase in transfer_phases(plan)]
    assert first == sorted(first)
    assert first[0] == 0


def test_a_transfer_to_itself_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match="Key group 7 moves from"):
        transfer_phases([Move(key_group=7, source="a", destination="a")])
