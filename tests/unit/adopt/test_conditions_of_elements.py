"""``exists`` and ``forall`` look at no element after the one that decides, as in Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from godwit.adopt.functions import Constant, Form, Function, Lambda
from godwit.library.aggregates.arithmetic import EvaluationError
from godwit.library.aggregates.expressions import Column, Rows

_LONG, _TRUTH = pa.int64(), pa.bool_()


def _evaluated(name: str, lists: Any) -> list[bool | None]:
    """Return what a function gives for the condition ``10 div x > 5``."""
    ten, five = (Constant(pa.scalar(value, _LONG)) for value in (10, 5))
    quotient = Function(name="IntegralDivide", arguments=(ten, Column("x")), dtype=_LONG)
    more = Form(name="GreaterThan", arguments=(quotient, five), dtype=_TRUTH)
    call = Lambda(name=name, argument=Column("a"), body=more, variables=("x",), dtype=_TRUTH)
    result = call.evaluate(Rows(columns={"a": pa.array(lists, pa.list_(_LONG))}))
    values: list[bool | None] = result.to_pylist()
    return values


def test_an_element_after_the_one_that_decides_does_not_fail() -> None:
    lists = [[1, 0], [5, None], None, [], [5, None, 1, 0]]
    assert _evaluated("ArrayExists", lists) == [True, None, None, False, True]
    lists = [[5, 0], [1, None], None, [], [1, None, 5, 0]]
    assert _evaluated("ArrayForAll", lists) == [False, None, None, True, False]


@pytest.mark.parametrize("name", ["ArrayExists", "ArrayForAll"])
def test_an_element_before_it_fails_with_its_row(name: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        _evaluated(name, [[1], [0, 1, 5]])
    assert caught.value.row == 1
