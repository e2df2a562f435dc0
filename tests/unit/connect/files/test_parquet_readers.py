"""Lists of delivered files: whole epochs without a gap, whatever happens while they are made."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
import pytest
from tests.support.epoch_rows import Committed, EpochRows, context, rows
from tests.support.file_systems import CrashError, FaultyHandler
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.connect.files.parquet_sink import ParquetSink

PARTED = Committed(latest_epoch=8, history="other", parted={"h": 8})


class SlowLists(FaultyHandler):
    """A file system whose `slow`-th list of a directory has its first names from before `happen`.

    The other names are from after it.
    """

    happen: Callable[[], object] | None = None
    slow = num_first = num_names = num_lists = 0
    backwards = False

    def get_file_info_selector(self, selector: Any) -> Any:
        if not selector.recursive or self.happen is None:
            return super().get_file_info_selector(selector)
        self.num_lists += 1
        if self.num_lists <= self.slow:
            return super().get_file_info_selector(selector)
        happen, self.happen = self.happen, None
        before = {info.path: info for info in super().get_file_info_selector(selector)}
        happen()
        after = {info.path: info for info in super().get_file_info_selector(selector)}
        names = sorted(before.keys() | after.keys(), reverse=self.backwards)
        self.num_names = len(names)
        first, later = names[: self.num_first], names[self.num_first :]
        found = [before.get(name) for name in first] + [after.get(name) for name in later]
        return [info for info in found if info is not None]


def epoch(number: int, history: str = "h") -> EpochRows:
    table = rows(number, ("N1", number), ("N2", number)).table
    return EpochRows(epoch=number, table=table, history=history)


def opened(path: Path | str, **options: Any) -> ParquetSink:
    sink = gw.sinks.parquet(path, **options)
    sink.open(context(complete="keep" in options))
    return sink


def deliver(sink: ParquetSink) -> None:
    for number in (9, 10, 11):
        sink.deliver(epoch(number))


def roll_back(sink: ParquetSink) -> None:
    sink.roll_back(Committed(latest_epoch=7), -1)


@pytest.mark.parametrize(("renames", "backwards"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize(("slow", "happen"), [(0, deliver), (1, roll_back)])
def test_a_list_has_whole_epochs_without_a_gap_whatever_happens_meanwhile(
    tmp_path: Path,
    happen: Callable[[ParquetSink], None],
    slow: int,
    backwards: bool,
    renames: bool,
) -> None:
    num_names = 59
    for first in range(num_names):
        if 8 <= first < num_names - 8 and first % rounds(12, 1):
            continue
        root = tmp_path / str(first)
        root.mkdir()
        handler = SlowLists(root, renames=renames)
        filesystem = pafs.PyFileSystem(handler)
        sink = opened("out", filesystem=filesystem, partition_by="plane")
        for number in range(9):
            sink.deliver(epoch(number))
        handler.happen, handler.slow = lambda sink=sink: happen(sink), slow
        handler.num_first, handler.backwards = first, backwards
        files = gw.sinks.delivered_files("out", filesystem)
        counts = Counter(int(file.split("/")[1].removeprefix("epoch=")) for file in files)
        assert [*counts.elements()] == sorted([*range(len(counts))] * 2), first
        assert len(counts) >= 8
        assert num_names - 3 <= handler.num_names <= num_names + 20
        shutil.rmtree(root)


def test_an_epoch_that_is_being_removed_is_not_in_a_list(tmp_path: Path) -> None:
    for first in range(20):
        handler = SlowLists(tmp_path)
        filesystem = pafs.PyFileSystem(handler)
        sink = opened(str(first), filesystem=filesystem, partition_by="plane", keep=2)
        for number in range(3):
            sink.deliver(epoch(number))
        handler.happen, handler.slow, handler.num_first = (
            lambda s=sink: s.deliver(epoch(3)),
            1,
            first,
        )
        files = gw.sinks.delivered_files(str(first), filesystem)
        counts = Counter(file.split("/")[1] for file in files)
        assert set(counts.values()) == {2}, files


def test_only_files_that_a_sink_writes_are_delivered_files(tmp_path: Path) -> None:
    sink = opened(tmp_path, manifest="1 minute")
    for number in range(2):
        sink.deliver(epoch(number))
    files = gw.sinks.delivered_files(tmp_path)
    for name in ("epoch=1/other.parquet", "epoch=1/._part-00000.parquet", "epoch=01/_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(files[0], tmp_path / name)
    shutil.copy(files[0], tmp_path / "epoch=01/part-00000.parquet")
    assert gw.sinks.delivered_files(tmp_path) == files
    sink.close()
    assert (tmp_path / "_manifest/symlink/files.txt").read_text().count("\n") == 2


def test_a_path_with_a_question_mark_is_listed_whole(tmp_path: Path) -> None:
    sink = opened(tmp_path / "what?", manifest="1 minute")
    sink.deliver(epoch(0))
    sink.close()
    (file,) = gw.sinks.delivered_files(tmp_path / "what?")
    assert file == f"{tmp_path}/what?/epoch=0/part-00000.parquet"
    lines = (tmp_path / "what?/_manifest/symlink/files.txt").read_text()
    assert lines == f"file://{file}\n"


@pytest.mark.parametrize("layout", [{}, {"renames": False}, {"moves_into": True}])
def test_another_history_goes_on_wherever_the_driver_dies_in_a_roll_back(
    tmp_path: Path, layout: dict[str, bool]
) -> None:
    for step in range(40):
        root = tmp_path / str(step)
        root.mkdir()
        handler = FaultyHandler(root, **layout)
        filesystem = pafs.PyFileSystem(handler)
        former = opened("out", filesystem=filesystem)
        for number in range(11):
            former.deliver(epoch(number))
        handler.restart(fail_at=step)
        is_over = False
        try:
            former.roll_back(PARTED, -1)
            is_over = True
        except (SinkError, CrashError):
            pass
        handler.restart()
        sink = opened("out", filesystem=filesystem)
        sink.roll_back(PARTED, -1)
        for number in (9, 10):
            sink.deliver(epoch(number, "other"))
        assert len(gw.sinks.delivered_files("out", filesystem)) == 11, handler.operations
        for number in range(11):
            point = sink._directory.epoch_point(number)
            assert point.history == ("h" if number < 9 else "other")
        if is_over:
            break
    assert is_over
    assert step > 6


def test_a_directory_that_swallows_an_epoch_on_hdfs_is_an_error(tmp_path: Path) -> None:
    filesystem = pafs.PyFileSystem(FaultyHandler(tmp_path, moves_into=True))
    sink = opened("out", filesystem=filesystem)
    (tmp_path / "out/epoch=0").mkdir()
    with pytest.raises(SinkError, match=r"epoch 0 cannot be written to out: .*without _SUCCESS"):
        sink.deliver(epoch(0))
    assert not list((tmp_path / "out/epoch=0").iterdir())


@pytest.mark.parametrize("layout", [{}, {"renames": False}])
def test_the_epoch_of_another_history_is_not_taken_for_delivered(
    tmp_path: Path, layout: dict[str, bool]
) -> None:
    filesystem = pafs.PyFileSystem(FaultyHandler(tmp_path, **layout))
    copies = [opened("out", filesystem=filesystem) for _ in range(2)]
    copies[0].deliver(epoch(0))
    copies[1].deliver(epoch(0))  # of their common history
    copies[0].deliver(epoch(1))
    with pytest.raises(SinkError, match="epoch 1 exists already, with the rows of history h, "):
        copies[1].deliver(epoch(1, "other"))
