"""Lag of a query behind its sources, computed from Spark's own progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from godwit.spark.progress import (
    offsets_behind,
    rows_held_back,
    source_figures,
    source_lag,
)


@pytest.mark.parametrize(
    ("end", "latest", "behind"),
    [
        ('{"t": {"0": 5, "1": 7}}', '{"t": {"0": 9, "1": 8, "2": 100}}', 5),
        ({"a": {"0": 5}, "b": {"0": 1}}, {"b": {"0": 4}}, 3),
        ("5", "9", 4),
        (5, 3, 0),  # a source that was reset is not behind
        ({"logOffset": 2}, None, None),
        (None, None, None),
        ("not json", "9", None),
        ([1, 2], [3, 4], None),
        (True, False, None),
        (float("nan"), 4, None),
        ({"t": "x"}, {"t": "y"}, None),
        ("[" * 100_000, "1", None),
    ],
)
def test_offsets_are_counted_where_they_are_numbers(end: Any, latest: Any, behind: Any) -> None:
    assert offsets_behind(end, latest) == behind


def test_a_source_s_figures_are_plain_values_that_json_can_hold() -> None:
    kafka = {
        "description": "KafkaV2[Subscribe[flights]]",
        "startOffset": {"flights": {"0": 1}},
        "endOffset": {"flights": {"0": 5}},
        "latestOffset": {"flights": {"0": 9}},
        "numInputRows": 4,
        "inputRowsPerSecond": float("inf"),
        "processedRowsPerSecond": 2.5,
        "metrics": {"maxOffsetsBehindLatest": "4"},
    }
    (told,) = source_figures([kafka])
    assert told == {
        "description": "KafkaV2[Subscribe[flights]]",
        "inputRowsPerSecond": None,
        "processedRowsPerSecond": 2.5,
        "behind": 4,
        "metrics": {"maxOffsetsBehindLatest": "4"},
    }
    json.dumps(told, allow_nan=False)
    assert source_figures([{}])[0]["behind"] is None


def test_a_query_without_progress_says_nothing() -> None:
    assert source_lag(cast("Any", SimpleNamespace(lastProgress=None))) is None


@pytest.mark.parametrize(
    ("sources", "held_back"),
    [
        ([{"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 905}}}], 900),
        ([{"endOffset": 5, "latestOffset": 5}, {"endOffset": {"logOffset": 2}}], 0),
        ([{"endOffset": {"logOffset": 2}, "latestOffset": None}], None),
        ([], None),
    ],
)
def test_what_sources_hold_back_is_told_in_rows(
    sources: list[dict[str, Any]], held_back: int | None
) -> None:
    query = SimpleNamespace(lastProgress={"batchId": 1, "sources": sources})
    assert rows_held_back(cast("Any", query)) == held_back
    assert rows_held_back(cast("Any", SimpleNamespace(lastProgress=None))) is None
