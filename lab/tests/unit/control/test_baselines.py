"""Policies of the papers on a live stream, as the papers define them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from godwit.control.scaling import load_range
from godwit.control.settings import Budget, Control, Search, Worth
from godwit.model import events
from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidControlError
from godwit_lab.simulator import (
    History,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    Surge,
    controlled_by,
)
from godwit_lab.simulator.cluster import Pool


def play(settings: Control, **changed: Any) -> History:
    values: dict[str, Any] = {
        "cluster": SimulatedCluster(machines=(Machine(),) * 4),
        "components": (SimulatedComponent(name="work", key_groups=32, row_ms=1.0, key_bytes=100),),
        "rate": Rate(rows_per_s=2000),
        "keys": Keys(number=1000, zipf=0.7),
        "duration_s": 40,
    }
    return Simulation(Scenario(**(values | changed)), seed=1, control=controlled_by(settings)).run()


def test_a_baseline_that_gains_nothing_is_carried_out_where_any_gain_will_do() -> None:
    plans = {
        gain: len(
            play(
                Control(planner="universal_hashing", period="4 seconds", worth=Worth(gain=gain))
            ).of_kind(events.RebalancingStarted)
        )
        for gain in ("positive", "any")
    }
    assert plans["any"] >= 6  # nearly every period: it draws a new function each time
    assert plans["positive"] < plans["any"]


def test_the_budget_holds_for_any_gain() -> None:
    settings = Control(
        planner="universal_hashing",
        period="4 seconds",
        worth=Worth(gain="any"),
        budget=Budget(max_moves=3),
    )
    started = play(settings).of_kind(events.RebalancingStarted)
    assert started
    assert all(event.moves <= 3 for event in started)


def test_plans_are_made_every_so_many_periods() -> None:
    def decided(every: int) -> list[float]:
        search = Search(every=every)
        settings = Control(
            planner="clb", period="2 seconds", search=search, worth=Worth(gain="any")
        )
        shifts = Keys(number=1000, zipf=0.7, shifts_s=tuple(range(3, 40, 4)))
        return [e.at_s for e in play(settings, keys=shifts).of_kind(events.RebalancingStarted)]

    seldom, often = decided(4), decided(1)
    assert 1 <= len(seldom) < len(often)
    assert (np.diff(seldom) >= 4 * 2.0 - 1e-6).all()


def test_a_range_of_loads_grows_and_shrinks_a_stream() -> None:
    history = play(
        Control(
            planner="elb", period="4 seconds", scaling=load_range(0.3, 0.7), worth=Worth(gain="any")
        ),
        cluster=SimulatedCluster(
            machines=(Machine(),) * 4, added=Machine(), pool=Pool(most=16, start_s=(1.0, 2.0))
        ),
        rate=Rate(rows_per_s=2000, surges=(Surge(start_s=30, end_s=70, factor=3),)),
        duration_s=130,
    )
    executors, at_s = history.column("executors"), history.column("ended_s")
    during = executors[(at_s > 55) & (at_s < 70)]
    assert 9 <= during.min() <= during.max() <= 16  # 6 lanes' worth of work in the range
    assert 3 <= executors[-1] <= 7  # 2 lanes' worth


def test_every_load_is_in_the_range_after_a_step() -> None:
    """An overloaded lane is busy all the time: loads have to be those of the rows that arrive."""
    history = play(
        Control(planner="elb", scaling=load_range(0.4, 0.8)),
        cluster=SimulatedCluster(
            machines=(Machine(),) * 4, added=Machine(), pool=Pool(start_s=(1.0, 2.0))
        ),
        components=(SimulatedComponent(name="work", key_groups=128, row_ms=1.0, key_bytes=10_000),),
        keys=Keys(number=20_000, zipf=0.4),
        rate=Rate(rows_per_s=2400, noise=0.1, surges=(Surge(start_s=60, end_s=180, factor=2.5),)),
        duration_s=180,
        trigger_s=0.5,
        longest_epoch_s=5.0,
    )
    last = history.of_kind(events.LoadMeasured)[-1]
    assert max(last.load_index.values()) <= 0.8 * 1.05
    assert min(last.load_index.values()) >= 0.4 / 1.05
    assert history.between(150, 180).delays().mean_s < 2


def test_mtm_plans_by_the_numbers_of_executors_that_there_were() -> None:
    settings = Control(
        planner="mtm", period="4 seconds", worth=Worth(gain="any", max_load_distance=0.3)
    )
    ranges = Assignment(
        version=0,
        executors=("0", "1"),
        lanes=(1, 1),
        executor_of=np.repeat(np.arange(2, dtype=np.int32), [13, 3]),
        lane_of=np.zeros(16, np.int32),
    )
    history = play(
        settings,
        cluster=SimulatedCluster(machines=(Machine(),) * 2),
        components=(SimulatedComponent(name="work", key_groups=16, row_ms=1.0, key_bytes=100),),
        rate=Rate(rows_per_s=1000),
        assignments={"work": ranges},
    )
    assert not history.of_kind(events.PlannerFailed)
    assert {e.planner for e in history.of_kind(events.RebalancingStarted)} == {"mtm"}


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (0.7, 0.3), (0.3, 1.5), ("a", 0.5)])
def test_a_range_that_is_none_is_refused(low: Any, high: Any) -> None:
    with pytest.raises(InvalidControlError, match="load range is"):
        load_range(low, high)


def test_a_gain_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidControlError, match="gain is 'some'"):
        Worth(gain="some")  # type: ignore[arg-type]
