"""The adaptation loop on random streams: it converges, comes to rest, and ends what it begins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.oracles.controlled import ControlledCluster, Part
from tests.support.controls import control_of
from tests.support.rounds import rounds

from godwit.control import Budget
from godwit.control.cost_benefit import Terms, is_uneven, select_moves
from godwit.control.scaling import utilisation
from godwit.model import events
from godwit.placement import Limits, Problem, metrics

PERIOD_S = 4.0
BOUND = 0.1

seeds = st.integers(0, 2**16)


def rows_of(seed: int, key_groups: int, per_s: float) -> np.ndarray:
    """Rows a second of key groups, none of them more than a fifth of an executor's share."""
    rng = np.random.default_rng(seed)
    rows: np.ndarray = rng.lognormal(0.0, 0.7, key_groups).clip(0.05, 3.0)
    rows *= per_s / rows.sum()
    return rows


def world(
    seed: int, executors: int, *, noise: float, per_s: float, **changed: object
) -> ControlledCluster:
    control = control_of(**({"period": f"{PERIOD_S} seconds", "planner": "flux"} | changed))
    return ControlledCluster(
        {"sum": Part(rows=rows_of(seed, 24 * executors, per_s))},
        {f"e{i}": 2 for i in range(executors)},
        settings=control,
        noise=noise,
        seed=seed,
    )


@given(seed=seeds, executors=st.integers(2, 6))
@settings(derandomize=True, deadline=None, max_examples=rounds(3, 12))
def test_after_a_shift_the_load_is_within_its_bound_in_two_periods(
    seed: int, executors: int
) -> None:
    stream = world(seed, executors, noise=0.05, per_s=800.0 * executors)
    stream.run(3 * PERIOD_S)
    part = stream.parts["sum"]
    part.rows = np.random.default_rng(seed + 1).permutation(part.rows)
    # The period under way has seen the old load too, so two whole ones follow.
    stream.run(3 * PERIOD_S + 1.0)
    assert stream.distance("sum") <= BOUND + 0.05


@given(seed=seeds, executors=st.integers(2, 5))
@settings(derandomize=True, deadline=None, max_examples=rounds(2, 4))
def test_steady_input_with_noise_comes_to_rest(seed: int, executors: int) -> None:
    stream = world(seed, executors, noise=0.1, per_s=800.0 * executors)
    stream.run(5 * PERIOD_S)
    before = len(stream.told(events.RebalancingStarted))
    stream.run(12 * PERIOD_S)
    assert len(stream.told(events.RebalancingStarted)) == before


@given(seed=seeds, factor=st.sampled_from([0.25, 0.5, 1.7, 2.5, 4.0]), delay_s=st.floats(0.1, 9.0))
@settings(derandomize=True, deadline=None, max_examples=rounds(2, 4))
def test_a_step_in_the_rate_needs_two_scaling_decisions_at_most_and_none_is_taken_back(
    seed: int, factor: float, delay_s: float
) -> None:
    stream = world(seed, 3, noise=0.05, per_s=2000.0, scaling=utilisation(0.6))
    stream.pool.delay_s = delay_s
    stream.run(8 * PERIOD_S)
    settled = len(stream.told(events.ScaledOut, events.ScaledIn))
    stream.parts["sum"].rows = stream.parts["sum"].rows * factor
    stream.run(16 * PERIOD_S)
    decided = stream.told(events.ScaledOut, events.ScaledIn)[settled:]
    assert len(decided) <= 2
    assert len({type(event) for event in decided}) <= 1


@given(
    seed=seeds,
    executors=st.integers(2, 4),
    moves=st.integers(2, 6),
    planner=st.sampled_from(["flux", "universal_hashing", "clb"]),
)
@settings(derandomize=True, deadline=None, max_examples=rounds(2, 4))
def test_draining_always_ends(seed: int, executors: int, moves: int, planner: str) -> None:
    stream = world(
        seed,
        executors,
        noise=0.1,
        per_s=400.0 * executors,
        planner=planner,
        budget=Budget(max_moves=moves),
    )
    stream.run(PERIOD_S)
    stream.coordinator.drain("e0")
    key_groups = 24 * executors
    stream.run(PERIOD_S * (key_groups / moves + 4))
    assert not len(stream.coordinator.view.components["sum"].assignment.key_groups("e0"))


