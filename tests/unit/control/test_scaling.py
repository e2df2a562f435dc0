"""Scaling models and the pace at which they are followed."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.oracles.core_counts import mmk_latency_s

from godwit.control.backlog_trend import BacklogTrend
from godwit.control.latency_model import predicted_latency_s
from godwit.control.pace import Pace, ScalingStep
from godwit.control.scaling import (
    WantedExecutors,
    at_rate,
    backlog_to_come,
    custom,
    fixed,
    latency,
    scripted,
    utilisation,
    waiting_to_come,
)
from godwit.control.situation import ScalingSituation, Station
from godwit.engine.cluster import PoolView
from godwit.model.errors import InvalidControlError
from godwit.model.latency import LatencyHistogram

NOW_S = 100.0


def situation(**changed: Any) -> ScalingSituation:
    """Four executors of two lanes, half busy with rows of a millisecond."""
    values: dict[str, Any] = {
        "now_s": NOW_S,
        "started_s": 0.0,
        "executors": 4,
        "least": 1,
        "most": 16,
        "lanes": 2.0,
        "offered": 4.0,
        "evenness": 1.0,
        "arrival_per_s": 4000.0,
        "stations": {"sum": Station(arrival_per_s=4000.0, service_per_s=1000.0)},
        "epoch_s": 0.2,
        "fixed_s": 0.1,
    }
    return ScalingSituation(**(values | changed))


def wanting(executors: int, comfortable: int | None = None) -> WantedExecutors:
    return WantedExecutors(
        executors=executors, comfortable=comfortable or executors, reason="a test"
    )


def test_nobody_goes_while_rows_that_waited_still_miss_the_target() -> None:
    """Fewer would do for a stream at rest; this one works off what a step left behind."""
    pace = Pace(cool_down_s=0.0)
    spare = replace(wanting(2), target=2.0)
    for measured, kind in ((8.0, "stay"), (6.0, "stay"), (1.9, "stay"), (1.8, "in")):
        step = pace.step(replace(spare, measured=measured), situation(), PoolView(), paced=True)
        assert step.kind == kind, measured


def test_nobody_goes_while_a_backlog_is_worked_off() -> None:
    """Fewer would do by now, and fewer still once nothing waits: that takes one decision."""
    pace, kinds = Pace(cool_down_s=0.0), []
    for backlog, fewest in ((6000, 3), (9000, 3), (6000, 3), (3000, 3), (0, 2), (0, 2)):
        at = situation(backlog_rows=backlog)
        kinds.append(pace.step(wanting(fewest), at, PoolView(), paced=True).kind)
    assert kinds == ["stay"] * 5 + ["in"]


def test_a_backlog_that_stays_as_it_is_keeps_nobody() -> None:
    pace, at = Pace(cool_down_s=0.0), situation(backlog_rows=9000)
    kinds = [pace.step(wanting(3), at, PoolView(), paced=True).kind for _ in range(3)]
    assert kinds == ["stay", "stay", "in"]


def kinds_of(backlogs: np.ndarray) -> list[str]:
    """Decisions, period by period, of a pace that three executors would do for."""
    pace = Pace(cool_down_s=0.0)
    return [
        pace.step(wanting(3), situation(backlog_rows=int(rows)), PoolView(), paced=True).kind
        for rows in backlogs
    ]


def wavering(slope: float, noise: float, periods: int, seed: int) -> np.ndarray:
    """Backlog that grows by a share a period, and wavers."""
    errors = np.random.default_rng(seed).normal(0, noise, periods)
    rows: np.ndarray = 100_000 * (1 + slope) ** np.arange(periods) * np.exp(errors)
    return rows


@pytest.mark.parametrize(("noise", "usual"), [(0.0, 3), (0.01, 8), (0.1, 12), (0.3, 20)])
def test_a_lag_that_wavers_and_stays_keeps_nobody(noise: float, usual: int) -> None:
    gone = [kinds_of(wavering(0.0, noise, 80, seed)).index("in") + 1 for seed in range(40)]
    assert np.median(gone) <= usual
    assert max(gone) <= 60


@pytest.mark.parametrize("slope", [-0.1, -0.05, 0.1])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_a_backlog_that_falls_or_grows_slowly_keeps_everybody(slope: float, noise: float) -> None:
    kept = ["in" not in kinds_of(wavering(slope, noise, 20, seed)) for seed in range(40)]
    assert sum(kept) >= 38


def test_a_backlog_that_grew_before_it_fell_keeps_everybody() -> None:
    """As after a step; it has no slope as a whole, and wavers about what it has at its end."""
    hump = 10_000.0 * np.array([6, 9, 12, 11, 10, 9, 8, 7, 6, 5, 4])
    errors = np.random.default_rng(0).normal(0, 0.05, (40, len(hump)))
    assert sum("in" not in kinds_of(hump * np.exp(one)) for one in errors) >= 38


def test_a_backlog_is_judged_anew_under_another_number_of_executors() -> None:
    trend = BacklogTrend()
    for executors in (4, 5):
        changing = [trend.is_changing(9000, executors, behind=True) for _ in range(8)]
        assert not any(changing[1:])
    assert trend.is_changing(18_000, 6, behind=True)
    assert not trend.is_changing(18_000, 6, behind=False)


def test_those_go_that_bring_nothing_where_a_stream_at_rest_misses_the_target() -> None:
    """Rows whose source says that they came an hour ago take an hour with any executors."""
    pace, spare = Pace(cool_down_s=0.0), replace(wanting(2), target=2.0, measured=3600.0)
    kinds = [
        pace.step(spare, situation(), PoolView(), paced=True, steady=steady).kind
        for steady in (False, True, True)
    ]
    assert kinds == ["stay", "stay", "in"]


# -- models ---------------------------------------------------------------------------------------


def test_utilisation_counts_what_arrives_against_what_there_is() -> None:
    wanted = utilisation(0.5, slack=0.2).wanted(situation())
    assert (wanted.executors, wanted.comfortable) == (4, 5)
    assert wanted.numbers["utilisation"] == 0.5
    assert utilisation(0.5).wanted(situation(offered=4.1)).executors == 5
    assert utilisation(0.5).wanted(situation(offered=0.0)).executors == 1


def test_latency_is_the_time_that_rows_wait_for_epochs_or_the_queue_of_all_lanes() -> None:
    at = situation()
    network = mmk_latency_s(4000.0, 1000.0, 8)
    assert predicted_latency_s(at, 4) == pytest.approx(1.5 * 0.1 / (1 - 0.5))
    continuous = replace(at, waits_for_epochs=False)
    assert predicted_latency_s(continuous, 4) == pytest.approx(network)
    assert predicted_latency_s(at, 2) == float("inf")


def test_a_quantile_is_predicted_by_its_measured_ratio_to_the_mean() -> None:
    # A mean of 2 s, and one row of fifty that takes 51 s.
    ages_us = np.array([1_000_000] * 98 + [51_000_000] * 2)
    took = LatencyHistogram.of_us(ages_us)
    at = situation(latency=took, recent_latency=took)
    mean, tail = (latency("0.5 seconds", quantile=share).wanted(at) for share in (None, 0.99))
    assert mean.numbers["measured_s"] == pytest.approx(2.0)
    assert tail.numbers["measured_s"] == pytest.approx(51.0, rel=0.01)
    assert "ratio_to_mean" not in mean.numbers
    assert tail.numbers["ratio_to_mean"] == 10  # of 25.5: bounded
    assert tail.numbers["predicted_s"] == pytest.approx(10 * mean.numbers["predicted_s"])
    assert tail.reason == "0.99 of rows should take at most 0.5 s"
    assert tail.unattainable
    half = latency("0.5 seconds", quantile=0.5).wanted(at)
    assert half.numbers["ratio_to_mean"] == pytest.approx(0.5, rel=0.01)
    assert half.executors <= mean.executors
    few = LatencyHistogram.of_us(ages_us[-20:])  # say nothing of a ratio yet
    unmeasured = latency("0.5 seconds", quantile=0.99).wanted(situation(recent_latency=few))
    assert unmeasured.numbers["ratio_to_mean"] == 1
    assert "measured_s" not in unmeasured.numbers


@pytest.mark.parametrize("quantile", [0, 1, -0.5, 99, True, "0.99", float("nan")])
def test_a_quantile_that_is_no_share_of_rows_is_refused(quantile: Any) -> None:
    with pytest.raises(InvalidControlError, match="quantile of a latency target is"):
        latency("2.0 seconds", quantile=quantile)


def test_latency_falls_with_every_executor() -> None:
    predicted = [predicted_latency_s(situation(), n) for n in range(3, 16)]
    assert predicted == sorted(predicted, reverse=True)


def test_the_fewest_executors_that_meet_a_latency_are_wanted() -> None:
    at = situation()
    wanted = latency("300 milliseconds").wanted(at)
    met = [n for n in range(1, 17) if predicted_latency_s(at, n) <= 0.3]
    assert wanted.executors == met[0]
    assert not wanted.unattainable
    assert wanted.comfortable >= wanted.executors


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, r"unreachable: 16 executors achieve 0\.1\d+ s, \d+ are within 17% of that"),
        ({"offered": 40.0}, "16 executors cannot keep up with 4000 rows/s"),
    ],
)
def test_a_latency_out_of_reach_says_the_best_that_can_be_had(
    changed: dict[str, Any], said: str
) -> None:
    import re

    wanted = latency("0.05 seconds").wanted(situation(**changed))
    assert re.search(said, wanted.unattainable)


def test_what_sources_hold_back_is_to_be_worked_off_in_time() -> None:
    model = latency("300 milliseconds", catch_up="30 seconds")
    behind = model.wanted(situation(backlog_rows=120_000))
    assert behind.numbers["backlog_rows"] == 120_000
    twice = situation(
        offered=8.0,
        arrival_per_s=8000.0,
        stations={"sum": Station(arrival_per_s=8000.0, service_per_s=1000.0)},
    )
    assert behind.executors == model.wanted(twice).executors
    assert behind.executors > model.wanted(situation(backlog_rows=0)).executors
    assert model.wanted(situation(backlog_rows=5, arrival_per_s=0.0)).executors


def test_executors_that_are_asked_for_work_a_backlog_off_in_half_the_time() -> None:
    behind = situation(backlog_rows=240_000)
    wanted = latency("300 milliseconds", catch_up="60 seconds").wanted(behind)
    sooner = latency("300 milliseconds", catch_up="30 seconds").wanted(behind)
    assert wanted.aim == sooner.executors > wanted.executors
    assert wanted.comfortable >= wanted.aim
    # More is too many as soon as nothing waits any more.
    assert latency("300 milliseconds").wanted(situation()).comfortable < wanted.aim


@pytest.mark.parametrize(
    ("backlog_rows", "changed", "seconds"),
    [
        (8_000, {}, 3.0),
        (40_000, {}, 5.0),
        (400_000, {}, 30.0),
        (40_000, {"fills_at_once": False}, 30.0),
    ],
)
def test_a_backlog_is_worked_off_in_half_the_time_in_which_it_arrived(
    backlog_rows: int, changed: dict[str, Any], seconds: float
) -> None:
    """Between three seconds and half of the time to catch up, unless executors fill slowly."""
    model, rate = latency("300 milliseconds"), 1 + backlog_rows / 4000 / seconds
    wanted = model.wanted(situation(backlog_rows=backlog_rows, most=64, **changed))
    assert wanted.aim == model.wanted(at_rate(situation(most=64), 4000 * rate)).executors


def test_rows_by_which_an_epoch_has_grown_are_to_be_worked_off_too() -> None:
    """Lanes are busy for 98 % of the time: nothing is held back, and each epoch is longer."""
    growing = situation(
        offered=7.84,
        arrival_per_s=7840.0,
        epoch_s=0.64,
        fixed_s=0.3,
        lead_s=5.0,
        longest_epoch_s=2.5,
        backlog_rows=0,
    )
    assert not backlog_to_come(growing)
    # 0.64, 0.93, 1.21, 1.49, 1.76 s: then requested executors have joined.
    assert waiting_to_come(growing, 1.0) == pytest.approx(0.755 * 7840, rel=0.01)
    assert waiting_to_come(growing, 2.0) == 0
    # With a limit of its rows an epoch takes those of 0.45 s each 1.2 s, and the trigger is waited
    # for.
    longest = replace(growing, offered=16.0, longest_epoch_s=1.2)
    left = 0.64 + 5.0 * (1 - 0.45 / 1.2) - 1.0
    assert waiting_to_come(longest, 1.0) == pytest.approx(left * 7840)
    behind = replace(longest, backlog_rows=7840)
    assert waiting_to_come(behind, 1.0) == pytest.approx((left + 1) * 7840)
    assert waiting_to_come(replace(growing, trigger_s=2.0), 1.0) == pytest.approx(
        0.54 * 7840, rel=0.01
    )
    # Without such a limit nothing is known of them, nor where rows do not wait for epochs.
    for other in ({"longest_epoch_s": np.inf}, {"waits_for_epochs": False}):
        assert waiting_to_come(replace(growing, **other), 1.0) == 0
    wanted = latency("1.5 seconds").wanted(growing)
    assert wanted.waiting_rows == pytest.approx(0.755 * 7840, rel=0.01)
    assert wanted.aim is not None
    assert wanted.sufficient is not None
    assert wanted.aim > wanted.sufficient
    # They are to work that off, and go back once they have.
    pace = Pace(cool_down_s=30.0)
    late = replace(wanted, measured=2.0)
    step = pace.step(late, growing, PoolView(), paced=True)
    assert step == ScalingStep(kind="out", executors=wanted.aim)
    pace.record_decision("out", NOW_S, arrival_per_s=7840.0)
    now = replace(growing, executors=wanted.aim, now_s=NOW_S + 5)
    met = replace(wanting(wanted.sufficient), measured=1.0, target=1.5)
    assert pace.step(met, now, PoolView(), paced=True).kind == "in"


def test_rows_that_wait_are_counted_once() -> None:
    """In a longer epoch or with the sources: as many as epochs leave that are played one by one."""
    for busy, epochs in itertools.product((1.2, 1.6, 3.0), (2, 5, 9)):
        waiting_s, lead_s = 1.0, 0.0
        for _ in range(epochs):
            took_s = min(0.3 + busy * waiting_s, 2.5)
            waiting_s += took_s - (took_s - 0.3) / busy
            lead_s += took_s
        step = situation(
            offered=8 * busy, epoch_s=1.0, fixed_s=0.3, trigger_s=1.0, longest_epoch_s=2.5
        )
        came = waiting_to_come(replace(step, lead_s=lead_s - 1e-6), 1.0)
        assert came == pytest.approx(4000 * (waiting_s - 1.0), rel=1e-3), (busy, epochs)


def test_executors_that_miss_the_target_at_rest_are_as_many_as_suffice() -> None:
    """The model says that four meet it, and five do with a little more load: they must be five."""
    for measured, steady, kind in ((1.9, True, "stay"), (2.1, False, "stay"), (2.1, True, "out")):
        late = replace(wanting(4), sufficient=5, measured=measured, target=2.0)
        step = Pace(cool_down_s=30.0).step(late, situation(), PoolView(), paced=True, steady=steady)
        assert (step.kind, step.executors) == (kind, 5 if kind == "out" else 4)


def test_those_suffice_that_meet_the_target_with_a_little_more_load() -> None:
    """Where lanes are busy that leaves much of the target, and elsewhere little."""
    for fixed_s, target in ((0.1, "300 milliseconds"), (0.19, "300 milliseconds")):
        at = situation(fixed_s=fixed_s, most=64)
        more = situation(fixed_s=fixed_s, most=64, offered=4.0 * 1.04, arrival_per_s=4000.0 * 1.04)
        assert latency(target).wanted(at).sufficient == latency(target).wanted(more).executors


def test_for_a_busy_share_nobody_goes_before_what_is_held_back_can_be_worked_off() -> None:
    model = utilisation(0.5, catch_up="30 seconds")
    behind = model.wanted(situation(backlog_rows=120_000))
    assert behind.executors == model.wanted(situation()).executors
    assert behind.comfortable == model.wanted(situation(offered=8.0)).comfortable
    assert behind.numbers["backlog_rows"] == 120_000


def test_a_script_says_what_it_said_last() -> None:
    script = scripted({"1 minute": 4, 0: 2, dt.timedelta(minutes=2): 3})
    said = [script.wanted(situation(now_s=t)).executors for t in (0, 59, 60, 119, 120, 999)]
    assert said == [2, 2, 4, 4, 3, 3]


def test_a_function_may_say_a_number_or_a_whole_answer() -> None:
    assert custom(lambda s: s.executors + 1).wanted(situation()).executors == 5
    whole = wanting(7)
    assert custom(lambda _s: whole).wanted(situation()) is whole
    with pytest.raises(InvalidControlError, match="number of executors is 'many'"):
        custom(lambda _s: "many").wanted(situation())  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: utilisation(1.2), "target utilisation is 1.2"),
        (lambda: utilisation(0.5, slack=1.0), "slack is 1.0"),
        (lambda: latency("2 parsecs"), "latency target is '2 parsecs'"),
        (lambda: latency("0 seconds"), "latency target is '0 seconds'"),
        (lambda: latency(2), 'latency target is 2, which has no unit. Give .* such as "2 seconds"'),  # type: ignore[arg-type]
        (lambda: latency("1 second", catch_up=60), "time to catch up is 60"),  # type: ignore[arg-type]
        (lambda: utilisation(catch_up=60.0), "time to catch up is 60"),  # type: ignore[arg-type]
        (lambda: fixed(0), "number of executors is 0"),
        (lambda: fixed(2.5), "number of executors is 2.5"),  # type: ignore[arg-type]
        (lambda: scripted({}), "script for the number of executors is {}"),
        (lambda: scripted([(0, 2)]), "script for the number of executors is \\[\\(0, 2\\)\\]"),  # type: ignore[arg-type]
        (lambda: utilisation("half"), "utilisation is .half."),  # type: ignore[arg-type]
        (lambda: scripted({"soon": 2}), "step of the script is 'soon'"),
    ],
)
def test_models_of_nonsense_are_refused_where_they_are_made(make: Any, said: str) -> None:
    with pytest.raises(InvalidControlError, match=said):
        make()


# -- pace -----------------------------------------------------------------------------------------


def test_more_is_asked_for_at_once_and_fewer_only_when_several_periods_want_it() -> None:
    pace = Pace(cool_down_s=30.0)
    assert pace.step(wanting(6), situation(), PoolView(), paced=True).kind == "out"
    first = pace.step(wanting(2), situation(), PoolView(), paced=True)
    second = pace.step(wanting(2), situation(), PoolView(), paced=True)
    assert (first.kind, first.reason, second.kind) == ("stay", "it may pass", "in")
    assert second.executors == 2


def at_rest(pace: Pace, sufficient: int, **changed: Any) -> tuple[str, int]:
    """Take a period in which so many sufficed, while up to nine are comfortable."""
    measured = changed.pop("measured", 1.0)
    wanted = replace(wanting(3, 9), sufficient=sufficient, target=2.0, measured=measured)
    at = situation(**{"executors": 8, "now_s": 2 * NOW_S, **changed})
    step = pace.step(wanted, at, PoolView(), paced=True, steady=True)
    return step.kind, step.executors


def test_at_rest_those_go_without_whom_every_one_of_three_periods_met_the_target() -> None:
    pace = Pace(cool_down_s=30.0)
    assert at_rest(pace, 5) == ("stay", 8)
    assert at_rest(pace, 7) == ("stay", 8)
    assert at_rest(pace, 6) == ("in", 7)


def test_at_rest_nobody_goes_whom_noise_may_ask_for_again() -> None:
    stories: list[list[dict[str, Any]]] = [
        [{}, {}, {"sufficient": 8}],  # one period needs all of them
        [{}, {}, {"measured": 2.1}],  # misses the target
        [{}, {"measured": 2.1}, {}, {}],  # and so begins anew
        [{}, {}, {"arrival_per_s": 4500.0}],  # has more rows than the ones before
    ]
    for periods in stories:
        pace = Pace(cool_down_s=30.0)
        said = [at_rest(pace, **({"sufficient": 5} | period)) for period in periods]
        assert said == [("stay", 8)] * len(periods)


def test_a_decision_is_corrected_once_by_what_was_measured() -> None:
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("out", NOW_S - 50, arrival_per_s=4000.0)
    assert [at_rest(pace, 6)[0] for _ in range(3)] == ["stay", "stay", "in"]
    pace.record_decision("in", NOW_S, arrival_per_s=4100.0)
    assert {at_rest(pace, 5)[0] for _ in range(6)} == {"stay"}
    # Another rate, and so another decision to correct.
    assert [at_rest(pace, 5, arrival_per_s=6000.0)[0] for _ in range(3)] == ["stay", "stay", "in"]


def test_one_executor_is_not_worth_a_third_decision_for_one_rate() -> None:
    """Its absence would be noticed by noise; two are worth it, and one is at another rate."""
    pace = Pace(cool_down_s=0.0)
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    assert [pace.step(wanting(3), situation(), PoolView(), paced=True).kind for _ in range(2)] == [
        "stay",
        "in",
    ]
    pace.record_decision("in", NOW_S, arrival_per_s=4000.0)
    for fewest, rate, last in ((3, 4000.0, "stay"), (2, 4000.0, "in"), (3, 3500.0, "in")):
        at = situation(arrival_per_s=rate)
        kinds = [pace.step(wanting(fewest), at, PoolView(), paced=True).kind for _ in range(3)]
        assert kinds[-1] == last, (fewest, rate)


def test_one_period_does_not_ask_for_more_where_the_target_is_met_at_the_same_rate() -> None:
    wanted = replace(wanting(9, 10), target=2.0, measured=2.05)
    now = situation(executors=8, now_s=2 * NOW_S)

    def kinds(wanted: WantedExecutors, now: ScalingSituation) -> list[str]:
        pace = Pace(cool_down_s=30.0)
        pace.record_decision("in", NOW_S, arrival_per_s=4000.0)
        pace.step(wanting(8), situation(executors=8), PoolView(), paced=True)
        return [pace.step(wanted, now, PoolView(), paced=True).kind for _ in range(3)]

    assert kinds(wanted, now) == ["stay", "stay", "out"]
    for missed, other in (
        (replace(wanted, measured=2.2), now),
        (wanted, replace(now, arrival_per_s=4500.0)),
        (wanted, replace(now, expected_per_s=4500.0)),
        (wanted, replace(now, backlog_rows=4000)),
        (wanted, replace(now, executors=7)),  # one was lost
    ):
        assert kinds(missed, other)[0] == "out"


def test_a_decision_at_rest_just_before_a_step_leaves_a_correction_to_that_of_the_step() -> None:
    for steady, kinds in ((True, ["stay", "stay", "in"]), (False, ["stay"] * 3)):
        pace = Pace(cool_down_s=30.0)
        pace.step(wanting(5), situation(), PoolView(), paced=True, steady=steady)
        pace.record_decision("out", NOW_S, arrival_per_s=1000.0)
        pace.step(wanting(8), situation(), PoolView(), paced=True)
        pace.record_decision("out", NOW_S + 5, arrival_per_s=4000.0)
        assert [at_rest(pace, 6)[0] for _ in range(3)] == kinds


def test_a_step_up_is_answered_at_once_though_executors_have_just_gone() -> None:
    for rate, kind in ((4900.0, "stay"), (5100.0, "out")):
        pace = Pace(cool_down_s=30.0)
        pace.record_decision("in", NOW_S - 5, arrival_per_s=4000.0)
        now = situation(arrival_per_s=rate)
        assert pace.step(wanting(9), now, PoolView(), paced=True).kind == kind


def test_between_too_few_and_too_many_nothing_changes() -> None:
    pace = Pace(cool_down_s=30.0)
    for _ in range(5):
        assert pace.step(wanting(3, 5), situation(), PoolView(), paced=True).kind == "stay"


def test_who_needs_more_gets_to_where_noise_asks_for_no_more() -> None:
    pace = Pace(cool_down_s=30.0)
    assert pace.step(wanting(6, 9), situation(), PoolView(), paced=True).executors == 7
    kept = Pace(cool_down_s=30.0)
    assert kept.step(wanting(6, 9), situation(most=6), PoolView(), paced=True).executors == 6


@pytest.mark.parametrize("offered", [0.69, 1.39, 2.09, 2.684, 3.4, 6.99, 20.9, 69.9])
def test_who_got_more_is_asked_neither_for_one_more_nor_for_one_less_by_noise(
    offered: float,
) -> None:
    """Seen where the share that they were to be busy for was all but reached: 2.684 of 4 lanes."""
    model = utilisation(0.7)
    before = situation(lanes=1.0, offered=offered, executors=int(offered), most=200)
    step = Pace(cool_down_s=0.0).step(model.wanted(before), before, PoolView(), paced=True)
    assert step.kind == "out"
    for noise in (0.95, 1.05):
        after = replace(before, executors=step.executors, offered=noise * offered)
        wanted = model.wanted(after)
        assert wanted.executors <= step.executors <= wanted.comfortable


def test_nobody_goes_while_the_target_is_out_of_reach_unless_the_stream_is_at_rest() -> None:
    pace = Pace(cool_down_s=30.0)
    far = replace(wanting(2), unattainable="the target of 1 s is out of reach")
    for _ in range(3):
        step = pace.step(far, situation(), PoolView(), paced=True)
        assert (step.kind, step.executors) == ("refused", 4)
        assert step.reason == "the target of 1 s is out of reach; keeping 4 executors"
    busy, calm = (situation(offered=lanes) for lanes in (4.0, 2.0))
    assert pace.step(far, busy, PoolView(), paced=True, steady=True).kind == "refused"
    step = pace.step(far, calm, PoolView(), paced=True, steady=True)
    assert (step.kind, step.executors) == ("in", 2)


def test_a_decision_is_not_taken_back_within_the_cool_down() -> None:
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("out", NOW_S)
    for passed_s in (1.0, 10.0, 29.0):
        at = situation(now_s=NOW_S + passed_s)
        assert pace.step(wanting(1), at, PoolView(), paced=True).kind == "stay"
    assert pace.step(wanting(1), situation(now_s=NOW_S + 30), PoolView(), paced=True).kind == "in"
    pace.record_decision("in", NOW_S + 30)
    at = situation(now_s=NOW_S + 40)
    assert pace.step(wanting(9), at, PoolView(), paced=True).reason == "cooling down"


def test_more_of_the_same_waits_until_the_last_ones_have_come_and_shown() -> None:
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("out", NOW_S)
    kinds = [
        pace.step(wanting(9), situation(), PoolView(pending=pending), paced=True).kind
        for pending in (2, 0, 0)
    ]
    assert kinds == ["stay", "stay", "out"]


@pytest.mark.parametrize(
    ("changed", "asks"),
    [
        ({}, False),
        ({"executors": 4}, True),  # nobody came, so nothing is to show
        ({"arrival_per_s": 8000.0}, True),  # for more rows than those were asked for
    ],
)
def test_who_came_shows_in_a_whole_period_also_if_one_outlasts_the_cool_down(
    changed: dict[str, Any], *, asks: bool
) -> None:
    pace = Pace(cool_down_s=30.0)
    pace.step(wanting(6), situation(), PoolView(), paced=True)
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    at = {"executors": 6, "now_s": NOW_S + 40} | changed
    step = pace.step(wanting(7), situation(**at), PoolView(), paced=True)
    assert step.kind == ("out" if asks else "stay")
    later = situation(**at | {"now_s": NOW_S + 80})
    assert pace.step(wanting(7), later, PoolView(), paced=True).kind == "out"


def test_a_decision_that_saw_only_part_of_a_step_is_corrected_before_it_shows() -> None:
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("out", NOW_S, arrival_per_s=2000.0)
    coming = PoolView(pending=2)
    step = pace.step(wanting(9), situation(arrival_per_s=4000.0), coming, paced=True)
    assert (step.kind, step.executors) == ("out", 9)
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    same = pace.step(wanting(12), situation(arrival_per_s=4000.0), coming, paced=True)
    assert (same.kind, same.reason) == ("stay", "the last ones were requested only recently")


def test_a_second_decision_for_a_step_asks_for_what_suffices() -> None:
    """The first one is corrected, if it was for too many; the second is not."""
    wanted = replace(wanting(9, 14), aim=12, sufficient=10)

    def asked(made: int, **changed: Any) -> int:
        pace = Pace(cool_down_s=30.0)
        for number in range(made):
            pace.record_decision("out", NOW_S + 10 * number, arrival_per_s=3900.0)
        pace.step(wanting(4), situation(), PoolView(), paced=True)
        return pace.step(
            wanted, situation(now_s=NOW_S + 60, **changed), PoolView(), paced=True
        ).executors

    assert asked(made=0) == 12
    assert asked(made=1) == asked(made=2) == 10
    assert asked(made=1, arrival_per_s=8000.0) == 12  # another step


def test_a_backlog_after_a_step_is_worked_off_in_half_the_time() -> None:
    """The step was answered: what waits later is no reason to ask for as few as suffice."""
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    for _ in range(3):
        pace.step(wanting(4), situation(), PoolView(), paced=True, steady=True)
    wanted = replace(wanting(9, 14), aim=12, sufficient=10)
    later = situation(now_s=NOW_S + 600, backlog_rows=100_000)
    assert pace.step(wanted, later, PoolView(), paced=True).executors == 12


def after_a_loan() -> Pace:
    """Return the pace after 9 executors were asked for to work a backlog off, where 6 suffice."""
    pace = Pace(cool_down_s=30.0)
    wanted = replace(wanting(6, 9), aim=9, sufficient=6, target=2.0, measured=3.0)
    behind = situation(backlog_rows=8000)
    assert pace.step(wanted, behind, PoolView(), paced=True) == ScalingStep(kind="out", executors=9)
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    return pace


@pytest.mark.parametrize(("executors", "many"), [(8, False), (9, True)])
def test_a_third_of_the_executors_are_many(executors: int, many: bool) -> None:
    pace = Pace(cool_down_s=30.0)
    wanted = replace(wanting(6, executors), aim=executors, sufficient=6, target=2.0, measured=3.0)
    pace.step(wanted, situation(backlog_rows=8000), PoolView(), paced=True)
    assert not pace.many_lent, "nothing is decided"
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    assert pace.many_lent == many


def test_executors_asked_for_to_work_a_backlog_off_go_back_once_it_is() -> None:
    """At the first period that meets the target, without a rest, to what suffices for the rate."""
    pace = after_a_loan()
    now = situation(executors=9, now_s=NOW_S + 5)
    worked_off = replace(wanting(6, 8), aim=7, sufficient=6, target=2.0)
    late = replace(worked_off, measured=2.5)
    for wanted, still in ((late, now), (worked_off, replace(now, backlog_rows=8000))):
        assert pace.step(wanted, still, PoolView(), paced=True).kind == "stay"
    step = pace.step(replace(worked_off, measured=1.0), now, PoolView(), paced=True)
    assert step == ScalingStep(kind="in", executors=6)
    # Those that the rate needed, and no backlog, are kept until two periods want fewer.
    pace.record_decision("in", now.now_s, arrival_per_s=4000.0)
    again = pace.step(replace(wanting(5), measured=1.0, target=2.0), now, PoolView(), paced=True)
    assert again.kind == "stay"


@pytest.mark.parametrize(("latest", "kind"), [(2.1, "stay"), (1.9, "in")])
def test_a_backlog_is_worked_off_when_the_last_epoch_meets_the_target(
    latest: float, kind: str
) -> None:
    """The period's mean still has the rows that waited."""
    worked_off = replace(wanting(6, 8), aim=7, sufficient=6, target=2.0, measured=3.5)
    step = after_a_loan().step(
        replace(worked_off, latest=latest),
        situation(executors=9, now_s=NOW_S + 5),
        PoolView(),
        paced=True,
    )
    assert step.kind == kind


