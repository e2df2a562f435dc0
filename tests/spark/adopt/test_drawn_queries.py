"""Drawn queries give the rows that Spark gives; ``python -m tests.adopted`` runs thousands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.adopted.drawn import compare_drawn
from tests.adopted.lanes_here import lanes_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_LATE_SESSIONS = 4785  # sessions in complete mode, of which a row is late


def test_drawn_queries_give_the_batches_that_spark_gives(spark: SparkSession) -> None:
    seeds = range(11 if "GODWIT_LONG" in os.environ else 5)
    with lanes_here():
        outcome = compare_drawn(spark, (*seeds, _LATE_SESSIONS))
    assert not outcome.different
    assert not outcome.refused
    assert outcome.same >= len(seeds) - 2
