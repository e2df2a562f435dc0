"""What a flow is started with."""

from __future__ import annotations

from inspect import signature

import pytest

from godwit.cluster.spark.query.flow import Flow
from godwit.cluster.spark.query.options import Options
from godwit.model.errors import InvalidFlowError


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"checkpoint": ""}, "without a checkpoint"),
        ({"executors": 0}, "executors of start is 0. Give at least 1"),
        ({"retain_epochs": 0}, "retain_epochs of start is 0"),
        ({"executors": "2"}, "executors of start is '2', of type str. Give at least 1, a whole"),
        ({"executors": True}, "executors of start is True"),
        ({"executors": 1.5}, "executors of start is 1.5. Give at least 1, a whole number"),
        ({"executors_timeout_s": float("nan")}, "executors_timeout_s of start is nan"),
        ({"policy": "load"}, r"policy of start is of type str. Give gw.Policy"),
        ({"single_driver": "no"}, "single_driver of start is of type str. Give True or False"),
        ({"assignments": {"t": {0: "1"}}}, r"assignments\['t'\] of start is of type dict"),
        ({"assignments": [1]}, "assignments of start is of type list. Give component"),
        ({"close_at_end": "no"}, "close_at_end of start is of type str. Give True or False"),
        ({"metrics_host": None}, "metrics_host of start is of type NoneType. Give an address"),
        ({"name": ""}, "name of start is ''. Give the query a name"),
        ({"name": 3}, "name of start is 3"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(wrong: dict[str, object], text: str) -> None:
    given: dict[str, object] = {"checkpoint": "ck", **wrong}
    with pytest.raises(InvalidFlowError, match=text):
        Options(**given)  # type: ignore[arg-type]


def test_windows_stay_open_at_the_end_of_the_input_unless_asked_otherwise() -> None:
    assert signature(Flow.start).parameters["close_at_end"].default is False
    assert Options(checkpoint="ck").close_at_end is False
