"""Nodes of a plan that call Python functions with state: the functions, and their operators.

A ``PythonUDF`` of a plan has what PySpark pickled: of ``transformWithState`` a PySpark method
own, bound to an object that has the user's processor; of ``applyInPandasWithState`` the user's
function itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

from godwit.adopt import group_state, stateful_processor
from godwit.adopt.group_state import GroupStateOperator
from godwit.adopt.lanes import ONLY_TIME
from godwit.adopt.pickled_functions import broadcasts_of, unpickled
from godwit.adopt.plan import (
    WATERMARK_DELAY,
    id_of,
    kind_of,
    metadata_of,
    output_of,
    to_list,
    type_of,
    watermarks_of,
)
from godwit.adopt.row_forms import MAX_CHUNK
from godwit.adopt.spark_functions import RowColumns, function_node
from godwit.adopt.spark_rows import schema_of_java
from godwit.adopt.spark_states import FunctionState
from godwit.adopt.stateful_processor import InitialTable, TransformOperator
from godwit.api.streams import add_to_flow
from godwit.columns.types import is_key_type
from godwit.spark.platform.pyspark_versions import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.adopt.lanes import Adopted, Translator

_TAKEN: Final = frozenset({"value", "state", "timers", "expires"})
"""Columns of states, whose names key columns must not have."""
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


class _Rows:
    """The columns of a function's rows, and others that its operator reads."""

    def __init__(
        self, translation: Translator, node: Any, keys: Sequence[Any], data: Sequence[Any]
    ) -> None:
        catalyst = translation.catalyst
        self.columns: list[tuple[str, Any]] = []  # name → expression of Spark's
        names: dict[int, str] = {}  # number of a column of Spark's → its name in the stream
        for attribute in data:
            name = names[id_of(attribute)] = translation.unique(str(attribute.name()))
            self.columns.append((name, attribute))
        self.names = tuple(names[id_of(attribute)] for attribute in data)
        self.shown = tuple(str(attribute.name()) for attribute in data)
        key_names = []
        for attribute in keys:
            dtype = type_of(attribute)
            schema = arrow_schema_of(StructType([StructField("key", dtype)]), zone="UTC")
            if not is_key_type(schema.field(0).type):
                raise translation.refused(
                    node,
                    f"its key {attribute.name()} has type {dtype.simpleString()}",
                    "Group by columns of simple types, such as the fields of a struct.",
                )
            name = names.get(id_of(attribute), "")
            if not name or name in _TAKEN or isinstance(dtype, FloatType | DoubleType):
                name = translation.unique(f"{attribute.name()}_key")
                value = attribute
                if isinstance(dtype, FloatType | DoubleType):
                    value = catalyst.normalized(attribute)
                self.columns.append((name, value))
            key_names.append(name)
        self.keys = tuple(key_names)
        self.key_shown = tuple(str(attribute.name()) for attribute in keys)
        self.event_time = self._event_time(translation, data, names)

    def _event_time(
        self, translation: Translator, data: Sequence[Any], names: dict[int, str]
    ) -> str | None:
        """Return the column that decides lateness: a time with a watermark, or a window's end."""
        for attribute in data:
            if WATERMARK_DELAY not in metadata_of(attribute):
                continue
            if not isinstance(type_of(attribute), StructType):
                return names[id_of(attribute)]
            name = translation.unique(f"{attribute.name()}_end")
            self.columns.append((name, translation.catalyst.field(attribute, 1)))
            return name
        return None

    @property
    def key_columns(self) -> tuple[tuple[str, Any], ...]:
        """Columns of the keys, and their Spark expressions."""
        values = dict(self.columns)
        return tuple((name, values[name]) for name in self.keys)

    def stream_columns(self, only_time: str | None, emitted_time: str | None) -> RowColumns:
        """Return the columns of the operator's rows; the parameters: see `RowColumns`."""
        return RowColumns(
            names=self.names,
            shown=self.shown,
            key_shown=self.key_shown,
            event_time=self.event_time,
            only_time=only_time,
            emitted_time=emitted_time,
        )


def transform_with_state(
    translation: Translator, node: Any, below: list[Adopted | None], timed_by: Any = None
) -> Adopted:
    """Translate ``TransformWithStateInPySpark``: rows and pandas forms.

    `timed_by`: the node above it that names the event time of its output, if there is one.
    """
    child, number = node.child(), int(node.groupingAttributesLen())
    output = output_of(child)
    rows = _Rows(translation, node, output[:number], output[number:])
    where = "transformWithState"
    util = getattr(_function_of(translation, node), "__self__", None)
    processor = getattr(util, "_stateful_processor", None)
    if processor is None:
        raise translation.refused(
            node,
            "its function is not one of PySpark's transformWithState",
            "Use PySpark's transformWithState.",
        )
    name = translation.unique("transform_with_state")  # whatever the class is called
    spec = stateful_processor.spec_of(
        processor,
        time_mode=str(node.timeMode().toString()).replace("NoTime", "None"),
        pandas=str(node.userFacingDataType().toString()) == "pandas",
        initial=_initial_state(translation, node) if node.hasInitialState() else None,
        max_chunk=_max_chunk(translation),
        max_bytes=_max_bytes(translation),
        shortest=translation.catalyst.writes_shortest_floats,
        where=where,
        operator=name,
    )
    action = f"process with {spec.name}, {spec.states_text}"
    state = FunctionState(
        operator=name,
        spark_operator="transformWithStateInPySparkExec",
        grouping=tuple(output[:number]),
        keys=rows.key_columns,
        spec=spec,
    )
    operator = (TransformOperator, state, action)
    return _adopted_output(translation, node, below, rows, operator, timed_by=timed_by)


