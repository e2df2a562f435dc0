"""Spark's event logs are read in every form they come in, and damage costs what follows it."""

from __future__ import annotations

import gzip
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from godwit.ops.advise import event_log
from godwit.ops.advise.event_log import EventLogError, open_event_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = [b'{"Event":"E%d","text":"%s"}' % (n, b"x" * (n % 300)) for n in range(3000)]
TEXT = b"\n".join(LINES) + b"\n"


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue())


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "zstd": zstd,
    "gzip": gzip.compress,
    "gzip, two members": lambda data: gzip.compress(data[:9999]) + gzip.compress(data[9999:]),
    "zstd, two frames": lambda data: zstd(data[:9999]) + zstd(data[9999:]),
}


def read(path: Path) -> tuple[list[bytes], list[str]]:
    log = open_event_log(str(path))
    return list(log.lines()), log.notes


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_lines(form: str, tmp_path: Path) -> None:
    (tmp_path / "app-1").write_bytes(FORMS[form](TEXT))
    assert read(tmp_path / "app-1") == (LINES, [])


@pytest.mark.parametrize("form", FORMS)
def test_a_log_that_is_cut_short_gives_what_came_before(form: str, tmp_path: Path) -> None:
    data = FORMS[form](TEXT)
    (tmp_path / "app-1").write_bytes(data[: len(data) * 2 // 3])
    found, notes = read(tmp_path / "app-1")
    assert 1000 < len(found) < len(LINES)
    assert found[:-1] == LINES[: len(found) - 1]  # the last may be cut short itself
    if form != "plain":
        (note,) = notes
        assert "is truncated or damaged" in note


@pytest.mark.parametrize("form", FORMS)
def test_no_damage_ends_in_anything_but_a_note(form: str, tmp_path: Path) -> None:
    rnd, data = random.Random(9), bytearray(FORMS[form](TEXT[:20_000]))
    path = tmp_path / "app-1"
    for _ in range(150):
        spoilt = bytearray(data)
        for _ in range(rnd.randrange(1, 6)):
            spoilt[rnd.randrange(8, len(spoilt))] = rnd.randrange(256)
        path.write_bytes(bytes(spoilt))
        read(path)


@pytest.mark.parametrize(
    ("codec", "start"), [("lz4", b"LZ4Block"), ("snappy", b"\x82SNAPPY\x00"), ("LZF", b"ZV")]
)
def test_other_codecs_are_refused_with_the_setting_to_use(
    codec: str, start: bytes, tmp_path: Path
) -> None:
    (tmp_path / "app-1").write_bytes(start + b"abcd")
    with pytest.raises(EventLogError, match=f"by {codec}") as caught:
        read(tmp_path / "app-1")
    assert "spark.eventLog.compression.codec=zstd" in caught.value.remedy


def test_a_line_without_end_is_left_out_and_the_next_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_LINE_BYTES", 1000)
    monkeypatch.setattr(event_log, "_PIECE", 500)
    (tmp_path / "app-1").write_bytes(b"first\n" + b"x" * 50_000 + b"\n\n  \nlast\nno end")
    found, notes = read(tmp_path / "app-1")
    assert found == [b"first", b"last", b"no end"]
    assert set(notes) == {notes[0]}
    assert "an event of more than 1000 B" in notes[0]


def test_rolled_files_are_read_in_their_order(tmp_path: Path) -> None:
    rolled = tmp_path / "eventlog_v2_app-1"
    rolled.mkdir()
    for n, part in enumerate((LINES[:1000], LINES[1000:2000], LINES[2000:])):
        data = zstd(b"\n".join(part) + b"\n")
        (rolled / f"events_{n + 9}_app-1.zstd").write_bytes(data)
    (rolled / "appstatus_app-1").write_bytes(b"")
    log = open_event_log(str(rolled))
    assert (list(log.lines()), log.notes, log.unfinished) == (LINES, [], False)
    (rolled / "appstatus_app-1").rename(rolled / "appstatus_app-1.inprogress")
    assert open_event_log(str(rolled)).unfinished
    (rolled / "events_10_app-1.zstd").unlink()
    assert open_event_log(rolled.as_uri()).notes == [
        f"Of the rolled log {rolled.as_uri()}, file 10 is missing."
    ]


def test_a_compacted_file_stands_for_those_before_it(tmp_path: Path) -> None:
    rolled = tmp_path / "eventlog_v2_app-1"
    rolled.mkdir()
    for name, line in (
        ("events_1_app-1", b"old"),
        ("events_2_app-1", b"old"),
        ("events_2_app-1.compact", b"kept"),
        ("events_3_app-1", b"new"),
    ):
        (rolled / name).write_bytes(line + b"\n")
    log = open_event_log(str(rolled))
    assert list(log.lines()) == [b"kept", b"new"]
    assert "was compacted" in log.notes[0]


def test_what_is_no_log_is_refused_by_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match="does not exist"):
        open_event_log(str(tmp_path / "nowhere"))
    with pytest.raises(EventLogError, match="contains no event log"):
        open_event_log(str(tmp_path))
    (tmp_path / "app-1").write_bytes(b"")
    with pytest.raises(EventLogError, match="is empty"):
        open_event_log(str(tmp_path / "app-1"))
    (tmp_path / "local-2").write_bytes(b"x")
    with pytest.raises(EventLogError, match=r"several event logs.*app-1.*local-2"):
        open_event_log(str(tmp_path))
    (tmp_path / "app-3.lzf").write_bytes(b"ZV\x01\x00\x00")
    with pytest.raises(EventLogError, match="compressed by LZF"):
        list(open_event_log(str(tmp_path / "app-3.lzf")).lines())
    with pytest.raises(EventLogError, match="Cannot open nonsense"):
        open_event_log("nonsense://bucket/log")
