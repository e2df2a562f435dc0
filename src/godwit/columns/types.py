"""Arrow types that a key may have, and the schema of a result as users write it.

A key column must have a type that Spark's ``xxhash64`` and our own agree on, and whose values can
be compared byte by byte; everything else may be read, aggregated and emitted but not keyed by.

Schemas as text are read by a grammar of our own, since a flow is built without asking Spark
anything: the whole of Spark's DDL for columns::

    columns   = column {"," column}  |  "struct" "<" columns ">"
    column    = name [":"] type ["not" "null"] ["comment" text]
    type      = "array" "<" type ">"  |  "map" "<" type "," type ">"
              | "struct" "<" [columns] ">"  |  "interval" unit ["to" unit]
              | "timestamp" "without" "time" "zone"
              | word ["(" number {"," number} ")"] ["collate" word]

Names may stand in backticks; ``--`` and ``/* */`` begin comments.  ``not null`` and ``comment`` are
read and of no effect: every column may hold nulls.

A stream that is keyed by no column is one group.  Its operators have a hidden key column anyway,
which is true in every row and which users never see.  Only this module knows its name.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import (
    RESERVED_PREFIX,
    check_column_names,
    did_you_mean,
    listing,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class _SparkStruct(Protocol):
    """A Spark schema."""

    @property
    def fields(self) -> Sequence[Any]:
        """Columns of the schema, in order."""
        ...


class _ArrowSchema(Protocol):
    """An Arrow schema, named so that a type checker without Arrow's types knows it from others."""

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        ...

    @property
    def types(self) -> list[Any]:
        """Arrow types of the columns, in order."""
        ...


SchemaLike: TypeAlias = _ArrowSchema | Mapping[str, object] | str | _SparkStruct
"""An Arrow schema, a dict of column name → type, text like ``"symbol string, price double"``, or
a PySpark ``StructType``."""

COLUMN_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
}
"""Python classes that a schema or a class of rows may name, and their column types."""


def is_text(dtype: pa.DataType) -> bool:
    """Return whether values are strings, of any layout."""
    types = pa.types
    return bool(
        types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype)
    )


def is_binary(dtype: pa.DataType) -> bool:
    """Return whether values are bytes, of any layout."""
    types = pa.types
    return bool(
        types.is_binary(dtype)
        or types.is_large_binary(dtype)
        or types.is_binary_view(dtype)
        or types.is_fixed_size_binary(dtype)
    )


def is_list(dtype: pa.DataType) -> bool:
    """Return whether values are lists, of any layout."""
    types = pa.types
    return bool(
        types.is_list(dtype)
        or types.is_large_list(dtype)
        or types.is_fixed_size_list(dtype)
        or types.is_list_view(dtype)
        or types.is_large_list_view(dtype)
    )


def is_date_or_timestamp(dtype: pa.DataType) -> bool:
    """Return whether values are dates or timestamps, with or without a time zone."""
    return bool(pa.types.is_date(dtype) or pa.types.is_timestamp(dtype))


def is_instant(dtype: pa.DataType) -> bool:
    """Return whether values are timestamps with a time zone."""
    return bool(pa.types.is_timestamp(dtype) and dtype.tz is not None)


def is_temporal(dtype: pa.DataType) -> bool:
    """Return whether values are dates, timestamps, times of day or durations."""
    types = pa.types
    return is_date_or_timestamp(dtype) or types.is_time(dtype) or types.is_duration(dtype)


def is_key_type(dtype: pa.DataType) -> bool:
    """Return whether key columns may have type `dtype`.

    Booleans, signed integers, floats, doubles, strings, binary, dates (days), timestamps
    (microseconds, as in Spark) and decimals of up to 38 digits may.
    """
    types = pa.types
    return bool(
        types.is_boolean(dtype)
        or types.is_signed_integer(dtype)
        or types.is_float32(dtype)
        or types.is_float64(dtype)
        or types.is_string(dtype)
        or types.is_large_string(dtype)
        or types.is_binary(dtype)
        or types.is_large_binary(dtype)
        or types.is_date32(dtype)
        or (types.is_timestamp(dtype) and dtype.unit == "us")
        or types.is_decimal128(dtype)
    )


