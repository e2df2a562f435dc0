"""Spark has one watermark for all streams of a query: the lowest of them."""

from __future__ import annotations

from typing import Any

import pytest

import godwit as gw

COLUMNS = "k string, ts timestamp"


@pytest.mark.parametrize(("one_watermark", "expected"), [(True, [0, 1]), (False, [1, 1])])
def test_windows_wait_for_the_slowest_stream_of_the_query(
    one_watermark: bool, expected: list[int]
) -> None:
    flow = gw.Flow("two")
    flow._one_watermark = one_watermark
    for name in ("fast", "slow"):
        rows = flow.source(name, gw.testing.stream(COLUMNS), event_time="ts")
        windows = rows.key_by("k").window(gw.tumbling("1 minute")).compute(n=gw.count())
        flow.sink(f"{name}_out", windows, gw.sinks.memory())

    def at_minute(minute: int) -> list[dict[str, Any]]:
        """Return a row of an event time."""
        return [{"k": "a", "ts": f"2024-01-01 00:{minute:02}:00"}]

    counts = []
    for slow in (at_minute(0), at_minute(5)):
        played = gw.testing.run(
            flow,
            {
                "fast": [at_minute(0), at_minute(30), []],
                "slow": [at_minute(0), slow, []],
            },
        )
        counts.append(played.rows("fast_out").num_rows)
    assert counts == expected
