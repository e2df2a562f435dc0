"""Core allocation against exhaustive search; core assignment within its constraints."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.core_counts import erlang_c, fewest_cores, least_latency_s
from tests.support.rounds import rounds

from godwit.control.planners.cores.core_allocation import (
    CoreAllocationProblem,
    QueueingNetwork,
    erlang_b,
    plan_core_allocation,
)
from godwit_lab.planners.cores.core_assignment import (
    CoreAssignmentProblem,
    core_migration_bytes,
    plan_core_assignment,
    plan_naive_core_assignment,
)

profile = settings(derandomize=True, deadline=None, max_examples=rounds(50, 200))


@st.composite
def networks(draw: st.DrawFn) -> QueueingNetwork:
    m = draw(st.integers(1, 3))
    rates = st.lists(st.integers(0, 40), min_size=m, max_size=m)
    return QueueingNetwork(
        arrival_per_s=np.array(draw(rates), np.float64),
        service_per_s=np.array(draw(rates), np.float64) + 5.0,
        input_per_s=float(draw(st.integers(1, 40))),
    )


@settings(profile, max_examples=rounds(200, 1_000))
@given(networks(), st.floats(0.01, 3.0), st.integers(0, 9))
def test_greedy_allocation_equals_exhaustive_search(
    network: QueueingNetwork, target_s: float, available: int
) -> None:
    plan = plan_core_allocation(
        CoreAllocationProblem(
            network=network, latency_target_s=target_s, available_cores=available, idle_cores=0
        )
    )
    fewest = fewest_cores(network, target_s * (1 + 1e-9), available)
    if fewest is not None and plan.status == "infeasible":
        # Only a target met to the last digit may be judged differently.
        assert least_latency_s(network, available) == pytest.approx(target_s, rel=1e-8)
        return
    assert (plan.status == "optimal") == (fewest is not None)
    assert plan.cores.sum() <= available
    if fewest is not None:
        assert plan.latency_s <= target_s
        # As above: with fewer cores the target can only be met to the last digit.
        assert plan.cores.sum() == fewest or least_latency_s(
            network, int(plan.cores.sum()) - 1
        ) == pytest.approx(target_s, rel=1e-8)
    else:
        assert plan.reason
        if math.isfinite(plan.latency_s):
            assert plan.latency_s == pytest.approx(least_latency_s(network, available))


@profile
@given(st.floats(0.01, 60.0), st.integers(1, 60))
def test_erlang_formulas_agree_with_their_definitions(offered: float, servers: int) -> None:
    terms = [math.exp(k * math.log(offered) - math.lgamma(k + 1)) for k in range(servers + 1)]
    assert erlang_b(offered, servers) == pytest.approx(terms[-1] / sum(terms), rel=1e-9)
    if offered < servers:
        waiting = terms[-1] * servers / (servers - offered)
        expected = waiting / (sum(terms[:-1]) + waiting)
        assert erlang_c(offered, servers) == pytest.approx(expected, rel=1e-9)


@st.composite
def core_problems(draw: st.DrawFn) -> CoreAssignmentProblem:
    n, m = draw(st.integers(1, 4)), draw(st.integers(1, 5))

    def numbers(low: int, high: int, size: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=size, max_size=size))

    current = np.array(numbers(0, 2, n * m)).reshape(n, m)
    return CoreAssignmentProblem(
        current=current,
        machine_cores=current.sum(axis=1) + np.array(numbers(0, 3, n)),
        cores=np.array(numbers(0, 5, m)),
        state_bytes=np.array(numbers(0, 100, m), np.float64),
        data_bytes_per_s=np.array(numbers(0, 4_000_000, m), np.float64),
        home=np.array(numbers(0, n - 1, m)),
    )


@profile
@given(core_problems())
def test_core_assignment_keeps_to_every_constraint(problem: CoreAssignmentProblem) -> None:
    enough = problem.cores.sum() <= problem.machine_cores.sum()
    for plan in (plan_core_assignment(problem), plan_naive_core_assignment(problem)):
        assert (plan.cores >= 0).all()
        assert (plan.cores.sum(axis=1) <= problem.machine_cores).all()
        assert (plan.status == "feasible") == enough
        assert bool(plan.reason) != enough
        if enough:
            assert (plan.cores.sum(axis=0) >= problem.cores).all()
        else:
            assert plan.cores.sum() == problem.machine_cores.sum()
        intensive = problem.intensity > plan.phi_bytes_per_s
        remote = np.arange(len(plan.cores))[:, None] != problem.home
        assert not plan.cores[remote & intensive].any()
        assert plan.migration_bytes == pytest.approx(
            core_migration_bytes(problem.state_bytes, problem.current, plan.cores)
        )


@profile
@given(core_problems())
def test_nothing_moves_when_every_executor_has_its_cores_at_home(
    problem: CoreAssignmentProblem,
) -> None:
    n, m = problem.current.shape
    current = np.zeros((n, m), np.int64)
    current[problem.home, np.arange(m)] = problem.cores
    settled = CoreAssignmentProblem(
        current=current,
        machine_cores=current.sum(axis=1),
        cores=problem.cores,
        state_bytes=problem.state_bytes,
        data_bytes_per_s=problem.data_bytes_per_s,
        home=problem.home,
    )
    plan = plan_core_assignment(settled)
    assert np.array_equal(plan.cores, current)
    assert plan.migration_bytes == 0
    assert plan.remote_bytes_per_s == 0