def key_type_remedy(name: str, dtype: pa.DataType) -> str:
    """Return the remedy for a key column of an unsupported type."""
    types = pa.types
    if types.is_struct(dtype):
        fields = [dtype.field(i).name for i in range(dtype.num_fields)]
        first = fields[0] if fields else "field"
        return (
            f"Add the fields you mean as columns of their own in a map before key_by (such as "
            f"{name}.{first}), and key by those."
        )
    if types.is_map(dtype) or types.is_nested(dtype):
        return (
            f"Turn {name!r} into one value in a map before key_by: explode it, or join its "
            "elements into a string."
        )
    if types.is_dictionary(dtype):
        return f"Cast {name!r} to {dtype.value_type} in a map before key_by."
    if types.is_duration(dtype) or types.is_interval(dtype):
        return f"Cast {name!r} to a number of seconds (bigint) in a map before key_by."
    if types.is_timestamp(dtype):
        return f"Cast {name!r} to timestamp[us] in a map before key_by."
    if types.is_unsigned_integer(dtype):
        return f"Cast {name!r} to a signed integer in a map before key_by."
    return (
        f"Cast {name!r} to a boolean, integer, float, string, binary, date, timestamp or decimal "
        "in a map before key_by."
    )


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with names and types only: all columns nullable, without metadata."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def columns_text(schema: pa.Schema) -> str:
    """Return the names and types of columns as text, for messages.

    Examples
    --------
    >>> columns_text(pa.schema({"symbol": pa.string(), "price": pa.float64()}))
    'symbol: string, price: double'
    """
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def to_schema(value: SchemaLike, *, where: str) -> pa.Schema:
    """Return a schema, given in any form that users may write, as an Arrow schema.

    `where`: what it describes, for errors. Raises `InvalidFlowError` if it cannot be read, has no
    columns, or a column has a reserved name or comes twice.

    Examples
    --------
    >>> to_schema("symbol string, price double", where="The output")
    symbol: string
    price: double
    """
    columns: list[tuple[str, object]]
    if isinstance(value, pa.Schema):
        columns = [(field.name, field.type) for field in value]
    elif isinstance(value, str):
        columns = list(columns_of_text(value, where))
    elif isinstance(value, Mapping):
        columns = list(value.items())
    elif isinstance(fields := getattr(value, "fields", None), list):
        columns = [(field.name, field.dataType) for field in fields]
    else:
        raise InvalidFlowError(
            f"{where} must be a schema, but is a value of type {type_name(value)}.",
            remedy='Give a pyarrow.Schema, a dict such as {"symbol": "string"}, or text such as '
            '"symbol string, price double".',
        )
    if not columns:
        raise InvalidFlowError(
            f"{where} has no columns.",
            remedy='Name at least one, for example "symbol string, price double".',
        )
    for name, _ in columns:
        if not isinstance(name, str) or not name:
            raise InvalidFlowError(
                f"{where} has a column named {name!r}.", remedy="Use text for names of columns."
            )
    check_column_names([name for name, _ in columns], where)
    return pa.schema([pa.field(name, _to_type(name, dtype, where)) for name, dtype in columns])


def _to_type(name: str, value: object, where: str) -> pa.DataType:
    """Convert the type of column `name`, as users may write it, to Arrow; raise if unknown."""
    if isinstance(value, pa.DataType):
        return value
    if isinstance(value, type) and value in COLUMN_TYPES:
        return COLUMN_TYPES[value]
    if isinstance(value, str):
        return type_of_text(name, value, where)
    if hasattr(value, "simpleString") and not isinstance(value, type):
        return _from_spark(name, value, where)
    raise InvalidFlowError(
        f"{where} gives column {name!r} the type {type_name(value)!r}, which is not known.",
        remedy="Give an Arrow type, a name such as 'string', an instance of a PySpark type, "
        f"or one of the classes {listing([c.__name__ for c in COLUMN_TYPES])}.",
        column=name,
    )


def _from_spark(name: str, value: Any, where: str) -> pa.DataType:
    """Convert a PySpark type to Arrow, by its DDL text."""
    if hasattr(value, "elementType"):
        return pa.list_(_from_spark(name, value.elementType, where))
    if hasattr(value, "keyType"):
        key, item = (_from_spark(name, inner, where) for inner in (value.keyType, value.valueType))
        return pa.map_(key, item)
    if isinstance(fields := getattr(value, "fields", None), list):
        return pa.struct(
            [(f.name, _from_spark(f"{name}.{f.name}", f.dataType, where)) for f in fields]
        )
    return type_of_text(name, str(value.simpleString()), where)


# -- schemas as text

_BY_NAME: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("byte", "tinyint", "int8"), pa.int8()),
    **dict.fromkeys(("short", "smallint", "int16"), pa.int16()),
    **dict.fromkeys(("int", "integer", "int32"), pa.int32()),
    **dict.fromkeys(("long", "bigint", "int64"), pa.int64()),
    **dict.fromkeys(("float", "real", "float32"), pa.float32()),
    **dict.fromkeys(("double", "float64"), pa.float64()),
    **dict.fromkeys(("string", "str", "varchar", "char", "character"), pa.string()),
    **dict.fromkeys(("binary", "bytes"), pa.binary()),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(("decimal", "dec", "numeric"), pa.decimal128(10, 0)),
}
_NESTED = ("array<...>", "map<..., ...>", "struct<...>", "interval day to second")
_DECIMALS = ("decimal", "dec", "numeric")
_WITH_LENGTH = ("varchar", "char", "character", "time")
_ELSEWHERE = {
    "void": "A column needs a type that values can have.",
    "variant": "Give it as text (string), such as JSON.",
    "geometry": "Give it as binary, such as WKB.",
    "geography": "Give it as binary, such as WKB.",
}
_DAY_UNITS = ("day", "hour", "minute", "second")
_MONTH_UNITS = ("year", "month")
_PAIRS = 'Write names and types in pairs, as in "symbol string, price double".'

