"""Hot keys of a running query's joins, spread over lanes by hand: ``query.hot_keys``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.adapt.spreading import SpreadKeyOver, parts_for
from godwit.model.errors import InvalidPlanError, MigrationError
from godwit.model.frames import user_call
from godwit.model.naming import did_you_mean, listing
from godwit.operators.joins.spreading import WHOLE, Grid, hash_of_keys, keys_as_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.cluster.spark.run.run import SparkRun
    from godwit.engine.spreading import SpreadOrders
    from godwit.operators.joins.interval import IntervalJoin


class QueryHotKeys(Mapping[str, Mapping[str, tuple[int, int]]]):
    """Hot keys of a running query's joins, and what spreads them: ``query.hot_keys``.

    A mapping: join with ``spread=`` → key that is spread, as JSON → among how many parts rows of
    the left, and of the right, are divided.
    """

    def __init__(self, run: SparkRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<QueryHotKeys: {dict(self)}>"

    def __getitem__(self, join: str) -> Mapping[str, tuple[int, int]]:
        spreads = self._orders[join].spreads
        return {
            of.key: (of.grid.rows, of.grid.columns)
            for of in spreads.keys.values()
            if of.grid != WHOLE
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders)

    def __len__(self) -> int:
        return len(self._orders)

    @user_call
    def spread(self, join: str, key: Any, *, left: int = 1, right: int = 1) -> None:
        """Divide rows of a key among several lanes, from the next epoch on.

        Results stay what they are. Lanes that have the key's rows of until now keep them, and have
        work with them until the watermark has passed what they can meet.

        Parameters
        ----------
        join
            Name of a join with ``spread=``.
        key
            The key's value; of several key columns a tuple of them, in the order of ``key_by``.
        left, right
            Among how many parts rows of the left, and of the right, are divided. There are as many
            parts as the product of both. Rows of the left go to `right` of them, and rows of the
            right to `left`: divide the side that has more rows.

        Raises
        ------
        InvalidPlanError
            If there is no such join, or the key or the numbers will not do.
        MigrationError
            If a change of the key is under way, or the query has stopped.

        Examples
        --------
        ``query.hot_keys.spread("transfers", "central", left=4)``, and back:
        ``query.hot_keys.gather("transfers", "central")``.
        """
        orders = self._join(join)
        if not all(type(n) is int and n >= 1 for n in (left, right)) or not (
            2 <= left * right <= orders.join.spread
        ):
            raise InvalidPlanError(
                f"Join {join!r} was to divide a key in left={left!r} and right={right!r} parts.",
                remedy="Give whole numbers from 1, whose product is from 2 to the spread= of the "
                f"join, {orders.join.spread}.",
                operator=join,
            )
        self._change(orders, key, (left, right))

    @user_call
    def gather(self, join: str, key: Any) -> None:
        """Bring all rows of a key back to one lane, from the next epoch on.

        Parameters
        ----------
        join, key
            As of `spread`.

        Raises
        ------
        InvalidPlanError
            If there is no such join, or the key is not spread.
        MigrationError
            If a change of the key is under way, or the query has stopped.
        """
        orders = self._join(join)
        self._change(orders, key, (1, 1))

    @property
    def _orders(self) -> Mapping[str, SpreadOrders]:
        """Grids ordered so far, by join."""
        return self._run.spreading

    def _join(self, name: str) -> SpreadOrders:
        """Return a join whose hot keys can be spread, or refuse the name."""
        if name in self._orders:
            return self._orders[name]
        there = list(self._orders)
        known = f"Those are {listing(there)}." if there else "No inner join has it."
        raise InvalidPlanError(
            f"There is no join {name!r} with spread=.",
            remedy=f"{did_you_mean(name, there)}{known}",
            operator=name,
        )

    def _change(self, orders: SpreadOrders, key: Any, shape: tuple[int, int]) -> None:
        """Order other parts for a key."""
        run, join = self._run, orders.join
        if run.conducting.closed:
            raise MigrationError(
                "The query has stopped, so its keys stay where they are.",
                remedy="Start the flow again from its checkpoint.",
            )
        row = key_row(join, key)
        (key_hash,), (text,) = hash_of_keys(row).tolist(), keys_as_json(row)
        now = orders.spreads.grid_of(key_hash)
        under_way = MigrationError(
            f"A change of key {text} of join {join.name!r} is under way.",
            remedy="Wait until the watermark has passed what rows of before it can meet: the "
            "interval of the join, and the slack.",
            operator=join.name,
        )
        if orders.changing(key_hash):
            raise under_way
        if now == WHOLE and shape == (1, 1):
            raise InvalidPlanError(
                f"Key {text} of join {join.name!r} is not spread.",
                remedy="query.hot_keys says which are.",
                operator=join.name,
            )
        with run.conducting.locked() as conductor:
            standing = conductor.view.components[run.flow.component_of(join.name).name]
        parts = parts_for(
            key_hash, shape[0] * shape[1], taken=now, assignment=standing.assignment, cpu_ms={}
        )
        grid = Grid(rows=shape[0], columns=shape[1], parts=parts)
        change = SpreadKeyOver(operator=join.name, hash=key_hash, key=text, grid=grid)
        if not run.policies.spread_by_hand(change):
            raise under_way


def key_row(join: IntervalJoin, key: Any) -> pa.RecordBatch:
    """Return a user's key as a row of the join's key columns, or refuse it."""
    fields = list(join.own_keys)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(fields):
        raise InvalidPlanError(
            f"Key {key!r} has {len(values)} values, and join {join.name!r} is keyed by "
            f"{listing(join.own_keys.names)}.",
            remedy="Give a value for each key column, in a tuple if there are several.",
            operator=join.name,
        )
    try:
        columns = [pa.array([v], f.type) for v, f in zip(values, fields, strict=True)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        types = ", ".join(f"{field.name} {field.type}" for field in fields)
        raise InvalidPlanError(
            f"Key {key!r} is none of join {join.name!r}: {error}.",
            remedy=f"Its key columns are {types}.",
            operator=join.name,
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=join.own_keys)
