"""Oracles of the core allocation: Erlang's formulas, and every allocation of cores, tried."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.cores.core_allocation import erlang_b

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.control.planners.cores.core_allocation import QueueingNetwork


def erlang_c(offered_load: float, servers: int) -> float:
    """Probability that a row has to wait in M/M/k; 1 where the queue is not stable.

    Examples
    --------
    >>> round(erlang_c(2.0, 3), 6)
    0.444444
    """
    if offered_load >= servers:
        return 1.0
    blocked = erlang_b(offered_load, servers)
    return servers * blocked / (servers - offered_load * (1.0 - blocked))


def mmk_latency_s(arrival_per_s: float, service_per_s: float, servers: int) -> float:
    """Mean time from a row's arrival to the end of its processing in M/M/k, in seconds.

    ``1/μ + C(a, k)/(k·μ - λ)``; infinite where ``k <= λ/μ``.

    Examples
    --------
    >>> mmk_latency_s(5.0, 10.0, 1)
    0.2
    """
    spare_per_s = servers * service_per_s - arrival_per_s
    if servers < 1 or spare_per_s <= 0:
        return float("inf")
    return 1.0 / service_per_s + erlang_c(arrival_per_s / service_per_s, servers) / spare_per_s


def expected_latency_s(network: QueueingNetwork, cores: npt.ArrayLike) -> float:
    """Mean latency of a row through the whole flow, in seconds (paper 5, equation 1).

    ``E[T](k) = (1/λ_0) Σ_j λ_j E[T_j](k_j)``. An executor that nothing reaches adds nothing.

    `network`: the rates. `cores`: shape ``(m,)``: k_j.
    """
    total = 0.0
    for rate, service, k in zip(
        network.arrival_per_s.tolist(),
        network.service_per_s.tolist(),
        np.asarray(cores, np.int64).tolist(),
        strict=True,
    ):
        if rate > 0:
            total += rate * mmk_latency_s(rate, service, k)
    return total / network.input_per_s


def fewest_cores(network: QueueingNetwork, target_s: float, available: int) -> int | None:
    """Least Σk that meets the target, or None."""
    best = None
    for cores in itertools.product(range(available + 1), repeat=len(network.arrival_per_s)):
        total = sum(cores)
        if total > available or (best is not None and total >= best):
            continue
        if expected_latency_s(network, np.array(cores)) <= target_s:
            best = total
    return best


def least_latency_s(network: QueueingNetwork, available: int) -> float:
    """Least E[T] with the available cores."""
    return min(
        expected_latency_s(network, np.array(cores))
        for cores in itertools.product(range(available + 1), repeat=len(network.arrival_per_s))
        if sum(cores) <= available
    )
