"""Values of text formats that have no form of their own there: times, bytes and exact numbers.

CSV, JSON files and JSON messages are read through here: times are text in ISO 8601, bytes in JSON
are Base64, and a number is an integer or a decimal if its type holds it exactly, however it is
written: ``1.0`` and ``1e2`` are whole numbers.
"""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from godwit.columns.nested import convert_leaves
from godwit.columns.time_texts import parse_times
from godwit.columns.types import is_binary, is_list, is_temporal

_SMALL: Final = re.compile(rb"\d\.?[eE]-0*[1-9]\d+(?![\w-])")
_HIDDEN: Final = re.compile(rb"\\u00(?:2[dD]|3\d|[46]5)")  # escapes of minus, digits, E and e
_NUMBER: Final = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)
_DIGITS_OF_INTEGER: Final = 20


def as_json(dtype: pa.DataType) -> pa.DataType:
    """Return the type as which JSON holds the values of a leaf's type."""
    return pa.string() if is_temporal(dtype) or is_binary(dtype) else dtype


def from_json(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column in its type, from the types of `as_json`; raise ValueError for a bad text."""
    try:
        return convert_leaves(column, field.type, _from_text)
    except ValueError as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from error


def from_text(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Return texts as a column of their type; raise ValueError for one that is no such value."""
    try:
        if is_temporal(field.type):
            return parse_times(texts, field.type)
        if pa.types.is_decimal(field.type):
            values = [_decimal(text, field.type) for text in texts.to_pylist()]
            return pa.array(values, field.type)
        return texts.cast(field.type)
    except ValueError as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from error


def _decimal(text: str | None, dtype: pa.DataType) -> Decimal | None:
    """Return a text as a number that a decimal type holds; or raise."""
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        msg = f"{text[:50]!r} is no number"
        raise ValueError(msg)
    return _exact(text.strip(), dtype.precision, dtype.scale)


def _from_text(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return an array of leaves in its type."""
    if is_temporal(dtype):
        return parse_times(array, dtype)
    if is_binary(dtype) and not is_binary(array.type):
        return pa.array([_decoded(text) for text in array.to_pylist()], dtype)
    return array


def _decoded(text: str | None) -> bytes | None:
    """Return the bytes that a text has in Base64; raise if it is none."""
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        msg = f"{text[:100]!r} is no Base64: {error}"  # type: ignore[index]
        raise ValueError(msg) from error


def exact_numbers(values: list[Any], field: pa.Field) -> list[Any]:
    """Return values of JSON with their decimals as Arrow takes them, and whole ones as integers.

    Raises ValueError for a number that its type does not hold exactly.
    """
    try:
        return [_exact_numbers(value, field.type) for value in values]
    except ValueError as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from error


def _exact_numbers(value: Any, dtype: pa.DataType) -> Any:
    """Return a value of JSON, with its numbers as Arrow takes them."""
    if value is None:
        return None
    if pa.types.is_decimal(dtype):
        return _exact(value, dtype.precision, dtype.scale)
    if pa.types.is_integer(dtype):
        return _whole(value, dtype) if isinstance(value, Decimal) else value
    if is_list(dtype):
        return [_exact_numbers(element, dtype.value_type) for element in value]
    if pa.types.is_struct(dtype):
        fields = (dtype.field(n) for n in range(dtype.num_fields))
        return {f.name: _exact_numbers(value.get(f.name), f.type) for f in fields}
    if pa.types.is_map(dtype):
        return {
            _exact_numbers(key, dtype.key_type): _exact_numbers(item, dtype.item_type)
            for key, item in value.items()
        }
    return value


def _exact(value: Any, precision: int, scale: int) -> Decimal:
    """Return a number with `scale` digits after the point; raise if it needs more.

    Arrow itself is given numbers of the type's scale only, since it is exact for these alone.
    """
    try:
        return Decimal(value).quantize(*_quantum(precision, scale))
    except DecimalException as error:
        text = str(value)
        text = text if len(text) <= 50 else f"{text[:50]}..."
        digits = f"{precision} digits, {scale} of them after the point"
        msg = f"{text} is no number of {digits}" if scale else f"{text} is no whole number"
        raise ValueError(msg) from error


def _whole(value: Decimal, dtype: pa.DataType) -> int:
    """Return a number as one of the integers of a type; or raise."""
    number, span = int(_exact(value, _DIGITS_OF_INTEGER, 0)), 1 << dtype.bit_width
    low = -span // 2 if pa.types.is_signed_integer(dtype) else 0
    if not low <= number < low + span:
        msg = f"{number} is no {dtype}"
        raise ValueError(msg)
    return number


@cache
def _quantum(precision: int, scale: int) -> tuple[Decimal, None, Context]:
    """Return the arguments that make `Decimal.quantize` exact."""
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    return Decimal((0, (1,), -scale)), None, exact


def has_small_numbers(text: bytes, marks: bytes = b"") -> bool:
    """Return whether a text may have a number with a negative exponent of two digits or more.

    `marks`: the quote and the escape character, which may stand within a number.
    """
    if b"\\u00" in text and _HIDDEN.search(text):
        return True
    data = np.frombuffer(text, np.uint8)
    before = np.flatnonzero(data == ord("-")) - 1
    for mark in reversed(marks):
        before -= data[before] == mark
    if not ((data[before] | 0x20) == ord("e")).any():  # in capitals, too
        return False
    return _SMALL.search(text.translate(None, marks) if marks else text) is not None
