"""Each autoscaler of the arena decides as its paper says, on figures worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from godwit.control.situation import ScalingSituation, Station
from godwit_lab.arena.autoscalers import AUTOSCALERS
from godwit_lab.arena.autoscalers.conttune import ContTune
from godwit_lab.arena.autoscalers.dhalion import Dhalion
from godwit_lab.arena.autoscalers.ds2 import DS2, true_demand
from godwit_lab.arena.autoscalers.flink import Flink
from godwit_lab.arena.autoscalers.hpa import HPA


def situation(
    *,
    executors: int = 2,
    rate: float = 100.0,
    true_rate: float = 50.0,
    backlog: int = 0,
    now_s: float = 0.0,
) -> ScalingSituation:
    """One operator: `rate` rows a second arrive, and a lane processes `true_rate` of them."""
    return ScalingSituation(
        now_s=now_s,
        started_s=0.0,
        executors=executors,
        least=1,
        most=40,
        lanes=1.0,
        offered=rate / true_rate,
        evenness=1.0,
        arrival_per_s=rate,
        stations={"work": Station(arrival_per_s=rate, service_per_s=true_rate)},
        epoch_s=1.0,
        fixed_s=0.1,
        backlog_rows=backlog,
    )


def test_ds2_adds_up_rates_over_true_rates() -> None:
    two = replace(
        situation(),
        stations={
            "map": Station(arrival_per_s=100.0, service_per_s=40.0),
            "count": Station(arrival_per_s=50.0, service_per_s=100.0),
        },
    )
    assert true_demand(two) == pytest.approx(3.0)
    assert DS2(reserve=0.0, warm_up=0)(two) == 3
    assert DS2(reserve=0.25, warm_up=0)(two) == 4  # 3.75


def test_ds2_ignores_periods_after_a_change_and_waits_until_estimates_agree() -> None:
    rule = DS2(reserve=0.0, warm_up=2, activation=2)
    assert [rule(situation(rate=300, now_s=5.0 * n)) for n in range(4)] == [2, 2, 2, 6]


def test_ds2_corrects_an_estimate_that_leaves_the_source_behind() -> None:
    rule = DS2(reserve=0.0, warm_up=0)
    assert rule(situation(rate=100)) == 2
    # 5 s later 250 rows more are behind: half of the rate was observed, so twice as much is needed
    assert rule(situation(rate=100, backlog=250, now_s=5.0)) == 4


def test_dhalion_scales_up_by_the_share_of_backpressure() -> None:
    rule = Dhalion(wait=0)
    assert rule(situation(executors=4)) == 4
    # half of the rows were held back: 1 + 0.5 / 0.5 = twice as many
    assert rule(situation(executors=4, backlog=250, now_s=5.0)) == 8


def test_dhalion_removes_executors_while_it_is_healthy_and_puts_failures_on_a_blacklist() -> None:
    rule = Dhalion(wait=0, healthy=2, down=1.25)
    answers = [rule(situation(executors=5, now_s=5.0 * n)) for n in range(2)]
    assert answers == [5, 4]
    assert rule(situation(executors=4, backlog=125, now_s=10.0)) == 6  # 4 · (1 + 0.25 / 0.75)
    assert [rule(situation(executors=5, now_s=15.0 + 5 * n)) for n in range(6)] == [5] * 6
    # at half of the rate the same step is tried again
    lower = [rule(situation(executors=5, rate=50.0, now_s=60.0 + 5 * n)) for n in range(2)]
    assert 4 in lower


def test_hpa_follows_the_formula_and_its_tolerance() -> None:
    # busy 90 %, target 75 %: ceil(50 · 90 / 75) = 60, as in the Kubernetes documentation's example
    busy = situation(executors=50, rate=2250, true_rate=50)
    assert HPA(utilisation=0.75)(busy) == 60
    # 80 % is within a tenth of 75 %
    assert HPA(utilisation=0.75)(situation(executors=50, rate=2000, true_rate=50)) == 50


def test_hpa_removes_executors_only_after_its_window_and_adds_at_most_twice_as_many() -> None:
    rule = HPA(window=3)
    loads = [situation(executors=10, rate=500, now_s=0.0)]
    loads += [situation(executors=10, rate=140, now_s=5.0 * n) for n in range(1, 4)]
    assert [rule(load) for load in loads] == [15, 10, 10, 4]
    # the lag grows by nine times the rate
    rising = HPA()
    rising(situation(executors=8, rate=280))
    assert rising(situation(executors=8, rate=280, backlog=12_600, now_s=5.0)) == 16


def test_hpa_keeps_executors_while_rows_are_behind() -> None:
    rule = HPA(window=1)
    rule(situation(executors=4, rate=20, backlog=1000))
    assert rule(situation(executors=4, rate=20, backlog=1000, now_s=5.0)) == 4


def test_flink_stays_between_its_thresholds_and_counts_the_restart_outside() -> None:
    # utilisation 70 % ± 30 %: true rate 250 is between 100/1.0 and (100/0.4) · (1 + 25/150)
    assert Flink()(situation(executors=5)) == 5
    # 100 rows/s on one lane of 50: capacity (100/0.7) · (1 + 25/150) = 166.7, 3.33 lanes
    assert Flink()(situation(executors=1)) == 4
    # a lag of 3000 rows is 20 rows/s within 150 s: 186.7, 3.73 lanes; of 9000, 60 rows/s: 4.53
    assert Flink()(situation(executors=1, backlog=3000)) == 4
    assert Flink()(situation(executors=1, backlog=9000)) == 5


def test_flink_scales_down_after_its_interval_by_the_maximum_factor() -> None:
    rule = Flink(stabilisation=0, scale_down=2)
    answers = [rule(situation(executors=20, rate=50, now_s=5.0 * n)) for n in range(3)]
    assert answers == [20, 20, 8]  # at most 60 % fewer


def test_flink_waits_for_the_stabilisation_interval() -> None:
    rule = Flink()
    rule(situation(executors=1))
    answers = [rule(situation(executors=2, rate=300, now_s=5.0 * n)) for n in range(1, 7)]
    assert answers[:5] == [2] * 5
    assert answers[5] > 2


def test_conttune_goes_big_under_backpressure_and_small_by_what_it_saw() -> None:
    rule = ContTune(wait=0, headroom=1.0)
    assert rule(situation(executors=2, rate=150, backlog=1000)) == 4
    # abilities of 2 and 4 executors were seen, and both are 50 an executor
    assert rule(situation(executors=4, rate=120)) == 3


def test_conttune_trusts_its_curve_near_what_it_saw_and_ds2_elsewhere() -> None:
    rule = ContTune(wait=0, headroom=1.0, alpha=1)
    for _ in range(5):  # 4 executors process only 160 rows a second
        rule(situation(executors=4, rate=100, true_rate=40))
    # with 50 an executor, DS2 says 4 for 200 rows/s; the curve remembers that 4 were too few
    assert rule(situation(executors=5, rate=190, true_rate=50)) == 5
    assert rule(situation(executors=5, rate=500, true_rate=50)) == 10


@pytest.mark.parametrize("name", [name for name in AUTOSCALERS if name != "godwit"])
def test_every_rule_settles_under_a_constant_load(name: str) -> None:
    model = AUTOSCALERS[name].make(2.0)
    executors, history = 3, []
    for period in range(60):
        load = situation(executors=executors, rate=200.0, now_s=5.0 * period)
        short = max(200.0 - 50.0 * executors, 0.0)
        load = replace(load, backlog_rows=int(short * 5 * (period + 1)))
        executors = model.wanted(load).executors
        history.append(executors)
    assert len(set(history[-20:])) == 1
    assert 4 <= history[-1] <= 8
