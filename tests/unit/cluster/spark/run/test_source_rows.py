"""Whether an epoch is expected to be small follows from the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from godwit.cluster.spark.run.source_rows import FewRows, SourceRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = pa.schema({"k": pa.string()})


def batch_of(rows: int, width: int = 1) -> bytes:
    column = pa.array(["x" * width] * rows, pa.string())
    batch = pa.RecordBatch.from_arrays([column], schema=SCHEMA)
    return bytes(batch.serialize().to_pybytes())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What Spark's plan gives."""
    batches: list[bytes] = []
    monkeypatch.setattr(SourceRows, "limited", lambda *_: list(batches))
    return batches


def test_nothing_is_expected_of_the_first_epoch(rows: DataFrame, found: list[bytes]) -> None:
    few = FewRows(SourceRows(), SCHEMA, rows_at_most=100)
    assert not few.expected
    assert few.take(rows, 0) is None
    few.expect(40)
    found.append(batch_of(40))
    assert few.take(rows, 1) == found


def test_after_a_large_epoch_none_is_taken_until_a_small_one(
    rows: DataFrame, found: list[bytes]
) -> None:
    few = FewRows(SourceRows(), SCHEMA, rows_at_most=100)
    few.expect(40)
    found.extend([batch_of(60), batch_of(41)])
    assert few.take(rows, 0) is None  # a row too many
    assert not few.expected
    few.expect(10)
    found.pop()
    assert few.take(rows, 1) == found


def test_wide_rows_are_not_taken_again(rows: DataFrame, found: list[bytes]) -> None:
    few = FewRows(SourceRows(), SCHEMA, rows_at_most=100, bytes_at_most=10_000)
    few.expect(10)
    found.append(batch_of(10, width=2_000))
    assert few.take(rows, 0) == found
    few.expect(10)
    assert not few.expected
    few.expect(2)
    assert few.expected


@pytest.fixture
def rows() -> DataFrame:
    """Rows that only Spark would look at."""
    return object()  # type: ignore[return-value]
