"""A load that repeats is foreseen once it was seen twice, if that is better than no forecast."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import godwit as gw
from godwit.control.forecast import (
    Forecast,
    Forecaster,
    RateHistory,
    detect_period,
    evaluate_forecast,
    raise_to_forecast,
    seasonal_forecast,
)
from godwit.control.memory import ControllerMemory
from godwit.control.scaling import WantedExecutors
from godwit.control.statistics import PeriodStatistics
from godwit.model import events
from godwit.model.errors import InvalidControlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.arrays import FloatArray

DAY_S, PERIOD_S = 480.0, 10.0


def day(time_s: float) -> float:
    """Rows a second at a time of the day."""
    return 1000 + 800 * math.sin(2 * math.pi * time_s / DAY_S)


def rates(num_days: float, noise: float = 0.05, seed: int = 1) -> FloatArray:
    draw = np.random.default_rng(seed)
    times = np.arange(0, num_days * DAY_S, PERIOD_S) + PERIOD_S / 2
    found: FloatArray = np.array([day(t) for t in times]) * draw.normal(1, noise, len(times))
    return found


def period_of(began_s: float, rows: float, backlog_rows: int | None = None) -> PeriodStatistics:
    return PeriodStatistics(
        began_s=began_s, ended_s=began_s + PERIOD_S, epochs=3, missing=0, rows=rows, covered=1.0,
        arrival_per_s=rows / PERIOD_S, epoch_s=0.1, fixed_s=0.1, backlog_rows=backlog_rows,
        components={},
    )  # fmt: skip


class Announced(list[events.ForecastJudged]):
    """Events that were announced."""

    def __call__(self, kind: type[events.ForecastJudged], **values: Any) -> None:
        self.append(kind(epoch=0, at_s=0.0, **values))


def forecaster(announced: Announced, settings: Forecast | None = None, **more: Any) -> Forecaster:
    return Forecaster(
        settings or Forecast(period=f"{DAY_S} seconds", lead="40 seconds"),
        statistics_period_s=PERIOD_S,
        announce=announced,
        **more,
    )


def feed(to: Forecaster, rate: Callable[[float], float], from_s: float, to_s: float) -> None:
    for began_s in np.arange(from_s, to_s, PERIOD_S).tolist():
        to.observe(period_of(began_s, rate(began_s + PERIOD_S / 2) * PERIOD_S))


# -- what is remembered ---------------------------------------------------------------------------


def test_rows_are_spread_over_bins_and_what_nobody_saw_is_not_known() -> None:
    history = RateHistory(10.0)
    history.add(100.0, 110.0, 50.0)
    history.add(110.0, 125.0, 30.0)
    history.add(150.0, 160.0, 80.0)
    assert history.rates.tolist()[:3] == pytest.approx([5.0, 2.0, 2.0])
    assert np.isnan(history.rates[3:5]).all()
    assert history.rates[5] == 8.0


@pytest.mark.parametrize("begun_s", [0.0, 30.0, 1.7e9])
def test_bins_widen_so_that_days_stay_small_and_no_rate_is_lost(begun_s: float) -> None:
    history = RateHistory(10.0)
    for at in range(5000):
        history.add(begun_s + at * 10, begun_s + at * 10 + 10, 70.0)
    assert len(history.rates) <= 1024
    assert history.span_s >= 5000 * 10
    assert np.nanmin(history.rates) == pytest.approx(7.0)
    assert np.nanmax(history.rates) == pytest.approx(7.0)
    assert len(json.dumps(history.to_dict())) < 4000


def test_a_month_is_kept_by_its_last_weeks_and_a_gap_of_a_year_begins_anew() -> None:
    history = RateHistory(600.0)
    for at in range(30 * 144):
        history.add(at * 600.0, at * 600.0 + 600, 600.0 * at)
    assert 14 * 86_400 < history.span_s < 29 * 86_400
    assert np.nanmax(history.rates) == pytest.approx(30 * 144, rel=1e-2)
    history.add(4e7, 4e7 + 600, 600.0)
    assert len(history.rates) == 1


def test_it_is_read_back_to_half_a_percent_and_damage_is_no_history() -> None:
    history = RateHistory(10.0)
    history.add(0.0, 10.0, 12_345.0)
    history.add(30.0, 40.0, 0.0)
    values = json.loads(json.dumps(history.to_dict()))
    again = RateHistory.from_dict(values)
    assert again is not None
    assert again.rates == pytest.approx(history.rates, rel=0.005, nan_ok=True)
    for damage in ({"rates": "x"}, {"width_s": -1}, {"first": None}, {"width_s": float("nan")}):
        assert RateHistory.from_dict(values | damage) is None
    assert RateHistory.from_dict({}) is None


def test_the_controllers_memory_keeps_rates_and_reads_one_that_has_none() -> None:
    memory = ControllerMemory(rates=RateHistory(10.0).to_dict(), came_s=12.0)
    assert ControllerMemory.from_dict(json.loads(json.dumps(memory.to_dict()))) == memory
    older = {"overrides": {}, "scaled": "", "scaled_s": 0.0, "rates_per_s": []}
    assert ControllerMemory.from_dict(older) == ControllerMemory()
    assert ControllerMemory.from_dict({**older, "came_s": -1.0}) is None
    assert ControllerMemory.from_dict({**older, "rates": 3}) is None


# -- forecasts ------------------------------------------------------------------------------------


def test_one_odd_day_does_not_change_a_forecast() -> None:
    known = np.tile(np.arange(48.0), 4)
    known[48:96] = 1e6
    assert seasonal_forecast(known, 4 * 48 + 7.0, 48.0) == 7.0
    assert math.isnan(seasonal_forecast(known, 20.0, 48.0))


@pytest.mark.parametrize("seed", range(5))
def test_a_period_is_found_to_a_few_percent_and_none_where_there_is_none(seed: int) -> None:
    found = detect_period(rates(3.5, noise=0.2, seed=seed))
    assert found is not None
    assert found * PERIOD_S == pytest.approx(DAY_S, rel=0.08)
    draw = np.random.default_rng(seed)
    assert detect_period(draw.normal(1000, 200, 170)) is None
    assert detect_period(np.full(170, 1000.0)) is None
    assert detect_period(rates(1.2, seed=seed)) is None, "it was not seen twice"


def test_a_forecast_of_a_day_is_better_than_none_and_of_noise_it_is_not() -> None:
    assert evaluate_forecast(rates(3), 48.0, 4).relative_error < 0.3
    noise = np.random.default_rng(2).normal(1000, 200, 144)
    assert evaluate_forecast(noise, 48.0, 4).relative_error > 0.8


def test_nothing_is_foreseen_before_two_periods_and_the_rise_is_afterwards() -> None:
    announced = Announced()
    foreseeing = forecaster(announced)
    feed(foreseeing, day, 0.0, 1.9 * DAY_S)
    assert foreseeing.expected_per_s(1.9 * DAY_S) is None
    assert [(e.used, "two periods" in e.reason) for e in announced] == [(False, True)]
    feed(foreseeing, day, 1.9 * DAY_S, 2.5 * DAY_S + PERIOD_S)
    assert [e.used for e in announced] == [False, True]
    assert announced[-1].error is not None
    assert announced[-1].error_as_now is not None
    assert announced[-1].error < 0.5 * announced[-1].error_as_now
    # Forty seconds ahead, and no more than the greatest rate that there ever was.
    feed(foreseeing, day, 2.5 * DAY_S + PERIOD_S, 3 * DAY_S)
    expected = foreseeing.expected_per_s(3 * DAY_S) or 0.0
    assert expected == pytest.approx(day(40.0), rel=0.05)
    assert expected > 1.3 * day(0.0)
    assert (foreseeing.expected_per_s(3 * DAY_S + 100) or 0) <= 1800 * 1.01


def test_a_load_that_repeats_no_more_ends_the_forecast() -> None:
    announced = Announced()
    foreseeing = forecaster(announced)
    feed(foreseeing, day, 0.0, 3 * DAY_S)
    assert [event.used for event in announced] == [False, True]
    feed(foreseeing, lambda _: 500.0, 3 * DAY_S, 4.2 * DAY_S)
    assert not announced[-1].used
    assert foreseeing.expected_per_s(4.2 * DAY_S) is None


def test_a_restart_goes_on_with_what_was_seen() -> None:
    announced = Announced()
    before = forecaster(announced)
    feed(before, day, 0.0, 2.7 * DAY_S)
    again = forecaster(
        announced, remembered=RateHistory.from_dict(before.history.to_dict()), came_s=7.0
    )
    feed(again, day, 2.75 * DAY_S, 3 * DAY_S)
    assert again.expected_per_s(3 * DAY_S) == pytest.approx(day(40.0), rel=0.05)


def test_rows_that_sources_hold_back_count_when_they_arrive() -> None:
    foreseeing = forecaster(Announced())
    foreseeing.observe(period_of(0.0, 100.0, 50))
    foreseeing.observe(period_of(10.0, 100.0, 0))
    assert foreseeing.history.rates[:2].tolist() == [15.0, 5.0]


def test_the_lead_is_what_executors_took_to_come_and_two_periods() -> None:
    foreseeing = forecaster(Announced(), Forecast(period=f"{DAY_S} seconds"))
    assert foreseeing.lead_s == 30.0 + 2 * PERIOD_S
    two = frozenset({"a", "b"})
    foreseeing.measure_lead(two, 0, 0.0)
    foreseeing.measure_lead(two, 1, 10.0)
    foreseeing.measure_lead(two, 1, 15.0)
    foreseeing.measure_lead(two | {"c"}, 0, 22.0)
    assert foreseeing.came_s == 12.0
    assert foreseeing.lead_s == 12.0 + 2 * PERIOD_S


@pytest.mark.parametrize("ahead", [1, 3, 9])
def test_a_hint_never_asks_for_fewer(ahead: int) -> None:
    now = WantedExecutors(executors=4, comfortable=5, reason="now")
    to_come = WantedExecutors(executors=ahead, comfortable=ahead + 1, reason="later")
    wanted = raise_to_forecast(now, to_come, 1000.0)
    assert wanted.executors == max(4, ahead)
    assert wanted.comfortable == max(5, ahead + 1)
    assert ("forecast" in wanted.reason) == (ahead > 4)
    assert wanted.aim is None  # a model that names none gets the middle of the range
    assert raise_to_forecast(replace(now, aim=5), to_come, 1000.0).aim == 5


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Forecast(period="a day"), "period"),
        (lambda: Forecast(period="0 seconds"), "period"),
        (lambda: Forecast(lead="-1 s"), "lead"),
        (lambda: gw.Control(forecast=Forecast()), "requires a scaling model"),
        (
            lambda: gw.Control(scaling=gw.control.utilisation(), forecast="1 day"),  # type: ignore[arg-type]
            "Give a gw.control.Forecast",
        ),
        (
            lambda: gw.Control(
                scaling=gw.control.utilisation(),
                period="1 minute",
                forecast=gw.control.Forecast(period="5 minutes"),
            ),
            "at least 480 s",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidControlError, match=said):
        make()
