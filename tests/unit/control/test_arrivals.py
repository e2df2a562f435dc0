"""The rate at which rows arrive, from what is taken and held back; and when it steps up."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.control.arrivals import ArrivalCurve


def test_what_is_held_back_has_arrived_when_the_source_says_so() -> None:
    arrivals = ArrivalCurve()
    assert arrivals.rate_since(0.0) is None
    arrivals.add_epoch(500, 1.0, 700)  # had lain there
    assert arrivals.rate_since(0.0) is None
    arrivals.add_epoch(100, 2.5, 900)
    assert arrivals.rate_since(0.0) == pytest.approx(200.0)
    arrivals.add_epoch(100, 3.0, None)  # not known just now: 100 rows/s continue
    arrivals.add_epoch(100, 4.5, 900)
    assert arrivals.rate_since(2.6) == pytest.approx(100.0)
    assert arrivals.rate_since(0.0) == pytest.approx(500 / 3.5)
    assert arrivals.rate_since(100.0) == pytest.approx(100.0)


def test_a_source_that_begins_to_say_what_it_holds_back_is_believed_from_then_on() -> None:
    arrivals = ArrivalCurve()
    for second in range(3):
        arrivals.add_epoch(100, float(second), None)
    arrivals.add_epoch(100, 3.0, 5000)
    assert arrivals.rate_since(0.0) is None
    arrivals.add_epoch(100, 4.0, 5200)
    assert arrivals.rate_since(0.0) == pytest.approx(300.0)


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_a_tenth_is_no_step_and_twice_the_rate_is_one_after_two_epochs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrivals, at_s = ArrivalCurve(), 0.0
    for _ in range(200):
        took_s = float(rng.uniform(0.3, 1.5))
        at_s += took_s
        arrivals.add_epoch(round(1000 * took_s * rng.uniform(0.9, 1.1)), at_s, None)
        assert arrivals.step_s is None
    steps = []
    for second in (1, 2):
        arrivals.add_epoch(2000, at_s + second, None)
        steps.append(arrivals.step_s)
    assert steps == [None, at_s + 1]
    assert arrivals.rate_since(at_s + 1) == pytest.approx(2000)
    arrivals.drop_old()
    for second in range(3, 30):
        arrivals.add_epoch(2000, at_s + second, None)
        assert arrivals.step_s is None or second < 4


@pytest.mark.parametrize(("first", "stepped"), [(1300, True), (1150, False)])
def test_an_interval_with_some_of_the_rate_before_is_the_first_of_a_step(
    first: int, *, stepped: bool
) -> None:
    """It rose, if not by half; the rate is that of the interval after it."""
    arrivals = ArrivalCurve()
    for at_s in range(20):
        arrivals.add_epoch(1000 + 20 * (at_s % 3), float(at_s), None)
    arrivals.add_epoch(first, 20.0, None)
    assert arrivals.step_s is None
    arrivals.add_epoch(1600, 21.0, None)
    assert arrivals.step_s == (21.0 if stepped else None)
    assert arrivals.rate_since(21.0) == pytest.approx(1600)


def test_a_few_quiet_intervals_before_a_step_are_not_taken_for_its_part() -> None:
    """Their noise is less than that before them, and a mean over both rates is that of no time."""
    arrivals = ArrivalCurve()
    rates = [1400, 1800, 1500, 1750, 1450, 1593, 1639, 1623, 1574, 1593, 1613, 6273, 7804]
    for second, rate in enumerate([1600, *rates]):
        arrivals.add_epoch(rate, float(second), None)
    assert arrivals.rate_since_change == pytest.approx(7804)


def test_a_rate_that_strays_widely_steps_only_where_it_leaves_what_is_usual() -> None:
    arrivals = ArrivalCurve()
    for second in range(40):
        arrivals.add_epoch(1000 if second % 2 else 2500, float(second), None)
        assert arrivals.step_s is None


@pytest.mark.parametrize("factor", [0.3, 0.6, 1.7, 4.5])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_after_a_change_no_rate_is_a_mixture_of_before_and_after(
    factor: float, part: float
) -> None:
    """The interval in which it changes has `part` of its time at the new rate."""
    rng = np.random.default_rng(3)
    arrivals = ArrivalCurve()
    for second in range(20):
        arrivals.add_epoch(round(1000 * rng.uniform(0.97, 1.03)), float(second), None)
    assert (arrivals.change_s, arrivals.is_unsettled) == (None, False)
    arrivals.add_epoch(round(1000 * (1 - part + part * factor)), 20.0, None)
    for second in range(21, 24):
        arrivals.add_epoch(round(1000 * factor), float(second), None)
    assert arrivals.change_s in (20.0, 21.0)
    assert arrivals.rate_since_change == pytest.approx(1000 * factor, rel=0.02)


def test_one_interval_of_another_rate_is_waited_for_and_is_no_change() -> None:
    arrivals = ArrivalCurve()
    for second in range(12):
        arrivals.add_epoch(1000 + 10 * (second % 3), float(second), None)
    arrivals.add_epoch(3000, 12.0, None)
    assert (arrivals.change_s, arrivals.is_unsettled) == (None, True)
    arrivals.add_epoch(3000, 13.0, None)
    assert (arrivals.change_s, arrivals.is_unsettled) == (12.0, False)
    assert arrivals.rate_since_change == pytest.approx(3000)


def test_what_an_earlier_run_saw_says_what_is_usual() -> None:
    before = ArrivalCurve()
    for second in range(30):
        before.add_epoch(1000 + 10 * (second % 3), float(second), None)
    arrivals = ArrivalCurve(before.recent_rates)
    for second in (100, 101, 102):
        arrivals.add_epoch(4000, float(second), None)
    assert arrivals.step_s == 101.0
    assert arrivals.rate_since_change == pytest.approx(4000)
    assert ArrivalCurve().step_s is None
