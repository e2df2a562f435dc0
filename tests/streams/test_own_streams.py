"""Drawn flows over drawn sources, a few; `python -m tests.streams --own` plays any number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.streams.covering import covering
from tests.streams.own_playing import play_own, play_own_on_spark
from tests.support.rounds import rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("seed", [2, 3])
def test_a_drawn_flow_over_own_sources_gives_what_plain_python_says(seed: int) -> None:
    assert play_own(seed) == []


GROUPS = 3
DRAWN = rounds(6, 50)


@pytest.mark.campaign
@pytest.mark.parametrize("group", range(GROUPS))
def test_drawn_flows_over_own_sources_give_what_plain_python_says(group: int) -> None:
    played = {seed: play_own(seed) for seed in covering(DRAWN)[group::GROUPS]}
    assert {seed: differences for seed, differences in played.items() if differences} == {}


@pytest.mark.spark
def test_a_drawn_flow_over_own_sources_on_spark_gives_what_plain_python_says(
    spark: SparkSession,
) -> None:
    assert play_own_on_spark(1, spark) == []
