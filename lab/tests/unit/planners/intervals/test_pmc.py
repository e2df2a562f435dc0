from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from lab.tests.oracles.interval_plans import line_problem, random_line_problem, valid_cuts

from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Limits, Problem
from godwit.placement.solution import Status, validate_solution
from godwit_lab.planners.intervals.mtm import plan_mtm
from godwit_lab.planners.intervals.oms import count_partitionings, kept_bytes, partitionings
from godwit_lab.planners.intervals.pmc import approximate_projected_cost, projected_cost
from godwit_lab.planners.intervals.projected import (
    ProjectedCost,
    Transitions,
    estimate_transitions,
    last_cuts_within_tau,
)
from godwit_lab.planners.intervals.ssm import plan_ssm

TABLE_4 = Transitions(
    sizes=(2, 3, 4),
    probability=np.array([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]]),
)


def _problem(m: int = 10, tau: float = 0.5, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    return line_problem(
        [0] * (m // 2) + [1] * (m - m // 2),
        load=(rng.random(m) + 0.5).tolist(),
        state_bytes=(rng.random(m) * 100).tolist(),
        num_executors=4,
        tau=tau,
        target=3,
    )


def _value_iteration(table: ProjectedCost, sweeps: int) -> list[np.ndarray]:
    """Follow paper 1, figure 9, literally, with the minimum where it belongs."""
    space = table.space
    cost = [np.zeros(len(rows)) for rows in space.cuts]
    for _ in range(sweeps):
        cost = [
            sum(
                probability
                * (
                    space.state_before[-1]
                    - kept_bytes(rows, after, space.state_before)
                    + space.gamma * later
                ).min(axis=1)
                for probability, after, later in zip(
                    space.transitions.probability[i], space.cuts, cost, strict=True
                )
            )
            for i, rows in enumerate(space.cuts)
        ]
    return cost


def test_partitionings_are_all_those_within_the_bound() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        problem = random_line_problem(rng, most=8)
        parts = problem.target_executors
        last_cut = last_cuts_within_tau(problem, parts)
        assert problem.limits.tau is not None
        limit = (1 + problem.limits.tau) * float(problem.weight.sum()) / parts
        m = problem.num_key_groups
        expected = sorted(
            (*cuts, *[m] * (parts + 1 - len(cuts))) for cuts in valid_cuts(problem, parts, limit)
        )
        found = partitionings(last_cut, parts, at_most=10_000)
        assert list(map(tuple, found.tolist())) == expected
        assert count_partitionings(last_cut, parts) == len(expected)


def test_kept_bytes_equals_the_best_matching() -> None:
    problem = _problem()
    kept = np.concatenate(([0.0], np.cumsum(problem.state_bytes)))
    old = partitionings(last_cuts_within_tau(problem, 2), 2, at_most=1000)
    new = partitionings(last_cuts_within_tau(problem, 3), 3, at_most=1000)
    stays = kept_bytes(old, new, kept)
    for i in range(0, len(old), 3):
        owners = np.repeat(np.arange(2), np.diff(old[i]))
        for j in range(0, len(new), 3):
            after = np.repeat(np.arange(3), np.diff(new[j]))
            best = max(
                sum(
                    problem.state_bytes[(owners == a) & (after == b)].sum()
                    for a, b in enumerate(pair)
                )
                for pair in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
            )
            assert stays[i, j] == pytest.approx(best)


def test_projected_costs_equal_value_iteration() -> None:
    table = projected_cost(_problem(), TABLE_4, gamma=0.7)
    for ours, theirs in zip(table.cost, _value_iteration(table, 120), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)
    assert table.exact
    assert table.sweeps < 10


def test_projected_costs_do_not_depend_on_who_owns_what() -> None:
    # Lemma 5.2: only the cuts enter.
    left, right = _problem(), _problem()
    right = dataclasses.replace(right, current=1 - right.current)
    a, b = projected_cost(left, TABLE_4), projected_cost(right, TABLE_4)
    assert all(np.array_equal(x, y) for x, y in zip(a.cost, b.cost, strict=True))


def test_sampled_costs_are_upper_bounds_and_their_error_is_stated() -> None:
    problem = _problem(m=14, tau=0.9)
    exact = projected_cost(problem, TABLE_4)
    sampled = approximate_projected_cost(
        problem, TABLE_4, rng=np.random.default_rng(0), num_partitionings=60
    )
    assert not sampled.exact
    assert sampled.num_partitionings <= 60 < exact.num_partitionings
    assert sampled.partitionings_in_all == exact.num_partitionings
    above = []
    for rows, costs, n in zip(sampled.space.cuts, sampled.cost, (2, 3, 4), strict=True):
        for row, cost in zip(rows, costs, strict=True):
            above.append(cost - exact.cost_of(row, n))
    assert min(above) >= -1e-3
    mean = np.concatenate(exact.cost).mean()
    assert sampled.measured_error == pytest.approx(max(above) / mean)
    assert sampled.measured_mean_error == pytest.approx(np.mean(above) / mean)
    assert max(above) < 0.25 * mean


def test_a_sample_of_everything_is_exact() -> None:
    problem = _problem(m=8, tau=0.3)
    sampled = approximate_projected_cost(
        problem, TABLE_4, rng=np.random.default_rng(0), num_partitionings=500
    )
    assert sampled.exact
    assert sampled.num_partitionings == sampled.partitionings_in_all <= 500


def test_a_part_of_all_partitionings_gives_nearly_exact_costs() -> None:
    for seed in range(4):
        problem = _problem(m=20, tau=0.9, seed=seed)
        sampled = approximate_projected_cost(
            problem, TABLE_4, rng=np.random.default_rng(seed), num_partitionings=120
        )
        assert sampled.partitionings_in_all > 3 * sampled.num_partitionings
        assert sampled.measured_mean_error is not None
        assert sampled.measured_mean_error < 0.02


def test_mtm_minimises_bytes_now_plus_discounted_bytes_later() -> None:
    problem = _problem()
    table = projected_cost(problem, TABLE_4)
    plan = plan_mtm(problem, projected=table)
    validate_solution(plan)
    assert plan.status is Status.OPTIMAL
    kept = table.space.state_before
    now = kept[-1] - kept_bytes(np.array([[0, 5, 10]]), table.space.cuts[1], kept)[0]
    assert plan.objective == pytest.approx((now + 0.8 * table.cost[1]).min())
    assert plan.moved_bytes == pytest.approx(plan.details["moved_bytes"])


def test_with_gamma_zero_mtm_is_ssm() -> None:
    for seed in range(10):
        problem = _problem(seed=seed, tau=0.8)
        plan = plan_mtm(problem, transitions=TABLE_4, gamma=0.0)
        assert plan.moved_bytes == pytest.approx(plan_ssm(problem).moved_bytes)


def test_over_many_migrations_mtm_moves_less_than_ssm() -> None:
    rng = np.random.default_rng(5)
    start = _problem(m=14, tau=0.6, seed=2)
    table = projected_cost(start, TABLE_4, gamma=0.9)
    moved = {"ssm": 0.0, "mtm": 0.0}
    now = {"ssm": start, "mtm": start}
    size = 2
    for _ in range(300):
        size = int(rng.choice((2, 3, 4), p=TABLE_4.probability[size - 2]))
        for name in moved:
            limits = Limits(tau=0.6, target_executors=size)
            problem = dataclasses.replace(now[name], limits=limits)
            plan = plan_ssm(problem) if name == "ssm" else plan_mtm(problem, projected=table)
            assert plan.status is Status.OPTIMAL
            moved[name] += plan.moved_bytes
            now[name] = dataclasses.replace(problem, current=plan.assignment)
    assert moved["mtm"] < 0.95 * moved["ssm"]


def test_a_log_of_executors_in_use_makes_another_plan_than_the_cheapest_step() -> None:
    matrix = estimate_transitions([2, 3, 4, 3, 2, 3, 4, 2, 3, 4, 3, 2])
    differs = 0
    for seed in range(6):
        problem = _problem(m=12, seed=seed, tau=0.4)
        plan, step = plan_mtm(problem, transitions=matrix, gamma=0.9), plan_ssm(problem)
        assert plan.moved_bytes >= step.moved_bytes - 1e-9  # it pays now for what is expected
        differs += not np.array_equal(plan.assignment, step.assignment)
    assert differs


def test_beyond_what_is_computed_exactly_a_sample_does(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(m=12, tau=0.6)
    exact = plan_mtm(problem, transitions=TABLE_4)
    monkeypatch.setattr("godwit_lab.planners.intervals.mtm._EXACT", 10)
    first, again = (plan_mtm(problem, transitions=TABLE_4) for _ in range(2))
    validate_solution(first)
    assert first.reason == "projected costs are approximate"
    assert np.array_equal(first.assignment, again.assignment)
    assert first.objective is not None
    assert exact.objective is not None
    assert exact.objective - 1e-9 <= first.objective <= 1.3 * exact.objective


def test_a_sampled_table_still_gives_valid_plans_no_worse_than_ssm_by_its_own_measure() -> None:
    problem = _problem(m=24, tau=0.8)
    table = approximate_projected_cost(
        problem, TABLE_4, rng=np.random.default_rng(1), num_partitionings=80, check_partitionings=0
    )
    assert table.measured_error is None
    plan = plan_mtm(problem, projected=table)
    validate_solution(plan)
    assert plan.status is Status.FEASIBLE
    assert "approximate" in plan.reason


def test_a_table_survives_saving() -> None:
    table = projected_cost(_problem(), TABLE_4)
    again = ProjectedCost.from_bytes(table.to_bytes())
    for before, after in zip(table.cost, again.cost, strict=True):
        assert np.array_equal(before, after)
    assert again.exact
    assert again.sweeps == table.sweeps
    assert again.measured_error is None
    assert again.measured_mean_error is None
    assert again.space.transitions.sizes == (2, 3, 4)


@pytest.mark.parametrize("data", [b"", b"not a table", b"PK\x03\x04broken"])
def test_bytes_that_are_no_table_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidProblemError, match="no table"):
        ProjectedCost.from_bytes(data)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (_problem(m=11), "10 key groups"),
        (_problem(tau=0.6), "tau = 0.5"),
        (_problem(seed=1), "load differs"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(other: Problem, words: str) -> None:
    table = projected_cost(_problem(), TABLE_4)
    with pytest.raises(InvalidProblemError, match=words):
        plan_mtm(other, projected=table)


def test_drift_is_accepted_only_up_to_what_is_asked() -> None:
    problem = _problem()
    table = projected_cost(problem, TABLE_4)
    drifted = dataclasses.replace(problem, state_bytes=problem.state_bytes * 1.02)
    with pytest.raises(InvalidProblemError, match=r"state_bytes differs by 0\.02"):
        plan_mtm(drifted, projected=table)
    plan = plan_mtm(drifted, projected=table, max_drift=0.05)
    validate_solution(plan)
    assert plan.status is Status.FEASIBLE


def test_a_size_the_matrix_does_not_have_is_refused() -> None:
    problem = dataclasses.replace(_problem(), limits=Limits(tau=0.5, target_executors=1))
    with pytest.raises(InvalidProblemError, match="target_executors"):
        plan_mtm(problem, projected=projected_cost(_problem(), TABLE_4))


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="gamma"):
        projected_cost(_problem(), TABLE_4, gamma=1.0)
    with pytest.raises(InvalidProblemError, match="more than max_partitionings = 5"):
        projected_cost(_problem(), TABLE_4, max_partitionings=5)
    with pytest.raises(InvalidProblemError, match=r"limits\.tau"):
        projected_cost(_problem(tau=0.0), TABLE_4)
    with pytest.raises(InvalidProblemError, match=r"limits\.tau"):
        approximate_projected_cost(_problem(tau=0.0), TABLE_4, rng=np.random.default_rng(0))
    with pytest.raises(InvalidProblemError, match="transitions"):
        plan_mtm(_problem())


def test_transitions_count_changes_only_unless_stays_are_wanted() -> None:
    log = [2, 3, 3, 2, 4, 2, 3]
    changes = estimate_transitions(log)
    assert changes.sizes == (2, 3, 4)
    expected = np.array([[0.0, 2 / 3, 1 / 3], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(changes.probability, expected)
    stays = estimate_transitions(log, stays=True)
    np.testing.assert_allclose(stays.probability[1], [1 / 2, 1 / 2, 0])


def test_a_number_that_nothing_left_goes_to_itself() -> None:
    assert estimate_transitions([2, 3]).probability.tolist() == [[0, 1], [0, 1]]
    assert estimate_transitions([2, 3], sizes=(2, 3, 5)).probability[2].tolist() == [0, 0, 1]


def test_malformed_transitions_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"probability\[0\]"):
        Transitions(sizes=(1, 2), probability=np.array([[0.5, 0.6], [0.5, 0.5]]))
    with pytest.raises(InvalidProblemError, match="sizes"):
        Transitions(sizes=(2, 2), probability=np.eye(2))
    with pytest.raises(InvalidProblemError, match="row for each size"):
        Transitions(sizes=(2, 3), probability=np.eye(3))
    with pytest.raises(InvalidProblemError, match=r"log\[1\]"):
        estimate_transitions([2, 9], sizes=(2, 3))
    with pytest.raises(InvalidProblemError, match="log"):
        estimate_transitions([])
