"""An epoch in a directory of Parquet files: there once, whole or not at all, whatever breaks."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import shutil
import stat
import threading
import unicodedata
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import SCHEMA, Committed, EpochRows, context, point, rows
from tests.support.file_systems import CrashError, FaultyHandler

import godwit as gw
from godwit.connect.files import parquet_directory, parquet_files
from godwit.connect.files import parquet_sink as parquet
from godwit.connect.files.parquet_directory import latest_epoch
from godwit.connect.files.parquet_sink import ParquetSink
from godwit.model.errors import SinkError
from godwit.sinks.file_systems import open_file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.sinks.sink import SinkContext

EPOCHS = [
    rows(0, ("N1", 1), ("N2", 2), (None, 3)),
    rows(1, ("N1", 10), ("N3", 30), ("N1", 11), (None, None)),
]
ROWS = [
    (0, None, 3),
    (0, "N1", 1),
    (0, "N2", 2),
    (1, None, None),
    (1, "N1", 10),
    (1, "N1", 11),
    (1, "N3", 30),
]


def read(path: Path) -> list[tuple[Any, ...]]:
    """Rows that a reader of the directory sees, as (epoch, plane, total), sorted."""
    if not any(path.glob("epoch=*/**/*.parquet")):
        return []
    schema = pa.schema([("epoch", pa.int32()), *SCHEMA])
    table = ds.dataset(path, schema=schema, partitioning="hive", format="parquet").to_table()
    return sorted(
        ((row["epoch"], row["plane"], row["total"]) for row in table.to_pylist()),
        key=lambda row: (row[0], row[1] or "", row[2] or 0),
    )


def opened(path: Path | str, ctx: SinkContext | None = None, **options: Any) -> ParquetSink:
    sink = gw.sinks.parquet(path, **options)
    sink.open(ctx or context())
    return sink


def failing(error: Exception) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail


def visible_files(path: Path) -> list[str]:
    files = (file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    return sorted(file for file in files if not file.rsplit("/", 1)[-1].startswith(("_", ".")))


@pytest.mark.parametrize("partition_by", [(), ("plane",)])
def test_epochs_are_read_back_as_one_table(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    sink = opened(tmp_path / "out", partition_by=partition_by)
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert read(tmp_path / "out") == ROWS


def test_names_of_files_say_epoch_and_part(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert visible_files(tmp_path) == ["epoch=0/part-00000.parquet", "epoch=1/part-00000.parquet"]


def test_pandas_reads_the_directory_as_it_is(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in EPOCHS:
        sink.deliver(epoch)
    pd = pytest.importorskip("pandas")
    frame = pd.read_parquet(tmp_path)
    assert sorted(frame.columns) == ["epoch", "plane", "total"]
    assert len(frame) == len(ROWS)
    assert frame.query("epoch == 1 and plane == 'N3'").total.tolist() == [30]


@pytest.mark.parametrize("renames", [True, False], ids=["renames", "object store"])
def test_a_delivered_epoch_is_not_even_read_again(tmp_path: Path, renames: bool) -> None:
    def fail(_: int) -> None:
        raise AssertionError

    filesystem = pafs.PyFileSystem(FaultyHandler(tmp_path, renames=renames))
    sink = opened("out", filesystem=filesystem)
    sink.deliver(EPOCHS[0])
    sink.deliver(EpochRows(epoch=0, table=EPOCHS[0].table, on_batch=fail))
    assert read(tmp_path / "out") == ROWS[:3]


def test_what_an_unfinished_epoch_left_in_an_object_store_is_thrown_away(tmp_path: Path) -> None:
    filesystem = pafs.PyFileSystem(FaultyHandler(tmp_path, renames=False))
    sink = opened("out", filesystem=filesystem)
    left = tmp_path / "out" / "epoch=0" / "part-00007.parquet"
    left.parent.mkdir()
    left.write_bytes(b"half a file")
    sink.deliver(EPOCHS[0])
    assert read(tmp_path / "out") == ROWS[:3]


class Folding(FaultyHandler):
    """A file system to which names that differ by case or Unicode form only are one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.spelled: dict[str, str] = {}

    def normalize_path(self, path: str) -> str:
        return "/".join(
            self.spelled.setdefault(unicodedata.normalize("NFC", part).casefold(), part)
            for part in path.split("/")
        )

    def get_file_info(self, paths: list[str]) -> Any:
        return super().get_file_info([self.normalize_path(path) for path in paths])

    def get_file_info_selector(self, selector: Any) -> Any:
        selector.base_dir = self.normalize_path(selector.base_dir)
        return super().get_file_info_selector(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        super().create_dir(self.normalize_path(path), recursive)

    def move(self, src: str, dest: str) -> None:
        super().move(self.normalize_path(src), self.normalize_path(dest))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return super().open_output_stream(self.normalize_path(path), metadata)

    def open_input_stream(self, path: str) -> Any:
        return super().open_input_stream(self.normalize_path(path))


def test_partitions_that_differ_by_case_stay_apart_where_names_do_not(tmp_path: Path) -> None:
    sink = opened("out", filesystem=pafs.PyFileSystem(Folding(tmp_path)), partition_by="plane")
    planes = ["N1", "n1", "Ab%c", "aB%c", "\u00d6", "o\u0308"]
    sink.deliver(rows(0, *((plane, n) for n, plane in enumerate(planes))))
    found = {total: plane for _, plane, total in read(tmp_path / "out")}
    assert [found[n] for n in range(4)] == planes[:4]
    assert len(found) == 6, "nothing is overwritten, though two may be read back as one"


class Meeting(FaultyHandler):
    """An object store on which someone else acts just before an operation, once."""

    before = "nothing"
    act: Callable[[], object] = staticmethod(lambda: None)

    def _reach(self, operation: str) -> None:
        super()._reach(operation)
        if operation.startswith(self.before):
            self.before = "nothing"
            self.act()


def rivals(tmp_path: Path) -> tuple[Meeting, list[ParquetSink]]:
    handler = Meeting(tmp_path, renames=False)
    filesystem = pafs.PyFileSystem(handler)
    return handler, [opened("out", filesystem=filesystem) for _ in range(2)]


@pytest.mark.parametrize(
    "before", ["open_output_stream", "copy_file", "open_output_stream out/epoch=1/_SUCCESS"]
)
def test_a_driver_that_is_late_takes_nothing_away_from_an_object_store(
    tmp_path: Path, before: str
) -> None:
    handler, (late, other) = rivals(tmp_path)
    late.deliver(EPOCHS[0])
    handler.restart()
    handler.act, handler.before = lambda: other.deliver(EPOCHS[1]), before
    late.deliver(EPOCHS[1])
    assert read(tmp_path / "out") == ROWS
    deleted = [o for o in handler.operations if o.startswith("delete") and "_staging" not in o]
    assert deleted == []


def test_a_driver_that_is_late_and_fails_takes_nothing_away_from_an_object_store(
    tmp_path: Path,
) -> None:
    handler, (late, other) = rivals(tmp_path)

    def deliver_and_crash() -> None:
        other.deliver(EPOCHS[0])
        raise CrashError

    handler.act, handler.before = deliver_and_crash, "open_output_stream out/epoch=0/_SUCCESS"
    with pytest.raises(SinkError):
        late.deliver(EPOCHS[0])
    assert read(tmp_path / "out") == ROWS[:3]


@pytest.mark.parametrize("local", [True, False])
def test_of_two_queries_that_begin_a_directory_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    theirs = context(query_id="query-2")
    handler = Meeting(tmp_path, renames=False)
    options: dict[str, Any] = {} if local else {"filesystem": pafs.PyFileSystem(handler)}
    path = str(tmp_path / "out") if local else "out"
    first, second = gw.sinks.parquet(path, **options), gw.sinks.parquet(path, **options)

    def begin() -> None:
        second.open(theirs)
        second.deliver(EPOCHS[1])

    if local:
        handler.act, handler.before = begin, "force"

        def force(_: Path) -> None:
            handler._reach("force")

        monkeypatch.setattr(parquet_directory, "force_file", force)
    else:
        handler.act, handler.before = begin, "open_output_stream"
    with pytest.raises(SinkError):
        first.open(context())
    with pytest.raises(SinkError):
        first.open(context())
    assert [row[0] for row in read(tmp_path / "out")] == [1] * 4


def test_a_query_whose_directory_another_took_meanwhile_writes_nothing_more(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.deliver(EPOCHS[0])
    marker = tmp_path / "_godwit.json"
    marker.write_text(marker.read_text().replace("query-1", "query-2"))
    with pytest.raises(SinkError, match="belongs to sink 'by_plane' of query query-2"):
        sink.deliver(EPOCHS[1])
    assert read(tmp_path) == ROWS[:3]


@pytest.mark.parametrize("renames", [True, False])
def test_an_epoch_that_a_reader_took_away_does_not_come_back(tmp_path: Path, renames: bool) -> None:
    filesystem = pafs.PyFileSystem(FaultyHandler(tmp_path, renames=renames))
    for _ in range(2):
        sink = opened("out", filesystem=filesystem)
        for epoch in EPOCHS:
            sink.deliver(epoch)
        for number in (0, 1):
            shutil.rmtree(tmp_path / f"out/epoch={number}", ignore_errors=True)
    assert read(tmp_path / "out") == []


def test_a_type_that_parquet_cannot_hold_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("plane", pa.string()), ("total", pa.decimal128(5, -2))])
    with pytest.raises(SinkError, match="cannot be a column of a Parquet file"):
        opened(tmp_path, context(schema=schema))