@pytest.mark.campaign
@given(
    seed=seeds,
    happens=st.lists(
        st.tuples(st.sampled_from(["join", "drain", "shift", "kill"]), st.floats(0.1, 6.0)),
        min_size=1,
        max_size=3,
        unique_by=lambda one: one[0],
    ),
)
@settings(derandomize=True, deadline=None, max_examples=rounds(3, 10))
def test_whatever_overtakes_a_plan_that_is_held_up_the_load_is_even_in_the_end(
    seed: int, happens: list[tuple[str, float]]
) -> None:
    stream = world(seed, 4, noise=0.05, per_s=3000.0)
    part = stream.parts["sum"]
    part.rows[::4] *= 2.5
    stream.warms = False
    while not stream.told(events.RebalancingStarted):
        stream.run(0.2)
    for what, later_s in happens:
        if what == "join":
            stream.pool.add(1)
        elif what == "drain":
            stream.coordinator.drain("e0")
        elif what == "kill":
            stream.kill("e3")
        else:
            part.rows = np.random.default_rng(seed + 1).permutation(part.rows)
        stream.run(later_s)
    stream.warms = True
    stream.run(6 * PERIOD_S)
    component = stream.coordinator.view.components["sum"]
    assert not component.transfers
    names = [what for what, _ in happens]
    stays = set(stream.executors) - stream.coordinator.view.draining
    assert {component.assignment.executor(g) for g in range(96)} == stays
    if "drain" not in names:
        assert stream.distance("sum") <= BOUND + 0.05


@given(seed=seeds, key_groups=st.integers(2, 40), executors=st.integers(2, 6))
@settings(derandomize=True, deadline=None, max_examples=rounds(50, 100))
def test_what_is_judged_worth_it_keeps_to_the_budget_and_never_makes_it_worse(
    seed: int, key_groups: int, executors: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=rng.lognormal(0.0, 1.0, key_groups) / key_groups,
        state_bytes=rng.uniform(0.0, 1e7, key_groups),
        current=rng.integers(0, executors, key_groups).astype(np.int32),
        limits=Limits(),
    )
    planned = rng.integers(0, executors, key_groups).astype(np.int32)
    assume((planned != problem.current).any())
    budget = Budget(max_moves=int(rng.integers(1, 10)), max_bytes=float(rng.uniform(1e6, 1e8)))
    terms = Terms(max_load_distance=BOUND, even_enough=0.02, horizon_s=100.0, seconds_per_byte=1e-8)
    verdict = select_moves(problem, planned, terms, budget)
    assert len(verdict.order) <= (budget.max_moves or 0)
    assert verdict.moved_bytes <= max(
        budget.max_bytes or 0, problem.state_bytes[verdict.order[:1]].sum()
    ) * (1 + 1e-6)
    busiest = metrics.load_index(problem, verdict.assignment).max()
    assert busiest <= metrics.load_index(problem, problem.current).max()
    if len(verdict.order):
        assert verdict.gain_s > verdict.cost_s
        assert not verdict.reason
    else:
        assert verdict.reason


def measured_by_chance(
    rng: np.random.Generator, executors: int, rows: int, first: float
) -> tuple[Problem, np.ndarray]:
    """Loads as counted from so many rows an executor; the first one's is `first` times the mean."""
    key_groups = 16
    mean = np.full(executors * key_groups, rows / key_groups)
    mean[::executors] *= first
    counted = rng.poisson(mean).astype(np.float64)
    problem = Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=counted * 1e-3,
        state_bytes=np.zeros(len(counted)),
        current=(np.arange(len(counted)) % executors).astype(np.int32),
    )
    return problem, counted * 1e-6


def test_the_margin_for_noise_is_wide_enough_for_chance_and_no_wider() -> None:
    """By chance 2,000 looks at ten even executors show nothing; what is uneven shows at once."""
    rng = np.random.default_rng(1)
    looks = [measured_by_chance(rng, 10, 200, 1.0) for _ in range(2000)]
    assert not any(is_uneven(problem, variance, 0.02) for problem, variance in looks)
    # At the bound itself half of all looks are above it, of which the margin leaves few.
    looks = [measured_by_chance(rng, 10, 20_000, 1 + BOUND * 10 / 9) for _ in range(200)]
    assert sum(is_uneven(problem, variance, BOUND) for problem, variance in looks) < 20
    looks = [measured_by_chance(rng, 10, 200, 1.6) for _ in range(200)]
    assert sum(is_uneven(problem, variance, BOUND) for problem, variance in looks) > 180


def test_a_period_ends_with_enough_epochs_and_late_with_any() -> None:
    """Three epochs end a period, not before its time; one epoch does after three periods."""
    quick = world(1, 2, noise=0.0, per_s=200.0)
    quick.run(PERIOD_S - 0.5)
    assert quick.control is not None
    assert not quick.told(events.LoadMeasured)
    quick.run(1.0)
    assert len(quick.told(events.LoadMeasured)) == 1
    slow = world(1, 2, noise=0.0, per_s=200.0)
    slow._epoch()
    assert slow.control is not None
    for at, ended in ((1.5, 0), (2.9, 0), (3.0, 1)):
        slow.now = at * PERIOD_S
        slow.control.step()
        assert len(slow.told(events.LoadMeasured)) == ended
