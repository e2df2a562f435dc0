"""Latency of an epoch's rows, from the best time of arrival that is known of them."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support.number_source import Numbers

import godwit as gw
from godwit.engine.latency import SourceLatency, latency_entry, latency_figures
from godwit.local import LocalRun
from godwit.model.events import EpochCommitted
from godwit.model.latency import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOUR_S = 3600.0
NOON = "1970-01-01T12:00:00Z"


class Stamped(Numbers):
    """Numbers that arrived a minute after one another, from 1970 on."""

    arrival_time = "ts"


def sums(source: Any) -> gw.Flow:
    flow = gw.Flow("sums", num_key_groups=8)
    numbers = flow.source("numbers", source)
    totals = numbers.key_by("key").compute(name="totals", total=gw.sum("number"))
    flow.sink("totals", totals, gw.sinks.noop())
    return flow


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, SourceLatency]]:
    """Latencies of every epoch of the runs of a test."""
    seen: list[Mapping[str, SourceLatency]] = []
    monkeypatch.setattr(LocalRun, "delivered", lambda *given: seen.append(given[-1]))
    return seen


def test_rows_count_from_the_time_that_their_source_says(
    measured: list[Mapping[str, SourceLatency]],
) -> None:
    source = Stamped(600, most=300)
    run = gw.testing.run(sums(source), now=NOON, executors={"1": 2, "2": 1})
    first, second = (m["numbers"] for m in measured)
    assert (first.arrival, second.arrival) == ("source", "source")
    assert first.histogram.rows == second.histogram.rows == 300
    assert first.histogram.max_s == pytest.approx(12 * HOUR_S)
    assert first.histogram.quantile_s(0.5) == pytest.approx(9.5 * HOUR_S, rel=0.02)
    assert second.histogram.mean_s == pytest.approx(4.5 * HOUR_S, rel=0.01)
    assert set(source.asked) == {("key", "number", "ts")}
    told = [e.latency_ms for e in run.events if isinstance(e, EpochCommitted)]
    assert told[0]["max"] == 12 * HOUR_S * 1e3
    assert told[0]["p50"] == pytest.approx(9.5 * HOUR_S * 1e3, rel=0.02)


def test_an_epochs_event_says_where_watermarks_stand() -> None:
    flow = gw.Flow("timed", num_key_groups=8)
    numbers = flow.source("numbers", Stamped(600, most=300), event_time="ts", slack="1 minute")
    hourly = numbers.key_by("key").window(gw.tumbling("1 hour")).compute(total=gw.sum("number"))
    flow.sink("hourly", hourly, gw.sinks.noop())
    run = gw.testing.run(flow, now=NOON)
    told = [e.watermarks for e in run.events if isinstance(e, EpochCommitted)]
    # Two epochs with rows, whose last numbers are 299 and 599; windows close in others.
    assert [told[0], told[-1]] == [{"numbers": 298 * 60_000}, {"numbers": 598 * 60_000}]


def test_rows_from_the_future_are_counted_and_take_no_time(
    measured: list[Mapping[str, SourceLatency]],
) -> None:
    gw.testing.run(sums(Stamped(600)), now="1970-01-01T05:00:00Z")
    histogram = measured[0]["numbers"].histogram
    assert (histogram.rows, histogram.ahead) == (600, 600 - 301)
    assert histogram.quantile_s(0.4) == 0
    assert histogram.max_s == pytest.approx(5 * HOUR_S)


def test_rows_whose_time_of_arrival_is_missing_have_just_arrived(
    measured: list[Mapping[str, SourceLatency]],
) -> None:
    source = Stamped(10)

    def without_some(rows: pa.RecordBatch) -> pa.RecordBatch:
        late = pc.if_else(pc.less(rows["number"], 4), None, rows["ts"])
        return rows.set_column(2, rows.schema.field("ts"), late)

    source.at_read = without_some
    gw.testing.run(sums(source), now=NOON)
    histogram = measured[0]["numbers"].histogram
    assert (histogram.rows, histogram.ahead, histogram.quantile_s(0.4)) == (10, 0, 0)
    assert histogram.max_s == pytest.approx(12 * HOUR_S - 240)


def test_rows_of_files_count_from_when_their_files_were_written(
    tmp_path: Path, measured: list[Mapping[str, SourceLatency]]
) -> None:
    now = dt.datetime.fromisoformat(NOON).timestamp()
    for hours in (1, 3):
        file = tmp_path / f"{hours}.parquet"
        pq.write_table(pa.table({"key": ["a", "b"], "number": [1, 2]}), file)
        os.utime(file, (now - hours * HOUR_S, now - hours * HOUR_S))
    gw.testing.run(sums(gw.sources.parquet(str(tmp_path))), now=NOON)
    (latency,) = (m["numbers"] for m in measured)
    assert latency.arrival == "source"
    assert latency.histogram.rows == 4
    assert latency.histogram.quantile_s(0.5) == pytest.approx(HOUR_S, rel=0.02)
    assert latency.histogram.max_s == pytest.approx(3 * HOUR_S)


def test_given_rows_arrive_when_they_are_given(
    measured: list[Mapping[str, SourceLatency]],
) -> None:
    flow = sums(gw.testing.stream("key string, number long"))
    rows = [{"key": "a", "number": number} for number in range(6)]
    gw.testing.run(flow, {"numbers": rows}, epochs=3, advance="1 hour")
    assert [m["numbers"].arrival for m in measured if m] == ["seen"] * 3
    assert max(m["numbers"].histogram.max_s for m in measured if m) < 1e-5


def test_progress_has_the_figures_of_all_rows_and_of_each_source() -> None:
    def source(arrival: Any, age_s: float, rows: int) -> SourceLatency:
        return SourceLatency(
            arrival=arrival,
            histogram=LatencyHistogram.of_us(pa.array([int(age_s * 1e6)] * rows).to_numpy()),
        )

    latencies = {"orders": source("source", 2.0, 90), "clicks": source("seen", 4.0, 10)}
    figures = latency_figures(latencies)
    assert figures["p50"] == pytest.approx(2000, rel=0.01)
    assert figures["p95"] == figures["max"] == 4000
    assert figures["mean"] == 2200
    assert figures["sources"]["clicks"]["arrival"] == "seen"
    assert figures["sources"]["orders"]["rows"] == 90
    assert latency_figures({}) == {}
    stored = latency_entry(3, latencies)["sources"]
    merged = LatencyHistogram.merged(LatencyHistogram.from_dict(one) for one in stored.values())
    assert merged.figures_ms() == {n: v for n, v in figures.items() if n != "sources"}
