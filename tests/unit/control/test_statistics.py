"""Statistics period: loads by key group, lane and executor, rates, missing values."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.control.planning import measured_problem, resource_usage
from godwit.control.settings import Means
from godwit.control.statistics import PeriodStatistics, Statistics
from godwit.engine.policies import CommittedEpoch, Topology
from godwit.migration.outcome import ComponentTraffic, EpochOutcome
from godwit.migration.state import ComponentView, ProtocolView
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.key_groups import KeyGroupLoad
from godwit.model.latency import LatencyHistogram
from godwit.placement import Limits

ONE = Topology(stages=(("sum",),))
PLACES = even_assignment(4, ["a", "b"], [1, 1])  # a: 0, 2; b: 1, 3


def load(rows: list[int], busy_ms: list[float]) -> KeyGroupLoad:
    return KeyGroupLoad(
        key_groups=np.arange(len(rows)),
        rows=np.array(rows),
        keys=np.array(rows),
        cpu_ms=np.array(busy_ms) / 2,
        state_bytes=np.full(len(rows), 100),
        busy_ms=np.array(busy_ms),
    )


def epoch(
    number: int,
    rows: int,
    took_s: float,
    *,
    assignment: Assignment = PLACES,
    backlog: int | None = None,
    figures: bool = True,
    batch: int | None = 0,
) -> CommittedEpoch:
    each = [rows // 4] * 4
    loads = {"sum": load(each, [r * 1.0 for r in each])} if figures else {}
    return CommittedEpoch(
        outcome=EpochOutcome(epoch=number, batch=batch, rows_in=rows, loads=loads),
        component_views={"sum": ComponentView(assignment=assignment)},
        took_s=took_s,
        backlog_rows=backlog,
    )


def test_loads_are_summed_by_key_group_lane_and_executor() -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(3):
        statistics.observe(epoch(n, 400, 1.0), n + 1.0)
    period = statistics.close(4.0)
    component = period.components["sum"]
    assert component.rows.tolist() == [300.0] * 4
    assert component.busy_s == pytest.approx([0.3] * 4)
    assert (period.epochs, period.missing, period.rows, period.epoch_s) == (3, 0, 1200.0, 1.0)
    assert period.fixed_s == pytest.approx(1.0 - 0.2)


def test_the_delivery_that_the_next_epoch_waits_for_is_a_part_of_an_epoch() -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(3):
        statistics.observe(epoch(n, 400, 1.0), n + 1.0)
        spent_s = {"plan": 0.1, "stages": 0.8, "commit": 0.1, "sink 'store'": 2.0}
        statistics.delivered(LatencyHistogram(), spent_s)
    period = statistics.close(10.0)
    assert period.epoch_s == pytest.approx(3.0)
    assert period.fixed_s == pytest.approx(3.0 - 0.2)  # the busiest lane has 0.2 s of the stages
    assert period.outside_s == pytest.approx(
        {"plan": 0.1, "stages": 0.6, "commit": 0.1, "sink 'store'": 2.0}
    )


@pytest.mark.parametrize(
    ("busy_ms", "outside_s", "name", "share"),
    [
        ([400.0, 0.0, 400.0, 0.0], {}, "executors", 0.8),
        ([600.0, 0.0, 200.0, 0.0], {}, "key group 0 of 'sum'", 0.6),
        ([100.0, 0.0, 100.0, 0.0], {"plan": 0.3, "commit": 0.3}, "driver", 0.6),
        ([100.0, 0.0, 100.0, 0.0], {"sink 'store'": 0.7, "plan": 0.1}, "sink 'store'", 0.7),
        ([100.0, 0.0, 100.0, 0.0], {"stages": 0.8}, "source", 0.6),
        ([100.0, 0.0, 100.0, 0.0], {"sink 'store'": 9.0}, "sink 'store'", 1.0),
        ([300.0, 0.0, 100.0, 0.0], {"plan": 0.3}, "", 0.4),
    ],
)
def test_the_part_that_took_most_of_a_period_holds_the_stream_up(
    busy_ms: list[float], outside_s: dict[str, float], name: str, share: float
) -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(3):
        each = EpochOutcome(epoch=n, batch=0, rows_in=400, loads={"sum": load([100] * 4, busy_ms)})
        views = {"sum": ComponentView(assignment=PLACES)}
        statistics.observe(
            CommittedEpoch(outcome=each, component_views=views, took_s=1.0, backlog_rows=None),
            n + 1.0,
        )
        statistics.delivered(LatencyHistogram(), outside_s)
    held_up_by, held_up = statistics.close(3.0).held_up_by()
    assert held_up_by == name
    assert held_up == pytest.approx(share)


def test_a_trend_that_no_epoch_of_the_period_shows_is_over() -> None:
    statistics, at_s = Statistics(ONE, 0.0, {}), 0.0
    for number in range(1, 13):
        at_s = float(number)
        statistics.begun(1000 + 100 * number, 0, at_s)
        statistics.observe(epoch(number, 1000 + 100 * number, 0.5, backlog=0), at_s + 0.5)
    assert statistics.close(at_s + 0.9).rising is not None
    assert statistics.close(at_s + 30.0).rising is None


def test_an_epoch_that_runs_is_expected_to_take_as_long_as_the_last_one() -> None:
    statistics = Statistics(ONE, 0.0, {})
    statistics.begun(400, 0, 1.0)
    assert statistics.epoch_left_s(1.5) == np.inf  # there was none before
    statistics.observe(epoch(0, 400, 2.0), 3.0)
    assert statistics.epoch_left_s(3.5) == np.inf  # none runs
    statistics.begun(400, 0, 4.0)
    assert [statistics.epoch_left_s(at_s) for at_s in (4.5, 6.0, 7.0)] == [1.5, 0.0, 0.0]


def test_nothing_holds_a_period_without_epochs_up() -> None:
    assert Statistics(ONE, 0.0, {}).close(3.0).held_up_by() == ("", 0.0)


def test_loads_are_those_of_the_rows_that_arrive() -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(4):
        # As many rows as an epoch takes wait after it: three arrive for every two processed.
        statistics.begun(400, 200 * n, float(n))
        statistics.observe(epoch(n, 400, 1.0, backlog=200 * n), n + 1.0)
    period = statistics.close(4.0)
    assert period.demand == pytest.approx(1.5, rel=0.05)
    assert period.to_offered_per_s == pytest.approx(period.demand / 4.0)


def test_latency_is_of_a_period_and_of_the_last_five() -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(7):
        statistics.observe(epoch(n, 400, 1.0), n + 0.5)
        statistics.delivered(LatencyHistogram.of_us(np.array([n * 1_000_000] * (n + 1))), {})
        period = statistics.close(n + 1.0)
        assert period.latency.rows == n + 1
    assert period.latency.mean_s == 6
    assert period.recent_latency.rows == 3 + 4 + 5 + 6 + 7
    assert statistics.close(8.0).latency.rows == 0


def test_a_key_group_that_moves_counts_at_the_speed_of_where_it_was() -> None:
    statistics = Statistics(ONE, 0.0, {})
    statistics.observe(epoch(0, 400, 1.0), 1.0)
    statistics.observe(epoch(1, 400, 1.0, assignment=PLACES.moved({0: "b"})), 2.0)
    component = statistics.close(2.0).components["sum"]
    assert len(component.by_assignment) == 2
    speeds = {"a": 0.5}
    assert component.standard_s(speeds) == pytest.approx([0.05 + 0.1, 0.2, 0.1, 0.2])


def test_nothing_older_than_the_period_counts_but_sizes_of_state() -> None:
    statistics = Statistics(ONE, 0.0, {"sum": {3: 77}})
    statistics.observe(epoch(0, 400, 1.0), 1.0)
    statistics.close(2.0)
    statistics.observe(epoch(1, 40, 1.0), 3.0)
    period = statistics.close(4.0)
    assert period.rows == 40
    assert period.components["sum"].state_bytes.tolist() == [100.0] * 4


def test_sizes_of_state_that_nothing_touched_are_those_known_at_the_start() -> None:
    statistics = Statistics(ONE, 0.0, {"sum": {0: 55, 3: 77}})
    outcome = EpochOutcome(epoch=0, batch=0, rows_in=2, loads={"sum": load([1, 1], [1.0, 1.0])})
    component_views = {"sum": ComponentView(assignment=PLACES)}
    seen = CommittedEpoch(outcome=outcome, component_views=component_views, took_s=1.0)
    statistics.observe(seen, 1.0)
    component = statistics.close(1.0).components["sum"]
    assert component.state_bytes.tolist() == [100.0, 100.0, 0.0, 77.0]


def test_rows_arrive_between_the_beginnings_of_epochs_however_long_these_take() -> None:
    statistics = Statistics(ONE, 0.0, {})
    # 100 rows/s, and epochs that take longer and longer: each takes what came during the last.
    statistics.observe(epoch(0, 5000, 1.0), 1.0)  # had lain there
    statistics.observe(epoch(1, 100, 2.0), 3.0)
    statistics.observe(epoch(2, 200, 3.0), 6.0)
    period = statistics.close(6.0)
    assert period.arrival_per_s == pytest.approx(100.0)


def test_rows_of_which_nothing_tells_when_they_arrived_arrived_as_they_were_taken() -> None:
    statistics = Statistics(ONE, 0.0, {})
    statistics.observe(epoch(0, 400, 4.0), 4.0)
    period = statistics.close(4.0)
    assert period.arrival_per_s == pytest.approx(100.0)
    assert period.demand == pytest.approx(1.0)


def test_what_sources_hold_back_has_arrived_all_the_same() -> None:
    statistics = Statistics(ONE, 0.0, {})
    statistics.observe(epoch(0, 100, 1.0, backlog=0), 1.0)
    statistics.close(1.0)
    # 300 rows/s arrive, of which the source gives 100.
    for n in (1, 2, 3):
        statistics.observe(epoch(n, 100, 1.0, backlog=200 * n), n + 1.0)
    period = statistics.close(4.0)
    assert period.arrival_per_s == pytest.approx(300.0)
    assert period.demand == pytest.approx(3.0)
    assert period.backlog_rows == 600


def test_a_step_late_in_the_period_is_seen_by_its_end() -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(10):
        statistics.observe(epoch(n, 100 if n < 7 else 400, 1.0), n + 1.0)
    assert statistics.close(10.0).arrival_per_s == pytest.approx(400.0)


def test_a_step_that_makes_epochs_long_is_seen_though_few_begin() -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(6):
        statistics.observe(epoch(n, 100, 1.0), n + 1.0)
    statistics.observe(epoch(6, 400, 4.0), 10.0)
    assert statistics.close(10.0).arrival_per_s == pytest.approx(400.0)


def test_an_interval_of_both_rates_before_a_period_is_not_part_of_its_rate() -> None:
    """The rate changed in the interval that ended as the period began."""
    statistics = Statistics(ONE, 0.0, {})
    for n in range(6):
        statistics.begun(100, 0, float(n))
        statistics.observe(epoch(n, 100, 1.0), n + 1.0)
    statistics.close(6.0)
    for began_s, held_back in ((6.0, 240), (7.0, 540)):  # 340 rows/s, then 400
        statistics.begun(100, held_back, began_s)
    statistics.observe(epoch(6, 100, 1.0), 7.0)
    assert statistics.close(7.0).arrival_per_s == pytest.approx(400.0)


@pytest.mark.parametrize(("rows", "stepped"), [(199, False), (200, True)])
def test_a_step_is_decided_after_one_epoch_with_the_rows_of_two(
    rows: int, *, stepped: bool
) -> None:
    """Its period has just begun, and two epochs would take as long as the backlog grows."""
    statistics = Statistics(ONE, 0.0, {})
    for n in range(6):
        statistics.begun(100, 0, float(n))
        statistics.observe(epoch(n, 100, 1.0), n + 1.0)
    statistics.close(6.0)
    assert not statistics.stepped
    for began_s, held_back in ((6.0, 100), (7.0, 300)):
        statistics.begun(rows, held_back, began_s)
    statistics.observe(epoch(6, rows, 1.0), 7.0)
    assert statistics.stepped == stepped


def test_a_backlog_is_worked_off_once_an_epoch_has_taken_the_last_of_it() -> None:
    """The next period begins without its rows, and tells after a few epochs what remains."""
    statistics = Statistics(ONE, 0.0, {})
    seen = []
    for n, backlog in enumerate([0, 500, 100, 0, 0, 0, 0, 0]):
        statistics.begun(400, backlog, float(n))
        assert not statistics.caught_up(2), "while an epoch runs, its rows are not taken"
        statistics.observe(epoch(n, 400, 1.0), n + 1.0)
        seen.append(statistics.caught_up(2))
        if seen[-1]:
            statistics.close(n + 1.0)
    assert seen == [False, False, False, True, False, True, False, True]
    for n in range(8, 12):
        statistics.begun(400, 0, float(n))
        statistics.observe(epoch(n, 400, 1.0), n + 1.0)
        assert not statistics.caught_up(2)


def test_epochs_without_figures_are_missing_and_the_others_stand_for_them() -> None:
    statistics = Statistics(ONE, 0.0, {})
    for n in range(4):
        statistics.observe(epoch(n, 400, 1.0, figures=n % 2 == 0), n + 1.0)
    period = statistics.close(4.0)
    assert (period.epochs, period.missing, period.covered) == (4, 2, 0.5)
    assert period.rows == 1600
    assert period.covered_s == 2.0


def test_an_epoch_without_input_says_nothing_of_the_load() -> None:
    statistics = Statistics(ONE, 0.0, {})
    statistics.observe(epoch(0, 400, 1.0, batch=None), 1.0)
    assert statistics.close(1.0).epochs == 0


def test_the_bottleneck_is_the_resource_of_which_the_greatest_share_is_used() -> None:
    statistics = Statistics(ONE, 0.0, {})
    seen = epoch(0, 400, 1.0)
    sent = ComponentTraffic(
        key_groups=(0, 1, 2, 3), rows=(100,) * 4, size_bytes=(10**6,) * 4, crossed_bytes=0
    )
    traffic = EpochOutcome(
        epoch=0, batch=0, rows_in=400, loads=seen.outcome.loads, traffic={"sum": sent}
    )
    statistics.observe(
        CommittedEpoch(outcome=traffic, component_views=seen.component_views, took_s=1.0), 1
    )
    period = statistics.close(1.0)
    assert bottleneck(period, Means()) == "time"
    assert bottleneck(period, Means(link_bytes_per_s=3e6)) == "network"
    assert bottleneck(period, Means(memory_bytes=200.0)) == "memory"


def bottleneck(period: PeriodStatistics, means: Means) -> str:
    view = ProtocolView(
        executors={"a": 1, "b": 1},
        draining=frozenset(),
        committed=0,
        running=None,
        holds=(),
        components={"sum": ComponentView(assignment=PLACES)},
    )
    asked = measured_problem(
        ["sum"],
        statistics=period,
        view=view,
        speeds={},
        means=means,
        limits=Limits(),
        topology=ONE,
    )
    shares = resource_usage(asked.problem)
    assert (
        max(shares, key=lambda name: shares[name])
        == asked.problem.resources[asked.problem.bottleneck]
    )
    return asked.problem.resources[asked.problem.bottleneck]


def test_epochs_as_long_as_a_period_show_as_much_as_many_short_ones() -> None:
    statistics = Statistics(ONE, 0.0, {})
    statistics.observe(epoch(0, 400, 6.0), 6.0)
    assert not statistics.has_enough(3, 5.0)
    statistics.observe(epoch(1, 400, 6.0), 12.0)
    assert statistics.has_enough(3, 5.0)
    statistics = Statistics(ONE, 0.0, {})
    for n in range(3):
        assert not statistics.has_enough(3, 5.0)
        statistics.observe(epoch(n, 40, 0.5), n + 1.0)
    assert statistics.has_enough(3, 5.0)
