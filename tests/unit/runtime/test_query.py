"""Names that a query does not have, and those that it had."""

from __future__ import annotations

import pytest

import godwit as gw
from godwit.runtime.query import Query


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("assignments", r"no 'assignments'\. Use query\.placement\.assignments\."),
        ("problem", r"Use query\.placement\.problem\."),
        ("preview", r"Use query\.placement\.preview\."),
        ("carry_out", r"Use query\.placement\.carry_out\."),
        ("regroup", r"Use query\.components\.regroup\."),
        ("plan_regrouping", r"Use query\.components\.plan_regrouping\."),
        ("placment", r"Did you mean 'placement'\?"),
        ("lastProgres", r"Did you mean 'lastProgress'"),
    ],
)
def test_a_name_that_a_query_does_not_have_says_which_one_it_is(name: str, told: str) -> None:
    query = object.__new__(Query)
    with pytest.raises(AttributeError, match=told) as raised:
        getattr(query, name)
    assert isinstance(raised.value, gw.errors.GodwitError)
    assert not hasattr(query, "_nothing")
