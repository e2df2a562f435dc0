"""Projected costs computed on Spark are those computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from lab.tests.oracles.interval_plans import line_problem

from godwit_lab.planners.intervals.on_spark import SparkBlockMap
from godwit_lab.planners.intervals.pmc import projected_cost
from godwit_lab.planners.intervals.projected import Transitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_projected_costs_on_spark_equal_those_computed_in_one_process(spark: SparkSession) -> None:
    rng = np.random.default_rng(0)
    problem = line_problem(
        [0] * 8 + [1] * 8, load=(rng.random(16) + 0.5).tolist(), num_executors=4, tau=0.8
    )
    transitions = Transitions(
        sizes=(2, 3, 4),
        probability=np.array([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]]),
    )
    here = projected_cost(problem, transitions)
    there = projected_cost(
        problem, transitions, block_map=SparkBlockMap(spark.sparkContext, slices=3)
    )
    assert here.sweeps == there.sweeps
    for ours, theirs in zip(here.cost, there.cost, strict=True):
        assert np.array_equal(ours, theirs)
