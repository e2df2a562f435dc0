"""The default cost model says where it comes from and how far off it is."""

from __future__ import annotations

from godwit_lab.simulator import CostModel, calibration


def test_the_default_costs_are_those_that_were_fitted_and_say_from_what() -> None:
    kept = calibration()
    assert CostModel.calibrated() == CostModel(**kept["parameters"])
    assert kept["provenance"]["how"]
    held_out = [run for run in kept["runs"] if not run["fitted"]]
    assert len(held_out) >= 5


def test_half_of_the_runs_that_were_held_out_are_within_a_sixth() -> None:
    kept = calibration()
    off = sorted(
        abs(run["simulated_ms"] / run["measured_ms"] - 1)
        for run in kept["runs"]
        if not run["fitted"]
    )
    assert off[len(off) // 2] <= 1 / 6
