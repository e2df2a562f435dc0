"""Prometheus metrics of a query, and the server that exposes them.

The metrics take exactly what the journal takes, on the same thread (see
`EventDispatcher.add_recorder`), so nothing is measured twice and an epoch pays nothing for them.
Units are Prometheus' base units: seconds and bytes.  Labels are bounded: phases, executors that
are there, kinds of events, sources.

Nothing else of the process can be reached by the port, and it is bound to the loopback address
unless the user says otherwise.  Connections are few and short (`godwit.ops.server`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, make_wsgi_app
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from godwit.model.events import DECISIONS
from godwit.model.latency import LatencyHistogram
from godwit.model.text import printable
from godwit.ops.server import BoundedServer, serving_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.metrics_core import Metric

METRICS: Final[Mapping[str, tuple[type[MetricWrapperBase], str, tuple[str, ...]]]] = {
    "godwit_query": (Info, "The query that the metrics are of", ()),
    "godwit_last_epoch": (Gauge, "The last committed epoch", ()),
    "godwit_last_epoch_end_time_seconds": (Gauge, "When it ended, in Unix time", ()),
    "godwit_epochs": (Counter, "Committed epochs", ()),
    "godwit_epochs_aborted": (Counter, "Attempts at epochs that came to nothing", ()),
    "godwit_epoch_seconds": (Histogram, "Duration of an epoch", ()),
    "godwit_latency_seconds": (
        Histogram,
        "Time of source rows from their arrival to the end of their epoch's delivery",
        ("source", "arrival"),
    ),
    "godwit_epoch_phase_seconds": (Counter, "Time in phases of epochs, on the driver", ("phase",)),
    "godwit_lane_seconds": (Counter, "Time in phases of lanes, the sum over lanes", ("phase",)),
    "godwit_rows_in": (Counter, "Source rows, after the DataFrame maps", ()),
    "godwit_rows_out": (Counter, "Rows given to sinks and operators", ()),
    "godwit_rows_left_out": (
        Counter,
        "Rows that an operator over event time left out, by the reason: late, ahead, untimed",
        ("operator", "reason"),
    ),
    "godwit_rows_unreadable": (Counter, "Rows that a source could not read", ("source",)),
    "godwit_changelog_bytes": (Counter, "Changelog written", ()),
    "godwit_snapshot_bytes": (Counter, "Snapshots written", ()),
    "godwit_crossed_bytes": (Counter, "Sent between operators on different executors", ()),
    "godwit_key_groups_waiting": (Gauge, "Key groups with rows that wait", ()),
    "godwit_key_groups_suspended": (Gauge, "Key groups that do not run", ()),
    "godwit_key_groups_in_flight": (Gauge, "Key groups that are being warmed", ()),
    "godwit_key_groups_planned": (Gauge, "Key groups that are still to be moved", ()),
    "godwit_executor_cpu_seconds": (Counter, "CPU time spent on key groups", ("executor",)),
    "godwit_executor_busy_seconds": (Counter, "Time busy with key groups", ("executor",)),
    "godwit_executor_load_seconds": (
        Gauge,
        "Time busy with key groups in the last epoch with input",
        ("executor",),
    ),
    "godwit_executor_lanes": (Gauge, "Lanes", ("executor",)),
    "godwit_executor_key_groups": (Gauge, "Key groups owned, of all components", ("executor",)),
    "godwit_source_offsets_behind": (
        Gauge,
        "Offsets that the source has and no micro-batch covers, where it says",
        ("source",),
    ),
    "godwit_migrations_started": (Counter, "Migrations started", ()),
    "godwit_migrations_finished": (Counter, "Migrations finished", ()),
    "godwit_migrations_cancelled": (Counter, "Migrations cancelled", ()),
    "godwit_key_groups_moved": (Counter, "Key groups that migrations moved", ()),
    "godwit_decisions": (Counter, "Decisions of the controller", ("kind",)),
    "godwit_load_distance_ratio": (
        Gauge,
        "Largest distance of an executor's load from the mean, as a share of it, last period",
        (),
    ),
    "godwit_arrival_rows_per_second": (Gauge, "Source rows that arrived, last period", ()),
    "godwit_executor_speed_ratio": (
        Gauge,
        "Speed of executors that are not as fast as the rest, last period",
        ("executor",),
    ),
    "godwit_events": (Counter, "Events", ("kind",)),
}
"""Name (counters get ``_total`` where they are shown) → kind, meaning, labels."""

_LATENCY: Final = "godwit_latency_seconds"
_LATENCY_BUCKETS_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    *(1800.0, 3600.0, 86400.0),
)
_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNTED: Final = {
    "numInputRows": "godwit_rows_in",
    "numOutputRows": "godwit_rows_out",
    "changelogBytes": "godwit_changelog_bytes",
    "snapshotBytes": "godwit_snapshot_bytes",
    "crossedBytes": "godwit_crossed_bytes",
}
_SHOWN: Final = {
    "epoch": "godwit_last_epoch",
    "waitingKeyGroups": "godwit_key_groups_waiting",
    "suspendedKeyGroups": "godwit_key_groups_suspended",
    "inFlightKeyGroups": "godwit_key_groups_in_flight",
    "plannedMoves": "godwit_key_groups_planned",
}
_OF_EVENTS: Final = {
    "EpochAborted": "godwit_epochs_aborted",
    "MigrationStarted": "godwit_migrations_started",
    "MigrationFinished": "godwit_migrations_finished",
    "MigrationCancelled": "godwit_migrations_cancelled",
}
_OF_MIGRATIONS: Final = ("MigrationFinished", "MigrationCancelled")
_LEFT_OUT: Final = ("late", "ahead", "untimed")
_OF_EXECUTORS = (
    "godwit_executor_load_seconds",
    "godwit_executor_lanes",
    "godwit_executor_key_groups",
)


class _Latencies(Collector):
    """Latencies of rows since the start of the run, as a histogram for each source."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], LatencyHistogram] = {}

    def add(self, sources: Mapping[str, Any]) -> None:
        """Add the latencies of an epoch's rows, by source."""
        for source, values in sources.items():
            labels = (printable(source), values["arrival"])
            before = self._of.get(labels, LatencyHistogram())
            more = LatencyHistogram.from_dict(values)
            self._of[labels] = LatencyHistogram.merged((before, more))

    def collect(self) -> Iterator[Metric]:
        """Yield the latency histograms when Prometheus scrapes them."""
        _, meaning, labels = METRICS[_LATENCY]
        family = HistogramMetricFamily(_LATENCY, meaning, labels=labels)
        for key, histogram in sorted(self._of.items()):
            ends = [*map(str, _LATENCY_BUCKETS_S), "+Inf"]
            rows = [*histogram.below(_LATENCY_BUCKETS_S), histogram.rows]
            family.add_metric(key, list(zip(ends, rows, strict=True)), histogram.sum_s)
        yield family


