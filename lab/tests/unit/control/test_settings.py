from __future__ import annotations

import pytest
from tests.support.controls import control_of

from godwit.model.errors import InvalidControlError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"planner": "fusion"}, "does not compute an assignment of key groups"),
        ({"planner": "flux", "options": {"seed": 1}}, "'flux' has no option 'seed'"),
        ({"planner": "oms", "options": {"taus": (0.4,)}}, "taus applies to a single call"),
    ],
)
def test_what_a_planner_cannot_do_for_a_stream_is_refused(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidControlError, match=said):
        control_of(**given)
