"""Pending orders to divide hot keys of an operator, for the next epoch.

Policies and users give orders while an epoch runs.  The next planned epoch carries them out and
records them; an aborted attempt carries out nothing.

Invariant: a key has one order at a time, so its new parts differ from its present ones when the
order is carried out.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from godwit.operators.operator import KeyedOperator
    from godwit.operators.spreading import Grid, Spreads


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
