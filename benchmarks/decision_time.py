"""Time of one decision of the loop: 256 executors, 10 operators, 8192 key groups in all.

CPU time of the controller's turns and of what it notes of every epoch, with the default planner,
while keys are shuffled. Nothing else is counted: the simulator's own time is not the loop's.

``python -m benchmarks.decision_time [--executors 256] [--operators 10] [--key-groups 8192]
[--zipf 0.5]``

``--beside`` times the driver's part of an epoch instead (`benchmarks.driver`, one operator), alone
and while a thread estimates speeds and plans without a pause: what that holds Python's interpreter
lock for, an epoch waits for. The disk of ``TMPDIR`` is part of it.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from benchmarks.driver import OF_OTHERS, Driver, flow_of
from benchmarks.options import read_options

from godwit.control.executor_speeds import Speeds
from godwit.control.planner_thread import PlannerThread
from godwit.control.settings import Control
from godwit.control.statistics import AssignmentPeriod, ComponentStatistics, PeriodStatistics
from godwit.model.assignment import even_assignment
from godwit.placement import Limits, Problem
from godwit.placement.preview import table
from godwit.placement.registry import planner
from godwit_lab.simulator import (
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    UpstreamFeed,
)
from godwit_lab.simulator.run import controlled_by

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from godwit.control.loop import Controller
    from godwit.engine.policies import CommittedEpoch
    from godwit.model.latency import LatencyHistogram


class Timed:
    """A controller whose time is taken."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.turns_s: list[float] = []
        self.observing_s: list[float] = []

    def begun(self, rows: int, backlog_rows: int | None) -> None:
        """See `godwit.control.interfaces.Driven`."""
        self._controller.begun(rows, backlog_rows)

    def observe(self, epoch: CommittedEpoch) -> None:
        """See `godwit.control.interfaces.Driven`."""
        began = time.process_time()
        self._controller.observe(epoch)
        self.observing_s.append(time.process_time() - began)

    def delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """See `godwit.control.interfaces.Driven`."""
        self._controller.delivered(latency, spent_s)

    def step(self) -> None:
        """See `godwit.control.interfaces.Driven`."""
        began = time.process_time()
        self._controller.step()
        self.turns_s.append(time.process_time() - began)


def chain(operators: int, key_groups: int) -> tuple[SimulatedComponent, ...]:
    return tuple(
        SimulatedComponent(
            name=f"operator{at}",
            key_groups=key_groups // operators,
            row_ms=1.0,
            feeds=(UpstreamFeed(upstream=f"operator{at - 1}", paired=0.5),) if at else (),
        )
        for at in range(operators)
    )


