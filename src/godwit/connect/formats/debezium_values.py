"""Values of Debezium's change events as columns, by their *semantic types*.

A semantic type says what a number, text or bytes means, such as days since 1970: events name it in
their schema, and for others it follows from the type of the column, as Debezium is set up by
default.  Bytes are Base64 in JSON, and bytes in Avro.  An update may leave out a large value that
stays as it is; a *placeholder* stands for it.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.types import is_binary, is_temporal, is_text
from godwit.connect.formats.text_values import NUMBER_SHAPE, as_json, from_json
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable


class SemanticType(NamedTuple):
    """Meaning of a column's values."""

    name: str = ""  # as Debezium or Connect has it, or an encoding; empty: the usual one
    scale: int | None = None  # of a decimal


Types: TypeAlias = Mapping[str, SemanticType]
"""Column → its semantic type; with ``[]`` after its name, that of the items of a list."""

PLAIN: Final = "plain"  # a value of a schema that names no semantic type
TEXT: Final = "string"
ENCODINGS: Final = ("base64", "base64-url-safe", "hex")
"""Semantic types of bytes that are text in events; see Debezium's ``binary.handling.mode``."""

_DEBEZIUM: Final = "io.debezium.time"
_CONNECT: Final = "org.apache.kafka.connect.data"
DECIMAL: Final = f"{_CONNECT}.Decimal"
_DAYS: Final = (f"{_DEBEZIUM}.Date", f"{_CONNECT}.Date")
_MILLISECONDS: Final = (
    *(f"{_DEBEZIUM}.Timestamp", f"{_DEBEZIUM}.Time"),
    *(f"{_CONNECT}.Timestamp", f"{_CONNECT}.Time"),
)
_NANOSECONDS: Final = tuple(
    f"{_DEBEZIUM}.{name}" for name in ("NanoTimestamp", "NanoTime", "NanoDuration")
)
_MICROSECONDS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(_DAYS, (86_400_000_000, 1)),
    **dict.fromkeys(_MILLISECONDS, (1000, 1)),
    **dict.fromkeys(_NANOSECONDS, (1, 1000)),
}
"""Semantic type → microseconds of its unit, as multiplier and divisor; others have microseconds."""

TYPE_NAMES: Final = (
    *_MICROSECONDS,
    *(f"{_DEBEZIUM}.{name}" for name in ("MicroTimestamp", "MicroTime", "MicroDuration")),
    *(f"{_DEBEZIUM}.{name}" for name in ("ZonedTimestamp", "ZonedTime", "Interval", "Year")),
    *(f"{_DEBEZIUM}.{name}" for name in ("IsoDate", "IsoTime", "IsoTimestamp")),
    DECIMAL,
)
"""Semantic types of numbers and times."""


def is_semantic_type(name: object) -> bool:
    """Return whether a name may be a semantic type of Debezium."""
    if not isinstance(name, str) or name in (*TYPE_NAMES, *ENCODINGS, PLAIN, TEXT):
        return isinstance(name, str)
    return "." in name and not name.startswith((f"{_DEBEZIUM}.", f"{_CONNECT}."))


def type_in_event(field: pa.Field) -> Any:
    """Return the Python type that msgspec decodes a column to; raise if events have none."""
    dtype = field.type
    if pa.types.is_boolean(dtype):
        return bool | None
    if pa.types.is_integer(dtype):
        return int | None
    if pa.types.is_floating(dtype):
        return float | str | None  # a text is NaN, or an infinity
    if (
        is_text(dtype)
        or is_binary(dtype)
        or is_temporal(dtype)
        or pa.types.is_duration(dtype)
        or pa.types.is_decimal128(dtype)
        or (pa.types.is_list(dtype) and not pa.types.is_nested(dtype.value_type))
    ):
        return Any
    raise InvalidFlowError(
        f"gw.formats.debezium: column {field.name!r} has type {dtype}, which events do not have.",
        remedy="Read structs, maps and times of day as text, numbers or lists; a geometry is "
        "JSON as text, and WKB as binary.",
    )


# Placeholders of values that an update leaves out

UNAVAILABLE: Final = "__debezium_unavailable_value"
_RAW: Final = UNAVAILABLE.encode()
_BASE64: Final = base64.b64encode(_RAW).decode()
_UUID: Final = str(uuid.UUID(bytes=md5(_RAW, usedforsecurity=False).digest(), version=3))
_SCALARS: Final = frozenset({UNAVAILABLE, _BASE64, _RAW.hex(), _RAW})
_LISTS: Final = (
    *([item] for item in (UNAVAILABLE, _BASE64, _UUID, _RAW)),
    list(_RAW),  # of numbers
    [base64.b64encode(bytes([byte])).decode() for byte in _RAW],  # of decimals
    [bytes([byte]) for byte in _RAW],
)
_LENGTHS: Final = (1, len(_RAW))
_MAP: Final = {UNAVAILABLE: UNAVAILABLE}


