"""State and progress of a stopped Spark query, as the state that a flow begins with.

Problem: a query that has run for months has its state in Spark's state stores, and its progress in
Spark's logs.  To start it from nothing loses both.

Spark's own state reader gives the state of the last committed batch as a DataFrame: of an
aggregate, a row for every group, with the group keys and the buffers of the functions in the order
of the plan.  The group keys become the operator's columns by the same expressions as the rows of
the stream do, and each buffer becomes the state of the aggregate that stands for the function.
Names and types of all buffers are compared with those of the plan, so another query is refused.

The progress is copied as Spark wrote it: the offsets of the last committed batch, of a batch that
was planned after it, and the logs of the sources.  Spark's engine continues after them.

Invariant: the old checkpoint is only read, and the new one begins with all of it or none (the
commit of epoch 0, `godwit.engine.initial_state`).

Source: `StateStoreSaveExec`, `OffsetSeqLog`, `CommitLog` and the ``statestore`` source of Spark.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import DecimalType

from godwit.adopt.aggregate_functions import REPLACED, is_nested
from godwit.adopt.plan import Catalyst, analysed, children_of, kind_of, to_list, type_of
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.ownership import stored_identity
from godwit.checkpoint.records import BatchRef, StateId
from godwit.checkpoint.spark_log import SPARK, log_offset, offsets_in
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.initial_state import InitialPosition, InitialState
from godwit.model.errors import CheckpointError, CorruptCheckpointError, UnsupportedQueryError
from godwit.model.locations import hadoop_location
from godwit.model.naming import RESERVED_PREFIX, listing
from godwit.operators.operator import STATE
from godwit.spark.initial_rows import rows_of_dataframe
from godwit.time.grid import END

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from godwit.adopt.lanes import AggregateState
    from godwit.adopt.translate import AdoptedQuery
    from godwit.plan.compiled import CompiledFlow

_AGGREGATE_FORMAT: Final = "spark.sql.streaming.aggregation.stateFormatVersion"
_PANE: Final = f"{RESERVED_PREFIX}_pane"
_ENDS: Final = (f"{RESERVED_PREFIX}_first", f"{RESERVED_PREFIX}_last")
_ALL: Final = 1 << 20
"""More partitions than a state has: a coalesce to this number changes nothing, and keeps Spark's
optimizer from looking up fields of a struct by name, right above the reader.  The state of two sums
has two fields of one name, and Spark would read one of them for both."""
_SAVES: Final = {False: "stateStoreSave", True: "sessionWindowStateStoreSaveExec"}
"""Spark's name of the operator that keeps groups, or sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedQuery:
    """Progress of a Spark query in its checkpoint's logs."""

    query_id: str
    batch: int  # the last committed batch
    offsets: bytes  # its entry in the log of offsets
    # files of the logs that the query's engine reads at its next start: path → content
    files: Mapping[str, bytes]
    settings: Mapping[str, str]  # that the batch ran under
    closed_ms: int  # watermark that the batch removed state by
    watermark_ms: int  # that of the next batch
    num_sources: int


