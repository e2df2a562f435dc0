"""OpenTelemetry of a query: its metrics, and a span for each epoch.

Metrics are those of `godwit.ops.figures`, under names after OpenTelemetry's conventions.  A trace
is one epoch: its phases, one after the other, and below the phase of the lanes, for each executor,
the mean time that its lanes were busy.  A migration is a span from its start to its end.

Providers that the application has configured are used; otherwise those of the SDK are, with
exporters of OTLP over HTTP, which read the variables ``OTEL_*`` of the environment.  Exporters have
threads and bounded queues of their own, so a collector that is slow or away costs an epoch nothing.

The span of an epoch links to the traces of some of its rows, where messages have a W3C header
``traceparent`` and the flow reads headers: an epoch has many rows, and a span has one parent.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Observation
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from godwit.model.errors import InvalidFlowError
from godwit.model.text import printable
from godwit.ops.figures import BUCKETS_S, METRICS, figures_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, MeterProvider
    from opentelemetry.trace import TracerProvider

_logger = logging.getLogger("godwit")
_PROPAGATOR: Final = TraceContextTextMapPropagator()

_SCOPE: Final = "godwit"
_LANES: Final = "stages"  # the phase in which lanes run
_CLOSING_S: Final = 5.0
_MAX_MIGRATIONS: Final = 1_000  # that are open
_LATENCY: Final = "godwit.latency"  # quantiles, since an SDK takes no rows that are counted already
_QUANTILES: Final = ("p50", "p95", "p99", "max")
_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"


class TelemetryRecorder:
    """Records a query's journal entries as metrics and spans.

    `flow`: name of the flow, an attribute of all that is recorded.
    """

    def __init__(self, flow: str, meters: MeterProvider, tracers: TracerProvider) -> None:
        self._common_attributes = {"godwit.flow": printable(flow)}
        meter = meters.get_meter(_SCOPE)
        self._tracer = tracers.get_tracer(_SCOPE)
        self._instruments: dict[str, Any] = {}
        # gauge → labels → value
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {_LATENCY: {}}
        self._migrations: dict[str, trace.Span] = {}
        for name, metric in METRICS.items():
            about = {"unit": metric.unit, "description": metric.meaning}
            if not metric.otel_name:
                continue
            if metric.kind == "gauge":
                self._gauges[name] = {}
                observe = self._observer_of_gauge(name, metric.labels)
                meter.create_observable_gauge(metric.otel_name, [observe], **about)
            elif metric.kind == "histogram":
                self._instruments[name] = meter.create_histogram(
                    metric.otel_name, explicit_bucket_boundaries_advisory=BUCKETS_S, **about
                ).record
            else:
                self._instruments[name] = meter.create_counter(metric.otel_name, **about).add
        meter.create_observable_gauge(
            _LATENCY,
            [self._observer_of_gauge(_LATENCY, ("quantile",))],
            unit="s",
            description="Latency of the rows of the last epoch with rows, as quantiles",
        )

    def _observer_of_gauge(
        self, gauge: str, labels: tuple[str, ...]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return the function that a reader calls for a gauge's values."""

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for values, value in self._gauges[gauge].copy().items():
                yield Observation(value, self._label_attributes(labels, values))

        return observe

    def _label_attributes(self, labels: tuple[str, ...], values: tuple[str, ...]) -> dict[str, str]:
        """Return labels of a metric as attributes."""
        named = zip(labels, values, strict=True)
        return {**self._common_attributes, **{f"godwit.{label}": value for label, value in named}}

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Record an entry of the journal: its kind, as in ``"progress"``, and values."""
        gauges: dict[str, dict[tuple[str, ...], float]] = {}
        for figure in figures_of(kind, values):
            if figure.metric in self._gauges:
                if figure.value is None:
                    gauges[figure.metric] = {}
                else:
                    before = self._gauges[figure.metric]
                    gauges.setdefault(figure.metric, dict(before))[figure.labels] = figure.value
            elif figure.value is not None:
                labels = METRICS[figure.metric].labels
                attributes = self._label_attributes(labels, figure.labels)
                self._instruments[figure.metric](figure.value, attributes)
        if kind == "progress" and values["numInputRows"]:
            latency = values.get("latencyMs") or {}
            gauges[_LATENCY] = {
                (name,): latency[name] / 1e3 for name in _QUANTILES if latency.get(name) is not None
            }
        self._gauges.update(
            gauges
        )  # a reader on another thread sees all executors, or all of before
        if kind == "progress":
            self._trace_epoch(values)
        elif kind == "event":
            self._trace_event(values)

    def flush(self) -> None:
        """No-op: exporters send at intervals of their own."""

    def _trace_epoch(self, values: Mapping[str, Any]) -> None:
        """Record the span of an epoch and those of its phases, from an entry ``progress``."""
        took_ms = values["durationMs"]
        began_ns = int(datetime.fromisoformat(values["timestamp"]).timestamp() * 1e9)
        epoch = self._tracer.start_span(
            "epoch",
            start_time=began_ns,
            links=list(_trace_links(values)),
            attributes={
                **self._common_attributes,
                "godwit.epoch": values["epoch"],
                "godwit.rows.in": values["numInputRows"],
                "godwit.rows.out": values["numOutputRows"],
                "godwit.changelog.io": values["changelogBytes"],
            },
        )
        epoch_context = trace.set_span_in_context(epoch)
        at_ns = began_ns
        for phase, ms in took_ms.items():
            if phase in {"epoch", "triggerExecution"}:
                continue
            span = self._tracer.start_span(
                phase, epoch_context, start_time=at_ns, attributes=self._common_attributes
            )
            if phase == _LANES:
                for of_lanes, spent_ms in values.get("laneMs", {}).items():
                    span.set_attribute(f"godwit.lanes.{of_lanes}.time", spent_ms / 1e3)
                self._trace_lanes(values, span, at_ns, ms)
            if phase == "deliver":
                self._trace_sinks(values, span, at_ns)
            at_ns += int(ms * 1e6)
            span.end(at_ns)
        epoch.end(began_ns + int(took_ms["epoch"] * 1e6))

    def _trace_lanes(
        self, values: Mapping[str, Any], stages: trace.Span, at_ns: int, ms: float
    ) -> None:
        """Record a span for each executor, as long as its lanes were busy on average."""
        stages_context = trace.set_span_in_context(stages)
        for executor, figures in values["executors"].items():
            if not figures["busyMs"]:
                continue
            span = self._tracer.start_span(
                "lanes",
                stages_context,
                start_time=at_ns,
                attributes={
                    **self._common_attributes,
                    "godwit.executor": executor,
                    "godwit.executor.lanes": figures["lanes"],
                    "godwit.executor.cpu.time": figures["cpuMs"] / 1e3,
                },
            )
            busy_ms = min(ms, figures["busyMs"] / max(1, figures["lanes"]))
            span.end(at_ns + int(busy_ms * 1e6))

    def _trace_sinks(self, values: Mapping[str, Any], deliver: trace.Span, at_ns: int) -> None:
        """Record a span for each sink, in the order of their deliveries."""
        deliver_context, took_ms = trace.set_span_in_context(deliver), values.get("sinkMs", {})
        for sink in dict.fromkeys((*took_ms, *values["sinkRows"])):
            rows = values["sinkRows"].get(sink, 0)
            span = self._tracer.start_span(
                "sink",
                deliver_context,
                start_time=at_ns,
                attributes={
                    **self._common_attributes,
                    "godwit.sink": printable(sink),
                    "godwit.rows": rows,
                },
            )
            at_ns += int(took_ms.get(sink, 0.0) * 1e6)
            span.end(at_ns)

    def _trace_event(self, values: Mapping[str, Any]) -> None:
        """Record migrations, failed attempts at epochs, and the failure of the query."""
        kind, at_ns = values["kind"], int(values["at_s"] * 1e9)
        if kind == "MigrationStarted" and len(self._migrations) < _MAX_MIGRATIONS:
            self._migrations[values["migration"]] = self._tracer.start_span(
                "migration",
                start_time=at_ns,
                attributes={**self._common_attributes, "godwit.component": values["component"]},
            )
        elif kind in {"MigrationFinished", "MigrationCancelled"}:
            if (span := self._migrations.pop(values["migration"], None)) is not None:
                span.set_attribute("godwit.key_groups.moved", values["moved"])
                span.set_attribute("godwit.cancelled", kind == "MigrationCancelled")
                span.end(at_ns)
        elif kind in {"EpochAborted", "QueryFailed"}:
            name = "epoch" if kind == "EpochAborted" else "query"
            span = self._tracer.start_span(
                name, start_time=at_ns, attributes=self._common_attributes
            )
            error = printable(values["reason" if kind == "EpochAborted" else "error"])
            span.set_status(Status(StatusCode.ERROR, error))
            span.end(at_ns)


def _trace_links(values: Mapping[str, Any]) -> Iterator[trace.Link]:
    """Yield links to the traces of some of an epoch's rows, from an entry ``progress``."""
    sources = (values.get("latencyMs") or {}).get("sources", {})
    for source, figures in sources.items():
        for traceparent in figures.get("traces", ()):
            context = _PROPAGATOR.extract({"traceparent": traceparent}, Context())
            parent = trace.get_current_span(context).get_span_context()
            if parent.is_valid:
                yield trace.Link(parent, {"godwit.source": printable(source)})


