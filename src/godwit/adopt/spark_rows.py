"""Rows of a Spark schema as state, converted as by Spark's Python worker and JVM.

A value that a `StatefulProcessor` writes goes through ``StructType.toInternal``, is unpickled by
the JVM and fitted to the schema there; a value that it reads goes back.  The rules of the JVM are
not those of Arrow: an integer that is too wide for a field loses its upper bits, a value of another
type becomes null, text takes anything, and a decimal is rounded to its scale.  `SparkRows` follows
them, so that a processor reads back exactly what it would under Spark.

A row is stored as a record with a field for each column, by name, in Spark's internal form: days
and microseconds are integers.  So state evolves by the rules of records
(`godwit.library.states.type_changes`), and equal rows have equal bytes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as spark

from godwit.adopt.java_objects import java_text
from godwit.columns.types import to_schema
from godwit.model.errors import CheckpointMismatchError, InvalidFlowError
from godwit.spark.platform.pyspark_versions import spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Converter = Callable[[Any], Any]

VALUE_TYPES: Final = "Spark types"
KEY_TYPES: Final = "Spark types of map keys"
"""Entries of `StateDescription.means`."""
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "bigint": ("double",),
    "float": ("double",),
}
_INT64: Final = range(-(2**63), 2**63)
_WIDTHS: Final[dict[type, int]] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.DateType: 32,
    spark.YearMonthIntervalType: 32,
}
_LONGS: Final = (
    spark.LongType,
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.DayTimeIntervalType,
)
_FLOAT: Final = struct.Struct("<f")
_PLAIN_ROWS: Final = frozenset([tuple, list, spark.Row])
_SCALARS: Final = frozenset([bool, int, float, str, bytes, dt.datetime, type(None)])


class SparkRows:
    """Conversion between rows of a Spark schema and stored records. Picklable.

    Attributes
    ----------
    schema
        The Spark schema (``StructType``).
    record
        Class of stored records: a frozen `msgspec.Struct` with a field per column.
    shortest
        Texts of floats are those of Java since version 19.
    """

    def __init__(
        self, schema: spark.StructType, name: str = "Row", *, shortest: bool = False
    ) -> None:
        self.schema, self._name, self.shortest = schema, name, shortest
        self.record = _record_class(schema, name)
        self._converters: list[Converter] = [
            fitting(field.dataType, shortest=shortest) for field in schema.fields
        ]
        self._num_fields = len(schema.fields)
        self._serializes = bool(schema.needConversion()) and schema._needSerializeAnyField  # noqa: SLF001 - of the pinned PySpark
        self._non_null_fields = [i for i, field in enumerate(schema.fields) if not field.nullable]
        self._is_flat = not any(_has_parts(field.dataType) for field in schema.fields)
        self._to_record = [
            _to_record(field.dataType, f"{name}_{field.name}") for field in schema.fields
        ]
        self._from_record = [_from_record(field.dataType) for field in schema.fields]
        self._is_plain_row = self._is_flat and not any(
            field.dataType.needConversion() for field in schema.fields
        )
        # Values of these types, integers within these bounds, are stored as they are.
        kinds = [_exact_kind(field.dataType) for field in schema.fields]
        self._exact_kinds = tuple(kinds) if self._is_flat and not self._serializes else None
        self._bounds_of_field = [
            (place, 1 << (bits - 1))
            for place, field in enumerate(schema.fields)
            if (bits := _WIDTHS.get(type(field.dataType)) or (kinds[place] is int and 64))
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return rows_of_json, (self.schema.json(), self._name, self.shortest)

    def internal(self, row: Any) -> tuple[Any, ...]:
        """Return a row that a processor wrote, in Spark's internal form, fitted to the schema.

        Raises `TypeError` if it is not iterable, and `PySparkRuntimeError` with Spark's condition
        if it has another number of values, or null where the schema admits none.
        """
        values = tuple([v if type(v) in _SCALARS else _with_python_scalars(v) for v in row])
        if self._serializes or len(values) != self._num_fields:
            values = self.schema.toInternal(values)
            if len(values) != self._num_fields:
                raise PySparkRuntimeError(
                    "[STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of "
                    f"values required by the schema. {self._num_fields} fields are required while "
                    f"{len(values)} values are provided. SQLSTATE: 2201E"
                )
        fitted = tuple([fit(value) for fit, value in zip(self._converters, values, strict=True)])
        for index in self._non_null_fields:
            if fitted[index] is None:
                _refuse_null(index, self.schema.fields[index].name)
        return fitted

    def to_record(self, row: Any) -> Any:
        """Return the stored record of a row that a processor wrote; raises as `internal`."""
        if type(row) in _PLAIN_ROWS and tuple(map(type, row)) == self._exact_kinds:
            for place, bound in self._bounds_of_field:
                if not -bound <= row[place] < bound:
                    break
            else:
                return self.record(*row)
        return self.record_of(self.internal(row))

    def record_of_dict(self, values: Mapping[str, Any]) -> Any:
        """Return the stored record of a struct from Arrow."""
        return self.to_record(self.row_of_dict(values))

    def row_of_dict(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Convert a struct from Arrow to a row as a processor writes it."""
        row: tuple[Any, ...] = _as_rows(self.schema, values)
        return row

    def record_of(self, internal: Iterable[Any]) -> Any:
        """Return the stored record of a row in Spark's internal form."""
        if self._is_flat:
            return self.record(*internal)
        return self.record(
            *[convert(value) for convert, value in zip(self._to_record, internal, strict=True)]
        )

    def to_tuple(self, record: Any) -> tuple[Any, ...]:
        """Return a stored record as a tuple of Python values, as Spark's worker does."""
        values = msgspec.structs.astuple(record)
        if self._is_plain_row:
            return values
        return tuple(
            [
                field.dataType.fromInternal(convert(value))
                for field, convert, value in zip(
                    self.schema.fields, self._from_record, values, strict=True
                )
            ]
        )

    def to_row(self, record: Any) -> spark.Row:
        """Return a stored record as a `Row`."""
        return self._row_maker(*self.to_tuple(record))

    @functools.cached_property
    def _row_maker(self) -> Callable[..., spark.Row]:
        """Function that makes a `Row` with the schema's names."""
        maker: Callable[..., spark.Row] = spark.Row(*self.schema.names)
        return maker

    @property
    def types(self) -> dict[str, Any]:
        """Name of each column → its Spark type, as the checkpoint describes it."""
        types: dict[str, Any] = _type_as_plain(self.schema)
        return types

    # -- keys of maps --------------------------------------------------------------------------

    def to_key(self, row: Any) -> bytes:
        """Return the bytes that identify a row as the key of a map's item; raises as `internal`."""
        return msgspec.msgpack.encode(self.record_of(self.internal(row)))

    def from_key(self, key: bytes) -> tuple[Any, ...]:
        """Return the row of `to_key` as a tuple of Python values."""
        return self.to_tuple(self._decode_key(key))

    @functools.cached_property
    def _decode_key(self) -> Callable[[bytes], Any]:
        """Decoder of the bytes of `to_key`."""
        return msgspec.msgpack.Decoder(self.record).decode


