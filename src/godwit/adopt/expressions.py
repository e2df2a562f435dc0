"""Translation of expressions in Spark's optimized plan to expressions over Arrow columns.

Spark's analyzer gives every expression its type, casts its operands, and says whether it fails or
is null where it has no value.  Spark's optimizer then replaces all that is sugar (``BETWEEN``,
``nullif``, ``startswith``) by basic expressions, and computes constants.  So the expressions
that are left are few, and `read_expression` knows those that are proven to equal Spark's: a test
draws expressions and compares them with Spark.  Others are refused by name.

A column is named by the number of its attribute (`column_key`), since names may occur twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NoReturn
from zoneinfo import available_timezones

import pyarrow as pa
from py4j.java_gateway import get_field
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

from godwit.adopt.casts import LOCAL_ZONES, is_proven
from godwit.adopt.encoding import is_nested
from godwit.adopt.folds import Fold
from godwit.adopt.functions import (
    DATE_UNITS,
    DIFFERENCES_US,
    FORMS,
    FUNCTIONS,
    POWERS,
    TIME_UNITS,
    Constant,
    Form,
    Function,
    Lambda,
)
from godwit.adopt.java_patterns import java_pattern
from godwit.adopt.json_texts import has_json, has_key_text
from godwit.adopt.plan import (
    KEY_TEXT,
    children_of,
    has_method,
    id_of,
    kind_of,
    option,
    place_of,
    to_list,
)
from godwit.adopt.spark_hashes import is_hashed
from godwit.adopt.text_functions import date_format_of, literal_pattern
from godwit.adopt.zipped import Zip
from godwit.columns.python_values import has_instants
from godwit.columns.types import is_text, to_schema
from godwit.library.aggregates.expressions import Both, Case, Column, Expression, IsNull, Not
from godwit.model.errors import InvalidFlowError, UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adopt.java_patterns import JavaPattern
    from godwit.library.aggregates.arithmetic import Overflow

_OVERFLOWS: dict[str, Overflow] = {"ANSI": "error", "LEGACY": "wrap", "TRY": "null"}
_DAY_US = 86_400_000_000
_WITH_MODE = frozenset(
    {"Add", "Subtract", "Multiply", "Divide", "Remainder", "IntegralDivide", "Pmod", "Cast"}
)
_WITH_FAILING = frozenset({"UnaryMinus", "Abs", "GetArrayItem", "ElementAt"})  # or null
_FAILING_SINCE = frozenset({"Ceil", "Floor"})  # or cut, as in versions without the attribute
_WITH_ZONE = frozenset(
    {
        "Cast", "DateFormatClass", "Hour", "Minute", "MonthsBetween", "Second",
        "SubtractTimestamps", "TimestampAddInterval", "TimestampDiff", "TruncTimestamp",
    }
)  # fmt: skip
_ORDERED = frozenset(
    {
        "EqualNullSafe", "EqualTo", "GreaterThan", "GreaterThanOrEqual", "Greatest", "In", "InSet",
        "Least", "LessThan", "LessThanOrEqual",
    }
)  # fmt: skip
_TEXTS = frozenset(
    {
        "Upper", "Lower", "StartsWith", "EndsWith", "Contains", "StringReplace", "Substring",
        "Ascii", "InitCap", "Levenshtein", "Overlay", "RLike", "RegExpExtract", "RegExpReplace",
        "StringTranslate",
        "StringTrim", "StringTrimLeft", "StringTrimRight", "StringInstr", "StringLPad",
        "StringLocate", "StringRPad", "StringRepeat", "StringSplit", "SubstringIndex",
    }
)  # fmt: skip
_HASHES = frozenset({"Murmur3Hash", "XxHash64"})
_EXACT = frozenset({"Round", "BRound", "Floor", "Ceil"})
_LEGACY_TIMES = {"spark.sql.legacy.timeParserPolicy": "legacy"}
_SETTINGS = {
    "DateFormatClass": _LEGACY_TIMES,
    "StructsToJson": {**_LEGACY_TIMES, "spark.sql.jsonGenerator.ignoreNullFields": "false"},
}
"""Function → session settings, with the values for which its texts differ."""


ROWS: Final = "#rows"
"""Key of a column that always exists, so that the number of rows is known."""


def column_key(attribute: Any) -> str:
    """Return the name of the column of an attribute of Spark's plan."""
    return f"#{id_of(attribute)}"


