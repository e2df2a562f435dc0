"""`godwit advise` says what rebalancing would have saved, or why it cannot."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.spark_events import application, as_lines, micro_batch, query_started

from godwit.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def written(path: Path, events: Iterable[dict[str, Any]]) -> str:
    path.write_bytes(b"\n".join(as_lines(events)) + b"\n")
    return str(path)


@pytest.fixture
def skewed(tmp_path: Path) -> str:
    events = [*application(), query_started()]
    for batch in range(10):
        events += micro_batch(batch, [1000, 100, 100, 100])
    return written(tmp_path / "app-1", events)


def test_it_tells_what_was_lost_and_why(skewed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", skewed]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for said in (
        "skewed, Spark 4.3.0: 1 stateful stage",
        "totals: StateStoreSave 10 2 4 10.0 s 10.0 s 6.5 s 3.1 54%",
        "Partition 0 does 77% of the work: finer key groups would save 35% at most",
        "It took 38% of the query's 26.0 s.",
        "Partition 0: 77% of the work, 77% of the rows and 75% of the bytes",
        "After its last micro-batch it had",
        "Micro-batches that would have saved most: 0 (0.3 of 1.0 s)",
    ):
        assert said in told
    assert "note:" not in told


def test_json_has_the_same_figures(skewed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", skewed, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    (stage,) = values["stages"]
    assert (stage["name"], stage["batches"]) == ("StateStoreSave", 10)
    assert stage["hottest_partition"] == 0
    assert stage["saved_by_splitting_s"] == pytest.approx(3.5)
    assert values["notes"] == []


def test_it_draws(skewed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", skewed, "--plot", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for bad in (tmp_path / "a.nonsense", tmp_path / "nowhere" / "a.png"):
        assert main(["advise", skewed, "--plot", str(bad)]) == 2
        assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (application(), "is from an application without streaming queries"),
        ([*application(), query_started()], "none of them has run a stateful stage"),
        (
            [*application(), query_started(), micro_batch(0, [10])[0], micro_batch(0, [10])[-1]],
            "no complete stateful stage",
        ),
        ([{"kind": "other"}], "This is not a Spark event log"),
    ],
)
def test_a_log_that_says_nothing_of_state_is_an_error_that_says_so(
    events: list[dict[str, Any]], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", written(tmp_path / "app-1", events)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


def test_a_log_that_is_still_written_or_damaged_gives_its_figures_with_a_note(
    skewed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (tmp_path / "app-1").read_bytes()
    running = tmp_path / "app-2.inprogress"
    running.write_bytes(data[: len(data) // 2])
    assert main(["advise", str(running)]) == 0
    told = capsys.readouterr().out
    assert "note: The application was still running" in told
    assert "note: 1 line could not be read" in told


def test_a_log_that_is_cut_short_within_its_first_event_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "app-1.gz"
    cut.write_bytes(gzip.compress(as_lines(application())[0])[:20])
    assert main(["advise", str(cut)]) == 2
    said = capsys.readouterr().err
    assert "has no readable event" in said
    assert "is truncated or damaged" in said


def test_a_name_cannot_give_orders_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b[2Jq\u202e$x_1$[bold]"
    events = [*application(), query_started(name=hostile)]
    events[-2]["App Name"] = hostile
    events += micro_batch(0, [10], progress=False, operators=[hostile])
    path = written(tmp_path / "app-1", events)
    assert main(["advise", path, "--plot", str(tmp_path / "a.png")]) == 0
    told = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in told.out + told.err)
