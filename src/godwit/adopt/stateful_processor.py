"""``transformWithState``: a Spark ``StatefulProcessor`` as an operator, unchanged.

The processor is called as Spark's Python worker calls it: for a key with rows ``handleInputRows``
(in the first epoch after ``handleInitialState``), then ``handleExpiredTimer`` for the timers that
are due after that.  It is unpickled for every lane and epoch, as Spark does for every task, so
attributes that it sets live no longer than that; state that lasts is in its state variables, which
are named states of `ProcessOfStates`.

Times are Spark's: milliseconds; a timer fires once the clock has reached it, where ``process``
waits until the watermark has passed it.  So an event-time timer is stored one microsecond earlier
than it is set to.  Before the first watermark Spark's watermark is 1970.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import Row

from godwit.adopt.row_forms import MAX_CHUNK, batch_of, form_of
from godwit.adopt.spark_functions import (
    KeyCall,
    KeyCalls,
    SparkFunctionOperator,
    called_by_the_operator,
    dumps,
    watermark_ms,
)
from godwit.adopt.spark_rows import KEY_TYPES, VALUE_TYPES, check_types
from godwit.adopt.state_variables import DeclaringHandle, LaneHandle, Place, TimeMode, Variable
from godwit.columns.row_cursors import columns_read
from godwit.model.errors import InvalidFlowError, UserFunctionError
from godwit.model.frames import function_failed
from godwit.model.key_groups import key_groups_of
from godwit.operators.declared import TIMERS, ListState, MapState, ValueState
from godwit.operators.timers import Timing
from godwit.store.changes import StateRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from godwit.adopt.row_forms import KeyBatches, RowForm
    from godwit.checkpoint.evolution import StateDescription
    from godwit.columns.groups import Groups
    from godwit.library.calls import CalledKey, Meter
    from godwit.library.states.stored import Cells, LaneKeys
    from godwit.operators.declared import Declared
    from godwit.operators.operator import OperatorInput
    from godwit.time.event_time import EpochTime

TIME_MODES: Final[dict[str, TimeMode]] = {
    "none": "None",
    "processingtime": "ProcessingTime",
    "eventtime": "EventTime",
}
CLOCKS: Final = {"None": None, "ProcessingTime": "processing", "EventTime": "event"}
FIRST_EPOCH: Final = 0
_NO_STATE: Final = "x_nothing"
_ROWS: Final = 1  # number of the argument of ``handleInputRows`` that has rows
_ROWS_CALL: Final = "handleInputRows(key, rows, timerValues)"
_PLAIN: Final = re.compile(r"[a-z][a-z0-9_]*")
_OTHER: Final = re.compile(r"[^a-z0-9_]|_(?=x)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialTable:
    """Rows of an initial state, and their keys. Picklable."""

    keys: pa.Table  # a column for each of the operator's key columns, in their order
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSpec:
    """A processor, and its settings. Picklable."""

    pickled: bytes  # the processor, by cloudpickle
    name: str  # of its class
    time_mode: TimeMode
    form: str  # "row" or "pandas": what it gets and returns
    variables: tuple[Variable, ...]
    deleted: frozenset[str] = frozenset()  # names of states that it deletes
    initial: InitialTable | None = None
    max_chunk: int = MAX_CHUNK  # maximum number of rows of a DataFrame
    max_bytes: int | None = None  # and about how many bytes it may have
    shortest: bool = False  # texts of floats; see `SparkRows`

    @property
    def timing(self) -> Timing:
        """Options of the operator's timers."""
        clock: Any = CLOCKS[self.time_mode]
        on_timer = None if clock is None else called_by_the_operator
        return Timing(clock=clock, on_timer=on_timer, order="after_rows")

    @property
    def metrics(self) -> dict[str, int]:
        """Numbers of state variables, by the names of Spark's metrics."""
        counts = {"numDeletedStateVars": len(self.deleted)}
        for kind in ("value", "list", "map"):
            own = [variable for variable in self.variables if variable.kind == kind]
            counts[f"num{kind.title()}StateVars"] = len(own)
            timed = [variable for variable in own if variable.ttl_ms is not None]
            counts[f"num{kind.title()}StateWithTTLVars"] = len(timed)
        return counts

    @property
    def states_text(self) -> str:
        """State variables as text, such as ``states seen (value), recent (list)``."""
        if not self.variables:
            return "no state"
        named = ", ".join(f"{variable.name} ({variable.kind})" for variable in self.variables)
        return f"{'states' if len(self.variables) > 1 else 'state'} {named}"

    @property
    def states(self) -> dict[str, Declared]:
        """Declarations of the variables as named states; an empty one if there are none."""
        if not self.variables:
            return {_NO_STATE: ValueState(int)}
        return {state_name(variable.name): _named_state_of(variable) for variable in self.variables}