def spark_type(data_type: Any) -> pa.DataType:
    """Return the Arrow type of a Spark type catalyst; raise `ValueError` if it has none."""
    text = data_type.json()
    if "collat" in text.lower():
        raise ValueError(f"a collation of text ({data_type.simpleString()})")
    parsed = _parse_datatype_json_string(text)
    if parsed.typeName() == "void":
        return pa.null()
    try:
        schema = to_schema(
            StructType([StructField("it", parsed)]), where="A column of Spark's plan"
        )
    except InvalidFlowError as error:
        raise ValueError(f"the type {data_type.simpleString()}") from error
    return schema.field("it").type


@dataclass(slots=True, kw_only=True)
class ExpressionReader:
    """Reads expressions of one plan."""

    types: dict[str, pa.DataType] = field(default_factory=dict)  # of Spark, by their JSON
    shortest: bool = False  # texts of floats, as Java writes them
    conf: Any = field(default_factory=dict)  # the session's settings
    bytes_of: Callable[[Any], bytes] = bytes  # of a Scala sequence

    def read(self, expression: Any) -> Expression:
        """Return an expression over Arrow columns; refuse unsupported ones.

        Raises `UnsupportedQueryError`, which names the part that is not known and its place.
        """
        name = kind_of(expression)
        read = _READERS.get(name)
        try:
            if read is not None:
                return read(self, expression)
            arguments = tuple(self.read(child) for child in children_of(expression))
            if name in FORMS:
                return self._function_with_own_nulls(name, expression, arguments)
            if name not in FUNCTIONS:
                self.refuse(expression, f"the expression {name}")
            return self._function_null_for_null(name, expression, arguments)
        except ValueError as error:
            self.refuse(expression, str(error))

    def refuse(self, expression: Any, reason: str) -> NoReturn:
        """Raise the error that an expression cannot be computed in a lane."""
        text, place = _as_spark_writes(expression), place_of(expression)
        raise UnsupportedQueryError(
            f"{text}{f', in {place},' if place else ''} cannot be computed between two stateful "
            f"operators: it needs {reason}.",
            remedy="Compute it as a column before the first stateful operator, or after the last "
            "one, so that Spark computes it.",
            node=kind_of(expression),
            expression=text,
            place=place,
            reason=reason,
        )

    def check_settings(self, name: str) -> None:
        """Raise `ValueError` if the session has a setting with which a function differs."""
        for setting, other in _SETTINGS.get(name, {}).items():
            if str(self.conf.get(setting)).lower() == other:
                raise ValueError(f"the setting {setting}={other}")

    def type_of(self, data_type: Any) -> pa.DataType:
        """Return the Arrow type of a Spark type."""
        text = str(data_type.json())
        if text not in self.types:
            self.types[text] = spark_type(data_type)
        return self.types[text]

    def _function_with_own_nulls(
        self, name: str, expression: Any, arguments: tuple[Expression, ...]
    ) -> Expression:
        """Return a function with its own rule for nulls."""
        types = [self.type_of(child.dataType()) for child in children_of(expression)]
        if name in _ORDERED:
            _check_order(types[0])
        if name == "InSet":
            if pa.types.is_floating(types[0]):
                raise ValueError("a long list of floats")
            items = _items_of_scala_set(expression.hset())
            arguments += tuple(Constant(_stored_as_scalar(item, types[0])) for item in items)
        if name == "Concat" and not all(
            is_text(dtype_) or pa.types.is_list(dtype_) for dtype_ in types
        ):
            raise ValueError("concatenated bytes")
        if name == "ConcatWs" and len(types) == 1:
            raise ValueError("only a delimiter")
        options: tuple[Any, ...] = ()
        if name in _HASHES:
            for dtype in types:
                if not is_hashed(dtype):
                    raise ValueError(f"a hash of values of type {dtype}")
            options = (int(expression.seed()),)
        if name == "ArrayInsert":
            position = _constant_value(arguments[1], "a position that is not constant")
            if position not in (-1, 1) or expression.legacyNegativeIndex():
                raise ValueError("an element in the middle of an array")
            arguments, options = (arguments[0], arguments[2]), (position == -1,)
        dtype = self.type_of(expression.dataType())
        return Form(name=name, arguments=arguments, dtype=dtype, options=options)

    def _function_null_for_null(
        self, name: str, expression: Any, arguments: tuple[Expression, ...]
    ) -> Expression:
        """Return a function that is null for a null operand."""
        children = children_of(expression)
        self.check_settings(name)
        if name == "TimestampAddInterval":
            children = children[:1]  # intervals are constants, and have no type of columns
        types = [self.type_of(child.dataType()) for child in children]
        dtype = self.type_of(expression.dataType())
        last = arguments[-1]
        overflow: Overflow = "error"
        options: tuple[Any, ...] = ()
        zone = _zone_of(expression) if name in _WITH_ZONE else "UTC"
        if name in _WITH_MODE:
            overflow = _OVERFLOWS[str(expression.evalMode().toString())]
        elif name in _WITH_FAILING or (
            name in _FAILING_SINCE and has_method(expression, "failOnError")
        ):
            overflow = "error" if expression.failOnError() else "wrap"
        elif name in _FAILING_SINCE:
            overflow = "wrap"
        if name in _WITH_ZONE and name != "Cast":
            _check_zone(zone)
        if name in _TEXTS and not all(map(is_text, types[:1])):
            raise ValueError("bytes instead of text")
        if name == "IntegralDivide" and not pa.types.is_integer(types[0]):
            raise ValueError("integral division of types other than integers")
        if name == "Cast":
            pair = types[0], dtype
            if all(map(pa.types.is_list, pair)):
                pair = types[0].value_type, dtype.value_type
            if any(map(pa.types.is_temporal, pair)):
                _check_zone(zone)
            if pa.types.is_string(pair[1]):
                _check_intervals(children[0])
            if not is_proven(*pair):
                raise ValueError(f"a cast of {types[0]} to {dtype}")
            options = (self.shortest,)
        elif name in _EXACT:
            options = (_rounding_digits(name, arguments, types[0]), self.shortest)
            arguments = arguments[:1]
        elif name == "Like":
            arguments, options = (arguments[0],), (_like_as_regular_expression(last, expression),)
        elif name == "GetStructField":
            options = (int(expression.ordinal()),)
        elif name == "TruncDate":
            arguments, options = (arguments[0],), (_truncation_unit(last, DATE_UNITS),)
        elif name == "TruncTimestamp":
            arguments, options = (last,), (_truncation_unit(arguments[0], TIME_UNITS),)
        elif name == "TimestampDiff":
            unit = str(expression.unit()).upper()
            if unit not in DIFFERENCES_US:
                raise ValueError(f"differences in the unit {unit}")
            options = (DIFFERENCES_US[unit],)
        elif name == "TimestampAddInterval":
            arguments, options = _timestamp_plus_interval(arguments)
        elif name == "UnixTimestamp":
            if not pa.types.is_timestamp(types[0]) or types[0].tz is None:
                raise ValueError("a string or date as a timestamp")
            arguments = arguments[:1]
        elif name == "Sequence" and not (len(types) == 2 and pa.types.is_integer(types[0])):
            raise ValueError("a sequence of values other than integers, or with a step")
        elif name == "WidthBucket" and not pa.types.is_floating(types[0]):
            raise ValueError("buckets of intervals")
        elif name == "Levenshtein" and len(types) > 2:
            raise ValueError("a maximum distance")
        elif name == "Size" and expression.legacySizeOfNull():
            size = Function(name=name, arguments=arguments, dtype=dtype)
            none = Constant(pa.scalar(-1, dtype))
            return Form(name="Coalesce", arguments=(size, none), dtype=dtype)
        elif name == "ElementAt" and expression.defaultValueOutOfBound().isDefined():
            default = self.read(option(expression.defaultValueOutOfBound()))
            options = (_constant_value(default, "a default element that is not constant"),)
        elif name == "ElementAt" and pa.types.is_map(types[0]):
            name = "GetMapValue"
        elif name in _READ_OPTIONS:
            arguments, options = _READ_OPTIONS[name](arguments)
        if name in _OF_ELEMENTS:
            _check_elements(name, types[0])
        return Function(
            name=name,
            arguments=arguments,
            dtype=dtype,
            overflow=overflow,
            zone=zone,
            options=options,
        )