def test_what_several_periods_have_shown_does_not_wait_for_noise_to_pass() -> None:
    pace = Pace(cool_down_s=0.0)
    pace.record_decision("out", NOW_S - 60, arrival_per_s=4000.0)
    wanted = replace(wanting(5), target=2.0, measured=1.9)
    assert pace.step(wanted, situation(), PoolView(), paced=True).kind == "stay"
    step = pace.step(wanted, situation(), PoolView(), paced=True, shown=True)
    assert step == ScalingStep(kind="out", executors=5)


@pytest.mark.parametrize(
    ("arrival_per_s", "left"), [(4000.0, 6), (4160.0, 6), (4500.0, 7), (3400.0, 6), (2000.0, 4)]
)
def test_a_loan_is_repaid_down_to_what_sufficed_for_such_a_rate(
    arrival_per_s: float, left: int
) -> None:
    """Just after the step fewer seem to do, and the target would be missed again."""
    pace = after_a_loan()
    now = situation(executors=9, now_s=NOW_S + 5, arrival_per_s=arrival_per_s)
    met = replace(wanting(4, 7), aim=6, sufficient=4, target=2.0, measured=1.0)
    assert pace.step(met, now, PoolView(), paced=True) == ScalingStep(kind="in", executors=left)


def test_a_loan_is_repaid_down_to_what_sufficed_without_the_backlog() -> None:
    """With it more suffice, and a third decision would have to give them back."""
    model = latency("300 milliseconds", catch_up="20 seconds")
    behind = situation(backlog_rows=20_000, executors=3)
    wanted, alone = model.wanted(behind), model.wanted(replace(behind, backlog_rows=0))
    assert wanted.sufficient_without_backlog == alone.sufficient == 5
    assert wanted.sufficient == 6
    pace = Pace(cool_down_s=30.0)
    step = pace.step(wanted, behind, PoolView(), paced=True)
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    now = replace(behind, executors=step.executors, now_s=NOW_S + 5, backlog_rows=0)
    met = replace(wanting(4, 7), sufficient=4, target=0.3, measured=0.2)
    assert pace.step(met, now, PoolView(), paced=True) == ScalingStep(kind="in", executors=5)


