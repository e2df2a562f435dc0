"""On Spark, rows for which a function or a map fails reach their sink once, and others go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.engine import cluster as cluster_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = [{"k": f"k{i % 7}", "v": i} for i in range(200)]


def no_sevens(rows: pa.Table) -> pa.Table:
    if any(v % 100 == 7 for v in rows["v"].to_pylist()):
        raise ValueError("a seven")
    return rows


def numbers(key: tuple[str], rows: Any, seen: list[int]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        seen.append(row.v)
        if row.v % 100 == 13:
            raise ValueError("thirteen")
        yield (*key, row.v)


@pytest.mark.parametrize("here", [True, False], ids=["by the driver", "by tasks"])
def test_rows_of_failed_calls_are_diverted_once_over_restarts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, here: bool
) -> None:
    if not here:
        monkeypatch.setattr(cluster_port, "ROWS_HERE", -1)
    sinks = {name: gw.sinks.memory() for name in ("out", "failed", "map_failed")}

    def run(rows: list[dict[str, Any]]) -> None:
        flow = gw.Flow("diverted", num_key_groups=8)
        source = gw.sources.memory("k string, v long", rows, max_rows_per_epoch=30)
        mapped = flow.source("rows", source).map(no_sevens)
        out = mapped.key_by("k").process(
            numbers, state=list[int], output="k string, v long", name="numbers"
        )
        flow.sink("out", out, sinks["out"])
        flow.divert_errors("failed", out, sinks["failed"])
        flow.divert_errors("map_failed", mapped, sinks["map_failed"])
        query = flow.start(
            checkpoint=tmp_path / "ck", session=spark, trigger={"availableNow": True}
        )
        query.awaitTermination()

    run(ROWS[:100])
    run(ROWS)
    emitted = sinks["out"].table()["v"].to_pylist()
    failed, in_map = (
        [json.loads(row)["v"] for row in sinks[name].table()["row"].to_pylist()]
        for name in ("failed", "map_failed")
    )
    assert sorted(in_map) == [7, 107]
    assert {13, 113} <= set(failed)
    assert {v % 7 for v in failed} == {13 % 7, 113 % 7}
    assert sorted(emitted + failed + in_map) == list(range(200))
    state = gw.read_state(spark, tmp_path / "ck", "numbers").collect()
    of_key = {row["k"]: json.loads(row["state"]) for row in state}
    assert of_key == {
        f"k{k}": [v for v in range(200) if v % 7 == k and v not in {*failed, *in_map}]
        for k in range(7)
    }
