"""The journal is append-only, bounded, readable beside its writer, and never in anybody's way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from godwit.state import journal
from godwit.state.journal import JournalReader, JournalWriter, read_tail
from godwit.state.paths import JOURNAL, journal_path
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def numbers(storage: CheckpointStorage, count: int = 10**6) -> list[int]:
    return [entry["event"]["n"] for entry in read_tail(storage, count)]


def test_what_is_flushed_is_read_in_order_while_the_journal_grows(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    assert read_tail(storage, 5) == []
    writer = JournalWriter(storage, "r")
    for n in range(5):
        writer.add("event", {"n": n})
    assert numbers(storage) == []
    writer.flush()
    assert numbers(storage) == [0, 1, 2, 3, 4]
    writer.add("event", {"n": 5})
    writer.flush()
    writer.flush()
    assert numbers(storage, 2) == [4, 5]
    assert len(storage.list(JOURNAL)) == 1


def test_a_later_run_goes_on_after_the_earlier_one(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    for run in range(3):
        writer = JournalWriter(storage, f"r{run}")
        writer.add("event", {"n": run})
        writer.flush()
    assert numbers(storage) == [0, 1, 2]


def test_it_keeps_to_its_bounds_and_forgets_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 200)
    monkeypatch.setattr(journal, "_SEGMENTS_KEPT", 3)
    storage = CheckpointStorage.open(tmp_path)
    writer = JournalWriter(storage, "r")
    for n in range(100):
        writer.add("event", {"n": n})
    writer.flush()
    kept = numbers(storage)
    assert kept == list(range(kept[0], 100))
    assert kept[0] > 50
    assert len(storage.list(JOURNAL)) == 3


def test_a_damaged_segment_costs_its_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 1)
    storage = CheckpointStorage.open(tmp_path)
    writer = JournalWriter(storage, "r")
    for n in range(3):
        writer.add("event", {"n": n})
    writer.flush()
    path = tmp_path / JOURNAL / f"{1:012d}.rec"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (tmp_path / JOURNAL / "999999999999.rec").write_bytes(b"")
    (tmp_path / JOURNAL / "notes.txt").write_text("of somebody else")
    assert numbers(storage) == [0, 2]


def test_a_stray_segment_of_the_highest_number_does_not_end_the_journal(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    storage.write_atomic(journal_path(10**12 - 1), b"of nobody")
    for n in range(2):
        writer = JournalWriter(storage, f"r{n}")
        writer.add("event", {"n": n})
        writer.flush()
    assert numbers(storage) == [0, 1]


class Counting:
    """A storage that notes what is read from it."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self.read_paths: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def read(self, path: str) -> Any:
        self.read_paths.append(path)
        return self._storage.read(path)


def test_a_reader_that_looks_again_reads_only_what_can_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 200)
    storage = CheckpointStorage.open(tmp_path)
    writer = JournalWriter(storage, "r")
    for n in range(100):
        writer.add("event", {"n": n})
    writer.flush()
    watched = Counting(storage)
    reader = JournalReader(cast("CheckpointStorage", watched))
    assert [e["event"]["n"] for e in reader.tail(20)] == list(range(80, 100))
    assert len(watched.read_paths) < len(storage.list(JOURNAL)) / 3
    last = max(entry.path for entry in storage.list(JOURNAL))
    watched.read_paths.clear()
    assert [e["event"]["n"] for e in reader.tail(20)] == list(range(80, 100))
    assert watched.read_paths == [last]
    writer.add("event", {"n": 100})
    writer.flush()
    assert [e["event"]["n"] for e in reader.tail(20)] == list(range(81, 101))


def test_a_reader_gives_up_on_segments_that_tell_nothing_and_on_huge_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CheckpointStorage.open(tmp_path)
    for n in range(200):
        storage.write_atomic(journal_path(n), b"nothing")
    watched = Counting(storage)
    assert JournalReader(cast("CheckpointStorage", watched)).tail(5) == []
    assert len(watched.read_paths) == 32
    monkeypatch.setattr(journal, "_LARGEST_BYTES", 6)
    watched.read_paths.clear()
    assert JournalReader(cast("CheckpointStorage", watched)).tail(5) == []
    assert watched.read_paths == []
