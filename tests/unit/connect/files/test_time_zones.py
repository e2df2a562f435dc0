"""Instants are the same ones at every target, whatever the name of the session's zone."""

from __future__ import annotations

import datetime as dt
import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import EpochRows, context

from godwit import sinks
from godwit.connect.files.parquet_sink import ParquetLaneWriter
from godwit.model.errors import SinkError
from godwit.plan.staging import WrittenFiles
from godwit.sinks.carried_files import read_former_target

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.plan.staging import WrittenFile
    from godwit.sinks.sink import Sink, SinkContext

ZONES = ["Etc/UTC", "Europe/Berlin", "+05:30"]
# Either side of the end of summer time in Berlin, where both are 02:30.
INSTANTS = [dt.datetime(2026, 10, 25, hour, 30, tzinfo=dt.UTC) for hour in (0, 1)]
OTHERS = [dt.datetime(2026, 3, 29, 1, 0, tzinfo=dt.UTC), None]


def table_of(zone: str, instants: list[dt.datetime | None]) -> pa.Table:
    at = pa.timestamp("us", zone)
    count = len(instants)
    return pa.table(
        {
            "at": pa.array(instants, at),
            "all": pa.array([[instant] for instant in instants], pa.list_(at)),
            "pair": pa.array([{"at": i} for i in instants], pa.struct([("at", at)])),
            "n": pa.array(range(count), pa.int64()),
        }
    )


def context_of(zone: str) -> SinkContext:
    return context(schema=table_of(zone, []).schema, keys=("at",))


def deliver(sink: Sink, zone: str, epoch: int, instants: list[Any], *, lanes: bool) -> None:
    """Open the sink under a zone and deliver an epoch, as files of lanes if `lanes`."""
    sink.open(context_of(zone))
    rows = table_of(zone, instants)
    assert sink.row_check() is None or sink.row_check()(*rows.to_batches()) is None  # type: ignore[misc]
    written: list[WrittenFile] = []
    if lanes:
        writer = sink.lane_writer()
        assert writer is not None
        written = list(writer.write(rows, epoch=epoch, place=0) or ())
        assert written
        rows = rows.schema.empty_table()
    sink.deliver(EpochRows(epoch=epoch, table=rows, written=written))
    sink.close()


def sorted_instants(rows: pa.Table) -> list[Any]:
    utc = [pa.compute.cast(rows.column("at"), pa.timestamp("us", "UTC")).to_pylist()]
    utc.append([values[0] for values in rows.column("all").to_pylist()])
    utc.append([values["at"] for values in rows.column("pair").to_pylist()])
    columns = [
        sorted(values, key=lambda i: i or dt.datetime.max.replace(tzinfo=dt.UTC)) for values in utc
    ]
    assert columns[0] == columns[1] == columns[2]
    return columns[0]


EXPECTED = [OTHERS[0], *INSTANTS, None]


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("zone", ZONES)
def test_parquet_keeps_instants_and_goes_on_under_another_zone(
    tmp_path: Path, zone: str, lanes: bool
) -> None:
    sink = sinks.parquet(tmp_path, lane_bytes=0)
    deliver(sink, zone, 0, INSTANTS, lanes=lanes)
    deliver(sink, "America/New_York", 1, OTHERS, lanes=lanes)
    found = pa.concat_tables([pq.read_table(path) for path in sorted(tmp_path.glob("epoch=*"))])
    assert sorted_instants(found) == EXPECTED
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("mode", ["append", "upsert", "lanes"])
@pytest.mark.parametrize("zone", ZONES)
def test_delta_keeps_instants_and_goes_on_under_another_zone(
    tmp_path: Path, zone: str, mode: Any
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")
    lanes = mode == "lanes"
    sink = sinks.delta(tmp_path, mode="append" if lanes else mode, lane_bytes=0)
    deliver(sink, zone, 0, INSTANTS, lanes=lanes)
    deliver(sink, "America/New_York", 1, OTHERS, lanes=lanes)
    if mode == "upsert":
        deliver(sink, zone, 2, INSTANTS, lanes=False)
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path))
    assert sorted_instants(pa.table(query.execute('SELECT "at", "all", pair FROM t'))) == EXPECTED


@pytest.mark.parametrize("zone", ZONES)
def test_memory_keeps_instants_over_a_change_of_zone(zone: str) -> None:
    sink = sinks.memory()
    deliver(sink, zone, 0, INSTANTS, lanes=False)
    deliver(sink, "America/New_York", 1, OTHERS, lanes=False)
    assert sorted_instants(sink.table()) == EXPECTED
    assert sink.table().schema == context_of("America/New_York").schema


@pytest.mark.parametrize("zone", ZONES)
def test_console_prints_instants_in_the_zone(zone: str) -> None:
    out = io.StringIO()
    deliver(sinks.console(file=out), zone, 0, INSTANTS, lanes=False)
    assert "epoch 0, 2 rows" in out.getvalue()


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("zone", ZONES)
def test_postgres_keeps_instants_and_goes_on_under_another_zone(
    postgres: str, zone: str, mode: Any
) -> None:
    import psycopg

    sink = sinks.postgres(postgres, "target", mode=mode)
    deliver(sink, zone, 0, INSTANTS, lanes=False)
    deliver(sink, "America/New_York", 1, OTHERS, lanes=False)
    with psycopg.Connection.connect(postgres) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        found = connection.execute(
            "SELECT at, \"all\"[1], (pair ->> 'at')::timestamptz FROM target ORDER BY at"
        ).fetchall()
    assert found == [(instant, instant, instant) for instant in EXPECTED]


@pytest.mark.parametrize("zone", ZONES)
def test_files_of_a_former_target_are_read_under_another_zone(tmp_path: Path, zone: str) -> None:
    sink = sinks.parquet(tmp_path, lane_bytes=0)
    sink.open(context_of(zone))
    writer = sink.lane_writer()
    assert isinstance(writer, ParquetLaneWriter)
    files = tuple(writer.write(table_of(zone, [*INSTANTS]), epoch=0, place=0) or ())
    former = WrittenFiles(target=str(tmp_path), files=files)
    found = pa.Table.from_batches(
        read_former_target(former, context_of("America/New_York").schema, "s")
    )
    assert sorted_instants(found) == INSTANTS


@pytest.mark.parametrize("zone", ZONES)
def test_years_are_those_of_the_instant_in_any_zone(tmp_path: Path, zone: str) -> None:
    sink = sinks.parquet(tmp_path)
    sink.open(context_of(zone))
    first = -719_162 * 86_400 * 10**6
    at = pa.array([first - 1, first], pa.int64()).cast(pa.timestamp("us", zone))
    rows = table_of(zone, [None, None]).set_column(0, "at", at)
    found = sink.row_check()(*rows.to_batches())
    assert found is not None
    assert found.rows.tolist() == [0]


def test_a_time_without_a_zone_is_no_instant(tmp_path: Path) -> None:
    sink = sinks.parquet(tmp_path)
    deliver(sink, "Etc/UTC", 0, INSTANTS, lanes=False)
    naive = pa.schema([("at", pa.timestamp("us")), *list(context_of("UTC").schema)[1:]])
    with pytest.raises(SinkError, match="column 'at' has type"):
        sinks.parquet(tmp_path).open(context(schema=naive))
