"""Hot keys of a running query, spread over lanes by hand: ``query.hot_keys``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from godwit.control.spreading import being_changed, change_by_hand, orders_of
from godwit.model.errors import MigrationError
from godwit.model.frames import user_call
from godwit.operators.spreading import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.engine.spreading import SpreadOrders
    from godwit.runtime.ports import DividedRun


class QueryHotKeys(Mapping[str, Mapping[str, tuple[int, int]]]):
    """Hot keys of a running query whose rows are divided among several lanes (parallel tasks).

    It is the attribute ``query.hot_keys`` of a `Query`, and a mapping: name of an operator →
    divided key, as JSON text → number of parts. The operators are joins with ``spread=`` and
    ``process`` with ``merge=``; of a join, the value is a pair: numbers of parts of the left rows
    and of the right rows.

    Examples
    --------
    >>> dict(query.hot_keys)
    {'by_origin': {}}
    """

    def __init__(self, run: DividedRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<QueryHotKeys: {dict(self)}>"

    def __getitem__(self, operator: str) -> Mapping[str, tuple[int, int]]:
        spreads = self._orders_by_operator[operator].spreads
        return {
            of.key: (of.grid.rows, of.grid.columns)
            for of in spreads.keys.values()
            if of.grid != WHOLE
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders_by_operator)

    def __len__(self) -> int:
        return len(self._orders_by_operator)

    @user_call
    def spread(self, operator: str, key: Any, *, left: int = 1, right: int = 1) -> None:
        """Divide the rows of a key among several lanes, from the next epoch on.

        The results of a join do not change: the lane with the earlier rows of the key joins new
        rows with them until the watermark has passed all rows that they can match. The function of
        ``process`` sees the rows and the state of one part only, until `gather` or
        ``gw.control.Spreading`` merges the parts by ``merge=``.

        Parameters
        ----------
        operator
            Name of a join with ``spread=``, or of a ``process`` with ``merge=``.
        key
            The key's value; if there are several key columns, a tuple of their values, in the order
            of ``key_by``.
        left, right
            For a join: numbers of parts that the left rows and the right rows are divided into.
            There are ``left * right`` parts in all, from 2 to ``spread=`` of the join. Each left
            row is copied to `right` of them, and each right row to `left` of them, so divide the
            side that has more rows. For ``process``: `left` is the number of parts, and `right`
            must be 1.

        Raises
        ------
        InvalidPlanError
            If there is no such operator, or the key or a number is not valid.
        MigrationError
            If another change of the key is in progress, or the query has stopped.

        Examples
        --------
        >>> query.hot_keys.spread("by_origin", "JFK", left=2)
        >>> rows.add([{"plane": "N1", "origin": "JFK", "delay": 9}] * 2)
        >>> query.processAllAvailable()
        >>> dict(query.hot_keys["by_origin"])
        {'["JFK"]': (2, 1)}
        """
        self._request_change(orders_of(self._orders_by_operator, operator), key, (left, right))

    @user_call
    def gather(self, operator: str, key: Any) -> None:
        """Send all rows of a divided key to one lane again, from the next epoch on.

        The parts of a ``process`` are merged by its ``merge=`` in that epoch.

        Parameters
        ----------
        operator, key
            As for `spread`.

        Raises
        ------
        InvalidPlanError
            If there is no such operator, or the key is not spread.
        MigrationError
            If another change of the key is in progress, or the query has stopped.

        Examples
        --------
        >>> query.hot_keys.gather("by_origin", "JFK")
        >>> rows.add([{"plane": "N1", "origin": "JFK", "delay": 9}])
        >>> query.processAllAvailable()
        >>> dict(query.hot_keys["by_origin"])
        {}
        """
        self._request_change(orders_of(self._orders_by_operator, operator), key, None)

    @property
    def _orders_by_operator(self) -> Mapping[str, SpreadOrders]:
        """Return operator → requests to divide its hot keys, for operators that allow it."""
        return self._run.spreading

    def _request_change(
        self, orders: SpreadOrders, key: Any, shape: tuple[int, int] | None
    ) -> None:
        """Request other numbers of parts for a key from the next epoch on, or raise.

        `shape`: numbers of left and right parts; ``None``: undivided.
        """
        run, operator = self._run, orders.operator
        if run.coordinator.closed:
            raise MigrationError(
                "The query has stopped, so its keys stay where they are.",
                remedy="Start the flow again from its checkpoint.",
            )
        standing = run.coordinator.view.components[run.flow.component_of(operator.name).name]
        change = change_by_hand(orders, key, shape, standing.assignment)
        if not run.divide(change):
            raise being_changed(change)