def _timestamp_plus_interval(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of a timestamp and an interval that are added."""
    interval = arguments[1]
    if not isinstance(interval, Constant):
        raise ValueError("an interval that is not constant")  # noqa: TRY004
    return _split_off_days(arguments[0], interval.value)


def _split_off_days(
    time: Expression, value: pa.Scalar
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return a timestamp and the rest of an interval, and the whole days of that."""
    months = 0
    if pa.types.is_duration(value.type):
        whole = value.cast(pa.int64()).as_py() or 0
        days = abs(whole) // _DAY_US * (-1 if whole < 0 else 1)
        moved = whole - days * _DAY_US
    elif pa.types.is_interval(value.type):
        months, days, nanoseconds = value.as_py() if value.is_valid else (0, 0, 0)
        moved = nanoseconds // 1000
    if months or not (pa.types.is_duration(value.type) or pa.types.is_interval(value.type)):
        raise ValueError("an interval of months")
    scalar = pa.scalar(moved if value.is_valid else None, pa.duration("us"))
    return (time, Constant(scalar)), (days,)


def _check_elements(name: str, dtype: pa.DataType) -> None:
    """Raise `ValueError` if elements of an array, or keys of a map, are not compared here."""
    element = dtype.key_type if pa.types.is_map(dtype) else dtype.value_type
    if pa.types.is_floating(element) and name in _SETS:
        raise ValueError("distinct floats")
    if pa.types.is_map(element) or pa.types.is_interval(element):
        raise ValueError(f"an order of values of type {element}")
    if is_nested(element) and name in _SETS:
        raise ValueError(f"distinct values of type {element}")


def _sort_array_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``sort_array``."""
    return arguments[:1], (bool(_constant_value(arguments[1], "an order that is not constant")),)


def _split_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``split``."""
    pattern = literal_pattern(str(_constant_value(arguments[1], "a pattern that is not constant")))
    if pattern is None:
        raise ValueError("a regular expression")
    if int(_constant_value(arguments[2], "a limit that is not constant")) > 0:
        raise ValueError("a number of parts")
    return arguments[:1], (pattern,)


def _locate_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands of ``locate``, whose position is not null."""
    _constant_value(arguments[2], "a position that is not constant")
    return arguments, ()


def _shown_times(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``date_format``."""
    pattern = str(_constant_value(arguments[1], "a pattern that is not constant"))
    parts = date_format_of(pattern)
    if parts is None:
        raise ValueError(f"the pattern {pattern!r}")
    return arguments[:1], (parts,)


def _rlike_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``rlike``."""
    return arguments[:1], (_java_pattern_of(arguments[1]),)


def _regexp_extract_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``regexp_extract``."""
    pattern, group = (
        _java_pattern_of(arguments[1]),
        int(_constant_value(arguments[2], "a group that is not constant")),
    )
    if pattern.repeats_captures or not 0 <= group <= pattern.groups:
        raise ValueError(f"a group of {_constant_value(arguments[1], '')!r}")
    return arguments[:1], (pattern, group)


def _regexp_replace_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``regexp_replace``."""
    pattern, text = (
        _java_pattern_of(arguments[1]),
        str(_constant_value(arguments[2], "a text that is not constant")),
    )
    if pattern.can_be_empty or set(text) & {"$", "\\"}:
        raise ValueError("a pattern that matches nothing, or groups in its replacement")
    if _constant_value(arguments[3], "a position that is not constant") != 1:
        raise ValueError("a position within the text")
    return arguments[:1], (pattern, text)


def _java_pattern_of(expression: Expression) -> JavaPattern:
    """Return a regular expression; raise `ValueError` for an unsupported one."""
    text = str(_constant_value(expression, "a pattern that is not constant"))
    pattern = java_pattern(text)
    if pattern is None:
        raise ValueError(f"the pattern {text!r}")
    return pattern


def _translate_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``translate``."""
    before, after = (str(_constant_value(part, "characters that vary")) for part in arguments[1:])
    table: dict[int, str | None] = {}
    for place, character in enumerate(before):
        table.setdefault(ord(character), after[place] if place < len(after) else None)
    return arguments[:1], (table,)


def _next_days(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``next_day``."""
    name = str(_constant_value(arguments[1], "a day that is not constant")).upper()
    for number, full in enumerate(_FROM_THURSDAY):
        if name in (full, full[:2], full[:3]):
            return arguments[:1], (number,)
    raise ValueError(f"the day {name}")


def _timezone_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``from_utc_timestamp`` and ``to_utc_timestamp``."""
    zone = str(_constant_value(arguments[1], "a time zone that is not constant"))
    _check_zone(zone)
    return arguments[:1], (zone,)


def _format_number_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``format_number``."""
    places = _constant_value(arguments[1], "a number of places that is not constant")
    if not isinstance(places, int) or places < 0:
        raise ValueError(f"the format {places!r}")
    return arguments[:1], (places,)


def _power_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``power``."""
    exponent = float(_constant_value(arguments[1], "an exponent that is not constant"))
    if exponent not in POWERS:
        raise ValueError(f"the exponent {exponent}")
    return arguments[:1], (exponent,)


def _sha2_operands(
    arguments: tuple[Expression, ...],
) -> tuple[tuple[Expression, ...], tuple[Any, ...]]:
    """Return the operands and options of ``sha2``."""
    bits = int(_constant_value(arguments[1], "a number of bits that is not constant"))
    if bits not in (0, 224, 256, 384, 512):
        raise ValueError(f"a hash of {bits} bits")
    return arguments[:1], (bits,)


_FROM_THURSDAY = (*("THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY"),)
_SETS = frozenset({"ArrayDistinct", "ArrayExcept", "ArrayIntersect", "ArrayUnion"})
_OF_ELEMENTS = _SETS | {
    "ArrayContains", "ArrayMax", "ArrayMin", "ArrayPosition", "ArrayRemove", "ArraysOverlap",
    "GetMapValue", "SortArray",
}  # fmt: skip
_READ_OPTIONS: dict[
    str, Callable[[tuple[Expression, ...]], tuple[tuple[Expression, ...], tuple[Any, ...]]]
] = {
    "DateFormatClass": _shown_times,
    "FormatNumber": _format_number_operands,
    "FromUTCTimestamp": _timezone_operands,
    "NextDay": _next_days,
    "Pow": _power_operands,
    "RLike": _rlike_operands,
    "RegExpExtract": _regexp_extract_operands,
    "RegExpReplace": _regexp_replace_operands,
    "Sha2": _sha2_operands,
    "SortArray": _sort_array_operands,
    "StringLocate": _locate_operands,
    "StringSplit": _split_operands,
    "StringTranslate": _translate_operands,
    "ToUTCTimestamp": _timezone_operands,
}
"""Function with options → its operands and options, of all of its operands."""


def _items_of_scala_set(values: Any) -> list[Any]:
    """Return the values of a set of Scala's."""
    iterator, items = values.iterator(), []
    while iterator.hasNext():
        items.append(iterator.next())
    return sorted(items, key=str)


def _as_spark_writes(expression: Any) -> str:
    """Return the text of an expression, as in Spark."""
    return str(expression.sql())


def _zone_of(expression: Any) -> str:
    """Return the time zone of an expression, the session's."""
    return str(option(expression.timeZoneId()) or "UTC")


def _check_zone(zone: str) -> None:
    """Raise `ValueError` for a time zone whose rules may not be those of Java.

    Rules of names without an area, such as WET, differ between versions of the time zones' data.
    """
    is_offset = re.fullmatch(r"[+-]\d\d:\d\d", zone) is not None
    if (
        not is_offset
        and zone not in LOCAL_ZONES
        and ("/" not in zone or zone not in available_timezones())
    ):
        raise ValueError(f"the time zone {zone}")


def _constant_value(expression: Expression, reason: str) -> Any:
    """Return the value of a constant; `reason`: of the refusal of others."""
    if not isinstance(expression, Constant) or not expression.value.is_valid:
        raise ValueError(reason)
    return expression.value.as_py()


def _rounding_digits(name: str, arguments: tuple[Expression, ...], dtype: pa.DataType) -> int:
    """Return the number of digits that numbers are rounded to."""
    digits = 0
    if len(arguments) > 1:
        digits = int(_constant_value(arguments[1], "digits that vary"))
    if digits < 0:
        raise ValueError("rounding of digits before the point")
    if pa.types.is_float32(dtype) and name in ("Round", "BRound"):
        raise ValueError("rounding of a float")
    return digits


def _truncation_unit(expression: Expression, units: frozenset[str]) -> str:
    """Return a unit that times are truncated to."""
    unit = str(_constant_value(expression, "a unit that is not constant")).upper()
    if unit not in units:
        raise ValueError(f"the unit {unit}")
    return unit


def _like_as_regular_expression(expression: Expression, like: Any) -> str:
    """Return the pattern of ``LIKE`` as a regular expression."""
    pattern, escape = (
        _constant_value(expression, "a pattern that is not constant"),
        like.escapeChar(),
    )
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, "")
            if following not in ("_", "%", escape):
                raise ValueError(f"the pattern {pattern!r}")
            parts.append(re.escape(following))
        else:
            parts.append({"_": ".", "%": ".*"}.get(character) or re.escape(character))
    return "".join(parts)


def _check_order(dtype: pa.DataType) -> None:
    """Raise `ValueError` if values of a type are not compared here."""
    if pa.types.is_nested(dtype) or pa.types.is_interval(dtype) or pa.types.is_null(dtype):
        raise ValueError(f"an order of values of type {dtype}")


def _stored_as_scalar(value: Any, dtype: pa.DataType) -> pa.Scalar:
    """Convert a value in Spark's plan to an Arrow scalar."""
    if value is None:
        return pa.scalar(None, dtype)
    if pa.types.is_date(dtype):
        return pa.scalar(int(value), pa.int32()).cast(dtype)
    if pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype):
        return pa.scalar(int(value), pa.int64()).cast(dtype)
    if pa.types.is_decimal(dtype):
        return pa.scalar(Decimal(str(value)), dtype)
    if is_text(dtype):
        return pa.scalar(str(value), dtype)
    if pa.types.is_binary(dtype):
        return pa.scalar(bytes(value), dtype)
    if pa.types.is_interval(dtype):
        months, days, micros = (
            int(get_field(value, part)) for part in ("months", "days", "microseconds")
        )
        parts = (months, days, micros * 1000)
        return pa.scalar(pa.MonthDayNano(parts), dtype)
    if pa.types.is_boolean(dtype) or pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return pa.scalar(value, dtype)
    raise ValueError(f"a constant of type {dtype}")


