"""Columns of types that a target does not have are refused by name, before anything is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import EpochRows, context

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NESTED = [
    pa.struct([]),
    pa.struct([("inner", pa.struct([]))]),
    pa.list_(pa.struct([])),
    pa.map_(pa.string(), pa.struct([])),
]
INTERVAL = pa.month_day_nano_interval()
NO_FILE = [INTERVAL, pa.list_(INTERVAL), pa.decimal128(5, -2), pa.decimal128(3, 5), *NESTED]
TWICE = pa.struct([("a", pa.int64()), ("a", pa.int64())])
REFUSED = {
    "parquet": NO_FILE,
    "delta": [*NO_FILE, pa.duration("us"), pa.time64("us"), pa.decimal256(50, 3), TWICE],
    "iceberg": [
        *NO_FILE,
        *[pa.null(), pa.list_(pa.null()), pa.duration("us"), pa.time64("ns")],
        *[pa.decimal256(50, 3), pa.list_view(pa.int64()), TWICE],
    ],
    "postgres": [
        *[INTERVAL, pa.list_(INTERVAL), pa.struct([("a", INTERVAL)]), TWICE],
        *[pa.sparse_union([pa.field("a", pa.int64())]), pa.uuid()],
    ],
}
TAKEN: list[tuple[pa.DataType, Any]] = [
    (pa.list_(pa.int64(), 2), [1, None]),
    (pa.list_(pa.list_(pa.float32(), 2)), [[1.0, 2.0], None]),
    (pa.struct([("pair", pa.list_(pa.string(), 2))]), {"pair": ["a", "b"]}),
    (pa.map_(pa.string(), pa.list_(pa.int64(), 1)), [("a", [1])]),
]


def sink_of_kind(kind: str, path: Path) -> Any:
    catalog = {"type": "sql", "uri": f"sqlite:///{path}/c.db", "warehouse": f"file://{path}/w"}
    sinks: dict[str, Callable[[], Any]] = {
        "parquet": lambda: gw.sinks.parquet(path / "out"),
        "delta": lambda: gw.sinks.delta(path / "out"),
        "iceberg": lambda: gw.sinks.iceberg("db.t", catalog=catalog),
        "postgres": lambda: gw.sinks.postgres(f"host={path}", "t"),  # where no server is
    }
    return sinks[kind]()


@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, dtype) for kind, types in REFUSED.items() for dtype in types]
)
@pytest.mark.parametrize("step", ["check_columns", "check", "open"])
def test_a_type_that_the_target_does_not_have(
    tmp_path: Path, kind: str, dtype: pa.DataType, step: str
) -> None:
    rows = context(schema=pa.schema([("k", pa.string()), ("c", dtype)]), keys=("k",))
    with pytest.raises(SinkError) as refused:
        getattr(sink_of_kind(kind, tmp_path), step)(rows)
    assert f"column 'c' of type {dtype} cannot be a column of" in str(refused.value)
    assert "in a map before the sink" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_flow_is_refused_by_its_explanation(tmp_path: Path) -> None:
    flow = gw.Flow("f", num_key_groups=2)
    rows = flow.source("s", gw.sources.memory("k string, gap interval day to second"))
    flow.sink("out", rows, sink_of_kind("iceberg", tmp_path))
    with pytest.raises(SinkError, match=r"column 'gap' of type duration\[us\] cannot be"):
        flow.explain()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize(("dtype", "value"), TAKEN)
def test_lists_of_a_fixed_size(tmp_path: Path, kind: str, dtype: pa.DataType, value: Any) -> None:
    schema = pa.schema([("k", pa.string()), ("c", dtype)])
    table = pa.table({"k": ["a", "b"], "c": pa.array([value, None], dtype)}, schema=schema)
    sink = sink_of_kind(kind, tmp_path)
    sink.open(context(schema=schema, keys=("k",)))
    for epoch in range(2):
        sink.deliver(EpochRows(epoch=epoch, table=table))
    sink.close()
    assert _read(kind, tmp_path) == [("a", value)] * 2 + [("b", None)] * 2
    again = sink_of_kind(kind, tmp_path)
    again.open(context(schema=schema, keys=("k",)))
    again.close()


def _read(kind: str, path: Path) -> list[tuple[Any, Any]]:
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        uri = f"sqlite:///{path}/c.db"
        catalog = load_catalog("default", type="sql", uri=uri, warehouse=f"file://{path}/w")
        table = catalog.load_table("db.t").scan().to_arrow()
        catalog.close()
    elif kind == "delta":
        from deltalake import DeltaTable, QueryBuilder

        query = QueryBuilder().register("t", DeltaTable(path / "out"))
        table = pa.table(query.execute("SELECT * FROM t"))
    else:
        import pyarrow.dataset as ds

        table = ds.dataset(path / "out").to_table()
    return sorted(((row["k"], row["c"]) for row in table.to_pylist()), key=str)
