"""``applyInPandasWithState``: a function over pandas DataFrames with a ``GroupState``, unchanged.

The function gets PySpark's own `GroupState`, and what it does to it becomes the key's entry: the
value as a record of the state's schema, the time-out as the key's timer.  A key times out once the
clock is past its time-out, in the epoch after it if need be.

As under Spark, a call that neither changes the state nor sets a time-out leaves both as they are:
the former time-out stays, and a key that has timed out times out in every epoch until its function
removes the state or sets another time-out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pandas as pd
from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState

from godwit.adopt.row_forms import MAX_CHUNK, ArrowFrames
from godwit.adopt.spark_functions import (
    KeyCall,
    KeyCalls,
    SparkFunctionOperator,
    called_by_the_operator,
    dumps,
    watermark_ms,
)
from godwit.adopt.spark_rows import VALUE_TYPES, SparkRows, check_types, rows_of_json
from godwit.model.errors import InvalidFlowError
from godwit.operators.declared import ValueState
from godwit.operators.timers import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from godwit.checkpoint.evolution import StateDescription
    from godwit.columns.groups import Groups
    from godwit.library.calls import CalledKey, Meter
    from godwit.library.states.stored import Cells, LaneKeys
    from godwit.operators.operator import OperatorInput

STATE: Final = "group_state"
CLOCKS: Final = {
    "NoTimeout": None,
    "ProcessingTimeTimeout": "processing",
    "EventTimeTimeout": "event",
}
_NO_TIME: Final = GroupState.NO_TIMESTAMP
_CALL: Final = "function(key, frames, state)"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFunctionSpec:
    """A function with a ``GroupState``, and its settings. Picklable."""

    pickled: bytes  # the function, by cloudpickle
    name: str
    schema: str  # Spark schema of the state, as JSON
    timeout: str  # one of `CLOCKS`
    max_chunk: int = MAX_CHUNK  # maximum number of rows of a DataFrame
    shortest: bool = False  # texts of floats; see `SparkRows`

    @property
    def rows(self) -> SparkRows:
        """Conversion of the state to stored records."""
        return rows_of_json(self.schema, shortest=self.shortest)

    @property
    def timing(self) -> Timing:
        """Options of the operator's timers."""
        clock: Any = CLOCKS[self.timeout]
        on_timer = None if clock is None else called_by_the_operator
        return Timing(clock=clock, on_timer=on_timer, order="after_rows")

    @property
    def states(self) -> dict[str, ValueState[Any]]:
        """Declaration of the state."""
        return {STATE: ValueState(self.rows.record)}


def spec_of(
    function: Callable[..., Any],
    *,
    schema: StructType,
    timeout: str,
    where: str,
    max_chunk: int = MAX_CHUNK,
    shortest: bool = False,
) -> GroupFunctionSpec:
    """Return the spec of a function; raise `InvalidFlowError` if it cannot be pickled.

    `where`: the call, for errors. `shortest`: see `SparkRows`.
    """
    if timeout not in CLOCKS:
        raise InvalidFlowError(
            f"{where} has timeout={timeout!r}.", remedy=f"Give one of {', '.join(CLOCKS)}."
        )
    try:
        pickled = dumps(function)
    except Exception as error:
        raise InvalidFlowError(
            f"{where}: the function cannot be pickled: {error}.",
            remedy="Create objects that cannot be pickled inside the function.",
        ) from error
    return GroupFunctionSpec(
        pickled=pickled,
        name=getattr(function, "__name__", type(function).__qualname__),
        schema=schema.json(),
        timeout=timeout,
        max_chunk=max_chunk,
        shortest=shortest,
    )


