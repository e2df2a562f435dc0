"""Core assignment that minds neither state nor locality (baseline).

Problem: give every executor at least the cores it needs.

Invariant: no machine gives more cores than it has.

Source: paper 5 §5.4, naive-EC: the scheduler without its optimisations of migration cost and
locality. Which cores are then taken is open; we deal all cores of the cluster out anew, in order.
"""

from __future__ import annotations

import numpy as np

from godwit.planning.cores.core_assignment import (
    CoreAssignment,
    CoreAssignmentProblem,
    core_migration_bytes,
    reachable_cores,
    remote_bytes_per_s,
)

__all__ = ["plan_naive_core_assignment"]


def plan_naive_core_assignment(problem: CoreAssignmentProblem) -> CoreAssignment:
    """Deal the machines' cores out to executors in order, round robin over machines.

    Minimises nothing; the only constraint is the number of cores. O(Σk) time.

    Returns
    -------
    CoreAssignment
        ``phi_bytes_per_s`` is infinite: no executor is bound to its machine.
    """
    needed, reason = reachable_cores(problem)
    n, m = problem.current.shape
    cores = np.zeros((n, m), np.int64)
    free = problem.machine_cores.tolist()
    i = 0
    for j, count in enumerate(needed.tolist()):
        for _ in range(count):
            while free[i] == 0:
                i = (i + 1) % n
            cores[i, j] += 1
            free[i] -= 1
            i = (i + 1) % n
    return CoreAssignment(
        cores=cores,
        migration_bytes=core_migration_bytes(problem.state_bytes, problem.current, cores),
        remote_bytes_per_s=remote_bytes_per_s(problem, cores),
        phi_bytes_per_s=float("inf"),
        status="infeasible" if reason else "feasible",
        reason=reason,
    )
