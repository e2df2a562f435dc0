from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit_lab.planners.cores.core_assignment import (
    CoreAssignmentProblem,
    core_migration_bytes,
    plan_core_assignment,
    remote_bytes_per_s,
)


def problem(**changes: Any) -> CoreAssignmentProblem:
    values: dict[str, Any] = {
        "current": np.array([[4, 0], [0, 2]]),
        "machine_cores": np.array([4, 4]),
        "cores": np.array([3, 3]),
        "state_bytes": np.array([100.0, 100.0]),
        "data_bytes_per_s": np.array([0.0, 0.0]),
        "home": np.array([0, 1]),
    }
    return CoreAssignmentProblem(**{**values, **changes})


def test_free_core_beside_the_executor_is_taken_first() -> None:
    plan = plan_core_assignment(problem())
    assert plan.cores.tolist() == [[4, 0], [0, 3]]
    assert plan.migration_bytes == 0


def test_full_machine_means_state_goes_to_the_spare_core_elsewhere() -> None:
    plan = plan_core_assignment(problem(machine_cores=np.array([4, 2])))
    assert plan.cores.tolist() == [[3, 1], [0, 2]]
    assert plan.migration_bytes == pytest.approx(100 / 3)


def test_data_intensive_executor_takes_a_local_core_from_one_that_can_go_elsewhere() -> None:
    plan = plan_core_assignment(
        problem(
            current=np.array([[2, 2], [0, 0]]),
            cores=np.array([3, 2]),
            home=np.array([0, 0]),
            data_bytes_per_s=np.array([3e7, 10.0]),
        )
    )
    assert plan.cores.tolist() == [[3, 1], [0, 1]]
    assert plan.phi_bytes_per_s == 512 * 1024


def test_phi_doubles_until_an_executor_too_big_for_its_machine_may_leave_it() -> None:
    plan = plan_core_assignment(
        problem(cores=np.array([6, 1]), data_bytes_per_s=np.array([6e6, 0.0]))
    )
    assert plan.status == "feasible"
    assert plan.cores.sum(axis=0).tolist() == [6, 2]
    assert plan.phi_bytes_per_s == 1024 * 1024
    assert plan.remote_bytes_per_s == pytest.approx(2e6)


def test_remote_cores_of_a_data_intensive_executor_are_given_back() -> None:
    plan = plan_core_assignment(
        problem(
            current=np.array([[1, 0], [2, 0]]),
            cores=np.array([3, 0]),
            data_bytes_per_s=np.array([3e7, 0.0]),
        )
    )
    assert plan.cores.tolist() == [[3, 0], [0, 0]]
    assert plan.remote_bytes_per_s == 0


def test_too_few_cores_are_all_used_and_the_reason_says_so() -> None:
    plan = plan_core_assignment(problem(cores=np.array([9, 2])))
    assert plan.status == "infeasible"
    assert plan.reason == "11 cores are needed; the machines have 8"
    assert plan.cores.sum() == 8


def test_migration_counts_state_that_leaves_a_machine() -> None:
    state = np.array([60.0])
    before, after = np.array([[2], [1]]), np.array([[1], [2]])
    assert core_migration_bytes(state, before, after) == pytest.approx(20.0)
    assert core_migration_bytes(state, np.zeros((2, 1), np.int64), after) == 0
    assert core_migration_bytes(state, before, np.zeros((2, 1), np.int64)) == pytest.approx(60.0)


def test_remote_data_is_the_share_of_cores_away_from_home() -> None:
    asked = problem(data_bytes_per_s=np.array([80.0, 0.0]))
    assert remote_bytes_per_s(asked, np.array([[3, 0], [1, 3]])) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"current": np.array([1, 2])}, "current"),
        ({"cores": np.array([1.5, 2])}, "cores = 'a number that does not fit'"),
        ({"cores": np.array([-1, 2])}, r"cores\[0\] = -1"),
        ({"state_bytes": np.array([math.nan, 2])}, r"state_bytes\[0\] = nan"),
        ({"home": np.array([0, 7])}, r"home\[1\] = 7"),
        ({"machine_cores": np.array([3, 4])}, r"current\[0\] = 4"),
        ({"state_bytes": np.array([1.0])}, "state_bytes"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidProblemError, match=names):
        problem(**changes)


def test_threshold_must_be_positive() -> None:
    with pytest.raises(InvalidProblemError, match="phi_bytes_per_s = 0"):
        plan_core_assignment(problem(), phi_bytes_per_s=0)
