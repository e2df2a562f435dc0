"""Scenarios in which Spark takes part in what is proven; the others are played in one process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.contract.on_spark import OnSpark
from tests.contract.scenarios import ON_DEMAND, scenario
from tests.contract.verdict import play

from godwit.checkpoint import partial_copies

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


SCENARIOS: tuple[str, ...] = (
    "a live migration on two levels",
    "a stop_the_world migration while no row arrives",
    "an executor joins and is given key groups",
    "an executor is drained and leaves",
    "the rows of a lost executor wait and the others continue",
    "the driver dies when an epoch is staged",
    "all key groups move (on demand)",
    "operators in a row are fused while the stream runs",
)
OVER_OWN_SOURCES: tuple[str, ...] = (
    "a live migration on two levels",
    "the driver dies when an epoch is committed",
)
"""Those in which it matters who calls for epochs."""
if "GODWIT_LONG" in os.environ:  # in these, Spark takes part as it does in those above
    SCENARIOS += (
        "rows that wait at the first level feed the second when they are drained",
        "a lost executor's state is loaded at once",
        "local stores vanish again and again on two levels",
        "the driver dies when an epoch is committed",
        "key groups move back and forth while their copies are partial (on demand)",
        "the destination is lost while its copies are partial (on demand)",
        "the driver dies when an epoch is staged while copies are partial (on demand)",
    )
    OVER_OWN_SOURCES += (
        "the rows of a lost executor wait and the others continue",
        "the driver dies when an epoch is staged",
    )


@pytest.mark.parametrize(
    ("name", "own"),
    [*((name, False) for name in SCENARIOS), *((name, True) for name in OVER_OWN_SOURCES)],
)
def test_whatever_happens_each_row_is_processed_once_and_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, own: bool
) -> None:
    played = scenario(name)
    if played in ON_DEMAND:
        monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)  # drivers say it to lanes
    realization = OnSpark(
        spark,
        tmp_path,
        monkeypatch,
        deep=played.deep,
        again=played.again,
        policy=played.policy,
        own=own,
    )
    play(played, realization)
