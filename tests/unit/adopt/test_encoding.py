"""Nested values survive their encoding, and order keys are ordered as Spark orders values."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from godwit.adopt.encoding import can_be_encoded, decoded, encoded, order_keys

_LEAVES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    (pa.int64(), [0, 255, 256, -256]),
    (pa.float64(), [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]),
    (pa.float32(), [0.5, -2.0]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "a", "a\x00", "ab", "ż", "a\x00b"]),
    (pa.binary(), [b"", b"\x00", b"\x00\x01", b"\xff"]),
    (pa.decimal128(12, 2), [Decimal("1.25"), Decimal("-1.25"), Decimal("0.00")]),
    (pa.timestamp("us", "UTC"), [0, -1, 10**15]),
    (pa.date32(), [0, -5, 20000]),
    (pa.null(), [None]),
]


def _draw_type(draw: random.Random, depth: int, *, maps: bool) -> pa.DataType:
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(_LEAVES)[0]
    kind = draw.choice(["struct", "list", "map"] if maps else ["struct", "list"])
    if kind == "struct":
        parts = [_draw_type(draw, depth - 1, maps=maps) for _ in range(draw.randint(1, 3))]
        return pa.struct([(f"f{n}", part) for n, part in enumerate(parts)])
    if kind == "list":
        return pa.list_(_draw_type(draw, depth - 1, maps=maps))
    return pa.map_(draw.choice([pa.string(), pa.int32()]), _draw_type(draw, depth - 1, maps=maps))


def _draw_value(draw: random.Random, dtype: pa.DataType) -> Any:
    if draw.random() < 0.15:
        return None
    if pa.types.is_struct(dtype):
        return {field.name: _draw_value(draw, field.type) for field in dtype}
    if pa.types.is_list(dtype):
        return [_draw_value(draw, dtype.value_type) for _ in range(draw.randint(0, 3))]
    if pa.types.is_map(dtype):
        choices = next(values for leaf, values in _LEAVES if leaf == dtype.key_type)
        keys = draw.sample(choices, draw.randint(0, 3))
        return [(key, _draw_value(draw, dtype.item_type)) for key in keys]
    return draw.choice(next(values for leaf, values in _LEAVES if leaf == dtype))


def _compare(left: Any, right: Any, dtype: pa.DataType) -> int:
    """Compare as Spark orders: nulls first, NaN last, arrays element by element."""
    if left is None or right is None:
        return int(left is not None) - int(right is not None)
    if pa.types.is_struct(dtype):
        parts = [_compare(left[f.name], right[f.name], f.type) for f in dtype]
        return next((part for part in parts if part), 0)
    if pa.types.is_list(dtype):
        parts = [_compare(a, b, dtype.value_type) for a, b in zip(left, right, strict=False)]
        return next(
            (part for part in parts if part), (len(left) > len(right)) - (len(left) < len(right))
        )
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return int(math.isnan(left)) - int(math.isnan(right))
    return int(left > right) - int(left < right)


@pytest.mark.parametrize("seed", range(40))
def test_nested_values_survive_their_encoding(seed: int) -> None:
    draw = random.Random(seed)
    dtype = pa.struct(
        [("a", _draw_type(draw, 2, maps=True)), ("b", _draw_type(draw, 1, maps=True))]
    )
    dtype = dtype if seed % 3 else pa.list_(dtype)
    values = pa.array([_draw_value(draw, dtype) for _ in range(30)], dtype)
    assert can_be_encoded(dtype)
    for part in (values, values.slice(3, 20), values.slice(0, 0)):
        again = decoded(encoded(part), dtype)
        again.validate(full=True)
        assert again.type == dtype
        assert str(again.to_pylist()) == str(part.to_pylist())


@pytest.mark.parametrize("seed", range(30))
def test_order_keys_are_ordered_as_values_are(seed: int) -> None:
    draw = random.Random(seed)
    dtype = _draw_type(draw, 3, maps=False)
    values = pa.array([_draw_value(draw, dtype) for _ in range(30)], dtype)
    keys = order_keys(values.slice(2)).to_pylist()
    plain = values.slice(2).to_pylist()
    for left, left_key in zip(plain, keys, strict=True):
        assert (left is None) == (left_key is None)
        for right, right_key in zip(plain, keys, strict=True):
            if left_key is not None and right_key is not None:
                order = (left_key > right_key) - (left_key < right_key)
                assert order == _compare(left, right, dtype), (left, right)


def test_equal_values_have_equal_canonical_bytes() -> None:
    dtype = pa.struct([("f", pa.list_(pa.float64())), ("m", pa.map_(pa.string(), pa.int32()))])
    left = {"f": [0.0, math.nan, None], "m": [("a", 1), ("b", None)]}
    right = {"f": [-0.0, -math.nan, None], "m": [("b", None), ("a", 1)]}
    first, second = encoded(pa.array([left, right], dtype), canonical=True).to_pylist()
    assert first == second