@functools.cache
def rows_of_json(schema: str, name: str = "Row", shortest: bool = False) -> SparkRows:
    """Return the `SparkRows` of a Spark schema in JSON; the same object for the same text.

    `name`: of the class of its records. `shortest`: see `SparkRows`.
    """
    read = spark.StructType.fromJson(msgspec.json.decode(schema))
    return SparkRows(read, name, shortest=shortest)


def read_spark_schema(given: Any, where: str) -> spark.StructType:
    """Return a schema, as text, a PySpark ``StructType`` or an Arrow schema, as ``StructType``.

    `where`: what it describes, for errors. Raises `InvalidFlowError` if it cannot be read.
    """
    if isinstance(given, spark.StructType):
        return given
    if isinstance(given, spark.DataType):
        return spark.StructType([spark.StructField("value", given)])
    return spark_schema_of(to_schema(given, where=where))


def schema_of_java(schema: Any) -> spark.StructType:
    """Return a schema of the JVM's."""
    return spark.StructType.fromJson(msgspec.json.decode(str(schema.json())))


# -- evolution ------------------------------------------------------------------------------------


def _type_as_plain(dtype: spark.DataType) -> Any:
    """Return a type as plain values: a name, or a dict of the parts."""
    if isinstance(dtype, spark.StructType):
        return {field.name: _type_as_plain(field.dataType) for field in dtype.fields}
    if isinstance(dtype, spark.ArrayType):
        return {"[]": _type_as_plain(dtype.elementType)}
    if isinstance(dtype, spark.MapType):
        return {"{key}": _type_as_plain(dtype.keyType), "{}": _type_as_plain(dtype.valueType)}
    return dtype.simpleString()


def check_types(where: str, was: Mapping[str, Any], now: Mapping[str, Any], **context: Any) -> None:
    """Raise `CheckpointMismatchError` if the types of a state's columns have changed too much.

    A column may come or go, and a number may become wider. `was`, `now`: what the states mean, with
    the entries `KEY_TYPES` and `VALUE_TYPES`; `where`: the state, for errors.
    """
    problems = list(_unreadable_type_changes(was.get(VALUE_TYPES), now.get(VALUE_TYPES), ""))
    if was.get(KEY_TYPES) != now.get(KEY_TYPES):
        problems.append("the columns of the map's keys differ")
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint does not fit {where}: {'; '.join(problems)}. "
            "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]",
            remedy="Use the former schema, or give the state a new name.",
            **context,
        )


