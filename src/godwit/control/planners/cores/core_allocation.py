"""Min. number of cores per executor for a latency target, by a queueing model (paper 5 §4.1).

Each executor is one M/M/k station of a Jackson network (equation 1): a common queue and ``k`` equal
servers.  It is stable, and its latency finite, exactly when ``k > arrival rate / service rate``;
its mean latency is convex and decreasing in ``k``.  So adding, core by core, the one that lowers
``E[T]`` most, from the least number that keeps every executor stable, gives the best allocation of
n cores for every n, and the first that meets the target uses the fewest.

The paper starts at ``⌈λ_j/μ_j⌉ + 1``; that is one core more than stability needs wherever λ_j/μ_j
is not an integer, so it can miss the optimum.  We start at ``⌊λ_j/μ_j⌋ + 1``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from godwit.placement.arrays import FloatArray, freeze_array, require_load, wrong_value

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueingNetwork:
    """Rates of a flow whose m executors are M/M/k stations.

    Raises `InvalidProblemError` if a rate is negative or not finite, or the shapes differ.
    """

    arrival_per_s: FloatArray  # shape ``(m,)``: rows that reach each executor, λ_j
    # shape ``(m,)``: rows that one core of each executor processes, μ_j; positive
    service_per_s: FloatArray
    input_per_s: float  # rows that enter the flow from outside, λ_0; positive

    def __post_init__(self) -> None:
        freeze_array(self, "arrival_per_s", np.float64, ndim=1)
        freeze_array(self, "service_per_s", np.float64, shape=self.arrival_per_s.shape)
        for name in ("arrival_per_s", "service_per_s"):
            require_load(getattr(self, name), name)
        if not self.service_per_s.all():
            j = int(self.service_per_s.argmin())
            raise wrong_value(f"service_per_s[{j}]", 0.0, "give rates above 0")
        if not (np.isfinite(self.input_per_s) and self.input_per_s > 0):
            raise wrong_value("input_per_s", self.input_per_s, "it must be positive and finite")

    @property
    def offered_load(self) -> FloatArray:
        """Shape ``(m,)``: λ_j/μ_j, the mean number of busy cores (erlangs)."""
        return self.arrival_per_s / self.service_per_s

    @property
    def least_stable_cores(self) -> IntArray:
        """Shape ``(m,)``: the least k_j with ``k_j > λ_j/μ_j``; 0 for an idle executor."""
        cores = np.floor(self.offered_load).astype(np.int64) + 1
        # The quotient may round down to a whole number that the rates themselves do not allow.
        cores += cores * self.service_per_s <= self.arrival_per_s
        return np.where(self.arrival_per_s > 0, cores, 0)


def erlang_b(offered_load: float, servers: int) -> float:
    """Return the probability that all `servers` are busy in M/M/k/k (Erlang's loss formula).

    Evaluated by its recurrence, which neither overflows nor loses digits for any k.

    Examples
    --------
    >>> round(erlang_b(2.0, 3), 6)
    0.210526
    """
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered_load * blocked / (k + offered_load * blocked)
    return blocked


_ROUNDING = 1e-12
"""Margin, as a share of the service time, by which a target must exceed it."""
_MIN_WAITING_SHARE = 1e-6
"""Ratio of waiting to service time that is aimed at if the target is unreachable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAllocationProblem:
    """A queueing network, a latency target and the available cores.

    Raises `InvalidProblemError` if the target is not positive or a number of cores is negative.
    """

    network: QueueingNetwork  # the rates of the flow
    latency_target_s: float  # T_max, in seconds; positive
    available_cores: int  # cores of the whole cluster
    idle_cores: int = 1  # cores that an executor keeps although nothing reaches it

    def __post_init__(self) -> None:
        if not self.latency_target_s > 0:
            raise wrong_value("latency_target_s", self.latency_target_s, "it must be above 0")
        for name in ("available_cores", "idle_cores"):
            if getattr(self, name) < 0:
                raise wrong_value(name, getattr(self, name), "it must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoreAllocation:
    """Cores per executor."""

    cores: IntArray  # shape ``(m,)``: k_j
    latency_s: float  # E[T] of `cores`; infinite if some executor stays unstable
    # ``optimal``: the fewest cores that meet the target. ``infeasible``: the target cannot be met;
    # `cores` is the best that the available cores give, or, where no number of cores could meet it,
    # as many as bring the latency within a millionth of the minimum.
    status: Literal["optimal", "infeasible"]
    reason: str = ""  # why it is infeasible; empty otherwise


class _Station:
    """One executor while it grows: Erlang's recurrence advances with every core.

    Only waiting is counted: what serving takes is the same with any number of cores, and would
    drown the waiting in rounding.
    """

    __slots__ = ("arrival", "blocked", "cores", "load", "service", "waiting")

    def __init__(self, arrival: float, service: float, cores: int) -> None:
        self.arrival, self.service, self.cores = arrival, service, cores
        self.load = arrival / service
        self.blocked = erlang_b(self.load, cores)
        self.waiting = self._mean_waiting_rows(self.blocked, cores)

    def _mean_waiting_rows(self, blocked: float, cores: int) -> float:
        """Return λ_j·E[W_j], the mean number of waiting rows; `blocked`: Erlang B at `cores`."""
        waits = cores * blocked / (cores - self.load * (1.0 - blocked))
        return self.arrival * waits / (cores * self.service - self.arrival)

    def gain(self) -> float:
        """Return the decrease of the mean number of waiting rows by one more core."""
        blocked = self.load * self.blocked / (self.cores + 1 + self.load * self.blocked)
        return self.waiting - self._mean_waiting_rows(blocked, self.cores + 1)

    def grow(self) -> None:
        """Add one core, and update Erlang's B by its recurrence."""
        self.cores += 1
        self.blocked = self.load * self.blocked / (self.cores + self.load * self.blocked)
        self.waiting = self._mean_waiting_rows(self.blocked, self.cores)


def plan_core_allocation(problem: CoreAllocationProblem) -> CoreAllocation:
    """Plan the fewest cores that meet the latency target (paper 5 §4.1), or the best if none do.

    If there are too few cores for stability, executors are made stable in ascending order of the
    cores they need, so that as many as possible keep up. Ties go to the executor with the lowest
    index. O(m log m + Σk_j) time for m executors.
    """
    network = problem.network
    arrival = network.arrival_per_s.tolist()
    service = network.service_per_s.tolist()
    stable = np.where(
        network.arrival_per_s > 0, network.least_stable_cores, problem.idle_cores
    ).astype(np.int64)
    needed, available = int(stable.sum()), problem.available_cores
    if needed > available:
        return CoreAllocation(
            cores=_share_too_few(stable, available),
            latency_s=float("inf"),
            status="infeasible",
            reason=f"At least {needed} cores are needed for stability, but only {available} are "
            "available.",
        )
    stations = {
        index: _Station(arrival[index], service[index], int(stable[index]))
        for index in range(len(arrival))
        if arrival[index] > 0
    }
    served_rows = sum(loaded_station.load for loaded_station in stations.values())
    target = problem.latency_target_s * network.input_per_s
    # No number of cores makes rows wait for nothing at all, so at the floor it is out of reach.
    is_reachable = target > served_rows * (1 + _ROUNDING)
    allowed_waiting = target - served_rows if is_reachable else served_rows * _MIN_WAITING_SHARE
    _add_cores(stations, spare=available - needed, max_waiting=allowed_waiting)
    cores = stable.copy()
    for index, station in stations.items():
        cores[index] = station.cores
    waiting_rows = sum(loaded_station.waiting for loaded_station in stations.values())
    latency_s = (served_rows + waiting_rows) / network.input_per_s
    if is_reachable and waiting_rows <= allowed_waiting:
        return CoreAllocation(cores=cores, latency_s=latency_s, status="optimal")
    reason = (
        f"All {available} cores give {latency_s:.6g} s, but the target is "
        f"{problem.latency_target_s:.6g} s."
        if is_reachable
        else "Unreachable: even without waiting, the latency is "
        f"{served_rows / network.input_per_s:.6g} s, but the target is "
        f"{problem.latency_target_s:.6g} s. {int(cores.sum())} cores give {latency_s:.6g} s."
    )
    return CoreAllocation(cores=cores, latency_s=latency_s, status="infeasible", reason=reason)


def allocate_all_cores(
    network: QueueingNetwork, available: int, *, idle_cores: int = 1
) -> CoreAllocation:
    """Allocate all cores, each to the executor where it reduces latency most.

    `idle_cores`: cores of an executor without load.
    """
    least_s = float(np.finfo(np.float64).tiny)
    return plan_core_allocation(
        CoreAllocationProblem(
            network=network,
            latency_target_s=least_s,
            available_cores=available,
            idle_cores=idle_cores,
        )
    )


def _add_cores(stations: dict[int, _Station], *, spare: int, max_waiting: float) -> None:
    """Add up to `spare` cores where they help most, until at most `max_waiting` rows wait."""
    total = sum(station_.waiting for station_ in stations.values())
    gains = [(-station.gain(), index) for index, station in stations.items()]
    heapq.heapify(gains)
    while total > max_waiting and spare > 0 and gains and gains[0][0] < 0:
        decrease, index = gains[0]
        stations[index].grow()
        spare -= 1
        total += decrease
        heapq.heapreplace(gains, (-stations[index].gain(), index))
        if total <= max_waiting * (1 + 1e-6):  # incremental subtraction has rounding errors
            total = sum(station_.waiting for station_ in stations.values())


def _share_too_few(stable: IntArray, available: int) -> IntArray:
    """Allocate too few cores: the executors with the smallest need get theirs first.

    `stable`: cores that each executor needs for stability.
    """
    cores = np.zeros_like(stable)
    remaining_cores = available
    for j in np.argsort(stable, kind="stable").tolist():
        cores[j] = min(int(stable[j]), remaining_cores)
        remaining_cores -= int(cores[j])
    return cores
