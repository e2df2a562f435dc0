"""OpenTelemetry has the metrics that Prometheus has, and a span for each epoch and migration."""

from __future__ import annotations

import datetime as dt
import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.support.receiver import Receiver
from tests.unit.ops.test_metrics import PROGRESS

import godwit as gw
from godwit.engine.latency import latency_figures
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.model.latency import MAX_TRACES
from godwit.ops.figures import METRICS
from godwit.ops.metrics import Metrics
from godwit.ops.telemetry import Telemetry, TelemetryRecorder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

EVENTS = (
    events.MigrationStarted(
        at_s=1.0, epoch=3, migration="m", component="totals", strategy="live", moves=5
    ),
    events.MigrationFinished(at_s=3.5, epoch=5, migration="m", component="totals", moved=5),
    events.RowsLeftOut(at_s=4.0, epoch=5, operator="w", late=2, ahead=1, untimed=0),
    events.RowsUnreadable(at_s=4.0, epoch=5, source="orders", rows=7),
    events.EpochAborted(at_s=5.0, epoch=6, reason="executor 1 was lost"),
)
ENTRIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("progress", {**PROGRESS, "sinkRows": {"out": 10}, "latencyMs": {"p50": 20.0, "max": 80.0}}),
    *(("event", event.to_dict()) for event in EVENTS),
    (
        "sources",
        {
            "sources": [
                {"description": "Kafka", "behind": 12, "metrics": {}},
                {"description": "files", "behind": None, "metrics": {}},
            ]
        },
    ),
    (
        "progress",
        {
            **PROGRESS,
            "epoch": 8,
            "sinkRows": {"out": 1},
            "latencyMs": {},
            "executors": {"1": PROGRESS["executors"]["1"]},
        },
    ),
)


class Recorded:
    """A recorder with exporters in memory."""

    def __init__(self) -> None:
        self._reader, self._spans = InMemoryMetricReader(), InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.recorder = TelemetryRecorder("delays", MeterProvider([self._reader]), tracers)

    def points(self) -> dict[str, dict[tuple[str, ...], Any]]:
        """Return metric → values of its attributes, without the flow's → point."""
        data = self._reader.get_metrics_data()
        assert data is not None
        points: dict[str, dict[tuple[str, ...], Any]] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            values = points.setdefault(metric.name, {})
            for point in metric.data.data_points:
                attributes = dict(point.attributes or {})
                assert attributes.pop("godwit.flow") == "delays"
                values[tuple(map(str, attributes.values()))] = point
        return points

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._spans.get_finished_spans()


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    recorded = Recorded()
    for kind, values in ENTRIES:
        recorded.recorder.add(kind, values)
    return recorded


def test_every_metric_has_the_values_that_prometheus_gets(recorded: Recorded) -> None:
    prometheus = Metrics("delays")
    for kind, values in ENTRIES:
        prometheus.add(kind, values)
    points = recorded.points()
    compared = 0
    for family in prometheus.registry.collect():
        metric = METRICS[family.name]
        if not metric.otel_name:
            continue
        theirs = {
            tuple(sample.labels.values()): sample.value
            for sample in family.samples
            if sample.name in {family.name, f"{family.name}_total", f"{family.name}_sum"}
        }
        ours = {
            labels: point.sum if metric.kind == "histogram" else point.value
            for labels, point in points.get(metric.otel_name, {}).items()
        }
        # Prometheus shows 0 where nothing was counted yet.
        assert ours == pytest.approx({k: v for k, v in theirs.items() if v or k in ours})
        compared += len(ours)
    assert compared > 30


def test_names_follow_the_conventions() -> None:
    named = [metric.otel_name for metric in METRICS.values() if metric.otel_name]
    assert len({*named}) == len(named)
    for name in named:
        assert name.startswith("godwit.")
        assert name == name.lower()
        assert not name.endswith(("_total", "_seconds", "_bytes"))
    plurals = {m.otel_name for m in METRICS.values() if m.otel_name and m.unit in {"s", "By"}}
    assert "godwit.epoch.duration" in plurals


