"""Progress of a verification while it runs."""

from __future__ import annotations

import io
import re
from itertools import count
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from tests.support.checkpoints import write_checkpoint

from godwit.cli.main import main
from godwit.ops import checkpoint as commands
from godwit.ops.checkpoint import VerificationDisplay, verify_watched
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage

EPOCHS = 6


class Told:
    """Keeps what it is told of a verification."""

    def __init__(self) -> None:
        self.totals: list[tuple[int | None, int | None]] = []
        self.parts: list[int] = []

    def begin(self, blocks: int | None, size_bytes: int | None) -> None:
        self.totals.append((blocks, size_bytes))

    def advance(self, size_bytes: int) -> None:
        self.parts.append(size_bytes)


@pytest.fixture(params=[0, 1 << 20], ids=["block files", "blocks in records"])
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> CheckpointStorage:
    """Make a checkpoint of more epochs than are retained."""
    return write_checkpoint(
        tmp_path / "ck",
        name="flow",
        epochs=EPOCHS,
        inline_limit_bytes=request.param,
        manifest_interval=2,
    )


def test_every_block_is_told_of_and_the_total_is_known_before(
    checkpoint: CheckpointStorage,
) -> None:
    told = Told()
    report = verify_watched(checkpoint, told.begin, told.advance)
    assert report == verify(checkpoint)
    assert report.ok
    assert told.totals == [(len(told.parts), sum(told.parts))]
    assert len(told.parts) == report.blocks == EPOCHS
    assert sum(told.parts) >= report.checked_bytes > 0


def test_damage_stops_neither_the_verification_nor_the_count(checkpoint: CheckpointStorage) -> None:
    for path in list(checkpoint.list("blocks"))[:2]:
        checkpoint.delete(path)
    told = Told()
    assert verify_watched(checkpoint, told.begin, told.advance) == verify(checkpoint)
    assert told.totals == [(len(told.parts), sum(told.parts))]


def test_records_that_cannot_be_read_leave_the_total_open(checkpoint: CheckpointStorage) -> None:
    checkpoint.write_atomic(list(checkpoint.list("commits"))[-1], b"not a record")
    told = Told()
    assert verify_watched(checkpoint, told.begin, told.advance) == verify(checkpoint)
    assert told.totals == [(None, None)]


def test_a_line_comes_every_few_seconds() -> None:
    text = io.StringIO()
    seconds = count(step=2)
    lines = VerificationDisplay(Console(file=text, width=200), clock=lambda: float(next(seconds)))
    lines.begin(5, 5 * 1024)
    for _ in range(5):
        lines.advance(1024)
    lines.begin(None, None)
    for _ in range(3):
        lines.advance(1024)
    assert text.getvalue().splitlines() == [
        "verified blocks 3 of 5, 3.0 KiB of 5.0 KiB",
        "verified blocks 1, 1.0 KiB",
    ]


def test_a_terminal_gets_a_bar_that_fills(checkpoint: CheckpointStorage) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    with VerificationDisplay(console) as bar:
        verify_watched(checkpoint, bar.begin, bar.advance)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    assert re.search(rf"verifying ━+ blocks {EPOCHS} of {EPOCHS}, (\S+ \S+) of \1", shown)


@pytest.mark.parametrize(("options", "lines"), [([], EPOCHS), (["--json"], 0)])
def test_only_people_are_told_and_not_on_standard_output(
    checkpoint: CheckpointStorage,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    lines: int,
) -> None:
    monkeypatch.setattr(commands, "_LINE_EVERY_S", 0.0)
    assert main(["checkpoint", "verify", checkpoint.uri, *options]) == 0
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == lines
    assert "verified" not in captured.out
