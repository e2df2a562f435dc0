"""What a flow is started with."""

from __future__ import annotations

import pytest

from godwit.migration.strategy import LossPolicy, Policy
from godwit.model.errors import InvalidFlowError
from godwit.spark.options import Options


def test_rows_may_wait_for_a_lost_executor_while_the_stream_goes_on() -> None:
    assert Options(checkpoint="ck").loss_policy.on_loss is LossPolicy.SUSPEND


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_nothing_waits_in_a_query_that_ends_with_its_input(trigger: dict[str, object]) -> None:
    options = Options(checkpoint="ck", trigger=trigger, policy=Policy(patience=3))
    assert options.loss_policy == Policy(patience=3, on_loss=LossPolicy.LOAD)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"checkpoint": ""}, "without a checkpoint"),
        ({"executors": 0}, "executors of start is 0. Give at least 1"),
        ({"retain_epochs": 0}, "retain_epochs of start is 0"),
        ({"compression": "gzip"}, "compression of start is 'gzip'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(wrong: dict[str, object], text: str) -> None:
    given: dict[str, object] = {"checkpoint": "ck", **wrong}
    with pytest.raises(InvalidFlowError, match=text):
        Options(**given)  # type: ignore[arg-type]
