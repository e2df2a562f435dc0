from __future__ import annotations

import numpy as np
import pytest

from godwit.control.planners.allocation.model import FREE, build_model, merge_units, single_units
from godwit.placement.problem import Limits, Problem


def problem() -> Problem:
    return Problem(
        executors=("a", "b"),
        load=np.array([1.0, 2.0, 3.0, 4.0]),
        state_bytes=np.array([10.0, 20.0, 30.0, 40.0]),
        current=np.array([0, 0, 1, 1], np.int32),
        limits=Limits(max_moves=3, max_bytes=100.0, tau=0.5),
    )


def test_single_units_are_the_key_groups() -> None:
    units = single_units(problem())
    assert len(units) == 4
    assert units.home.tolist() == [0, 0, 1, 1]
    assert units.count.tolist() == [1, 1, 1, 1]


def test_merged_unit_adds_up_and_moves_as_one() -> None:
    units = merge_units(problem(), np.array([0, 0, 1, 2]), np.full(3, FREE))
    assert units.weight.tolist() == [3.0, 3.0, 4.0]
    assert units.state_bytes.tolist() == [30.0, 30.0, 40.0]
    assert units.count.tolist() == [2, 1, 1]
    assert units.expand(np.array([1, 0, 1])).tolist() == [1, 1, 0, 1]


def test_pins_cost_what_they_move_and_lower_the_budget() -> None:
    units = merge_units(problem(), np.array([0, 0, 1, 2]), np.array([1, FREE, FREE]))
    assert units.fixed_moves == 2
    assert units.fixed_bytes == 30.0
    assert units.home.tolist() == [1, 1, 1]
    model = build_model(problem(), units)
    assert model.max_moves == 1
    assert model.max_bytes == 70.0


def test_model_is_scaled_by_the_mean_and_counts_tau_as_room() -> None:
    model = build_model(problem(), single_units(problem()))
    assert model.scale == 5.0
    assert model.weight.sum() == 2.0
    home = problem().current
    assert model.over_under(home) == pytest.approx((0.4, 0.4))
    assert model.objective(home) == pytest.approx(2.0)
    assert model.within_room(home)
    assert not model.within_room(np.zeros(4, np.int32))
