"""Base of functions written for Spark that are called per key with named states.

Times are Spark's: a clock in whole milliseconds, and a watermark that is 1970 before the first one.
With an event-time clock, rows are left out that the watermark of the last epoch had reached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from godwit.columns.python_values import UTC
from godwit.library.emitted import emitted_or_undone
from godwit.library.states.operator import ProcessOfStates
from godwit.model.errors import EpochFailedError
from godwit.model.frames import function_failed
from godwit.operators.failed_calls import is_divertible
from godwit.operators.initial import VALUE
from godwit.plan.nodes import CustomNode
from godwit.time.event_time import Arrivals, Due

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.adopt.row_forms import RowForm
    from godwit.library.calls import CalledKey, Meter
    from godwit.library.states.stored import LaneKeys
    from godwit.model.errors import UserFunctionError
    from godwit.operators.declared import Declared
    from godwit.operators.operator import KeyedOperator, OperatorInput, OperatorOutput
    from godwit.operators.timers import Timing
    from godwit.time.event_time import EpochTime


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """Columns of an operator's input rows, by purpose."""

    names: tuple[str, ...] = ()  # that the function gets, in order; empty: all
    shown: tuple[str, ...] = ()  # names by which it gets these; empty: the same
    key_shown: tuple[str, ...] = ()  # likewise, of the key columns
    event_time: str | None = None  # by which rows are late
    only_time: str | None = None  # true in rows that move the watermark and do no more
    emitted_time: str | None = None  # of the output, whose times are past the watermark


def function_node(
    kind: type[SparkFunctionOperator],
    spec: Any,
    columns: RowColumns,
    *,
    output: pa.Schema,
    action: str,
    **fields: Any,  # of every keyed operator
) -> CustomNode:
    """Return the node of an operator that calls a Spark function."""
    new_operator = partial(
        _function_operator,
        kind,
        spec,
        columns,
        name=fields["name"],
        key_names=fields["keys"],
        output=output,
    )
    return CustomNode(
        make=new_operator, in_order=True, action=action, calls_function=True, **fields
    )


def _function_operator(
    kind: Callable[..., SparkFunctionOperator],
    spec: Any,
    columns: RowColumns,
    schemas: Sequence[pa.Schema],
    *,
    name: str,
    key_names: Sequence[str],
    output: pa.Schema,
) -> KeyedOperator:
    """Return the operator over a stream with these columns."""
    (schema,) = schemas
    names = dict.fromkeys(columns.names or schema.names)
    return kind(
        spec,
        name=name,
        keys=pa.schema([schema.field(key) for key in key_names]),
        inputs=pa.schema([schema.field(column) for column in names]),
        output=output,
        columns=columns,
    )


class KeyCall(NamedTuple):
    """One call of the user's code for a key."""

    function: Callable[..., Any]
    run: Callable[[], Iterable[Any]]  # calls it, and returns what it emits
    text: str  # the call, for errors
    has_rows: bool = False  # it gets the rows of the key
    diverts: bool = True  # False: an error is not about rows of the stream, and stops the query
    after_failure: Callable[[], None] = lambda: None  # runs instead of the call, if that failed


