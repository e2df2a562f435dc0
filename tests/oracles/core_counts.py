"""Every allocation of cores, tried: the oracle of the greedy core allocation."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.cores.core_allocation import expected_latency_s

if TYPE_CHECKING:
    from godwit.planning.cores.core_allocation import QueueingNetwork


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
