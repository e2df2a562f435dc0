"""Conversion of Spark's aggregate buffers to the state of Godwit's aggregates.

Spark has a row for every group, with the group keys and the buffers of the functions in the order
of the plan.  The group keys become the operator's columns by the same expressions as the rows of
the stream do.  The types of all buffers are compared with those of the plan.

Source: `StateStoreSaveExec`, and the aggregate functions of Spark.
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import DayTimeIntervalType, DecimalType, StructField, StructType

from godwit.adopt.aggregate_functions import REPLACED, is_nested
from godwit.adopt.plan import children_of, kind_of, to_list, type_of
from godwit.adopt.spark_collections import can_unpack, counts_in, lists_in
from godwit.library.aggregates.collected import PackedRows
from godwit.library.aggregates.packing import pack
from godwit.model.errors import UnsupportedQueryError
from godwit.model.naming import RESERVED_PREFIX, listing
from godwit.operators.ordering import starts_of
from godwit.spark.platform.pyspark_versions import arrow_schema_of
from godwit.time.grid import END

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from godwit.adopt.spark_state_reader import SparkState, SparkStateReader, StoredStruct
    from godwit.adopt.spark_states import AggregateState
    from godwit.library.compute import ComputeOperator

_AGGREGATE_FORMAT: Final = "spark.sql.streaming.aggregation.stateFormatVersion"
_PANE: Final = f"{RESERVED_PREFIX}_pane"
_ENDS: Final = (f"{RESERVED_PREFIX}_first", f"{RESERVED_PREFIX}_last")


def aggregate_rows(
    reader: SparkStateReader, number: int, state: AggregateState, columns: Sequence[str]
) -> DataFrame:
    """Return the groups of an operator, with the state of its aggregates, as rows.

    `columns`: state columns of the flow's operator.
    """
    catalyst, stored = reader.catalyst, reader.read(number)
    # The values of sessions, and of all groups in the first format, begin with the group keys.
    in_value = reader.settings.get(_AGGREGATE_FORMAT) == "1" or state.session is not None
    groups, first = (stored.value, len(state.grouping)) if in_value else (stored.key, 0)
    functions = [_function_of(function) for _, function in state.results]
    buffers = [_buffer_types(function) for function in functions]
    _check_columns(reader, state, stored, groups=groups, buffers=buffers, first=first)

    def change(expression: Any) -> Any:
        """Replace a group key by its column in Spark's state."""
        for place, grouping in enumerate(state.grouping):
            if expression.semanticEquals(grouping):
                return stored.field(groups, place)
        return None

    keys = [(name, catalyst.rewrite(expression, change)) for name, expression in state.keys]
    count = sum(map(len, buffers))
    parts = [(f"_b{i}", stored.field(stored.value, first + i)) for i in range(count)]
    frame = stored.select([*keys, *parts])
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
    reader: SparkStateReader,
    state: AggregateState,
    stored: SparkState,
    *,
    groups: StoredStruct,
    buffers: Sequence[Sequence[str]],  # types of each function's
    first: int,
) -> None:
    """Raise if Spark's state has other group keys or buffers than the plan."""
    keys = [type_of(expression).simpleString() for expression in state.grouping]
    if any(part in text for text in keys for part in ("array<", "map<")):
        raise UnsupportedQueryError(
            "The state of an aggregate grouped by arrays or maps cannot be imported.",
            remedy="Start the query without its state.",
            node="Aggregate",
            place="",
        )
    types = groups.types
    if [*types[: len(keys)]] != keys or (not first and len(types) != len(keys)):
        raise reader.other_query(
            f"it groups by {listing(types) or 'nothing'}, but this one by {listing(keys)}"
        )
    values = [*stored.value.types[first:]]
    planned = [text for own in buffers for text in own]
    if values != planned and (planned or values not in ([], ["void"])):
        raise reader.other_query(
            f"its aggregates have the buffers {listing(values)}, but those of this one "
            f"{listing(planned)}"
        )


def converters_of(
    state: AggregateState, operator: ComputeOperator
) -> Mapping[str, Callable[[pa.Array], pa.Array]]:
    """Return state column → function from a buffer of Spark's to it, for collections.

    Raises `UnsupportedQueryError` for values that are not read.
    """
    converters: dict[str, Callable[[pa.Array], pa.Array]] = {}
    for name, expression in state.results:
        function = _function_of(expression)
        convert = _COLLECTIONS.get(kind_of(function))
        if convert is None:
            continue
        values = StructType([StructField("values", type_of(children_of(function)[0]))])
        dtype = arrow_schema_of(values, zone="UTC").field(0).type
        bound = operator.aggregate_of(name)
        if not (isinstance(bound, PackedRows) and can_unpack(dtype)):
            raise _unreadable_buffer(expression, function)
        converters[name] = partial(convert, bound, dtype)
    return converters


def _collected_states(bound: PackedRows, dtype: pa.DataType, buffers: pa.Array) -> pa.Array:
    """Return the states of collected values."""
    groups, values = lists_in(buffers, dtype)
    return bound.update(bound.create(len(buffers)), groups, values).column(0)