def has_unavailable(values: list[Any], dtype: pa.DataType) -> bool:
    """Return whether a column has values that updates omit."""
    if pa.types.is_boolean(dtype) or pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return False  # which are never so large
    try:
        return not _SCALARS.isdisjoint(values)
    except TypeError:  # lists, or structs
        return any(map(is_unavailable, values))


def is_unavailable(value: Any) -> bool:
    """Return whether a value is the placeholder for one that an update omits."""
    if isinstance(value, list):
        return len(value) in _LENGTHS and value in _LISTS
    return value == _MAP if isinstance(value, dict) else value in _SCALARS


# Columns


def converted(values: list[Any], field: pa.Field, types: Types) -> pa.Array:
    """Return values of a column of events as an array; raise `ValueError` if one does not fit."""
    try:
        return _array_of_type(values, field.type, field.name, types)
    except ArithmeticError:
        msg = f"column {field.name!r}: a number does not fit {field.type}"
        raise ValueError(msg) from None
    except (pa.ArrowException, AttributeError, LookupError, TypeError, ValueError) as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from None


def _array_of_type(values: list[Any], dtype: pa.DataType, name: str, types: Types) -> pa.Array:
    """Return values as an array of a type; `name`: in `types`."""
    semantic = types.get(name, SemanticType())
    if pa.types.is_decimal128(dtype):
        return _decimals_of(values, dtype, semantic)
    if is_temporal(dtype) or pa.types.is_duration(dtype):
        return _times_of(values, pa.field(name, dtype), semantic.name)
    if is_binary(dtype):
        return pa.array(_all_bytes(values, semantic.name), dtype)
    try:
        return pa.array(values, dtype)
    except (pa.ArrowException, TypeError):
        if pa.types.is_floating(dtype):
            return pa.array([_float_of(v) for v in values], dtype)
        if is_text(dtype):
            return pa.array([text_of(v) for v in values], dtype)
        if not pa.types.is_list(dtype):
            raise
    lengths = [0 if value is None else len(value) for value in values]
    mask = pa.array([value is None for value in values], pa.bool_())
    items = _array_of_type(
        [i for v in values for i in v or ()], dtype.value_type, f"{name}[]", types
    )
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(ends, items, type=dtype, mask=mask)


_json_encoder: Final = msgspec.json.Encoder(decimal_format="number")
_NOT_FINITE: Final = frozenset({"nan", "inf", "infinity"})


def text_of(value: Any) -> str | None:
    """Return a value as text: strings unchanged, others as JSON."""
    return (
        value if value is None or isinstance(value, str) else _json_encoder.encode(value).decode()
    )


def _float_of(value: Any) -> float | None:
    """Return a number, or the text of one, as a float."""
    if isinstance(value, str) and value.lstrip("+-").lower() not in _NOT_FINITE:
        _check_number(value)
    return None if value is None else float(value)


def _check_number(text: str) -> None:
    """Raise for a text that is not a number, though Python may read one."""
    if NUMBER_SHAPE.fullmatch(text) is None:
        msg = f"{text[:50]!r} is not a number"
        raise ValueError(msg)


def _all_bytes(values: list[Any], semantic: str) -> list[bytes | None]:
    """Return bytes from texts in an encoding, or as they are; of a geometry its WKB."""
    decode = _DECODERS.get(semantic, _from_base64)
    if semantic == TEXT and any(isinstance(value, str) for value in values):
        msg = (
            "its bytes are text in events, in an unknown encoding: give it, as in "
            'types={"column": "hex"}, or "base64", or "base64-url-safe"'
        )
        raise ValueError(msg)
    plain = [value.get("wkb") if isinstance(value, dict) else value for value in values]
    return [decode(value) if isinstance(value, str) else value for value in plain]


def _from_base64(text: str) -> bytes:
    """Decode Base64; raise for any invalid character."""
    return binascii.a2b_base64(text, strict_mode=True) if text else b""


_URL_SAFE: Final = str.maketrans("-_", "+/")
_DECODERS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "base64-url-safe": lambda text: _from_base64(text.translate(_URL_SAFE)),
    "hex": binascii.unhexlify,
}

_EXACT: Final = Context(prec=76, traps=[Inexact, InvalidOperation])
"""For decimals that fit their column; Arrow reads beyond its memory for some others."""
_WORD: Final = 8  # bytes of an integer
_SAFE_DIGITS: Final = 18  # that each integer of a word has


