"""Triggers: what says when epochs run, and what to say of what does not."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.cluster.spark.query.triggers import checked_trigger
from godwit.model.errors import InvalidFlowError


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
