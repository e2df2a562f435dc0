"""What the state of one operator looks like: key columns and state columns, all Arrow types.

Fixed-width columns are read and written in bulk as NumPy; variable-width ones (strings, binary)
live in a heap beside them.  Structured Python state is one binary column.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from godwit.model.errors import InvalidFlowError

__all__ = ["StateSchema", "is_fixed_width", "is_variable_width"]


def is_variable_width(dtype: pa.DataType) -> bool:
    """Whether values of `dtype` have different lengths: strings and binary, large or not."""
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_binary(dtype)
        or pa.types.is_large_binary(dtype)
    )


def is_fixed_width(dtype: pa.DataType) -> bool:
    """Whether values of `dtype` have one size, in whole bytes (booleans take one byte here)."""
    return bool(
        pa.types.is_boolean(dtype)
        or pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_timestamp(dtype)
        or pa.types.is_duration(dtype)
        or pa.types.is_decimal128(dtype)
        or pa.types.is_fixed_size_binary(dtype)
    )


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Columns of an operator's state.

    Raises `InvalidFlowError` if a column is neither fixed-width nor a string or binary.
    """

    keys: pa.Schema  # Key columns. Nulls are values like any other.
    values: pa.Schema  # state columns; any of them may hold nulls

    def __post_init__(self) -> None:
        for field in [*self.keys, *self.values]:
            if not (is_fixed_width(field.type) or is_variable_width(field.type)):
                raise InvalidFlowError(
                    f"Column {field.name!r} has type {field.type}, which state cannot hold.",
                    remedy="Use a primitive type, a string or binary.",
                )
