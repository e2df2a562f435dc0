"""Rows of files that no micro-batch has taken yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.control.test_thread import batch_of_files

from godwit.control.pending_files import PendingFiles

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """Time that passes by a step at each look."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def test_younger_files_count_as_many_rows_as_those_that_were_taken(tmp_path: Path) -> None:
    batch = batch_of_files(tmp_path, read=4, pending=10)
    for hidden in ("_SUCCESS", ".being-written"):
        (tmp_path / hidden).touch()
    (tmp_path / "directory").mkdir()
    assert PendingFiles(Clock(0.0)).estimate_rows(batch, 100) == 250


def test_files_of_other_sizes_have_other_numbers_of_rows(tmp_path: Path) -> None:
    """A file has a hundred bytes of its own here, and ten for each row."""

    def size(rows: int) -> int:
        return 100 + 10 * rows

    pending = PendingFiles(Clock(0.0))
    for number, rows in enumerate((50, 200, 60)):
        directory = tmp_path / str(number)
        directory.mkdir()
        batch = batch_of_files(
            directory, read=2, pending=3, sizes=[size(rows)] * 2 + [size(400)] * 3
        )
        estimate = pending.estimate_rows(batch, 2 * rows)
    assert estimate == pytest.approx(3 * 400, rel=0.02)


def test_where_all_files_were_alike_rows_go_by_bytes(tmp_path: Path) -> None:
    batch = batch_of_files(tmp_path, read=2, pending=4, sizes=[4000, 4000, *[1000] * 4])
    assert PendingFiles(Clock(0.0)).estimate_rows(batch, 800) == pytest.approx(400, rel=0.05)


def test_nothing_is_known_where_nothing_is_told(tmp_path: Path) -> None:
    batch = batch_of_files(tmp_path, read=1, pending=1)
    pending = PendingFiles(Clock(0.0))
    assert pending.estimate_rows(batch_of_files(tmp_path, read=0, pending=2), 5) is None
    kafka_too = type(batch)(
        number=0,
        digest="",
        offsets=batch.offsets + b'\n{"topic":{"0":7}}',
        sources=batch.sources,
    )
    assert pending.estimate_rows(kafka_too, 5) is None
    assert pending.estimate_rows(batch, 5) == 5


def test_a_directory_that_cannot_be_listed_is_tried_again_later_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    batch = batch_of_files(gone, read=1, pending=0)
    for file in gone.iterdir():
        file.unlink()
    gone.rmdir()
    clock = Clock(0.0)
    pending = PendingFiles(clock)
    assert pending.estimate_rows(batch, 5) is None
    clock.now += 11
    assert pending.estimate_rows(batch, 5) is None
    gone.mkdir()
    assert pending.estimate_rows(batch, 5) is None
    clock.now += 19
    assert pending.estimate_rows(batch, 5) is None  # twice as long after every failure
    clock.now += 2
    assert pending.estimate_rows(batch, 5) == 0
    (told,) = caplog.records
    assert "cannot be listed" in told.getMessage()


def test_listing_takes_a_fiftieth_of_the_time(tmp_path: Path) -> None:
    batch = batch_of_files(tmp_path, read=1, pending=1)
    clock = Clock(1.0)
    pending = PendingFiles(clock)
    assert pending.estimate_rows(batch, 5) == 5
    assert pending.estimate_rows(batch, 5) is None
    clock.now += 60
    assert pending.estimate_rows(batch, 5) == 5