def test_columns_count_from_their_first_rows_on(tmp_path: Path) -> None:
    wrong = context(schema=pa.schema([("plane", pa.string()), ("total", pa.float64())]))
    opened(tmp_path, wrong)
    opened(tmp_path).deliver(EPOCHS[0])
    with pytest.raises(SinkError, match="column 'total' has type"):
        opened(tmp_path, wrong)


def test_what_attempts_left_is_removed_with_the_next_epoch(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for name in ("0-3-opening-attempt", "1-3-opening-attempt", "2-3-opening-attempt"):
        (tmp_path / "_staging" / name).mkdir(parents=True)
    sink.deliver(EPOCHS[1])
    assert [path.name for path in (tmp_path / "_staging").iterdir()] == ["2-3-opening-attempt"]


def test_files_are_no_larger_than_stores_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "FILE_BYTES", 1000)
    monkeypatch.setattr(parquet, "join_small_batches", lambda batches: batches)
    table = pa.table({"plane": [f"N{i}" for i in range(400)], "total": range(400)}, schema=SCHEMA)
    opened(tmp_path).deliver(EpochRows(epoch=0, table=table, batch_rows=40))
    assert len(visible_files(tmp_path)) > 3
    assert sorted(row[2] for row in read(tmp_path)) == list(range(400))


