"""Mistakes that only a Spark session can tell are answered as clearly as others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions
from tests.mistakes.mistake import COLUMNS, Mistake, answer_to, grade, gw, namespace
from tests.mistakes.on_spark import MISTAKES

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def frame(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in").mkdir()
    return spark.readStream.schema(COLUMNS).json(str(tmp_path / "in"))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.code[:60])
def test_a_mistake_is_answered_with_what_to_do(
    mistake: Mistake, spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    flow = gw.Flow("mistakes")
    rows = flow.source("rows", frame)

    def explain(stream: Any) -> None:
        flow.sink("out", stream, gw.sinks.noop())
        flow.explain()

    names = {
        **namespace(tmp_path),
        "flow": flow,
        "rows": rows,
        "frame": frame,
        "spark": spark,
        "F": functions,
        "explain": explain,
    }
    given = grade(mistake, answer_to(mistake, names))
    assert given.partition(":")[0] == ("usable" if mistake.usable else "clear"), given
