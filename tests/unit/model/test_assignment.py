"""Assignments refuse key groups and executors that they do not have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda places: places.executor(4), "Key group 4 does not exist"),
        (lambda places: places.executor(-1), "numbered 0 to 3"),
        (lambda places: places.key_groups("3"), "no executor '3'"),
        (lambda places: places.moved({4: "1"}), "Key group 4 does not exist"),
        (lambda places: places.moved({0: "3"}), "executor '3', which does not exist"),
        (lambda places: places.on(["1"], [1]), "not total"),
        (
            lambda places: places.moves_to(gw.migration.even_assignment(3, ["1"], [1])),
            "Key group 3 does not exist",
        ),
    ],
)
def test_what_an_assignment_does_not_have_is_an_invalid_plan(
    call: Callable[[gw.migration.Assignment], Any], message: str
) -> None:
    with pytest.raises(InvalidPlanError, match=re.escape(message)):
        call(gw.migration.even_assignment(4, ["1", "2"], [1, 1]))


@pytest.mark.parametrize(
    ("executors", "lanes"), [([], []), (["1"], []), (["1"], [0]), (["1", "1"], [1, 1])]
)
def test_executors_without_lanes_get_no_key_groups(executors: list[str], lanes: list[int]) -> None:
    with pytest.raises(InvalidPlanError):
        gw.migration.even_assignment(4, executors, lanes)
