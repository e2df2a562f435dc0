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

import contextlib
import gc
import inspect
import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.columns.arrays import blob_bytes, boundaries_of
from godwit.columns.python_values import UTC, Columns, KeyRows, rows_as_tuples
from godwit.model.errors import (
    InvalidFlowError,
    StateEncodingError,
)
from godwit.model.frames import function_failed
from godwit.model.naming import function_name
from godwit.operators.emitted import Emitted
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.store.columns import StateSchema
from godwit.values.changes import nothing_beside, upgrade_between
from godwit.values.checks import unreadable_remedy
from godwit.values.codec import (
    State,
    UnencodableError,
    is_immutable,
    make_codec,
    make_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.columns.groups import Groups
    from godwit.operators.operator import OperatorInput

__all__ = ["KeyRows", "Meter", "ProcessOperator", "State", "check_arguments", "uncollected"]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
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
    state_classes
        Classes that state may hold besides those that its type mentions.
    state_upgrade
        Makes of an old state, as plain values, one of today's type.
    zone
        The session's, of datetimes without one that the function returns.

    Raises
    ------
    InvalidFlowError
        If the function cannot be called with three arguments or is asynchronous, a new key's state
        cannot be made, or there is no such codec.
    StateEncodingError
        If the codec cannot write the state.
    """

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
        state_classes: Mapping[str, type] | Sequence[type] = (),
        state_upgrade: Callable[[Any], Any] | None = None,
        zone: str = UTC,
    ) -> None:
        check_arguments(name, function)
        self.name = name
        self.inputs = inputs
        self.output = output
        self.schema = StateSchema(keys=keys, values=pa.schema({"state": pa.large_binary()}))
        self.function = function
        self._zone = zone
        self._state_type = state_type
        self._state_upgrade = state_upgrade
        self._codec = make_codec(name, codec, state_type, state_classes)
        self._is_immutable = is_immutable(make_state(name, state_type))

    @uncollected()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the function for every key."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        groups, key_columns = data.grouped(len(self.keys))
        known, prior = data.state.find(key_columns, groups.key_groups)
        keys = rows_as_tuples(key_columns)
        meter = Meter(groups.key_groups)
        states = self._read(known, prior.column(0), keys)
        meter.share(prior.column(0))
        emitted, ends, removed = self._call(data.rows.values, groups, keys, states, meter)
        output = self._emitted(emitted, ends, keys)
        if self._is_immutable:
            states = [state.value for state in states]
        meter.skip()
        blobs, dropped = self._blobs(states, removed, keys)
        written = pa.RecordBatch.from_arrays([blobs], schema=self.schema.values)
        meter.share(blobs)
        return OperatorOutput.of_groups(
            groups,
            key_columns,
            written,
            removed=dropped,
            output=output,
            cpu_ms=meter.cpu_ms,
            busy_ms=meter.busy_ms,
        )

    def _emitted(
        self, rows: list[Any], ends: list[int], keys: list[tuple[Any, ...]]
    ) -> pa.RecordBatch:
        return Emitted(
            rows=rows,
            ends=ends,
            keys=keys,
            schema=self.output,
            operator=self.name,
            zone=self._zone,
        ).to_batch()

    def _call(
        self,
        arrived: pa.RecordBatch,
        groups: Groups,
        keys: list[tuple[Any, ...]],
        states: list[Any],
        meter: Meter,
    ) -> tuple[list[Any], list[int], list[int]]:
        """Call the function for every key: rows, how many there were after each key, removed."""
        function = self.function
        columns = Columns(arrived, self.inputs, groups.order)
        emitted: list[Any] = []
        ends: list[int] = []
        removed: list[int] = []
        starts = groups.starts.tolist()
        group = begin = 0
        try:
            for end in meter.ends:
                for group in range(begin, end):
                    rows = KeyRows(columns, starts[group], starts[group + 1])
                    result = function(keys[group], rows, states[group])
                    if result is not None:
                        emitted.extend(result)
                    ends.append(len(emitted))
                    if rows._dropped:  # noqa: SLF001 - for this module alone
                        removed.append(group)
                begin = end
                meter.lap()
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt, which would take the executor's Python with
            # them and say nothing.
            raise function_failed(self.name, self.function, keys[group], error) from error
        return emitted, ends, removed

    @property
    def kind(self) -> str:
        """The call that makes one."""
        return "process"

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Describe the state by its codec."""
        return StateDescription(
            columns=columns_of(self.schema.values),
            codec=self._codec.name,
            type=self._codec.describe(),
        )

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:  # noqa: ARG002
        """Compatible changes of the type go on, others need the user's ``state_upgrade``.

        Raises
        ------
        CheckpointMismatchError
            If the state does not fit and nothing was given to make it fit.
        """
        return upgrade_between(
            self.name, written, self.describe_state(), self._codec, self._state_upgrade
        )

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:  # noqa: ARG002
        """Give timers and expiry of keys that have none."""
        return nothing_beside(self.schema.values, count)

    def _read(
        self, known: npt.NDArray[np.bool_], blobs: pa.Array, keys: list[tuple[Any, ...]]
    ) -> list[Any]:
        """State of every key, as the function gets it."""
        there = np.flatnonzero(known)
        if len(there) < len(blobs):
            blobs = blobs.take(pa.array(there))
        edges = boundaries_of(blobs).tolist()
        data = blob_bytes(blobs).data
        try:
            states = self._codec.decode(
                [data[start:end] for start, end in itertools.pairwise(edges)]
            )
        except UnencodableError as error:
            key = keys[int(there[error.index])]
            raise StateEncodingError(
                f"Operator {self.name!r} cannot read its state of key {key!r} as "
                f"{_type_name(self._state_type)}: {error}.",
                remedy=unreadable_remedy(self.name, key, "the operator"),
                operator=self.name,
                key=key,
            ) from error
        if len(there) < len(keys):
            read = iter(states)
            new = self._state_type
            states = [next(read) if old else new() for old in known.tolist()]
        return [State(state) for state in states] if self._is_immutable else states

    def _new_state(self) -> Any:
        """State of a key that has none, as a function is given it."""
        new = self._state_type()
        return State(new) if self._is_immutable else new

    def _blobs(
        self, states: list[Any], removed: list[int], keys: list[tuple[Any, ...]]
    ) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
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
                f"{_type_name(type(state))}, so that it comes back as what it is: {error}.",
                remedy="Keep values of the declared types in it, or change the declaration.",
                operator=self.name,
                key=key,
                type=_type_name(type(state)),
            ) from error
        if removed:
            kept_blobs = dict(zip(kept, blobs, strict=True))
            blobs = [kept_blobs.get(group, b"") for group in range(len(keys))]
        return pa.array(blobs, pa.large_binary()), dropped


