"""Settings that make no sense are refused where they are given, with what to do."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.controls import control_of

from godwit.control import Budget, Means
from godwit.control.scaling import fixed, scripted, utilisation
from godwit.control.settings import Control
from godwit.model.errors import InvalidControlError
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from godwit.placement import Problem
    from godwit.time.durations import Duration


def keep(problem: Problem) -> Any:
    return problem.current


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"planner": "milk"}, "cannot use planner 'milk'"),
        ({"planner": 3}, "planner=3, which is not a planner"),
        ({"planner": "milp", "options": {"seed": 1}}, "'milp' has no option 'seed'"),
        ({"elasticity": "anarchic"}, "no elasticity 'anarchic'. Use one of resource_centric"),
        (
            {"min_executors": 4, "max_executors": 2},
            "min_executors is 4, which is more than max_executors, 2",
        ),
        (
            {"scaling": fixed(9), "max_executors": 4},
            "requests 9 executors, but the limits are 1 to 4",
        ),
        (
            {"scaling": scripted({0: 2, "1 minute": 9}), "max_executors": 4},
            "requests 9 executors, but the",
        ),
        ({"scaling": "more"}, "scaling='more', which is not a scaling model"),
        ({"period": "soon"}, "setting period of the controller is 'soon'"),
        ({"period": 0}, "setting period of the controller is 0"),
        ({"period": 5}, 'which has no unit.*"5 seconds"'),
        ({"period": dt.timedelta.max}, "which is too long. Give at most 100 years"),
        ({"period": "36501 days"}, "'36501 days', which is too long. Give at most 100 years"),
        ({"period": 0.5}, 'which has no unit.*"0.5 seconds"'),
        ({"period": True}, "setting period of the controller is True"),
        ({"lanes_every": -1}, "setting lanes_every of the controller is -1"),
        (
            {"period": "10 seconds", "cool_down": "5 seconds"},
            "cool-down of 5 s is over within one period of 10 s",
        ),
        ({"theta": 0.5}, "setting theta of the controller is 0.5"),
        ({"max_load_distance": float("nan")}, "setting max_load_distance of the controller is nan"),
        ({"budget": 3}, "setting budget of the controller is 3. Give a gw.control.Budget"),
        ({"horizon": 0}, "setting horizon of the controller is 0"),
        ({"horizon": 1.5}, "setting horizon of the controller is 1.5"),
        ({"theta": float("inf")}, "setting theta of the controller is inf"),
        ({"min_executors": True}, "setting min_executors of the controller is True"),
        (
            {"min_executors": 1.5},
            "setting min_executors of the controller is 1.5. Give at least 1, a whole number",
        ),
        ({"max_executors": "4"}, "setting max_executors of the controller is '4', of type str"),
        ({"max_executors": float("nan")}, "setting max_executors of the controller is nan"),
        ({"options": [("rounds", 3)]}, "has options="),
        ({"scaling": SimpleNamespace(wanted=keep, name="half")}, "has no 'paced'"),
    ],
)
def test_nonsense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidControlError, match=said) as refused:
        control_of(**given)
    assert refused.value.remedy


@pytest.mark.parametrize("value", [-1, "many", float("nan"), True])
def test_a_budget_and_means_of_nonsense_are_refused(value: Any) -> None:
    for kind, names in (
        (Budget, ("max_moves", "max_bytes")),
        (Means, ("link_bytes_per_s", "memory_bytes")),
    ):
        for name in names:
            with pytest.raises(InvalidControlError, match=name):
                kind(**{name: value})
    assert Means(memory_bytes=2**30).memory_bytes == 2**30


def test_what_makes_sense_is_taken() -> None:
    control = control_of(
        planner=keep,
        scaling=utilisation(),
        period="1 minute",
        budget=Budget(max_moves=3),
        lanes_every=None,
    )
    assert (control.period_s, control.cool_down_s) == (60.0, 180.0)
    assert control.planner_name == "keep"
    assert Control().planner_name == "milp"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2 seconds", 2.0),
        ("1 minute 30 seconds", 90.0),
        ("250 ms", 0.25),
        ("10s", 10),
        ("1 minute 30 s", 90),
        (dt.timedelta(seconds=3), 3),
    ],
)
def test_times_are_read_as_people_write_them(text: Duration, found: float) -> None:
    assert seconds(text, "It") == pytest.approx(found)
