"""Bounds and policies are checked where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.migration import Bounds, LossPolicy, Policy
from godwit.model.errors import InvalidPlanError


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_moves": 1.5}, "max_moves of a migration is 1.5. Give at least 1, a whole number"),
        ({"max_moves": "x"}, "max_moves of a migration is 'x', of type str"),
        ({"max_bytes": None}, "max_bytes of a migration is None"),
        ({"max_lag": True}, "max_lag of a migration is True"),
    ],
)
def test_a_bound_that_is_no_whole_number_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidPlanError, match=text):
        Bounds(**given)


def test_a_policy_may_be_named_by_text_and_means_what_it_says() -> None:
    policy = Policy(on_loss="load", on_start="suspend")  # type: ignore[arg-type]
    assert policy.on_loss is LossPolicy.LOAD
    assert policy.on_start is LossPolicy.SUSPEND


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"on_loss": "wait"}, "on_loss is 'wait'. Give one of on_demand, suspend, load"),
        ({"on_start": None}, "on_start is None"),
        ({"recovery": {"max_moves": 3}}, "recovery is {'max_moves': 3}. Give gw.migration.Bounds"),
        ({"patience": "8"}, "patience is '8', of type str"),
    ],
)
def test_a_policy_that_does_not_exist_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidPlanError, match=text):
        Policy(**given)
