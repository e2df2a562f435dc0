"""Drawn queries are compared without an order only where Spark leaves it open."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import Row
from tests.adopted.any_order import assert_possible, without_last, without_order
from tests.adopted.job_grammar import draw_job

_EVERY = {3: [("a", 5, [Row(x=1), Row(x=None), Row(x=2)]), ("b", 1, [Row(x=3)])]}


@pytest.mark.parametrize("result", [1, None, 2, [2, 1], [1, 2]])
def test_a_result_may_come_of_any_order_of_the_values(result: object) -> None:
    assert_possible({3: [("a", 5, result), ("b", 1, 3)]}, _EVERY)


@pytest.mark.parametrize(
    "row", [("a", 5, 3), ("a", 4, 1), ("b", 1, 1), ("a", 5, [1]), ("a", 5, [1, 2, 2]), ("c", 5, 1)]
)
def test_a_result_of_other_values_differs(row: tuple[object, ...]) -> None:
    with pytest.raises(AssertionError, match="is made of no group"):
        assert_possible({3: [row]}, _EVERY)


def test_a_group_has_one_result() -> None:
    with pytest.raises(AssertionError, match="is made of no group"):
        assert_possible({3: [("a", 5, 1), ("a", 5, 2)]}, _EVERY)


def test_the_last_column_is_a_multiset_or_left_out() -> None:
    assert without_order({0: [("a", [2, 1, 2])]}) == without_order({0: [("a", [2, 2, 1])]})
    assert without_order({0: [("a", [2, 1, 2])]}) != without_order({0: [("a", [2, 1, 1])]})
    assert without_last({0: [("b", 1), ("a", 2)]}) == {0: [("a",), ("b",)]}


def test_only_chains_whose_last_aggregate_depends_on_an_order_have_the_rule() -> None:
    for seed in range(120):
        text, case = draw_job(random.Random(seed))
        is_open = "AS l FROM" in text and " max(x" not in text.partition(" AS l FROM")[0]
        assert (case.every_value is not None) == is_open, text