class SparkFunctionOperator(ProcessOfStates):
    """Base of operators that call a function written for Spark, for each key."""

    kind = "process"

    def __init__(
        self,
        spec: Any,  # the function, and how to call it; picklable
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,  # columns that the function gets, in order
        output: pa.Schema,
        columns: RowColumns,
        states: Mapping[str, Declared],
        timing: Timing,
        zone: str = UTC,
    ) -> None:
        super().__init__(
            name=name,
            keys=keys,
            inputs=inputs,
            function=called_by_the_operator,
            states=states,
            output=output,
            timing=timing,
            zone=zone,
        )
        self.spec, self.columns = spec, columns
        self.due_by_watermark = self.clock == "event"

    def __reduce__(self) -> tuple[Any, ...]:
        # The classes of its records exist once in a process, so they are not pickled.
        options = {
            "name": self.name,
            "keys": self.keys,
            "inputs": self.inputs,
            "output": self.output,
            "columns": self.columns,
        }
        placed = {
            name: self.__dict__[name]
            for name in ("partition_by", "partition_stated", "zone", "failures_to")
            if name in self.__dict__
        }
        return _rebuild_operator, (type(self), self.spec, options, placed)

    def initial_values(self, state: str, rows: pa.RecordBatch) -> list[Any]:
        """Return the values of a state in initial rows; structs have Spark's types."""
        make_value = self.maker_of(state)
        values = rows.column(VALUE) if VALUE in rows.schema.names else None
        if make_value is None or values is None or not pa.types.is_nested(values.type):
            return super().initial_values(state, rows)
        return [make_value(value) for value in values.to_pylist()]

    def maker_of(self, state: str) -> Callable[[Any], Any] | None:
        """Return the function from Spark's value of a state to the stored one, if there is one."""
        raise NotImplementedError

    def shown_rows(self, data: OperatorInput) -> pa.RecordBatch:
        """Return an epoch's rows with the column names for the function."""
        rows = data.rows.values
        if not self.columns.shown:
            return rows
        columns = [rows.column(name) for name in self.columns.names]
        return pa.RecordBatch.from_arrays(columns, names=list(self.columns.shown))

    def columns_of_keys(self, data: OperatorInput, lane: LaneKeys) -> dict[int, list[Any]]:
        """Return the value for each key of the columns of rows that are keys, by their numbers.

        Only those of types whose equal values are the same.
        """
        names = self.columns.names or data.rows.values.schema.names
        values = [*zip(*lane.tuples, strict=True)] if lane.tuples else []
        places = {
            field.name: place
            for place, field in enumerate(self.keys)
            if pa.types.is_string(field.type) or pa.types.is_integer(field.type)
        }
        return {
            number: list(values[places[name]])
            for number, name in enumerate(names)
            if name in places and values
        }

    @property
    def shift_us(self) -> int:
        """Microseconds by which a timer is stored early, to fire at the watermark itself."""
        return 1 if self.clock == "event" else 0

    def due_us(self, time: EpochTime) -> int:
        """Return the latest time of due timers, in microseconds."""
        if self.clock == "event":
            return watermark_ms(time.until) * 1000 - self.shift_us
        return time.clock

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Drop late rows, and those that only advance the watermark; return the own columns."""
        arrivals = None
        if self.columns.only_time is not None:
            rows = rows.filter(pc.invert(rows.column(self.columns.only_time)))
        if self.clock == "event" and self.columns.event_time is not None and rows.num_rows:
            times = rows.column(self.columns.event_time)
            micros = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
            reached = pc.less_equal(micros, watermark_ms(time.closed) * 1000).fill_null(False)
            late = pc.sum(reached).as_py()
            if late:
                rows, arrivals = rows.filter(pc.invert(reached)), Arrivals(late=late)
        own = self.keys.names
        others = [name for name in self.inputs.names if name not in own]
        return rows.select([*own, *others]), None, arrivals

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the function for every key with rows, due timers or expired state.

        With an event-time clock an epoch without input follows as soon as the watermark advances,
        as Spark runs a batch without data then: which rows are late depends on it. Until then a
        timer that was set for the past, when timers had fired, waits for rows.
        """
        time = replace(data.time, clock=data.time.clock // 1000 * 1000)
        output = super().process(replace(data, time=time))
        self._check_emitted(output.output, time)
        return replace(output, next_due=Due(event=time.until)) if self.due_by_watermark else output

    def _check_emitted(self, rows: pa.RecordBatch | None, time: EpochTime) -> None:
        """Raise `EpochFailedError` if emitted rows are late for the next operator, as in Spark."""
        if self.columns.emitted_time is None or rows is None or not rows.num_rows:
            return
        times = rows.column(self.columns.emitted_time)
        micros = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
        oldest = pc.min(micros).as_py()
        if oldest is not None and oldest <= watermark_ms(time.closed) * 1000:
            raise EpochFailedError(
                "[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] Operator "
                f"{self.name!r} emitted a row whose event time in {self.columns.emitted_time!r} "
                "is at the watermark or before it.",
                remedy="Emit rows with times after the watermark, as for Spark.",
                operator=self.name,
            )


class KeyCalls:
    """Runs the calls for the keys of one lane and epoch.

    With `Flow.divert_errors` a call that fails is left out, and the key's calls are repeated.
    """

    def __init__(
        self,
        operator: SparkFunctionOperator,
        lane: LaneKeys,
        called: Sequence[CalledKey],
        restore: Callable[[int], None],  # of a key's states
    ) -> None:
        self._operator, self._lane, self._called, self._restore = operator, lane, called, restore
        diverts = lane.failed is not None
        self._timers = [list(key.timers) for key in called] if diverts else []  # before the calls
        self._emitted: list[Any] = []
        self._emitted_up_to: list[int] = []  # number of emitted elements after each key

    def run(
        self,
        keys: Sequence[tuple[Any, ...]],  # as the user's code gets them
        meter: Meter,
        of_key: Callable[[int], Iterator[KeyCall]],  # the calls for a key, each after the last
    ) -> None:
        """Run the calls for every key."""
        begin = 0
        for end in meter.ends:
            for group in range(begin, end):
                self._emitted += self._call_key(keys[group], group, of_key)
                self._emitted_up_to.append(len(self._emitted))
            begin = end
            meter.end_key_group()

    def run_one_each(
        self,
        keys: Sequence[tuple[Any, ...]],  # as the user's code gets them
        meter: Meter,
        function: Callable[..., Any],
        text: str,  # the call, for errors
        call: Callable[[int], Iterable[Any]],  # calls the function for a key with rows
    ) -> None:
        """Run one call for every key: like `run`, if nothing else is due, and nothing diverted."""
        assert self._lane.failed is None, "a failed call stops the query"
        emitted, ends = self._emitted, self._emitted_up_to
        begin = group = 0
        try:
            for end in meter.ends:
                for group in range(begin, end):
                    emitted.extend(call(group))
                    ends.append(len(emitted))
                begin = end
                meter.end_key_group()
        except BaseException as error:
            name = self._operator.name
            raise function_failed(name, function, keys[group], error, called=text) from error

    def _call_key(
        self, key: tuple[Any, ...], group: int, of_key: Callable[[int], Iterator[KeyCall]]
    ) -> list[Any]:
        """Run all calls for a key, without those that fail and are diverted."""
        called, failed = self._called[group], self._lane.failed
        called.left_out = None if failed is None else ()
        while True:
            emitted: list[Any] = []
            for call in of_key(group):
                if called.left_out is not None and called.leaves_out_call():
                    call.after_failure()
                    continue
                try:
                    emitted += call.run()
                except BaseException as error:
                    if failed is None or not (call.diverts and is_divertible(error)):
                        raise function_failed(
                            self._operator.name, call.function, key, error, called=call.text
                        ) from error
                    span = self._row_span(group) if call.has_rows else (0, 0)
                    failed.add(call.function, error, span, self._lane.tuples[group], group)
                    called.left_out = {*(called.left_out or ()), called.calls}
                    self._restore(group)
                    called.restart(self._timers[group])
                    break
            else:
                return emitted

    def to_batch(self, form: RowForm, function: Callable[..., Any], due_us: int) -> pa.RecordBatch:
        """Return the emitted rows; undo the calls of keys of which some do not fit.

        `function`: named as the one that failed. `due_us`: timers up to it have fired.
        """
        failed = self._lane.failed

        def undo(group: int, error: UserFunctionError) -> None:
            """Undo the calls for a key."""
            assert failed is not None
            failed.forget(group)
            failed.add(function, error, self._row_span(group), self._lane.tuples[group], group)
            self._restore(group)
            self._called[group].restart([t for t in self._timers[group] if t > due_us])

        return emitted_or_undone(
            self._operator,
            self._emitted,
            self._emitted_up_to,
            self._lane.tuples,
            None if failed is None else undo,
            convert=form.to_batch,
        )

    def _row_span(self, group: int) -> tuple[int, int]:
        """Return the rows of a key."""
        return self._lane.starts[group], self._lane.starts[group + 1]


def called_by_the_operator(*_: object) -> None:
    """Do nothing: a placeholder, since the operator calls the function of its spec."""


def _rebuild_operator(kind: Any, spec: Any, options: dict[str, Any], placed: dict[str, Any]) -> Any:
    """Recreate an operator from its fields."""
    operator = kind(spec, **options)
    for name, value in placed.items():
        setattr(operator, name, value)
    return operator


def watermark_ms(time_us: int) -> int:
    """Return Spark's watermark in milliseconds: 0 before the first one."""
    return max(time_us // 1000, 0)


def dumps(value: Any) -> bytes:
    """Pickle a user's object as Spark does: classes of the main script and lambdas by value."""
    pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return pickled
