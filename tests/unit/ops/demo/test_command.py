from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError

from godwit.cli.main import main
from godwit.ops.demo import command, story
from godwit.ops.demo.comparison import Comparison

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.ops.demo.flights import Days
    from godwit.ops.demo.show import Show
    from godwit.ops.demo.story import Outcome, Settings


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Replace the play by one without Spark, and keep what it was asked for."""
    asked: list[Settings] = []

    def play(settings: Settings, show: Show, _days: Future[Days], _cluster: object) -> Outcome:
        asked.append(settings)
        show.say("on stage")
        show.rows_in_all = 10
        show.add_epoch(
            {
                "epoch": 0,
                "timestamp": "2026-01-01T00:00:00Z",
                "numInputRows": 10,
                "durationMs": {"epoch": 2000.0},
                "executors": {"0": {"lanes": 1}},
            }
        )
        differences = () if settings.kill else ("key=1: stream has 1, batch has 2",)
        (settings.work_dir / "checkpoint").mkdir()
        return story.Outcome(
            comparisons=(Comparison(what="delays", rows=7, differences=differences),),
            checkpoint_problems=(),
        )

    stage(monkeypatch, play)
    return asked


def stage(monkeypatch: pytest.MonkeyPatch, play: Callable[..., Outcome]) -> None:
    """Let a play be played instead of the story, without cluster and rows."""
    monkeypatch.setattr(command, "_cluster_for", lambda *_: nullcontext("a cluster"))
    monkeypatch.setattr(story, "play", play)
    monkeypatch.setattr(story, "load_days", lambda _days: Future[Any]())


def test_an_equal_result_is_status_zero_and_leaves_a_picture(
    played: list[Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = tmp_path / "m.json"
    assert main(["demo", "--work-dir", str(tmp_path / "w"), "--json", str(measured)]) == 0
    told = capsys.readouterr().out
    assert "delays: equal to the batch query, all 7 rows" in told
    assert f"picture: {tmp_path / 'w' / 'epochs.png'}" in told
    assert (tmp_path / "w" / "epochs.png").exists()
    values = json.loads(measured.read_text())
    assert values["verdict"]["equal"] is True
    assert values["epochs"][0]["duration_ms"] == 2000.0
    assert (played[0].days, played[0].days_per_epoch, played[0].executors) == (365, 7, 3)


@pytest.mark.usefixtures("played")
def test_a_difference_is_status_one_and_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--work-dir", str(tmp_path / "w"), "--no-kill"]) == 1
    told = capsys.readouterr().out
    assert "1 difference from the batch query" in told
    assert "key=1: stream has 1, batch has 2" in told


@pytest.mark.usefixtures("played")
def test_an_earlier_demo_is_replaced_and_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "w"
    assert main(["demo", "--work-dir", str(target)]) == 0
    assert main(["demo", "--work-dir", str(target)]) == 0
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("...")
    assert main(["demo", "--work-dir", str(precious)]) == 2
    assert "contains files that no demo wrote" in capsys.readouterr().err
    assert (precious / "thesis.tex").exists()


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize(("extra", "left"), [((), False), (("--keep",), True)])
def test_of_a_temporary_directory_only_the_picture_is_kept_unless_asked(
    extra: tuple[str, ...], left: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *extra]) == 0
    picture = next(
        Path(line.removeprefix("picture: "))
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("picture: ")
    )
    assert picture.exists()
    assert (picture.parent / "checkpoint").exists() is left


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--workers", "2"), "2 is less than 3"),
        (("--days", "3"), "3 is less than 8"),
        (("--days", "many"), "invalid number value"),
    ],
)
def test_a_demo_that_makes_no_sense_is_refused(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *arguments])
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


def test_ctrl_c_is_status_130_and_removes_the_temporary_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Path] = []

    def play(settings: Settings, *_: object) -> Outcome:
        seen.append(settings.work_dir)
        raise KeyboardInterrupt

    stage(monkeypatch, play)
    assert main(["demo"]) == 130
    assert not seen[0].exists()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (PermissionError("no such right"), "cleaning up failed: PermissionError: no such right"),
        (Py4JError("the connection is closed"), "stopped; no processes are left running"),
    ],
)
def test_a_clean_up_that_fails_after_ctrl_c_is_told_unless_the_jvm_is_gone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    failure: Exception,
    told: str,
) -> None:
    def play(*_: object) -> Outcome:
        try:
            raise KeyboardInterrupt
        finally:
            raise failure

    stage(monkeypatch, play)
    assert main(["demo", "--work-dir", str(tmp_path / "w")]) == 130
    assert told in capsys.readouterr().out
