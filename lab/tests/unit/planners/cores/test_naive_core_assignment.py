from __future__ import annotations

import numpy as np

from godwit_lab.planners.cores.core_assignment import (
    CoreAssignmentProblem,
    plan_core_assignment,
    plan_naive_core_assignment,
)


def test_naive_assignment_moves_more_state_and_more_remote_data_than_algorithm_1() -> None:
    rng = np.random.default_rng(5)
    machines, executors = 8, 12
    home = np.arange(executors) % machines
    current = np.zeros((machines, executors), np.int64)
    current[home, np.arange(executors)] = 2
    problem = CoreAssignmentProblem(
        current=current,
        machine_cores=np.full(machines, 8),
        cores=rng.integers(1, 6, executors),
        state_bytes=rng.uniform(1e6, 1e8, executors),
        data_bytes_per_s=rng.uniform(0, 4e6, executors),
        home=home,
    )
    ours, naive = plan_core_assignment(problem), plan_naive_core_assignment(problem)
    assert naive.migration_bytes > 3 * ours.migration_bytes
    assert naive.remote_bytes_per_s > 3 * ours.remote_bytes_per_s


def test_cores_are_dealt_out_round_robin_over_machines() -> None:
    plan = plan_naive_core_assignment(
        CoreAssignmentProblem(
            current=np.zeros((3, 2), np.int64),
            machine_cores=np.array([1, 2, 1]),
            cores=np.array([2, 2]),
            state_bytes=np.zeros(2),
            data_bytes_per_s=np.zeros(2),
            home=np.array([0, 0]),
        )
    )
    assert plan.cores.tolist() == [[1, 0], [1, 1], [0, 1]]