class Meter:
    """CPU time and time that passes per key group, where the cost of a key depends on the key.

    What the function takes is measured between one key group and the next; reading and writing
    of states, done for all keys at once, are shared out by bytes.
    """

    def __init__(self, key_groups: npt.NDArray[np.int32]) -> None:
        _, self._starts = np.unique(key_groups, return_index=True)
        self.ends: list[int] = np.append(self._starts, len(key_groups))[1:].tolist()
        self._laps: list[npt.NDArray[np.float64]] = []
        self._shared_s = np.zeros((2, len(self._starts)))
        self._since = _clocks()

    def lap(self) -> None:
        """Note that the function has been called for the keys of one more key group."""
        now = _clocks()
        self._laps.append(now - self._since)
        self._since = now

    def skip(self) -> None:
        """Leave out what was done since."""
        self._since = _clocks()

    def share(self, blobs: pa.Array) -> None:
        """Share what was done since, by the bytes of the states that it was done for."""
        now = _clocks()
        sizes = np.diff(boundaries_of(blobs)) + 1.0
        weights = np.add.reduceat(sizes, self._starts) if len(sizes) else sizes
        self._shared_s += np.outer(now - self._since, weights / weights.sum())
        self._since = now

    @property
    def cpu_ms(self) -> npt.NDArray[np.float64]:
        """Milliseconds of CPU per key group."""
        return self._spent_ms(0)

    @property
    def busy_ms(self) -> npt.NDArray[np.float64]:
        """Milliseconds that passed per key group."""
        return self._spent_ms(1)

    def _spent_ms(self, clock: int) -> npt.NDArray[np.float64]:
        laps = np.array([lap[clock] for lap in self._laps])
        spent: npt.NDArray[np.float64] = self._shared_s[clock] + laps
        return spent * 1e3


def _clocks() -> npt.NDArray[np.float64]:
    """Seconds of CPU of this thread, and seconds that have passed, from any start."""
    return np.array([time.thread_time(), time.perf_counter()])


def check_arguments(
    operator: str, function: Any, called: str = "function(key, rows, state)"
) -> None:
    """Refuse a function that cannot be called with three arguments, or that is asynchronous."""
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
            f"Operator {operator!r}: {name!r} cannot be called as {called}: {error}.",
            remedy="Give a function of these three arguments.",
            operator=operator,
        ) from error


def _type_name(state_type: Any) -> str:
    return getattr(state_type, "__qualname__", None) or repr(state_type)
