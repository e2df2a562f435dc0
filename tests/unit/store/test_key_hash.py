"""Facts about the hash by which a table finds rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.unit.store.test_columns import EVERY_TYPE, IDS

from godwit.store.columns import StateSchema
from godwit.store.image import blank_image
from godwit.store.key_hash import keyed_hashes

SECRET = (1234567890123456789, 987654321)


def hashes(*columns: pa.Array, secret: tuple[int, int] = SECRET) -> npt.NDArray[np.uint64]:
    schema = pa.schema([(f"k{i}", column.type) for i, column in enumerate(columns)])
    batch = pa.RecordBatch.from_arrays(list(columns), schema=schema)
    image = blank_image(StateSchema(schema, pa.schema([])), 1)
    return keyed_hashes(image.encode_keys(batch), batch.num_rows, secret)


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_a_key_has_one_hash_wherever_it_stands(dtype: pa.DataType, values: list[Any]) -> None:
    array = pa.array([*values, None, *values], dtype)
    whole = hashes(array)
    for i in range(len(array)):
        assert hashes(array.slice(i, 1)) == whole[i : i + 1]
        assert hashes(array.slice(i))[0] == whole[i]
    assert (hashes(array, secret=(1, 2)) != whole).any()


@pytest.mark.parametrize(
    "array",
    [
        pa.array(range(-50_000, 50_000)),
        pa.array([i << 40 for i in range(50_000)]),
        pa.array([float(i) for i in range(50_000)]),
        pa.array([f"customer-{i:08d}" for i in range(50_000)]),
        pa.array(["x" * i for i in range(3000)]),
        pa.array([bytes(i) for i in range(3000)]),
        pa.array([i.to_bytes(20, "big") for i in range(50_000)], pa.binary(20)),
    ],
    ids=["dense", "high bits", "floats", "strings", "lengths", "zeros", "fixed"],
)
def test_regular_keys_have_well_spread_hashes(array: pa.Array) -> None:
    found = hashes(array)
    assert len(np.unique(found >> np.uint64(32))) > 0.999 * len(array)
    for shift in (56, 48, 40, 32):
        counts = np.bincount(((found >> np.uint64(shift)) & np.uint64(0xFF)).astype(int))
        mean = len(array) / 256
        assert counts.max() < mean + 6 * np.sqrt(mean) + 6


def test_null_is_not_zero_and_not_empty() -> None:
    assert len(set(hashes(pa.array([None, 0, 1])).tolist())) == 3
    assert len(set(hashes(pa.array([None, "", "a"])).tolist())) == 3


def test_columns_do_not_change_places() -> None:
    one, two = pa.array(["a", "b"]), pa.array(["b", "a"])
    found = hashes(one, two)
    assert found[0] != found[1]


def test_bytes_beyond_the_end_of_a_key_do_not_count() -> None:
    whole = pa.array([b"0123456789", b"abc", b"defghijklmnop"])
    assert hashes(whole)[1] == hashes(pa.array([b"abc"]))[0]
    assert hashes(whole)[2] == hashes(pa.array([b"padding", b"defghijklmnop"]))[1]