class GroupStateOperator(SparkFunctionOperator):
    """A function called for each key with its rows as DataFrames, and its ``GroupState``."""

    def __init__(self, spec: GroupFunctionSpec, **options: Any) -> None:
        super().__init__(spec, states=spec.states, timing=spec.timing, **options)
        self.spec: GroupFunctionSpec = spec

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe the state for the checkpoint, with the Spark types of its columns."""
        described = super().describe_state(state)
        if state != STATE:
            return described
        means = {**described.means, VALUE_TYPES: self.spec.rows.types}
        return msgspec.structs.replace(described, means=means)

    def maker_of(self, state: str) -> Callable[[Any], Any] | None:
        """Return the function from Spark's value of a state to the stored one, if there is one."""
        return self.spec.rows.record_of_dict if state == STATE else None

    def check_stored_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        """Refuse a stored state whose columns have types that the current ones cannot hold."""
        where = f"the state of operator {self.name!r}"
        check_types(where, stored.means, today.means, operator=self.name, state=state)
        with_todays_means = msgspec.structs.replace(stored, means=today.means)
        super().check_stored_state(state, stored if state != STATE else with_todays_means, today)

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
        """Call the function for every key of a lane; return the rows that it emitted."""
        form = ArrowFrames(self.zone, self.output, self.spec.max_chunk)
        function = cloudpickle.loads(self.spec.pickled)
        batches = form.batches(self.shown_rows(data), groups.order, lane.starts, {})
        keys = form.keys(lane.keys.select(self.keys.names), lane.tuples)
        clock_ms, event_ms = data.time.clock // 1000, watermark_ms(data.time.until)
        due = self.due_us(data.time)
        calls = _Calls(self, function, cells[STATE], (clock_ms, event_ms))
        empty = [pd.DataFrame(columns=self.columns.shown or self.inputs.names)]

        def calls_of(group: int) -> Iterator[KeyCall]:
            """Yield the calls for a key: for its rows, and if it has timed out."""
            timers, rows = called[group].timers, batches.rows(group)
            call = partial(calls.call, group, keys[group], timers=timers)
            if rows is not None:
                run = partial(call, rows, timed_out=False)
                yield KeyCall(function, run, _CALL, has_rows=True)
            if timers and timers[0] <= due:
                # If the call fails, the time-out is gone.
                run = partial(call, empty, timed_out=True)
                yield KeyCall(function, run, _CALL, after_failure=timers.clear)

        key_calls = KeyCalls(self, lane, called, restore)
        key_calls.run(keys, meter, calls_of)
        return key_calls.to_batch(form, function, due)


class _Calls:
    """Calls of the function, and their changes of the state."""

    def __init__(
        self,
        operator: GroupStateOperator,
        function: Callable[..., Any],
        cells: Any,
        times: tuple[int, int],  # processing time and watermark, in milliseconds
    ) -> None:
        self._operator, self._function, self._cells = operator, function, cells
        self._clock_ms, self._event_ms = times
        self._rows = operator.spec.rows

    def call(
        self,
        group: int,
        key: tuple[Any, ...],
        frames: Iterable[pd.DataFrame],
        *,
        timers: list[int],
        timed_out: bool,
    ) -> list[pd.DataFrame]:
        """Call the function for one key; return the DataFrames that it returned."""
        record = self._cells.value_or_none(group)
        exists = record is not None
        value = self._rows.to_tuple(record) if exists else None
        state = GroupState(
            optionalValue=value,  # type: ignore[arg-type]
            batchProcessingTimeMs=self._clock_ms,
            eventTimeWatermarkMs=self._event_ms,
            timeoutConf=self._operator.spec.timeout,
            hasTimedOut=timed_out,
            watermarkPresent=self._operator.columns.event_time is not None,
            defined=exists,
            updated=False,
            removed=False,
            timeoutTimestamp=_NO_TIME,
            keyAsUnsafe=b"",
            valueSchema=self._rows.schema,
        )
        emitted = list(self._checked_frames(self._function(key, frames, state)))
        self._write_state(group, state, timers)
        return emitted

    def _checked_frames(self, result: Any) -> Iterator[pd.DataFrame]:
        """Yield the DataFrames of a result; raise as Spark's worker does for anything else."""
        if isinstance(result, pd.DataFrame) or not hasattr(result, "__iter__"):
            expected = "iterable of pandas.DataFrame" if hasattr(result, "__iter__") else "iterable"
            raise PySparkTypeError(
                errorClass="UDF_RETURN_TYPE",
                messageParameters={"expected": expected, "actual": type(result).__name__},
            )
        width = len(self._operator.output)
        for frame in result:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkTypeError(
                    errorClass="UDF_RETURN_TYPE",
                    messageParameters={
                        "expected": "iterator of pandas.DataFrame",
                        "actual": f"iterator of {type(frame).__name__}",
                    },
                )
            if len(frame.columns) != width and not (len(frame.columns) == 0 and frame.empty):
                raise PySparkRuntimeError(
                    errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                    messageParameters={"expected": str(width), "actual": str(len(frame.columns))},
                )
            yield frame

    def _write_state(self, group: int, state: GroupState, timers: list[int]) -> None:
        """Change the key's state and time-out as the function left them."""
        timeout = int(state._timeout_timestamp)  # noqa: SLF001 - what PySpark sends to the JVM
        removed, updated = state._removed, state._updated  # noqa: SLF001 - as above
        if not (removed or updated or timeout != _NO_TIME):
            return
        if state.exists and updated:
            self._cells.assign(group, self._rows.to_record(state.get))
        elif not state.exists:
            self._cells.drop(group)
        timers[:] = [] if timeout == _NO_TIME else [(timeout + 1) * 1000 - self._operator.shift_us]
