"""A function of ``KeyedStream.process`` called once for one key, as an epoch would: `process`."""

from __future__ import annotations

import copy
import datetime as dt
import functools
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit import types
from godwit.api.checks import timing_of
from godwit.api.flow import LogicalFlow
from godwit.api.stand_in import stream
from godwit.columns.tables import micros
from godwit.columns.types import to_schema
from godwit.model.errors import (
    InvalidInputError,
    UserFunctionError,
)
from godwit.model.frames import user_call, user_class
from godwit.model.signatures import is_asynchronous, own_signature
from godwit.operators.declared import ListState, MapState, States, ValueState
from godwit.testing.flows import EPOCH, Moment, cluster
from godwit.values.codec import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from godwit.api.declarations import OnTimer, Output
    from godwit.columns.types import SchemaLike


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """Result of `gw.testing.process`: rows, state and timers of one key after the call.

    Attributes
    ----------
    rows
        Rows that the function emitted: as dicts of the declared types if ``output=`` was given,
        else unchanged.
    state
        State after the call, encoded and decoded; ``None`` if there is none.
    states
        Name of a named state → its contents after the call: a value (``None`` if there is none),
        a list, or a dict.
    timers
        Times of the timers that are still set, earliest first.

    Examples
    --------
    >>> def total(key, rows, state):
    ...     return [(*key, sum(row.delay for row in rows))]
    >>> done = gw.testing.process(total, [{"delay": 5}], key={"plane": "N1"}, state=int)
    >>> done.rows
    [('N1', 5)]
    """

    rows: list[Any]
    state: Any
    states: dict[str, Any]
    timers: list[dt.datetime]


_UNSET: Any = object()
_DECLARATIONS = (ValueState, ListState, MapState)


