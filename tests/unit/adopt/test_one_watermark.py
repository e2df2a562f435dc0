"""Spark has one watermark for all streams of a query: the lowest of them, or the greatest."""

from __future__ import annotations

from typing import Any

import pytest

import godwit as gw
from godwit.engine.event_time import EventTimes, Times
from godwit.time.event_time import QueryWatermark

COLUMNS = "k string, ts timestamp"


_SAME = {"fast": "call", "slow": "call"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (QueryWatermark(policy="min"), [0, 1]),
        (QueryWatermark(policy="min", calls=_SAME), [1, 1]),
        (QueryWatermark(policy="max"), [1, 1]),
        (None, [1, 1]),
    ],
)
def test_windows_wait_for_the_slowest_stream_of_the_query(
    rule: QueryWatermark | None, expected: list[int]
) -> None:
    flow = gw.Flow("two")
    flow._query_watermark = rule
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


def test_the_watermark_of_a_query_stays_over_a_restart_and_those_of_its_streams_do_not() -> None:
    flow = gw.Flow("two")
    flow._query_watermark = QueryWatermark(policy="min")
    for name in ("fast", "slow"):
        rows = flow.source(name, gw.testing.stream(COLUMNS), event_time="ts")
        windows = rows.key_by("k").window(gw.tumbling("1 minute")).compute(n=gw.count())
        flow.sink(f"{name}_out", windows, gw.sinks.memory())
    watermarks = {"fast": 90, "slow": 60}
    for recorded in (Times(watermarks=watermarks), Times(watermarks=watermarks, query=60)):
        begun = EventTimes(flow.compiled(), recorded).times
        assert (begun.query, begun.watermarks) == (60, {})
    times = EventTimes(flow.compiled(), Times(watermarks={"fast": 90}, query=70))
    assert times.times.query == 70  # also where it is not that of the streams
    (until,) = {
        time.until
        for time in times.epoch_times(clock_us=10**9, silence_us=0, components={}).values()
    }
    assert until == 70