def test_a_backlog_of_a_source_that_has_stopped_may_be_lent_executors() -> None:
    pace, rate = Pace(cool_down_s=30.0), {"arrival_per_s": 0.0, "offered": 0.0}
    wanted = replace(wanting(6, 9), aim=9, sufficient=6, target=2.0, measured=3.0)
    step = pace.step(wanted, situation(backlog_rows=8000, **rate), PoolView(), paced=True)
    assert step == ScalingStep(kind="out", executors=9)
    pace.record_decision("out", NOW_S)
    met = replace(wanting(4, 7), aim=6, sufficient=4, target=2.0, measured=1.0)
    now = situation(executors=9, now_s=NOW_S + 5)
    assert pace.step(met, now, PoolView(), paced=True) == ScalingStep(kind="in", executors=4)


def test_executors_that_no_backlog_asked_for_stay_through_the_cool_down() -> None:
    """An increase into the range is not for a backlog, and one that was not made lends nothing."""
    pace = Pace(cool_down_s=30.0)
    easy = replace(wanting(4, 7), aim=6, sufficient=5, target=2.0, measured=1.0)
    more = replace(wanting(7, 10), aim=9, sufficient=7, target=2.0, measured=1.0)
    step = pace.step(more, situation(executors=6), PoolView(), paced=True)
    assert step == ScalingStep(kind="out", executors=9)
    pace.record_decision("out", NOW_S, arrival_per_s=4000.0)
    now = situation(executors=9, now_s=NOW_S + 5)
    assert pace.step(easy, now, PoolView(), paced=True).reason == "cooling down"
    pace.record_decision("in", NOW_S, arrival_per_s=4000.0)
    behind = replace(now, executors=6, backlog_rows=8000)
    late = replace(more, measured=3.0)
    assert pace.step(late, behind, PoolView(), paced=True).reason == "cooling down"
    assert pace.step(easy, now, PoolView(), paced=True).reason == "cooling down"


