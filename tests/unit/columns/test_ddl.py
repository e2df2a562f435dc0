"""Schemas as text: everything that Spark's DDL says of columns, and where a text goes wrong."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from godwit.columns.types import columns_of_text, to_schema, type_of_text
from godwit.model.errors import InvalidFlowError


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("smallint", pa.int16()),
        ("INT", pa.int32()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("time(6)", pa.time64("ns")),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ltz", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("timestamp without time zone", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric( 38 , 38 )", pa.decimal128(38, 38)),
        ("char(3)", pa.string()),
        ("string collate UTF8_LCASE", pa.string()),
        ("interval day to second", pa.duration("us")),
        ("interval hour", pa.duration("us")),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("map<string, decimal(10, 2)>", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("struct<>", pa.struct([])),
        (
            "struct<a: int, `b c` map<string,struct<d:date>> not null comment 'it''s, > all'>",
            pa.struct(
                [
                    ("a", pa.int32()),
                    ("b c", pa.map_(pa.string(), pa.struct([("d", pa.date32())]))),
                ]
            ),
        ),
    ],
)
def test_a_type_is_read_as_spark_reads_it(text: str, dtype: pa.DataType) -> None:
    assert type_of_text("x", text, "The output") == dtype
    assert columns_of_text(f"x {text}, y int", "The output") == [("x", dtype), ("y", pa.int32())]


def test_names_may_be_quoted_and_look_like_words_of_the_language() -> None:
    text = """`net, of ``tax``` double, -- the usual
        array int, map string /* > */, comment int comment "a 'comment'", Not date not null"""
    names = [name for name, _ in columns_of_text(text, "The output")]
    assert names == ["net, of `tax`", "array", "map", "comment", "Not"]


def test_a_whole_schema_may_be_one_struct() -> None:
    columns = columns_of_text("struct<a: int, b: array<string>>", "The output")
    assert columns == [("a", pa.int32()), ("b", pa.list_(pa.string()))]


def test_types_of_pyspark_are_read_with_whatever_names_their_fields_have() -> None:
    inner = spark.StructType().add("net, of tax", spark.ArrayType(spark.DayTimeIntervalType()))
    schema = spark.StructType().add("k", spark.MapType(spark.StringType(), inner))
    expected = pa.map_(pa.string(), pa.struct([("net, of tax", pa.list_(pa.duration("us")))]))
    assert to_schema(schema, where="The output").field("k").type == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("symbol", r"cannot be read at 'symbol' \(character 1 of 'symbol'\)\. Write names and"),
        ("symbol string,, n int", r"cannot be read at ', n int' \(character 15 .*in pairs"),
        ("symbol string n int", r"cannot be read at 'n int'.*in pairs"),
        ("symbol string,", r"cannot be read at ''.*in pairs"),
        ("a-b int", r"cannot be read at '-b int'.*in pairs"),
        ("x array<int", r"cannot be read at ''.*A '>' is missing"),
        ("x map<string>", r"cannot be read at '>'.*A ',' is missing"),
        ("x struct<a>", r"cannot be read at 'a>'.*in pairs|cannot be read at '>'.*in pairs"),
        ("x int(3)", "int takes no numbers"),
        ("x decimal()", r"Write a number, as in decimal\(10, 2\)"),
        ("x decimal(10, 2, 3)", r"A '\)' is missing"),
        ("x decimal(39, 2)", r"column 'x' the type 'decimal\(39, 2\)'.*1 to 38 digits"),
        ("x decimal(3, 4)", "after the point"),
        ("x strng", "column 'x' the type 'strng', which is not known. Did you mean 'string'"),
        ("x struct<a: array<strng>>", "column 'x.a' the type 'strng'"),
        ("x interval year to month", "interval of year to months, which Arrow has no type for"),
        ("x interval", "Name units, as in interval day to second"),
        ("x variant", "'variant', which Arrow has no type for. Give it as text"),
        ("x void", "'void', which Arrow has no type for"),
        ("x int comment no", "Write the comment in quotes"),
    ],
)
def test_a_text_that_cannot_be_read_says_where_and_what_is_missing(text: str, told: str) -> None:
    with pytest.raises(InvalidFlowError, match=told):
        columns_of_text(text, "The output")
