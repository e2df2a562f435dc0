"""Comparisons with native Spark that count as made before."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.adopted import agreed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def _own_and_other(s: DataFrame, column: str) -> DataFrame:
    """Return a join of which a column of one side, or of the other, is left."""
    frames = {"own": s, "other": s.sparkSession.range(3).withColumnRenamed("id", "value")}
    joined = s.join(frames["other"], s["value"] == frames["other"]["value"])
    return joined.select(frames[column]["value"])


_QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a column": lambda s: s.select("value"),
    "another name": lambda s: s.select(sf.col("value").alias("v")),
    "an integer": lambda s: s.select((sf.col("value") + sf.lit(1)).alias("v")),
    "a double": lambda s: s.select((sf.col("value") + sf.lit(1.0)).alias("v")),
    "a text": lambda s: s.select((sf.col("value") + sf.lit("1")).alias("v")),
    "a watermark": lambda s: s.withWatermark("timestamp", "1 minute").select("value"),
    "another watermark": lambda s: s.withWatermark("timestamp", "2 minutes").select("value"),
    "a function": lambda s: s.select(sf.udf(lambda value: value, "int")("value").alias("v")),
    "SQL": lambda s: s.sparkSession.sql("SELECT value + 2 AS v FROM {s}", s=s),
    "a row": lambda s: s.join(s.sparkSession.sql("SELECT * FROM VALUES (1) AS t(n)")),
    "another row": lambda s: s.join(s.sparkSession.sql("SELECT * FROM VALUES (2) AS t(n)")),
    "a column of its own": lambda s: _own_and_other(s, "own"),
    "a column of the other side": lambda s: _own_and_other(s, "other"),
}


def test_a_comparison_has_all_that_decides_what_spark_gives(spark: SparkSession) -> None:
    def compared(name: str, *further: object) -> str:
        rates = spark.readStream.format("rate").load()
        return agreed.comparison(_QUERIES[name](rates), _QUERIES[name], *further)

    texts = {name: compared(name, "append", [(1,)]) for name in _QUERIES}
    assert len({*texts.values()}) == len(_QUERIES)
    assert {name: compared(name, "append", [(1,)]) for name in _QUERIES} == texts
    name = "a column"
    assert compared(name, "update", [(1,)]) != texts[name]
    assert compared(name, "append", [(2,)]) != texts[name]
    assert "lambda value: value" in texts["a function"], "the text of the test"
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert compared(name, "append", [(1,)]) != texts[name]
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_an_outcome_that_spark_has_not_given_is_not_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "agreed.txt"
    place.touch()
    monkeypatch.setattr(agreed, "_LINES", place)
    monkeypatch.setattr(agreed, "_lines", agreed._lines.__wrapped__)
    monkeypatch.delenv("GODWIT_LONG", raising=False)

    def is_agreed(outcome: Any, compared: str = "query") -> bool:
        return agreed.agreed(compared, outcome)

    time = dt.datetime(2024, 1, 1)
    outcome = {0: [("a", 0.1 + 0.2, None, True)], 2: [([1, (float("nan"),)], time, 0.0, 1)]}
    assert not is_agreed(outcome)
    monkeypatch.setenv("GODWIT_AGREED", "no")
    agreed.remember("query", outcome, "a name")
    assert not is_agreed(outcome), "unasked"
    monkeypatch.setenv("GODWIT_AGREED", "write")
    agreed.remember("query", outcome, "a name")
    assert is_agreed(outcome)
    assert is_agreed({2: [([1, (float("nan"),)], time, -0.0, 1)], 0: [("a", 0.3, None, True)]})
    assert not is_agreed(outcome, "another query")
    for other in (
        {1: outcome[0], 2: outcome[2]},
        {0: outcome[0]},
        {**outcome, 0: [("a", 0.3, None, 1)]},
        {**outcome, 0: [("a", 0.3001, None, True)]},
        {**outcome, 0: [("a", 0.3, "None", True)]},
        {**outcome, 2: [((1, (float("nan"),)), time, 0.0, 1)]},
        {**outcome, 2: [([1, (float("nan"),)], time, 0, 1)]},
    ):
        assert not is_agreed(other), other
    monkeypatch.setenv("GODWIT_LONG", "1")
    assert not is_agreed(outcome)