@user_call
def process(
    function: Callable[..., Any],
    rows: Sequence[Mapping[str, Any]] = (),
    *,
    key: Mapping[str, Any] | None = None,
    state: Any = None,
    before: Any = _UNSET,
    output: SchemaLike | type[Any] | Output[Any] | None = None,
    columns: SchemaLike | None = None,
    timers: OnTimer[Any, Any] | None = None,
    timers_before: Sequence[Moment] = (),
    now: Moment | None = None,
    broadcast: Mapping[str, Mapping[Any, Any]] | None = None,
    **options: Any,
) -> Processed:
    """Call a function for ``KeyedStream.process`` for one key, as an epoch would; for tests.

    Timers that are due fire first, unless their order is ``"after_rows"``; then the function gets
    the rows, if there are any. A timer of event time at `now` itself is not due. State is
    encoded and decoded as in a checkpoint, so state that cannot be encoded is found here.

    Parameters
    ----------
    function
        Function for ``process``, called as ``function(key, rows, state)``; also an ``async def``.
    rows
        Rows of the key, as dicts. The key columns are added to them.
    key
        Name of a key column → its value.
    state
        Type or declaration of the state, or a dict of declarations of named states, as for
        ``process``; or a state before the call, whose type is used.
    before
        State before the call if `state` is a type; of named states, name → value, list or dict. By
        default the key is new.
    output
        Columns of the emitted rows, or a class of them. Without it the rows are returned unchanged.
    timers
        Function that timers call, and their clock, as for ``process``.
    columns
        Types of the columns of `rows`; by default they are inferred.
    timers_before
        Times of timers that are set before the call, datetimes or ISO 8601 text.
    now
        Time of the timers' clock: the watermark for ``clock="event"``, else the driver's clock.
    broadcast
        Name of a broadcast table → its contents: key → row.
    **options
        Other options of ``process``, such as ``row`` and ``asynchronous``.

    Returns
    -------
    Processed
        The emitted rows, and the state and the timers of the key after the call.

    Raises
    ------
    UserFunctionError
        If the function raises; its error is the ``__cause__``.
    GodwitError
        Any other error that an epoch would fail with.

    Examples
    --------
    >>> def count(key, rows, seen):
    ...     seen.value += len(rows)
    ...     return [(key[0], seen.value)]
    >>> done = gw.testing.process(count, [{"price": 9.5}], key={"symbol": "A"}, state=3)
    >>> done.rows, done.state
    ([('A', 4)], 4)
    """
    named = isinstance(state, Mapping) and any(
        isinstance(declared, _DECLARATIONS) for declared in state.values()
    )
    is_declared = named or isinstance(state, (type, *_DECLARATIONS)) or hasattr(state, "__origin__")
    if state is not None and not is_declared:
        if before is not _UNSET:
            raise InvalidInputError(
                "Both state= and before= give a state.", remedy="Give the type as state=."
            )
        state, before = type(state), state
    timing = timing_of("process", timers)
    on_timer = timing.on_timer
    if broadcast is not None:
        function = functools.partial(function, **broadcast)
        on_timer = None if on_timer is None else functools.partial(on_timer, **broadcast)
    if options.get("order", "arrival") != "arrival":
        raise InvalidInputError(
            f"gw.testing.process makes one call, and was given order={options['order']!r}.",
            remedy="Play a flow by gw.testing.run, whose watermark says which rows are due.",
        )
    call = _Call(function, on_timer, before, [_to_datetime(us) for us in timers_before])
    if key is not None and not isinstance(key, Mapping):
        raise InvalidInputError(
            f"gw.testing.process was given key={key!r:.100}.",
            remedy=f'Name the key columns, as in key={{"symbol": {key!r:.100}}}.',
        )
    keys = {"key": "key"} if key is None else dict(key)
    schema = _columns_of(keys, rows, columns)
    time = next(
        (f.name for f in schema if pa.types.is_timestamp(f.type) and f.name not in keys), "at"
    )
    if timing.clock == "event" and time not in schema.names:
        schema = schema.append(pa.field(time, pa.timestamp("us", "UTC")))
    flow = LogicalFlow("process", num_key_groups=1)
    source = flow.source(
        "rows", stream(schema), event_time=time if timing.clock == "event" else None
    )
    emitted = source.key_by(*keys).process(
        call.function,
        name="process",
        state=state,
        output="emitted long" if output is None else output,
        timers=None
        if call.timer is None or timers is None
        else replace(timers, function=call.timer),
        **options,
    )
    flow.sink("out", emitted, _Nowhere())
    call.emits = output is not None
    played = cluster(flow, now="1970-01-01")
    touch = {"rows": [{**_blank(schema), **(rows[0] if rows else {}), **keys}]}
    if before is not _UNSET or timers_before:
        call.does = "seed"
        played.epoch(touch)
    call.does = "call"
    try:
        rows_first = bool(rows) and timing.order == "after_rows"
        advance = played._set_time if rows_first else played.advance  # noqa: SLF001  timers wait
        if now is not None and timing.clock == "event":
            advance(watermarks={"rows": now})
        elif now is not None:
            advance(dt.timedelta(microseconds=micros(now, "now")))  # since 1970
        if rows:
            given = [{**dict.fromkeys(schema.names), **row, **keys} for row in rows]
            played.epoch({"rows": given})
    except UserFunctionError as error:
        raise error from call.error
    typed = played.rows("out").to_pylist() if call.emits else call.rows
    exists = any(played.state("process", name).num_rows for name in (state if named else [None]))
    call.does = "read"
    played.epoch(touch)
    return Processed(
        rows=typed,
        state=call.state if exists else None,
        states=call.states if named else {},
        timers=call.timers,
    )


class _Nowhere:
    """Sink that accepts and discards everything."""

    def open(self, context: object) -> None:
        """Do nothing: there is nothing to open."""

    def deliver(self, output: object) -> None:
        """Discard an epoch's output."""