def test_the_latency_of_the_last_epoch_with_rows_is_a_gauge_of_quantiles() -> None:
    recorded = Recorded()
    recorded.recorder.add(*ENTRIES[0])
    idle = {**ENTRIES[-1][1], "numInputRows": 0}
    recorded.recorder.add("progress", idle)
    values = {labels: p.value for labels, p in recorded.points()["godwit.latency"].items()}
    assert values == {("p50",): 0.02, ("max",): 0.08}


def test_an_epoch_is_a_trace_of_its_phases_and_of_the_lanes_of_each_executor(
    recorded: Recorded,
) -> None:
    spans = recorded.spans()
    epoch = next(span for span in spans if span.name == "epoch")
    assert epoch.attributes is not None
    assert epoch.attributes["godwit.epoch"] == 7
    assert epoch.attributes["godwit.rows.in"] == 1000
    assert epoch.start_time == 1767225600 * 10**9
    assert epoch.end_time == epoch.start_time + 250 * 10**6
    assert epoch.context is not None
    trace_id = epoch.context.trace_id
    below = [s for s in spans if s.context and s.context.trace_id == trace_id and s is not epoch]
    assert [span.name for span in below] == ["plan", "lanes", "lanes", "stages"]
    plan, first, second, stages = below
    assert plan.parent == stages.parent == epoch.context
    assert first.parent == second.parent == stages.context
    assert (plan.start_time, stages.start_time) == (epoch.start_time, plan.end_time)
    took = [(s.end_time or 0) - (s.start_time or 0) for s in below]
    # Executor 0 has two lanes that were busy for 300 ms together.
    assert took == [20 * 10**6, 150 * 10**6, 100 * 10**6, 200 * 10**6]


def test_phases_of_lanes_and_sinks_are_in_the_trace_of_an_epoch() -> None:
    recorded = Recorded()
    took_ms = {"epoch": 250.0, "stages": 100.0, "deliver": 50.0, "triggerExecution": 260.0}
    sinks = {"sinkRows": {"out": 10, "none": 0}, "sinkMs": {"out": 30.0, "none": 15.0}}
    values = {**PROGRESS, **sinks, "durationMs": took_ms, "laneMs": {"apply": 40.0}}
    recorded.recorder.add("progress", values)
    spans = {span.name: span for span in recorded.spans() if span.name != "sink"}
    assert spans.keys() == {"epoch", "stages", "deliver", "lanes"}
    assert (spans["stages"].attributes or {})["godwit.lanes.apply.time"] == 0.04
    first, second = (span for span in recorded.spans() if span.name == "sink")
    assert first.parent == second.parent == spans["deliver"].context
    assert (first.start_time, second.start_time) == (spans["deliver"].start_time, first.end_time)
    for span, name, rows, ms in ((first, "out", 10, 30), (second, "none", 0, 15)):
        attributes = span.attributes or {}
        assert (attributes["godwit.sink"], attributes["godwit.rows"]) == (name, rows)
        assert (span.end_time or 0) - (span.start_time or 0) == ms * 10**6


def test_an_epoch_links_to_the_traces_of_its_rows() -> None:
    recorded = Recorded()
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    wrong = [f"ff-{trace}-{parent}-01", f"00-{'0' * 32}-{parent}-01", "nothing", ""]
    traces = [f"00-{trace}-{parent}-01", f"00-{trace}-{parent}-00", *wrong]
    latency = {"p50": 1.0, "sources": {"orders": {"traces": traces}, "clicks": {}}}
    recorded.recorder.add("progress", {**PROGRESS, "latencyMs": latency})
    (epoch,) = (span for span in recorded.spans() if span.name == "epoch")
    assert [f"{link.context.trace_id:032x}" for link in epoch.links] == [trace, trace]
    assert [link.context.trace_flags for link in epoch.links] == [1, 0]
    assert epoch.context is not None
    assert epoch.context.trace_id != epoch.links[0].context.trace_id
    assert (epoch.links[0].attributes or {})["godwit.source"] == "orders"


