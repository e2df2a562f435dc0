from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from typing import Any

import numpy as np
import pytest
from lab.tests.oracles.interval_plans import line_problem

from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Limits, Problem
from godwit.placement.registry import PLANNERS, planner, read_option
from godwit_lab.cli.plan_json import EXAMPLES, KINDS, problem_from_json


def test_every_planner_loads_and_says_what_it_does() -> None:
    for name, entry in PLANNERS.items():
        function = entry.load()
        assert name == entry.name
        assert inspect.getdoc(function)
        assert entry.minimises
        assert entry.constraints
        assert entry.cost
        assert entry.paper


def test_an_unknown_planner_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidProblemError, match=r"'sssm'.*Did you mean 'ssm'.*milp"):
        planner("sssm")


def test_an_unknown_option_is_refused_with_the_options_there_are() -> None:
    with pytest.raises(InvalidProblemError, match=r"no option 'speed'.*targets, taus"):
        planner("oms")(line_problem([0, 1], tau=0.5), speed=3)


def test_a_problem_that_a_planner_cannot_take_is_refused_with_the_reason() -> None:
    scattered = Problem(
        executors=("a", "b"),
        load=np.ones(3),
        state_bytes=np.ones(3),
        current=np.array([0, 1, 0], np.int32),
        capacity=np.array([1.0, 2.0]),
    )
    refusal = planner("ssm").refusal(scattered)
    assert "not made of intervals" in refusal
    assert "different capacities" in refusal
    assert "limits.tau" in refusal
    with pytest.raises(InvalidProblemError, match="not made of intervals"):
        planner("ssm")(scattered)


def test_another_kind_of_problem_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="asks for a Problem, not a str"):
        planner("ssm")("a problem")


def test_a_missing_solver_disturbs_only_the_planners_that_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    for module in ("cola", "graph_partition"):
        monkeypatch.delitem(sys.modules, f"godwit_lab.planners.allocation.{module}", raising=False)
    with pytest.raises(InvalidProblemError, match=r"needs the package 'pymetis'"):
        planner("cola").load()
    assert planner("ssm").load().__name__ == "plan_ssm"


def test_every_option_of_a_planner_has_a_type_and_every_kind_of_problem_an_entry() -> None:
    for entry in PLANNERS.values():
        parameters = inspect.signature(entry.load()).parameters.values()
        names = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        assert names - {"clock", "rng"} == set(entry.takes), entry.name
        for name, default in entry.defaults().items():
            if default is not None:
                read_option(default, entry.takes[name], name)
    kinds = {type(problem_from_json(json.dumps(EXAMPLES[kind]))[0]) for kind in KINDS}
    assert kinds == {entry.asks for entry in PLANNERS.values()}


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        ("milp", {"rng": 3}, "options.rng"),
        ("milp", {"clock": "now"}, "options.clock"),
        ("milp", {"rounds": 1.5}, "options.rounds"),
        ("milp", {"time_limit_s": "long"}, "options.time_limit_s"),
        ("milp", {"node_limit": True}, "options.node_limit"),
        ("elb", {"giving": "x"}, "options.giving"),
        ("elb", {"resize": 1}, "options.resize"),
        ("oms", {"targets": 2}, "options.targets"),
        ("oms", {"taus": [None]}, "options.taus[0]"),
        ("mtm", {"transitions": {"sizes": [1]}}, "options.transitions"),
        ("mtm", {"projected": [1]}, "options.projected"),
    ],
)
def test_options_of_the_wrong_type_are_refused_by_name(
    method: str, options: dict[str, Any], named: str
) -> None:
    limits = Limits(load_low=0.0, load_high=9.0) if method == "elb" else Limits(tau=0.5)
    problem = dataclasses.replace(line_problem([0, 1], tau=0.5), limits=limits)
    with pytest.raises(InvalidProblemError) as caught:
        planner(method)(dataclasses.replace(problem, intervals=False), **options)
    assert caught.value.context["field"] == named
