"""Values of pickled Python functions: arguments, results, and the order of Java's maps."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from godwit.adopt.pickled_values import arguments_of, check_argument, check_result, results_of


def _results(value: Any, dtype: spark.DataType, column: pa.DataType) -> Any:
    (result,) = results_of([value], dtype, column, shortest=False).to_pylist()
    return result


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e20, "1.0E20"),
        (True, "true"),
        (Decimal("1E+2"), "1E+2"),
        ([1, None, "x"], "[1, null, x]"),
        ({"b": 1, "a": [2.5]}, "{a=[2.5], b=1}"),
    ],
)
def test_a_text_is_what_java_writes_of_a_value(value: Any, text: str) -> None:
    assert _results(value, spark.StringType(), pa.string()) == text


@pytest.mark.parametrize("value", [b"x", (1, 2), object()])
def test_values_of_which_java_writes_its_own_texts_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="return str"):
        _results(value, spark.StringType(), pa.string())


def test_scalars_of_numpy_are_refused_as_by_spark() -> None:
    with pytest.raises(TypeError, match="float64 of NumPy"):
        _results([np.float64(1)], spark.ArrayType(spark.DoubleType()), pa.list_(pa.float64()))


def test_a_struct_has_the_declared_number_of_fields() -> None:
    dtype = spark.StructType([spark.StructField("a", spark.IntegerType())])
    column = pa.struct([("a", pa.int32())])
    assert _results((2**33 + 1,), dtype, column) == {"a": 1}
    assert _results({1}, dtype, column) is None
    with pytest.raises(ValueError, match="STRUCT_ARRAY_LENGTH_MISMATCH"):
        _results((1, 2), dtype, column)


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        (["b", "a", "long key"], ["long key", "a", "b"]),
        ([19, -9, 5, 0, -1], [-9, 0, -1, 19, 5]),
        (
            [f"key {11 * n}" for n in range(11)],  # nine of a bucket make the table grow
            [f"key {11 * n}" for n in (10, 1, 3, 5, 7, 9, 0, 2, 4, 6, 8)],
        ),
    ],
)
def test_items_of_a_map_have_the_order_of_a_hash_map(keys: list[Any], order: list[Any]) -> None:
    is_text = isinstance(keys[0], str)
    key_type: Any = spark.StringType() if is_text else spark.IntegerType()
    column = pa.map_(pa.string() if is_text else pa.int32(), pa.int32())
    dtype = spark.MapType(key_type, spark.IntegerType())
    items = [(key, 1) for key in keys]
    (argument,) = arguments_of(pa.array([items], column), dtype, as_bytes=True)
    assert list(argument) == order
    assert [key for key, _ in _results(dict(items), dtype, column)] == order


def test_bytes_that_are_returned_for_an_array_are_signed_integers() -> None:
    assert _results(b"a\xff", spark.ArrayType(spark.IntegerType()), pa.list_(pa.int32())) == [
        97,
        -1,
    ]


def test_binary_arguments_are_bytes_or_arrays_of_bytes() -> None:
    column, dtype = pa.array([[b"x", None]]), spark.ArrayType(spark.BinaryType())
    assert arguments_of(column, dtype, as_bytes=True) == [[b"x", None]]
    ((value, _),) = arguments_of(column, dtype, as_bytes=False)
    assert type(value) is bytearray


def test_types_whose_values_are_not_known_are_refused() -> None:
    by_decimals = spark.MapType(spark.DecimalType(), spark.StringType())
    with pytest.raises(ValueError, match="hashes keys of type decimal"):
        check_argument(spark.ArrayType(by_decimals))
    field = spark.StructField("a", spark.StringType())
    with pytest.raises(ValueError, match="duplicate field names"):
        check_result(spark.ArrayType(spark.StructType([field, field])))