def _unreadable_type_changes(was: Any, now: Any, path: str) -> Iterator[str]:
    """Yield the changes of types that make stored values unreadable."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in was.keys() & now.keys():
            yield from _unreadable_type_changes(
                was[name], now[name], f"{path}.{name}" if path else name
            )
    elif was != now and now not in _WIDER.get(str(was), ()):
        yield f"column {path} was {was}, and is now {now}"


# -- what the JVM makes of a value ----------------------------------------------------------------


def _with_python_scalars(value: Any) -> Any:
    """Return a value with NumPy's and pandas' scalars as Python's, at any depth."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, spark.Row) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value)(*map(_with_python_scalars, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_with_python_scalars, value))
    if isinstance(value, dict):
        return {
            _with_python_scalars(key): _with_python_scalars(item) for key, item in value.items()
        }
    for convert in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # a NumPy scalar
        return value.tolist()
    return value


def fitting(dtype: spark.DataType, *, shortest: bool) -> Callable[[Any], Any]:
    """Return the function that converts an unpickled value to a type; raise for unknown types.

    `shortest`: texts of floats are those of Java since version 19.
    """
    kind = type(dtype)
    if kind in _WIDTHS:
        return functools.partial(_to_width, _WIDTHS[kind])
    if kind in _LONGS:
        return _to_long
    simple: dict[type, Converter] = {
        spark.DoubleType: lambda value: value if type(value) is float else None,
        spark.FloatType: _to_float,
        spark.BooleanType: lambda value: value if type(value) is bool else None,
        spark.BinaryType: _to_binary,
        spark.NullType: lambda _: None,
    }
    if kind in simple:
        return simple[kind]
    if isinstance(dtype, spark.StringType | spark.CharType | spark.VarcharType):
        return lambda value: (
            value if value is None or type(value) is str else java_text(value, shortest)
        )
    if isinstance(dtype, spark.DecimalType):
        return functools.partial(_to_decimal, dtype)
    if isinstance(dtype, spark.ArrayType):
        element = fitting(dtype.elementType, shortest=shortest)
        return lambda value: (
            [element(v) for v in value] if isinstance(value, list | tuple) else None
        )
    if isinstance(dtype, spark.MapType):
        key, item = (fitting(t, shortest=shortest) for t in (dtype.keyType, dtype.valueType))
        return lambda value: (
            {key(k): item(v) for k, v in value.items()} if isinstance(value, dict) else None
        )
    if isinstance(dtype, spark.StructType):
        parts = [fitting(field.dataType, shortest=shortest) for field in dtype.fields]
        return lambda value: (
            tuple([fit(v) for fit, v in zip(parts, value, strict=True)])
            if isinstance(value, tuple) and len(value) == len(parts)
            else None
        )
    raise InvalidFlowError(
        f"State of type {dtype.simpleString()} cannot be stored.",
        remedy="Use numbers, text, bytes, dates, timestamps, or arrays, maps and structs of these.",
    )


def _exact_kind(dtype: spark.DataType) -> type | None:
    """Return the Python type whose values are stored unchanged; ``None`` if there is none."""
    kind = type(dtype)
    if kind in _WIDTHS or kind is spark.LongType:
        return int
    exact: dict[type, type] = {
        spark.BooleanType: bool,
        spark.DoubleType: float,
        spark.StringType: str,
    }
    return exact.get(kind)


def _to_width(bits: int, value: Any) -> int | None:
    """Return the lowest `bits` of an integer of at most 64; ``None`` for anything else."""
    if type(value) is not int or value not in _INT64:
        return None
    half = 1 << (bits - 1)
    return value if -half <= value < half else ((value + half) & ((1 << bits) - 1)) - half


def _to_long(value: Any) -> int | None:
    """Return an integer of at most 64 bits; ``None`` for anything else."""
    return value if type(value) is int and value in _INT64 else None


def _to_float(value: Any) -> float | None:
    """Return a float rounded to 32 bits; ``None`` for anything else."""
    if type(value) is not float:
        return None
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded


def _to_binary(value: Any) -> bytes | None:
    """Return bytes, or text as UTF-8; ``None`` for anything else."""
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _to_decimal(dtype: spark.DecimalType, value: Any) -> decimal.Decimal | None:
    """Return a decimal rounded to the type's scale; ``None`` for anything else."""
    if not isinstance(value, decimal.Decimal) or not value.is_finite():
        return None
    with decimal.localcontext(prec=80):
        rounded = value.quantize(decimal.Decimal(1).scaleb(-dtype.scale), decimal.ROUND_HALF_UP)
    if len(rounded.as_tuple().digits) > dtype.precision and rounded:
        raise PySparkRuntimeError(
            f"[NUMERIC_VALUE_OUT_OF_RANGE.WITHOUT_SUGGESTION] The {rounded} rounded half up from "
            f"{value} cannot be represented as Decimal({dtype.precision}, {dtype.scale}). "
            "SQLSTATE: 22003"
        )
    return rounded