def test_small_batches_make_one_row_group_and_rows_keep_their_order(tmp_path: Path) -> None:
    table = pa.table({"plane": [f"N{i}" for i in range(1000)], "total": range(1000)}, schema=SCHEMA)
    opened(tmp_path).deliver(EpochRows(epoch=0, table=table, batch_rows=10))
    file = pq.ParquetFile(tmp_path / "epoch=0/part-00000.parquet")
    assert file.metadata.num_row_groups == 1
    assert file.read().equals(table)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_memory_does_not_grow_with_the_epoch(tmp_path: Path) -> None:
    text = pa.array(["N1" * 500] * 5_000)
    totals = pa.array(range(5_000))

    def peak_bytes(count: int) -> int:
        peak, before = 0, pa.total_allocated_bytes()

        class Generated(EpochRows):
            num_rows = count * len(text)

            def batches(self) -> Iterator[pa.RecordBatch]:
                nonlocal peak
                for _ in range(count):
                    columns = [pa.concat_arrays([values]) for values in (text, totals)]
                    yield pa.record_batch(columns, schema=SCHEMA)
                    peak = max(peak, pa.total_allocated_bytes() - before)

        sink = opened(tmp_path / str(count))
        sink.deliver(Generated(epoch=0, table=SCHEMA.empty_table()))
        return peak

    assert peak_bytes(80) < 1.2 * peak_bytes(20)