class _Call:
    """The function under test, with functions that set its state before and read it after."""

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
        """Stand in for the function under test: set the state, read it, or call the function."""
        if self.does == "seed":
            if self._before is not _UNSET:
                _seed(state, self._before)
            for time in self._timers_before:
                rows.timers.set(time)
            return None
        if self.does == "read":
            self._read(rows, state)
            return None
        return self._under_test(self._own, key, rows, state, named)

    def _timer(self, key: Any, timer: Any, state: Any, **named: Any) -> Any:
        """Stand in for the timer function under test, and call it."""
        assert self._own_timer is not None, "it is given only where there is one"
        return self._under_test(self._own_timer, key, timer, state, named)

    def _under_test(
        self, own: Callable[..., Any], key: Any, argument: Any, state: Any, named: dict[str, Any]
    ) -> Any:
        """Call a function under test, and record its rows, which may have to be awaited."""
        with self._noting():
            result = own(key, argument, state, **named)
            if is_asynchronous(own):
                return self._awaited(result)
            return self._emitted(result)

    async def _awaited(self, result: Any) -> list[Any] | None:
        """Await the rows of an asynchronous function, and record them."""
        with self._noting():
            if hasattr(result, "__aiter__"):
                return self._emitted([row async for row in result])
            return self._emitted(await result)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Context that records an error of the user's function; lanes report only its text."""
        try:
            yield
        except BaseException as error:
            self.error = error
            raise

    def _emitted(self, result: Iterable[Any] | None) -> list[Any] | None:
        """Record the rows that the function emitted, and return them."""
        emitted = [] if result is None else list(result)
        self.rows += emitted
        return emitted if self.emits else None

    def _read(self, rows: Any, state: Any) -> None:
        """Record the state and the timers after the call."""
        self.timers = rows.timers.list() if hasattr(rows, "timers") else []
        if isinstance(state, States):
            self.states = {name: _copied(state[name]) for name in state._cells}  # noqa: SLF001
        else:
            self.state = state.value if isinstance(state, State) else copy.deepcopy(state)


def _like(function: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in that errors describe by the name and source of the function."""

    @functools.wraps(function)
    def call(key: Any, rows: Any, state: Any, **named: Any) -> Any:
        return stand_in(key, rows, state, **named)

    @functools.wraps(function)
    async def awaited(key: Any, rows: Any, state: Any, **named: Any) -> Any:
        result = stand_in(key, rows, state, **named)
        return await result if hasattr(result, "__await__") else result

    like: Any = awaited if is_asynchronous(function) else call
    if signature := own_signature(function):
        like.__signature__ = signature
    return like  # type: ignore[no-any-return]


def _copied(of_key: Any) -> Any:
    """Return a named state's content as a value, list or dict."""
    if isinstance(of_key, types.ValueOfKey):
        return copy.deepcopy(of_key.value) if of_key.exists else None
    return dict(of_key.items()) if isinstance(of_key, types.MapOfKey) else list(of_key)


def _seed(state: Any, value: Any) -> None:
    """Set the state of a key, in place, to `value`."""
    if isinstance(state, States):
        for name, of_name in value.items():
            _seed(state[name], of_name)
    elif isinstance(state, State | types.ValueOfKey):
        state.value = copy.deepcopy(value)
    elif isinstance(state, types.ListOfKey):
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
    """Return the columns of the rows: as given, or inferred; raise if a type stays unknown."""
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


def _blank(schema: pa.Schema) -> dict[str, Any]:
    """Return a row that any class of rows accepts, for calls that only set the key's state."""
    return {f.name: _BLANKS.get(f.type) for f in schema}


_BLANKS: dict[pa.DataType, Any] = {
    pa.int64(): 0,
    pa.float64(): 0.0,
    pa.string(): "",
    pa.bool_(): False,
    pa.binary(): b"",
}


def _to_datetime(moment: Moment) -> dt.datetime:
    """Return a time as a datetime in UTC."""
    return EPOCH + dt.timedelta(microseconds=micros(moment, "a timer"))
