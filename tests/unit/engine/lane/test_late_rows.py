"""Rows that joins and dropped duplicates leave out go to a sink, if one is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeSink
from tests.support.meeting_flows import TIME, Feed, MeetingRun, S

from godwit.library import aggregates as gw
from godwit.model.errors import InvalidFlowError
from godwit.operators.window_specs import session, tumbling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from godwit.api.streams import Stream
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.window_specs import WindowSpec

LEFT = Feed({"k": pa.string(), "ts": TIME, "v": pa.int64()})
RIGHT = Feed({"k": pa.string(), "at": TIME, "w": pa.int64()}, {"event_time": "at"})


def pairs(streams: Mapping[str, Stream], **options: Any) -> Stream:
    left, right = streams["left"].key_by("k"), streams["right"].key_by("k")
    return left.join(right, between=("0 seconds", "10 seconds"), **options)


def newest(streams: Mapping[str, Stream], **options: Any) -> Stream:
    return streams["left"].key_by("k").join_newest(streams["right"].key_by("k"), **options)


@pytest.mark.parametrize("joined", [pairs, newest])
def test_late_rows_of_either_side_go_to_the_sink(tmp_path: Path, joined: Any) -> None:
    feeds = {"left": LEFT, "right": RIGHT}
    run = MeetingRun(lambda s: joined(s, late=FakeSink()), tmp_path, feeds)
    (late,) = (output for output in run.compiled.outputs if output.left_out)
    operator: Any = run.compiled.operators[0]
    assert late.schema == operator.left_out_schema
    assert late.schema.names == ["k", "side", "moment", "ts", "v", "at", "w", "reason"]
    run.epoch(left=[("a", 100 * S, 1)], right=[("a", 100 * S, 2)])
    run.epoch(left=[("a", 101 * S, 1)])
    run.epoch(left=[("a", 50 * S, 3)], right=[("a", 60 * S, 4), ("a", 102 * S, 5)])
    assert run.late == 2
    assert run.left_out() == [
        ("a", 0, 50 * S, 50 * S, 3, None, None, "late"),
        ("a", 1, 60 * S, None, None, 60 * S, 4, "late"),
    ]


def test_late_rows_that_may_be_duplicates_go_to_the_sink(tmp_path: Path) -> None:
    def once(streams: Mapping[str, Stream]) -> Stream:
        return streams["left"].drop_duplicates("k", within="10 seconds", late=FakeSink())

    run = MeetingRun(once, tmp_path, {"left": LEFT})
    (late,) = (output for output in run.compiled.outputs if output.left_out)
    assert late.schema.names == ["k", "ts", "v", "reason"]
    run.epoch(left=[("a", 100 * S, 1)])
    run.epoch(left=[("a", 101 * S, 1)])
    run.epoch(left=[("a", 50 * S, 3), ("b", 110 * S, 3)])
    assert run.left_out() == [("a", 50 * S, 3, "late")]


@pytest.mark.parametrize(
    ("window", "options"),
    [
        (tumbling("1 second"), {}),
        (tumbling("1 second"), {"consolidate": "apart"}),
        (tumbling("1 second"), {"output": "update"}),
        (session("1 second"), {}),
    ],
)
@pytest.mark.parametrize("aggregate", [gw.count(), gw.sum("v")])
def test_late_rows_of_windows_have_all_columns(
    tmp_path: Path, window: WindowSpec, options: dict[str, Any], aggregate: Aggregate
) -> None:
    def counted(streams: Mapping[str, Stream]) -> Stream:
        keyed = streams["left"].key_by("k")
        return keyed.window(window, late=FakeSink(), **options).compute(n=aggregate)

    feed = Feed({"v": pa.int64(), "k": pa.string(), "tag": pa.list_(pa.string()), "ts": TIME})
    run = MeetingRun(counted, tmp_path, {"left": feed})
    (late,) = (output for output in run.compiled.outputs if output.left_out)
    assert late.schema.names == ["k", "v", "tag", "ts", "reason"]
    run.epoch(left=[(1, "a", ["x"], 100 * S)])
    run.epoch(left=[(2, "a", ["x"], 101 * S)])
    run.epoch(left=[(3, "a", ["y", None], 50 * S), (4, "b", None, 110 * S)])
    assert run.left_out() == [("a", 3, ["y", None], 50 * S, "late")]


def test_a_late_sink_that_cannot_be_is_refused(tmp_path: Path) -> None:
    feeds = {"left": LEFT, "right": RIGHT}
    with pytest.raises(InvalidFlowError, match="for late=, which is not a sink"):
        MeetingRun(lambda s: pairs(s, late="late/"), tmp_path, feeds)
    with pytest.raises(InvalidFlowError, match="no row is late"):
        MeetingRun(
            lambda s: s["left"].drop_duplicates("k", within="forever", late=FakeSink()),
            tmp_path,
            {"left": LEFT},
        )
    sided = Feed({"k": pa.string(), "ts": TIME, "side": pa.string()})
    with pytest.raises(InvalidFlowError, match="'side'"):
        MeetingRun(lambda s: pairs(s, late=FakeSink()), tmp_path, {"left": sided, "right": RIGHT})