def test_a_loan_is_remembered_through_answers_that_decide_nothing() -> None:
    pace = after_a_loan()
    coming = situation(executors=7, now_s=NOW_S + 5, backlog_rows=8000)
    still = replace(wanting(10), aim=10, sufficient=10, target=2.0, measured=3.0)
    assert pace.step(still, coming, PoolView(pending=2), paced=True).kind == "stay"
    now = situation(executors=9, now_s=NOW_S + 10)
    met = replace(wanting(6, 8), aim=7, sufficient=6, target=2.0, measured=1.0)
    assert pace.step(met, now, PoolView(), paced=True) == ScalingStep(kind="in", executors=6)


def test_a_period_without_rows_gives_nothing_back_early() -> None:
    """It would leave one executor, and the rows after it would wait for the cool-down."""
    pace = after_a_loan()
    lull = situation(executors=9, now_s=NOW_S + 5, arrival_per_s=0.0, offered=0.0)
    none = replace(wanting(1), aim=1, sufficient=1, target=2.0)
    assert pace.step(none, lull, PoolView(), paced=True).kind == "stay"


def test_no_executor_is_given_back_early_while_the_rate_rises() -> None:
    pace = after_a_loan()
    now = situation(executors=9, now_s=NOW_S + 5, expected_per_s=4200.0)
    met = replace(wanting(6, 8), aim=7, sufficient=6, target=2.0, measured=1.0)
    assert pace.step(met, now, PoolView(), paced=True).kind == "stay"


