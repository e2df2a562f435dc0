"""Load of lanes if fewer key columns place the rows, and the exchange that this saves.

Problem: an operator that is placed by some of its key columns has at most as many places as these
have values, and its largest value is its smallest unit.  What it saves is the exchange to an
operator that is placed by the same columns (paper 3, §4.4; `docs/design/components.md`).

Key groups are dealt out by load, largest first, each to the lane that has least: at most 4/3 of the
best busiest lane.

Source: partition cardinality, Madsen et al. (Enorm) §4.3; Graham, "Bounds on Multiprocessing Timing
Anomalies", SIAM J. Appl. Math. 17(2), 1969.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement.metrics import busiest_lane

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray

_MOST_VALUES = 1 << 40
_NUM_DRAWS = 8


def imbalance_of(num_values: int, num_key_groups: int, num_lanes: int) -> float:
    """Return the expected load of the busiest lane over the mean, for values hashed to key groups.

    The values' loads are unknown: they are drawn from an exponential distribution, and the worst of
    some draws counts. The generator has a fixed seed.

    Examples
    --------
    >>> imbalance_of(1, 256, 8)
    8.0
    >>> imbalance_of(50, 256, 8) > 1.05 > imbalance_of(10_000_000, 256, 8)
    True
    """
    rng = np.random.default_rng(0)
    evenly = np.full(num_key_groups, 1 / num_key_groups)
    largest = 1.0
    for _ in range(_NUM_DRAWS):
        load = rng.standard_gamma(rng.multinomial(num_values, evenly))
        largest = max(largest, busiest_lane(load, num_lanes) * num_lanes / float(load.sum()))
    return largest


def min_values(num_key_groups: int, num_lanes: int, max_imbalance: float) -> int:
    """Return the smallest number of key values, a power of two, that loads lanes evenly enough.

    `max_imbalance`: bound on the busiest lane's load, over that with equal key groups.
    """
    equal = busiest_lane(np.ones(num_key_groups), num_lanes) * num_lanes / num_key_groups
    values = _MOST_VALUES
    while values > 1 and imbalance_of(values // 2, num_key_groups, num_lanes) <= (
        max_imbalance * equal
    ):
        values //= 2
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingCosts:
    """Time of an epoch for two consecutive operators, with and without an exchange between them."""

    apart_ms: float  # one after the other, and the exchange
    together_ms: float  # in the same lanes, placed by the columns that both have
    exchange_ms: float  # part of `apart_ms`

    @property
    def pays(self) -> bool:
        """True if an epoch takes less time when rows stay in their lane."""
        return self.together_ms < self.apart_ms


def compare_placing(
    sender_ms: FloatArray,
    receiver_ms: FloatArray,
    rows: FloatArray,
    *,
    exchange_ms: float,
    lanes: int,
) -> PlacingCosts:
    """Compare two placements of an operator: by all its key columns, or by those of its receiver.

    `sender_ms`, `receiver_ms`: shape ``(num_key_groups,)``: an epoch's load as it is placed now.
    `rows`: shape ``(num_key_groups,)``: rows sent to each of the receiver's key groups; the
    sender's load is taken to be in proportion. `exchange_ms`: CPU time of the exchange, which all
    lanes share.
    """
    exchange = exchange_ms / lanes
    apart = busiest_lane(sender_ms, lanes) + busiest_lane(receiver_ms, lanes) + exchange
    moved = sender_ms.sum() * rows / max(float(rows.sum()), 1.0)
    together = busiest_lane(moved + receiver_ms, lanes)
    return PlacingCosts(apart_ms=apart, together_ms=together, exchange_ms=exchange)
