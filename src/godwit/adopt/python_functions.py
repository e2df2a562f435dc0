"""Python UDFs between stateful nodes of Spark's plan, and above sinks that lanes write to.

Spark's optimizer puts the UDFs of a projection or a filter into a node below it, which adds their
results to the rows: ``BatchEvalPython`` for functions whose values are pickled, ``ArrowEvalPython``
for those that get Arrow data.  A step calls the same functions by the code of PySpark's worker
(`godwit.adopt.worker_functions`), so types, nulls and errors are Spark's; what its JVM
does with pickled values is in `godwit.adopt.pickled_values`.

A function is called for the rows that a lane has in an epoch, as Spark calls it for those of a
partition, and not at all where there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType
from pyspark.util import PythonEvalType

from godwit.adopt.expressions import ROWS, column_key
from godwit.adopt.functions import evaluated
from godwit.adopt.pickled_functions import broadcasts_of
from godwit.adopt.pickled_values import arguments_of, check_argument, check_result, results_of
from godwit.adopt.plan import children_of, kind_of, output_of, to_list, type_of
from godwit.adopt.worker_functions import PickledFunction, can_call, worker_function
from godwit.columns.arrays import convert_leaves
from godwit.columns.types import is_binary, is_text
from godwit.library.aggregates.expressions import Rows
from godwit.spark.platform.pyspark_versions import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.types import DataType

    from godwit.adopt.expressions import ExpressionReader
    from godwit.library.aggregates.expressions import Expression

EVALUATIONS: Final = frozenset({"ArrowEvalPython", "BatchEvalPython"})
"""Nodes that add the results of functions to rows."""
MAPS: Final = frozenset({"MapInArrow", "MapInPandas"})
"""Nodes that replace rows by the output of a function."""
_ZONE: Final = "spark.sql.session.timeZone"
_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LARGE: Final = "spark.sql.execution.arrow.useLargeVarTypes"
_BYTES: Final = "spark.sql.execution.pyspark.binaryAsBytes"
_SETTINGS: Final = (
    *(_ZONE, _RECORDS, _LARGE, _BYTES),
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.execution.pythonUDF.arrow.concurrency.level",
    "spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
    "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled",
)
"""Session settings that are passed to PySpark's worker."""
_SCALAR: Final = frozenset(
    {
        PythonEvalType.SQL_ARROW_BATCHED_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_UDF,
        PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
        PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    }
)
_ACCUMULATOR: Final = b"_deserialize_accumulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTask:
    """Functions that PySpark's worker calls together, for the same rows."""

    eval_type: int
    functions: tuple[PickledFunction, ...]
    arguments: StructType  # types of the columns that they read
    settings: tuple[tuple[str, str], ...]  # of the session, by name
    broadcasts: tuple[tuple[int, bytes], ...]  # number of a broadcast variable → its pickled value
    shortest: bool  # texts of floats, as Java writes them

    def function(self) -> Callable[[Any], Iterator[Any]]:
        """Return the function of the worker's task."""
        return worker_function(
            self.functions,
            self.eval_type,
            settings=dict(self.settings),
            arguments=str(self.arguments.json()),
            broadcasts=dict(self.broadcasts),
        )

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting of the session."""
        return dict(self.settings).get(name, default).lower()

    def batches(self, columns: Sequence[pa.Array], length: int) -> Iterator[pa.RecordBatch]:
        """Yield columns as the batches that Spark's JVM sends.

        `length`: number of the rows, of which there may be no columns.
        """
        zone, large = dict(self.settings)[_ZONE], self.setting(_LARGE) == "true"
        schema = arrow_schema_of(self.arguments, zone=zone, large=large)
        if not columns:
            rows = pa.RecordBatch.from_struct_array(pa.array([{}] * length, pa.struct([])))
        else:
            typed = [
                convert_leaves(column, field.type, pa.Array.cast)
                for column, field in zip(columns, schema, strict=True)
            ]
            rows = pa.RecordBatch.from_arrays(typed, schema=schema)
        size = int(self.setting(_RECORDS, "0"))
        size = size if size > 0 else length
        for start in range(0, length, size):
            yield rows.slice(start, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls:
    """A step that adds the results of functions to the rows."""

    task: PythonTask
    arguments: tuple[tuple[Expression, str], ...]  # and as Spark writes them
    results: tuple[tuple[str, DataType, pa.DataType], ...]  # key, and types

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the columns with the results beside them."""
        length, rows = len(columns[ROWS]), Rows(columns=columns)
        arguments = [evaluated(value, text, rows) for value, text in self.arguments]
        if not length:
            results = [pa.array([], dtype) for _, _, dtype in self.results]
        elif self.task.eval_type == PythonEvalType.SQL_BATCHED_UDF:
            results = self._call_with_rows(arguments, length)
        else:
            results = self._call_with_batches(arguments, length)
        keys = (key for key, _, _ in self.results)
        return {**columns, **dict(zip(keys, results, strict=True))}

    def _call_with_rows(self, arguments: Sequence[pa.Array], length: int) -> list[pa.Array]:
        """Return the results of functions whose values are pickled."""
        task = self.task
        as_bytes = task.setting(_BYTES, "true") == "true"
        values = [
            arguments_of(column, field.dataType, as_bytes=as_bytes)
            for column, field in zip(arguments, task.arguments.fields, strict=True)
        ]
        rows = zip(*values, strict=True) if values else repeat((), length)
        results = list(task.function()(rows))
        by_function = zip(*results, strict=True) if len(self.results) > 1 else [results]
        return [
            results_of(list(own), spark, dtype, shortest=task.shortest)
            for own, (_, spark, dtype) in zip(by_function, self.results, strict=True)
        ]

    def _call_with_batches(self, arguments: Sequence[pa.Array], length: int) -> list[pa.Array]:
        """Return the results of functions that get Arrow data."""
        batches = list(self.task.function()(self.task.batches(arguments, length)))
        return [
            pa.concat_arrays([_cast_to_declared(batch.column(n), dtype) for batch in batches])
            for n, (_, _, dtype) in enumerate(self.results)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonMap:
    """A step that replaces the rows by the output of a function."""

    task: PythonTask
    inputs: tuple[str, ...]  # keys of the columns that it gets
    outputs: tuple[tuple[str, pa.DataType], ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the function's rows."""
        length = len(columns[ROWS])
        batches = []
        if length:
            rows = self.task.batches([columns[key] for key in self.inputs], length)
            structs = (
                pa.RecordBatch.from_arrays([batch.to_struct_array()], ["_0"]) for batch in rows
            )
            batches = [batch.column(0).flatten() for batch in self.task.function()(structs)]
        results = {
            key: pa.concat_arrays(
                [pa.array([], dtype), *(_cast_to_declared(parts[n], dtype) for parts in batches)]
            )
            for n, (key, dtype) in enumerate(self.outputs)
        }
        count = len(next(iter(results.values())))
        return {ROWS: pa.nulls(count, pa.bool_()), **results}


def read_calls(reader: ExpressionReader, node: Any) -> PythonCalls:
    """Return the step of a node of `EVALUATIONS`; refuse functions that are not called here."""
    is_pickled = kind_of(node) == "BatchEvalPython"
    eval_type = PythonEvalType.SQL_BATCHED_UDF if is_pickled else int(node.evalType())
    udfs = to_list(node.udfs())
    arguments: list[Any] = []
    functions: list[PickledFunction] = []
    broadcasts: dict[int, bytes] = {}
    for udf in udfs:
        chain, inputs = _chained_functions(udf)
        positions, keywords = [], []
        for argument in inputs:
            name, value = None, argument
            if kind_of(argument) == "NamedArgumentExpression":
                name, value = str(argument.key()), argument.value()
            equal_arguments = (
                number
                for number, argument_ in enumerate(arguments)
                if argument_.semanticEquals(value)
            )
            place = next(equal_arguments, len(arguments))
            if place == len(arguments):
                arguments.append(value)
            if name is None:
                positions.append(place)
            else:
                keywords.append((name, place))
        commands = []
        for part in chain:
            command, variables = _read_function(reader, part)
            commands.append(command)
            broadcasts |= variables
        functions.append(
            PickledFunction(
                commands=tuple(commands), positions=tuple(positions), keywords=tuple(keywords)
            )
        )
    if eval_type not in _SCALAR and not is_pickled:
        reader.refuse(udfs[0], f"a Python function of type {eval_type}")
    fields = [StructField(f"_{number}", type_of(value)) for number, value in enumerate(arguments)]
    task = _python_task(reader, eval_type, functions, fields, broadcasts)
    results = []
    for udf, attribute in zip(udfs, to_list(node.resultAttrs()), strict=True):
        dtype = type_of(udf)
        try:
            if is_pickled:
                check_result(dtype)
                for field in fields:
                    check_argument(field.dataType)
            results.append((column_key(attribute), dtype, reader.type_of(udf.dataType())))
        except ValueError as error:
            reader.refuse(udf, str(error))
    return PythonCalls(
        task=task,
        arguments=tuple((reader.read(value), str(value.sql())) for value in arguments),
        results=tuple(results),
    )


def read_map(reader: ExpressionReader, node: Any) -> PythonMap:
    """Return the step of a node of `MAPS`; refuse a function that is not called here."""
    udf = node.functionExpr()
    if node.isBarrier():
        reader.refuse(udf, "barrier mode (barrier=True)")
    command, broadcasts = _read_function(reader, udf)
    inputs = output_of(node.child())
    fields = [StructField(str(a.name()), type_of(a), bool(a.nullable())) for a in inputs]
    function = PickledFunction(commands=(command,), positions=())
    return PythonMap(
        task=_python_task(reader, int(udf.evalType()), [function], fields, broadcasts),
        inputs=tuple(map(column_key, inputs)),
        outputs=tuple(
            (column_key(attribute), reader.type_of(attribute.dataType()))
            for attribute in output_of(node)
        ),
    )


def _chained_functions(udf: Any) -> tuple[list[Any], list[Any]]:
    """Return the functions that are called one after the other, and the arguments of the first."""
    inner = children_of(udf)
    if len(inner) == 1 and kind_of(inner[0]) == "PythonUDF":
        chain, arguments = _chained_functions(inner[0])
        return [*chain, udf], arguments
    return [udf], inner


def _python_task(
    reader: ExpressionReader,
    eval_type: int,
    functions: Sequence[PickledFunction],
    arguments: Sequence[StructField],
    broadcasts: dict[int, bytes],
) -> PythonTask:
    """Return the task of functions that are called together."""
    settings = ((name, _session_setting(reader, name)) for name in _SETTINGS)
    return PythonTask(
        eval_type=eval_type,
        functions=tuple(functions),
        arguments=StructType(list(arguments)),
        settings=tuple((name, value) for name, value in settings if value is not None),
        broadcasts=tuple(broadcasts.items()),
        shortest=reader.shortest,
    )


def _session_setting(reader: ExpressionReader, name: str) -> str | None:
    """Return a setting of the session, which may be its default; ``None``: it has none."""
    try:
        value = reader.conf.get(name)
    except PySparkException:  # of a setting that this version of Spark does not know, too
        return None
    return None if value is None else str(value)


def _read_function(reader: ExpressionReader, udf: Any) -> tuple[bytes, dict[int, bytes]]:
    """Return a function as PySpark pickled it, and the broadcast variables that it refers to."""
    if not can_call():
        reader.refuse(udf, "PySpark 4.3, whose worker can run Python functions in lanes")
    function = udf.func()
    command = reader.bytes_of(function.command())
    try:
        broadcasts = broadcasts_of(function)
    except Exception as error:  # noqa: BLE001  the JVM's, of a variable that is destroyed
        reader.refuse(udf, f"a broadcast variable that cannot be read ({error})")
    if any(_ACCUMULATOR in pickled for pickled in (command, *broadcasts.values())):
        reader.refuse(udf, "an accumulator, which lanes do not support")
    return command, broadcasts


def _cast_to_declared(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast results to the type of their column, which differs only in zones and widths."""
    return convert_leaves(column, dtype, _same_leaf)


def _same_leaf(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return values in a type that differs in nothing but a zone or the width of offsets."""
    own = column.type
    is_same = (
        own == dtype
        or (is_text(own) and is_text(dtype))
        or (is_binary(own) and is_binary(dtype))
        or (pa.types.is_timestamp(own) and own.unit == "us" and _has_zone(own) == _has_zone(dtype))
    )
    if not is_same:
        raise TypeError(f"the function returned {own}, but {dtype} is declared")
    return column.cast(dtype)


def _has_zone(dtype: pa.DataType) -> bool | None:
    """Return whether timestamps have a zone; ``None`` of other types."""
    return dtype.tz is not None if pa.types.is_timestamp(dtype) else None
