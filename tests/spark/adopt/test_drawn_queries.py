"""Drawn queries give the rows that Spark gives; ``python -m tests.adopted`` runs thousands."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.adopted.drawn import compare_cases, drawn_cases
from tests.adopted.grammar import case_of
from tests.support.rounds import rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_LATE_SESSIONS = """
s.withWatermark('ts', '0 seconds').groupBy('d', 'id', F.session_window('ts', '30 seconds'))
.agg(F.expr('approx_count_distinct(id)').alias('r0'), F.expr('size(collect_list(n))').alias('r1'))
"""  # in complete mode; rows of them are late.  By a rollup, Spark fails for a session that is null


def test_drawn_queries_give_the_batches_that_spark_gives(spark: SparkSession) -> None:
    seeds = range(rounds(3, 11))
    text = "".join(_LATE_SESSIONS.split("\n"))
    cases = drawn_cases(seeds) | dict([case_of(random.Random(5), text, "complete")])
    outcome = compare_cases(spark, cases)
    assert not outcome.different
    assert not outcome.refused
    assert not outcome.failed, "nothing is compared"
    assert outcome.same == len(cases)
