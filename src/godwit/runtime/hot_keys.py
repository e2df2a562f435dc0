"""Hot keys of a running query, spread over lanes by hand: ``query.hot_keys``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.checkpoint.records import Grid
from godwit.model.errors import InvalidPlanError, MigrationError
from godwit.model.frames import user_call
from godwit.model.naming import did_you_mean, listing
from godwit.operators.hot_key_orders import SpreadKeyOver, parts_for
from godwit.operators.hot_keys import WHOLE, hash_undivided, keys_as_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.model.assignment import Assignment
    from godwit.operators.hot_key_orders import SpreadOrders
    from godwit.operators.operator import KeyedOperator
    from godwit.runtime.ports import ChangedRun


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

    def __init__(self, run: ChangedRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<QueryHotKeys: {dict(self)}>"

    def __getitem__(self, operator: str) -> Mapping[str, tuple[int, int]]:
        spreads = self._orders_by_operator[operator].spreads
        return {
            key_spread.key: (key_spread.grid.rows, key_spread.grid.columns)
            for key_spread in spreads.keys.values()
            if key_spread.grid != WHOLE
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


def orders_of(spreading: Mapping[str, SpreadOrders], name: str) -> SpreadOrders:
    """Return the requests for hot keys of operator `name`.

    Raises `InvalidPlanError` if the operator's keys cannot be divided.
    """
    if name in spreading:
        return spreading[name]
    known = f"Those are {listing(spreading)}." if spreading else "No operator has either."
    raise InvalidPlanError(
        f"There is no join {name!r} with spread=, and no process with merge=.",
        remedy=f"{did_you_mean(str(name), list(spreading))}{known}",
        operator=name,
    )


def change_by_hand(
    orders: SpreadOrders, key: Any, shape: tuple[int, int] | None, assignment: Assignment
) -> SpreadKeyOver:
    """Return the change of a key's parts that a user requested; raise if it is not valid.

    `shape`: numbers of parts of the left and of the right rows; ``None``: make the key whole again.
    `assignment`: that of the operator's component. Raises `InvalidPlanError` if key or shape is not
    valid, and `MigrationError` while another change of the key is in progress.
    """
    operator, (left, right) = orders.operator, shape or (1, 1)
    name = operator.name
    if shape is not None and not (
        all(type(n) is int and n >= 1 for n in shape) and 2 <= left * right <= operator.max_parts
    ):
        raise InvalidPlanError(
            f"Operator {name!r} was to divide a key in left={left!r} and right={right!r} parts.",
            remedy="Give whole numbers from 1, whose product is from 2 to "
            f"{operator.max_parts}, the most parts that its keys may have.",
            operator=name,
        )
    if operator.part_states and right > 1:
        raise InvalidPlanError(
            f"Operator {name!r} cannot divide a key into right={right!r} parts: it is not a join.",
            remedy=f"Give the number of parts alone, as in left={left * right}.",
            operator=name,
        )
    row = _key_row(operator, key)
    (key_hash,), (text,) = hash_undivided(row).tolist(), keys_as_json(row)
    now = orders.spreads.grid_of(key_hash)
    change = SpreadKeyOver(operator=name, hash=key_hash, key=text, grid=WHOLE)
    if orders.is_changing(key_hash):
        raise being_changed(change)
    if now == WHOLE and shape is None:
        raise InvalidPlanError(
            f"Key {text} of operator {name!r} is not spread.",
            remedy="query.hot_keys says which are.",
            operator=name,
        )
    parts = parts_for(
        key_hash,
        left * right,
        taken=now,
        assignment=assignment,
        cpu_ms={},
        hashes_whole=operator.hashes_whole,
    )
    return replace(change, grid=Grid(rows=left, columns=right, parts=parts))


def being_changed(change: SpreadKeyOver) -> MigrationError:
    """Return the error that another change of the same key is in progress."""
    return MigrationError(
        f"A change of key {change.key} of operator {change.operator!r} is under way.",
        remedy="Wait for an epoch with input; of a join, until the watermark has passed what rows "
        "of before it can meet: its interval, and the slack.",
        operator=change.operator,
    )


def _key_row(operator: KeyedOperator, key: Any) -> pa.RecordBatch:
    """Return a user's key as one row of the operator's key columns; raise if it is not valid."""
    fields = list(operator.user_keys)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(fields):
        raise InvalidPlanError(
            f"Key {key!r} has {len(values)} values, and operator {operator.name!r} is keyed by "
            f"{listing(operator.user_keys.names)}.",
            remedy="Give a value for each key column, in a tuple if there are several.",
            operator=operator.name,
        )
    try:
        columns = [pa.array([v], f.type) for v, f in zip(values, fields, strict=True)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        types = ", ".join(f"{field.name} {field.type}" for field in fields)
        raise InvalidPlanError(
            f"Key {key!r} is not a key of operator {operator.name!r}: {error}.",
            remedy=f"Its key columns are {types}.",
            operator=operator.name,
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=operator.user_keys)