def _counted_states(bound: PackedRows, dtype: pa.DataType, buffers: pa.Array) -> pa.Array:
    """Return the states of counted values."""
    groups, values, counts = counts_in(buffers, dtype)
    starts = starts_of(groups, len(buffers))
    states = bound.states(pack(starts, [values, pa.array(counts)], bound.layout))
    return bound.merge(bound.create(len(buffers)), states).column(0)


def _function_of(expression: Any) -> Any:
    """Return the function of an aggregate as Spark runs it."""
    function = expression.aggregateFunction()
    return function.replacement() if kind_of(function) in REPLACED else function


def _buffer_types(function: Any) -> list[str]:
    """Return the types of the columns of a function's buffer, as Spark runs the function."""
    if _scale_of_unscaled(function) is not None:
        return ["bigint"] if kind_of(function) == "Sum" else ["double", "bigint"]
    return [type_of(column).simpleString() for column in to_list(function.aggBufferAttributes())]


def _scale_of_unscaled(function: Any) -> int | None:
    """Return the scale of decimals that Spark adds up as integers; ``None`` for others.

    Source: rule `DecimalAggregates` of Spark's optimizer.
    """
    if kind_of(function) not in {"Sum", "Average"}:
        return None
    dtype = type_of(children_of(function)[0])
    if not isinstance(dtype, DecimalType):
        return None
    digits = 18 - 10 if kind_of(function) == "Sum" else 15 - 4
    return dtype.scale if dtype.precision <= digits else None


def _sum_as_decimal(number: Column, scale: int) -> Column:
    """Convert a sum of unscaled integers to a sum of decimals."""
    return number.cast("decimal(20,0)") * sf.lit(Decimal(1).scaleb(-scale))


def _state_of(expression: Any, function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state columns of an aggregate from the buffer of Spark's function."""
    kind = kind_of(function)
    convert = _CONVERSIONS.get(kind)
    # Of a collection the first argument has the values.
    arguments = children_of(function)[: 1 if kind in _COLLECTIONS else None]
    is_interval = kind in {"Average", "Sum"} and isinstance(
        type_of(arguments[0]), DayTimeIntervalType
    )
    if convert is None or is_interval or (kind != "Count" and any(map(is_nested, arguments))):
        raise _unreadable_buffer(expression, function)
    return convert(function, buffers)


def _unreadable_buffer(expression: Any, function: Any) -> UnsupportedQueryError:
    """Return the error that the buffer of an aggregate cannot be read."""
    return UnsupportedQueryError(
        f"The state of {expression.sql()} cannot be imported: Spark stores it in its own format.",
        remedy="Start the query without its state.",
        node=kind_of(function),
        place="",
    )


def _sum_state(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of a sum: null without values."""
    if len(buffers) == 1:
        scale = _scale_of_unscaled(function)
        return {"sum": buffers[0] if scale is None else _sum_as_decimal(buffers[0], scale)}
    total, is_empty = buffers
    overflowed = sf.raise_error(sf.lit("a sum of decimals in Spark's state has overflowed"))
    known = sf.when(total.isNull(), overflowed).otherwise(total)
    return {"sum": sf.when(is_empty, sf.lit(None)).otherwise(known)}


def _mean_state(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of a mean: a sum, null without values, and a count."""
    total, count = buffers
    scale = _scale_of_unscaled(function)
    total = total if scale is None else _sum_as_decimal(total, scale)
    return {"sum": sf.when(count > 0, total), "count": count}


def _moments_state(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of a variance: count, mean and squared deviations."""
    del function
    count, mean, squares = buffers
    return {"count": count.cast("long"), "mean": mean, "m2": squares}


def _first_or_last_state(function: Any, buffers: Sequence[Column]) -> dict[str, Column]:
    """Return the state of ``first`` or ``last``: the value, and whether any row was seen."""
    value, is_set = buffers
    known = sf.when(is_set, value)
    return {"value": known} if function.ignoreNulls() else {"value": known, "seen": is_set}


def _buffer_as_state(*names: str) -> Callable[[Any, Sequence[Column]], dict[str, Column]]:
    """Return the conversion of a buffer whose columns are those of the state."""
    return lambda _, buffers: dict(zip(names, buffers, strict=True))


_CONVERSIONS: Final[dict[str, Callable[[Any, Sequence[Column]], dict[str, Column]]]] = {
    "Sum": _sum_state,
    "Count": _buffer_as_state("count"),
    "Average": _mean_state,
    "Min": _buffer_as_state("value"),
    "Max": _buffer_as_state("value"),
    "MinBy": _buffer_as_state("value", "by"),
    "MaxBy": _buffer_as_state("value", "by"),
    "CollectList": _buffer_as_state("values"),
    "CollectSet": _buffer_as_state("values"),
    "Percentile": _buffer_as_state("counts"),
    "Mode": _buffer_as_state("counts"),
    "First": _first_or_last_state,
    "Last": _first_or_last_state,
    "StddevSamp": _moments_state,
    "StddevPop": _moments_state,
    "VarianceSamp": _moments_state,
    "VariancePop": _moments_state,
}
"""Spark's functions whose buffers contain the values of a state."""
_COLLECTIONS: Final[dict[str, Callable[[PackedRows, pa.DataType, pa.Array], pa.Array]]] = {
    "CollectList": _collected_states,
    "CollectSet": _collected_states,
    "Percentile": _counted_states,
    "Mode": _counted_states,
}
"""Functions whose values are in binary rows, and their conversion to the state."""
