"""Files that lanes wrote for a Parquet sink: unseen until delivered, and then there once."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from tests.support.epoch_rows import SCHEMA, EpochRows, context
from tests.support.file_systems import FaultyHandler

import godwit as gw
from godwit.connect.files import parquet_directory, parquet_files, parquet_sink
from godwit.model.errors import SinkError
from godwit.plan.staging import WrittenFile, WrittenFiles
from godwit.sinks.carried_files import read_former_target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.connect.files.parquet_sink import ParquetSink

LANES = [
    pa.table({"plane": ["N1", "N2", None, ""], "total": [1, 2, 3, 4]}, schema=SCHEMA),
    pa.table({"plane": ["N3", "a/b"], "total": [5, None]}, schema=SCHEMA),
]
REST = pa.table({"plane": ["N1"], "total": [6]}, schema=SCHEMA)
TOTALS = [1, 2, 3, 4, 5, 6, None]


def opened(path: Path | str, **options: Any) -> ParquetSink:
    sink = gw.sinks.parquet(path, **{"lane_bytes": 0, **options})
    sink.open(context())
    return sink


def written(sink: ParquetSink, epoch: int, lanes: Sequence[pa.Table] = LANES) -> list[WrittenFile]:
    writer = pickle.loads(pickle.dumps(sink.lane_writer()))
    found: list[WrittenFile] = []
    for place, rows in enumerate(lanes):
        found += writer.write(rows, epoch=epoch, place=place)
    return found


def output(epoch: int, files: Sequence[WrittenFile]) -> EpochRows:
    return EpochRows(epoch=epoch, table=REST, written=files)


def visible(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*.parquet")
        if not any(part.startswith("_") for part in path.relative_to(root).parts)
    )


def totals(directory: Path) -> list[int | None]:
    found = ds.dataset(directory, format="parquet").to_table().column("total").to_pylist()
    return sorted(found, key=lambda total: (total is None, total))


@pytest.mark.parametrize("partition_by", [(), ("plane",)])
def test_nothing_is_seen_of_an_epoch_before_it_is_delivered_and_then_all(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    sink = opened(tmp_path, partition_by=partition_by)
    files = written(sink, 3)
    zombie = written(sink, 3)
    assert visible(tmp_path) == []
    for _ in range(2):
        sink.deliver(output(3, files))
        assert totals(tmp_path / "epoch=3") == TOTALS
    assert {file.delivered for file in files} < set(visible(tmp_path))
    assert not any((tmp_path / file.path).exists() for file in zombie)


def test_names_of_files_say_which_lane_wrote_them(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.deliver(output(0, written(sink, 0)))
    assert visible(tmp_path) == [
        f"epoch=0/part-{name}.parquet" for name in ("00000", "00001", "rest-00000")
    ]


def test_what_lanes_wrote_for_a_later_epoch_stays_until_that_one_is_delivered(
    tmp_path: Path,
) -> None:
    sink = opened(tmp_path)
    first, second = written(sink, 8), written(sink, 10)
    sink.deliver(output(8, first))
    opened(tmp_path).deliver(output(10, second))
    assert totals(tmp_path / "epoch=10") == TOTALS
    assert list((tmp_path / "_staging").iterdir()) == []


def test_a_restart_delivers_what_lanes_wrote_before_it(tmp_path: Path) -> None:
    files = written(opened(tmp_path), 0)
    opened(tmp_path).deliver(output(0, files))
    assert totals(tmp_path / "epoch=0") == TOTALS


@pytest.mark.parametrize("renames", [True, False], ids=["renames", "object store"])
def test_a_crash_at_any_operation_neither_loses_nor_doubles_rows(
    tmp_path: Path, renames: bool
) -> None:
    for step in count():
        root = tmp_path / str(step)
        files = written(opened(root / "out"), 0)
        handler = FaultyHandler(root, renames=renames)
        sink = opened("out", filesystem=pafs.PyFileSystem(handler))
        handler.restart(fail_at=step)
        try:
            sink.deliver(output(0, files))
        except SinkError:
            done = (root / "out/epoch=0/_SUCCESS").exists()
            assert not done or totals(root / "out/epoch=0") == TOTALS
        else:
            break
        handler.restart()
        opened("out", filesystem=pafs.PyFileSystem(handler)).deliver(output(0, files))
        assert totals(root / "out/epoch=0") == TOTALS, handler.operations
    assert step > 6


def test_where_there_are_no_links_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(_here: object, _there: object) -> None:
        raise PermissionError(1, "links are not supported")

    monkeypatch.setattr(os, "link", no_link)
    sink = opened(tmp_path)
    sink.deliver(output(0, written(sink, 0)))
    assert totals(tmp_path / "epoch=0") == TOTALS


@pytest.mark.parametrize(
    ("rows", "partition_by", "left"),
    [(999, (), True), (1000, (), False), (1000, ("plane",), False), (1600, ("total",), True)],
)
def test_few_rows_are_left_to_the_driver(
    tmp_path: Path, rows: int, partition_by: tuple[str, ...], left: bool
) -> None:
    table = pa.table({"plane": ["N1"] * rows, "total": range(rows)}, schema=SCHEMA)
    enough = 1000 * (table.nbytes // rows)
    writer = opened(tmp_path, lane_bytes=enough, partition_by=partition_by).lane_writer()
    assert writer is not None
    assert (writer.write(table, epoch=0, place=0) is None) == left
    assert (tmp_path / "_staging").exists() != left


@pytest.mark.parametrize(("partitions", "lane_files", "left"), [(8, 8, False), (8, 7, True)])
def test_lanes_leave_many_small_files_to_the_driver(
    tmp_path: Path, partitions: int, lane_files: int, left: bool
) -> None:
    planes = [f"N{n % partitions}" for n in range(800)]
    table = pa.table({"plane": planes, "total": range(800)}, schema=SCHEMA)
    options = {"partition_by": "plane", "lane_bytes": table.nbytes, "lane_files": lane_files}
    writer = opened(tmp_path, **options).lane_writer()
    assert isinstance(writer, parquet_sink.ParquetLaneWriter)
    assert (writer.write(table, epoch=0, place=0) is None) == left
    small = replace(writer, lane_bytes=table.nbytes // partitions)
    assert len(small.write(table, epoch=0, place=0) or ()) == partitions  # they are large enough


def test_any_reader_reads_the_files_of_delivered_epochs(tmp_path: Path) -> None:
    assert gw.sinks.delivered_files(tmp_path / "out") == []
    sink = opened(tmp_path / "out", partition_by="plane")
    for epoch in (9, 10):
        sink.deliver(output(epoch, written(sink, epoch)))
    written(sink, 11)  # of an epoch that is not committed
    half = tmp_path / "out/epoch=11/plane=N1"  # a delivery to an object store, just begun
    half.mkdir(parents=True)
    shutil.copy(next((tmp_path / "out/epoch=10/plane=N1").iterdir()), half / "part-00000.parquet")
    files = gw.sinks.delivered_files(tmp_path / "out")
    names = [file.removeprefix(f"{tmp_path}/out/").partition("/")[0] for file in files]
    assert names == ["epoch=9"] * (len(files) // 2) + ["epoch=10"] * (len(files) // 2)
    expected = sorted((epoch, total or 0) for epoch in (9, 10) for total in TOTALS)
    frames = {
        "arrow": ds.dataset(files, partitioning="hive").to_table().to_pandas(),
        "duckdb": duckdb.read_parquet(files, hive_partitioning=True).df(),
        "polars": pl.scan_parquet(files, hive_partitioning=True).collect().to_pandas(),
    }
    for reader, frame in frames.items():
        rows = zip(frame["epoch"].astype(int), frame["total"].fillna(0).astype(int), strict=True)
        assert sorted(rows) == expected, reader


def test_a_machine_that_does_not_see_the_directory_leaves_rows_to_the_driver(
    tmp_path: Path,
) -> None:
    writer = opened(tmp_path / "out").lane_writer()
    assert writer is not None
    shutil.rmtree(tmp_path / "out")
    assert writer.write(LANES[0], epoch=0, place=0) is None
    (tmp_path / "out").mkdir()
    (tmp_path / "out/_godwit.json").write_text("of another machine")
    assert writer.write(LANES[0], epoch=0, place=0) is None


def test_a_lane_that_cannot_write_refuses_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    writer = opened(tmp_path).lane_writer()
    assert writer is not None
    monkeypatch.setattr(parquet_sink, "write_file", full)
    with pytest.raises(SinkError, match=r"lane cannot write.*No space.*Nothing of epoch 4"):
        writer.write(LANES[0], epoch=4, place=0)
    assert list((tmp_path / "_staging").iterdir()) == []


def test_a_file_that_is_gone_is_an_error_unless_the_whole_directory_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    sink = opened(out)
    files = written(sink, 0)
    shutil.rmtree(out / "_staging")
    with pytest.raises(SinkError, match="2 of the files that lanes wrote no longer exist"):
        sink.deliver(output(0, files))
    shutil.rmtree(out)
    for _ in range(2):  # also after a restart without a new epoch
        sink = opened(out)
        sink.deliver(output(0, files))
    assert not (out / "epoch=0").exists(), "a part of an epoch is none"
    assert "with files of 6 rows of this epoch" in caplog.text
    sink.deliver(output(1, written(sink, 1)))
    assert len(totals(out / "epoch=1")) == 7


def test_lanes_keep_partitions_apart_where_names_that_differ_by_case_are_one(
    tmp_path: Path,
) -> None:
    sink = opened(tmp_path, partition_by="plane")
    made = sink.lane_writer()
    assert isinstance(made, parquet_sink.ParquetLaneWriter)
    writer = replace(made, fold_case=True)
    planes = ["N1", "n1", "\u00d6", "\u00f6"]
    lane = pa.table({"plane": planes, "total": range(4)}, schema=SCHEMA)
    files = writer.write(lane, epoch=0, place=3)
    assert files is not None
    assert [file.delivered.split("/")[1] for file in files] == [
        *("plane=%4E1", "plane=n1", "plane=\u00d6", "plane=\u00f6")
    ]
    folded = {file.delivered.casefold() for file in files}
    assert len(folded) == 4


def test_files_of_an_epoch_that_a_reader_took_away_are_not_missed(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    files = written(sink, 0)
    sink.deliver(output(0, files))
    shutil.rmtree(tmp_path / "epoch=0")
    opened(tmp_path).deliver(output(0, files))
    assert visible(tmp_path) == []


def test_files_that_a_rival_removed_since_it_delivered_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rival = opened(tmp_path), opened(tmp_path)
    files = written(sink, 0)

    def lose_the_race(*_: object) -> None:
        monkeypatch.undo()
        rival.deliver(output(0, files))

    monkeypatch.setattr(parquet_directory.ParquetDirectory, "check", lose_the_race)
    sink.deliver(output(0, files))
    assert len(totals(tmp_path / "epoch=0")) == 7


def test_a_lane_writes_files_no_larger_than_stores_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "FILE_BYTES", 1000)
    rows = pa.table({"plane": [f"N{i}" for i in range(400)], "total": range(400)}, schema=SCHEMA)
    sink = opened(tmp_path)
    files = written(sink, 0, [rows])
    assert len(files) > 3
    sink.deliver(output(0, files))
    assert totals(tmp_path / "epoch=0") == sorted([*range(400), 6])


def test_lanes_write_only_where_delivery_can_name_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        opened("out", filesystem=pafs.PyFileSystem(FaultyHandler(tmp_path))).lane_writer() is None
    )
    handler = FaultyHandler(tmp_path, moves_into=True)

    def hdfs(path: str, _filesystem: object = None) -> tuple[pafs.FileSystem, str]:
        return pafs.PyFileSystem(handler), path.removeprefix("hdfs://")

    monkeypatch.setattr(parquet_sink, "open_file_system", hdfs)
    assert opened("hdfs://out").lane_writer() is None


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("partition_by", [(), ("plane",)])
def test_rows_of_a_former_target_are_read_from_its_files(
    tmp_path: Path, partition_by: tuple[str, ...], delivered: bool
) -> None:
    sink = opened(tmp_path, partition_by=partition_by)
    files = written(sink, 0)
    if delivered:
        sink.deliver(output(0, files))
    assert sink.target is not None
    former = WrittenFiles(target=sink.target, files=tuple(files))
    found = pa.Table.from_batches(read_former_target(former, SCHEMA, "new")).sort_by("total")
    planes = ["N1", "N2", None, None if partition_by else "", "N3", "a/b"]
    assert found.column("plane").to_pylist() == planes
    assert found.schema == SCHEMA


def test_a_former_target_that_is_damaged_or_not_there_is_an_error(tmp_path: Path) -> None:
    sink = opened(tmp_path / "out")
    former = WrittenFiles(target=str(tmp_path / "out"), files=tuple(written(sink, 0)))
    shutil.rmtree(tmp_path / "out/_staging")
    with pytest.raises(SinkError, match="cannot be read there"):
        list(read_former_target(former, SCHEMA, "new"))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SinkError, match=r"6 rows.*does not exist") as caught:
        list(read_former_target(former, SCHEMA, "new"))
    assert "gw.sinks.noop()" in caught.value.remedy


def test_a_former_target_whose_secrets_are_not_known_is_an_error() -> None:
    former = WrittenFiles(target="s3://***@bucket/out", files=())
    with pytest.raises(SinkError, match="cannot be read there"):
        list(read_former_target(former, SCHEMA, "new"))
