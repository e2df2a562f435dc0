"""Results of figures: whole or not there, made once, and found again."""

from __future__ import annotations

import csv
import errno
from typing import TYPE_CHECKING

import pytest

from godwit.model.errors import GodwitError
from godwit_lab.cli.reproduce import drawing, running
from godwit_lab.cli.reproduce.catalogue import Entry
from godwit_lab.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    FigureRun,
    RunsOn,
    Verdict,
    at_most,
)
from godwit_lab.cli.reproduce.running import place_of, reproduce, stored

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = Entry(name="paper1/figure99")
FILES = {"result.json", "data.csv", "figure.png", "figure.svg"}


def play(run: FigureRun) -> FigureResult:
    rows = [{"n": n, "ms": float(n + run.seed)} for n in range(3)]
    return FigureResult(rows=rows, notes=("drawn",))


FIGURE = Figure(
    title="A figure",
    clauses=(
        at_most("it is small", "first", lambda data: data.one("ms", n=0) / 4, bound=2.0, paper=2.0),
    ),
    workload="None.",
    place=RunsOn.PLANNERS,
    run=play,
    charts=(Chart(x="n", y="ms", x_label="number", y_label="time (ms)"),),
)


@pytest.fixture(autouse=True)
def figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "load", lambda _entry: FIGURE)
    monkeypatch.setattr(running, "digest", lambda _script: "its script, and all that it imports")


def left_over(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "paper1").iterdir())


def test_a_result_has_data_pictures_and_checks(tmp_path: Path) -> None:
    result = reproduce(ENTRY, FigureRun(seed=4), tmp_path)
    assert result.verdict is Verdict.AGREES
    assert {path.name for path in place_of(tmp_path, ENTRY).iterdir()} == FILES
    with (place_of(tmp_path, ENTRY) / "data.csv").open() as file:
        assert [row["ms"] for row in csv.DictReader(file)] == ["4.0", "5.0", "6.0"]
    assert left_over(tmp_path) == ["figure99"]
    found = stored(tmp_path, ENTRY)
    assert found == result
    assert found.checks[0].ratio == 0.5
    assert found.table.column("ms").tolist() == [4.0, 5.0, 6.0]


def test_a_verdict_that_somebody_wrote_is_not_believed(tmp_path: Path) -> None:
    reproduce(ENTRY, FigureRun(seed=4), tmp_path)
    path = place_of(tmp_path, ENTRY) / "result.json"
    written = path.read_text().replace('"ms": [\n      4', '"ms": [\n      400')
    assert '"holds": true' in written
    path.write_text(written)
    result = stored(tmp_path, ENTRY)
    assert result is not None
    assert result.checks[0].ours == 100
    assert result.verdict is Verdict.DISAGREES


def test_equal_runs_draw_equal_pictures(tmp_path: Path) -> None:
    drawn = []
    for out in (tmp_path / "a", tmp_path / "b"):
        reproduce(ENTRY, FigureRun(), out)
        drawn.append((place_of(out, ENTRY) / "figure.svg").read_bytes())
    assert drawn[0] == drawn[1]
    assert b"time (ms)" in drawn[0]


def test_a_result_answers_the_same_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = reproduce(ENTRY, FigureRun(), tmp_path)
    assert result.answers(ENTRY, FigureRun())
    for other in (
        FigureRun(seed=1),
        FigureRun(quick=True),
        FigureRun(off=True),
        FigureRun(data=tmp_path),
    ):
        assert not result.answers(ENTRY, other)
    monkeypatch.setattr(running, "digest", lambda _script: "scripts that were changed")
    assert not result.answers(ENTRY, FigureRun())


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), ZeroDivisionError()])
def test_a_run_that_is_stopped_while_it_writes_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    before = reproduce(ENTRY, FigureRun(), tmp_path)

    def save(*_: object) -> None:
        raise stop

    monkeypatch.setattr(drawing, "save", save)
    with pytest.raises(type(stop)):
        reproduce(ENTRY, FigureRun(seed=1), tmp_path)
    assert left_over(tmp_path) == ["figure99"]
    assert stored(tmp_path, ENTRY) == before
    assert {path.name for path in place_of(tmp_path, ENTRY).iterdir()} == FILES


def test_a_full_disk_is_said_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(drawing, "save", save)
    with pytest.raises(GodwitError, match="No space left on device") as caught:
        reproduce(ENTRY, FigureRun(), tmp_path)
    assert "Free space there" in str(caught.value)
    assert caught.value.context["figure"] == ENTRY.name
    assert left_over(tmp_path) == []
    assert stored(tmp_path, ENTRY) is None


def test_a_damaged_result_is_no_result(tmp_path: Path) -> None:
    reproduce(ENTRY, FigureRun(), tmp_path)
    (place_of(tmp_path, ENTRY) / "result.json").write_text('{"figure": "paper1/figu')
    assert stored(tmp_path, ENTRY) is None
    assert reproduce(ENTRY, FigureRun(), tmp_path) == stored(tmp_path, ENTRY)


def test_a_figure_without_a_switch_cannot_be_switched_off(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="no mechanism to switch off"):
        reproduce(ENTRY, FigureRun(off=True), tmp_path)
