"""The contract of an aggregate: states per key, updated by batches and merged, and their result.

Everything is a column: one call handles all keys of a batch.  The state of G keys is a record batch
of G rows, and four functions work on it::

    create(G) ──▶ states of keys that have seen nothing
    update(states, groups, *columns) ──▶ states that have seen the rows too
    merge(left, right) ──▶ states that have seen what left saw, then what right saw
    finish(states) ──▶ results

Invariant: ``merge`` is associative, ``create`` is its neutral element, and updating with rows in
any number of parts, merged in order, is the same as updating with all of them.  This is what lets
a lane pre-combine rows at the source, split a key's state over executors, and migrate instantly.

An aggregate is built twice: `Aggregate` is what the user writes (``gw.sum("delay")``), knowing
names; ``bind`` gives a `BoundAggregate` that knows the types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import RESERVED_PREFIX, did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade

HIGH: Final = f"{RESERVED_PREFIX}_high"
"""State column of built-in sums for those that do not fit; null if they do, as in older states."""


class BoundAggregate(ABC):
    """An aggregate bound to the types of its columns. Instances are picklable values.

    Attributes
    ----------
    state
        Columns of the state of one key: primitive types, strings or binary.
    output
        Type of the result.
    commutative
        True if the state does not depend on the order of rows. Windows may then have a state each,
        instead of shared panes.
    idempotent
        True if it does not depend either on how often a row is added, as for a maximum. Windows may
        then be merged from parts that overlap.
    """

    __slots__ = ()

    state: pa.Schema
    output: pa.DataType

    @property
    def commutative(self) -> bool:
        """True if the state does not depend on the order of rows.

        Examples
        --------
        >>> columns = pa.schema({"delay": pa.int64()})
        >>> gw.sum("delay").bind(columns).commutative, gw.last("delay").bind(columns).commutative
        (True, False)
        """
        return False

    @property
    def idempotent(self) -> bool:
        """True if adding a row twice does not change the state, as for a maximum.

        Examples
        --------
        >>> columns = pa.schema({"delay": pa.int64()})
        >>> gw.max("delay").bind(columns).idempotent, gw.sum("delay").bind(columns).idempotent
        (True, False)
        """
        return False

    @abstractmethod
    def create(self, count: int) -> pa.RecordBatch:
        """Return the states of keys that have no rows yet.

        Parameters
        ----------
        count
            Number of keys.

        Returns
        -------
        pyarrow.RecordBatch
            One row for each key, with the columns of `state`.

        Examples
        --------
        >>> total = gw.sum("delay").bind(pa.schema({"delay": pa.int64()}))
        >>> total.create(2).num_rows
        2
        """

    @abstractmethod
    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add rows to the states of their groups, and return the new states.

        Parameters
        ----------
        states
            One row for each of the G keys that have rows, with the columns of `state`.
        groups
            Shape ``(N,)``: for each of the N rows, the number (0 to G - 1) of its key's row in
            `states`.
        *columns
            Values of the aggregate's columns, N each, in order of arrival.

        Returns
        -------
        pyarrow.RecordBatch
            The new states, G rows in the same order.

        Examples
        --------
        >>> import numpy as np
        >>> total = gw.sum("delay").bind(pa.schema({"delay": pa.int64()}))
        >>> states = total.update(total.create(2), np.array([0, 1, 0]), pa.array([5, 7, 12]))
        >>> total.finish(states).to_pylist()
        [17, 7]
        """

    @abstractmethod
    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Merge two batches of states row by row, and return the merged states.

        Parameters
        ----------
        left, right
            States of the same keys, in the same order: row i of `left` is of the earlier rows of
            key i, row i of `right` of its later ones.

        Returns
        -------
        pyarrow.RecordBatch
            In row i the state of all these rows of key i.

        Examples
        --------
        >>> import numpy as np
        >>> worst = gw.max("delay").bind(pa.schema({"delay": pa.int64()}))
        >>> one = worst.update(worst.create(1), np.array([0]), pa.array([5]))
        >>> other = worst.update(worst.create(1), np.array([0]), pa.array([12]))
        >>> worst.finish(worst.merge(one, other)).to_pylist()
        [12]
        """

    @abstractmethod
    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the aggregate's result for each key.

        Parameters
        ----------
        states
            One row of state for each key.

        Returns
        -------
        pyarrow.Array
            One result for each key, of the type `output`.

        Examples
        --------
        >>> flights = gw.count().bind(pa.schema({"delay": pa.int64()}))
        >>> flights.finish(flights.create(2)).to_pylist()
        [0, 0]
        """

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return plain values that identify the aggregate, for the checkpoint.

        Stored state can only be read by an aggregate with an equal description.

        Examples
        --------
        >>> gw.sum("delay").bind(pa.schema({"delay": pa.int64()})).describe()
        {'aggregate': 'sum', 'column': 'delay', 'type': 'int64'}
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn(BoundAggregate):
    """Base class of the built-in aggregates."""

    state: pa.Schema
    output: pa.DataType
    identity: Mapping[str, object]  # what `describe` returns

    def describe(self) -> dict[str, object]:
        """Return the plain values that identify the aggregate in the checkpoint."""
        return dict(self.identity)

    @property
    def narrow(self) -> BoundAggregate:
        """The aggregate for states that are results whenever they are stored."""
        return self

    @property
    def signed(self) -> BoundAggregate | None:
        """The aggregate that subtracts rows with sign -1, in a last column; ``None`` if none can.

        Its states add up in any order.
        """
        return None

    def create(self, count: int) -> pa.RecordBatch:
        """Return the initial states of `count` keys: null in every state column."""
        return self.states(*(pa.nulls(count, field.type) for field in self.state))

    def upgrade_from(self, stored: Mapping[str, Any]) -> StateUpgrade | None:  # noqa: ARG002
        """Return a converter of states that the aggregate described by `stored` wrote.

        ``None``: such states cannot be converted.
        """
        return None

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the result of each key: by default the first state column as it is."""
        return states.column(0)

    def states(self, *columns: pa.Array) -> pa.RecordBatch:
        """Build a batch of states from its columns."""
        return pa.RecordBatch.from_arrays(list(columns), schema=self.state)


class Aggregate(Protocol):
    """An aggregate of named columns, as passed to ``compute``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the aggregate reads."""

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the columns of a stream.

        Raises
        ------
        InvalidFlowError
            If a column does not exist or has a type that the aggregate cannot take.
        """


