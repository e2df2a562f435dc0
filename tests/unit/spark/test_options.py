"""What a flow is started with."""

from __future__ import annotations

import pytest

from godwit.model.errors import InvalidFlowError
from godwit.spark.options import Options


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"checkpoint": ""}, "without a checkpoint"),
        ({"executors": 0}, "executors of start is 0. Give at least 1"),
        ({"retain_epochs": 0}, "retain_epochs of start is 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(wrong: dict[str, object], text: str) -> None:
    given: dict[str, object] = {"checkpoint": "ck", **wrong}
    with pytest.raises(InvalidFlowError, match=text):
        Options(**given)  # type: ignore[arg-type]
