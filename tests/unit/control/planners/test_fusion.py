from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from godwit.control.planners.fusion import FusionProblem, plan_fusion
from godwit.model.errors import InvalidProblemError


def problem(attributes: str, streams: list[tuple[int, int, float]], **fields: Any) -> FusionProblem:
    """Operators in one word each: ``"ab b c"`` has three, the first with attributes a and b."""
    words = attributes.split()
    return FusionProblem(
        operators=tuple(f"o{i}" for i in range(len(words))),
        attributes=tuple(frozenset(w) if w != "-" else frozenset() for w in words),
        source=np.array([s for s, _, _ in streams], np.int32),
        target=np.array([t for _, t, _ in streams], np.int32),
        rate=np.array([r for _, _, r in streams], np.float64),
        **fields,
    )


def test_busiest_compatible_stream_is_fused_first() -> None:
    asked = problem("ab a b", [(0, 1, 5.0), (0, 2, 9.0)])
    plan = plan_fusion(asked)
    assert plan.component_of.tolist() == [0, 1, 0]
    assert plan.shared == (frozenset("b"), frozenset("a"))
    assert plan.communication == pytest.approx(5 / 14)


def test_score_by_attributes_fuses_what_has_most_in_common_whatever_the_rates() -> None:
    asked = problem("abc ab c", [(0, 1, 1.0), (0, 2, 9.0)])
    plan = plan_fusion(asked, score="attributes")
    assert plan.component_of.tolist() == [0, 0, 1]


def test_attribute_values_weigh_the_score() -> None:
    asked = problem("abc ab c", [(0, 1, 1.0), (0, 2, 9.0)], attribute_values={"c": 5.0})
    assert plan_fusion(asked, score="attributes").component_of.tolist() == [0, 1, 0]


def test_baseline_grows_from_the_first_operator() -> None:
    asked = problem("ab ab b b c", [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0), (3, 4, 9.0)])
    plan = plan_fusion(asked, score="baseline")
    assert plan.component_of.tolist() == [0, 0, 0, 0, 1]


def test_baseline_starts_anew_at_an_operator_that_the_generator_picks() -> None:
    asked = problem("a b b b", [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0)])
    plans = {
        tuple(plan_fusion(asked, score="baseline", rng=rng).component_of.tolist())
        for rng in map(np.random.default_rng, range(20))
    }
    # It only ever grows downstream, so a start in the middle leaves what is upstream behind.
    assert plans == {(0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 1, 2), (0, 1, 2, 3)}


def test_operator_without_partition_attributes_stays_alone() -> None:
    plan = plan_fusion(problem("a - a", [(0, 1, 5.0), (1, 2, 5.0)]))
    assert plan.num_components == 3


def test_components_that_would_wait_for_each_other_are_not_made() -> None:
    streams = [(0, 1, 1.0), (1, 2, 1.0), (0, 2, 9.0)]
    assert plan_fusion(problem("a b a", streams)).num_components == 3
    cyclic = plan_fusion(problem("a b a", streams), acyclic=False)
    assert cyclic.component_of.tolist() == [0, 1, 0]


def test_one_attribute_for_all_makes_one_component_without_communication() -> None:
    plan = plan_fusion(problem("a ab ac", [(0, 1, 1.0), (1, 2, 2.0)]))
    assert plan.num_components == 1
    assert plan.communication == 0.0


@pytest.mark.parametrize(
    ("attributes", "streams", "fields", "names"),
    [
        ("a b", [(0, 2, 1.0)], {}, r"target\[0\] = 2"),
        ("a b", [(0, 1, -1.0)], {}, r"rate\[0\] = -1"),
        ("a b", [(0, 1, 1.0), (1, 0, 1.0)], {}, "a cycle"),
        ("a b", [(0, 0, 1.0)], {}, "a cycle"),
        ("", [], {}, "operators"),
        ("a", [], {"attribute_values": {"a": -1.0}}, "attribute_values"),
    ],
)
def test_wrong_input_is_named(
    attributes: str, streams: list[tuple[int, int, float]], fields: Any, names: str
) -> None:
    with pytest.raises(InvalidProblemError, match=names):
        problem(attributes, streams, **fields)


def test_unknown_score_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="score = 'speed'"):
        plan_fusion(problem("a", []), score="speed")  # type: ignore[arg-type] # the fault tested


def test_components_that_need_partitions_are_not_fused_by_attributes_of_few_values() -> None:
    values = {"a": 3.0, "b": 2.0, "c": 1.0}
    for need, expected in ((0.0, [0, 0, 0]), (1.5, [0, 0, 1]), (4.0, [0, 1, 2]), (2.0, [0, 0, 1])):
        asked = problem(
            "abc bc c", [(0, 1, 9.0), (1, 2, 1.0)], attribute_values=values, min_value=need
        )
        for score in ("attributes", "traffic"):
            found = plan_fusion(asked, score=score)
            assert found.component_of.tolist() == expected
