from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Limits, Problem, Traffic

VALID: dict[str, Any] = {
    "executors": ("a", "b"),
    "load": np.array([3.0, 1.0, 2.0]),
    "state_bytes": np.array([10.0, 20.0, 30.0]),
    "current": np.array([0, 0, 1], np.int32),
}


def test_a_vector_of_load_becomes_one_resource() -> None:
    problem = Problem(**VALID)
    assert problem.load.shape == (3, 1)
    assert problem.weight.tolist() == [3.0, 1.0, 2.0]
    assert problem.capacity.tolist() == [[1.0], [1.0]]


def test_arrays_are_read_only_copies() -> None:
    load = np.array([3.0, 1.0, 2.0])
    problem = Problem(**{**VALID, "load": load})
    load[0] = 99
    assert problem.weight[0] == 3.0
    with pytest.raises(ValueError, match="read-only"):
        problem.state_bytes[0] = 1


def test_the_bottleneck_is_the_resource_used_most_per_capacity() -> None:
    load = np.array([[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]])
    values = {**VALID, "load": load, "resources": ("cpu", "memory")}
    assert Problem(**values).bottleneck == 1
    capacity = np.array([[1.0, 10.0], [1.0, 10.0]])
    assert Problem(**{**values, "capacity": capacity}).bottleneck == 0


def test_executors_differ_only_if_those_that_stay_do() -> None:
    capacity = np.array([1.0, 2.0])
    assert not Problem(**VALID, capacity=capacity).homogeneous
    assert Problem(**VALID, capacity=capacity, draining=np.array([True, False])).homogeneous


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("load", np.array([1.0, -1.0, 0.0]), "load[1]"),
        ("load", np.array([1.0, np.nan, 0.0]), "load[1]"),
        ("load", np.array([1.0, 2.0, np.inf]), "load[2]"),
        ("load", np.array([1.0, 2.0]), "load"),
        ("load", np.array(["x", "y", "z"]), "load"),
        ("state_bytes", np.array([1.0, 2.0, -3.0]), "state_bytes[2]"),
        ("state_bytes", np.array([1.0]), "state_bytes"),
        ("current", np.array([0, 2, 1]), "current[1]"),
        ("current", np.array([0, -1, 1]), "current[1]"),
        ("current", np.array([0.0, 0.5, 1.0]), "current"),
        ("current", np.array([], np.int32), "current"),
        ("executors", (), "executors"),
        ("executors", ("a", "a"), "executors"),
        ("capacity", np.array([1.0, 0.0]), "capacity[1]"),
        ("capacity", np.array([1.0, np.nan]), "capacity[1]"),
        ("cores", np.array([1, 0]), "cores[1]"),
        ("draining", np.array([True, True]), "draining"),
        ("operator_of", np.array([0, 1, 0]), "operator_of[1]"),
        ("downstream", ((0, 0),), "downstream[0]"),
        ("history", np.ones((2, 2)), "history"),
        ("history", -np.ones((2, 3)), "history[0, 0]"),
        ("seconds_per_byte", -1.0, "seconds_per_byte"),
        ("resources", (), "resources"),
    ],
)
def test_bad_input_is_refused_by_name(field: str, value: object, named: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        Problem(**{**VALID, field: value})
    assert caught.value.context["field"] == named
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_moves", -1),
        ("max_bytes", float("nan")),
        ("tau", -0.1),
        ("theta", 0.9),
        ("load_low", -1.0),
        ("target_executors", 0),
    ],
)
def test_bad_limits_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidProblemError, match=rf"limits\.{field}"):
        Limits(**{field: value})  # type: ignore[arg-type]  # the field varies


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="load_low"):
        Limits(load_low=3.0, load_high=2.0)
    with pytest.raises(InvalidProblemError, match="contradicts `draining`"):
        Problem(**VALID, draining=np.array([True, False]), limits=Limits(target_executors=2))
    with pytest.raises(InvalidProblemError, match="max_usage"):
        Problem(**VALID, limits=Limits(max_usage=(1.0, 2.0)))


def test_intervals_need_a_contiguous_assignment() -> None:
    with pytest.raises(InvalidProblemError, match="intervals"):
        Problem(**{**VALID, "current": np.array([0, 1, 0])}, intervals=True)


def test_traffic_must_name_key_groups_that_exist() -> None:
    traffic = Traffic(source=np.array([0]), target=np.array([3]), rate=np.array([1.0]))
    with pytest.raises(InvalidProblemError, match=r"traffic\.target\[0\] = 3"):
        Problem(**VALID, traffic=traffic)
    with pytest.raises(InvalidProblemError, match="one of each"):
        Traffic(source=np.array([0]), target=np.array([1, 2]), rate=np.array([1.0]))


def test_errors_survive_pickling() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        Limits(tau=-1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.context == caught.value.context


def test_a_problem_can_be_changed_by_replacing_fields() -> None:
    problem = dataclasses.replace(Problem(**VALID), limits=Limits(max_moves=1))
    assert problem.limits.max_moves == 1
