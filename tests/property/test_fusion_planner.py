"""Fusion: components share an attribute, form no cycle, and no allowed fusion is left."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.fusion_plans import fuse_greedily
from tests.support.rounds import rounds

from godwit.control.planners.fusion import FusionPlan, FusionProblem, plan_fusion

profile = settings(derandomize=True, deadline=None, max_examples=rounds(30, 150))
Score = Literal["traffic", "attributes", "baseline"]
SCORES: tuple[Score, ...] = get_args(Score)


@st.composite
def fusion_problems(draw: st.DrawFn) -> FusionProblem:
    n = draw(st.integers(1, 9))
    attributes = draw(st.lists(st.frozensets(st.sampled_from("abcd")), min_size=n, max_size=n))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    streams = draw(st.lists(st.sampled_from(pairs), max_size=2 * n)) if pairs else []
    rate = draw(st.lists(st.integers(0, 9), min_size=len(streams), max_size=len(streams)))
    return FusionProblem(
        operators=tuple(f"o{i}" for i in range(n)),
        attributes=tuple(attributes),
        source=np.array([i for i, _ in streams], np.int32),
        target=np.array([j for _, j in streams], np.int32),
        rate=np.array(rate, np.float64),
    )


def has_cycle(problem: FusionProblem, component_of: np.ndarray) -> bool:
    graph: dict[int, set[int]] = {c: set() for c in component_of.tolist()}
    for i, j in zip(problem.source.tolist(), problem.target.tolist(), strict=True):
        if component_of[i] != component_of[j]:
            graph[int(component_of[j])].add(int(component_of[i]))
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError:
        return True
    return False


def check(problem: FusionProblem, plan: FusionPlan) -> None:
    assert set(plan.component_of.tolist()) == set(range(plan.num_components))
    for c in range(plan.num_components):
        members = np.flatnonzero(plan.component_of == c).tolist()
        shared = frozenset.intersection(*(problem.attributes[o] for o in members))
        assert plan.shared[c] == shared
        assert shared or len(members) == 1
    crossing = plan.component_of[problem.source] != plan.component_of[problem.target]
    total = problem.rate.sum()
    expected = problem.rate[crossing].sum() / total if total else 0.0
    assert plan.communication == pytest.approx(expected)


@pytest.mark.parametrize("score", SCORES)
@profile
@given(fusion_problems())
def test_components_share_an_attribute_and_form_no_cycle(
    score: Score, problem: FusionProblem
) -> None:
    plan = plan_fusion(problem, score=score)
    check(problem, plan)
    assert not has_cycle(problem, plan.component_of)
    check(problem, plan_fusion(problem, score=score, acyclic=False))


@profile
@given(fusion_problems())
def test_no_allowed_fusion_with_traffic_is_left(problem: FusionProblem) -> None:
    plan = plan_fusion(problem)
    for i, j, rate in zip(
        problem.source.tolist(), problem.target.tolist(), problem.rate.tolist(), strict=True
    ):
        a, b = plan.component_of[[i, j]].tolist()
        if a == b or rate == 0:
            continue
        merged = np.where(plan.component_of == b, a, plan.component_of)
        assert not plan.shared[a] & plan.shared[b] or has_cycle(problem, merged)


@pytest.mark.parametrize("acyclic", [True, False])
@pytest.mark.parametrize("score", ["traffic", "attributes"])
@profile
@given(problem=fusion_problems())
def test_plan_is_the_one_that_scoring_every_stream_anew_finds(
    problem: FusionProblem, score: Score, acyclic: bool
) -> None:
    plan = plan_fusion(problem, score=score, acyclic=acyclic)
    expected = fuse_greedily(problem, by_traffic=score == "traffic", acyclic=acyclic)
    assert np.unique(expected, return_inverse=True)[1].tolist() == plan.component_of.tolist()