def _decimals_of(values: list[Any], dtype: pa.DataType, semantic: SemanticType) -> pa.Array:
    """Return decimals: unscaled bytes (in JSON as Base64), numbers or text, by the type."""
    scale = dtype.scale if semantic.scale is None else semantic.scale
    if semantic.name not in (PLAIN, TEXT) and scale == dtype.scale:
        raw = _small_unscaled(values)
        if raw is not None:
            return _of_unscaled(*raw, dtype)
    unit = Decimal((0, (1,), -dtype.scale))
    exact = [_decimal_of(value, semantic.name, scale) for value in values]
    return pa.array([None if v is None else v.quantize(unit, context=_EXACT) for v in exact], dtype)


def _small_unscaled(values: list[Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return unscaled values of at most eight bytes, and a mask of the nulls; or ``None``."""
    mask = np.fromiter((value is None for value in values), np.bool_, len(values))
    if mask.any():
        values = ["AA==" if value is None else value for value in values]
    try:
        raw = [
            value if type(value) is bytes else binascii.a2b_base64(value, strict_mode=True)
            for value in values
        ]
    except (TypeError, ValueError):  # numbers, structs, or no Base64
        return None
    lengths = np.fromiter(map(len, raw), np.int64, len(raw))
    if not raw or lengths.max() > _WORD or lengths.min() == 0:
        return None
    joined = np.frombuffer(b"".join(raw), np.uint8)
    starts = np.cumsum(lengths) - lengths
    numbers = joined[starts].view(np.int8).astype(np.int64)
    for byte_position in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > byte_position)
        numbers[longer] = (numbers[longer] << 8) | joined[starts[longer] + byte_position]
    return numbers, mask


def _of_unscaled(numbers: np.ndarray, mask: np.ndarray, dtype: pa.DataType) -> pa.Array:
    """Return the decimals with some unscaled values; raise if one has too many digits."""
    if dtype.precision <= _SAFE_DIGITS:
        bound = 10**dtype.precision
        if ((numbers >= bound) | (numbers <= -bound)).any():
            msg = f"a value has more digits than {dtype}"
            raise ValueError(msg)
    words = np.stack([numbers, numbers >> 63], axis=1)
    valid = pa.array(~mask).buffers()[1] if mask.any() else None
    return pa.Array.from_buffers(dtype, len(numbers), [valid, pa.py_buffer(words.tobytes())])


def _decimal_of(value: Any, semantic: str, scale: int) -> Decimal | None:
    """Return a decimal from unscaled bytes (in JSON as Base64), a number or text."""
    if value is None:
        return None
    if isinstance(value, dict):  # io.debezium.data.VariableScaleDecimal
        return _decimal_of_unscaled(value["value"], int(value["scale"]))
    if isinstance(value, bytes):
        return _decimal_of_unscaled(value, scale)
    if isinstance(value, bool):
        msg = f"{value} is not a number"
        raise TypeError(msg)
    if isinstance(value, str):
        if semantic not in (PLAIN, TEXT):
            return _decimal_of_unscaled(value, scale)
        _check_number(value)
    return Decimal(value)


def _decimal_of_unscaled(value: str | bytes, scale: int) -> Decimal:
    """Return the decimal of an unscaled value, as two's complement (in JSON as Base64)."""
    raw = _from_base64(value) if isinstance(value, str) else value
    number = int.from_bytes(raw, "big", signed=True)
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def _times_of(values: list[Any], field: pa.Field, semantic: str) -> pa.Array:
    """Return dates, timestamps and durations: numbers of the semantic type's unit, or texts."""
    dtype = field.type
    try:
        numbers = pa.array(values, pa.int64())
    except (pa.ArrowException, TypeError):
        return from_json(pa.array(values, as_json(dtype)), field)
    multiplier, divisor = _MICROSECONDS.get(semantic, (1, 1))
    if pa.types.is_date32(dtype):
        days = semantic in ("", PLAIN, *_DAYS)
        if not days:
            numbers = _floor_divided(numbers, 86_400_000_000 * divisor // multiplier)
        return numbers.cast(pa.int32()).cast(dtype)
    if divisor > 1:
        numbers = _floor_divided(numbers, divisor)
    elif multiplier > 1:
        numbers = pc.multiply_checked(numbers, multiplier)
    return numbers.cast(dtype)


def _floor_divided(numbers: pa.Array, by: int) -> pa.Array:
    """Divide integers, rounding down, so that times before 1970 are right."""
    mask = np.asarray(numbers.is_null())
    values = np.asarray(numbers.fill_null(0)) // by
    return pa.array(values, pa.int64(), mask=mask)
