"""Every block of the guide to sources runs, and needs no Spark."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.guides import PAGES, blocks_of

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ORDERS = {"symbol": ["A", "B", "A"], "price": [9.5, 1.0, 2.5], "size": [10, 200, 300]}


def test_every_block_of_the_guide_to_sources_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in/orders").mkdir(parents=True)
    pq.write_table(pa.table(ORDERS), "in/orders/a.parquet")
    module = ModuleType("page_of_sources")  # so that copies of its classes find them
    monkeypatch.setitem(sys.modules, module.__name__, module)
    page = module.__dict__
    first, *others = [block for block in blocks_of("sources") if not block.reason]
    exec(compile(first.code, PAGES["sources"].name, "exec"), page)  # the page's own code
    totals = {
        row["symbol"]: row for row in gw.testing.run(page["flow"], {}).rows("totals").to_pylist()
    }
    assert totals["A"] == {"symbol": "A", "total": 12.0, "orders": 2}
    flow = page["flow"]
    for block in others:
        exec(compile(block.code, PAGES["sources"].name, "exec"), page)
    for name in ("large", "by_value"):
        results = page[name].key_by("symbol").compute(name=name, rows=gw.count())
        flow.sink(name, results, gw.sinks.noop())
    played = gw.testing.run(flow, {})
    assert sorted(played.rows("large")["symbol"].to_pylist()) == ["A", "B"]
    assert played.rows("by_value")["rows"].to_pylist() == [2, 1]


def test_maps_with_pandas_give_the_values_of_the_guide() -> None:
    page: dict[str, Any] = {"pa": pa}
    (block,) = [block for block in blocks_of("sources") if "def with_value(" in block.code]
    exec(block.code.partition("by_value =")[0], page)
    assert page["with_value"](pa.table(ORDERS))["value"].to_pylist() == [95.0, 200.0, 750.0]


def test_deletes_of_the_guide_to_kafka_are_told_by_their_keys() -> None:
    page: dict[str, Any] = {"gw": gw}
    (block,) = [block for block in blocks_of("kafka") if "def with_deletes(" in block.code]
    exec(block.code, page)
    rows = {"plane": ["N1", None], "seats": [7, None], "key": [b"N1", b"N2"]}
    assert page["with_deletes"](pa.table(rows)).to_pylist() == [
        {"plane": "N1", "seats": 7, "key": b"N1", "deleted": False},
        {"plane": "N2", "seats": None, "key": b"N2", "deleted": True},
    ]
    assert page["fleet"].compiled()
