"""Plans of consolidation against every plan there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.consolidation import cheapest_keys, keys_of

from godwit.library.windows.consolidation import (
    ConsolidationPlan,
    ConsolidationProblem,
    plan_consolidation,
)


@st.composite
def problems(draw: st.DrawFn, panes: int, windows: int) -> ConsolidationProblem:
    count = draw(st.integers(2, panes))
    keys = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    spans = st.tuples(st.integers(0, count - 1), st.integers(1, count)).map(
        lambda drawn: (drawn[0], max(drawn[1], drawn[0] + 1))
    )
    return ConsolidationProblem(
        pane_keys=keys,  # type: ignore[arg-type]  # made an array
        windows=tuple(draw(st.lists(spans, min_size=1, max_size=windows, unique=True))),
        all_keys=draw(st.none() | st.integers(max(keys), sum(keys) + max(keys))),
        overlapping=draw(st.booleans()),
    )


def price_of(problem: ConsolidationProblem, plan: ConsolidationPlan) -> float:
    """Check a plan, and add up what it reads."""
    built: set[tuple[int, int]] = set()
    keys = 0.0
    for step in plan.steps:
        reached = step.window[0]
        for part in step.parts:
            assert part in built or part[1] - part[0] == 1
            keys += (
                keys_of(problem.pane_keys.tolist(), problem.all_keys or 0.0, part)
                if part in built
                else problem.pane_keys[part[0]]
            )
            assert part[0] <= reached < part[1] if problem.overlapping else part[0] == reached
            reached = part[1]
        assert reached == step.window[1]
        assert step.window not in built
        built.add(step.window)
    assert {step.window for step in plan.steps if step.asked} == set(problem.windows)
    return keys


@settings(deadline=None)
@given(problems(panes=5, windows=4))
def test_no_plan_is_cheaper_than_the_one_that_is_found(problem: ConsolidationProblem) -> None:
    plan = plan_consolidation(problem, most_nodes=10_000)
    assert plan.keys == pytest.approx(price_of(problem, plan))
    assert plan.keys == pytest.approx(plan.bound)
    assert plan.keys == pytest.approx(
        cheapest_keys(
            problem.pane_keys.tolist(),
            problem.all_keys or 0.0,
            problem.windows,
            overlapping=problem.overlapping,
        )
    )


@settings(deadline=None)
@given(problems(panes=60, windows=40), st.booleans(), st.integers(0, 5))
def test_plans_of_many_windows_are_whole_and_never_worse_than_panes_alone(
    problem: ConsolidationProblem, auxiliary: bool, most_nodes: int
) -> None:
    plan = plan_consolidation(problem, auxiliary=auxiliary, most_nodes=most_nodes)
    assert plan.keys == pytest.approx(price_of(problem, plan))
    assert plan.bound <= plan.keys <= plan.direct_keys
    direct = sum(problem.pane_keys[slice(*window)].sum() for window in problem.windows)
    assert plan.direct_keys == pytest.approx(direct)
    if not auxiliary:
        assert plan.auxiliary == ()
