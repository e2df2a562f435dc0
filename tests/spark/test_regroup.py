"""Operators in a row are fused by what they send each other, while a real stream runs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_chain_is_fused_by_traffic_and_parts_by_hand_and_gives_what_it_gave(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    flow, sink = gw.Flow("chain", num_key_groups=8), gw.sinks.memory()
    stream = flow.source("rows", inbox.stream()).key_by("k")
    first = stream.compute(name="first", v=gw.sum("v"))
    flow.sink("out", first.key_by("k").compute(name="second", v=gw.sum("v"), n=gw.count()), sink)
    query = flow.start(
        checkpoint=tmp_path / "ck",
        adaptation=gw.control.Adaptation(fusion=gw.control.Fusion(epochs=2, confirm=1)),
    )
    try:
        expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for number in range(6):
            if number == 4:
                with pytest.raises(InvalidPlanError, match="no operator 'third'"):
                    query.components.regroup({"x": ["first", "third"]})
                planned = query.components.plan_regrouping({"first": ["first"]})
                assert (planned.levels, planned.exchanges) == ((1, 2), (1, 2))
                assert "no state moves" in planned.to_text()
                assert query.components.regroup({"first": ["first"]}).wait(120).done
            rows = [(f"key {k}", k * number) for k in range(20)]
            inbox.put(rows)
            query.processAllAvailable()
            for key, value in rows:
                held = expected[key]
                held[0] += value
                held[1] += held[0]
                held[2] += 1
            query.explain()
            fused = number in (2, 3)
            levels = "on 1 level" if fused else "on 2 levels"
            assert number == 1 or levels in capsys.readouterr().out
            if fused:
                assert query.status["components"] == {"first+second": ["first", "second"]}
        assert query.status["components"] == {"first": ["first"], "second": ["second"]}
        found = {
            row[0]: list(row[1:])
            for _, table in sorted(sink.epochs.items())
            for row in rows_of(table)
        }
        assert found == {key: held[1:] for key, held in expected.items()}
        told = [type(event).__name__ for event in query.events]
        assert told.count("ComponentsRegrouped") == 2
    finally:
        query.stop()
    again = flow.start(checkpoint=tmp_path / "ck")
    try:
        assert again.status["components"] == {"first": ["first"], "second": ["second"]}
    finally:
        again.stop()
