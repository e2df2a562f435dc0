from __future__ import annotations

from typing import Any

import msgspec
import pytest

from godwit.state.identity import differences
from godwit.state.records import FlowIdentity

STORED = FlowIdentity(
    name="delays",
    num_key_groups=256,
    operators={
        "by_plane": {
            "keys": ["tailnum"],
            "aggregates": {"total": {"kind": "sum", "of": "delay"}, "n": {"kind": "count"}},
        }
    },
    query_id="q1",
)


def changed(**fields: Any) -> list[str]:
    return list(differences(STORED, msgspec.structs.replace(STORED, **fields)))


def by_plane(**fields: Any) -> dict[str, dict[str, Any]]:
    return {"by_plane": {**STORED.operators["by_plane"], **fields}}


def test_a_flow_does_not_differ_from_itself() -> None:
    assert changed() == []
    assert changed(operators=by_plane(keys=("tailnum",))) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": "other"}, ["it belongs to flow 'delays', not 'other'"]),
        (
            {"num_key_groups": 64},
            ["it has 256 key groups, not 64 (the number is fixed at first launch)"],
        ),
        ({"operators": {}}, ["operator 'by_plane' was removed"]),
        (
            {"operators": {**STORED.operators, "hourly": {}}},
            ["operator 'hourly' was added"],
        ),
        (
            {"operators": by_plane(keys=["tailnum", "year"])},
            ["operator 'by_plane': keys was ['tailnum'] and is ['tailnum', 'year']"],
        ),
        (
            {
                "operators": by_plane(
                    aggregates={"total": {"kind": "mean", "of": "delay"}, "m": {"kind": "max"}}
                )
            },
            [
                "operator 'by_plane': aggregates.m is new, as {'kind': 'max'}",
                "operator 'by_plane': aggregates.n was {'kind': 'count'} and is gone",
                "operator 'by_plane': aggregates.total.kind was 'sum' and is 'mean'",
            ],
        ),
    ],
)
def test_every_difference_is_said(fields: dict[str, Any], expected: list[str]) -> None:
    assert changed(**fields) == expected


def test_sparks_query_is_compared_only_where_both_are_known() -> None:
    assert changed(query_id="") == []
    (said,) = changed(query_id="q2")
    assert "q1" in said
    assert "q2" in said


def test_several_differences_are_all_said() -> None:
    assert len(changed(name="x", num_key_groups=1, operators={"y": {}})) == 4
