"""Spark state of functions: named states and timers of processors, and group states.

Values become records of the operator's own state on the driver, by the types of Spark's schema
(`SparkFunctionOperator.initial_values`); timers become the times that the operator stores.

Source: the ``statestore`` source, `StateVariableType`, `TimerStateImpl` and
`FlatMapGroupsWithStateExecHelper` of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from godwit.adopt.group_state import STATE, GroupFunctionSpec
from godwit.adopt.spark_functions import SparkFunctionOperator
from godwit.adopt.spark_rows import rows_of_json
from godwit.adopt.stateful_processor import state_name
from godwit.model.naming import listing
from godwit.operators.declared import TIMERS
from godwit.operators.initial import VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from godwit.adopt.spark_state_reader import SparkState, SparkStateReader
    from godwit.adopt.spark_states import FunctionState
    from godwit.adopt.state_variables import Variable
    from godwit.operators.operator import KeyedOperator

_EXPIRES: Final = "expires"
_TIME: Final = "time_ms"
_WITH_EXPIRY: Final = {
    "value": ("timestamp_millis(value.ttlExpirationMs)", "value.value"),
    "list": (
        "transform(value, x -> timestamp_millis(x.ttlExpirationMs))",
        "transform(value, x -> x.value)",
    ),
    "map": (
        "transform(map_values(value), x -> timestamp_millis(x.ttlExpirationMs))",
        "transform_values(value, (k, x) -> x.value)",
    ),
}
"""Kind of a variable with a time-to-live → expressions of when it expires, and of its values."""
_GROUP_STATE: Final = "groupState"
_TIMEOUT: Final = "timeoutTimestamp"
_NO_TIMEOUT: Final = -1


def function_rows(
    reader: SparkStateReader, number: int, state: FunctionState, operator: KeyedOperator
) -> Mapping[str, DataFrame]:
    """Return state → rows of the states of a function."""
    assert isinstance(operator, SparkFunctionOperator), "it calls a Spark function"
    if isinstance(state.spec, GroupFunctionSpec):
        return _group_states(reader, number, state, operator.shift_us)
    _check_variables(reader, number, state)
    rows = {}
    for variable in state.spec.variables:
        stored = reader.read(number, stateVarName=variable.name, flattenCollectionTypes="false")
        rows[state_name(variable.name)] = _variable_values(reader, state, variable, stored)
    if state.spec.timing.clock is not None:
        stored = reader.read(number, readRegisteredTimers="true")
        columns = _stored_key_columns(reader, state, stored)
        frame = stored.select([*columns, (_TIME, stored.columns["expiration_timestamp_ms"])])
        rows[TIMERS] = _timer_lists(frame, state, sf.col(_TIME) * 1000 - operator.shift_us)
    return rows


def _stored_key_columns(
    reader: SparkStateReader, state: FunctionState, stored: SparkState
) -> list[tuple[str, Any]]:
    """Return the key columns of an operator over Spark's state."""
    reader.check_same(stored.key, state.grouping, "state's key")
    return [(name, stored.over(value, state.grouping, stored.key)) for name, value in state.keys]


def _timer_lists(frame: DataFrame, state: FunctionState, time_us: Column) -> DataFrame:
    """Return the timers of each key as a list, from a row for each timer."""
    names = [sf.col(f"`{name}`") for name, _ in state.keys]
    moments = sf.collect_list(sf.timestamp_micros(time_us))
    return frame.groupBy(*names).agg(moments.alias(TIMERS))


def _check_variables(reader: SparkStateReader, number: int, state: FunctionState) -> None:
    """Raise if Spark's state has variables that the processor does not declare, or lacks some."""
    spec: Any = state.spec
    stored = reader.variables(number)
    declared = {variable.name for variable in spec.variables}
    if declared != stored - spec.deleted:
        raise reader.other_query(
            f"it has the state variables {listing(stored) or '(none)'}, but those of this one "
            f"are {listing(declared) or '(none)'}"
        )


def _variable_values(
    reader: SparkStateReader, state: FunctionState, variable: Variable, stored: SparkState
) -> DataFrame:
    """Return the values of a state variable, in the column `VALUE`."""
    columns = _stored_key_columns(reader, state, stored)
    name = {"value": "value", "list": "list_value", "map": "map_value"}[variable.kind]
    if name not in stored.columns:
        raise reader.other_query(f"its state variable {variable.name!r} is not a {variable.kind}")
    value, dtype = stored.columns[name], stored.types[name]
    planned, has_expiry = _type_of(variable), variable.ttl_ms is not None
    if dtype != planned:
        raise reader.other_query(
            f"its state variable {variable.name!r} has the type {dtype}, but that of this one "
            f"{planned}"
        )
    frame = stored.select([*columns, (VALUE, value)])
    if not has_expiry:
        return frame
    expires, values = _WITH_EXPIRY[variable.kind]
    return frame.withColumn(_EXPIRES, sf.expr(expires)).withColumn(VALUE, sf.expr(values))


def _type_of(variable: Variable) -> str:
    """Return the type of a state variable's values, in Spark's notation."""
    value = variable.rows.schema.simpleString()
    if variable.ttl_ms is not None:
        value = f"struct<value:{value},ttlExpirationMs:bigint>"
    if variable.kind == "map":
        return f"map<{variable.keys.schema.simpleString()},{value}>"
    return value if variable.kind == "value" else f"array<{value}>"


def _group_states(
    reader: SparkStateReader, number: int, state: FunctionState, shift_us: int
) -> Mapping[str, DataFrame]:
    """Return the states and time-outs of a function with a ``GroupState``."""
    spec: Any = state.spec
    stored = reader.read(number)
    columns = _stored_key_columns(reader, state, stored)
    planned, fields = rows_of_json(spec.schema).schema, stored.value
    own = tuple(field.dataType.simpleString() for field in planned)
    if fields.names[:1] == (_GROUP_STATE,) and fields.types[0] == planned.simpleString():
        value = stored.field(fields, 0)
    elif fields.types[: len(own)] == own and fields.names[len(own) :] in ((), (_TIMEOUT,)):
        value = reader.catalyst.struct(
            (field.name, stored.field(fields, place)) for place, field in enumerate(planned)
        )  # as in the first format of the state, which has no groups without a value
    else:
        raise reader.other_query(
            f"its state has {listing([*map('{} {}'.format, fields.names, fields.types)])}, and "
            f"that of this one {planned.simpleString()}"
        )
    rows = {STATE: stored.select([*columns, (VALUE, value)]).filter(sf.col(VALUE).isNotNull())}
    if spec.timing.clock is not None:
        time = stored.field(fields, fields.names.index(_TIMEOUT))
        frame = stored.select([*columns, (_TIME, time)]).filter(sf.col(_TIME) != _NO_TIMEOUT)
        rows[TIMERS] = _timer_lists(frame, state, (sf.col(_TIME) + 1) * 1000 - shift_us)
    return rows
