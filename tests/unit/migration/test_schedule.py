"""What may be in flight at once, and transfer phases."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.migration import Bounds, transfer_phases
from godwit.migration.schedule import admit
from godwit.model.assignment import Move
from godwit.model.errors import InvalidPlanError

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
def test_phases_are_matchings_and_as_few_as_the_busiest_link_allows(plan: list[Move]) -> None:
    phases = transfer_phases(plan)
    assert sorted(move for phase in phases for move in phase) == sorted(plan)
    for phase in phases:
        assert max(Counter(move.source for move in phase).values()) == 1
        assert max(Counter(move.destination for move in phase).values()) == 1
    uplinks = Counter(move.source for move in plan)
    downlinks = Counter(move.destination for move in plan)
    busiest = max([*uplinks.values(), *downlinks.values()], default=0)
    assert len(phases) == busiest


def test_the_first_phase_has_the_most_urgent_transfer() -> None:
    plan = [
        Move(key_group=g, source=s, destination=d)
        for g, (s, d) in enumerate([("a", "b"), ("a", "c"), ("d", "b"), ("d", "c"), ("a", "e")])
    ]
    phases = transfer_phases(plan)
    assert [phase[0].key_group for phase in phases] == sorted(p[0].key_group for p in phases)
    assert phases[0][0] == plan[0]


def test_a_transfer_to_itself_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match="Key group 7 moves from"):
        transfer_phases([Move(key_group=7, source="a", destination="a")])
