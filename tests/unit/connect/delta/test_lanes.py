"""Data files that lanes wrote for a Delta sink: in no version until delivered, and then in one."""

from __future__ import annotations

import datetime as dt
import pickle
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import SCHEMA, EpochRows, context

import godwit as gw
from godwit.connect.delta import sink as delta_sink
from godwit.model.errors import SinkError
from godwit.plan.staging import WrittenFile, WrittenFiles
from godwit.sinks.carried_files import read_former_target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.connect.delta.sink import DeltaSink
    from godwit.sinks.sink import SinkContext

deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")

LANES = [
    pa.table({"plane": ["N1", "N2", None, ""], "total": [1, 2, 3, 4]}, schema=SCHEMA),
    pa.table({"plane": ["N3", "a/b %25"], "total": [5, None]}, schema=SCHEMA),
]
REST = pa.table({"plane": ["N1"], "total": [6]}, schema=SCHEMA)


def opened(path: Path | str, ctx: SinkContext | None = None, **options: Any) -> DeltaSink:

    sink = gw.sinks.delta(path, **{"lane_bytes": 0, **options})
    sink.open(ctx or context())
    return sink


def written(sink: DeltaSink, epoch: int, lanes: Sequence[pa.Table] = LANES) -> list[WrittenFile]:
    writer = pickle.loads(pickle.dumps(sink.lane_writer()))
    return [
        file
        for place, rows in enumerate(lanes)
        for file in writer.write(rows, epoch=epoch, place=place)
    ]


def output(epoch: int, files: Sequence[WrittenFile], rest: pa.Table = REST) -> EpochRows:
    return EpochRows(epoch=epoch, table=rest, written=files)


def read(path: Path | str) -> list[dict[str, Any]]:
    table = pa.table(
        deltalake.QueryBuilder()
        .register("t", deltalake.DeltaTable(path))
        .execute("SELECT plane, total FROM t ORDER BY total")
    )
    return list(table.to_pylist())


def expected(partitioned: bool) -> list[dict[str, Any]]:
    planes = ["N1", "N2", None, None if partitioned else "", "N3", "N1", "a/b %25"]
    return [
        {"plane": plane, "total": total}
        for plane, total in zip(planes, [1, 2, 3, 4, 5, 6, None], strict=True)
    ]


