from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from godwit.cli.main import main
from godwit.placement.problem import Problem
from godwit.placement.registry import PLANNERS
from godwit_lab.cli.plan_json import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

TRANSITIONS = EXAMPLES["assignment"]["options"]["mtm"]["transitions"]


def _run(*words: str) -> int:
    return main(["plan", *words])


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(EXAMPLES["assignment"]))
    return str(path)


def _changed(problem: str, **changes: Any) -> str:
    from pathlib import Path

    Path(problem).write_text(json.dumps({**EXAMPLES["assignment"], **changes}))
    return problem


def test_a_plan_is_previewed_as_a_table(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("ssm", problem) == 0
    out = capsys.readouterr().out
    assert "ssm: optimal" in out
    assert "load distance 20 -> 8" in out


def test_json_output_is_the_solution(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("ssm", problem, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["moved_bytes"] == 110
    assert [m["key_group"] for m in values["moves"]] == [0, 1]


def test_a_plan_that_breaks_a_limit_has_its_own_exit_status(
    problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("ssm", _changed(problem, limits={"tau": 0.0})) == 3
    assert "smallest feasible tau" in capsys.readouterr().out


def test_options_on_the_command_line_override_those_of_the_file(
    problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _run("oms", problem, "--json")
    assert len(json.loads(capsys.readouterr().out)["details"]["cuts"]) == 3
    _run("oms", problem, "--json", "--set", "targets=[3, 2]")
    assert len(json.loads(capsys.readouterr().out)["details"]["cuts"]) == 2


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_plan_is_drawn(problem: str, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"plan.{suffix}"
    assert _run("ssm", problem, "--plot", str(picture)) == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert picture.read_bytes().startswith(start)


def test_compare_shows_every_planner_or_says_why_not(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "compare.png"
    assert _run("compare", problem, "--plot", str(picture)) == 0
    out = capsys.readouterr().out
    for name, entry in PLANNERS.items():
        assert (name in out) == (entry.asks is Problem)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_compare_as_json_has_solutions_and_refusals(
    problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scattered = _changed(problem, current=[0, 1] * 6, intervals=False, options={})
    assert _run("compare", scattered, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert "ssm" in {refusal["method"] for refusal in values["refused"]}
    assert "storm_default" in {solution["method"] for solution in values["solutions"]}


def test_projected_costs_are_computed_saved_and_used(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix, table = tmp_path / "mtm.json", tmp_path / "costs.npz"
    matrix.write_text(json.dumps(TRANSITIONS))
    words = ("precompute", problem, "--transitions", str(matrix), "--output", str(table))
    assert _run(*words) == 0
    assert "exact: " in capsys.readouterr().out
    assert _run("mtm", problem, "--projected", str(table), "--json") == 0
    assert json.loads(capsys.readouterr().out)["status"] == "optimal"
    assert _run(*words, "--sample", "5", "--gamma", "0.5") == 0
    assert "greatest relative error" in capsys.readouterr().out
    assert _run("mtm", problem, "--projected", str(table)) == 0


def test_a_log_of_sizes_is_a_matrix_too(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"log": [2, 3, 2, 3]}))
    words = ("precompute", problem, "--transitions", str(log), "--output", str(tmp_path / "c"))
    assert _run(*words) == 0
    assert "sweeps" in capsys.readouterr().out
    log.write_text("{}")
    assert _run(*words) == 2


@pytest.mark.parametrize("method", list(PLANNERS))
def test_help_says_what_a_method_minimises(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _run(method, "--help")
    out = capsys.readouterr().out
    for heading in ("minimises:", "constraints:", "cost:", "options:"):
        assert heading in out


def test_the_schema_of_solutions_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("schema", "solution") == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ssm", "no/such/file.json"), "cannot be read"),
        (("oms", "PROBLEM", "--set", "targets"), "NAME=VALUE"),
        (("oms", "PROBLEM", "--set", "targets=x"), "not JSON"),
        (("oms", "PROBLEM", "--set", "speed=1"), "no option 'speed'"),
        (("ssm", "PROBLEM", "--bandwidth", "0"), "bandwidth"),
        (("ssm", "PROBLEM", "--plot", "no/such/dir/x.png"), "cannot be written"),
        (("ssm", "PROBLEM", "--plot", "x.unknown"), "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    problem: str, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*(problem if word == "PROBLEM" else word for word in words)) == 2
    captured = capsys.readouterr().err
    assert said in captured
    assert "Traceback" not in captured


def test_an_unknown_method_is_refused_with_the_names_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _run("sssm", "x.json")
    assert stopped.value.code == 2
    assert "ssm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("core_allocation", ("cores", [5, 1, 1])),
        ("core_assignment", ("status", "feasible")),
        ("fusion", ("component_of", [0, 0, 1, 0])),
    ],
)
def test_problems_of_other_kinds_are_planned_too(
    method: str, answer: tuple[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(EXAMPLES[method]))
    assert _run(method, str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)[answer[0]] == answer[1]
    assert _run(method, str(path)) == 0
    assert answer[0] in capsys.readouterr().out
    assert _run("compare", str(path)) == 2
    assert _run("ssm", str(path)) == 2
    assert "asks for a Problem" in capsys.readouterr().err
