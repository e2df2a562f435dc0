"""State as text: whatever was written can be shown, without its classes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from godwit.values.codec import make_codec
from godwit.values.values import state_as_json


class Side(enum.Enum):
    BUY = "buy"


@dataclasses.dataclass(frozen=True)
class Leg:
    price: Decimal = Decimal("1.10")
    side: Side = Side.BUY


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
        ({("a", 1): {"x"}, 2: b"\x00\xff"}, {"('a', 1)": ["x"], "2": "00ff"}),
        ({"leg": Leg(), "when": dt.date(2024, 1, 2)}, None),
        ({"legs": {Leg()}, "huge": 2**80, "nan": math.inf}, None),
    ],
)
def test_state_is_shown_as_json(state: dict[Any, Any], shown: Any) -> None:
    codec = make_codec("o", "msgpack", dict, [Leg, Side])
    text = state_as_json(codec.encode([state])[0])
    assert json.loads(text) == (shown or json.loads(text))
    if "leg" in state:
        assert json.loads(text) == {"leg": {"price": "1.10", "side": "buy"}, "when": "2024-01-02"}