def _read_attribute(_reader: ExpressionReader, expression: Any) -> Expression:
    """Return the column of an attribute."""
    return Column(column_key(expression))


def _read_alias(reader: ExpressionReader, expression: Any) -> Expression:
    """Return the expression that has a name."""
    return reader.read(expression.child())


def _read_literal(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a constant."""
    data_type = expression.dataType()
    if str(data_type.simpleString()) == "interval":
        return Constant(_stored_as_scalar(expression.value(), pa.month_day_nano_interval()))
    if kind_of(data_type) == "ArrayType" and expression.value() is not None:
        dtype = reader.type_of(data_type)
        items = to_list(expression.value().toSeq(data_type.elementType()))
        values = [_stored_as_scalar(item, dtype.value_type).as_py() for item in items]
        return Constant(pa.scalar(values, dtype))
    return Constant(_stored_as_scalar(expression.value(), reader.type_of(data_type)))


def _read_months_later(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a date and a constant interval of months, added."""
    date, interval = children_of(expression)
    if kind_of(interval) != "Literal":
        raise ValueError("an interval of months that is not constant")
    months = Constant(pa.scalar(interval.value(), pa.int32()))
    return Function(name="AddMonths", arguments=(reader.read(date), months), dtype=pa.date32())


def _read_timestamp_add(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a timestamp and a constant number of units, added."""
    number, time = children_of(expression)
    unit = {"DAYOFYEAR": "DAY"}.get(str(expression.unit()).upper(), str(expression.unit()).upper())
    if unit not in DIFFERENCES_US or kind_of(number) != "Literal" or number.value() is None:
        raise ValueError(f"addition of {unit}")
    micros, zone = int(number.value()) * DIFFERENCES_US[unit], _zone_of(expression)
    _check_zone(zone)
    interval = pa.scalar(micros, pa.duration("us"))
    arguments, options = _split_off_days(reader.read(time), interval)
    if unit not in ("DAY", "WEEK"):  # hours are not added by the clock, however many
        arguments, options = (arguments[0], Constant(interval)), (0,)
    dtype = reader.type_of(expression.dataType())
    return Function(
        name="TimestampAddInterval", arguments=arguments, dtype=dtype, zone=zone, options=options
    )


def _reader_of_and_or(word: str) -> Callable[[ExpressionReader, Any], Expression]:
    """Return the reader of ``and`` or ``or``."""

    def read(reader: ExpressionReader, expression: Any) -> Expression:
        left, right = (reader.read(child) for child in children_of(expression))
        return Both(word, left, right, (left.can_fail, right.can_fail))

    return read


def _read_not(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a negation."""
    return Not(reader.read(expression.child()))


def _reader_of_null_test(is_null: bool) -> Callable[[ExpressionReader, Any], Expression]:
    """Return the reader of ``is null`` or ``is not null``."""

    def read(reader: ExpressionReader, expression: Any) -> Expression:
        test = IsNull(reader.read(expression.child()))
        return test if is_null else Not(test)

    return read


def _read_case(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a choice, which is null for other rows unless it has a default."""
    parts = [reader.read(child) for child in children_of(expression)]
    dtype = reader.type_of(expression.dataType())
    if len(parts) % 2 == 0:
        parts.append(Constant(pa.scalar(None, dtype)))
    *pairs, last = parts
    return Case(tuple(pairs[::2]), (*pairs[1::2], last))


def _read_struct(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a struct; the names of its fields are part of its type."""
    values = tuple(reader.read(child) for child in children_of(expression)[1::2])
    dtype = reader.type_of(expression.dataType())
    return Form(name="CreateNamedStruct", arguments=values, dtype=dtype)


def _read_invoke(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a value as JSON, or as a key's text (`Catalyst.key_text`); refuse other calls."""
    target = expression.targetObject()
    evaluator = target.value() if kind_of(target) == "Literal" else target
    name = kind_of(evaluator).removesuffix("Evaluator")
    if name != "StructsToJson":
        raise ValueError(f"the expression {name}")
    value = children_of(expression)[1]
    if not evaluator.options().contains(KEY_TEXT):
        return _json_of(reader, evaluator, value)
    value = children_of(value)[1]  # of a struct of one field
    dtype = reader.type_of(value.dataType())
    if not has_key_text(dtype):
        raise ValueError(f"the text of a key of type {dtype}")
    _check_intervals(value)
    options = (reader.shortest,)
    return Function(
        name="KeyText", arguments=(reader.read(value),), dtype=pa.string(), options=options
    )


def _read_static_invoke(reader: ExpressionReader, expression: Any) -> Expression:
    """Return text as bytes, or bytes as text of Base64; refuse other calls of Java's methods."""
    name = str(expression.staticObject().getName()).rpartition(".")[2]
    value, *further = children_of(expression)
    constants = [operand.value() if kind_of(operand) == "Literal" else None for operand in further]
    if name == "Base64" and constants[0] is not None:
        options = (bool(constants[0]),)
        return Function(
            name="Base64", arguments=(reader.read(value),), dtype=pa.string(), options=options
        )
    if name != "Encode" or not is_text(reader.type_of(value.dataType())):
        raise ValueError(f"the expression {name}")
    if str(constants[0]).upper() not in ("UTF-8", "UTF8"):
        raise ValueError(f"the character set {constants[0]}")
    return Function(name="Cast", arguments=(reader.read(value),), dtype=pa.binary())


def _check_intervals(expression: Any) -> None:
    """Raise `ValueError` for intervals whose texts have other parts than days and a time."""
    text = str(expression.dataType().simpleString())
    if "interval" in text.replace("interval day to second", ""):
        raise ValueError("the text of an interval other than DAY TO SECOND")


def _json_of(reader: ExpressionReader, evaluator: Any, value: Any) -> Expression:
    """Return a value as JSON."""
    dtype = reader.type_of(value.dataType())
    reader.check_settings("StructsToJson")
    if not evaluator.options().isEmpty():
        raise ValueError("options of to_json")
    if not has_json(dtype):
        raise ValueError(f"JSON of type {dtype}")
    zone = str(option(evaluator.timeZoneId()) or "UTC")
    if has_instants(dtype):
        _check_zone(zone)
    return Function(
        name="StructsToJson",
        arguments=(reader.read(value),),
        dtype=pa.string(),
        zone=zone,
        options=(reader.shortest,),
    )


_VARIABLE = re.compile(r"(?:lambda )?\w+#\d+L?")
_NULLS_LAST = "if ((isnull(a) AND isnull(b))) 0 else if (isnull(a)) 1 else if (isnull(b)) -1 else "
_BY_SIZE = "if ((a < b)) -1 else if ((a > b)) 1 else 0"
_COMPARES = frozenset({_NULLS_LAST + _BY_SIZE, _BY_SIZE})
"""Texts of the comparison that ``array_sort`` has by default."""


def _read_array_sort(reader: ExpressionReader, expression: Any) -> Expression:
    """Return an array sorted by the order of its elements."""
    argument, function = children_of(expression)
    names = dict(zip(map(column_key, to_list(function.arguments())), "ab", strict=True))
    body = str(children_of(function)[0].toString())
    text = _VARIABLE.sub(lambda m: names.get("#" + m[0].split("#")[1].rstrip("L"), m[0]), body)
    if text not in _COMPARES:
        raise ValueError("a comparison of elements")
    dtype = reader.type_of(expression.dataType())
    _check_elements("SortArray", dtype)
    return Function(name="ArraySort", arguments=(reader.read(argument),), dtype=dtype)


def _read_fold(reader: ExpressionReader, expression: Any) -> Expression:
    """Return the elements of an array merged into one value."""
    argument, start, merge, finish = children_of(expression)
    merge_body, *merge_variables = children_of(merge)
    finish_body, finish_variable = children_of(finish)
    value, element = map(column_key, merge_variables)
    return Fold(
        argument=reader.read(argument),
        start=reader.read(start),
        merge=reader.read(merge_body),
        variables=(value, element),
        finish=reader.read(finish_body),
        result=column_key(finish_variable),
        dtype=reader.type_of(start.dataType()),
    )


def _read_zip_with(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a function of the pairs of elements of two arrays."""
    left, right, function = children_of(expression)
    first, second = map(column_key, to_list(function.arguments()))
    return Zip(
        left=reader.read(left),
        right=reader.read(right),
        body=reader.read(children_of(function)[0]),
        variables=(first, second),
        dtype=reader.type_of(expression.dataType()),
    )


def _read_lambda(reader: ExpressionReader, expression: Any) -> Expression:
    """Return a function of the elements of an array."""
    argument, function = children_of(expression)
    if kind_of(argument.dataType()) != "ArrayType":
        raise ValueError("a function of the entries of a map")
    if kind_of(expression) == "ArrayExists" and not expression.followThreeValuedLogic():
        raise ValueError("exists(...) without nulls")
    body = children_of(function)[0]
    variables = to_list(function.arguments())
    return Lambda(
        name=kind_of(expression),
        argument=reader.read(argument),
        body=reader.read(body),
        variables=tuple(column_key(variable) for variable in variables),
        dtype=reader.type_of(expression.dataType()),
    )


_READERS: dict[str, Callable[[ExpressionReader, Any], Expression]] = {
    "Alias": _read_alias,
    "And": _reader_of_and_or("and"),
    "ArrayAggregate": _read_fold,
    "ArrayExists": _read_lambda,
    "ArrayFilter": _read_lambda,
    "ArrayForAll": _read_lambda,
    "ArraySort": _read_array_sort,
    "ArrayTransform": _read_lambda,
    "AttributeReference": _read_attribute,
    "CaseWhen": _read_case,
    "CreateNamedStruct": _read_struct,
    "DateAddYMInterval": _read_months_later,
    "If": _read_case,
    "Invoke": _read_invoke,
    "IsNotNull": _reader_of_null_test(is_null=False),
    "IsNull": _reader_of_null_test(is_null=True),
    "Literal": _read_literal,
    "NamedLambdaVariable": _read_attribute,
    "Not": _read_not,
    "Or": _reader_of_and_or("or"),
    "StaticInvoke": _read_static_invoke,
    "TimestampAdd": _read_timestamp_add,
    "ZipWith": _read_zip_with,
}
"""Spark's expression class → its reader, except for plain functions."""
