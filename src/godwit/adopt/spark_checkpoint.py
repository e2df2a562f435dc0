"""State and progress of a stopped Spark query, as the initial state of a flow.

Problem: a query that has run for months has its state in Spark's state stores, and its progress in
Spark's logs.  To start it from nothing loses both.

Spark's own state reader gives the state of the last committed batch, operator by operator.  The
operators of the plan are numbered as Spark numbers them, and each one's state is converted to that
of the operator of the flow by the parts of the plan that it was translated from (`spark_states`).
Names of operators, and the columns of keys and values, are compared with the plan, so another query
is refused.  The progress is copied (`spark_progress`).

Invariant: the old checkpoint is only read, and the new one begins with all of it or none (the
commit of epoch 0, `godwit.engine.initial_state`).

Source: the ``statestore`` source, and `IncrementalExecution`, of Spark.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.adopt.spark_buffers import aggregate_rows, converters_of
from godwit.adopt.spark_progress import StoppedQuery, arranged, copy_logs, read_progress
from godwit.adopt.spark_state_reader import SparkStateReader
from godwit.adopt.spark_states import AggregateState, FirstRowsState, FunctionState, LimitState
from godwit.adopt.spark_stored_rows import first_rows, joined_rows
from godwit.adopt.spark_variables import function_rows
from godwit.adopt.translate import POLICY
from godwit.checkpoint.records import BatchRef, StateId
from godwit.checkpoint.spark_log import offsets_in
from godwit.engine.initial_state import InitialPosition, InitialState
from godwit.library.compute import ComputeOperator
from godwit.model.errors import CheckpointError, UnsupportedQueryError
from godwit.model.naming import listing
from godwit.operators.operator import STATE
from godwit.spark.stages.source_plans import streams_in
from godwit.spark.stages.source_rows import feed_frames, feeds_of, rows_of_dataframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from godwit.adopt.spark_states import OperatorState
    from godwit.adopt.translate import AdoptedQuery
    from godwit.engine.initial_state import InitialRows
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow


def initial_state_from(
    location: str, dataframe: DataFrame, query: AdoptedQuery, flow: CompiledFlow
) -> InitialState:
    """Return the state and progress of a stopped Spark query for the flow of the same query.

    `dataframe`: the query. Raises `CheckpointError` if the checkpoint is of another query, or that
    runs; `UnsupportedQueryError` if a part of its state cannot be adopted.
    """
    spark, progress = dataframe.sparkSession, read_progress(location)
    _check_stopped(spark, progress, location)
    reader = SparkStateReader(spark, location, batch=progress.batch, settings=progress.settings)
    described = reader.operators()
    expected = [state.spark_operator for state in query.states]
    if expected != [name for _, name in described]:
        raise reader.other_query(
            f"it has the operators {listing([n for _, n in described]) or '(none)'}, but this "
            f"one has {listing(expected) or '(none)'}"
        )
    _check_policy(spark, progress, flow, location)
    frames = feed_frames(feeds_of(flow), query.flow.sources)
    lines = [stream for _, frame in frames for stream in streams_in(frame)]
    numbers = _stream_numbers([*streams_in(dataframe), *lines])
    split = len(numbers) - len(lines)
    progress = arranged(progress, numbers[:split], numbers[split:], location)
    rows: dict[StateId, InitialRows] = {}
    for state, (number, _) in zip(query.states, described, strict=True):
        operator = flow.operator(state.operator)
        for name, frame in _frames_of(reader, number, state, operator).items():
            read = rows_of_dataframe(frame)
            assert read is not None, "the plan has a DataFrame"
            if isinstance(state, AggregateState):
                read = _rows_with_collections(read, state, operator)
            rows[StateId(operator.name, name)] = read
    timed = progress.watermark_ms > 0
    return InitialState(
        rows=rows,
        origin=f"Spark query {progress.query_id}",
        position=InitialPosition(
            batch=BatchRef(
                number=progress.batch,
                digest=hashlib.sha256(b"\n".join(offsets_in(progress.offsets))).hexdigest(),
                offsets=progress.offsets,
            ),
            watermark_us=progress.watermark_ms * 1000 if timed else None,
            closed_us=progress.closed_ms * 1000 if timed else None,
            batches_before=progress.batch + 1,
            prepare=partial(copy_logs, progress),
        ),
    )


def _frames_of(
    reader: SparkStateReader, number: int, state: OperatorState, operator: KeyedOperator
) -> Mapping[str, DataFrame]:
    """Return state → its rows, of one operator; `number`: Spark's of the operator."""
    if isinstance(state, AggregateState):
        columns = operator.schema.values.names
        return {STATE: aggregate_rows(reader, number, state, columns)}
    if isinstance(state, FirstRowsState):
        return {STATE: first_rows(reader, number, state)}
    if isinstance(state, FunctionState):
        return function_rows(reader, number, state, operator)
    if isinstance(state, LimitState):
        raise UnsupportedQueryError(
            "GlobalLimit cannot continue from Spark's checkpoint: its row count cannot be "
            "imported.",
            remedy="Start the query without from_spark_checkpoint(...).",
            node="GlobalLimit",
        )
    return {STATE: joined_rows(reader, number, state)}


def _rows_with_collections(
    rows: InitialRows, state: AggregateState, operator: KeyedOperator
) -> InitialRows:
    """Return the rows of an aggregate with the collections of Spark's buffers as state."""
    assert isinstance(operator, ComputeOperator), "it is of aggregates"
    converters = converters_of(state, operator)
    if not converters:
        return rows

    def batches() -> Iterator[pa.RecordBatch]:
        """Yield the rows with converted columns."""
        for batch in rows.batches():
            columns = {
                name: converters[name](column) if name in converters else column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
            yield pa.RecordBatch.from_pydict(columns)

    return replace(rows, batches=batches)


def _stream_numbers(streams: Sequence[Any]) -> list[int]:
    """Return a number for each stream of a plan, the same for equal ones."""
    distinct: list[Any] = []
    numbers = []
    for stream in streams:
        number = next((n for n, known in enumerate(distinct) if known.equals(stream)), None)
        if number is None:
            number = len(distinct)
            distinct.append(stream)
        numbers.append(number)
    return numbers


def _check_policy(
    spark: SparkSession, progress: StoppedQuery, flow: CompiledFlow, location: str
) -> None:
    """Raise if the session's multiple-watermark policy differs from the query's."""
    was, now = progress.settings.get(POLICY, "min"), spark.conf.get(POLICY, "min")
    if len(flow.watermarks) > 1 and was != now:
        raise CheckpointError(
            f"The query of the checkpoint {location!r} ran with {POLICY}={was!r}, but the "
            f"session has {now!r}.",
            remedy=f"spark.conf.set({POLICY!r}, {was!r}).",
            uri=location,
        )


def _check_stopped(spark: SparkSession, progress: StoppedQuery, location: str) -> None:
    """Raise if the query is active in this application."""
    if any(str(query.id) == progress.query_id for query in spark.streams.active):
        raise CheckpointError(
            f"The Spark query of the checkpoint {location!r} is running.",
            remedy="Stop it first; otherwise rows would be processed twice.",
            uri=location,
        )
