"""The manifest of a Parquet directory: whole epochs, in order, whatever dies, for any reader."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import SCHEMA, Committed, EpochRows, context, rows
from tests.support.file_systems import FaultyHandler
from tests.support.rounds import rounds

import godwit as gw
from godwit.connect.files.parquet_manifest import ParquetManifest
from godwit.model.errors import InvalidControlError, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from godwit.connect.files.parquet_sink import ParquetSink

LAYOUTS: list[dict[str, bool]] = [{}, {"renames": False}, {"moves_into": True}]
READERS: list[Callable[[list[str]], Any]] = [
    lambda files: ds.dataset(files, partitioning="hive").to_table().to_pandas(),
    lambda files: duckdb.read_parquet(files, hive_partitioning=True).df(),
    lambda files: pl.scan_parquet(files, hive_partitioning=True).collect().to_pandas(),
]


def opened(path: Path | str, **options: Any) -> ParquetSink:
    sink = gw.sinks.parquet(path, **{"manifest": "1 minute", **options})
    sink.open(context())
    return sink


def epoch(number: int, history: str = "h") -> EpochRows:
    """An epoch of two rows, whose totals tell epoch and history."""
    total = 10 * number + (history != "h")
    table = rows(number, ("N1", total), ("N2", total)).table
    return EpochRows(epoch=number, table=table, history=history)


def directories(path: Path, layout: dict[str, bool]) -> Iterator[tuple[int, Path, FaultyHandler]]:
    """Yield 0, 2, 4, … or every number, each with a directory of its own and its file system."""
    for step in count(0, rounds(2, 1)):
        root = path / str(step)
        root.mkdir()
        yield step, root, FaultyHandler(root, **layout)


def read(root: Path, readers: Sequence[Callable[[list[str]], Any]] = READERS) -> list[int]:
    """The totals in the files that the manifest names, each once for the two rows of its epoch."""
    manifest = root / "_manifest/files.parquet"
    if not manifest.exists():
        return []
    files = [f"{root}/{path}" for path in pq.read_table(manifest)["path"].to_pylist()]
    results = []
    for reader in readers:
        totals = Counter(reader(files)["total"].tolist() if files else [])
        assert set(totals.values()) <= {2}
        results.append(sorted(totals))
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["renames", "object store", "HDFS"])
def test_a_manifest_has_whole_epochs_wherever_the_driver_dies(
    tmp_path: Path, layout: dict[str, bool]
) -> None:
    for step, root, handler in directories(tmp_path, layout):
        filesystem = pafs.PyFileSystem(handler)
        first = opened("out", filesystem=filesystem)
        first.deliver(epoch(0))
        first.maintain()
        handler.restart(fail_at=step)
        try:
            first.deliver(epoch(1))
            first.close()
        except SinkError:
            pass
        else:
            break
        totals = read(root / "out", [READERS[step % 3]])
        # HDFS has no file for the moment of its replacement.
        assert totals in ([0], [0, 10]) or (totals == [] and "moves_into" in layout)
        handler.restart()
        second = opened("out", filesystem=filesystem)
        for number in (1, 3):
            second.deliver(epoch(number))
        second.close()
        assert read(root / "out", [READERS[step % 3]]) == [0, 10, 30], handler.operations
        assert not list((root / "out/_staging").glob("*"))
    assert step > 20
    assert read(root / "out") == [0, 10]


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["renames", "object store"])
def test_a_manifest_never_names_an_epoch_that_is_rolled_back(
    tmp_path: Path, layout: dict[str, bool]
) -> None:
    for step, root, handler in directories(tmp_path, layout):
        filesystem = pafs.PyFileSystem(handler)
        former = opened("out", filesystem=filesystem)
        for number in range(3):
            former.deliver(epoch(number))
        former.close()
        sink = opened("out", filesystem=filesystem)
        handler.restart(fail_at=step)
        try:
            sink.roll_back(Committed(latest_epoch=0), -1)
        except SinkError:
            delivered = [10 * n for n in range(3) if (root / f"out/epoch={n}/_SUCCESS").exists()]
            assert read(root / "out", [READERS[step % 3]]) in (delivered, [0])
        else:
            break
        handler.restart()
        sink = opened("out", filesystem=filesystem)
        sink.roll_back(Committed(latest_epoch=0), -1)
        assert read(root / "out", [READERS[step % 3]]) == [0]
    handler.restart()
    sink.deliver(epoch(1, "other"))
    sink.close()
    assert read(root / "out") == [0, 11]


def test_readers_see_whole_epochs_while_others_are_delivered(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    ended, seen = threading.Event(), []

    def maintain() -> None:
        while not ended.is_set():
            sink.maintain()
            seen.append(read(tmp_path, READERS[:1]))

    thread = threading.Thread(target=maintain)
    thread.start()
    try:
        for number in range(25):
            sink.deliver(epoch(number))
    finally:
        ended.set()
        thread.join()
    sink.close()
    assert seen
    for totals in [*seen, read(tmp_path)]:
        assert totals == [10 * number for number in range(len(totals))]
    assert len(read(tmp_path)) == 25


def test_an_epoch_costs_the_same_however_many_are_in_the_manifest(tmp_path: Path) -> None:
    handler = FaultyHandler(tmp_path, renames=False)
    costs = []
    for number in range(12):
        sink = opened("out", filesystem=pafs.PyFileSystem(handler))
        sink.deliver(epoch(number))
        handler.restart()
        sink.close()
        costs.append(len(handler.operations))
    assert costs[2:] == [costs[1]] * 10
    sink = opened("out", filesystem=pafs.PyFileSystem(handler))
    handler.restart()
    sink.close()
    assert not [name for name in handler.operations if name.startswith("open_output_stream")]


def test_a_manifest_waits_in_proportion_to_what_it_took(tmp_path: Path) -> None:
    ticks = iter([0.0, 10.0, 200.0, 211.0, 212.0])
    sink, counts = opened(tmp_path), []
    sink._manifest = ParquetManifest(sink._directory, None, now_s=lambda: next(ticks))
    for number in range(3):
        sink.deliver(epoch(number))
        sink.maintain()
        counts.append(len(read(tmp_path, READERS[:1])))
    assert counts == [1, 1, 3]  # 10 s, so not before 210 s


def damage(root: Path) -> None:
    (root / "_manifest/files.parquet").write_bytes(b"PAR1 a part of it PAR1")


def replace_last(root: Path) -> None:
    """Put another history's epoch in the place of the last one, behind the manifest's back."""
    shutil.rmtree(root / "epoch=1")
    (root / "_delivered.json").unlink()
    other = gw.sinks.parquet(root, manifest="1 day")
    other.open(context())
    other.deliver(epoch(1, "other"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (damage, [0, 10]),
        (lambda root: shutil.rmtree(root / "_manifest"), [0, 10]),
        (lambda root: shutil.rmtree(root / "epoch=0"), [10]),
        (lambda root: shutil.rmtree(root / "epoch=1"), [0]),
        (replace_last, [0, 11]),
    ],
)
def test_a_manifest_that_does_not_fit_the_directory_is_written_again(
    tmp_path: Path, change: Callable[[Path], None], expected: list[int]
) -> None:
    sink = opened(tmp_path)
    for number in range(2):
        sink.deliver(epoch(number))
    sink.close()
    change(tmp_path)
    opened(tmp_path).close()
    assert read(tmp_path) == expected


def test_a_manifest_tells_rows_bytes_and_partitions(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by="plane")
    sink.deliver(rows(7, ("a/b", 1), ("a/b", 2), (None, 3)))
    sink.close()
    entries = pq.read_table(tmp_path / "_manifest/files.parquet").to_pylist()
    assert [(entry["epoch"], entry["rows"], entry["partition"]) for entry in entries] == [
        (7, 1, [("plane", None)]),
        (7, 2, [("plane", "a/b")]),
    ]
    for entry in entries:
        assert (tmp_path / entry["path"]).stat().st_size == entry["bytes"]
    assert not (tmp_path / "_manifest/symlink").exists()
    assert pl.read_parquet(tmp_path / "_manifest/files.parquet").height == 2


def test_lines_are_absolute_uris_of_the_same_files(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for number in range(3):
        sink.deliver(epoch(number))
    sink.close()
    (lines,) = (tmp_path / "_manifest/symlink").iterdir()
    files = gw.sinks.delivered_files(tmp_path)
    assert lines.read_text() == "".join(f"file://{file}\n" for file in files)
    # Readers of the directory pass over the manifest.
    assert ds.dataset(tmp_path, format="parquet", schema=SCHEMA).count_rows() == 6


def shorten_lines(root: Path) -> None:
    lines = root / "_manifest/symlink/files.txt"
    lines.write_text(lines.read_text()[:-20])


def take_rows_out(root: Path) -> None:
    path = root / "_manifest/files.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)  # with the metadata that it had


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        shorten_lines,
        lambda root: (root / "_manifest/symlink/files.txt").unlink(),
        take_rows_out,
    ],
)
def test_a_copy_of_a_directory_has_lines_of_its_own_with_the_next_run(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    sink = opened(tmp_path / "first")
    for number in range(3):
        sink.deliver(epoch(number))
    sink.close()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    change(tmp_path / "second")
    opened(tmp_path / "second").close()
    lines = (tmp_path / "second/_manifest/symlink/files.txt").read_text()
    files = gw.sinks.delivered_files(tmp_path / "second")
    assert lines == "".join(f"file://{file}\n" for file in files)
    assert read(tmp_path / "second") == [0, 10, 20]


def test_lines_that_a_sink_does_not_continue_are_removed(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "with\nline"):
        sink = opened(path)
        sink.deliver(epoch(0))
        sink.close()
    assert not (tmp_path / "with\nline/_manifest/symlink/files.txt").exists()
    above = pafs.SubTreeFileSystem(str(tmp_path.parent), pafs.LocalFileSystem())
    opened(tmp_path.name, filesystem=above).close()
    assert not (tmp_path / "_manifest/symlink/files.txt").exists()


def test_a_manifest_that_is_not_continued_is_removed(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.deliver(epoch(0))
    sink.close()
    opened(tmp_path, manifest=None).close()
    assert not (tmp_path / "_manifest").exists()


def test_a_manifest_of_another_querys_directory_is_not_written(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.deliver(epoch(0))
    marker = tmp_path / "_godwit.json"
    marker.write_text(marker.read_text().replace("query-1", "query-2"))
    with pytest.raises(SinkError, match="belongs to sink 'by_plane' of query query-2"):
        sink.maintain()
    assert not (tmp_path / "_manifest").exists()


def test_wrong_options_are_refused() -> None:
    with pytest.raises(SinkError, match="epochs that keep= removes"):
        gw.sinks.parquet("out", keep=2, manifest="1 minute")
    with pytest.raises(InvalidControlError, match=r"manifest of gw\.sinks\.parquet is '5'"):
        gw.sinks.parquet("out", manifest="5")
    with pytest.raises(SinkError, match="lane_files=0"):
        gw.sinks.parquet("out", lane_files=0)