def apply_in_pandas_with_state(
    translation: Translator, node: Any, below: list[Adopted | None]
) -> Adopted:
    """Translate ``FlatMapGroupsInPandasWithState``."""
    rows = _Rows(translation, node, to_list(node.groupingAttributes()), output_of(node.child()))
    function = _function_of(translation, node)
    name = translation.unique("apply_in_pandas_with_state")
    spec = group_state.spec_of(
        function,
        schema=schema_of_java(node.stateType()),
        timeout=str(node.timeout().toString()),
        max_chunk=_max_chunk(translation),
        shortest=translation.catalyst.writes_shortest_floats,
        where="applyInPandasWithState",
    )
    action = f"process with {spec.name}, group state"
    state = FunctionState(
        operator=name,
        spark_operator="applyInPandasWithState",
        grouping=tuple(to_list(node.groupingAttributes())),
        keys=rows.key_columns,
        spec=spec,
    )
    return _adopted_output(translation, node, below, rows, (GroupStateOperator, state, action))


def _adopted_output(
    translation: Translator,
    node: Any,
    below: list[Adopted | None],
    rows: _Rows,
    operator: tuple[Any, FunctionState, str],  # class, state, text of the action
    *,
    timed_by: Any = None,  # node that names the event time of the output, if there is one
) -> Adopted:
    """Return the output of a node's operator."""
    kind, state, action = operator
    timed = bool(watermarks_of(node.child()))
    stream, _ = translation.inputs(rows.columns, node.child(), below[0], timed=timed)
    attributes = output_of(node if timed_by is None else timed_by)
    output = _output_schema(translation, attributes)
    emitted_time = None
    if timed_by is not None:
        own = id_of(timed_by.eventTime())
        emitted_time = output.names[[id_of(a) for a in attributes].index(own)]
    added = function_node(
        kind,
        state.spec,
        rows.stream_columns(ONLY_TIME if timed else None, emitted_time),
        output=output,
        action=action,
        name=state.operator,
        upstream=stream.node,
        keys=rows.keys,
    )
    translation.states.append(state)
    return translation.result_of(add_to_flow(translation.flow, added), attributes, output.names)


def _output_schema(translation: Translator, attributes: Sequence[Any]) -> pa.Schema:
    """Return the columns that a function returns, by Spark's names if these are unique."""
    names = [str(attribute.name()) for attribute in attributes]
    if len({name.lower() for name in names}) < len(names) or any(
        not name or name.startswith("__") for name in names
    ):
        names = [translation.unique(name) for name in names]
    fields = [
        StructField(name, type_of(attribute))
        for name, attribute in zip(names, attributes, strict=True)
    ]
    schema: pa.Schema = arrow_schema_of(StructType(fields), zone="UTC")
    return schema


def _function_of(translation: Translator, node: Any) -> Any:
    """Return the function of a node's ``PythonUDF``, as PySpark pickled it."""
    udf = node.functionExpr()
    if kind_of(udf) != "PythonUDF":
        raise translation.refused(
            node, "its function is not a Python function", "Write it in Python."
        )
    try:
        command = translation.catalyst.bytes_of(udf.func().command())
        loaded = unpickled(command, broadcasts_of(udf.func()))
    except Exception as error:  # a class of the user's may raise anything
        raise translation.refused(
            node,
            f"its function cannot be unpickled from the plan ({type(error).__name__}: {error})",
            "Create objects that cannot be pickled inside the function, and keep its broadcast "
            "variables.",
        ) from error
    return loaded[0]


def _initial_state(translation: Translator, node: Any) -> InitialTable:
    """Return the rows of a node's initial state, which is read now."""
    catalyst, plan = translation.catalyst, node.initialState()
    output, number = output_of(plan), int(node.initGroupingAttrsLen())
    names = [f"c{place}" for place in range(len(output))]
    frame = catalyst.dataframe(
        catalyst.project(
            [catalyst.alias(a, name) for a, name in zip(output, names, strict=True)], plan
        )
    )
    table = frame.toArrow()
    return InitialTable(
        keys=table.select(names[:number]),
        rows=table.select(names[number:]).rename_columns([str(a.name()) for a in output[number:]]),
    )


def _max_chunk(translation: Translator) -> int:
    """Return the maximum number of rows of a DataFrame, by the session's settings."""
    number = int(translation.catalyst.spark.conf.get(_RECORDS, str(MAX_CHUNK)) or MAX_CHUNK)
    return number if number > 0 else 2**31 - 1


def _max_bytes(translation: Translator) -> int | None:
    """Return the approximate maximum size of a DataFrame, by the session's settings."""
    text = translation.catalyst.spark.conf.get(_BYTES, None)
    digits = re.fullmatch(r"(\d+)b?", str(text).lower())
    number = 2**31 - 1 if digits is None else int(digits[1])
    return number if 0 < number < 2**31 - 1 else None
