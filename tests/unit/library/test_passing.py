"""Rows that no operator works on reach sinks exactly once, through lanes that write for them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import godwit as gw
from godwit.library.passing import PassRows
from godwit.plan.explain import explain

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = "k string, v int, tags array<string>"


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    """Rows numbered by `v`."""
    return [
        {"k": f"k{v % 5}", "v": v, "tags": ["x"] * (v % 3)} for v in range(first, first + count)
    ]


def archive(sink: Any, *, beside: bool = True) -> gw.Flow:
    """A flow that archives rows, and perhaps counts them."""
    flow = gw.Flow("archived", num_key_groups=16)
    rows = flow.source("rows", gw.testing.stream(COLUMNS))
    flow.sink("raw", rows, sink)
    if beside:
        flow.sink("counts", rows.key_by("k").compute(n=gw.count()), gw.sinks.noop())
    return flow


@pytest.mark.parametrize("beside", [True, False])
def test_rows_are_archived_once_whatever_is_lost_moved_or_restarted(
    tmp_path: Path, *, beside: bool
) -> None:
    def run() -> gw.testing.Run:
        flow = archive(gw.sinks.parquet(tmp_path / "out"), beside=beside)
        return gw.testing.cluster(flow, executors=2, checkpoint=tmp_path / "ck")

    with run() as played:
        played.epoch({"rows": rows_of(0, 200)})
        played.migrate("2", component="raw_rows")
        played.epoch({"rows": rows_of(200, 200)})
        played.add("3")
        played.kill("2")
        played.epoch({"rows": rows_of(400, 200)})
        assert played.flow.operator("raw_rows").kind == "rows"
    with run() as played:
        played.epoch({"rows": rows_of(600, 200)})
        delivered = played.rows("raw").sort_by("v").to_pylist()
    assert delivered == rows_of(600, 200)


def test_a_flow_may_have_no_keyed_operator_at_all() -> None:
    source = gw.sources.memory(COLUMNS)
    source.add(rows_of(0, 100))
    flow = gw.Flow("etl", num_key_groups=16)
    rows = flow.source("rows", source)
    plain = rows.map(lambda table: table.drop_columns("tags"))
    flow.sink("raw", plain, gw.sinks.memory())
    run = gw.testing.run(flow, executors=3)
    assert run.rows("raw").sort_by("v")["v"].to_pylist() == list(range(100))
    assert "pass rows to a sink" in explain(flow.compiled())
    assert "each row is by itself" in explain(flow.compiled())


def test_unions_reach_a_sink_each_row_once() -> None:
    flow = gw.Flow("united")
    one = flow.source("one", gw.testing.stream(COLUMNS))
    other = flow.source("other", gw.testing.stream(COLUMNS))
    counted = one.key_by("k").compute(n=gw.count())
    flow.sink("all", one.union(other), gw.sinks.noop())
    flow.sink("counts", counted.union(other.key_by("k").compute(n=gw.count())), gw.sinks.noop())
    run = gw.testing.run(flow, {"one": rows_of(0, 30), "other": rows_of(30, 30)}, executors=2)
    assert run.rows("all").sort_by("v").to_pylist() == rows_of(0, 60)
    assert sorted(row["n"] for row in run.rows("counts").to_pylist()) == [6] * 10


def test_rows_that_a_target_replaces_stay_in_order() -> None:
    columns = pa.schema({"id": pa.int32(), "v": pa.int32()})
    rng = random.Random(5)
    ids = [rng.randrange(20) for _ in range(500)]
    rows = pa.record_batch([pa.array(ids, pa.int32()), pa.array(range(500), pa.int32())], columns)
    operator = PassRows(name="out_rows", columns=columns, by=("id",))
    placed = operator.unify_columns(rows, 0)
    assert placed.schema.names[1:] == ["id", "v"]
    place_of: dict[int, int] = {}
    for place, of in zip(placed.column(0).to_pylist(), ids, strict=True):
        assert place_of.setdefault(of, place) == place
    upserts = gw.sinks.postgres("host=db", "users", mode="upsert", keys="id")
    flow = gw.Flow("mirror")
    flow.sink("out", flow.source("rows", gw.testing.stream(columns)), upserts)
    (node,) = flow.operators
    assert node.row_keys == ("id",)  # type: ignore[union-attr]


def test_rows_go_to_the_same_place_however_a_sender_cuts_them() -> None:
    columns = pa.schema({"v": pa.int64(), "x": pa.float64(), "tags": pa.list_(pa.string())})
    values = [None, 0.0, -0.0, float("nan"), 1.5]
    rows = pa.record_batch(
        [
            pa.array(range(100), pa.int64()),
            pa.array([values[i % 5] for i in range(100)]),
            pa.array([["a"], None] * 50, pa.list_(pa.string())),
        ],
        schema=columns,
    )
    operator = PassRows(name="o", columns=columns)
    whole = operator.unify_columns(rows, 0).column(0)
    parts = [operator.unify_columns(rows.slice(i, 7), 0).column(0) for i in range(0, 100, 7)]
    assert pa.concat_arrays(parts).equals(whole)
    assert len(np.unique(whole.to_numpy())) > 50


def test_rows_that_cannot_be_read_go_to_their_sink(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"v": 1}\n{"v": "x"}\n{"v": 3}\n')
    bad = gw.sinks.memory()
    source = gw.sources.json(tmp_path / "in", schema="v int", on_bad="divert", rejects=bad)
    flow = gw.Flow("etl")
    flow.sink("raw", flow.source("rows", source), gw.sinks.memory())
    run = gw.testing.run(flow)
    assert sorted(run.rows("raw")["v"].to_pylist()) == [1, 3]
    assert run.rows("rows_unreadable").num_rows == 1


def test_sinks_of_raw_rows_come_and_go_beside_state_that_stays(tmp_path: Path) -> None:
    def run(*names: str) -> gw.testing.Run:
        flow = gw.Flow("archived")
        rows = flow.source("rows", gw.testing.stream(COLUMNS))
        flow.sink("counts", rows.key_by("k").compute(n=gw.count(), name="c"), gw.sinks.noop())
        for name in names:
            flow.sink(name, rows, gw.sinks.noop())
        return gw.testing.run(flow, {"rows": rows_of(0, 10)}, checkpoint=tmp_path / "ck")

    run()
    run("raw")
    assert run("other").rows("other").num_rows == 10
    run("other", "raw")
    assert run().current("counts")["n"].to_pylist() == [10] * 5
