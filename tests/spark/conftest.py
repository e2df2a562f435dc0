"""Fixtures of all tests on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from godwit.spark.stages.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["by_way_of_an_exchange", "no_query_is_left"]


@pytest.fixture(autouse=True)
def by_way_of_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all rows to lanes by an exchange, however few they are.

    Nearly every epoch here is small; what drives whole flows elsewhere (the scenarios, the chaos
    tests, the examples) takes the rows of such epochs to the driver.
    """
    monkeypatch.setattr(SourceRows, "few_expected", False)


@pytest.fixture(autouse=True)
def no_query_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop what a test that failed left running, so that it fails alone."""
    yield
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        for query in session.streams.active:
            query.stop()
