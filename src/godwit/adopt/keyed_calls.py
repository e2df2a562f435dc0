"""Entry points of the core for functions written for Spark's streams.

``stream.key_by(...).transform_with_state(...)`` and ``.apply_in_pandas_with_state(...)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.adopt import group_state, stateful_processor
from godwit.adopt.group_state import GroupStateOperator
from godwit.adopt.spark_functions import RowColumns, function_node
from godwit.adopt.spark_rows import read_spark_schema
from godwit.adopt.stateful_processor import InitialTable, TransformOperator
from godwit.api.checks import operator_fields
from godwit.api.streams import add_to_flow
from godwit.columns.types import to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import did_you_mean, listing, type_name
from godwit.plan.event_times import time_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.api.declarations import Identity
    from godwit.api.streams import KeyedStream, Stream
    from godwit.columns.types import SchemaLike

_OUTPUT_MODES = ("append", "update")


@user_call
def transform_with_state(
    stream: KeyedStream,
    processor: Any,
    *,
    output: SchemaLike,
    time_mode: str = "None",
    output_mode: str = "Append",
    initial_state: Any = None,
    pandas: bool = False,
    name: str | Identity | None = None,
) -> Stream:
    """Call a ``StatefulProcessor`` written for Spark's ``transformWithState``, unchanged.

    Parameters
    ----------
    processor
        Instance of a subclass of ``pyspark.sql.streaming.StatefulProcessor``. It is pickled, as
        Spark does; every lane (parallel task) of an epoch unpickles it, and calls its ``init``.
    output
        Columns of the rows that it returns, as text, a PySpark ``StructType``, or any other schema
        that `KeyedStream.process` takes.
    time_mode
        Clock of timers: ``"None"``, ``"ProcessingTime"`` or ``"EventTime"``. With ``"EventTime"``
        rows that the watermark had reached before the epoch are left out.
    output_mode
        ``"Append"`` or ``"Update"``; the rows are those that the processor returns either way.
    initial_state
        Rows with which the first epoch of the checkpoint calls ``handleInitialState``: an Arrow
        table, a pandas or PySpark DataFrame, or a list of dicts, with the key columns. They travel
        with the flow, so keep them to some 100 MB.
    pandas
        ``True``: rows are pandas DataFrames, as of ``transformWithStateInPandas``. By default they
        are ``Row`` objects.
    name
        The operator's name, as of `KeyedStream.process`.

    Returns
    -------
    Stream
        The rows that the processor returns.

    Raises
    ------
    InvalidFlowError
        If an argument is wrong, or the processor cannot be pickled.
    UserFunctionError
        If ``init`` of the processor raises, as for a time-to-live without processing time.
    """
    fields = operator_fields(
        stream.node,
        stream.keys,
        name,
        type(processor).__name__,
        partition_by=stream.partition_by,
    )
    where = f"transform_with_state of operator {fields['name']!r}"
    _check_keys(stream, where)
    _check_output_mode(output_mode, where)
    initial = None
    if initial_state is not None:
        rows = _to_arrow_table(initial_state, where)
        _check_initial(rows, stream.keys, where)
        initial = InitialTable(keys=rows.select(list(stream.keys)), rows=rows)
    spec = stateful_processor.spec_of(
        processor,
        time_mode=time_mode,
        pandas=pandas,
        initial=initial,
        where=where,
        operator=fields["name"],
    )
    node = function_node(
        TransformOperator,
        spec,
        _row_columns(stream, spec.timing.clock, where),
        output=to_schema(output, where=f"The output of operator {fields['name']!r}"),
        action=f"process with {spec.name}, {spec.states_text}",
        **fields,
    )
    return add_to_flow(stream.flow, node)


@user_call
def apply_in_pandas_with_state(
    stream: KeyedStream,
    function: Callable[..., Any],
    *,
    output: SchemaLike,
    state: Any,
    output_mode: str = "Append",
    timeout: str = "NoTimeout",
    name: str | Identity | None = None,
) -> Stream:
    """Call a function written for Spark's ``applyInPandasWithState``, unchanged.

    Parameters
    ----------
    function
        Called as ``function(key, frames, state)`` for every key with rows, and for every key that
        has timed out: a tuple of the key's values, an iterator of pandas DataFrames, and a
        ``pyspark.sql.streaming.state.GroupState``. Returns an iterable of DataFrames.
    output
        Columns of the DataFrames that it returns; see `KeyedStream.process`.
    state
        Schema of the state: text, or a PySpark ``StructType``.
    output_mode
        ``"Append"`` or ``"Update"``; the rows are those that the function returns either way.
    timeout
        ``"NoTimeout"``, ``"ProcessingTimeTimeout"`` or ``"EventTimeTimeout"``.
    name
        The operator's name, as of `KeyedStream.process`.

    Returns
    -------
    Stream
        The rows that the function returns.

    Raises
    ------
    InvalidFlowError
        If an argument is wrong, or the function cannot be pickled.
    """
    fields = operator_fields(
        stream.node,
        stream.keys,
        name,
        getattr(function, "__name__", type(function).__name__),
        partition_by=stream.partition_by,
    )
    where = f"apply_in_pandas_with_state of operator {fields['name']!r}"
    _check_keys(stream, where)
    _check_output_mode(output_mode, where)
    schema = read_spark_schema(state, f"The state of operator {fields['name']!r}")
    spec = group_state.spec_of(function, schema=schema, timeout=str(timeout), where=where)
    node = function_node(
        GroupStateOperator,
        spec,
        _row_columns(stream, spec.timing.clock, where),
        output=to_schema(output, where=f"The output of operator {fields['name']!r}"),
        action=f"process with {spec.name}, group state",
        **fields,
    )
    return add_to_flow(stream.flow, node)


def _row_columns(stream: KeyedStream, clock: str | None, where: str) -> RowColumns:
    """Return the columns of a stream's rows; raise if timers need an event time that it lacks."""
    times = time_columns(stream.node)
    if clock == "event" and len(times) != 1:
        described_times = f"the event times {listing(times)}" if times else "no event time"
        raise InvalidFlowError(
            f"{where} has timers of event time, but its stream has {described_times}.",
            remedy="Give the event-time column and the maximum lateness, as in "
            'flow.source("events", df, event_time="ts", slack="10 minutes").',
        )
    return RowColumns(event_time=times[0] if len(times) == 1 else None)


