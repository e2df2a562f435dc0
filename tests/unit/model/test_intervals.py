from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidPlanError
from godwit.model.key_groups import from_runs, pack, runs_of, unpack


@pytest.mark.parametrize("seed", range(30))
def test_a_map_survives_the_way_through_runs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 60))
    value_of = rng.integers(0, 4, size, np.int32)
    value_of = np.sort(value_of) if seed % 2 else value_of
    starts, values = runs_of(value_of)
    assert from_runs(starts, values, size).tolist() == value_of.tolist()
    assert unpack(pack(value_of), size).tolist() == value_of.tolist()
    assert seed % 2 == 0 or len(starts) == len(set(value_of.tolist()))


def test_intervals_are_written_where_they_are_smaller() -> None:
    ranges = np.repeat(np.arange(3, dtype=np.int32), 1000)
    scattered = np.arange(3000, dtype=np.int32) % 3
    assert pack(ranges) == {"starts": [0, 1000, 2000], "values": [0, 1, 2]}
    assert pack(scattered) == scattered.tolist()


def test_an_assignment_of_ranges_takes_a_few_numbers_in_a_record() -> None:
    ranges = Assignment(
        version=3,
        executors=("a", "b"),
        lanes=(1, 1),
        executor_of=np.repeat(np.arange(2, dtype=np.int32), 500),
        lane_of=np.zeros(1000, np.int32),
    )
    values = ranges.to_dict()
    assert len(str(values)) < 250
    assert Assignment.from_dict(values) == ranges


@pytest.mark.parametrize(
    "packed",
    [
        {"starts": [], "values": []},
        {"starts": [1], "values": [0]},
        {"starts": [0, 0], "values": [0, 1]},
        {"starts": [0, 9], "values": [0, 1]},
        {"starts": [0], "values": [0, 1]},
        {"values": [0]},
    ],
)
def test_intervals_that_do_not_cover_the_key_groups_are_refused(packed: dict[str, Any]) -> None:
    with pytest.raises(InvalidPlanError, match="do not cover 9 key groups"):
        unpack(packed, 9)


def test_no_number_of_key_groups_is_believed_that_cannot_be() -> None:
    with pytest.raises(InvalidPlanError, match="cannot have"):
        unpack({"starts": [0], "values": [0]}, 2**31)
