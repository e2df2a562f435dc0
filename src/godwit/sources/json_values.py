"""Values that JSON has no form of its own for: times are text in ISO 8601, bytes are Base64.

JSON files and JSON messages are both read through here.
"""

from __future__ import annotations

import base64
import binascii

import pyarrow as pa

from godwit.columns.nested import convert_leaves
from godwit.columns.time_texts import is_time, parse_times
from godwit.columns.types import is_binary


def as_json(dtype: pa.DataType) -> pa.DataType:
    """Return the type as which JSON holds the values of a leaf's type."""
    return pa.string() if is_time(dtype) or is_binary(dtype) else dtype


def from_json(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column in its type, from the types of `as_json`; raise ValueError for a bad text."""
    try:
        return convert_leaves(column, field.type, _from_text)
    except ValueError as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from error


def column_of_times(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column of texts as the times of a field; raise ValueError for a bad text."""
    try:
        return parse_times(texts, field.type)
    except ValueError as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from error


def _from_text(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return an array of leaves in its type."""
    if is_time(dtype):
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
