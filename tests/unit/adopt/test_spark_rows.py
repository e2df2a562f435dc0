"""Rows of a Spark schema as state: texts are what Java writes of a value."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql import types as spark

from godwit.adopt.spark_rows import SparkRows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (7, "7"),
        (2e23, "1.9999999999999998E23"),
        ([1.5, None, "x"], "[1.5, null, x]"),
        ({"b": 1, "a": True}, "{a=true, b=1}"),
    ],
)
def test_a_text_of_state_is_what_java_writes_of_a_value(value: Any, text: str | None) -> None:
    rows = SparkRows(
        spark.StructType().add("s", "string").add("a", spark.ArrayType(spark.StringType()))
    )
    assert rows.to_tuple(rows.to_record((value, [value]))) == (text, [text])


@pytest.mark.parametrize("form", [tuple, list, lambda row: spark.Row(*row)])
@pytest.mark.parametrize("row", [(1, 2.0, "x"), (2**31, 2.0, "x"), (1, 2, None), (True, 2.0, 3)])
def test_rows_of_any_form_become_the_record_of_their_fitted_values(form: Any, row: Any) -> None:
    schema = spark.StructType().add("n", spark.IntegerType()).add("x", spark.DoubleType())
    rows = SparkRows(schema.add("s", "string"))
    assert rows.to_record(form(row)) == rows.record_of(rows.internal(row))


def test_texts_of_floats_are_those_of_the_java_of_the_driver() -> None:
    rows = SparkRows(spark.StructType().add("s", "string"), shortest=True)
    assert pickle.loads(pickle.dumps(rows)).to_record((2e23,)).s == "2.0E23"


def test_values_of_which_java_writes_its_own_texts_are_refused() -> None:
    rows = SparkRows(spark.StructType().add("s", "string"))
    with pytest.raises(TypeError, match="return str"):
        rows.to_record((b"x",))