_TOKEN = re.compile(
    r"""(?P<nothing>\s+|--[^\n]*|/\*.*?\*/)
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)


def columns_of_text(text: str, where: str) -> list[tuple[str, pa.DataType]]:
    """Return names and types of the columns that a text declares.

    `text`: such as ``"symbol string, sizes array<bigint>, price decimal(10, 2) not null"``.
    `where`: subject of the messages, such as ``"The output of operator 'trades'"``. Raises
    `InvalidFlowError`, with the position, if it cannot be read.

    Examples
    --------
    >>> columns_of_text("symbol string, sizes array<bigint>", where="The output")
    [('symbol', DataType(string)), ('sizes', ListType(list<item: int64>))]
    """
    reader = _Reader(text, where)
    if not reader.has_more():
        return []
    inside = reader.takes("struct", "<")
    columns = reader.columns()
    if inside:
        reader.expect(">")
    if reader.has_more():
        raise reader.syntax_error(_PAIRS)
    return columns


def type_of_text(name: str, text: str, where: str) -> pa.DataType:
    """Return the Arrow type of column `name` that a text declares, such as ``array<bigint>``.

    Raises `InvalidFlowError` if it cannot be read, or Arrow has no such type.
    """
    reader = _Reader(text, where, column=name)
    if not reader.has_more():
        raise reader.syntax_error("Write a type, such as string.")
    dtype = reader.type()
    if reader.has_more():
        raise reader.syntax_error("Write one type, such as decimal(10, 2).")
    return dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """A word, sign, quoted name or text, and where it starts."""

    kind: str
    text: str
    start: int

    @property
    def value(self) -> str:
        """Text of the token for comparison: lower case unless quoted."""
        return self.text.replace("``", "`") if self.kind == "quoted" else self.text.lower()


class _Reader:
    """Recursive-descent parser of DDL; each method consumes the part it is named after."""

    def __init__(self, text: str, where: str, column: str = "") -> None:
        self._text, self._where, self._column = text, where, column
        self._tokens = [
            _Token(kind=str(match.lastgroup), text=match[str(match.lastgroup)], start=match.start())
            for match in _TOKEN.finditer(text)
            if match.lastgroup != "nothing"
        ]
        self._next = 0

    def has_more(self) -> bool:
        """Return true if there are tokens left."""
        return self._next < len(self._tokens)

    def takes(self, *words: str) -> bool:
        """Consume these words or signs if they come next; return whether they did."""
        ahead = self._tokens[self._next : self._next + len(words)]
        if [t.value for t in ahead if t.kind in ("word", "sign")] != list(words):
            return False
        self._next += len(words)
        return True

    def expect(self, sign: str) -> None:
        """Consume the next sign; raise if it is another one."""
        if not self.takes(sign):
            raise self.syntax_error(f"A {sign!r} is missing there.")

    def syntax_error(self, remedy: str) -> InvalidFlowError:
        """Return the error that the text cannot be read at the position reached."""
        start = self._tokens[self._next].start if self.has_more() else len(self._text)
        rest = self._text[start : start + 30].strip()
        return InvalidFlowError(
            f"{self._where} cannot be read at {rest!r} (character {start + 1} of {self._text!r}).",
            remedy=remedy,
            text=self._text,
        )

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Parse columns, separated by commas."""
        columns = [self.column()]
        while self.takes(","):
            columns.append(self.column())
        return columns

    def column(self) -> tuple[str, pa.DataType]:
        """Parse a name, a type, ``not null`` and a comment; return name and type."""
        if not self.has_more() or self._tokens[self._next].kind not in ("word", "quoted"):
            raise self.syntax_error(_PAIRS)
        token = self._tokens[self._next]
        name = token.value if token.kind == "quoted" else token.text
        self._next += 1
        self.takes(":")
        if not self.has_more():
            self._next -= 1
            raise self.syntax_error(_PAIRS)
        outer, self._column = self._column, f"{self._column}.{name}" if self._column else name
        dtype = self.type()
        self._column = outer
        self.takes("not", "null")
        if self.takes("comment"):
            if not self.has_more() or self._tokens[self._next].kind != "text":
                raise self.syntax_error("Write the comment in quotes, as in comment 'in dollars'.")
            self._next += 1
        return name, dtype

    def type(self) -> pa.DataType:
        """Parse a type, and return it as an Arrow type."""
        if self.takes("array", "<"):
            element = self.type()
            self.expect(">")
            return pa.list_(element)
        if self.takes("map", "<"):
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return pa.map_(key, value)
        if self.takes("struct", "<"):
            fields = [] if self.takes(">") else self.columns()
            if fields:
                self.expect(">")
            return pa.struct([pa.field(name, dtype) for name, dtype in fields])
        if self.takes("interval"):
            return self.interval()
        if self.takes("timestamp", "without", "time", "zone"):
            return pa.timestamp("us")
        if not self.has_more() or self._tokens[self._next].kind != "word":
            raise self.syntax_error(_PAIRS)
        word = self._tokens[self._next].value
        if word not in _BY_NAME:
            raise self._unknown_type_error(word)
        self._next += 1
        dtype = _BY_NAME[word]
        numbers = self.numbers(word)
        if numbers and word in _DECIMALS:
            dtype = self._decimal(numbers)
        if self.takes("collate"):
            self._next += 1
        return dtype

    def numbers(self, word: str) -> list[int]:
        """Parse the numbers in brackets that the type `word` may have."""
        if not self.takes("("):
            return []
        numbers: list[int] = []
        most = 2 if word in _DECIMALS else 1 if word in _WITH_LENGTH else 0
        while len(numbers) < most and self.has_more() and self._tokens[self._next].text.isdecimal():
            numbers.append(int(self._tokens[self._next].text))
            self._next += 1
            if not self.takes(","):
                break
        if not numbers:
            self._next -= not most
            raise self.syntax_error(
                "Write a number, as in decimal(10, 2)." if most else f"{word} takes no numbers."
            )
        self.expect(")")
        return numbers

    def interval(self) -> pa.DataType:
        """Parse the units of an interval; raise for months and years, which have no Arrow type."""
        units = [self._unit()]
        if self.takes("to"):
            units.append(self._unit())
        if units[0] in _DAY_UNITS and units[-1] in _DAY_UNITS:
            return pa.duration("us")
        raise InvalidFlowError(
            f"{self._where} gives column {self._column!r} an interval of {' to '.join(units)}s, "
            "which Arrow has no type for.",
            remedy="Give a number of months (int), or an interval day to second.",
            column=self._column,
        )

    def _unit(self) -> str:
        """Parse a unit of an interval, such as ``day``."""
        for unit in (*_DAY_UNITS, *_MONTH_UNITS):
            if self.takes(unit):
                return unit
        raise self.syntax_error("Name units, as in interval day to second.")

    def _decimal(self, numbers: list[int]) -> pa.DataType:
        """Return the decimal type of precision and scale; refuse impossible ones."""
        precision, scale = (*numbers, 0)[:2]
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidFlowError(
                f"{self._where} gives column {self._column!r} the type "
                f"'decimal({precision}, {scale})'.",
                remedy="A decimal has 1 to 38 digits, and no more of them after the point.",
                column=self._column,
            )
        return pa.decimal128(precision, scale)

    def _unknown_type_error(self, word: str) -> InvalidFlowError:
        """Return the error of an unknown type."""
        known = [*_BY_NAME, *_NESTED]
        return InvalidFlowError(
            f"{self._where} gives column {self._column!r} the type {word!r}, "
            + ("which Arrow has no type for." if word in _ELSEWHERE else "which is not known."),
            remedy=_ELSEWHERE.get(
                word,
                f"{did_you_mean(word, known)}Types are {listing(known, 40)}; for any other, give "
                "an Arrow type, as in {" + repr(self._column) + ": pa.large_string()}.",
            ),
            column=self._column,
        )


_KEY: Final = f"{RESERVED_PREFIX}_all"
KEY_OF_ALL: Final = pa.schema([pa.field(_KEY, pa.bool_())])
"""Key columns of an operator on a whole stream."""


def is_keyed_by_none(keys: pa.Schema) -> bool:
    """Return whether key columns are those of an operator on a whole stream."""
    return _KEY in keys.names


def visible_names(names: Iterable[str]) -> list[str]:
    """Return names of columns without the hidden one."""
    return [name for name in names if name != _KEY]


def visible_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the hidden column."""
    return pa.schema([field for field in schema if field.name != _KEY])


def without_hidden_key(rows: pa.Table) -> pa.Table:
    """Return rows without the hidden column."""
    return rows.drop_columns(_KEY) if _KEY in rows.schema.names else rows


def with_hidden_key(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the columns of rows that `names` lists, behind the hidden one."""
    return pa.RecordBatch.from_arrays(
        [pa.repeat(True, rows.num_rows), *rows.select(names).columns], names=[_KEY, *names]
    )
