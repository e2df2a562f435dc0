"""Pickled values of Python UDFs, as exchanged by Spark's JVM and its Python worker.

A function gets what the worker unpickles, `arguments_of`.  What it returns is unpickled by the JVM
and fitted to the declared type, `results_of`: a value of another type becomes null, and text takes
nearly anything.  Lanes have no JVM, so these are its rules, each compared with Spark.

A map is a ``java.util.HashMap`` on both ways, so its items come in the order of their hash codes.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as spark

from godwit.adopt.java_objects import buckets_for, hashed, java_text, unpickled_items
from godwit.adopt.spark_rows import fitting
from godwit.columns.arrays import convert_leaves, with_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Converter = Callable[[Any], Any]

_HASHED_KEYS: Final = (
    *(spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType, spark.BooleanType),
    *(spark.DateType, spark.TimestampType, spark.TimestampNTZType, spark.DayTimeIntervalType),
    *(spark.StringType, spark.CharType, spark.VarcharType, spark.DoubleType),
)
"""Types of keys of maps whose order in a ``HashMap`` is known."""
_LONG_KEYS: Final = (
    *(spark.LongType, spark.TimestampType, spark.TimestampNTZType, spark.DayTimeIntervalType),
)


def check_argument(dtype: spark.DataType) -> None:
    """Raise `ValueError` if functions cannot get values of a type."""
    if isinstance(dtype, spark.MapType) and not isinstance(dtype.keyType, _HASHED_KEYS):
        name = dtype.keyType.simpleString()
        raise ValueError(f"the order in which Java hashes keys of type {name}")  # noqa: TRY004
    for part in _part_types(dtype):
        check_argument(part)


def check_result(dtype: spark.DataType) -> None:
    """Raise `ValueError` if values that functions return cannot be fitted to a type."""
    if isinstance(dtype, spark.StructType) and len({*dtype.names}) < len(dtype.names):
        raise ValueError("a struct with duplicate field names")
    for part in _part_types(dtype):
        check_result(part)


def _part_types(dtype: spark.DataType) -> list[spark.DataType]:
    """Return the types that a type is made of."""
    if isinstance(dtype, spark.StructType):
        return [field.dataType for field in dtype.fields]
    if isinstance(dtype, spark.ArrayType):
        return [dtype.elementType]
    return [dtype.keyType, dtype.valueType] if isinstance(dtype, spark.MapType) else []


# -- arguments -------------------------------------------------------------------------------------


def arguments_of(column: pa.Array, dtype: spark.DataType, *, as_bytes: bool) -> list[Any]:
    """Return the values of a column as a function gets them.

    `as_bytes`: binary values are ``bytes``, not ``bytearray``.
    """
    counted = convert_leaves(column, with_leaves(column.type, _storage_type), pa.Array.cast)
    values: list[Any] = counted.to_pylist()
    convert = _from_arrow(dtype, as_bytes)
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    if dtype.needConversion():  # the worker's part
        values = [None if value is None else dtype.fromInternal(value) for value in values]
    return values


def _storage_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type that Spark stores values of a type in: times are integers."""
    types = pa.types
    if types.is_date(dtype):
        return pa.int32()
    return pa.int64() if types.is_timestamp(dtype) or types.is_duration(dtype) else dtype


def _from_arrow(dtype: spark.DataType, as_bytes: bool) -> Converter | None:
    """Return the conversion from Arrow's values to unpickled ones; ``None`` if they are equal."""
    if isinstance(dtype, spark.BinaryType):
        return None if as_bytes else bytearray
    if isinstance(dtype, spark.StructType):
        fields = [(f.name, _or_null(_from_arrow(f.dataType, as_bytes))) for f in dtype.fields]
        return lambda value: tuple([convert_item(value[name]) for name, convert_item in fields])
    if isinstance(dtype, spark.ArrayType):
        inner = _from_arrow(dtype.elementType, as_bytes)
        if inner is None:
            return None
        element = _or_null(inner)
        return lambda value: [element(part) for part in value]
    if isinstance(dtype, spark.MapType):
        convert_item = _or_null(_from_arrow(dtype.valueType, as_bytes))
        is_long = isinstance(dtype.keyType, _LONG_KEYS)
        return lambda value: {
            key: convert_item(item) for key, item in hashed(value, is_long, buckets_for(len(value)))
        }
    return None


def _or_null(make: Converter | None) -> Converter:
    """Return a converter that leaves null as it is."""
    if make is None:
        return lambda value: value
    return lambda value: None if value is None else make(value)


# -- results ---------------------------------------------------------------------------------------


def results_of(
    values: Sequence[Any], dtype: spark.DataType, column: pa.DataType, *, shortest: bool
) -> pa.Array:
    """Convert the results of a function, in the worker's internal form, to a column.

    `shortest`: texts of floats are those of Java since version 19.
    """
    fit = _converter_of_valid(dtype, shortest)
    return pa.array(
        [None if value is None else fit(_check_unpicklable_by_jvm(value)) for value in values],
        column,
    )


def _check_unpicklable_by_jvm(value: Any) -> Any:
    """Return a value that the JVM can unpickle; raise for one on which it fails, as Spark does."""
    if type(value).__module__ == "numpy":
        raise TypeError(
            f"the function returned a {type(value).__name__} of NumPy, which Spark cannot "
            "unpickle: convert it, as by .item() or .tolist()"
        )
    return value


def _converter_of_valid(dtype: spark.DataType, shortest: bool) -> Converter:
    """Return the function that fits an unpickled value, which is not null, to a type."""
    if isinstance(dtype, spark.StringType | spark.CharType | spark.VarcharType):
        return lambda value: value if type(value) is str else java_text(value, shortest)
    if isinstance(dtype, spark.ArrayType):
        element = _converter_of_part(dtype.elementType, shortest)
        return lambda value: (
            [element(part) for part in _array_elements(value)]
            if isinstance(value, list | tuple | array.array | bytes | bytearray)
            else None
        )
    if isinstance(dtype, spark.MapType):
        key, item = (
            _converter_of_part(dtype.keyType, shortest),
            _converter_of_part(dtype.valueType, shortest),
        )
        return lambda value: (
            [(key(k), item(v)) for k, v in unpickled_items(value)]
            if isinstance(value, dict)
            else None
        )
    if isinstance(dtype, spark.StructType):
        fields = [
            (field.name, _converter_of_part(field.dataType, shortest)) for field in dtype.fields
        ]
        return lambda value: _struct_fields(value, fields)
    return fitting(dtype, shortest=shortest)


def _converter_of_part(dtype: spark.DataType, shortest: bool) -> Converter:
    """Return the function that fits a part of a value to a type."""
    fit = _converter_of_valid(dtype, shortest)
    return lambda value: None if value is None else fit(_check_unpicklable_by_jvm(value))


def _array_elements(value: Any) -> Iterable[Any]:
    """Return the elements of an array; Java's bytes have signs."""
    return memoryview(value).cast("b") if isinstance(value, bytes | bytearray) else value


def _struct_fields(value: Any, fields: list[tuple[str, Converter]]) -> dict[str, Any] | None:
    """Return the fields of a struct, fitted to their types."""
    if not isinstance(value, list | tuple):
        return None
    if len(value) != len(fields):
        raise ValueError(
            "[STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values "
            f"required by the schema. {len(fields)} fields are required while {len(value)} values "
            "are provided. SQLSTATE: 2201E"
        )
    return {name: fit(part) for (name, fit), part in zip(fields, value, strict=True)}
