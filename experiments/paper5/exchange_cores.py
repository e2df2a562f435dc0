"""Core demands of paper 5's exchange: twelve operators of 32 executors whose rates drift.

The orders of the Shanghai exchange are not public.  Here rates of stocks drift from one scheduling
to the next; an executor's rows come from its stocks.  States are those of the paper: 200 to 400 MB
for each of six statistics, below 10 MB for each of five kinds of events; rows of 160 bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.cores.core_allocation import (
    CoreAllocationProblem,
    QueueingNetwork,
    plan_core_allocation,
)
from godwit.planning.cores.core_assignment import (
    CoreAssignmentProblem,
    plan_core_assignment,
    plan_naive_core_assignment,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.cli.reproduce.figure import FigureRun

PER_OPERATOR, CORES_OF_MACHINE = 32, 8
SCHEDULE_S = 1.0
"""Seconds from one scheduling to the next; the paper does not give them."""
_OPERATORS, _ROW_BYTES, _SERVICE_PER_S = 12, 160.0, 1000.0
_BUSY = 0.55
"""Share of the cores that the mean load needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """One decision: what moved, what rows go to remote cores, and how long it took."""

    moved_bytes: float
    remote_bytes_per_s: float
    seconds: float


def schedule(machines: int, steps: int, run: FigureRun, *, naive: bool) -> Iterator[Scheduling]:
    """Allocate and assign cores again and again, while rates drift."""
    rng = run.rng(12, machines)
    executors = _OPERATORS * min(PER_OPERATOR, machines)
    rate = rng.gamma(2.0, 1.0, executors)
    home = np.arange(executors) % machines
    operator = np.arange(executors) // min(PER_OPERATOR, machines)
    megabytes = np.where(operator == 0, 50.0, np.where(operator <= 6, 300.0, 10.0))
    state = 1e6 * megabytes / min(PER_OPERATOR, machines)
    available = machines * CORES_OF_MACHINE
    current = np.zeros((machines, executors), np.int64)
    for step in range(steps + 1):
        rate = rate * np.exp(rng.normal(0, 0.15, executors))
        arrivals = rate / rate.sum() * _BUSY * available * _SERVICE_PER_S
        # Executors with little to do share a core of their machine.
        arrivals = np.where(arrivals < 0.35 * _SERVICE_PER_S, 0.0, arrivals)
        began = time.process_time()
        allocation = plan_core_allocation(
            CoreAllocationProblem(
                network=QueueingNetwork(
                    arrival_per_s=arrivals,
                    service_per_s=np.full(executors, _SERVICE_PER_S),
                    input_per_s=float(arrivals.sum()) / _OPERATORS,
                ),
                latency_target_s=0.050,
                available_cores=available,
                idle_cores=0,
            )
        )
        problem = CoreAssignmentProblem(
            current=current,
            machine_cores=np.full(machines, CORES_OF_MACHINE),
            cores=allocation.cores,
            state_bytes=state,
            data_bytes_per_s=arrivals * _ROW_BYTES,
            home=home,
        )
        plan = plan_naive_core_assignment(problem) if naive else plan_core_assignment(problem)
        seconds = time.process_time() - began
        current = plan.cores
        if step:  # the first fills empty machines
            yield Scheduling(
                moved_bytes=plan.migration_bytes,
                remote_bytes_per_s=plan.remote_bytes_per_s,
                seconds=seconds,
            )
