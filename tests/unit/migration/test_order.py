"""The order of moves."""

from __future__ import annotations

import numpy as np

from godwit.migration.placement import order_moves
from godwit.model.assignment import Assignment, Move


def assignment(owners: str, lanes: tuple[int, ...] = (1, 1, 1)) -> Assignment:
    return Assignment(
        version=0,
        executors=("a", "b", "c"),
        lanes=lanes,
        executor_of=np.array(["abc".index(owner) for owner in owners], np.int32),
        lane_of=np.zeros(len(owners), np.int32),
    )


def move(key_group: int, source: str, destination: str, state_bytes: int = 1) -> Move:
    return Move(
        key_group=key_group, source=source, destination=destination, state_bytes=state_bytes
    )


def order(moves: list[Move], current: Assignment, loads: dict[int, float]) -> list[int]:
    return [m.key_group for m in order_moves(moves, current, loads)]


def test_the_most_overloaded_executor_is_relieved_first() -> None:
    current = assignment("aabb")
    moves = [move(0, "a", "c"), move(2, "b", "c")]
    assert order(moves, current, {0: 1, 1: 1, 2: 5, 3: 5}) == [2, 0]


def test_of_one_executor_the_most_load_per_byte_goes_first() -> None:
    current = assignment("aaa")
    moves = [move(0, "a", "b", 100), move(1, "a", "b", 10), move(2, "a", "b", 1)]
    assert order(moves, current, {0: 50, 1: 20, 2: 1}) == [1, 2, 0]


def test_executors_take_turns_as_they_become_equal() -> None:
    current = assignment("aaabbb")
    moves = [move(0, "a", "c"), move(1, "a", "c"), move(3, "b", "c"), move(4, "b", "c")]
    assert order(moves, current, {}) == [0, 3, 1, 4]


def test_a_destination_that_fills_up_is_relieved_in_its_turn() -> None:
    current = assignment("aaaab")
    moves = [move(0, "a", "b"), move(1, "a", "c"), move(4, "b", "c")]
    # After key group 0 has moved, a holds 3 and b holds 6 of the load.
    assert order(moves, current, {0: 5, 1: 1, 2: 1, 3: 1, 4: 1}) == [0, 4, 1]


def test_load_counts_per_lane() -> None:
    current = assignment("aaabb", lanes=(3, 1, 1))
    assert order([move(0, "a", "c"), move(3, "b", "c")], current, {}) == [3, 0]


def test_ties_go_to_the_smaller_key_group() -> None:
    current = assignment("aaa")
    assert order([move(2, "a", "b"), move(0, "a", "b"), move(1, "a", "b")], current, {}) == [
        0,
        1,
        2,
    ]


def test_state_of_no_size_counts_as_one_byte() -> None:
    current = assignment("aa")
    assert order([move(0, "a", "b", 0), move(1, "a", "b", 1)], current, {0: 1, 1: 2}) == [1, 0]
