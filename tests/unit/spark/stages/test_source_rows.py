"""The epoch before decides if an epoch is expected to be small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from godwit.spark.stages.source_rows import SourceRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = pa.schema({"k": pa.string()})


def batch_of(rows: int, width: int = 1) -> bytes:
    column = pa.array(["x" * width] * rows, pa.string())
    batch = pa.RecordBatch.from_arrays([column], schema=SCHEMA)
    return bytes(batch.serialize().to_pybytes())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Estimate of rows by Spark's plan."""
    batches: list[bytes] = []
    monkeypatch.setattr(SourceRows, "fetch_limited", lambda *_: list(batches))
    return batches


def test_nothing_is_expected_of_the_first_epoch(rows: DataFrame, found: list[bytes]) -> None:
    source = SourceRows(SCHEMA, rows_at_most=100)
    assert not source.few_expected
    assert source.fetch_few(rows, 0) is None
    source.expect(40)
    found.append(batch_of(40))
    assert source.fetch_few(rows, 1) == found


def test_after_a_large_epoch_none_is_taken_until_a_small_one(
    rows: DataFrame, found: list[bytes]
) -> None:
    source = SourceRows(SCHEMA, rows_at_most=100)
    source.expect(40)
    found.extend([batch_of(60), batch_of(41)])
    assert source.fetch_few(rows, 0) is None  # a row too many
    assert not source.few_expected
    source.expect(10)
    found.pop()
    assert source.fetch_few(rows, 1) == found


def test_wide_rows_are_not_taken_again(rows: DataFrame, found: list[bytes]) -> None:
    source = SourceRows(SCHEMA, rows_at_most=100, bytes_at_most=10_000)
    source.expect(10)
    found.append(batch_of(10, width=2_000))
    assert source.fetch_few(rows, 0) == found
    source.expect(10)
    assert not source.few_expected
    source.expect(2)
    assert source.few_expected


@pytest.fixture
def rows() -> DataFrame:
    """Rows that only Spark would look at."""
    return object()  # type: ignore[return-value]
