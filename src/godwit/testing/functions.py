"""A function of ``KeyedStream.process`` called once for one key, as an epoch would: `process`."""

from __future__ import annotations

import copy
import datetime as dt
import functools
from collections.abc import MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.api.flow import LogicalFlow
from godwit.api.stand_in import stream
from godwit.columns.types import to_schema
from godwit.model.errors import (
    InvalidInputError,
    UserFunctionError,
)
from godwit.model.frames import user_call
from godwit.operators.calls import is_asynchronous
from godwit.operators.states.lists import ListOfKey
from godwit.operators.states.maps import MapOfKey
from godwit.operators.states.operator import States
from godwit.operators.states.values import ValueOfKey
from godwit.testing.flows import EPOCH, Moment, cluster, micros
from godwit.values.codec import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.columns.types import SchemaLike
    from godwit.operators.calls import TimerClock
    from godwit.operators.states.declared import ListState, MapState, ValueState


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """Rows, state and timers that a function left behind for one key; `process` makes it.

    Attributes
    ----------
    rows
        Rows that it emitted, as it emitted them; as dicts of the right types, where ``output=``
        was given.
    state
        State afterwards, read back from the checkpoint; ``None`` if there is none.
    states
        Name → state afterwards, where several are declared: a value (``None`` if there is none), a
        list, or a dict.
    timers
        Timers that are still set, earliest first.
    """

    rows: list[Any]
    state: Any
    states: dict[str, Any]
    timers: list[dt.datetime]


_UNSET: Any = object()


@user_call
def process(
    function: Callable[..., Any],
    rows: Sequence[Mapping[str, Any]] = (),
    *,
    key: Mapping[str, Any] | None = None,
    state: Any = None,
    before: Any = _UNSET,
    states: Mapping[str, ValueState[Any] | ListState[Any] | MapState[Any, Any]] | None = None,
    output: SchemaLike | None = None,
    columns: SchemaLike | None = None,
    timers: TimerClock | None = None,
    on_timer: Callable[..., Any] | None = None,
    timers_before: Sequence[Moment] = (),
    now: Moment | None = None,
    broadcast: Mapping[str, Mapping[Any, Any]] | None = None,
    **options: Any,
) -> Processed:
    """Call a function of ``KeyedStream.process`` once, as an epoch would.

    Timers that are due are fired first; then the function gets the rows, if there are any. State
    is written to a checkpoint and read from it, so one that cannot be written is found here.

    Parameters
    ----------
    function
        ``function(key, rows, state)``, plain or asynchronous.
    rows
        The key's rows, as dicts. The columns of the key are added to them.
    key
        Key column → value.
    state
        As of ``process``: the type of the state; or the state before the call, whose type it then
        is.
    before
        State before the call, where `state` says the type; of `states`, name → value, list or dict.
        By default the key is new.
    states, output, timers, on_timer
        As of ``KeyedStream.process``. Without `output` rows are given back as they were emitted.
    columns
        Types of the columns of the rows; by default they follow from the rows.
    timers_before
        Timers that are set before the call.
    now
        Where the clock of the timers stands: the watermark for ``timers="event"``, else the
        driver's clock.
    broadcast
        Name of a table → what the functions are to read there: key → row.
    **options
        Others of ``KeyedStream.process``, such as ``codec`` and ``state_classes``.

    Raises
    ------
    UserFunctionError
        If the function raises; that error is its ``__cause__``.
    GodwitError
        Whatever an epoch would have failed with.

    Examples
    --------
    >>> def count(key, rows, seen):
    ...     seen.value += len(rows)
    ...     return [(key[0], seen.value)]
    >>> done = process(count, [{"price": 9.5}], key={"symbol": "A"}, state=3)
    >>> done.rows, done.state
    ([('A', 4)], 4)
    """
    if state is not None and not isinstance(state, type) and not hasattr(state, "__origin__"):
        if before is not _UNSET:
            raise InvalidInputError(
                "Both state= and before= give a state.", remedy="Give the type as state=."
            )
        state, before = type(state), state
    if broadcast is not None:
        function = functools.partial(function, **broadcast)
        on_timer = None if on_timer is None else functools.partial(on_timer, **broadcast)
    call = _Call(function, on_timer, before, [_moment_of(at) for at in timers_before])
    keys = {"key": "key"} if key is None else dict(key)
    schema = _columns_of(keys, rows, columns)
    time = next(
        (f.name for f in schema if pa.types.is_timestamp(f.type) and f.name not in keys), "at"
    )
    if timers == "event" and time not in schema.names:
        schema = schema.append(pa.field(time, pa.timestamp("us", "UTC")))
    flow = LogicalFlow("process", num_key_groups=1)
    source = flow.source("rows", stream(schema), event_time=time if timers == "event" else None)
    emitted = source.key_by(*keys).process(
        call.function,
        name="process",
        state=state,
        states=states,
        output="emitted long" if output is None else output,
        timers=timers,
        on_timer=None if on_timer is None else call.timer,
        **options,
    )
    flow.sink("out", emitted, _Nowhere())
    call.emits = output is not None
    played = cluster(flow, now="1970-01-01")
    touch = {"rows": [{**dict.fromkeys(schema.names), **keys}]}
    if before is not _UNSET or timers_before:
        call.does = "seed"
        played.epoch(touch)
    call.does = "call"
    try:
        if now is not None and timers == "event":
            played.advance(watermarks={"rows": now})
        elif now is not None:
            played.advance(dt.timedelta(microseconds=micros(now, "now")))  # since 1970
        if rows:
            given = [{**dict.fromkeys(schema.names), **row, **keys} for row in rows]
            played.epoch({"rows": given})
    except UserFunctionError as error:
        raise error from call.error
    typed = played.rows("out").to_pylist() if call.emits else call.rows
    exists = any(
        played.state("process", name).num_rows for name in ([None] if states is None else states)
    )
    call.does = "read"
    played.epoch(touch)
    return Processed(
        rows=typed,
        state=call.state if exists else None,
        states=call.states if states is not None else {},
        timers=call.timers,
    )


