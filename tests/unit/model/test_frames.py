"""Errors that leave a user's call show the user's lines first, and few of ours."""

from __future__ import annotations

import datetime as dt
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.operators.declared import ListState, MapState, ValueState
from godwit.operators.timers import FiredTimer, Timers
from godwit.plan.maps import map_dataframe


@user_call
def begin(name: str, *, keys: int = 1, deep: int = 3) -> str:
    if deep:
        return begin(name, keys=keys, deep=deep - 1)
    if keys < 1:
        raise InvalidFlowError("There are no keys.")
    if not name:
        raise TypeError("a mistake of ours")
    return name


def broken(_: Any) -> Any:
    raise KeyError("gone")


def files(error: BaseException) -> list[str]:
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


def test_an_error_of_ours_leaves_with_one_frame_whatever_its_depth() -> None:
    with pytest.raises(InvalidFlowError, match="There are no keys") as caught:
        begin("a", keys=0)
    assert files(caught.value) == [Path(__file__).name, "frames.py"]


def test_wrong_arguments_are_answered_with_the_right_ones() -> None:
    call: Any = begin
    with pytest.raises(InvalidFlowError, match=r"begin has no argument 'key'. Did you mean 'keys'"):
        call("a", key=1)
    with pytest.raises(InvalidFlowError, match=r"begin\(\) missing 1 .*'name'\. It takes 'name', "):
        call()
    by_position = r"begin\(\) takes 1 argument by position, and 2 were given.*begin\(name, keys="
    with pytest.raises(InvalidFlowError, match=by_position):
        call("a", 1)


@pytest.mark.parametrize(
    ("value", "former", "present"),
    [
        (ValueState(int), "of", "value_type"),
        (ListState(int), "of", "element_type"),
        (MapState(str, int), "by", "key_type"),
        (MapState(str, int), "of", "value_type"),
        (FiredTimer(dt.datetime(2024, 5, 1, tzinfo=dt.UTC), Timers([], 0)), "at", "time"),
    ],
)
def test_a_former_name_of_an_attribute_is_answered_with_the_present_one(
    value: object, former: str, present: str
) -> None:
    assert getattr(value, present) is not None
    with pytest.raises(AttributeError, match=f"has no '{former}'. Use {present}. It has "):
        getattr(value, former)
    assert getattr(pickle.loads(pickle.dumps(value)), present) == getattr(value, present)


def test_a_former_name_of_an_argument_is_answered_with_the_present_one() -> None:
    declare: Any = MapState
    with pytest.raises(InvalidFlowError, match=r"MapState has no argument 'by'. Use key_type\. "):
        declare(by=str, of=int)


def test_a_type_error_from_inside_stays_what_it_is() -> None:
    with pytest.raises(TypeError, match="a mistake of ours"):
        begin("")


def test_what_caused_an_error_begins_with_the_users_function(flights: Any) -> None:
    apply = user_call(map_dataframe)
    with pytest.raises(InvalidFlowError) as caught:
        apply("flights", [broken], flights)
    assert isinstance(caught.value.__cause__, KeyError)
    assert files(caught.value.__cause__) == [Path(__file__).name]
