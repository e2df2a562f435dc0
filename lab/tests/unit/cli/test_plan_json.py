from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from godwit.control.planners.fusion import FusionProblem
from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Limits, Problem
from godwit_lab.cli.plan_json import (
    EXAMPLES,
    KINDS,
    plain,
    problem_from_json,
    schema_of,
    solution_to_dict,
)
from godwit_lab.planners.intervals.ssm import plan_ssm


def _problem(values: dict[str, Any]) -> Any:
    return problem_from_json(json.dumps(values))[0]


def test_every_field_of_a_problem_and_its_limits_is_in_the_schema() -> None:
    properties = schema_of("assignment")["properties"]
    fields = {field.name for field in dataclasses.fields(Problem) if field.init}
    assert fields == set(properties) - {"kind", "options"}
    limits = schema_of("assignment")["$defs"]["LimitsJson"]["properties"]
    assert {f.name for f in dataclasses.fields(Limits)} == set(limits)
    assert set(EXAMPLES["assignment"]) <= set(properties)


def test_a_solution_has_the_fields_of_its_schema() -> None:
    problem, _ = problem_from_json(json.dumps(EXAMPLES["assignment"]))
    values = solution_to_dict(plan_ssm(problem))
    assert set(values) == set(schema_of("solution")["properties"])
    assert values == json.loads(json.dumps(values))
    assert values["assignment"][0] == "c"
    assert values["moves"][0] == {
        "key_group": 0, "source": "a", "destination": "c", "state_bytes": 40, "load": 5.0
    }  # fmt: skip


def test_executors_may_be_numbers_or_names() -> None:
    by_number = {
        **EXAMPLES["assignment"],
        "current": [0] * 7 + [1] * 5,
        "draining": [False, False, True],
    }
    by_number["limits"] = {"tau": 0.2}
    problem, _ = problem_from_json(json.dumps(by_number))
    assert problem.current.tolist() == [0] * 7 + [1] * 5
    assert problem.draining.tolist() == [False, False, True]


def test_options_are_kept_apart() -> None:
    _, options = problem_from_json(json.dumps(EXAMPLES["assignment"]))
    assert options["oms"] == {"targets": [3, 2, 3]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"current": ["a"] * 11 + ["z"]}, "current[11]"),
        ({"current": ["a"] * 11 + [7]}, "current[11]"),
        ({"current": ["a"] * 11 + [True]}, "current[11]"),
        ({"current": "a"}, "current"),
        ({"draining": ["z"]}, "draining[0]"),
        ({"load": [1] * 11 + [-1]}, "load[11]"),
        ({"load": [1] * 11 + [float("nan")]}, "load[11]"),
        ({"load": [1] * 11 + ["x"]}, "load[11]"),
        ({"load": [1] * 11 + [None]}, "load[11]"),
        ({"load": [[1], [1, 2]]}, "load"),
        ({"load": 5}, "load"),
        ({"load": [1] * 11}, "load"),
        ({"limits": {"tau": "x"}}, "limits.tau"),
        ({"limits": {"max_moves": 1.5}}, "limits.max_moves"),
        ({"limits": {"speed": 1}}, "limits.speed"),
        ({"limits": 3}, "limits"),
        ({"limits": {"load_low": 2, "load_high": 1}}, "limits.load_low"),
        ({"traffic": {"source": [0]}}, "traffic.target"),
        ({"intervals": "yes"}, "intervals"),
        ({"colour": 1}, "colour"),
        ({"kind": "weather"}, "kind"),
        ({"kind": ["assignment"]}, "kind"),
        ({"executors": "abc"}, "executors"),
        ({"executors": []}, "executors"),
        ({"executors": [1, 2, 3]}, "executors[0]"),
        ({"limits": {"max_usage": ["q"]}}, "limits.max_usage[0]"),
        ({"downstream": [0, 1]}, "downstream[0]"),
        ({"downstream": [[0]]}, "downstream[0]"),
        ({"load": [1] * 11 + [10**400]}, "load[11]"),
        ({"seconds_per_byte": "fast"}, "seconds_per_byte"),
        ({"options": 1}, "options"),
    ],
)
def test_bad_json_is_refused_by_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        problem_from_json(json.dumps({**EXAMPLES["assignment"], **change}))
    assert caught.value.context["field"] == named
    assert named in str(caught.value)


@pytest.mark.parametrize("missing", ["executors", "load", "state_bytes", "current"])
def test_a_missing_field_is_named(missing: str) -> None:
    with pytest.raises(InvalidProblemError, match=missing):
        problem_from_json(
            json.dumps({k: v for k, v in EXAMPLES["assignment"].items() if k != missing})
        )


def test_other_kinds_become_their_own_problems() -> None:
    fusion = _problem(EXAMPLES["fusion"])
    assert isinstance(fusion, FusionProblem)
    assert plain(fusion)["attributes"] == EXAMPLES["fusion"]["attributes"]
    assert _problem(EXAMPLES["core_allocation"]).network.input_per_s == 29.0
    assert set(KINDS) == {"assignment", "core_allocation", "core_assignment", "fusion"}
