"""Columns of SQL tables for Arrow's types, in four dialects, and what existing columns can hold.

A type is refused if a dialect would round its values, or store them as text that does not sort like
them.  Instants are stored in UTC: as they are where the dialect has a type for them, else without a
time zone.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from godwit.columns.types import is_text
from godwit.connect.row_checks import (
    KNOWN_YEARS,
    NO_NANOSECONDS,
    NO_ZERO_BYTES,
    WHOLE_MICROSECONDS,
    ColumnCheck,
    Rule,
    up_to_characters,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MYSQL: Final = frozenset(["mysql", "mariadb"])
DIALECTS: Final = frozenset(["postgresql", "sqlite", *MYSQL])
KEY_LENGTH: Final = 255  # of a key of text or bytes in MySQL's dialects, whose indexes are limited
_COLLATIONS: Final = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin"}
_MYSQL_DIGITS: Final = (65, 30)  # of a decimal: all, and after the point
_INTEGERS: Final[dict[int, Callable[[], Any]]] = {
    8: sa.SmallInteger,
    16: sa.SmallInteger,
    32: sa.Integer,
    64: sa.BigInteger,
}


def column_type(dtype: pa.DataType, dialect: str, *, is_key: bool) -> Any:
    """Return the type of a new column for values of an Arrow type; ``None`` if none holds them."""
    in_mysql = dialect in MYSQL
    if pa.types.is_boolean(dtype):
        return sa.Boolean()
    if pa.types.is_integer(dtype):
        if dtype == pa.uint64():
            if in_mysql:
                return mysql.BIGINT(unsigned=True)
            return None if dialect == "sqlite" else sa.Numeric(20, 0)
        bits = dtype.bit_width if pa.types.is_signed_integer(dtype) else 2 * dtype.bit_width
        return _INTEGERS[bits]()
    if pa.types.is_floating(dtype):
        return sa.Double()
    if pa.types.is_decimal(dtype):
        fits = not in_mysql or (
            dtype.precision <= _MYSQL_DIGITS[0] and 0 <= dtype.scale <= _MYSQL_DIGITS[1]
        )
        return sa.Numeric(dtype.precision, dtype.scale) if fits and dialect != "sqlite" else None
    if is_text(dtype):
        if not in_mysql:
            return sa.Text()
        collation = _COLLATIONS[dialect]
        return sa.String(KEY_LENGTH, collation) if is_key else mysql.LONGTEXT(collation=collation)
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        if not in_mysql:
            return sa.LargeBinary()
        return mysql.VARBINARY(KEY_LENGTH) if is_key else mysql.LONGBLOB()
    if pa.types.is_date(dtype):
        return sa.Date()
    if pa.types.is_timestamp(dtype):
        if in_mysql:
            return mysql.DATETIME(fsp=6)
        return sa.DateTime(timezone=dtype.tz is not None and dialect == "postgresql")
    if pa.types.is_time(dtype):
        return mysql.TIME(fsp=6) if in_mysql else sa.Time()
    return None


def holds(existing: Any, required: Any, dialect: str) -> bool:
    """Return whether an existing column's type holds all values of the type of a new column."""
    if isinstance(required, sa.Boolean):
        is_flag = isinstance(existing, mysql.TINYINT) or dialect == "sqlite"
        return isinstance(existing, sa.Boolean) or (is_flag and isinstance(existing, sa.Integer))
    if isinstance(required, sa.Integer):
        if dialect == "sqlite" or not isinstance(existing, sa.Integer):
            return isinstance(existing, sa.Integer)
        unsigned = getattr(existing, "unsigned", None) or False
        if bool(getattr(required, "unsigned", None)) != bool(unsigned):
            return False
        return _integer_bits(existing) >= _integer_bits(required)
    if isinstance(required, sa.Double):
        is_rounded = getattr(existing, "scale", None) is not None  # as DOUBLE(9, 2)
        return isinstance(existing, sa.Double | sa.Float) and not (
            is_rounded or isinstance(existing, sa.REAL | mysql.FLOAT)
        )
    if isinstance(required, sa.Numeric):
        (scale, whole_digits), (required_scale, required_whole_digits) = (
            _decimal_digits(existing),
            _decimal_digits(required),
        )
        return scale >= required_scale and whole_digits >= required_whole_digits
    if isinstance(required, sa.String):
        is_short = isinstance(existing, mysql.TEXT | mysql.TINYTEXT | mysql.MEDIUMTEXT)
        has_labels = isinstance(existing, sa.Enum | mysql.SET)
        return isinstance(existing, sa.String) and not (is_short or has_labels)
    if isinstance(required, mysql.VARBINARY | sa.LargeBinary):
        is_whole = isinstance(existing, mysql.LONGBLOB | mysql.VARBINARY) or dialect not in MYSQL
        return isinstance(existing, sa.LargeBinary | mysql.VARBINARY) and is_whole
    if isinstance(required, sa.DateTime):
        if isinstance(existing, mysql.TIMESTAMP):  # which ends in 2038
            return False
        has_same_zone = bool(getattr(existing, "timezone", False)) == bool(required.timezone)
        return isinstance(existing, sa.DateTime) and has_same_zone and _is_exact(existing, dialect)
    if isinstance(required, sa.Time):
        return isinstance(existing, sa.Time) and _is_exact(existing, dialect)
    return isinstance(existing, sa.Date)


