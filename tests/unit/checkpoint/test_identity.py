from __future__ import annotations

from typing import Any

import msgspec
import pytest

from godwit.checkpoint.ownership import identity_differences
from godwit.checkpoint.records import FlowIdentity

STORED = FlowIdentity(name="delays", num_key_groups=256, query_id="q1")

DIFFERENT_QUERY = (
    "it belongs to query q1, not q2, so Spark's progress and this state do not belong together"
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"query_id": ""}, []),
        ({"name": "other"}, ["it belongs to flow 'delays', not 'other'"]),
        ({"num_key_groups": 64}, []),  # a later record may have another number
        (
            {"query_id": "q2"},
            [DIFFERENT_QUERY],
        ),
    ],
)
def test_everything_that_differs_is_said(fields: dict[str, Any], expected: list[str]) -> None:
    assert list(identity_differences(STORED, msgspec.structs.replace(STORED, **fields))) == expected