def _check_keys(stream: KeyedStream, where: str) -> None:
    """Raise if the stream has no key columns."""
    if not stream.keys:
        raise InvalidFlowError(
            f"{where} has a stream without key columns.",
            remedy="Give the key columns in key_by(...).",
        )


def _check_output_mode(mode: object, where: str) -> None:
    """Raise for an output mode other than append and update."""
    if str(mode).lower() not in _OUTPUT_MODES:
        raise InvalidFlowError(
            f"{where} has output_mode={mode!r}.", remedy="Give 'Append' or 'Update'."
        )


def _check_initial(initial: pa.Table, keys: tuple[str, ...], where: str) -> None:
    """Raise if the initial state lacks a column of the key."""
    missing = [key for key in keys if key not in initial.schema.names]
    if missing:
        raise InvalidFlowError(
            f"{where}: the initial state lacks the key column {missing[0]!r}.",
            remedy=f"{did_you_mean(missing[0], initial.schema.names)}It has "
            f"{listing(initial.schema.names)}.",
        )


def _to_arrow_table(rows: Any, where: str) -> pa.Table:
    """Convert rows, in any supported form, to an Arrow table."""
    grouped = getattr(rows, "_df", None)  # of df.groupBy(...)
    rows = rows if grouped is None else grouped
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, list):
        return pa.Table.from_pylist(rows)
    if hasattr(rows, "toArrow"):  # a DataFrame of Spark's
        if rows.isStreaming:
            raise InvalidFlowError(
                f"{where}: the initial state is a streaming DataFrame.",
                remedy="Give a static DataFrame.",
            )
        table: pa.Table = rows.toArrow()
        return table
    if hasattr(rows, "to_numpy"):  # of pandas
        return pa.Table.from_pandas(rows, preserve_index=False)
    raise InvalidFlowError(
        f"{where}: the initial state is a value of type {type_name(rows)}.",
        remedy="Give an Arrow table, a pandas or PySpark DataFrame, or a list of dicts.",
    )