def state_name(name: str) -> str:
    """Return the name of the state of a variable: lower-case, and not one that is reserved.

    Examples
    --------
    >>> state_name("count"), state_name("countState"), state_name("timers")
    ('count', 'x_count_x53_tate', 'x_timers')
    """
    if _PLAIN.fullmatch(name) and name != TIMERS and not name.startswith("x_"):
        return name
    return "x_" + _OTHER.sub(lambda match: f"_x{ord(match[0]):x}_", name)


def _named_state_of(variable: Variable) -> Declared:
    """Return the declaration of a variable as a named state."""
    ttl: Any = None if variable.ttl_ms is None else f"{variable.ttl_ms} milliseconds"
    record = variable.rows.record
    if variable.kind == "value":
        return ValueState(record, ttl=ttl)
    if variable.kind == "list":
        return ListState(record, ttl=ttl)
    return MapState(bytes, record, ttl=ttl)


def spec_of(
    processor: Any,
    *,
    time_mode: str,
    pandas: bool,
    initial: InitialTable | None,
    where: str,
    operator: str,
    max_chunk: int = MAX_CHUNK,
    max_bytes: int | None = None,
    shortest: bool = False,
) -> ProcessorSpec:
    """Return the spec of a processor, by calling a copy's ``init`` as Spark does on the driver.

    Raises `InvalidFlowError` if the processor cannot be pickled, or the time mode is unknown;
    `UserFunctionError` if ``init`` raises. `where`: the call, for errors. `operator`: its name.
    `shortest`: see `SparkRows`.
    """
    mode = TIME_MODES.get(str(time_mode).lower())
    if mode is None:
        raise InvalidFlowError(
            f"{where} has time_mode={time_mode!r}. [STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE]",
            remedy="Give 'None', 'ProcessingTime' or 'EventTime'.",
        )
    missing = [
        call for call in ("init", "handleInputRows", "close") if not hasattr(processor, call)
    ]
    if missing or isinstance(processor, type):
        what = "a class" if isinstance(processor, type) else "a value without " + missing[0]
        raise InvalidFlowError(
            f"{where} got {what}, not a StatefulProcessor.",
            remedy="Give an instance of a subclass of pyspark.sql.streaming.StatefulProcessor.",
        )
    try:
        pickled = dumps(processor)
    except Exception as error:
        raise InvalidFlowError(
            f"{where}: the processor cannot be pickled: {error}.",
            remedy="Create objects that cannot be pickled, such as connections, in init.",
        ) from error
    copy = cloudpickle.loads(pickled)
    handle = DeclaringHandle(mode, shortest=shortest)
    with _naming_errors(operator, copy.init, None, "init(handle)"):
        copy.init(handle)
        copy.close()
    return ProcessorSpec(
        pickled=pickled,
        name=type(processor).__qualname__,
        time_mode=mode,
        form="pandas" if pandas else "row",
        variables=tuple(handle.variables.values()),
        deleted=frozenset(handle.deleted),
        initial=initial,
        max_chunk=max_chunk,
        max_bytes=max_bytes,
        shortest=shortest,
    )


