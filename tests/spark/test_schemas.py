"""Schemas as text mean what they mean to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from godwit.columns.types import plain_schema, to_schema
from godwit.spark.platform.pyspark_versions import arrow_schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEXTS = [
    "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long",
    "a float, b real, c double, d string, e binary, f date, g timestamp, h timestamp_ntz",
    "a decimal, b dec(5), c numeric(38, 10), d timestamp_ltz, e time, f time(3)",
    "a: int, `b, c``d` array<map<string, struct<`x y`: date, z: array<decimal(10,2)>>>>",
    "a int not null comment 'the ''first''', b string comment \"x\" -- the end",
    "a interval day to second, b interval hour, c interval day to minute",
    "a string collate UTF8_LCASE, b struct<>, array int, map int, comment int, `not` int",
    "struct<a: int, b: string>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_schema_as_text_is_the_one_that_spark_reads(spark: SparkSession, text: str) -> None:
    read = StructType.fromDDL(text)
    assert isinstance(read, StructType)
    expected = plain_schema(arrow_schema_of(read, zone="UTC"))
    assert to_schema(text, where="The output") == expected
    assert to_schema(read, where="The output") == expected
