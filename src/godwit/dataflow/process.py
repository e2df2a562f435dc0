"""``process``: any Python per key, with state, rows in order of arrival.

The user's function is called once per key and epoch::

    def clear_market(key, rows, book):
        for row in rows:
            yield from book.match(row.side, row.price, row.quantity)

*key* is the tuple of key values; *rows* are the key's rows (`KeyRows`); the third argument is the
key's state: an object that the function changes in place, or, where its type cannot be changed in
place, a `State` whose ``value`` it assigns.  It returns rows (tuples or dicts) or ``None``.

Invariant: a key's state after an epoch is what the function left, and depends on nothing but the
state before and the rows in order; the function may run again for the same epoch.

Columns are turned into Python values, and states into bytes and back, once for all keys, so that
a key costs little more than the call of the function.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import inspect
import itertools
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.dataflow.arrays import (
    blob_bytes,
    boundaries_of,
    mask_of,
    numpy_type,
    values_of,
)
from godwit.dataflow.codec import (
    State,
    UnencodableError,
    is_immutable,
    make_codec,
    make_state,
)
from godwit.dataflow.emitted import Emitted
from godwit.dataflow.naming import function_name
from godwit.dataflow.operator import Advance, KeyedOperator, Step
from godwit.model.errors import (
    GodwitError,
    InvalidFlowError,
    StateEncodingError,
    UserFunctionError,
)
from godwit.state.schema import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from godwit.dataflow.groups import Groups

__all__ = ["KeyRows", "ProcessOperator", "State"]


class KeyRows:
    """The rows of one key in one epoch, in order of arrival.

    ``len(rows)`` is their number; iterating gives a named tuple per row; `column` gives the values
    of one column, which is faster where the function needs few columns.
    """

    __slots__ = ("_columns", "_dropped", "_start", "_stop")

    def __init__(self, columns: _Columns, start: int, stop: int) -> None:
        self._columns = columns
        self._start = start
        self._stop = stop
        self._dropped = False

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Any]:
        columns = self._columns
        values = [columns[name][self._start : self._stop] for name in columns.names]
        if not values:
            return iter([columns.row()] * len(self))
        return map(columns.row._make, zip(*values, strict=True))

    def __repr__(self) -> str:
        return f"KeyRows({len(self)} rows of {', '.join(self._columns.names)})"

    def column(self, name: str) -> list[Any]:
        """Values of a column, nulls as ``None``; a new list.

        Raises
        ------
        KeyError
            If there is no such column.
        """
        values: list[Any] = self._columns[name][self._start : self._stop]
        return values

    def drop_state(self) -> None:
        """Forget the key's state once the function has returned; its next rows find it new."""
        self._dropped = True