def test_a_second_decision_while_the_rate_rises_is_for_the_rate_to_come() -> None:
    wanted = replace(wanting(6, 9), aim=8, sufficient=6, target=2.0, measured=3.0)
    for expected, executors in ((None, 6), (4400.0, 8)):
        pace, now = Pace(cool_down_s=30.0), situation(expected_per_s=expected)
        pace.record_decision("out", NOW_S - 10, arrival_per_s=3900.0)
        pace.step(wanting(4), situation(), PoolView(), paced=True)
        assert pace.step(wanted, now, PoolView(), paced=True).executors == executors


def test_a_rate_to_come_a_quarter_above_that_of_the_last_decision_waits_for_no_executor() -> None:
    for expected, kind in ((None, "stay"), (5400.0, "stay"), (5600.0, "out")):
        pace, now = Pace(cool_down_s=30.0), situation(expected_per_s=expected)
        pace.record_decision("out", NOW_S - 5, arrival_per_s=3900.0, expected_per_s=4400.0)
        assert pace.step(wanting(6), now, PoolView(pending=1), paced=True).kind == kind, expected
    # Without a rate to come, the decision was for the measured one.
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("in", NOW_S - 5, arrival_per_s=3900.0)
    rising = situation(expected_per_s=5000.0)
    assert pace.step(wanting(6), rising, PoolView(), paced=True).kind == "out"