def test_an_epoch_without_rows_leaves_nothing(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.deliver(rows(0))
    assert visible_files(tmp_path) == []
    assert latest_epoch(tmp_path) is None


@pytest.mark.parametrize("partition_by", [(), ("plane",)])
def test_a_complete_epoch_without_rows_is_an_empty_result(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    sink = opened(tmp_path, context(complete=True), partition_by=partition_by)
    sink.deliver(EPOCHS[0])
    sink.deliver(rows(1))
    assert latest_epoch(tmp_path) == 1
    assert [row[0] for row in read(tmp_path)] == [0, 0, 0]
    depths = {file.count("/") for file in visible_files(tmp_path)}
    assert depths == {1 + len(partition_by)}


def test_the_latest_epoch_of_a_complete_result_is_a_directory_of_its_own(tmp_path: Path) -> None:
    sink = opened(tmp_path, context(complete=True))
    for epoch in EPOCHS:
        sink.deliver(epoch)
    latest = pq.read_table(tmp_path / f"epoch={latest_epoch(tmp_path)}", partitioning=None)
    assert latest.equals(EPOCHS[1].table)


def test_an_epoch_without_rows_removes_nothing_while_no_epoch_is_delivered(tmp_path: Path) -> None:
    sink = opened(tmp_path, context(complete=True), keep=1)
    (tmp_path / "epoch=0").mkdir()  # of a delivery that was cut short
    sink.deliver(EpochRows(epoch=0, table=SCHEMA.empty_table(), complete=False))
    assert (tmp_path / "epoch=0").is_dir()


def test_only_the_newest_epochs_are_kept_and_older_ones_do_not_come_back(tmp_path: Path) -> None:
    sink = opened(tmp_path, context(complete=True), keep=2)
    for number in range(5):
        sink.deliver(rows(number, ("N1", number)))
    sink.deliver(rows(0, ("N1", 0)))
    assert read(tmp_path) == [(3, "N1", 3), (4, "N1", 4)]


def test_what_a_removal_that_was_cut_short_left_is_removed_with_the_next_epoch(
    tmp_path: Path,
) -> None:
    sink = opened(tmp_path, context(complete=True), keep=2)
    for number in range(3):
        sink.deliver(rows(number, ("N1", number)))
    left = tmp_path / "epoch=0" / "part-00000.parquet"
    left.parent.mkdir()
    left.touch()
    sink.deliver(rows(3, ("N1", 3)))
    assert sorted(path.name for path in tmp_path.glob("epoch=*")) == ["epoch=2", "epoch=3"]


def test_partition_values_of_every_kind_are_read_back(tmp_path: Path) -> None:
    day = dt.date(2024, 2, 29)
    schema = pa.schema(
        [("a b", pa.string()), ("n", pa.int16()), ("day", pa.date32()), ("f", pa.bool_()), *SCHEMA]
    )
    values = [["x=1 %/ż", None], [-5, None], [day, None], [True, None], ["N1", "N2"], [1, 2]]
    table = pa.table(values, schema=schema)
    sink = opened(tmp_path, context(schema=schema), partition_by=schema.names[:4])
    sink.deliver(EpochRows(epoch=0, table=table))
    partitioning = ds.partitioning(
        pa.schema([("epoch", pa.int32()), *list(schema)[:4]]), flavor="hive"
    )
    found = ds.dataset(tmp_path, format="parquet", partitioning=partitioning).to_table()
    assert found.select(schema.names).sort_by("total").to_pylist() == table.to_pylist()


# --- crashes --------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", [(), ("plane",)], ids=["one file", "many files"])
@pytest.mark.parametrize("renames", [True, False], ids=["renames", "object store"])
def test_a_crash_at_any_operation_neither_loses_nor_doubles_rows(
    tmp_path: Path, partition_by: tuple[str, ...], renames: bool
) -> None:
    half_seen = 0
    for step in count():
        root = tmp_path / str(step)
        root.mkdir()
        handler = FaultyHandler(root, renames=renames)
        options = {"partition_by": partition_by, "filesystem": pafs.PyFileSystem(handler)}
        sink = opened("out", **options)
        sink.deliver(EPOCHS[0])
        before = read(root / "out")
        handler.restart(fail_at=step)
        try:
            sink.deliver(EPOCHS[1])
        except SinkError:
            seen = read(root / "out")
            half_seen += seen not in (before, ROWS)
            done = (root / "out/epoch=1/_SUCCESS").exists()
            assert not done or seen == ROWS, handler.operations
        else:
            break
        handler.restart()
        opened("out", **options).deliver(EPOCHS[1])
        assert read(root / "out") == ROWS, f"crash at {step}: {handler.operations}"
        assert not (root / "out/_staging").exists() or not any((root / "out/_staging").iterdir())
    assert step > 4
    assert half_seen == 0 if renames or not partition_by else half_seen > 0


def test_a_crash_at_any_operation_of_open_does_no_harm(tmp_path: Path) -> None:
    for step in count():
        root = tmp_path / str(step)
        root.mkdir()
        handler = FaultyHandler(root)
        handler.restart(fail_at=step)
        sink = gw.sinks.parquet("out", filesystem=pafs.PyFileSystem(handler))
        try:
            sink.open(context())
        except SinkError:
            handler.restart()
            sink.open(context())
        else:
            break
        sink.deliver(EPOCHS[0])
        assert len(read(root / "out")) == 3
    assert step > 3


@pytest.mark.parametrize("renames", [True, False], ids=["renames", "object store"])
def test_an_error_while_rows_are_read_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    def fail(batch: int) -> None:
        if batch == 1:
            raise ValueError("the checkpoint is damaged")

    # Every batch is written at once, so that some rows are in a file when the error comes.
    monkeypatch.setattr(parquet, "join_small_batches", lambda batches: batches)
    root = tmp_path / "out"
    sink = opened("out", filesystem=pafs.PyFileSystem(FaultyHandler(tmp_path, renames=renames)))
    with pytest.raises(ValueError, match="damaged"):
        sink.deliver(EpochRows(epoch=0, table=EPOCHS[0].table, on_batch=fail))
    assert visible_files(root) == []
    assert not (root / "_staging").exists() or not any((root / "_staging").iterdir())
    sink.deliver(EPOCHS[0])
    assert len(read(root)) == 3


@pytest.mark.parametrize("moves_into", [False, True], ids=["refuses", "moves into"])
def test_two_deliveries_of_one_epoch_at_the_same_time_leave_its_rows_once(
    tmp_path: Path, moves_into: bool
) -> None:
    barrier = threading.Barrier(2, timeout=60)

    def meet(batch: int) -> None:
        if batch == 0:
            barrier.wait()

    errors: list[SinkError] = []

    def deliver(sink: ParquetSink) -> None:
        try:
            sink.deliver(EpochRows(epoch=0, table=EPOCHS[0].table, on_batch=meet))
        except SinkError as error:
            errors.append(error)

    handler = FaultyHandler(tmp_path, moves_into=moves_into)
    options: dict[str, Any] = {"filesystem": pafs.PyFileSystem(handler)} if moves_into else {}
    out = tmp_path / "out"
    sinks = [opened("out" if moves_into else out, **options) for _ in range(2)]
    threads = [threading.Thread(target=deliver, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert read(out) == ROWS[:3]
    assert visible_files(out) == ["epoch=0/part-00000.parquet"]


def test_an_epoch_directory_that_the_sink_did_not_complete_is_an_error(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    (tmp_path / "epoch=0").mkdir()
    (tmp_path / "epoch=0" / "stranger.parquet").write_bytes(b"")
    with pytest.raises(SinkError, match="epoch 0 cannot be written") as caught:
        sink.deliver(EPOCHS[0])
    assert caught.value.context["epoch"] == 0


# --- losses of power ------------------------------------------------------------------------


class PowerCuts:
    """Contents of a disk had the power failed, at every moment at which something is forced.

    The disk is as nasty as it may be: a name may be durable without having been forced, or not,
    and bytes are durable only if they have been.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self.epochs_seen: list[int] = []

    def force(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            names = self._names[inode] = {}
            for entry in path.iterdir():
                # Other processes use directories above ours too.
                with contextlib.suppress(FileNotFoundError):
                    names[entry.name] = entry.stat().st_ino
        else:
            self._bytes[inode] = path.read_bytes()
        self.check_names()

    def check_names(self) -> None:
        """Whatever has a name that counts has its bytes and all names under it."""
        epochs = sorted(self._root.glob("epoch=*"))
        self.epochs_seen.append(len(epochs))
        for epoch in epochs:
            for path in [epoch, *epoch.rglob("*")]:
                inode = path.stat().st_ino
                if path.is_dir():
                    names = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
                    assert self._names.get(inode) == names, path
                else:
                    assert self._bytes.get(inode) == path.read_bytes(), path

    def survivors(self) -> dict[str, bytes]:
        """Files of which bytes and names have been forced, by path."""
        found: dict[str, bytes] = {}

        def walk(inode: int, path: str) -> None:
            for name, inner in self._names.get(inode, {}).items():
                if inner in self._bytes:
                    found[f"{path}{name}"] = self._bytes[inner]
                walk(inner, f"{path}{name}/")

        walk(self._root.parent.stat().st_ino, "")
        return found


@pytest.mark.parametrize("partition_by", [(), ("plane",)], ids=["one file", "many files"])
@pytest.mark.parametrize("sub_tree", [False, True])
def test_an_epoch_that_was_delivered_survives_a_loss_of_power(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partition_by: tuple[str, ...],
    sub_tree: bool,
) -> None:
    cuts = PowerCuts(tmp_path / "new" / "out")
    monkeypatch.setattr(os, "fsync", cuts.force)
    filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()) if sub_tree else None
    path = "new/out" if sub_tree else tmp_path / "new" / "out"
    sink = opened(path, partition_by=partition_by, filesystem=filesystem)
    for number, epoch in enumerate(EPOCHS):
        sink.deliver(epoch)
        files = {p for p in (tmp_path / "new" / "out").rglob("*") if p.is_file()}
        files -= {tmp_path / "new" / "out" / "_delivered.json"}  # the epochs say the same
        there = {p.relative_to(tmp_path / "new").as_posix(): p.read_bytes() for p in files}
        assert cuts.survivors().items() >= there.items()
        assert sum(name.endswith("_SUCCESS") for name in there) == number + 1
        assert "out/_godwit.json" in there
    assert cuts.epochs_seen[-1] == 2


def test_an_epoch_survives_whose_name_was_not_durable_when_the_driver_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = PowerCuts(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", cuts.force)
    sink = opened(tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "_force_root", failing(CrashError("here")))
        with pytest.raises(SinkError):
            sink.deliver(EPOCHS[0])
    opened(tmp_path / "out").deliver(EPOCHS[0])
    assert "out/epoch=0/part-00000.parquet" in cuts.survivors()


def test_a_directory_that_cannot_be_forced_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    opened(tmp_path / "out").deliver(EPOCHS[0])
    assert read(tmp_path / "out") == ROWS[:3]


def test_a_file_that_cannot_be_forced_is_an_error_and_its_epoch_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path / "out")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(SinkError, match="epoch 0 cannot be written"):
            sink.deliver(EPOCHS[0])
    assert read(tmp_path / "out") == []
    sink.deliver(EPOCHS[0])
    assert read(tmp_path / "out") == ROWS[:3]


# --- whose epochs they are ------------------------------------------------------------------


def up_to(sink: ParquetSink, last: int, history: str = "h", first: int = 0) -> None:
    for number in range(first, last + 1):
        sink.deliver(replace(rows(number, (f"{history}{number}", number)), history=history))


def planes(path: Path) -> list[str]:
    return [row[1] for row in read(path)]


def test_a_directory_says_which_epoch_of_which_history_it_got_last(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    assert sink.last_delivered() is None
    up_to(sink, 1)
    sink.deliver(rows(2))
    assert opened(tmp_path).last_delivered() == point(1)
    (tmp_path / "_delivered.json").write_text("{torn")
    assert opened(tmp_path).last_delivered() == point(1)
    (tmp_path / "epoch=1" / "_SUCCESS").write_bytes(b"")  # damaged
    unknown = opened(tmp_path).last_delivered()
    assert unknown is not None
    assert (unknown.epoch, unknown.digest) == (1, "")


def test_a_directory_is_the_same_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = opened("out")
    before = sink.target
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert sink.target == before == str(tmp_path / "out")


def test_an_epoch_that_somebody_took_away_does_not_come_back(tmp_path: Path) -> None:
    up_to(opened(tmp_path), 1)
    shutil.rmtree(tmp_path / "epoch=1")
    again = opened(tmp_path)
    assert again.last_delivered() == point(1)
    up_to(again, 2)
    assert planes(tmp_path) == ["h0", "h2"]


def test_results_that_were_not_kept_are_not_missed_after_a_roll_back(tmp_path: Path) -> None:
    up_to(opened(tmp_path, context(complete=True), keep=2), 7)
    sink = opened(tmp_path, context(complete=True), keep=2)
    sink.roll_back(Committed(latest_epoch=3), -1)
    assert sink.last_delivered() == point(3)
    up_to(sink, 4)
    assert planes(tmp_path) == ["h4"]


def test_a_new_writer_needs_a_directory_without_later_epochs(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    up_to(sink, 3)
    with pytest.raises(
        SinkError, match=r"would begin with epoch 3, but the directory has epochs up to 3"
    ):
        sink.continue_after(point(2, "b"))
    sink.continue_after(point(5, "b"))
    up_to(opened(tmp_path), 6, "b")
    assert planes(tmp_path) == ["h0", "h1", "h2", "h3", "b6"]


# --- what open refuses ----------------------------------------------------------------------


def test_the_directory_of_another_query_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, context(query_id="old"))
    with pytest.raises(SinkError, match="belongs to sink 'by_plane' of query old"):
        opened(tmp_path, context(query_id="new"))


def test_the_directory_of_another_sink_of_the_query_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, context(name="hourly"))
    with pytest.raises(SinkError, match="belongs to sink 'hourly'"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("ctx", "options", "message"),
    [
        (
            context(schema=pa.schema([("plane", pa.string()), ("total", pa.float64())])),
            {},
            "column 'total' has type double, but had type int64",
        ),
        (context(), {"partition_by": "plane"}, "partition_by changed"),
    ],
)
def test_a_layout_that_changed_since_is_refused(
    tmp_path: Path, ctx: SinkContext, options: dict[str, Any], message: str
) -> None:
    opened(tmp_path).deliver(EPOCHS[0])
    with pytest.raises(SinkError, match=message):
        opened(tmp_path, ctx, **options)


@pytest.mark.parametrize("moves_into", [False, True], ids=["local", "hdfs"])
def test_a_crash_while_columns_change_leaves_the_directory_its_owner(
    tmp_path: Path, moves_into: bool
) -> None:
    schema = SCHEMA.append(pa.field("mean", pa.float64()))
    ctx = context(schema=schema)
    rows_of_today = EpochRows(epoch=1, table=pa.table([["N9"], [9], [0.5]], schema=schema))
    for step in count():
        root = tmp_path / str(step)
        root.mkdir()
        handler = FaultyHandler(root, moves_into=moves_into)
        given = pafs.PyFileSystem(handler)
        opened("out", filesystem=given).deliver(EPOCHS[0])
        handler.restart(fail_at=step)
        sink = gw.sinks.parquet("out", filesystem=given)
        try:
            sink.open(ctx)
            sink.deliver(rows_of_today)
        except SinkError:
            handler.restart()
            sink.open(ctx)
            sink.deliver(rows_of_today)
            opened("out", ctx, filesystem=given)
        else:
            break
    assert step > 5


def test_a_new_column_that_is_never_null_is_null_in_rows_of_an_earlier_flow(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("new", pa.int64(), nullable=False))
    sink = opened(tmp_path, context(schema=schema))
    sink.deliver(EPOCHS[0])
    found = pq.read_table(tmp_path / "epoch=0")
    assert found.column("new").null_count == found.num_rows == 3


def test_columns_may_come_and_go_between_runs(tmp_path: Path) -> None:
    opened(tmp_path).deliver(EPOCHS[0])
    more = SCHEMA.append(pa.field("mean", pa.float64()))
    sink = opened(tmp_path, context(schema=more))
    table = pa.table({"plane": ["N9"], "total": [9], "mean": [0.5]}, schema=more)
    sink.deliver(EpochRows(epoch=1, table=table))
    opened(tmp_path, context(schema=pa.schema([("plane", pa.string())])))
    with pytest.raises(SinkError, match="column 'mean' has type"):
        opened(tmp_path, context(schema=pa.schema([("mean", pa.int8())])))
    found = ds.dataset(tmp_path, schema=more, format="parquet").to_table().sort_by("total")
    assert found.column("mean").to_pylist() == [None, None, None, 0.5]


def test_a_directory_whose_owner_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_godwit.json").write_text("{")
    with pytest.raises(SinkError, match=r"_godwit\.json cannot be read"):
        opened(tmp_path)


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(SinkError, match=r"already holds holiday\.jpg"):
        opened(tmp_path)


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="cannot write to") as caught:
        opened(tmp_path / "file" / "out")
    assert caught.value.context["sink"] == "by_plane"


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ([], {"partition_by": ["tail"]}, "partition_by names 'tail'"),
        ([("mean", pa.float64())], {"partition_by": "mean"}, "of type double cannot be part of"),
        (
            [("a/b", pa.string())],
            {"partition_by": "a/b"},
            "'a/b' cannot be part of directory names",
        ),
        (
            [("a:b", pa.string())],
            {"partition_by": "a:b"},
            "'a:b' cannot be part of directory names",
        ),
        ([("", pa.string())], {"partition_by": ""}, "'' cannot be part of directory names"),
        (
            [("é" * 120, pa.int8())],
            {"partition_by": "é" * 120},
            "cannot be part of directory names",
        ),
        (
            [("_year", pa.int32())],
            {"partition_by": "_year"},
            "'_year' cannot be part of directory names",
        ),
        (
            [(".year", pa.int32())],
            {"partition_by": ".year"},
            r"'\.year' cannot be part of directory names",
        ),
        ([("Epoch", pa.int64())], {}, "a column is called 'epoch'"),
        ([], {"partition_by": ["plane", "total"]}, "has all columns"),
        ([("gap", pa.month_day_nano_interval())], {}, "cannot be a column of a Parquet file"),
        ([], {"keep": 3}, "keep= needs complete mode"),
    ],
)
def test_columns_and_options_that_do_not_go_together_are_refused(
    tmp_path: Path, fields: list[Any], options: dict[str, Any], message: str
) -> None:
    schema = pa.schema([*SCHEMA, *fields])
    with pytest.raises(SinkError, match=message):
        opened(tmp_path / "out", context(schema=schema), **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"compression": codec}, repr(codec)) for codec in ("winzip", "bz2", "lz4_frame", None)],
        ({"keep": 0}, "keep=0"),
    ],
)
def test_options_that_are_never_right_are_refused_at_once(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        gw.sinks.parquet("out", **options)


# --- paths ----------------------------------------------------------------------------------


def test_a_uri_and_a_path_are_the_same_directory(tmp_path: Path) -> None:
    sink = opened(f"file://{tmp_path}/out/", compression="none")
    sink.deliver(EPOCHS[0])
    opened(tmp_path / "out").deliver(EPOCHS[1])
    assert read(tmp_path / "out") == ROWS
    assert latest_epoch(f"file://{tmp_path}/out") == 1


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened("out").deliver(EPOCHS[0])
    assert len(read(tmp_path / "out")) == 3


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_all_words_for_s3_open_it(scheme: str) -> None:
    filesystem, path = open_file_system(f"{scheme}://bucket/out/?region=eu-west-1")
    assert (filesystem.type_name, path) == ("s3", "bucket/out")


def test_a_uri_of_no_known_kind_is_refused() -> None:
    with pytest.raises(SinkError, match="Cannot open carrier-pigeon:"):
        open_file_system("carrier-pigeon://coop/out")


def test_a_path_that_is_not_there_has_no_latest_epoch(tmp_path: Path) -> None:
    assert latest_epoch(tmp_path / "nothing") is None
