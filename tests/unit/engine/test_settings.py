"""Settings of lanes' reading and writing of state."""

from __future__ import annotations

import pytest

from godwit.engine.settings import Lanes
from godwit.model.errors import InvalidFlowError


def test_lanes_share_what_a_commit_record_takes_unless_it_is_stated() -> None:
    assert [Lanes().inline_limit(lanes) for lanes in (1, 2, 8, 300)] == [
        131_072,
        65_536,
        16_384,
        16_384,
    ]
    assert Lanes(inline_bytes=0).inline_limit(2) == 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"compression": "gzip"}, "compression of lanes is 'gzip'"),
        ({"snapshot_budget_bytes": 0}, "snapshot_budget_bytes of lanes is 0. Give at least 1"),
        ({"inline_bytes": -1}, "inline_bytes of lanes is -1. Give at least 0"),
        ({"inline_bytes": "x"}, "inline_bytes of lanes is 'x', of type str. Give at least 0"),
        ({"snapshot_growth": -0.5}, "snapshot_growth of lanes is -0.5. Give at least 0"),
        ({"resident": "yes"}, r"resident of lanes is .yes.\. Give .auto., True or False"),
        ({"restore": "lazily"}, r"restore of lanes is 'lazily'\. Give .touched. or .whole."),
        ({"state_memory": "plenty"}, "state_memory of lanes is 'plenty'. Give a number of bytes"),
        ({"state_memory": "9" * 5000}, "state_memory of lanes is '9999"),
        ({"state_memory": 0}, "state_memory of lanes is 0. Give a number of bytes"),
        ({"snapshot_growth": None}, "snapshot_growth of lanes is None, of type NoneType"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidFlowError, match=text):
        Lanes(**wrong)  # type: ignore[arg-type]
