"""Nested columns converted by their leaves: any nesting, any layout of lists, any slice."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from godwit.columns.arrays import convert_leaves, with_leaves


def drawn_type(drawn: random.Random, depth: int = 0) -> pa.DataType:
    kinds = ["leaf", "leaf", "list", "large", "view", "fixed", "struct", "map"]
    kind = drawn.choice(kinds) if depth < 3 else "leaf"
    if kind == "leaf":
        return pa.int32()
    if kind == "struct":
        return pa.struct([(n, drawn_type(drawn, depth + 1)) for n in "ab"[: drawn.randint(1, 2)]])
    inner = drawn_type(drawn, depth + 1)
    if kind == "map":
        return pa.map_(pa.int32(), inner)
    lists = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view}
    return pa.list_(inner, 2) if kind == "fixed" else lists[kind](inner)


def drawn_value(drawn: random.Random, dtype: pa.DataType) -> Any:
    types = pa.types
    if drawn.random() < 0.25:
        return None
    if types.is_int32(dtype):
        return drawn.randint(0, 99)
    if types.is_struct(dtype):
        fields = [dtype.field(n) for n in range(dtype.num_fields)]
        return {field.name: drawn_value(drawn, field.type) for field in fields}
    count = 2 if types.is_fixed_size_list(dtype) else drawn.randint(0, 3)
    if types.is_map(dtype):
        return [(key, drawn_value(drawn, dtype.item_type)) for key in range(count)]
    return [drawn_value(drawn, dtype.value_type) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_leaves_are_converted_and_all_else_is_kept(seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(300):
        dtype = drawn_type(drawn)
        values = [drawn_value(drawn, dtype) for _ in range(drawn.randint(0, 6))]
        start = drawn.randint(0, len(values))
        stop = drawn.randint(start, len(values))
        part = pa.array(values, dtype)[start:stop]
        target = with_leaves(dtype, lambda _: pa.int64())
        got = convert_leaves(part, target, lambda array, leaf: array.cast(leaf))
        got.validate(full=True)
        assert got.type.equals(target), f"seed {seed}: {dtype}"
        assert got.to_pylist() == values[start:stop], f"seed {seed}: {dtype}"
