"""Flows played without Spark behave as on it, and a checkpoint says which of the two it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, drain, rows_of
from tests.unit.test_testing import Circle, Shape, keep_values

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointMismatchError
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def flow_of(stream: Any, out: Any, late: Any) -> gw.Flow:
    flow = gw.Flow("query", num_key_groups=8)
    rows = flow.source("rows", stream, event_time="ts")
    kept = rows.key_by("k").process(
        keep_values,
        name="kept",
        state={
            "number": gw.ValueState(int),
            "shapes": gw.ListState(Shape, classes=[Circle]),
            "both": gw.ValueState(list[Shape], classes=[Circle]),
        },
        output="k string, was string",
    )
    windows = rows.key_by("k").window(gw.tumbling("1 hour"), late=late, name="hourly")
    flow.sink("kept", kept, out)
    flow.sink("hourly", windows.compute(n=gw.count()), gw.sinks.noop())
    return flow


def test_a_checkpoint_that_was_played_is_refused_by_spark_and_values_and_late_rows_are_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(
        spark=spark, directory=tmp_path / "in", columns="k string, extra string, ts timestamp"
    )
    for hour, extra in ((3, "first"), (3, "second"), (0, "late")):
        inbox.put(
            [("a", extra, spark.sql(f"select timestamp'2024-05-01 0{hour}:00:00'").collect()[0][0])]
        )
    out, late = gw.sinks.memory(), gw.sinks.memory()
    drain(flow_of(inbox.stream(), out, late), tmp_path / "ck")
    shapes = [Circle(1), Shape(2)]
    states = [(0, [], []), (True, shapes, [Circle(3)]), (True, shapes * 2, [Circle(3)] * 2)]
    assert sorted(rows_of(out.table())) == sorted(("a", repr(state)) for state in states)
    (left_out,) = late.table().to_pylist()
    assert (left_out["extra"], left_out["reason"]) == ("late", "late")
    assert list(left_out)[:3] == ["k", "extra", "ts"]

    played = flow_of(gw.testing.stream(inbox.columns), gw.sinks.noop(), gw.sinks.noop())
    row = {"k": "a", "extra": "played", "ts": "2024-05-01 04:00"}
    with gw.testing.cluster(played, checkpoint=tmp_path / "ck") as run:
        run.epoch({"rows": [row]})
        assert run.state("kept", state="number").num_rows
    for _ in range(2):
        with pytest.raises(CheckpointMismatchError, match=r"played by gw\.testing"):
            flow_of(inbox.stream(), out, late).start(checkpoint=tmp_path / "ck")
    assert verify(CheckpointStorage.open(tmp_path / "ck")).findings == ()
