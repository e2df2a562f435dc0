"""Facts about consolidation plans: the papers' numbers, auxiliary windows, bounds, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from godwit.library.windows.consolidation import ConsolidationProblem, plan_consolidation
from godwit.model.errors import InvalidProblemError


def tumbling(minutes: int, *lengths: int, **values: Any) -> ConsolidationProblem:
    """Windows of some lengths within so many minutes, from partials of a minute."""
    return ConsolidationProblem(
        pane_keys=np.ones(minutes),
        windows=tuple((s, s + n) for n in lengths for s in range(0, minutes, n)),
        **values,
    )


@pytest.mark.parametrize("auxiliary", [False, True])
def test_the_papers_example_merges_86_partials_and_not_240(auxiliary: bool) -> None:
    plan = plan_consolidation(tumbling(60, 5, 10, 15, 20), auxiliary=auxiliary)
    assert (plan.keys, plan.direct_keys, plan.auxiliary) == (86, 240, ())
    parts = {step.window: step.parts for step in plan.steps}
    assert parts[0, 5] == tuple((m, m + 1) for m in range(5))
    assert parts[0, 10] == ((0, 5), (5, 10))
    assert len(parts[15, 30]) == len(parts[40, 60]) == 2


def test_windows_that_nobody_asked_for_make_others_cheaper() -> None:
    problem = tumbling(120, 20, 30, 40)
    asked_only = plan_consolidation(problem, auxiliary=False)
    plan = plan_consolidation(problem)
    assert (plan.keys, asked_only.keys, plan.direct_keys) == (138, 170, 360)
    assert plan.auxiliary == ((20, 30), (30, 40), (80, 90), (90, 100))
    assert plan.bound == plan.keys  # every ten minutes, as one window for all of them: 146


def test_the_part_with_fewer_keys_is_taken() -> None:
    """A window of four panes can begin or end with either of two others."""
    windows = ((0, 3), (1, 4), (0, 4))
    early = ConsolidationProblem(pane_keys=np.array([1, 1, 1, 9]), windows=windows, all_keys=12)
    late = ConsolidationProblem(pane_keys=np.array([9, 1, 1, 1]), windows=windows, all_keys=12)
    for problem, whole in ((early, ((0, 1), (1, 4))), (late, ((0, 3), (3, 4)))):
        plan = plan_consolidation(problem, auxiliary=False)
        assert {s.window: s.parts for s in plan.steps}[0, 4] == whole


def test_parts_overlap_only_where_a_row_may_be_seen_twice() -> None:
    windows = (*((s, s + 8) for s in range(4)), (0, 11))
    plans = [
        plan_consolidation(
            ConsolidationProblem(pane_keys=np.ones(11), windows=windows, overlapping=overlapping),
            auxiliary=False,
        )
        for overlapping in (False, True)
    ]
    parts = [{s.window: s.parts for s in plan.steps}[0, 11] for plan in plans]
    assert parts[0][-3:] == ((8, 9), (9, 10), (10, 11))
    assert parts[1] == ((0, 8), (3, 11))


def test_hundreds_of_long_windows_cost_a_few_parts_each() -> None:
    count, length = 400, 60
    windows = tuple((s, s + length) for s in range(count))
    panes = count + length
    plan = plan_consolidation(ConsolidationProblem(pane_keys=np.ones(panes), windows=windows))
    assert plan.direct_keys == count * length
    assert plan.keys <= 2 * panes + 4 * count


def test_a_plan_is_the_same_every_time() -> None:
    problem = ConsolidationProblem(
        pane_keys=np.arange(30.0) % 7 + 1,
        windows=tuple((s, s + 9) for s in range(0, 20, 2)),
        all_keys=40,
    )
    assert plan_consolidation(problem) == plan_consolidation(problem)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"windows": ()}, "windows"),
        ({"windows": ((0, 1), (0, 1))}, "windows"),
        ({"windows": ((1, 1),)}, "windows"),
        ({"windows": ((0, 4),)}, "windows"),
        ({"pane_keys": np.array([1, -1, 1])}, "pane_keys[1]"),
        ({"all_keys": 0.5}, "all_keys"),
    ],
)
def test_what_is_no_problem_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidProblemError) as refused:
        ConsolidationProblem(**{"pane_keys": np.ones(3), "windows": ((0, 2),), **values})
    assert refused.value.context["field"] == field