class TransformOperator(SparkFunctionOperator):
    """A `StatefulProcessor` called for each key, as Spark's ``transformWithState`` does."""

    def __init__(self, spec: ProcessorSpec, **options: Any) -> None:
        super().__init__(spec, states=spec.states, timing=spec.timing, **options)
        self.spec: ProcessorSpec = spec
        self.deletes = tuple(sorted(map(state_name, spec.deleted)))
        self._variables = {variable.name: variable for variable in spec.variables}

    # -- evolution -----------------------------------------------------------------------------

    def describe_state(self, state: str = TIMERS) -> StateDescription:
        """Describe a state for the checkpoint, with the Spark types of its columns."""
        described = super().describe_state(state)
        for variable in self.spec.variables:
            if state_name(variable.name) == state:
                means = {KEY_TYPES: variable.key_types, VALUE_TYPES: variable.types}
                return msgspec.structs.replace(described, means={**described.means, **means})
        return described

    def maker_of(self, state: str) -> Callable[[Any], Any] | None:
        """Return the function from Spark's value of a state to the stored one, if there is one."""
        makers = (v.stored for v in self.spec.variables if state_name(v.name) == state)
        return next(makers, None)

    def check_stored_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        """Refuse a stored state whose columns have types that the current ones cannot hold."""
        where = f"state {state!r} of operator {self.name!r}"
        check_types(where, stored.means, today.means, operator=self.name, state=state)
        same = msgspec.structs.replace(stored, means=today.means)
        super().check_stored_state(state, stored if state == TIMERS else same, today)

    # -- an epoch ------------------------------------------------------------------------------

    def called_without_rows(self, data: OperatorInput) -> Sequence[StateRows]:
        """Return the keys of the initial state in the first epoch, of this lane's key groups."""
        if self.spec.initial is None or data.epoch != FIRST_EPOCH:
            return ()
        keys = self._initial_keys()
        if not keys.num_rows:
            return ()
        hashes = self.hash_of(keys, data.num_key_groups)
        entries = StateRows(hashes=hashes, keys=keys, values=keys)
        if data.here is not None:
            own = data.here[key_groups_of(hashes, data.num_key_groups)]
            entries = entries.take(np.flatnonzero(own))
        return (entries,)

    def call_keys(
        self,
        data: OperatorInput,
        lane: LaneKeys,
        *,
        cells: Mapping[str, Cells],
        called: list[CalledKey],
        meter: Meter,
        groups: Groups,
        restore: Callable[[int], None],
    ) -> pa.RecordBatch:
        """Call the processor for every key of a lane; return the rows that it emitted."""
        form = form_of(
            self.spec.form,
            zone=self.zone,
            output=self.output,
            max_chunk=self.spec.max_chunk,
            max_bytes=self.spec.max_bytes,
        )
        processor = cloudpickle.loads(self.spec.pickled)
        times = times_of(self.spec.time_mode, data.time)
        place = Place()
        by_variable = {name: cells[state_name(name)] for name in self._variables}
        handle = _CheckedHandle(self, by_variable, place)
        with _naming_errors(self.name, processor.init, None, "init(handle)"):
            processor.init(handle)
        handle.state = "INITIALIZED"
        rows, of_keys = self.shown_rows(data), self.columns_of_keys(data, lane)
        batches = partial(form.batches, rows, groups.order, lane.starts, of_keys)
        keys = form.keys(lane.keys.select(self.keys.names), lane.tuples)
        due = self.due_us(data.time)
        calls = _Calls(
            self,
            processor,
            _Rows(processor, rows.schema.names, batches),
            # Calls of a key may be repeated.
            {key: list(rows) for key, rows in self._initial_rows(data, form).items()},
            handle=handle,
            place=place,
            times=times,
            due=due,
            key_names=list(self.columns.key_shown or self.keys.names),
        )
        runner = KeyCalls(self, lane, called, restore)
        if self.clock is None and not calls.initial and lane.failed is None:
            call = calls.of_rows(keys)
            runner.run_one_each(keys, meter, processor.handleInputRows, _ROWS_CALL, call)
        else:
            runner.run(
                keys, meter, lambda group: calls.of_key(group, keys[group], called[group].timers)
            )
        place.group = -1
        handle.state = "TIMER_PROCESSED"
        with _naming_errors(self.name, processor.close, None, "close()"):
            processor.close()
        return runner.to_batch(form, processor.handleInputRows, due)

    def _initial_keys(self) -> pa.RecordBatch:
        """Return the key of each row of the initial state."""
        assert self.spec.initial is not None, "the caller has checked that there is initial state"
        named = self.spec.initial.keys.rename_columns(self.keys.names).cast(self.keys)
        return batch_of(named)

    def _initial_rows(self, data: OperatorInput, form: RowForm) -> Mapping[Any, Iterator[Any]]:
        """Return key → rows of its initial state, in the first epoch; else nothing."""
        if self.spec.initial is None or data.epoch != FIRST_EPOCH:
            return {}
        return form.by_key(self._initial_keys(), batch_of(self.spec.initial.rows))


class _Rows:
    """Rows of each key, for the current ``handleInputRows``."""

    def __init__(
        self,
        processor: Any,
        names: list[str],  # of the columns of rows
        batches: Callable[[tuple[str, ...] | None], KeyBatches],  # by the columns that are read
    ) -> None:
        self._processor, self._names, self._batches = processor, names, batches
        self._by_function: dict[Any, KeyBatches] = {}
        self._method = processor.handleInputRows
        self._batches_of_method = self._rows_for_method(self._method)

    def of_key(self, group: int) -> Iterator[Any] | None:
        """Return the rows of key number `group`; ``None`` if it has none."""
        method = self._processor.handleInputRows
        if method != self._method:
            self._batches_of_method = self._rows_for_method(method)
            self._method = method
        return self._batches_of_method.rows(group)

    def _rows_for_method(self, method: Any) -> KeyBatches:
        """Return the rows for a method, which a processor may replace at any time."""
        function = method.__func__ if type(method) is MethodType else None
        batches = self._by_function.get(function)
        if batches is None:
            bound = None if function is None else method
            read = columns_read(bound, _ROWS, self._names, row=Row)
            batches = self._by_function[function] = self._batches(read)
        return batches


