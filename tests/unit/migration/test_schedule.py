"""Mini-migrations and transfer phases."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.migration import Bounds, mini_migrations, transfer_phases
from godwit.migration.schedule import admit
from godwit.model.assignment import Move
from godwit.model.errors import InvalidPlanError

NAMES = "abcdef"


def moves(*sizes: int) -> list[Move]:
    return [
        Move(key_group=g, source="a", destination="b", state_bytes=n) for g, n in enumerate(sizes)
    ]


def numbers(groups: tuple[tuple[Move, ...], ...]) -> list[list[int]]:
    return [[move.key_group for move in group] for group in groups]


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


def test_a_plan_is_cut_where_the_number_of_moves_is_reached() -> None:
    assert numbers(mini_migrations(moves(1, 1, 1, 1, 1), Bounds(max_moves=2))) == [
        [0, 1],
        [2, 3],
        [4],
    ]


def test_a_plan_is_cut_where_the_bytes_are_reached() -> None:
    assert numbers(mini_migrations(moves(6, 4, 1), Bounds(max_bytes=10))) == [[0, 1], [2]]


def test_a_key_group_larger_than_the_bound_moves_alone() -> None:
    assert numbers(mini_migrations(moves(1, 99, 1), Bounds(max_bytes=10))) == [[0], [1], [2]]


def test_an_empty_plan_has_no_mini_migration() -> None:
    assert mini_migrations([], Bounds()) == ()


def test_what_is_in_flight_takes_room() -> None:
    bounds = Bounds(max_moves=3, max_bytes=10)
    assert len(admit(moves(2, 2, 2), bounds, in_flight=2, in_flight_bytes=6)) == 1
    assert admit(moves(5), bounds, in_flight=1, in_flight_bytes=6) == []
    assert admit(moves(1), bounds, in_flight=3, in_flight_bytes=0) == []


@settings(derandomize=True, deadline=None, max_examples=80)
@given(plans, st.integers(1, 5), st.integers(1, 80))
def test_mini_migrations_keep_order_and_bounds_and_are_as_long_as_they_can_be(
    plan: list[Move], max_moves: int, max_bytes: int
) -> None:
    minis = mini_migrations(plan, Bounds(max_moves=max_moves, max_bytes=max_bytes))
    assert [move for mini in minis for move in mini] == plan
    for i, mini in enumerate(minis):
        size = sum(move.state_bytes for move in mini)
        assert len(mini) <= max_moves
        assert size <= max_bytes or len(mini) == 1
        if i + 1 < len(minis):
            next_bytes = minis[i + 1][0].state_bytes
            assert len(mini) == max_moves or size + next_bytes > max_bytes


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
