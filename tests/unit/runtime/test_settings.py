"""Settings that a flow is started with."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from godwit.control.adaptation import Adaptation
from godwit.engine.settings import Lanes
from godwit.model.errors import InvalidFlowError
from godwit.runtime.settings import (
    Checkpointing,
    Observability,
    Options,
    Sizing,
    checked_trigger,
)
from godwit.spark.flow import Flow


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"checkpoint": ""}, "without a checkpoint"),
        ({"executors": 0}, "executors of start is 0. Give at least 1"),
        ({"executors": "2"}, "executors of start is '2', of type str. Give at least 1, a whole"),
        ({"executors": True}, "executors of start is True"),
        ({"executors": 1.5}, "executors of start is 1.5. Give at least 1, a whole number"),
        ({"policy": "load"}, r"policy of start is of type str. Give gw.migration.Policy"),
        ({"lanes": {}}, r"lanes of start is of type dict. Give gw.Lanes"),
        ({"sizing": 3}, r"sizing of start is of type int. Give gw.Sizing"),
        ({"control": "milp"}, r"control of start is of type str. Give a gw.Control"),
        ({"close_at_end": "no"}, "close_at_end of start is of type str. Give True or False"),
        ({"name": ""}, "name of start is ''. Give the query a name"),
        ({"name": 3}, "name of start is 3"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(wrong: dict[str, object], text: str) -> None:
    given: dict[str, object] = {"checkpoint": "ck", **wrong}
    with pytest.raises(InvalidFlowError, match=text):
        Options(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "wrong", "text"),
    [
        (Checkpointing, {"retain_epochs": 0}, "retain_epochs of checkpointing is 0. Give at least"),
        (Checkpointing, {"access": "all"}, "access of checkpointing is 'all'"),
        (Checkpointing, {"single_driver": "no"}, "is of type str. Give True or False"),
        (Sizing, {"executors_timeout_s": float("nan")}, "executors_timeout_s of sizing is nan"),
        (Sizing, {"assignments": {"t": {0: "1"}}}, r"assignments\['t'\] of sizing is of type dict"),
        (Sizing, {"assignments": [1]}, "assignments of sizing is of type list. Give component"),
        (Observability, {"metrics_host": None}, "metrics_host of observability is of type None"),
        (Observability, {"ui_host": None}, "ui_host of observability is of type None"),
        (
            Adaptation,
            {"fusion": True},
            "fusion of adaptation is of type bool. Give a gw.control.Fusion",
        ),
        (Adaptation, {"splitting": 1}, "is of type int. Give a gw.control.Splitting"),
        (Lanes, {"local_dir": 3}, "local_dir of lanes is of type int. Give a directory"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    kind: Any, wrong: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidFlowError, match=text):
        kind(**wrong)


def test_windows_stay_open_at_the_end_of_the_input_unless_asked_otherwise() -> None:
    assert signature(Flow.start).parameters["close_at_end"].default is False
    assert Options(checkpoint="ck").close_at_end is False


@pytest.mark.parametrize(
    "trigger", [None, {"availableNow": True}, {"once": True}, {"processingTime": "2 seconds"}]
)
def test_a_trigger_of_micro_batches_is_taken_as_it_is(trigger: Any) -> None:
    assert checked_trigger(trigger) == trigger


@pytest.mark.parametrize(
    ("trigger", "told"),
    [
        (
            "1 second",
            r"the text '1 second'\. Say .*trigger=\{\"processingTime\": \"1 second\"\}",
        ),
        ("availableNow", r"trigger=\{\"availableNow\": True\}"),
        (5, r"of type int\. Give \{\"availableNow\": True\} or"),
        ({}, "given 0 triggers: none"),
        ({"availablenow": True}, "no trigger 'availablenow'. Did you mean 'availableNow'?"),
        ({"procesingTime": "1 s"}, "Did you mean 'processingTime'"),
        ({3: "1 s"}, r"no trigger 3\. Triggers are 'availableNow', 'processingTime', 'once'"),
        ({"continuous": "1 second"}, r"continuous processing\. An epoch is a micro-batch: give"),
        ({"availableNow": True, "once": True}, "given 2 triggers: 'availableNow', 'once'"),
        (
            {"availableNow": "yes"},
            r"of start is 'yes'\. Give \{\"availableNow\": True",
        ),
        ({"availableNow": False}, "or leave trigger out"),
        ({"processingTime": 5}, "processingTime of start is 5, of type int"),
    ],
)
def test_other_triggers_are_refused_with_the_one_that_was_meant(trigger: Any, told: str) -> None:
    with pytest.raises(InvalidFlowError, match=told):
        checked_trigger(trigger)