class _Calls:
    """The calls for the keys of one lane and epoch."""

    def __init__(
        self,
        operator: TransformOperator,
        processor: Any,
        rows: _Rows,
        initial: Mapping[Any, Iterable[Any]],  # key → rows of its initial state
        *,
        handle: LaneHandle,
        place: Place,
        times: TimerValues,
        due: int,  # timers up to and including this time fire, as they are stored
        key_names: list[str],
    ) -> None:
        self._operator, self._processor, self._rows = operator, processor, rows
        self.initial, self._handle, self._place = initial, handle, place
        self._timer_times, self._due_timers = times, due
        self._key_row = Row(*key_names)

    def of_rows(self, keys: Sequence[tuple[Any, ...]]) -> Callable[[int], Iterable[Any]]:
        """Return the function that calls ``handleInputRows`` for a key, by its number."""
        place, processor, times, rows_of = (
            self._place,
            self._processor,
            self._timer_times,
            self._rows,
        )

        def call(group: int) -> Iterable[Any]:
            """Call it for the rows of a key; return the emitted rows."""
            place.group = group
            rows = rows_of.of_key(group)
            if rows is None:
                return ()
            emitted: Iterable[Any] = processor.handleInputRows(keys[group], rows, times)
            return emitted

        return call

    def of_key(self, group: int, key: tuple[Any, ...], timers: list[int]) -> Iterator[KeyCall]:
        """Yield the calls for one key: initial state, rows, due timers.

        Timers fire earliest first.  One that such a call sets or deletes makes no difference until
        the next epoch.
        """
        place, processor, times = self._place, self._processor, self._timer_times
        place.group, place.timers = group, timers
        for state in self.initial.get(key, ()):
            yield KeyCall(
                processor.handleInitialState,
                partial(self._set_initial_state, key, state),
                "handleInitialState(key, initialState, ...)",
                diverts=False,
            )
        rows = self._rows.of_key(group)
        if rows is not None:
            yield KeyCall(
                processor.handleInputRows,
                partial(processor.handleInputRows, key, rows, times),
                _ROWS_CALL,
                has_rows=True,
            )
        for time in [time for time in timers if time <= self._due_timers]:
            expiry_ms = (time + self._operator.shift_us) // 1000
            yield KeyCall(
                processor.handleExpiredTimer,
                partial(self._fire_timer, key, expiry_ms),
                "handleExpiredTimer(key, timerValues, ...)",
                after_failure=partial(self._handle.deleteTimer, expiry_ms),
            )

    def _set_initial_state(self, key: tuple[Any, ...], state: Any) -> tuple[()]:
        """Call ``handleInitialState``, which emits nothing."""
        self._processor.handleInitialState(key, state, self._timer_times)
        return ()

    def _fire_timer(self, key: tuple[Any, ...], expiry_ms: int) -> Iterator[Any]:
        """Call ``handleExpiredTimer``, and delete the timer."""
        yield from self._processor.handleExpiredTimer(
            key=self._key_row(*key),
            timerValues=self._timer_times,
            expiredTimerInfo=ExpiredTimerInfo(expiry_ms),
        )
        self._handle.deleteTimer(expiry_ms)


class _CheckedHandle(LaneHandle):
    """Handle of a lane that permits only variables that ``init`` declared on the driver."""

    def __init__(
        self,
        operator: TransformOperator,
        cells: Mapping[str, Cells],
        place: Place,
    ) -> None:
        spec = operator.spec
        super().__init__(spec.time_mode, cells, place, operator.shift_us, shortest=spec.shortest)
        self._operator = operator

    def _declare_variable(self, *args: Any) -> Variable:
        variable = super()._declare_variable(*args)
        spec = self._operator.spec
        known = {declared.name: declared for declared in spec.variables}.get(variable.name)
        if known != variable and variable.name not in spec.deleted:
            raise UserFunctionError(
                f"Operator {self._operator.name!r}: {spec.name}.init declares state "
                f"{variable.name!r} differently than on the driver.",
                remedy="Declare the same states in every call of init.",
                operator=self._operator.name,
                state=variable.name,
            )
        return variable


def times_of(mode: TimeMode, time: EpochTime) -> TimerValues:
    """Return the times of an epoch for a processor."""
    if mode == "None":
        return TimerValues(-1, -1)
    return TimerValues(time.clock // 1000, watermark_ms(time.until))


@contextlib.contextmanager
def _naming_errors(
    operator: str, function: Callable[..., Any], key: tuple[Any, ...] | None, called: str
) -> Iterator[None]:
    """Context that names the operator and the call in an error of the processor's."""
    try:
        yield
    except BaseException as error:
        raise function_failed(
            operator, function, key, error, called=called, rows_of="its lane"
        ) from error