class Messages(gw.sources.Source):
    """Numbered messages, each with the trace context of its sender."""

    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )
    identity = "messages"
    arrival_time = "at"
    trace_headers = "headers"

    def start(self) -> int:
        return 0

    def latest(self, position: Any, *, limit: int | None = None, until: Any = None) -> Any:
        return 100 if until is None else until

    def splits(self, begin: Any, end: Any, parallelism: int) -> list[gw.sources.Split]:
        half = (begin + end) // 2
        return [
            gw.sources.Split(rows=b - a, size_bytes=100, what="n", payload=(a, b))
            for a, b in ((begin, half), (half, end))
            if b > a
        ]

    def read(self, split: gw.sources.Split, columns: Any) -> Any:
        numbers = range(*split.payload)
        contexts = [f"00-{n + 1:032x}-{n + 1:016x}-01".encode() for n in numbers]
        some: list[Any] = [
            None if n % 3 == 0 else [("other", b"\xff"), ("Traceparent", context), ("empty", None)]
            for n, context in zip(numbers, contexts, strict=True)
        ]
        pairs = [row and [{"key": k, "value": v} for k, v in row] for row in some]
        now = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * len(numbers)
        rows = pa.table([list(numbers), now, pairs], schema=self.schema)
        yield rows.select(columns).to_batches()[0]


def test_trace_contexts_of_messages_come_with_the_latency_of_their_rows(tmp_path: Path) -> None:
    flow = gw.Flow("traced", num_key_groups=4)
    counts = flow.source("messages", Messages()).key_by("n").compute(times=gw.count())
    flow.sink("out", counts, gw.sinks.noop())
    with gw.testing.cluster(flow, executors=2, checkpoint=tmp_path / "ck") as run:
        run.epoch()
        figures = latency_figures(run._driver.epochs.latencies())
    traces = figures["sources"]["messages"]["traces"]
    assert len(traces) == MAX_TRACES
    numbers = sorted(int(trace.split("-")[1], 16) - 1 for trace in traces)
    assert all(number % 3 for number in numbers)
    assert min(numbers) < 50 <= max(numbers), "both splits have some"


def test_migrations_are_spans_and_failures_are_errors(recorded: Recorded) -> None:
    (migration,) = (span for span in recorded.spans() if span.name == "migration")
    assert (migration.start_time, migration.end_time) == (10**9, 35 * 10**8)
    assert migration.attributes is not None
    assert migration.attributes["godwit.key_groups.moved"] == 5
    (failed,) = (s for s in recorded.spans() if s.status.status_code is StatusCode.ERROR)
    assert (failed.name, failed.status.description) == ("epoch", "executor 1 was lost")


def test_a_broken_entry_changes_nothing() -> None:
    recorded = Recorded()
    with pytest.raises(KeyError):
        recorded.recorder.add("progress", {**PROGRESS, "executors": {"0": {}}})
    assert not recorded.spans()
    recorded.recorder.add("event", EVENTS[2].to_dict())
    assert recorded.points().keys() == {"godwit.events", "godwit.rows.left_out"}


def test_an_exporter_of_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(InvalidFlowError, match="http/protobuf only"):
        Telemetry("delays")


def test_what_is_recorded_reaches_a_collector_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        telemetry = Telemetry("delays")
        for kind, values in ENTRIES:
            telemetry.recorder.add(kind, values)
        telemetry.close()
    sent = [
        request
        for body in receiver.bodies("/v1/traces")
        for request in ExportTraceServiceRequest.FromString(body).resource_spans
    ]
    named = {span.name for r in sent for scope in r.scope_spans for span in scope.spans}
    assert named == {"epoch", "plan", "stages", "lanes", "migration"}
    assert any(
        (a.key, a.value.string_value) == ("service.name", "delays")
        for a in sent[0].resource.attributes
    )
    metrics = ExportMetricsServiceRequest.FromString(receiver.bodies("/v1/metrics")[-1])
    values = {
        metric.name: metric.sum.data_points[0]
        for metric in metrics.resource_metrics[0].scope_metrics[0].metrics
        if metric.HasField("sum")
    }
    assert values["godwit.rows.in"].as_int == 2000


def test_a_collector_that_is_away_is_told_of_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    telemetry = Telemetry("delays")
    for kind, values in ENTRIES:
        telemetry.recorder.add(kind, values)
    with caplog.at_level("WARNING"):
        telemetry.close()
        telemetry.close()
    assert caplog.records
