"""A recorded assignment on other executors: everybody gets a share, by the fewest moves."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.engine.recovery import map_to_executors
from godwit.model.assignment import Assignment, even_assignment


def counts(assignment: Assignment) -> list[int]:
    return [len(assignment.key_groups(name)) for name in assignment.executors]


def test_as_many_executors_keep_what_was_planned_for_them() -> None:
    recorded = Assignment(
        version=3,
        executors=("7", "9"),
        lanes=(1, 1),
        executor_of=np.array([0, 0, 0, 1], np.int32),
        lane_of=np.zeros(4, np.int32),
    )
    found = map_to_executors(recorded, ["0", "1"], [1, 1])
    assert found.executor_of.tolist() == [0, 0, 0, 1]
    assert (found.version, found.executors) == (4, ("0", "1"))


def test_the_third_of_three_executors_gets_a_third_and_nothing_else_moves() -> None:
    recorded = even_assignment(12, ["a", "b"], [1, 1])
    found = map_to_executors(recorded, ["0", "1", "2"], [1, 1, 1])
    assert counts(found) == [4, 4, 4]
    assert np.count_nonzero(found.executor_of != recorded.executor_of) == 4


def test_shares_follow_lanes() -> None:
    recorded = even_assignment(30, ["a"], [2])
    found = map_to_executors(recorded, ["0", "1", "2"], [2, 1, 3])
    assert counts(found) == [10, 5, 15]
    for name, lanes in zip(found.executors, found.lanes, strict=True):
        used = found.lane_of[found.key_groups(name)]
        assert set(used.tolist()) == set(range(lanes))


@pytest.mark.parametrize("left", [1, 2, 3])
def test_fewer_executors_share_what_the_others_had(left: int) -> None:
    recorded = even_assignment(24, list("abcd"), [1] * 4)
    found = map_to_executors(recorded, [str(i) for i in range(left)], [1] * left)
    assert counts(found) == [24 // left] * left
    stayed = recorded.executor_of < left
    assert (found.executor_of[stayed] == recorded.executor_of[stayed]).all()
