"""Functions that do not return are ended, or given up, after a time that is real."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import pytest
from tests.support.controls import control_of

from godwit.control.planner_thread import PlannerThread
from godwit.model import events
from godwit_lab.simulator import (
    CostModel,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    controlled_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from godwit.placement import Problem


T = TypeVar("T")
PATIENCE_S = 120.0


def let_it_end() -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while any(thread.name == "godwit-planner" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def in_the_end(call: Callable[[], T]) -> T:
    """Call until nothing hangs any more: what is to be ended may wait for its turn."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except TimeoutError:
            assert time.monotonic() < deadline_s


def forever() -> None:
    while True:
        try:
            while True:
                pass
        except Exception:  # noqa: BLE001  what planners of others do
            pass


def test_what_computes_for_ever_in_python_is_ended_and_the_next_may_plan() -> None:
    run = PlannerThread()
    with pytest.raises(TimeoutError):
        run(forever, time_limit_s=0.02)
    assert in_the_end(lambda: run(lambda: 7, time_limit_s=PATIENCE_S)) == 7


def test_what_was_in_a_finalizer_is_ended_after_it_and_python_writes_nothing_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Finalized:
        def __del__(self) -> None:
            lingers.wait(0.2)  # The first exception lands here, where Python drops it.

    def plans() -> None:
        Finalized()
        forever()

    lingers, run = threading.Event(), PlannerThread()
    with pytest.raises(TimeoutError):
        run(plans, time_limit_s=1.0)  # by when it has begun
    assert in_the_end(lambda: run(lambda: 7, time_limit_s=PATIENCE_S)) == 7
    assert capsys.readouterr().err == ""


def test_nothing_else_is_run_until_what_hangs_elsewhere_has_ended() -> None:
    run, begun, go_on = PlannerThread(), threading.Event(), threading.Event()

    def hangs() -> None:
        while not go_on.is_set():
            with contextlib.suppress(BaseException):
                begun.set()
                go_on.wait(PATIENCE_S)

    while not begun.is_set():  # it may be ended before
        with pytest.raises(TimeoutError):
            run(hangs, time_limit_s=0.02)
    with pytest.raises(TimeoutError):
        run(lambda: True, time_limit_s=PATIENCE_S)
    go_on.set()
    let_it_end()
    assert run(lambda: True, time_limit_s=PATIENCE_S)


def test_what_a_function_raises_is_raised_where_it_was_asked_for() -> None:
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        PlannerThread()(fails, time_limit_s=PATIENCE_S)


def test_a_simulated_stream_goes_on_without_a_planner_that_never_returns() -> None:
    """In virtual time no limit would ever pass."""

    def thinks(_problem: Problem) -> np.ndarray:
        forever()
        raise AssertionError

    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(),) * 2),
        components=(SimulatedComponent(name="sums", key_groups=16, row_ms=1.0),),
        rate=Rate(rows_per_s=500),
        keys=Keys(number=100, zipf=1.5),
        duration_s=16.0,
        trigger_s=0.5,
        costs=CostModel(fixed_ms=100, source_row_ms=0, row_ms=0, key_ms=0, key_group_ms=0),
    )
    settings = control_of(planner=thinks, period="5 seconds", time_limit="0.05 seconds")
    history = Simulation(
        scenario, seed=1, control=controlled_by(settings, run_planner=PlannerThread())
    ).run()
    (failed,) = history.of_kind(events.PlannerFailed)
    assert failed.reason == "it has not returned after 0.05 s"
    assert history.epochs[-1].ended_s > 15.0
