"""Pending orders to divide hot keys of an operator, for the next epoch.

Policies and users give orders while an epoch runs.  The next planned epoch carries them out and
records them; an aborted attempt carries out nothing.

Invariant: a key has one order at a time, so its new parts differ from its present ones when the
order is carried out.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from godwit.model import events
from godwit.operators.hot_keys import WHOLE, key_group_of_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from godwit.checkpoint.records import Grid
    from godwit.model.assignment import Assignment
    from godwit.operators.hot_keys import Spreads
    from godwit.operators.operator import KeyedOperator

_CANDIDATES: Final = 64
"""Parts to choose from, for each that is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadKeyOver:
    """Request to divide the rows of one hot key among parts, or to gather them again.

    Each part of `grid` is in a key group of its own; the grid `WHOLE` gathers the key.
    """

    operator: str
    hash: int  # of the key
    key: str  # its values as JSON
    grid: Grid


def divide_key(
    spreading: Mapping[str, SpreadOrders],  # operator → requests to divide its hot keys
    change: SpreadKeyOver,
    *,
    announce: Callable[..., None],  # takes a kind of event and its values
    reason: str = "asked for",
    numbers: Mapping[str, float] | None = None,
) -> bool:
    """Request a change of a key's parts, and announce it; ``False`` if it is impossible now."""
    if not spreading[change.operator].order(change.hash, change.key, change.grid):
        return False
    announce(
        events.HotKeySpread,
        operator=change.operator,
        key=change.key,
        rows=change.grid.rows,
        columns=change.grid.columns,
        reason=reason,
        numbers=dict(numbers or {}),
    )
    return True


class SpreadOrders:
    """Requests to divide hot keys of one operator, and their present division."""

    def __init__(self, operator: KeyedOperator, spreads: Spreads) -> None:
        self.operator, self._spreads = operator, spreads
        self._orders: dict[int, tuple[str, Grid]] = {}
        self._lock = threading.Lock()

    @property
    def spreads(self) -> Spreads:
        """Division of hot keys among parts, as of the last committed epoch."""
        return self._spreads

    def is_changing(self, key_hash: int) -> bool:
        """Return true if a change of a key is in progress, which excludes another."""
        with self._lock:
            return key_hash in self._orders or self._spreads.is_changing(key_hash)

    def order(self, key_hash: int, key: str, grid: Grid) -> bool:
        """Request another grid of parts for a hot key; return ``False`` if that is impossible now.

        It applies from the next epoch on. `key`: the key as JSON.
        """
        with self._lock:
            taken = key_hash in self._orders or self._spreads.is_changing(key_hash)
            if taken or set(self._spreads.grid_of(key_hash).parts) & set(grid.parts):
                return False
            self._orders[key_hash] = key, grid
            return True

    def apply(self, spreads: Spreads, newest: int) -> Spreads:
        """Return the division of hot keys with the pending requests applied.

        `newest`: maximum event time of the rows of earlier epochs.
        """
        with self._lock:
            orders = dict(self._orders)
        for key_hash, (key, grid) in orders.items():
            spreads = spreads.with_grid(key_hash, key, grid, self.operator.parts_expire_at(newest))
        return spreads

    def committed(self, spreads: Spreads) -> None:
        """Set the division of a committed epoch; forget the requests that it carried out."""
        with self._lock:
            self._spreads = spreads
            self._orders = {
                key_hash: order
                for key_hash, order in self._orders.items()
                if spreads.grid_of(key_hash).parts != order[1].parts
            }


def parts_for(
    key_hash: int,
    count: int,
    *,
    taken: Grid,
    assignment: Assignment,
    cpu_ms: Mapping[int, float],
    share: float = 1.0,
    hashes_whole: bool = True,
) -> tuple[int, ...]:
    """Choose `count` parts for a key, on different lanes with the least load.

    `key_hash`: see `key_group_of_part`. `taken`: the present grid, whose parts are in use.
    `assignment`: that of the operator's component. `cpu_ms`: key group → load, if it has any.
    `share`: share of all that load in the key's parts. `hashes_whole`: see
    `KeyedOperator.hashes_whole`.
    """
    if count == 1:
        return WHOLE.parts
    lanes_per_executor = max(assignment.lanes)
    lane_of_group = (
        assignment.executor_of.astype(np.int64) * lanes_per_executor + assignment.lane_of
    )
    load = np.zeros(len(assignment.executors) * lanes_per_executor)
    busy_ms = np.zeros(assignment.num_key_groups)
    busy_ms[list(cpu_ms)] = list(cpu_ms.values())
    np.add.at(load, lane_of_group, busy_ms)
    candidates = np.arange(1, 1 + _CANDIDATES * (count + len(taken.parts)), dtype=np.int64)
    candidates = candidates[~np.isin(candidates, taken.parts)]
    key_groups = key_group_of_part(key_hash, candidates, assignment.num_key_groups)
    present_groups = key_group_of_part(
        key_hash,
        np.array(taken.parts, np.int64),
        assignment.num_key_groups,
        hashes_whole=hashes_whole,
    )
    # Spread keys go from their present place.
    np.subtract.at(load, lane_of_group[present_groups], busy_ms[present_groups])
    load_of_part = max(float(busy_ms.sum()), 1.0) * share / count
    chosen = place_parts(lane_of_group[key_groups], load, count, load_of_part)
    return tuple(int(candidates[position]) for position in chosen)


def place_parts(
    candidates: npt.NDArray[np.int64],  # shape ``(n,)``: the place that each part would have
    load: npt.NDArray[np.float64],  # shape ``(places,)``: present load of each place
    count: int,
    share: float,  # load of one part
) -> list[int]:
    """Choose `count` of the candidates as places of a hot key's parts, the least loaded first.

    They are on different executors and lanes. Returns positions in `candidates`.

    Examples
    --------
    >>> place_parts(np.array([0, 0, 1, 2]), np.array([0.0, 5.0, 1.0]), 2, 1.0)
    [0, 3]
    """
    load = load.astype(np.float64)
    free = np.ones(len(candidates), np.bool_)
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        least = int(np.argmin(np.where(free, load[candidates], np.inf)))
        free[least] = False
        load[candidates[least]] += share
        chosen.append(least)
    return chosen