def read_progress(location: str) -> StoppedQuery:
    """Read the logs of a stopped Spark query.

    Raises `CheckpointError` if there is no Spark query, it has committed no batch, or its logs have
    a format that is not known.
    """
    storage = CheckpointStorage.open(location)
    metadata = _file(storage, "metadata")
    if metadata is None:
        raise CheckpointError(
            f"There is no checkpoint of a Spark query at {storage.uri!r}: no file 'metadata'.",
            remedy="Give the checkpointLocation of the query.",
            uri=storage.uri,
        )
    done, planned = (_numbers(storage, name) for name in ("commits", "offsets"))
    if not done:
        raise CheckpointError(
            f"The Spark query at {storage.uri!r} has committed no batch.",
            remedy="Start the query without from_spark_checkpoint(...).",
            uri=storage.uri,
        )
    batch = max(done)
    files: dict[str, bytes] = {}
    for directory, numbers in (("offsets", planned), ("commits", done)):
        for number in numbers:
            if number >= batch - 1:
                content = _file(storage, f"{directory}/{number}")
                assert content is not None, "it is listed"
                files[f"{directory}/{number}"] = content
    offsets = files.get(f"offsets/{batch}")
    if offsets is None:
        raise CheckpointError(
            f"The log of the Spark query at {storage.uri!r} has no offsets of batch {batch}, its "
            "last.",
            remedy="Restore the file from a copy.",
            uri=storage.uri,
        )
    version, head = offsets.splitlines()[:2]
    lines = offsets_in(offsets)
    if version != b"v1":
        raise CheckpointError(
            f"The log of offsets at {storage.uri!r} has version {version.decode()!r}, not 'v1'.",
            remedy="Let the query run once more with "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution=false.",
            uri=storage.uri,
        )
    if any(log_offset(line) is not None for line in lines):
        for path in _listed(storage, "sources"):
            content = _file(storage, path)
            if content is not None:
                files[path] = content
    begun = json.loads(head)
    ended = json.loads(files[f"commits/{batch}"].splitlines()[1])
    return StoppedQuery(
        query_id=str(json.loads(metadata)["id"]),
        batch=batch,
        offsets=offsets,
        files=files,
        settings=begun.get("conf", {}),
        closed_ms=int(begun.get("batchWatermarkMs", 0)),
        watermark_ms=int(ended.get("nextBatchWatermarkMs", 0)),
        num_sources=len(set(lines)),
    )


def began_in_spark(checkpoint: str) -> bool:
    """Return whether a checkpoint has begun with the state of a Spark query."""
    identity = stored_identity(CheckpointStorage.open(checkpoint))
    return identity is not None and identity.batches_before > 0


def has_epochs(checkpoint: str, former: str) -> bool:
    """Return whether a checkpoint has begun with the state of a Spark query.

    `former`: the checkpoint of that query. Raises `CheckpointError` if it has begun without.
    """
    storage = CheckpointStorage.open(checkpoint)
    identity = stored_identity(storage)
    if identity is None or CommitLog.open_read_only(storage).latest is None:
        return False
    if not identity.batches_before:
        raise CheckpointError(
            f"The checkpoint {storage.uri!r} has epochs that began without the state of the Spark "
            f"query at {former!r}.",
            remedy="Give a new checkpointLocation, or leave from_spark_checkpoint(...) out.",
            uri=storage.uri,
        )
    return True


def initial_state_from(
    location: str, spark: SparkSession, query: AdoptedQuery, flow: CompiledFlow
) -> InitialState:
    """Return the state and progress of a stopped Spark query for the flow of the same query.

    Raises `CheckpointError` if it is of another query, or runs; `UnsupportedQueryError` if a part
    of its state cannot be adopted.
    """
    progress = read_progress(location)
    _check_stopped(spark, progress, location)
    sources = _sources_of(query)
    if sources > 1:
        raise UnsupportedQueryError(
            f"The query reads {sources} streams, and Spark's log does not name them.",
            remedy="Start it without its state.",
            node="from_spark_checkpoint",
            place="",
        )
    reader = _reading_session(spark)
    described = _operators_in(reader, location)
    aggregates = {state.operator: state for state in query.aggregates}
    stateful = [o for o in flow.operators if not o.stateless and not o.part_of]
    others = [o.name for o in stateful if o.name not in aggregates or len(stateful) > 1]
    if others:
        raise UnsupportedQueryError(
            f"The state of {listing(others)} cannot be imported from Spark.",
            remedy="The state of one aggregate can. Start the query without its state.",
            node="from_spark_checkpoint",
            place="",
        )
    expected = [_SAVES[aggregates[o.name].session is not None] for o in stateful]
    if expected != [name for _, name in described]:
        raise _other_query(
            location,
            f"it has the operators {listing([n for _, n in described]) or '(none)'}, and this one "
            f"has {listing(expected) or '(none)'}",
        )
    rows = {}
    for operator, (number, _) in zip(stateful, described, strict=True):
        stored = _read(reader, "statestore", location, batchId=progress.batch, operatorId=number)
        stored = stored.coalesce(_ALL)
        frame = _state_rows(
            stored,
            aggregates[operator.name],
            operator.schema.values.names,
            location=location,
            has_keys=progress.settings.get(_AGGREGATE_FORMAT) == "1",
        )
        read = rows_of_dataframe(frame)
        assert read is not None, "it is a DataFrame"
        rows[StateId(operator.name, STATE)] = read
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
            prepare=partial(_copy_logs, progress),
        ),
    )