class Aggregator(BoundAggregate):
    """Base class of user-defined aggregates.

    Set `state` (Arrow schema of the state) and `output` (Arrow type of the result), implement
    `create`, `update`, `merge` and `finish`, and use it as ``compute(spread=Spread("price"))``. The
    results of these methods are checked. Set `commutative` to ``True`` if the order of rows does
    not matter, and `idempotent` if adding a row twice does not either; windows are then cheaper.

    Parameters
    ----------
    *columns
        Names of the columns that are passed to `update`.

    Examples
    --------
    The number of rows and the longest of them:

    >>> import numpy as np
    >>> class Longest(gw.types.Aggregator):
    ...     state = pa.schema({"length": pa.int64()})
    ...     output = pa.int64()
    ...
    ...     def create(self, count):
    ...         return pa.record_batch([np.zeros(count, np.int64)], schema=self.state)
    ...
    ...     def update(self, states, groups, column):
    ...         longest = states["length"].to_numpy().copy()
    ...         lengths = pa.compute.binary_length(column).fill_null(0).to_numpy()
    ...         np.maximum.at(longest, groups, lengths)
    ...         return pa.record_batch([longest], schema=self.state)
    ...
    ...     def merge(self, left, right):
    ...         longest = pa.compute.max_element_wise(left["length"], right["length"])
    ...         return pa.record_batch([longest], schema=self.state)
    ...
    ...     def finish(self, states):
    ...         return states["length"]
    >>> bound = Longest("name").bind(pa.schema({"name": pa.string()}))
    >>> bound.update(bound.create(1), np.array([0, 0]), pa.array(["a", "abc"]))["length"][0]
    <pyarrow.Int64Scalar: 3>
    """

    columns: tuple[str, ...] = ()

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(map(repr, self.columns))})"

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the columns of a stream, and return it ready to run.

        Godwit calls it when the flow is explained or started.

        Parameters
        ----------
        inputs
            Columns of the stream, with their types.

        Raises
        ------
        InvalidFlowError
            If a column does not exist, or `state` or `output` is not set.

        Examples
        --------
        >>> class Nothing(gw.types.Aggregator):
        ...     state, output = pa.schema({"n": pa.int64()}), pa.int64()
        ...     create = update = merge = finish = None
        >>> try:
        ...     Nothing("delays").bind(pa.schema({"delay": pa.int64()}))
        ... except gw.errors.InvalidFlowError as error:
        ...     print(error.message)
        Nothing reads column 'delays', which does not exist.
        """
        name = type(self).__qualname__
        for column in self.columns:
            column_type(inputs, column, name)
        for attribute, kind in (("state", pa.Schema), ("output", pa.DataType)):
            value = getattr(self, attribute, None)
            if not isinstance(value, kind):
                raise InvalidFlowError(
                    f"Aggregator {name} has {attribute} = {value!r}, which is not a "
                    f"pyarrow.{kind.__name__}.",
                    remedy=f"Set {attribute} on the class, as in "
                    + (
                        'state = pa.schema({"n": pa.int64()}).'
                        if attribute == "state"
                        else "output = pa.float64()."
                    ),
                    aggregate=name,
                )
        return self

    def describe(self) -> dict[str, object]:
        """Return plain values that identify the aggregate in a checkpoint.

        By default they are the class's name, its columns and its types. State in a checkpoint can
        only be read by an aggregate with an equal description, so override this method if the state
        depends on more, such as an option of the class.

        Examples
        --------
        >>> class Nothing(gw.types.Aggregator):
        ...     state, output = pa.schema({"n": pa.int64()}), pa.int64()
        ...     create = update = merge = finish = None
        >>> Nothing("delay").describe()["state"]
        {'n': 'int64'}
        """
        return {
            "aggregate": type(self).__qualname__,
            "columns": list(self.columns),
            "state": {field.name: str(field.type) for field in self.state},
        }


def column_type(inputs: pa.Schema, column: Any, reader: str) -> pa.DataType:
    """Return the type of a column of `inputs`; raise if it does not exist.

    `reader`: the aggregate that reads it, for errors.
    """
    if not isinstance(column, str):
        raise InvalidFlowError(
            f"{reader} was given {column!r} as the name of a column.",
            remedy='Name the column as text, as in gw.sum("delay").',
            aggregate=reader,
        )
    if column not in inputs.names:
        raise InvalidFlowError(
            f"{reader} reads column {column!r}, which does not exist.",
            remedy=f"{did_you_mean(column, inputs.names)}The columns are {listing(inputs.names)}.",
            aggregate=reader,
            column=column,
        )
    return inputs.field(column).type


def aggregate_text(aggregate: Aggregate) -> str:
    """Return an aggregate as text for users: a call, or what it says of itself as `explained`."""
    name = getattr(aggregate, "name", type(aggregate).__name__)
    call = f"{name}({', '.join(aggregate.columns)})"
    return str(getattr(aggregate, "explained", call))
