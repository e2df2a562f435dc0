"""Offsets go by what a source reads, however often and in which order a plan reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from godwit.checkpoint.spark_log import (
    OffsetLayout,
    Reading,
    keep_offsets,
    load_layout,
    update_layout,
)
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def reading(source: str, path: str = "", index: int = 0) -> tuple[Reading, ...]:
    reads = {"format": "parquet", "path": path or f"/data/{source}"}
    return (Reading(source=source, index=index, reads=reads),)


def layout(*lines: int, readings: tuple[tuple[Reading, ...], ...] | None = None) -> OffsetLayout:
    return OffsetLayout(readings=readings or (reading("a"), reading("b")), lines=lines)


def entry(number: int, *lines: int) -> bytes:
    """An entry in which source 0 stands at `number`, and every other as many tens behind."""
    settings = json.dumps({"batchTimestampMs": number})
    return "\n".join(["v1", settings, *(f'{{"0":{number + 10 * s}}}' for s in lines)]).encode()


class Log:
    """Spark's log of offsets in a directory."""

    def __init__(self, root: Path) -> None:
        self.storage = CheckpointStorage.open(root)
        self.offsets = root / "spark" / "offsets"

    def put(self, *lines: int, numbers: tuple[int, ...] = (6, 7)) -> None:
        self.offsets.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (self.offsets / f"{number}").write_bytes(entry(number, *lines))
            (self.offsets / f".{number}.crc").write_bytes(b"crc of Hadoop's")

    def start(self, given: OffsetLayout, *, committed: bool = True) -> None:
        update_layout(self.storage, given, committed=committed)

    @property
    def found(self) -> dict[int, bytes]:
        return {int(p.name): p.read_bytes() for p in self.offsets.iterdir() if p.name[0] != "."}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path)
    made.start(layout(0, 1, 1))
    made.put(0, 1, 1)
    return made


@pytest.mark.parametrize("lines", [(0, 0, 1), (0, 1), (0, 0, 0, 1, 1), (1, 0)])
def test_every_line_gets_the_offset_of_its_source(log: Log, lines: tuple[int, ...]) -> None:
    log.start(layout(*lines))
    assert log.found == {number: entry(number, *lines) for number in (6, 7)}
    assert not list(log.offsets.glob(".*.crc"))
    assert load_layout(log.storage) == layout(*lines)
    log.start(layout(0, 1, 1))
    assert log.found == {number: entry(number, 0, 1, 1) for number in (6, 7)}


def test_only_what_spark_reads_is_written(log: Log) -> None:
    log.put(0, 1, 1, numbers=(4, 5))
    log.start(layout(0, 1))
    assert log.found[5] == entry(5, 0, 1, 1)
    assert log.found[7] == entry(7, 0, 1)


@pytest.mark.parametrize("writes", range(5))
def test_a_start_that_dies_is_finished_by_the_next(
    log: Log, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    write, left = type(log.storage).write_atomic, [writes]

    def dying(self: CheckpointStorage, path: str, data: bytes) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write(self, path, data)

    monkeypatch.setattr(type(log.storage), "write_atomic", dying)
    try:
        log.start(layout(0, 0, 1))
    except KeyboardInterrupt:
        assert writes < 4
    monkeypatch.undo()
    log.start(layout(0, 1))
    assert log.found == {number: entry(number, 0, 1) for number in (6, 7)}
    assert load_layout(log.storage) == layout(0, 1)


def test_sources_that_exchange_their_data_are_refused_and_nothing_is_touched(log: Log) -> None:
    before = log.found
    exchanged = layout(0, 1, readings=(reading("a", "/data/b"), reading("b", "/data/a")))
    with pytest.raises(CheckpointMismatchError, match=r"source 'a' read parquet of path '/data/a'"):
        log.start(exchanged)
    assert log.found == before
    assert load_layout(log.storage) == layout(0, 1, 1)


@pytest.mark.parametrize(
    ("readings", "told"),
    [
        (
            (reading("a", "/other"), reading("b")),
            "source 'a' read .*'/data/a' and reads .*'/other'",
        ),
        ((reading("b"), reading("a")), "source 'a' was Spark's source 0 and would be 1"),
        (
            (reading("a"), reading("a", "/more", 1), reading("b")),
            "source 'a' read 1 streams and reads 2",
        ),
        ((reading("a"), reading("c")), "source 'b' read 1 streams and reads 0"),
    ],
)
def test_a_source_that_reads_something_else_is_refused(
    log: Log, readings: tuple[tuple[Reading, ...], ...], told: str
) -> None:
    given = OffsetLayout(readings=readings, lines=tuple(range(len(readings))))
    with pytest.raises(CheckpointMismatchError, match=told) as caught:
        log.start(given)
    assert "keep-offsets" in caught.value.remedy


def test_offsets_are_kept_for_other_data_when_that_is_said(log: Log) -> None:
    moved = layout(0, 1, 1, readings=(reading("a", "/moved"), reading("b")))
    root = str(log.offsets.parent.parent)
    with pytest.raises(CheckpointMismatchError, match="Its sources are a, b"):
        keep_offsets(log.storage, "c")
    keep_offsets(log.storage, "a")
    log.start(moved)
    assert load_layout(log.storage) == moved
    assert main(["checkpoint", "keep-offsets", root, "a"]) == 2  # no epoch: no checkpoint yet


def test_a_single_source_may_be_renamed(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.start(layout(0, readings=(reading("a"),)))
    log.put(0)
    named = (Reading(source="b", reads=reading("a")[0].reads),)
    log.start(layout(0, 0, readings=(named,)))
    assert log.found[7] == entry(7, 0, 0)


def test_before_the_first_epoch_offsets_of_other_data_are_forgotten(log: Log) -> None:
    (log.offsets.parent / "sources" / "1").mkdir(parents=True)  # source 0 keeps no log
    (log.offsets.parent / "sources" / "1" / "0").write_bytes(b"v1\n{}")
    log.start(layout(0, 1, 1), committed=False)
    assert set(log.found) == {6, 7}
    log.start(layout(0, 1, readings=(reading("a", "/other"), reading("b"))), committed=False)
    assert log.found == {}
    assert not (log.offsets.parent / "sources" / "1" / "0").exists()


@pytest.mark.parametrize("lines", [(0, 1), (0, 0, 1), (0, 1, 1), (0, 1, 1, 1)])
def test_a_log_from_before_there_were_layouts_is_taken_up(
    tmp_path: Path, lines: tuple[int, ...]
) -> None:
    log = Log(tmp_path)
    log.put(*lines)
    log.start(layout(0, 0, 1))
    assert log.found == {number: entry(number, 0, 0, 1) for number in (6, 7)}


def test_a_log_of_which_nothing_says_whose_its_lines_are_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.put(0, 0, 0, 0)
    with pytest.raises(
        CheckpointMismatchError, match="offsets/6 has 4 offsets, and their sources are not"
    ):
        log.start(layout(0, 1))


def test_a_log_without_what_its_sources_noted_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.offsets.mkdir(parents=True)
    (log.offsets / "3").write_bytes(b'v1\n{}\n{"logOffset":3}')
    with pytest.raises(CorruptCheckpointError, match="sources/0/0, sources/0/1") as caught:
        log.start(layout(0, readings=(reading("a"),)))
    assert "godwit checkpoint repair" in caught.value.remedy
