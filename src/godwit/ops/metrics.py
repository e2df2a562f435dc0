"""Prometheus metrics of a query, and the server that exposes them.

The metrics take exactly what the journal takes, on the same thread (see
`EventDispatcher.add_recorder`), so nothing is measured twice and an epoch pays nothing for them.
`godwit.ops.figures` says which entry changes which metric.

Nothing else of the process can be reached by the port, and it is bound to the loopback address
unless the user says otherwise.  Connections are few and short (`godwit.ops.server`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, make_wsgi_app
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from godwit.model.latency import LatencyHistogram
from godwit.model.text import printable
from godwit.ops.figures import BUCKETS_S, METRICS, figures_of
from godwit.ops.health import with_health
from godwit.ops.server import BoundedServer, serving_error
from godwit.ops.shared_ports import join_port, leave_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.metrics_core import Metric

_KINDS: Final[Mapping[str, type[MetricWrapperBase]]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": Histogram,
    "info": Info,
}
_LATENCY: Final = "godwit_latency_seconds"
_LATENCY_BUCKETS_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    *(1800.0, 3600.0, 86400.0),
)


class _Latencies(Collector):
    """Latencies of rows since the start of the run, as a histogram for each source."""

    def __init__(self) -> None:
        self._histograms: dict[tuple[str, str], LatencyHistogram] = {}

    def add(self, sources: Mapping[str, Any]) -> None:
        """Add the latencies of an epoch's rows, by source."""
        for source, values in sources.items():
            labels = (printable(source), values["arrival"])
            before = self._histograms.get(labels, LatencyHistogram())
            more = LatencyHistogram.from_dict(values)
            self._histograms[labels] = LatencyHistogram.merged((before, more))

    def collect(self) -> Iterator[Metric]:
        """Yield the latency histograms when Prometheus scrapes them."""
        _, meaning, labels, *_ = METRICS[_LATENCY]
        family = HistogramMetricFamily(_LATENCY, meaning, labels=labels)
        for key, histogram in sorted(self._histograms.items()):
            ends = [*map(str, _LATENCY_BUCKETS_S), "+Inf"]
            rows = [*histogram.below(_LATENCY_BUCKETS_S), histogram.rows]
            family.add_metric(key, list(zip(ends, rows, strict=True)), histogram.sum_s)
        yield family


class Metrics:
    """The metrics of one query."""

    def __init__(self, flow: str) -> None:
        self.registry = CollectorRegistry()  # holds the metrics, and nothing of the process
        self._metrics: dict[str, Any] = {}
        for name, (kind, meaning, labels, *_) in METRICS.items():
            more: dict[str, Any] = {"buckets": BUCKETS_S} if kind == "histogram" else {}
            if name == _LATENCY:  # rows come counted, which `Histogram` does not take
                continue
            self._metrics[name] = _KINDS[kind](
                name, meaning, labels, registry=self.registry, **more
            )
        self._latencies = _Latencies()
        self.registry.register(self._latencies)
        self._metrics["godwit_query"].info({"flow": flow})

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Update metrics from a journal entry: its kind, as in ``"progress"``, and values."""
        if kind == "latency":
            self._latencies.add(values["sources"])
        for figure in figures_of(kind, values):
            metric = self._metrics[figure.metric]
            if figure.value is None:
                metric.clear()
                continue
            value = metric.labels(*figure.labels) if figure.labels else metric
            match METRICS[figure.metric].kind:
                case "counter":
                    value.inc(figure.value)
                case "gauge":
                    value.set(figure.value)
                case _:
                    value.observe(figure.value)

    def flush(self) -> None:
        """No-op: metrics are always current."""


class _Queries(CollectorRegistry):
    """The metrics of the queries that share a port.

    Once a second query has joined, every series has the label ``query``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changing = threading.Lock()
        self._registries: dict[str, CollectorRegistry] = {}
        self._is_labelled = False

    def add(self, query: str, registry: CollectorRegistry) -> None:
        """Add the metrics of a query."""
        with self._changing:
            self._registries[query] = registry
            self._is_labelled = self._is_labelled or len(self._registries) > 1

    def remove(self, query: str) -> None:
        """Remove the metrics of a query."""
        with self._changing:
            self._registries.pop(query, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all queries, each once."""
        with self._changing:
            registries, labelled = dict(self._registries), self._is_labelled
        families: dict[str, Metric] = {}
        for query, registry in registries.items():
            for family in registry.collect():
                whole = families.setdefault(family.name, family)
                samples = family.samples
                if labelled:
                    samples = [
                        sample._replace(labels={**sample.labels, "query": printable(query)})
                        for sample in samples
                    ]
                whole.samples = samples if whole is family else [*whole.samples, *samples]
        yield from families.values()


class MetricsServer:
    """Serves a query's metrics in the format requested.

    Queries of this process that ask for the same port share it. Raises `InvalidFlowError` if the
    port is in use, or there is no such address.
    """

    def __init__(self, flow: str, *, host: str, port: int, query: str = "") -> None:
        self.recorder = Metrics(flow)  # the metrics that are served

        def open_server(queries: _Queries) -> BoundedServer:
            """Open the port of the metrics of queries."""
            app = with_health(make_wsgi_app(queries))
            return BoundedServer(app, host=host, port=port, name="godwit-metrics")

        try:
            self._port = join_port("metrics", host, port, _Queries, open_server)
        except (OSError, UnicodeError) as error:
            raise serving_error("Metrics", host, port, error, setting="metrics_") from error
        self._query, self._open = query or flow, True
        self._port.parts.add(self._query, self.recorder.registry)
        self.url = f"{self._port.server.url}/metrics"  # where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the metrics port, unless another query uses it; idempotent."""
        if self._open:
            self._open = False
            self._port.parts.remove(self._query)
            leave_port(self._port)