class Metrics:
    """The metrics of one query."""

    def __init__(self, flow: str) -> None:
        self.registry = CollectorRegistry()  # holds the metrics, and nothing of the process
        self._metrics: dict[str, Any] = {}
        for name, (kind, meaning, labels) in METRICS.items():
            more: dict[str, Any] = {"buckets": _BUCKETS_S} if kind is Histogram else {}
            if name == _LATENCY:  # rows come counted, which `Histogram` does not take
                continue
            self._metrics[name] = kind(name, meaning, labels, registry=self.registry, **more)
        self._latencies = _Latencies()
        self.registry.register(self._latencies)
        self._metrics["godwit_query"].info({"flow": flow})

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Update metrics from a journal entry: its kind, as in ``"progress"``, and values."""
        match kind:
            case "progress":
                self._update_progress(values)
            case "event":
                self._update_from_event(values)
            case "sources":
                self._update_lag(values)
            case "latency":
                self._latencies.add(values["sources"])
            case _:
                pass  # loads of key groups, which have no bounded labels

    def flush(self) -> None:
        """No-op: metrics are always current."""

    def _update_progress(self, values: Mapping[str, Any]) -> None:
        """Update the metrics of epochs, rows and phases, from an entry ``progress``."""
        metrics = self._metrics
        took = values["durationMs"]
        metrics["godwit_epochs"].inc()
        metrics["godwit_epoch_seconds"].observe(took["epoch"] / 1e3)
        began_s = datetime.fromisoformat(values["timestamp"]).timestamp()
        metrics["godwit_last_epoch_end_time_seconds"].set(began_s + took["epoch"] / 1e3)
        for phase, ms in took.items():
            if phase != "epoch":
                metrics["godwit_epoch_phase_seconds"].labels(phase).inc(ms / 1e3)
        for phase, ms in values["laneMs"].items():
            metrics["godwit_lane_seconds"].labels(phase).inc(ms / 1e3)
        for figure, name in _COUNTED.items():
            metrics[name].inc(values[figure])
        for figure, name in _SHOWN.items():
            metrics[name].set(values[figure])
        self._update_executors(values)

    def _update_executors(self, values: Mapping[str, Any]) -> None:
        """Update the metrics that have one value per executor, from an entry ``progress``."""
        metrics, executors = self._metrics, values["executors"]
        with_input = values["batchId"] is not None
        for name in _OF_EXECUTORS:
            if with_input or name != "godwit_executor_load_seconds":
                metrics[name].clear()  # so that executors that are gone are no longer shown
        for executor, figures in executors.items():
            metrics["godwit_executor_cpu_seconds"].labels(executor).inc(figures["cpuMs"] / 1e3)
            metrics["godwit_executor_busy_seconds"].labels(executor).inc(figures["busyMs"] / 1e3)
            metrics["godwit_executor_lanes"].labels(executor).set(figures["lanes"])
            owned = sum(counts.get(executor, 0) for counts in values["keyGroups"].values())
            metrics["godwit_executor_key_groups"].labels(executor).set(owned)
            if with_input:
                load_s = figures["busyMs"] / 1e3
                metrics["godwit_executor_load_seconds"].labels(executor).set(load_s)

    def _update_from_event(self, values: Mapping[str, Any]) -> None:
        """Count an event, and update the metrics that it carries."""
        kind = values["kind"]
        self._metrics["godwit_events"].labels(kind).inc()
        if kind in DECISIONS:
            self._metrics["godwit_decisions"].labels(kind).inc()
        if kind == "LoadMeasured":
            self._update_measurements(values)
        if kind in _OF_EVENTS:
            self._metrics[_OF_EVENTS[kind]].inc()
        if kind == "RowsLeftOut":
            rows = self._metrics["godwit_rows_left_out"]
            for reason in _LEFT_OUT:
                rows.labels(printable(values["operator"]), reason).inc(values[reason])
        if kind == "RowsUnreadable":
            unreadable = self._metrics["godwit_rows_unreadable"]
            unreadable.labels(printable(values["source"])).inc(values["rows"])
        if kind in _OF_MIGRATIONS:  # a scaling's end says again what its migrations moved
            self._metrics["godwit_key_groups_moved"].inc(values["moved"])

    def _update_measurements(self, values: Mapping[str, Any]) -> None:
        """Update the metrics of the controller's measurements."""
        self._metrics["godwit_load_distance_ratio"].set(values["load_distance"])
        self._metrics["godwit_arrival_rows_per_second"].set(values["arrival_per_s"])
        speeds = self._metrics["godwit_executor_speed_ratio"]
        speeds.clear()
        for executor, speed in values["speeds"].items():
            speeds.labels(executor).set(speed)

    def _update_lag(self, values: Mapping[str, Any]) -> None:
        """Update the metrics of the sources' lag."""
        metric = self._metrics["godwit_source_offsets_behind"]
        metric.clear()
        for place, source in enumerate(values["sources"]):
            if source["behind"] is not None:
                shown = printable(source["description"])  # text of any kind cannot be sent
                metric.labels(f"{place} {shown}").set(source["behind"])


class MetricsServer:
    """Serves a query's metrics in the format requested.

    Raises `InvalidFlowError` if the port is taken, or there is no such address.
    """

    def __init__(self, flow: str, *, host: str, port: int) -> None:
        self.recorder = Metrics(flow)  # the metrics that are served
        app = make_wsgi_app(self.recorder.registry)
        try:
            self._server = BoundedServer(app, host=host, port=port, name="godwit-metrics")
        except (OSError, UnicodeError) as error:
            raise serving_error("Metrics", host, port, error, setting="metrics_") from error
        self.url = f"{self._server.url}/metrics"  # where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the metrics port; idempotent."""
        self._server.close()