def _copy_logs(progress: StoppedQuery, storage: CheckpointStorage) -> None:
    """Write the logs of Spark's engine into a new checkpoint."""
    for directory in _log_directories(storage):
        for path in storage.list(directory):
            storage.delete(path)
    for path, content in progress.files.items():
        storage.write_atomic(f"{SPARK}/{path}", content)


def _log_directories(storage: CheckpointStorage) -> list[str]:
    """Return the directories of Spark's logs in a checkpoint: a start that failed may have some."""
    sources = [f"{SPARK}/sources/{number}" for number in range(64)]
    return [f"{SPARK}/offsets", f"{SPARK}/commits", *(d for d in sources if storage.list(d))]


def _reading_session(spark: SparkSession) -> SparkSession:
    """Return a session of the same application that reads structs as a whole; see `_ALL`."""
    session = spark.newSession()
    for name in ("nestedSchemaPruning", "expression.nestedPruning"):
        session.conf.set(f"spark.sql.optimizer.{name}.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def _check_stopped(spark: SparkSession, progress: StoppedQuery, location: str) -> None:
    """Raise if the query is active in this application."""
    if any(str(query.id) == progress.query_id for query in spark.streams.active):
        raise CheckpointError(
            f"The Spark query of the checkpoint {location!r} is running.",
            remedy="Stop it first: what it processes meanwhile would be processed twice.",
            uri=location,
        )


def _sources_of(query: AdoptedQuery) -> int:
    """Return the number of different streams that a query reads."""
    streams: list[Any] = []
    for frame in query.flow.sources.values():
        pending = [analysed(frame)]
        while pending:
            node = pending.pop()
            pending += children_of(node)
            if kind_of(node) in {"StreamingRelation", "StreamingRelationV2"} and not any(
                node.equals(known) or node.sameResult(known) for known in streams
            ):
                streams.append(node)
    return len(streams)


def _operators_in(spark: SparkSession, location: str) -> list[tuple[int, str]]:
    """Return the number and Spark's name of each operator with state in a checkpoint."""
    rows = _read(spark, "state-metadata", location).select("operatorId", "operatorName").distinct()
    return sorted((int(row[0]), str(row[1])) for row in rows.collect())


def _read(spark: SparkSession, format: str, location: str, **options: Any) -> DataFrame:  # noqa: A002
    """Read a checkpoint by one of Spark's readers; raise `CheckpointError` if Spark cannot."""
    reader = spark.read.format(format)
    for name, value in options.items():
        reader = reader.option(name, value)
    try:
        return reader.load(hadoop_location(location))
    except PySparkException as error:
        raise CheckpointError(
            f"Spark cannot read the state of the query at {location!r}: "
            f"{str(error).splitlines()[0]}",
            remedy="Check that the checkpoint is complete, and was written by Spark 4.0 or later.",
            uri=location,
        ) from error


def _state_rows(
    stored: DataFrame,
    state: AggregateState,
    columns: Sequence[str],
    *,
    location: str,
    has_keys: bool,
) -> DataFrame:
    """Return the groups of one operator as rows of the state of its aggregates.

    `stored`: Spark's state. `columns`: state columns of the flow's operator. `has_keys`: the values
    of Spark's state begin with the group keys, as those of sessions always do.
    """
    spark = stored.sparkSession
    catalyst = Catalyst(spark)
    plan = analysed(stored)
    key, value = to_list(plan.output())[:2]
    has_keys = has_keys or state.session is not None
    groups, first = (value, len(state.grouping)) if has_keys else (key, 0)
    functions = [_function_of(function) for _, function in state.results]
    buffers = [_buffer_types(function) for function in functions]
    _check_columns(
        location,
        state,
        groups=[str(field.dataType().sql()) for field in groups.dataType().fields()],
        values=[str(field.dataType().sql()) for field in value.dataType().fields()],
        buffers=[text for of_function in buffers for text in of_function],
        first=first,
    )

    def change(expression: Any) -> Any:
        """Replace a group key by its column in Spark's state."""
        for number, grouping in enumerate(state.grouping):
            if expression.semanticEquals(grouping):
                return catalyst.field(groups, number)
        return None

    keys = [
        catalyst.alias(catalyst.rewrite(expression, change), name)
        for name, expression in state.keys
    ]
    count = sum(map(len, buffers))
    parts = [catalyst.alias(catalyst.field(value, first + i), f"_b{i}") for i in range(count)]
    frame = catalyst.dataframe(catalyst.project([*keys, *parts], plan))
    results: list[Column] = [sf.col(f"`{name}`") for name, _ in state.keys]
    if state.session is not None:
        results += [
            sf.col(f"`{name}`").alias(own) for name, own in zip(state.session, _ENDS, strict=True)
        ]
    elif not state.by_window:
        pane = sf.timestamp_micros(sf.lit(END))
        if state.removed_by is not None:
            end = sf.expr(f"`{state.removed_by}` - interval 1 microsecond")
            pane = sf.coalesce(end, pane)
        results.append(pane.alias(_PANE))
    position = 0
    for (name, expression), function, types in zip(state.results, functions, buffers, strict=True):
        own = [sf.col(f"_b{position + i}") for i in range(len(types))]
        position += len(types)
        for part, column in _state_of(expression, function, own).items():
            results.append(column.alias(name if name in columns else f"{name}__{part}"))
    if not state.results:  # of distinct rows
        results += [sf.lit(1).cast("long").alias(name) for name in columns]
    return frame.select(*results)


def _check_columns(
    location: str,
    state: AggregateState,
    *,
    groups: Sequence[str],
    values: Sequence[str],
    buffers: Sequence[str],
    first: int,
) -> None:
    """Raise if Spark's state has other group keys or buffers than the plan; all are types."""
    keys = [str(expression.dataType().sql()) for expression in state.grouping]
    if [*groups[: len(keys)]] != keys or (not first and len(groups) != len(keys)):
        raise _other_query(
            location,
            f"it groups by {listing(groups) or 'nothing'}, and this one by {listing(keys)}",
        )
    stored = [*values[first:]]
    if stored != [*buffers] and (buffers or stored not in ([], ["VOID"])):
        raise _other_query(
            location,
            f"its aggregates have the buffers {listing(stored)}, and those of this one "
            f"{listing(buffers)}",
        )


def _other_query(location: str, difference: str) -> CheckpointError:
    """Return the error that a checkpoint is of another query."""
    return CheckpointError(
        f"The checkpoint {location!r} is of another Spark query: {difference}.",
        remedy="Give the query that wrote it, unchanged. Change it once it runs here.",
        uri=location,
    )


def _function_of(expression: Any) -> Any:
    """Return the function of an aggregate as Spark runs it."""
    function = expression.aggregateFunction()
    return function.replacement() if kind_of(function) in REPLACED else function


def _buffer_types(function: Any) -> list[str]:
    """Return the types of the columns of a function's buffer, as Spark runs the function."""
    if _unscaled(function) is not None:
        return ["BIGINT"] if kind_of(function) == "Sum" else ["DOUBLE", "BIGINT"]
    return [str(column.dataType().sql()) for column in to_list(function.aggBufferAttributes())]


def _unscaled(function: Any) -> int | None:
    """Return the scale of decimals that Spark adds up as whole numbers; ``None`` for others.

    Source: rule `DecimalAggregates` of Spark's optimizer.
    """
    if kind_of(function) not in {"Sum", "Average"}:
        return None
    dtype = type_of(children_of(function)[0])
    if not isinstance(dtype, DecimalType):
        return None
    digits = 18 - 10 if kind_of(function) == "Sum" else 15 - 4
    return dtype.scale if dtype.precision <= digits else None


def _scaled(number: Column, scale: int) -> Column:
    """Return a sum of whole numbers as the sum of the decimals that they stand for."""
    return number.cast("decimal(20,0)") * sf.lit(Decimal(1).scaleb(-scale))


def _state_of(expression: Any, function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state columns of an aggregate from the buffer of Spark's function."""
    kind = kind_of(function)
    convert = _CONVERSIONS.get(kind)
    if convert is None or (kind != "Count" and any(map(is_nested, children_of(function)))):
        raise UnsupportedQueryError(
            f"The state of {expression.sql()} cannot be imported: Spark stores it in its "
            "own format.",
            remedy="Start the query without its state.",
            node=kind,
            place="",
        )
    return convert(function, buffers)


def _sum(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of a sum: null without values."""
    if len(buffers) == 1:
        scale = _unscaled(function)
        return {"sum": buffers[0] if scale is None else _scaled(buffers[0], scale)}
    total, is_empty = buffers
    overflowed = sf.raise_error(sf.lit("a sum of decimals in Spark's state has overflowed"))
    known = sf.when(total.isNull(), overflowed).otherwise(total)
    return {"sum": sf.when(is_empty, sf.lit(None)).otherwise(known)}


def _mean(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of a mean: a sum, null without values, and a count."""
    total, count = buffers
    scale = _unscaled(function)
    total = total if scale is None else _scaled(total, scale)
    return {"sum": sf.when(count > 0, total), "count": count}


def _moments(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of a variance: count, mean and squared deviations."""
    del function
    count, mean, squares = buffers
    return {"count": count.cast("long"), "mean": mean, "m2": squares}


def _position(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of ``first`` or ``last``: the value, and whether any row was seen."""
    value, is_set = buffers
    known = sf.when(is_set, value)
    return {"value": known} if function.ignoreNulls() else {"value": known, "seen": is_set}


def _whole(*names: str) -> Callable[[Any, Sequence[Column]], dict[str, Column]]:
    """Return the conversion of a buffer whose columns are those of the state."""
    return lambda _, buffers: dict(zip(names, buffers, strict=True))


_CONVERSIONS: Final[dict[str, Callable[[Any, Sequence[Column]], dict[str, Column]]]] = {
    "Sum": _sum,
    "Count": _whole("count"),
    "Average": _mean,
    "Min": _whole("value"),
    "Max": _whole("value"),
    "MinBy": _whole("value", "by"),
    "MaxBy": _whole("value", "by"),
    "First": _position,
    "Last": _position,
    "StddevSamp": _moments,
    "StddevPop": _moments,
    "VarianceSamp": _moments,
    "VariancePop": _moments,
}
"""Spark's functions whose buffers have the values of a state."""


def _file(storage: CheckpointStorage, path: str) -> bytes | None:
    """Return the content of a file; ``None`` if it is missing."""
    try:
        content: bytes = storage.read(path).to_pybytes()
    except CorruptCheckpointError:
        return None
    return content


def _numbers(storage: CheckpointStorage, directory: str) -> list[int]:
    """Return the numbers of the entries of a log."""
    names = (path.rpartition("/")[2] for path in storage.list(directory))
    return sorted(int(name) for name in names if name.isdecimal())


def _listed(storage: CheckpointStorage, directory: str) -> list[str]:
    """Return the files of the sources' logs, without Hadoop's checksums and temporary files."""
    paths = [p for number in range(64) for p in storage.list(f"{directory}/{number}")]
    return [path for path in paths if path.rpartition("/")[2].removesuffix(".compact").isdecimal()]
