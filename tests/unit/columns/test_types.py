"""Types of keys, and the ways to write a schema."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from godwit.columns.types import is_key_type, key_type_remedy, plain_schema, to_schema
from godwit.model.errors import InvalidFlowError

KEYS = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
    pa.decimal128(38, 4),
]

NO_KEYS = [
    (pa.list_(pa.int32()), "explode"),
    (pa.map_(pa.string(), pa.int32()), "explode"),
    (pa.struct([("city", pa.string())]), "k.city"),
    (pa.struct([]), "k.field"),
    (pa.duration("us"), "number of seconds"),
    (pa.month_day_nano_interval(), "number of seconds"),
    (pa.dictionary(pa.int32(), pa.string()), "Cast 'k' to string"),
    (pa.uint32(), "signed integer"),
    (pa.timestamp("ns"), "timestamp[us]"),
    (pa.time64("us"), "Cast 'k' to a boolean"),
    (pa.null(), "Cast 'k' to a boolean"),
    (pa.decimal256(50, 2), "Cast 'k' to a boolean"),
]


@pytest.mark.parametrize("dtype", KEYS, ids=str)
def test_values_that_spark_hashes_alike_can_be_keys(dtype: pa.DataType) -> None:
    assert is_key_type(dtype)


@pytest.mark.parametrize(("dtype", "remedy"), NO_KEYS, ids=str)
def test_other_types_cannot_be_keys_and_each_has_a_remedy(dtype: pa.DataType, remedy: str) -> None:
    assert not is_key_type(dtype)
    assert remedy in key_type_remedy("k", dtype)


EXPECTED = pa.schema(
    [
        ("symbol", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("n", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    "written",
    [
        EXPECTED,
        "symbol string, price decimal(10, 2), at timestamp, n bigint",
        "  symbol:STRING,price: Decimal( 10,2 ) ,at timestamp,\n n long",
        "`symbol` varchar(8), price numeric(10,2), at timestamp, n int64",
        {"symbol": str, "price": pa.decimal128(10, 2), "at": dt.datetime, "n": int},
        {"symbol": "string", "price": "decimal(10,2)", "at": "timestamp", "n": "long"},
        spark.StructType()
        .add("symbol", spark.StringType())
        .add("price", spark.DecimalType(10, 2))
        .add("at", spark.TimestampType())
        .add("n", spark.LongType()),
    ],
    ids=["arrow", "text", "text with colons", "aliases", "classes", "dict of text", "struct type"],
)
def test_one_schema_can_be_written_in_many_ways(written: Any) -> None:
    assert to_schema(written, where="The output") == EXPECTED


@pytest.mark.parametrize(
    ("written", "what"),
    [
        (7, ["The output", "a value of type int", "pyarrow.Schema"]),
        (None, ["The output", "NoneType"]),
        ("", ["no columns", "symbol string, price double"]),
        ({}, ["no columns"]),
        ("symbol", ["cannot be read at 'symbol'", "in pairs"]),
        ("symbol strng", ["'symbol'", "'strng'", "Did you mean 'string'"]),
        ("x int, x long", ["two columns named 'x'"]),
        ("__godwit_lane int", ["'__godwit_lane'", "reserved"]),
        ({"x": decimal.Decimal}, ["'x'", "'the class Decimal'"]),
        ({"x": spark.StringType}, ["'x'", "'the class StringType'"]),
        ({"x": 3}, ["'x'", "'int'"]),
        ({3: "int"}, ["a column named 3", "Use text"]),
    ],
    ids=repr,
)
def test_a_schema_that_cannot_be_read_says_where_and_what_to_write(
    written: Any, what: list[str]
) -> None:
    with pytest.raises(InvalidFlowError) as caught:
        to_schema(written, where="The output")
    for part in what:
        assert part in str(caught.value)


def test_a_plain_schema_has_names_and_types_only() -> None:
    schema = pa.schema(
        [pa.field("x", pa.int32(), nullable=False, metadata={"a": "b"})], metadata={"c": "d"}
    )
    plain = plain_schema(schema)
    assert plain.equals(pa.schema([("x", pa.int32())]), check_metadata=True)