def test_an_order_is_followed_at_once() -> None:
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("out", NOW_S)
    assert pace.step(wanting(2), situation(), PoolView(), paced=False).kind == "in"


@pytest.mark.parametrize(
    ("changed", "pool", "reason"),
    [
        ({"most": 4}, PoolView(), "4 is the limit"),
        ({}, PoolView(most=4), "4 is the cluster's limit"),
    ],
)
def test_what_the_limits_do_not_allow_is_refused_with_the_limit(
    changed: dict[str, Any], pool: PoolView, reason: str
) -> None:
    step = Pace(cool_down_s=30.0).step(wanting(9), situation(**changed), pool, paced=True)
    assert (step.kind, step.reason) == ("refused", reason)


def test_a_cluster_with_fewer_executors_than_there_are_to_be_at_least_says_so() -> None:
    pace, have = Pace(cool_down_s=30.0), situation(executors=2, least=4)
    step = pace.step(wanting(1), have, PoolView(most=2), paced=True)
    assert (step.kind, step.reason) == ("refused", "2 is the cluster's limit")


def test_numbers_of_a_model_are_plain_ones() -> None:
    """They stand in the journal, which knows no types of NumPy's."""
    counted: Any = np.int64(3)
    said = WantedExecutors(executors=1, comfortable=1, reason="", numbers={"rows": counted})
    assert type(said.numbers["rows"]) is float


def test_what_the_cluster_refused_is_asked_for_again_only_after_the_cool_down() -> None:
    pace = Pace(cool_down_s=30.0)
    pace.record_decision("out", NOW_S)
    refusing = PoolView(refused="no quota")
    soon = pace.step(wanting(9), situation(now_s=NOW_S + 5), refusing, paced=True)
    assert (soon.kind, soon.reason) == ("refused", "no quota")
    later = pace.step(wanting(9), situation(now_s=NOW_S + 31), refusing, paced=True)
    assert later.kind == "out"


def test_the_least_is_kept() -> None:
    pace = Pace(cool_down_s=0.0)
    at = situation(least=3)
    pace.step(wanting(1), at, PoolView(), paced=True)
    assert pace.step(wanting(1), at, PoolView(), paced=True).executors == 3