class WallClock(Driver):
    """A driver whose parts are timed by the clock on the wall."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """See `Driver.part`."""
        began = time.perf_counter()
        yield
        self.took_ms[name] = (time.perf_counter() - began) * 1e3


def planning_turn(given: argparse.Namespace, rng: np.random.Generator) -> Callable[[], object]:
    """Return what takes longest in a turn of the controller: estimating speeds, and planning."""
    executors = [str(e) for e in range(given.executors)]
    assignment = even_assignment(given.key_groups, executors, [1] * given.executors)
    share = np.arange(1, 50_001) ** -given.zipf
    drawn = np.bincount(rng.integers(0, given.key_groups, 50_000), share, given.key_groups)
    load = drawn / drawn.sum() * given.executors / 2
    nothing = np.zeros(given.key_groups)

    def period() -> PeriodStatistics:
        noisy = 10 * load * rng.uniform(0.9, 1.1, given.key_groups)
        span = AssignmentPeriod(
            assignment=assignment, rows=1e4 * load, busy_s=noisy, epochs=nothing + 20
        )
        component = ComponentStatistics(
            by_assignment=(span,), in_bytes=nothing, state_bytes=nothing
        )
        return PeriodStatistics(
            began_s=0.0, ended_s=10.0, epochs=20, missing=0, rows=1e4 * float(load.sum()),
            covered=1.0, arrival_per_s=1e3 * float(load.sum()), epoch_s=0.5, fixed_s=0.1,
            backlog_rows=None, components={"sum": component},
        )  # fmt: skip

    problem = Problem(
        executors=tuple(executors),
        load=load,
        state_bytes=nothing + 1e4,
        current=assignment.executor_of,
        limits=Limits(max_moves=600),
    )
    speeds, second, plan = Speeds(), period(), planner(given.planner)
    speeds.update(period())
    # as the controller asks for so large a problem
    options = {"rounds": 0, "node_limit": 1, "gap": 1.0, "time_limit_s": 1.0}

    def turn() -> object:
        speeds.update(second, ended=False)
        return plan(problem, **(options if given.planner == "milp" else {}))

    return turn


def driver_beside_planning(given: argparse.Namespace, epochs: int = 24) -> list[tuple[str, str]]:
    """Time the driver's part of epochs in turns: alone, and while a thread plans."""
    rng = np.random.default_rng(given.seed)
    turn, turns_s = planning_turn(given, rng), list[float]()

    def keep_planning() -> None:
        while not over.is_set():
            began = time.thread_time()
            turn()
            turns_s.append(time.thread_time() - began)

    took: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as directory:
        driver = WallClock(flow_of(given.key_groups, 1), Path(directory), given.executors)
        for number in range(epochs):
            keys = pa.array([f"customer-{key:08d}" for key in rng.integers(0, 100_000, 20_000)])
            batch = pa.record_batch({"k": keys, "v": pa.array(rng.random(20_000))})
            over = threading.Event()
            planning = threading.Thread(target=keep_planning)
            beside = number % 2 == 1
            if beside:
                planning.start()
            parts = driver.epoch(batch)
            over.set()
            if beside:
                planning.join()
            gc.collect()
            if number >= epochs // 4:
                took[beside].append(sum(ms for name, ms in parts.items() if name not in OF_OTHERS))
    return [
        ("driver's part of an epoch, alone, median", f"{np.median(took[False]):.1f}"),
        ("the same while a thread plans, median", f"{np.median(took[True]):.1f}"),
        ("estimating speeds and planning, CPU, median", f"{1e3 * float(np.median(turns_s)):.0f}"),
    ]


def main() -> None:
    given = read_options(
        __doc__,
        seed=0,
        executors=256,
        operators=10,
        key_groups=8192,
        planner="milp",
        zipf=0.5,
        beside=False,
    )
    if given.beside:
        print(table(("milliseconds", ""), driver_beside_planning(given)))
        return
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(),) * given.executors),
        components=chain(given.operators, given.key_groups),
        rate=Rate(rows_per_s=500 * given.executors / given.operators, noise=0.1),
        keys=Keys(number=50_000, zipf=given.zipf, shifts_s=(12.0, 24.0)),
        duration_s=36.0,
    )
    made: list[Timed] = []

    def timed(simulation: Simulation) -> Timed:
        settings = Control(planner=given.planner, period="5 seconds")
        made.append(Timed(controlled_by(settings, run_planner=PlannerThread())(simulation)))
        return made[-1]

    history = Simulation(scenario, seed=given.seed, control=timed).run()
    turns, observing = np.array(made[0].turns_s), np.array(made[0].observing_s)
    deciding = np.sort(turns)[::-1][:7]  # once a period
    rows = [
        ("a decision, the longest", f"{1000 * deciding[0]:.0f}"),
        ("a decision, the median of seven", f"{1000 * float(np.median(deciding)):.0f}"),
        ("a turn between decisions, median", f"{1000 * float(np.median(turns)):.2f}"),
        ("an epoch observed, median", f"{1000 * float(np.median(observing)):.2f}"),
    ]
    print(table(("milliseconds of CPU", ""), rows))
    moves, epochs = int(history.column("moves").sum()), len(history.epochs)
    print(f"{epochs} epochs, {moves} key groups moved")


if __name__ == "__main__":
    main()
