"""The journal is append-only, bounded, readable beside its writer, and never in anybody's way."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from godwit.checkpoint import journal
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.journal import JournalReader, JournalWriter, read_last, read_tail
from godwit.checkpoint.records import JOURNAL, JournalSegment, journal_path
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage
from godwit.migration.outcome import LoadSummary
from godwit.model import events

if TYPE_CHECKING:
    from pathlib import Path


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
    (tmp_path / JOURNAL / "notes.txt").write_text("of someone else")
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
    last = max(storage.list(JOURNAL))
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


class Failing(LocalStorage):
    """A disk that fails so many times."""

    failures = 0

    def write_atomic(self, path: str, data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "Input/output error")
        super().write_atomic(path, data)


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_a_write_that_fails_is_repeated_and_loses_nothing(
    tmp_path: Path,
    failures: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 60)
    storage = Failing(str(tmp_path))
    storage.failures = failures
    writer = JournalWriter(storage, "r")
    for n in range(6):
        writer.add("event", {"n": n})
        writer.flush()
    writer.flush()
    assert numbers(storage) == [0, 1, 2, 3, 4, 5]
    assert len([r for r in caplog.records if "Input/output error" in r.getMessage()]) == 1


def test_what_an_outage_leaves_no_room_for_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 1)
    monkeypatch.setattr(journal, "_SEGMENTS_UNWRITTEN", 3)
    storage = Failing(str(tmp_path))
    storage.failures = 10**6
    writer = JournalWriter(storage, "r")
    for n in range(10):
        writer.add("event", {"n": n})
    storage.failures = 0
    writer.flush()
    assert [e for e in read_tail(storage, 99) if "journal" in e] == [{"journal": {"lost": 7}}]
    assert [e["event"]["n"] for e in read_tail(storage, 99) if "event" in e] == [7, 8, 9]


def test_what_is_in_the_way_of_a_segment_or_of_the_journal_ends_nothing(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    (tmp_path / JOURNAL).write_text("a file")
    writer = JournalWriter(storage, "r")
    writer.add("event", {"n": 0})
    writer.flush()
    assert read_last(storage, 9, "event", dict) == []
    (tmp_path / JOURNAL).unlink()
    (tmp_path / journal_path(0) / "full").mkdir(parents=True)
    for _ in range(3):
        writer.flush()
    assert numbers(storage) == [0]


def test_an_entry_that_is_no_plain_value_is_left_out_and_counted(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    writer = JournalWriter(storage, "r")
    endless: dict[str, Any] = {}
    endless["of"] = endless
    writer.add("event", endless)
    writer.add("event", {"n": 1})
    writer.flush()
    assert read_tail(storage, 9) == [{"event": {"n": 1}}, {"journal": {"lost": 1}}]


@pytest.mark.parametrize(
    "entry",
    [
        b'{"load": {"epoch": 1e999, "epochs": 1, "loads": {}}}',
        b'{"load": {"epoch": 1, "epochs": 1, "loads": {"a": {"key_groups": "eA=="}}}}',
        b'{"load": 5}',
        b'{"event": 5}',
        b'{"event": null}',
        b'{"event": {"kind": []}}',
        b'{"event": {"kind": "ScaledOut"}}',
        b'{"event": {"kind": "QueryStopped", "epoch": "x", "at_s": 1.0, "name": "q"}}',
        b'{"event": {"kind": "QueryStopped", "epoch": 1, "at_s": NaN, "name": "q"}}',
        b'{"event": {"kind": "QueryStopped", "epoch": 1, "at_s": 1e999, "name": "q"}}',
        b'{"event": {"kind": "QueryStopped", "epoch": 1, "at_s": [], "name": "q"}}',
        b"{" * 100_000 + b"}",
        b'{"event": ' + b"9" * 9999 + b"}",
    ],
    ids=range(13),
)
def test_what_a_run_recollects_is_of_the_right_types_whatever_the_journal_says(
    tmp_path: Path, entry: bytes
) -> None:
    storage = CheckpointStorage.open(tmp_path)
    good = events.QueryStopped(epoch=1, at_s=1.0, name="q")
    told = json.dumps({"event": good.to_dict()}).encode()
    segment = JournalSegment(number=0, run_id="r", entries=(entry, told))
    storage.write_atomic(journal_path(0), encode_record(segment))
    assert read_last(storage, 9, "load", LoadSummary.from_dict) == []
    assert read_last(storage, 9, "event", events.event_from_dict) == [good]


def test_a_journal_is_followed_entry_by_entry_and_from_its_start_when_it_is_begun_anew(
    tmp_path: Path,
) -> None:
    storage = CheckpointStorage.open(tmp_path / "ck")
    writer, reader = JournalWriter(storage, "r"), JournalReader(storage)
    numbers: list[int] = []
    for number in range(3000):
        writer.add("event", {"n": number, "text": "x" * 200})
        if number % 70 == 0:
            writer.flush()
            numbers += [e["event"]["n"] for part in reader.new_entries() for e in part]
    writer.flush()
    numbers += [e["event"]["n"] for part in reader.new_entries() for e in part]
    assert numbers == list(range(3000))
    assert list(reader.new_entries()) == []
    for path in (tmp_path / "ck" / "journal").iterdir():
        path.unlink()
    again = JournalWriter(storage, "another")
    again.add("event", {"n": -1})
    again.flush()
    assert [e["event"]["n"] for part in reader.new_entries() for e in part] == [-1]


def test_of_a_journal_that_is_too_large_the_end_is_followed(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path / "ck")
    for number in range(3):
        entries = tuple(b'{"event": {"n": %d}}' % n for n in range(150_000))
        segment = JournalSegment(number=number, run_id="r", entries=entries)
        storage.write_atomic(journal_path(number), encode_record(segment))
    parts = [[e["event"]["n"] for e in part] for part in JournalReader(storage).new_entries()]
    assert [part[0] for part in parts] == [130_000, 130_000]  # the first of three is beyond 8 MiB
    assert [part[-1] for part in parts] == [149_999, 149_999]