def _refuse_null(index: int, name: str) -> NoReturn:
    """Raise the error for null in a non-nullable field."""
    raise PySparkRuntimeError(f"The {index}th field '{name}' of input row cannot be null.")


def _as_rows(dtype: spark.DataType, value: Any) -> Any:
    """Convert a value from Arrow, with structs to tuples and maps to dicts."""
    if value is None:
        return None
    if isinstance(dtype, spark.StructType):
        return tuple([_as_rows(field.dataType, value[field.name]) for field in dtype.fields])
    if isinstance(dtype, spark.ArrayType):
        return [_as_rows(dtype.elementType, element) for element in value]
    if isinstance(dtype, spark.MapType):
        return {
            _as_rows(dtype.keyType, key): _as_rows(dtype.valueType, item) for key, item in value
        }
    return value


# -- stored records -------------------------------------------------------------------------------


def _has_parts(dtype: spark.DataType) -> bool:
    """Return whether values of a type have parts that are stored in another form."""
    return isinstance(dtype, spark.ArrayType | spark.MapType | spark.StructType)


def _record_class(schema: spark.StructType, name: str) -> Any:
    """Return the class of stored records of a schema: every field may be null."""
    fields = []
    for field in schema.fields:
        hint = _stored_type_hint(field.dataType, f"{name}_{field.name}")
        fields.append((field.name, hint if hint is None else hint | None, None))
    return msgspec.defstruct(name, fields, frozen=True, gc=False, module=__name__)


def _stored_type_hint(dtype: spark.DataType, name: str) -> Any:
    """Return the type of stored values; `name`: that of a nested record's class."""
    if isinstance(dtype, spark.ArrayType):
        element = _stored_type_hint(dtype.elementType, f"{name}_element")
        return list[element | None]  # type: ignore[valid-type]
    if isinstance(dtype, spark.MapType):
        key, item = (
            _stored_type_hint(dtype.keyType, f"{name}_key"),
            _stored_type_hint(dtype.valueType, f"{name}_value"),
        )
        return list[tuple[key, item | None]]  # type: ignore[valid-type]
    if isinstance(dtype, spark.StructType):
        return rows_of_json(dtype.json(), name).record
    if isinstance(dtype, spark.BooleanType):
        return bool
    if isinstance(dtype, spark.FloatType | spark.DoubleType):
        return float
    if isinstance(dtype, spark.StringType | spark.CharType | spark.VarcharType):
        return str
    if isinstance(dtype, spark.BinaryType):
        return bytes
    if isinstance(dtype, spark.DecimalType):
        return decimal.Decimal
    return None if isinstance(dtype, spark.NullType) else int


def _to_record(dtype: spark.DataType, name: str) -> Converter:
    """Return the function from internal values to stored ones; `name`: see `_stored_type_hint`."""
    if isinstance(dtype, spark.ArrayType) and _has_parts(dtype.elementType):
        element = _to_record(dtype.elementType, f"{name}_element")
        return lambda value: None if value is None else [element(v) for v in value]
    if isinstance(dtype, spark.MapType):
        key = _to_record(dtype.keyType, f"{name}_key")
        item = _to_record(dtype.valueType, f"{name}_value")
        return lambda value: (
            None if value is None else [(key(k), item(v)) for k, v in value.items()]
        )
    if isinstance(dtype, spark.StructType):
        nested = rows_of_json(dtype.json(), name)
        return lambda value: None if value is None else nested.record_of(value)
    return lambda value: value


def _from_record(dtype: spark.DataType) -> Converter:
    """Return the function from stored values to internal ones."""
    if isinstance(dtype, spark.ArrayType) and _has_parts(dtype.elementType):
        element = _from_record(dtype.elementType)
        return lambda value: None if value is None else [element(v) for v in value]
    if isinstance(dtype, spark.MapType):
        key, item = _from_record(dtype.keyType), _from_record(dtype.valueType)
        return lambda value: None if value is None else {key(k): item(v) for k, v in value}
    if isinstance(dtype, spark.StructType):
        parts = [_from_record(field.dataType) for field in dtype.fields]
        return lambda value: (
            None
            if value is None
            else tuple(
                [part(v) for part, v in zip(parts, msgspec.structs.astuple(value), strict=True)]
            )
        )
    return lambda value: value