def _decimal_digits(decimal: Any) -> tuple[int, int]:
    """Return the digits of a decimal type after and before the point; 0 for other types."""
    if not isinstance(decimal, sa.Numeric) or isinstance(decimal, sa.Float):
        return 0, 0
    if decimal.precision is None:  # of PostgreSQL: any
        return 1000, 1000
    scale = decimal.scale or 0
    return scale, decimal.precision - scale


def _integer_bits(integer: Any) -> int:
    """Return the size of a type of integers, in bits."""
    if isinstance(integer, mysql.TINYINT):
        return 8
    if isinstance(integer, sa.SmallInteger):
        return 16
    if isinstance(integer, mysql.MEDIUMINT):
        return 24
    return 64 if isinstance(integer, sa.BigInteger) else 32


def _is_exact(existing: Any, dialect: str) -> bool:
    """Return whether a type of times has microseconds."""
    if dialect == "sqlite":
        return True
    digits = getattr(existing, "fsp" if dialect in MYSQL else "precision", None)
    return digits == 6 or (digits is None and dialect not in MYSQL)


def column_check(
    field: pa.Field, dialect: str, *, is_key: bool, nullable: bool, length: int | None
) -> ColumnCheck:
    """Return the check of a column's values; `length`: maximum number of characters."""
    rules = [KNOWN_YEARS, NO_NANOSECONDS, WHOLE_MICROSECONDS]
    if dialect == "postgresql":
        rules.append(NO_ZERO_BYTES)
    elif dialect in MYSQL:
        rules.append(_FINITE)
    else:
        rules.append(_NOT_NAN)
    if length is not None:
        rules += [up_to_characters(length), _short_bytes(length)]
    return ColumnCheck(field.name, tuple(rules), nullable=nullable and not is_key)


def _not_finite(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of NaN and infinities; ``None`` for other types."""
    return pc.invert(pc.is_finite(values)) if pa.types.is_floating(values.type) else None


def _not_a_number(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of NaN; ``None`` for other types."""
    return pc.is_nan(values) if pa.types.is_floating(values.type) else None


_FINITE: Final = Rule("is NaN or infinite, which the target does not support", _not_finite)
_NOT_NAN: Final = Rule("is NaN, which the target would store as null", _not_a_number)


def _short_bytes(limit: int) -> Rule:
    """Return the rule that limits the length of bytes to `limit`."""
    return Rule(f"has more bytes than the {limit} of the target's column", _Longer(limit))


class _Longer:
    """Mask of bytes that are too long; picklable."""

    def __init__(self, limit: int) -> None:
        self._max_length = limit

    def __call__(self, values: pa.Array) -> pa.BooleanArray | None:
        is_bytes = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
        return pc.greater(pc.binary_length(values), self._max_length) if is_bytes else None


def stored_values(column: pa.Array, dialect: str) -> list[Any]:
    """Return the values of a column in the form that the driver takes."""
    dtype = column.type
    if pa.types.is_timestamp(dtype):
        zone = dt.UTC if dtype.tz is not None and dialect == "postgresql" else None
        naive = column.cast(pa.timestamp("us", dtype.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
        return [
            v if v is None or zone is None else v.replace(tzinfo=zone) for v in naive.to_pylist()
        ]
    if pa.types.is_date64(dtype):
        column = column.cast(pa.date32())
    if pa.types.is_time(dtype):
        column = column.cast(pa.time64("us"))
    values: list[Any] = column.to_pylist()
    return values