class ProcessOperator(KeyedOperator):
    """A function of the user, called per key; see `KeyedOperator` for what its methods are.

    Parameters
    ----------
    name
        The operator's name.
    keys
        Key columns.
    inputs
        Columns that the function sees.
    function
        ``function(key, rows, state)``; returns an iterable of rows, or ``None``.
    state_type
        Called without arguments for the state of a new key.
    output
        Columns of the rows that the function returns; nothing is added to them.
    codec
        ``"msgpack"``, or ``"pickle"`` by name.

    Raises
    ------
    InvalidFlowError
        If the function cannot be called with three arguments or is asynchronous, a new key's state
        cannot be made, or there is no such codec.
    StateEncodingError
        If the codec cannot write the state.
    """

    mergeable = False
    complete = False

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,
        function: Callable[..., Iterable[Any] | None],
        state_type: Any,
        output: pa.Schema,
        codec: str = "msgpack",
    ) -> None:
        _check_function(name, function)
        self.name = name
        self.inputs = inputs
        self.output = output
        self.schema = StateSchema(keys=keys, values=pa.schema({"state": pa.large_binary()}))
        self._function = function
        self._state_type = state_type
        self._codec = make_codec(name, codec, state_type)
        self._held = is_immutable(make_state(name, state_type))

    def combine(self, groups: Groups, rows: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002 - the contract's
        """Not possible: the function has to see every row."""
        raise self._rigid()

    def merge_partials(  # the contract's arguments; nothing can be done with them
        self,
        groups: Groups,  # noqa: ARG002
        partials: pa.RecordBatch,  # noqa: ARG002
    ) -> pa.RecordBatch:
        """Not possible: the function has to see every row."""
        raise self._rigid()

    def finish(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002 - the contract's
        """Not possible: output is what the function returned."""
        raise self._rigid()

    def advance(self, step: Step) -> Advance:
        """Call the function for every key."""
        with _uncollected():
            return self._advance(step)

    def _advance(self, step: Step) -> Advance:
        groups = step.groups
        keys = _rows_as_tuples(step.keys)
        states = self._read(step, keys)
        columns = _Columns(step.rows, self.inputs, groups.order)
        function, held = self._function, self._held
        ends: list[int] = []
        removed: list[int] = []
        emitted: list[Any] = []
        starts = groups.starts.tolist()
        group = 0
        try:
            for group, key in enumerate(keys):
                rows = KeyRows(columns, starts[group], starts[group + 1])
                result = function(key, rows, states[group])
                if result is not None:
                    emitted.extend(result)
                ends.append(len(emitted))
                if rows._dropped:  # noqa: SLF001 - KeyRows is this module's
                    removed.append(group)
        except GodwitError:
            raise
        except Exception as error:
            raise self._function_failed(keys[group], error) from error
        output = Emitted(
            rows=emitted, ends=ends, keys=keys, schema=self.output, operator=self.name
        ).to_batch()
        if held:
            states = [state.value for state in states]
        return self._written(states, removed, keys, output)

    def fingerprint(self) -> dict[str, object]:
        """Keys, and what the codec says of the state."""
        return {
            "operator": "process",
            # Pairs, since a key is hashed in the order of its columns.
            "keys": [[field.name, str(field.type)] for field in self.schema.keys],
            **self._codec.describe(),
        }

    def _read(self, step: Step, keys: list[tuple[Any, ...]]) -> list[Any]:
        """State of every key, as the function gets it."""
        known = np.flatnonzero(step.known)
        blobs = step.prior.column(0)
        if len(known) < len(blobs):
            blobs = blobs.take(pa.array(known))
        edges = boundaries_of(blobs).tolist()
        data = blob_bytes(blobs).data
        try:
            states = self._codec.decode(
                [data[start:end] for start, end in itertools.pairwise(edges)]
            )
        except UnencodableError as error:
            key = keys[int(known[error.index])]
            raise StateEncodingError(
                f"Operator {self.name!r} cannot read its state of key {key!r} as "
                f"{_type_name(self._state_type)}: {error}.",
                remedy="State written by an earlier version of the program fits if fields were "
                "only added, with defaults; otherwise give the operator a new name.",
                operator=self.name,
                key=key,
            ) from error
        if len(known) < len(keys):
            read = iter(states)
            new = self._state_type
            states = [next(read) if old else new() for old in step.known.tolist()]
        return [State(state) for state in states] if self._held else states

    def _written(
        self,
        states: list[Any],
        removed: list[int],
        keys: list[tuple[Any, ...]],
        output: pa.RecordBatch,
    ) -> Advance:
        dropped = None
        kept: Sequence[int] = range(len(states))
        if removed:
            dropped = np.zeros(len(states), np.bool_)
            dropped[removed] = True
            kept = np.flatnonzero(~dropped).tolist()
            states = [states[group] for group in kept]
        try:
            blobs: list[bytes] = self._codec.encode(states)
        except UnencodableError as error:
            key = keys[kept[error.index]]
            state = states[error.index]
            raise StateEncodingError(
                f"Operator {self.name!r} cannot write its state of key {key!r}, of type "
                f"{_type_name(type(state))}, so that it can be read as "
                f"{_type_name(self._state_type)}: {error}.",
                remedy="Keep values of the declared types in it (integers within 64 bits), change "
                "the declaration, or ask for codec='pickle'.",
                operator=self.name,
                key=key,
                type=_type_name(type(state)),
            ) from error
        if removed:
            kept_blobs = dict(zip(kept, blobs, strict=True))
            blobs = [kept_blobs.get(group, b"") for group in range(len(keys))]
        column = pa.array(blobs, pa.large_binary())
        state_batch = pa.RecordBatch.from_arrays([column], schema=self.schema.values)
        return Advance(state=state_batch, removed=dropped, output=output)

    def _function_failed(self, key: tuple[Any, ...], error: Exception) -> UserFunctionError:
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        if inner is None:
            # Nothing below this module: the function ran, but what it returned is no iterable.
            what = f"returned something that is not rows, for key {key!r}: {error}"
            remedy = "Return a list of tuples or dicts, yield them, or return None."
            text = ""
        else:
            text = "".join(traceback.format_exception(type(error), error, inner))
            what = f"raised {type(error).__name__} for key {key!r}: {error}"
            remedy = f"Correct the function; its traceback is:\n{text}"
        return UserFunctionError(
            f"Function {function_name(self._function)!r} of operator {self.name!r} {what}.",
            remedy=remedy,
            operator=self.name,
            key=key,
            traceback=text,
        )

    def _rigid(self) -> TypeError:
        return TypeError(f"Operator {self.name!r} runs a function per key and cannot be merged")


class _Columns(dict[str, list[Any]]):
    """Columns of an epoch's rows as Python lists, ordered by key; made when first asked for."""

    def __init__(self, rows: pa.RecordBatch, inputs: pa.Schema, order: Any) -> None:
        super().__init__()
        self.names = inputs.names
        self.row = _row_type(tuple(self.names))
        self._rows = rows
        self._order = order

    def __missing__(self, name: str) -> list[Any]:
        if name not in self.names:
            msg = f"There is no column {name!r}; the columns are {', '.join(self.names)}"
            raise KeyError(msg)
        column = self._rows.column(name)
        self[name] = values = _python_values(column.take(pa.array(self._order)))
        return values


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Hold the search for reference cycles.

    States and rows by the 100,000 would set it off again and again, to no avail, for more than
    half of the time.
    """
    held = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if held:
            gc.enable()


def _row_type(names: tuple[str, ...]) -> Any:
    """Named tuple of the columns; names that Python cannot have become ``_0``, ``_1``, ..."""
    return collections.namedtuple("Row", names, rename=True)  # noqa: PYI024 - names are not static


def _python_values(column: pa.Array) -> list[Any]:
    dtype = column.type
    if numpy_type(dtype) is None or pa.types.is_temporal(dtype):
        plain: list[Any] = column.to_pylist()
        return plain
    values, mask = values_of(column), mask_of(column)
    if mask is not None:
        values = values.astype(object)
        values[~mask] = None
    listed: list[Any] = values.tolist()
    return listed


def _rows_as_tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(_python_values(column) for column in batch.columns), strict=True))


def _check_function(operator: str, function: Any) -> None:
    name = function_name(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidFlowError(
            f"Operator {operator!r}: function {name!r} is asynchronous.",
            remedy="Give a plain function; lanes already run side by side.",
            operator=operator,
        )
    try:
        inspect.signature(function).bind(None, None, None)
    except ValueError:
        return  # written in C, without a signature that could be looked at
    except TypeError as error:
        raise InvalidFlowError(
            f"Operator {operator!r}: {name!r} cannot be called as function(key, rows, state): "
            f"{error}.",
            remedy="Give a function of these three arguments.",
            operator=operator,
        ) from error


def _type_name(state_type: Any) -> str:
    return getattr(state_type, "__qualname__", None) or repr(state_type)
