from __future__ import annotations

import math

import numpy as np
import pytest
from tests.oracles.core_counts import expected_latency_s

from godwit.control.planners.cores.core_allocation import (
    CoreAllocationProblem,
    QueueingNetwork,
    plan_core_allocation,
)
from godwit.model.errors import InvalidProblemError


def problem(
    arrival: list[float], *, target_s: float, available: int, idle_cores: int = 1
) -> CoreAllocationProblem:
    return CoreAllocationProblem(
        network=QueueingNetwork(
            arrival_per_s=np.array(arrival),
            service_per_s=np.full(len(arrival), 10.0),
            input_per_s=max(arrival),
        ),
        latency_target_s=target_s,
        available_cores=available,
        idle_cores=idle_cores,
    )


def test_lax_target_takes_only_the_cores_that_stability_needs() -> None:
    plan = plan_core_allocation(problem([25.0, 5.0], target_s=100.0, available=10))
    assert plan.status == "optimal"
    assert plan.cores.tolist() == [3, 1]


def test_cores_go_where_they_lower_latency_most() -> None:
    asked = problem([29.0, 5.0], target_s=0.15, available=20)
    plan = plan_core_allocation(asked)
    assert plan.status == "optimal"
    assert plan.cores[0] > 3
    assert plan.latency_s == pytest.approx(expected_latency_s(asked.network, plan.cores))
    assert plan.latency_s <= 0.15
    for j in range(2):
        fewer = plan.cores.copy()
        fewer[j] -= 1
        assert expected_latency_s(asked.network, fewer) > 0.15


def test_target_below_pure_service_time_is_infeasible_with_the_reason() -> None:
    plan = plan_core_allocation(problem([5.0], target_s=0.05, available=4))
    assert plan.status == "infeasible"
    assert "without waiting" in plan.reason
    assert plan.cores.tolist() == [4]


def test_too_few_cores_for_the_target_gives_the_best_there_is() -> None:
    plan = plan_core_allocation(problem([29.0], target_s=0.101, available=4))
    assert plan.status == "infeasible"
    assert "All 4 cores" in plan.reason
    assert plan.cores.tolist() == [4]


def test_too_few_cores_for_stability_keeps_as_many_executors_up_as_possible() -> None:
    plan = plan_core_allocation(problem([55.0, 5.0, 15.0], target_s=1.0, available=4))
    assert plan.status == "infeasible"
    assert plan.latency_s == math.inf
    assert plan.cores.tolist() == [1, 1, 2]
    assert "At least 9 cores are needed for stability, but only 4 are available" in plan.reason


def test_idle_executor_keeps_its_idle_cores() -> None:
    usual = problem([5.0, 0.0], target_s=10.0, available=5)
    assert plan_core_allocation(usual).cores.tolist() == [1, 1]
    bare = problem([5.0, 0.0], target_s=10.0, available=5, idle_cores=0)
    assert plan_core_allocation(bare).cores.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"target_s": 0.0}, "latency_target_s = 0"),
        ({"target_s": math.nan}, "latency_target_s = nan"),
        ({"available": -1}, "available_cores = -1"),
        ({"idle_cores": -2}, "idle_cores = -2"),
    ],
)
def test_wrong_limits_are_named(changes: dict[str, float], names: str) -> None:
    values = {"target_s": 1.0, "available": 4, **changes}
    with pytest.raises(InvalidProblemError, match=names):
        problem([5.0], **values)  # type: ignore[arg-type] # mixed values


@pytest.mark.parametrize("target_s", [0.1, 0.0999, 0.1 * (1 + 1e-14)])
def test_target_at_or_below_the_time_of_serving_is_unreachable_with_any_cores(
    target_s: float,
) -> None:
    plan = plan_core_allocation(problem([29.0], target_s=target_s, available=100_000))
    assert plan.status == "infeasible"
    assert "Unreachable" in plan.reason
    assert plan.cores.sum() < 100
    assert plan.latency_s == pytest.approx(0.1, rel=1e-5)


def test_target_a_hair_above_the_time_of_serving_is_met() -> None:
    plan = plan_core_allocation(problem([29.0], target_s=0.1 * (1 + 1e-9), available=100))
    assert plan.status == "optimal"
    assert 3 < plan.cores[0] < 100
