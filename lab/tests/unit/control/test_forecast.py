"""A forecast in the simulator: executors are there before the rows of the day come."""

from __future__ import annotations

from benchmarks.control.days import daily, play_days

from godwit.control.forecast import Forecast


def test_days_are_met_by_executors_that_are_there_in_time() -> None:
    """What they take beside a run without forecast is 1.14 to 1.47 times, by the noise drawn."""
    day_s = 200.0
    scenario = daily(day_s, 3.2, height=3.0)
    alone, foreseen = (
        play_days(scenario, forecast, from_s=2.2 * day_s, seed=1)
        for forecast in (None, Forecast(period=f"{day_s} seconds"))
    )
    assert any(event.used for event in foreseen.judged)
    assert foreseen.slow <= alone.slow
    assert foreseen.late_s < 0.5 * alone.late_s
    assert foreseen.executor_s < 1.5 * alone.executor_s
    assert foreseen.most <= 12