class _Nowhere:
    """A sink for flows that are only played."""

    def open(self, context: object) -> None: ...
    def deliver(self, output: object) -> None: ...


class _Call:
    """The function under test, and what stands in its place to seed its state and to read it."""

    def __init__(
        self,
        function: Callable[..., Any],
        on_timer: Callable[..., Any] | None,
        before: Any,
        timers_before: Sequence[dt.datetime],
    ) -> None:
        self.does = "call"
        self.emits = False
        self.error: BaseException | None = None
        self.rows: list[Any] = []
        self.state: Any = None
        self.states: dict[str, Any] = {}
        self.timers: list[dt.datetime] = []
        self.function = _like(function, self._function)
        self.timer = None if on_timer is None else _like(on_timer, self._timer)
        self._own, self._own_timer = function, on_timer
        self._before, self._timers_before = before, timers_before

    def _function(self, key: Any, rows: Any, state: Any, **named: Any) -> Any:
        """Seed the state, read it, or call the function under test."""
        if self.does == "seed":
            if self._before is not _UNSET:
                _seed(state, self._before)
            for at in self._timers_before:
                rows.timers.set(at)
            return None
        if self.does == "read":
            self._read(rows, state)
            return None
        return self._under_test(self._own, key, rows, state, named)

    def _timer(self, key: Any, timer: Any, state: Any, **named: Any) -> Any:
        """Call the timer function under test."""
        assert self._own_timer is not None, "it is given only where there is one"
        return self._under_test(self._own_timer, key, timer, state, named)

    def _under_test(
        self, own: Callable[..., Any], key: Any, argument: Any, state: Any, named: dict[str, Any]
    ) -> Any:
        """Call a function under test, and note its rows; they may have to be awaited."""
        with self._noting():
            result = own(key, argument, state, **named)
            if is_asynchronous(own):
                return self._awaited(result)
            return self._emitted(result)

    async def _awaited(self, result: Any) -> list[Any] | None:
        """Await the rows of an asynchronous function, and note them."""
        with self._noting():
            if hasattr(result, "__aiter__"):
                return self._emitted([row async for row in result])
            return self._emitted(await result)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Record what the user's function raises: reports of lanes have only its text."""
        try:
            yield
        except BaseException as error:
            self.error = error
            raise

    def _emitted(self, result: Iterable[Any] | None) -> list[Any] | None:
        """Record the rows that the function emitted."""
        emitted = [] if result is None else list(result)
        self.rows += emitted
        return emitted if self.emits else None

    def _read(self, rows: Any, state: Any) -> None:
        """Record the state and the timers."""
        self.timers = rows.timers.list() if hasattr(rows, "timers") else []
        if isinstance(state, States):
            self.states = {name: _copied(state[name]) for name in state._cells}  # noqa: SLF001
        else:
            self.state = state.value if isinstance(state, State) else copy.deepcopy(state)


def _like(function: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a stand-in so that messages show the name and source of the function."""

    @functools.wraps(function)
    def call(key: Any, rows: Any, state: Any, **named: Any) -> Any:
        return stand_in(key, rows, state, **named)

    @functools.wraps(function)
    async def awaited(key: Any, rows: Any, state: Any, **named: Any) -> Any:
        result = stand_in(key, rows, state, **named)
        return await result if hasattr(result, "__await__") else result

    return awaited if is_asynchronous(function) else call


def _copied(of_key: Any) -> Any:
    """Copy a named state as a value, list or dict."""
    if isinstance(of_key, ValueOfKey):
        return copy.deepcopy(of_key.value) if of_key.exists else None
    return dict(of_key.items()) if isinstance(of_key, MapOfKey) else list(of_key)


def _seed(state: Any, value: Any) -> None:
    """Set the state of a key by changing it in place."""
    if isinstance(state, States):
        for name, of_name in value.items():
            _seed(state[name], of_name)
    elif isinstance(state, State | ValueOfKey):
        state.value = copy.deepcopy(value)
    elif isinstance(state, ListOfKey):
        state.replace(copy.deepcopy(list(value)))
    elif isinstance(state, MutableMapping):  # also a map of a key
        for name in list(state):
            del state[name]
        for name, item in value.items():
            state[name] = copy.deepcopy(item)
    elif isinstance(state, MutableSet):
        state.clear()
        for item in value:
            state.add(item)
    elif isinstance(state, MutableSequence):
        state[:] = copy.deepcopy(list(value))
    else:
        names = getattr(type(state), "__struct_fields__", None) or [*vars(value)]
        for name in names:
            setattr(state, name, copy.deepcopy(getattr(value, name)))


def _columns_of(
    keys: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], columns: SchemaLike | None
) -> pa.Schema:
    """Columns of the rows: those given, and else what Arrow makes of the values."""
    schema = pa.Table.from_pylist([{**row, **keys} for row in rows] or [dict(keys)]).schema
    if columns is not None:
        given = to_schema(columns, where="The columns of the rows")
        fields = {field.name: field for field in (*schema, *given)}
        schema = pa.schema([fields[name] for name in dict.fromkeys((*keys, *given.names))])
    for field in schema:
        if pa.types.is_null(field.type):
            raise InvalidInputError(
                f"Every row has None in column {field.name!r}, so its type is not known.",
                remedy='Give the types, as in columns="price double".',
                column=field.name,
            )
    return schema


def _moment_of(moment: Moment) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros(moment, "a timer"))
