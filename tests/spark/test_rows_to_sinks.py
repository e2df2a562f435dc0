"""Rows that no operator works on reach sinks exactly once, from DataFrames and own sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark's users know
from tests.spark.streams import Inbox, drain

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "k string, v long"


def numbers(path: Path) -> list[int]:
    """Values in a Parquet directory, sorted."""
    files = [pq.read_table(file, partitioning=None) for file in path.rglob("*.parquet")]
    return sorted(v for table in files for v in table["v"].to_pylist())


def test_raw_rows_are_archived_beside_aggregates_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=COLUMNS)
    own = gw.sources.memory(COLUMNS)

    def flow() -> tuple[gw.Flow, Any]:
        made, counts = gw.Flow("archive", num_key_groups=8), gw.sinks.memory()
        rows = made.source("rows", inbox.stream())
        even = rows.map(lambda df: df.where(F.col("v") % 2 == 0))
        others = made.source("others", own)
        made.sink("raw", rows, gw.sinks.parquet(tmp_path / "raw"))
        made.sink("even", even, gw.sinks.parquet(tmp_path / "even"))
        made.sink("both", others.union(others), gw.sinks.parquet(tmp_path / "both"))
        made.sink("counts", rows.key_by().compute(n=gw.count(), total=gw.sum("v * v")), counts)
        return made, counts

    values = range(60)
    for first in (0, 20, 40):
        part = values[first : first + 20]
        inbox.put([(f"k{v % 3}", v) for v in part[:10]], [(f"k{v % 3}", v) for v in part[10:]])
        if not first:
            own.add([("o", v) for v in range(10)])
        made, counts = flow()
        drain(made, tmp_path / "ck")
    assert numbers(tmp_path / "raw") == list(values)
    assert numbers(tmp_path / "even") == list(values[::2])
    assert numbers(tmp_path / "both") == sorted([*range(10), *range(10)])
    assert counts.table().to_pylist() == [{"n": 60, "total": sum(v * v for v in values)}]


def test_a_flow_of_own_sources_needs_no_keyed_operator(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"k": ["a"] * 500, "v": range(500)})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    flow = gw.Flow("etl", num_key_groups=8)
    rows = flow.source("rows", gw.sources.parquet(tmp_path / "in"))
    flow.sink("raw", rows.map(lambda t: t.select(["v"])), gw.sinks.parquet(tmp_path / "out"))
    drain(flow, tmp_path / "ck", session=spark)
    assert numbers(tmp_path / "out") == list(range(500))