@pytest.mark.parametrize("partition_by", [(), ("plane",)])
def test_files_are_in_no_version_before_they_are_delivered_and_then_in_one(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    sink = opened(tmp_path, partition_by=partition_by)
    files = written(sink, 0)
    zombies = written(sink, 0)
    assert deltalake.DeltaTable(tmp_path).count() == 0
    for _ in range(2):
        sink.deliver(output(0, files))
    opened(tmp_path).deliver(output(0, files))
    assert read(tmp_path) == expected(bool(partition_by))
    table = deltalake.DeltaTable(tmp_path)
    assert table.version() == 1
    assert table.transaction_version("godwit-query-1-by_plane") == 0
    table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not any((tmp_path / file.path).exists() for file in zombies)
    assert read(tmp_path) == expected(bool(partition_by))


def test_a_uri_is_the_same_table_as_its_path(tmp_path: Path) -> None:
    sink = opened(tmp_path.as_uri())
    sink.deliver(output(0, written(sink, 0)))
    assert read(tmp_path) == expected(partitioned=False)
    assert sink.target == f"{tmp_path}/"


def test_a_complete_epoch_replaces_all_rows(tmp_path: Path) -> None:
    sink = opened(tmp_path, context(complete=True))
    sink.deliver(output(0, written(sink, 0)))
    sink.deliver(output(1, written(sink, 1, LANES[1:]), REST.slice(1)))
    assert [row["plane"] for row in read(tmp_path)] == ["N3", "a/b %25"]


def test_readers_pass_over_files_by_their_statistics(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, ("day", pa.date32()), ("share", pa.float64())])
    sink = opened(tmp_path, context(schema=schema))
    rows = pa.table(
        {
            "plane": ["x" * 40, "N2"],
            "total": [1, 7],
            "day": [None, dt.date(2013, 5, 1)],
            "share": [0.5, None],
        },
        schema=schema,
    )
    sink.deliver(output(0, written(sink, 0, [rows]), rows.slice(2)))
    (found,) = pa.table(deltalake.DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert found["num_records"] == 2
    assert (found["min.total"], found["max.total"]) == (1, 7)
    assert found["max.day"] == dt.date(2013, 5, 1)
    assert (found["null_count.day"], found["null_count.share"]) == (1, 1)
    assert found.get("max.plane") is None


def test_two_deliveries_at_the_same_time_leave_its_rows_once(tmp_path: Path) -> None:
    sinks = [opened(tmp_path) for _ in range(3)]
    files = written(sinks[0], 0)
    errors: list[BaseException] = []

    def deliver(sink: DeltaSink) -> None:
        try:
            sink.deliver(output(0, files, REST.slice(1)))
        except BaseException as error:  # noqa: BLE001  shown by the assertion
            errors.append(error)

    threads = [threading.Thread(target=deliver, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert deltalake.DeltaTable(tmp_path).count() == 6


def test_lanes_write_only_where_adding_files_is_all_there_is_to_do(tmp_path: Path) -> None:
    assert opened(tmp_path / "a", mode="upsert").lane_writer() is None
    assert opened(tmp_path / "a", mode="upsert").target is None
    deltalake.DeltaTable.create(
        tmp_path / "b", schema=SCHEMA, configuration={"delta.enableDeletionVectors": "true"}
    )
    assert opened(tmp_path / "b").lane_writer() is None
    assert opened(tmp_path / "c").lane_writer() is not None


def test_a_machine_that_does_not_see_the_table_leaves_rows_to_the_driver(tmp_path: Path) -> None:
    writer = opened(tmp_path).lane_writer()
    assert writer is not None
    shutil.rmtree(tmp_path / "_godwit")
    assert writer.write(LANES[0], epoch=0, place=0) is None


def test_a_file_that_is_gone_is_an_error_unless_the_whole_table_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = opened(tmp_path / "t")
    files = written(sink, 0)
    (tmp_path / "t" / files[0].path).unlink()
    with pytest.raises(SinkError, match="1 of the files that lanes wrote no longer exist"):
        sink.deliver(output(0, files))
    shutil.rmtree(tmp_path / "t")
    for _ in range(2):  # also after a restart without a new epoch
        sink = opened(tmp_path / "t")
        sink.deliver(output(0, files))
    assert read(tmp_path / "t") == []
    assert "with files of 6 rows of this epoch" in caplog.text
    sink.deliver(output(1, written(sink, 1)))
    assert len(read(tmp_path / "t")) == 7


def test_a_constraint_that_came_while_lanes_wrote_is_not_passed_by(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    files = written(sink, 0)
    deltalake.DeltaTable(tmp_path).alter.add_constraint({"small": "total < 3"})
    with pytest.raises(SinkError, match=r"has constraints \(small\)"):
        sink.deliver(output(0, files))
    assert read(tmp_path) == []
    deltalake.DeltaTable(tmp_path).alter.drop_constraint("small")
    sink.deliver(output(0, files))
    assert len(read(tmp_path)) == 7


def test_files_of_a_table_that_asks_for_more_since_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path, partition_by="plane")
    files = written(sink, 0)
    monkeypatch.setattr(delta_sink, "takes_plain_files", lambda _: False)
    for _ in range(2):
        sink.deliver(output(0, files))
    assert [row["total"] for row in read(tmp_path)] == [1, 2, 3, 4, 5, 6, None]


def test_rows_of_a_former_table_are_read_from_its_files(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    assert sink.target is not None
    former = WrittenFiles(target=sink.target, files=tuple(written(sink, 0)))
    found = pa.Table.from_batches(read_former_target(former, SCHEMA, "new"))
    assert found.num_rows == 6
