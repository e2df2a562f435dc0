"""Assignments on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.migration.placement import arrange, change_lanes, check_target, distribute_evenly
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import InvalidPlanError

THREE = ("a", "b", "c")


def assignment(owners: str, lanes: str, *, each: int = 2) -> Assignment:
    names = sorted(set(owners))
    return Assignment(
        version=3,
        executors=tuple(names),
        lanes=(each,) * len(names),
        executor_of=np.array([names.index(owner) for owner in owners], np.int32),
        lane_of=np.array([int(lane) for lane in lanes], np.int32),
    )


def owners(made: Assignment) -> str:
    return "".join(made.executor(g) for g in range(made.num_key_groups))


def test_only_key_groups_with_a_new_place_change() -> None:
    made = arrange(assignment("aabb", "0101"), {1: "b"}, roster=["a", "b"], lanes={"a": 2, "b": 2})
    assert owners(made) == "abbb"
    assert made.lane_of[[0, 2, 3]].tolist() == [0, 0, 1]
    assert made.version == 4


def test_an_arrival_takes_the_emptiest_lane() -> None:
    made = arrange(assignment("aabb", "0100"), {0: "b"}, roster=["a", "b"], lanes={"a": 2, "b": 2})
    assert made.lane_of[0] == 1


def test_an_arrival_takes_the_lane_its_target_gives_it() -> None:
    target = assignment("bbbb", "0011")
    made = arrange(
        assignment("aabb", "0100"),
        {0: "b"},
        roster=["a", "b"],
        lanes={"a": 2, "b": 2},
        target=target,
    )
    assert made.lane_of.tolist() == [0, 1, 0, 0]


def test_aligning_gives_those_that_stay_the_targets_lanes_too() -> None:
    target = assignment("bbbb", "0011")
    made = arrange(
        assignment("aabb", "0100"),
        {},
        roster=["b"],
        lanes={"a": 2, "b": 2},
        target=target,
        align=True,
    )
    assert owners(made) == "aabb"
    assert made.lane_of.tolist() == [0, 1, 1, 1]
    assert made.executors == ("b", "a")


def test_an_executor_leaves_the_list_with_its_last_key_group() -> None:
    made = arrange(assignment("ab", "00"), {0: "b"}, roster=["b"], lanes={"a": 2, "b": 2})
    assert made.executors == ("b",)


def test_an_executor_of_the_roster_stays_even_without_key_groups() -> None:
    made = arrange(
        assignment("ab", "00"), {0: "b"}, roster=["c", "a", "b"], lanes=dict.fromkeys("abc", 2)
    )
    assert made.executors == ("c", "a", "b")


def test_lanes_that_are_gone_are_folded_into_those_that_are_left() -> None:
    made = arrange(assignment("aaa", "012", each=3), {}, roster=["a"], lanes={"a": 2})
    assert made.lane_of.tolist() == [0, 1, 0]


def test_the_lost_are_dealt_out_by_bytes_largest_first() -> None:
    places = distribute_evenly(
        [0, 1, 2, 3],
        candidates={"b", "c"},
        assignment=even_assignment(4, ["a"], [1]),
        state_bytes={0: 10, 1: 40, 2: 25, 3: 5},
    )
    assert places == {1: "b", 2: "c", 0: "c", 3: "c"}


def test_what_executors_hold_already_counts() -> None:
    current = assignment("abbbc", "00000")
    places = distribute_evenly([0], candidates={"b", "c"}, assignment=current, state_bytes={})
    assert places == {0: "c"}


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 4))
def test_no_executor_gets_more_than_its_share_and_one_key_group(
    sizes: list[int], count: int
) -> None:
    names = [f"e{i}" for i in range(count)]
    places = distribute_evenly(
        range(len(sizes)),
        candidates=names,
        assignment=even_assignment(len(sizes), ["gone"], [1]),
        state_bytes=dict(enumerate(sizes)),
    )
    assert sorted(places) == list(range(len(sizes)))
    held = {name: sum(sizes[g] for g in places if places[g] == name) for name in names}
    assert max(held.values()) <= sum(sizes) / count + max(sizes)


def test_a_plan_with_another_number_of_key_groups_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match=r"places 3 key groups.*has 4") as caught:
        check_target(
            "sum",
            even_assignment(4, THREE, [1] * 3),
            even_assignment(3, THREE, [1] * 3),
            executors=THREE,
            draining=(),
        )
    assert caught.value.context["component"] == "sum"


def test_a_plan_on_an_executor_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InvalidPlanError, match=r"are not running: z\. Plan again on.*a, b, c"):
        check_target(
            "sum",
            even_assignment(4, THREE, [1] * 3),
            even_assignment(4, ["a", "z"], [1, 1]),
            executors=THREE,
            draining=(),
        )


def test_a_move_onto_a_draining_executor_is_refused_but_staying_there_is_not() -> None:
    current = assignment("aabc", "0000")
    check_target("sum", current, assignment("abbc", "0000"), executors=THREE, draining=("c",))
    with pytest.raises(InvalidPlanError, match=r"moves key group 1 onto executor 'c'.*draining"):
        check_target("sum", current, assignment("acbc", "0000"), executors=THREE, draining=("c",))


def test_lanes_change_without_anything_moving() -> None:
    made = change_lanes("sum", assignment("aab", "010"), lanes={"b": 3}, lane_of={2: 2, 0: 1})
    assert owners(made) == "aab"
    assert made.lanes == (2, 3)
    assert made.lane_of.tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("lanes", "lane_of", "text"),
    [
        ({"z": 1}, {}, "cannot be given"),
        ({"a": 0}, {}, "cannot be given"),
        ({}, {9: 0}, "Key group 9"),
        ({}, {-1: 0}, "Key group -1"),
        ({}, {0: 2}, "cannot take lane 2"),
        ({"a": 1}, {0: 1}, "cannot take lane 1"),
    ],
)
def test_lanes_that_do_not_exist_are_refused(
    lanes: dict[str, int], lane_of: dict[int, int], text: str
) -> None:
    with pytest.raises(InvalidPlanError, match=text):
        change_lanes("sum", assignment("aab", "010"), lanes=lanes, lane_of=lane_of)