class Telemetry:
    """OpenTelemetry of one query; raises `InvalidFlowError` if it is configured for a protocol.

    The protocol is HTTP, unless the application has providers of its own.
    """

    url = ""  # the exporters' own

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._own_providers: list[Any] = []
        self.recorder = TelemetryRecorder(flow, self._meter_provider(), self._tracer_provider())

    def _meter_provider(self) -> MeterProvider:
        """Return the application's provider of meters, or one of the SDK's."""
        provider = metrics.get_meter_provider()
        if not _is_default(provider):
            return provider
        self._check_protocol()
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter,
        )
        from opentelemetry.sdk.metrics import MeterProvider as OwnMeters  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415

        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        own = OwnMeters([reader], resource=self._process_resource(), shutdown_on_exit=False)
        self._own_providers.append(own)
        return own

    def _tracer_provider(self) -> TracerProvider:
        """Return the application's provider of tracers, or one of the SDK's."""
        provider = trace.get_tracer_provider()
        if not _is_default(provider):
            return provider
        self._check_protocol()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace import TracerProvider as OwnTracers  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        own = OwnTracers(resource=self._process_resource(), shutdown_on_exit=False)
        own.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._own_providers.append(own)
        return own

    def _process_resource(self) -> Any:
        """Return the SDK's resource of the process; by default the service is the flow."""
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        return Resource.create({} if named else {"service.name": printable(self._flow)})

    def _check_protocol(self) -> None:
        """Raise if the environment requires a protocol that Godwit does not support."""
        protocol = os.environ.get(_PROTOCOL, "http/protobuf")
        if protocol != "http/protobuf":
            raise InvalidFlowError(
                f"{_PROTOCOL} is {protocol!r}; Godwit exports by http/protobuf only.",
                remedy="Unset it and give an endpoint for OTLP over HTTP, or configure providers "
                "in the application (as by opentelemetry-instrument), which are then used.",
            )

    def close(self) -> None:
        """Send the rest if the collector accepts it within seconds; idempotent."""
        closing = threading.Thread(target=self._shut_down, name="godwit-telemetry-end", daemon=True)
        closing.start()
        closing.join(_CLOSING_S)
        if closing.is_alive():
            _logger.warning(
                "The last telemetry of flow %r could not be sent within %g s.",
                self._flow,
                _CLOSING_S,
            )

    def _shut_down(self) -> None:
        """Flush and end the providers that are not the application's."""
        while self._own_providers:
            self._own_providers.pop().shutdown()


def _is_default(provider: object) -> bool:
    """Return whether a provider is the API's own, which records nothing."""
    return type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))
