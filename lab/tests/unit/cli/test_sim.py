"""`godwit sim`: two runs of a scenario side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from godwit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ["--executors", "3", "--key-groups", "64", "--duration", "40", "--planner", "elb"]


def test_both_runs_get_the_same_rows_and_the_controlled_one_is_more_even(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "straggler", *SMALL, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["controlled"]["load_distance"] < figures["left alone"]["load_distance"]
    assert figures["controlled"]["moves"] > 0 == figures["left alone"]["moves"]


def test_decisions_are_told_with_their_reasons_and_runs_are_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "straggler.png"
    assert main(["sim", "straggler", *SMALL, "--events", "--figure", str(target)]) == 0
    told = capsys.readouterr().out
    assert "rebalancing work by elb" in told
    assert "left alone" in told
    assert target.stat().st_size > 1000


def test_equal_arguments_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        assert main(["sim", "skew", *SMALL, "--seed", "5"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


def test_a_load_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "skew", "--load", "2"]) == 2
    assert "between 0 and 1" in capsys.readouterr().err


def test_help_explains_scenarios_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sim", "--help"])
    told = capsys.readouterr().out
    assert "what the figures mean" in told
    assert "three times slower" in " ".join(told.split())


def test_a_controller_without_decisions_says_what_would_make_it_decide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "skew", *SMALL, "--duration", "6"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "0 decisions" in told
    assert "no move or step that pays for itself. Raise --load or --zipf" in told
