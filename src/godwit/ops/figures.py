"""Metrics derived from journal entries: the definition of which entry changes which metric.

`figures_of` turns an entry into changes of metrics, and `METRICS` says what the metrics are.  How
they are kept and sent is an exporter's business: Prometheus' (`godwit.ops.metrics`) and
OpenTelemetry's (`godwit.ops.telemetry`) differ in little else than their names.  Units are base
units: seconds and bytes.  Labels are bounded: phases, executors that are there, kinds of events,
sources, operators.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from godwit.model.events import DECISIONS
from godwit.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Metric(NamedTuple):
    """A metric of a query."""

    kind: Literal["counter", "gauge", "histogram", "info"]
    meaning: str
    labels: tuple[str, ...]
    otel_name: str  # after OpenTelemetry's conventions; empty: it has no such metric
    unit: str  # in OpenTelemetry's notation


class Figure(NamedTuple):
    """A change of a metric: a counter's increment, a gauge's value, or an observation."""

    metric: str
    value: float | None  # ``None``: the metric has no values any more, and gets those that follow
    labels: tuple[str, ...] = ()


METRICS: Final[Mapping[str, Metric]] = {
    "godwit_query": Metric("info", "The query that the metrics are of", (), "", ""),
    "godwit_last_epoch": Metric(
        "gauge", "The last committed epoch", (), "godwit.epoch.last", "{epoch}"
    ),
    "godwit_last_epoch_end_time_seconds": Metric(
        "gauge", "When it ended, in Unix time", (), "godwit.epoch.last_end", "s"
    ),
    "godwit_epochs": Metric("counter", "Committed epochs", (), "godwit.epochs", "{epoch}"),
    "godwit_epochs_aborted": Metric(
        "counter",
        "Failed attempts at epochs",
        (),
        "godwit.epochs.aborted",
        "{attempt}",
    ),
    "godwit_epoch_seconds": Metric(
        "histogram", "Duration of an epoch", (), "godwit.epoch.duration", "s"
    ),
    "godwit_latency_seconds": Metric(
        "histogram",
        "Time of source rows from their arrival to the end of their epoch's delivery",
        ("source", "arrival"),
        "",
        "",
    ),
    "godwit_epoch_phase_seconds": Metric(
        "counter",
        "Time in phases of epochs, on the driver",
        ("phase",),
        "godwit.epoch.phase.time",
        "s",
    ),
    "godwit_lane_seconds": Metric(
        "counter",
        "Time in phases of lanes, the sum over lanes",
        ("phase",),
        "godwit.lane.time",
        "s",
    ),
    "godwit_rows_in": Metric(
        "counter", "Source rows, after the DataFrame maps", (), "godwit.rows.in", "{row}"
    ),
    "godwit_rows_out": Metric(
        "counter", "Rows given to sinks and operators", (), "godwit.rows.out", "{row}"
    ),
    "godwit_rows_left_out": Metric(
        "counter",
        "Rows that an operator over event time dropped, by reason: late, ahead, untimed",
        ("operator", "reason"),
        "godwit.rows.left_out",
        "{row}",
    ),
    "godwit_rows_unreadable": Metric(
        "counter",
        "Rows that a source could not read",
        ("source",),
        "godwit.rows.unreadable",
        "{row}",
    ),
    "godwit_rows_diverted": Metric(
        "counter",
        "Rows for which a user's function failed, and which were diverted to a sink",
        ("operator",),
        "godwit.rows.diverted",
        "{row}",
    ),
    "godwit_deletes_waited": Metric(
        "counter",
        "Deletes of changes without a row, counted in each epoch in which they wait and their key "
        "changes",
        ("operator",),
        "godwit.deletes.waited",
        "{delete}",
    ),
    "godwit_changelog_bytes": Metric(
        "counter", "Changelog written", (), "godwit.changelog.io", "By"
    ),
    "godwit_snapshot_bytes": Metric("counter", "Snapshots written", (), "godwit.snapshot.io", "By"),
    "godwit_storage_requests": Metric(
        "counter",
        "Requests to the object store of the checkpoint: of epochs, and beside them",
        ("path", "kind"),
        "godwit.storage.requests",
        "{request}",
    ),
    "godwit_crossed_bytes": Metric(
        "counter", "Sent between operators on different executors", (), "godwit.exchange.io", "By"
    ),
    "godwit_state_unread_bytes": Metric(
        "gauge", "State that lanes still have to read", (), "godwit.state.unread", "By"
    ),
    "godwit_state_table_bytes": Metric(
        "gauge",
        "Tables of local stores, with a bound on the memory of state",
        (),
        "godwit.state.tables",
        "By",
    ),
    "godwit_state_evictions": Metric(
        "counter",
        "Key groups whose entries left the local store",
        (),
        "godwit.state.evictions",
        "{key_group}",
    ),
    "godwit_state_fetched_keys": Metric(
        "counter",
        "Keys whose entries were read from the checkpoint",
        (),
        "godwit.state.fetched",
        "{key}",
    ),
    "godwit_key_groups_waiting": Metric(
        "gauge", "Key groups with waiting rows", (), "godwit.key_groups.waiting", "{key_group}"
    ),
    "godwit_key_groups_suspended": Metric(
        "gauge", "Suspended key groups", (), "godwit.key_groups.suspended", "{key_group}"
    ),
    "godwit_key_groups_in_flight": Metric(
        "gauge",
        "Key groups that are being warmed",
        (),
        "godwit.key_groups.in_flight",
        "{key_group}",
    ),
    "godwit_key_groups_planned": Metric(
        "gauge",
        "Key groups still to be moved",
        (),
        "godwit.key_groups.planned",
        "{key_group}",
    ),
    "godwit_executor_cpu_seconds": Metric(
        "counter", "CPU time spent on key groups", ("executor",), "godwit.executor.cpu.time", "s"
    ),
    "godwit_executor_busy_seconds": Metric(
        "counter", "Time busy with key groups", ("executor",), "godwit.executor.busy.time", "s"
    ),
    "godwit_executor_load_seconds": Metric(
        "gauge",
        "Time busy with key groups in the last epoch with input",
        ("executor",),
        "godwit.executor.load",
        "s",
    ),
    "godwit_executor_lanes": Metric(
        "gauge", "Lanes", ("executor",), "godwit.executor.lanes", "{lane}"
    ),
    "godwit_executor_key_groups": Metric(
        "gauge",
        "Key groups owned, of all components",
        ("executor",),
        "godwit.executor.key_groups",
        "{key_group}",
    ),
    "godwit_source_offsets_behind": Metric(
        "gauge",
        "Offsets that the source has and no micro-batch covers, where it says",
        ("source",),
        "godwit.source.lag",
        "{offset}",
    ),
    "godwit_migrations_started": Metric(
        "counter", "Migrations started", (), "godwit.migrations.started", "{migration}"
    ),
    "godwit_migrations_finished": Metric(
        "counter", "Migrations finished", (), "godwit.migrations.finished", "{migration}"
    ),
    "godwit_migrations_cancelled": Metric(
        "counter", "Migrations cancelled", (), "godwit.migrations.cancelled", "{migration}"
    ),
    "godwit_key_groups_moved": Metric(
        "counter", "Key groups that migrations moved", (), "godwit.key_groups.moved", "{key_group}"
    ),
    "godwit_decisions": Metric(
        "counter", "Decisions of the controller", ("kind",), "godwit.decisions", "{decision}"
    ),
    "godwit_load_distance_ratio": Metric(
        "gauge",
        "Largest distance of an executor's load from the mean, as a share of it, last period",
        (),
        "godwit.load.distance",
        "1",
    ),
    "godwit_arrival_rows_per_second": Metric(
        "gauge", "Source rows that arrived, last period", (), "godwit.arrival.rate", "{row}/s"
    ),
    "godwit_executor_speed_ratio": Metric(
        "gauge",
        "Speed of executors that are not as fast as the rest, last period",
        ("executor",),
        "godwit.executor.speed",
        "1",
    ),
    "godwit_events": Metric("counter", "Events", ("kind",), "godwit.events", "{event}"),
}
"""Name as in Prometheus → metric; counters get ``_total`` where they are shown."""

BUCKETS_S: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the buckets of histograms, in seconds."""

_COUNTED: Final = {
    "numInputRows": "godwit_rows_in",
    "numOutputRows": "godwit_rows_out",
    "changelogBytes": "godwit_changelog_bytes",
    "snapshotBytes": "godwit_snapshot_bytes",
    "crossedBytes": "godwit_crossed_bytes",
    "evictedKeyGroups": "godwit_state_evictions",
    "fetchedKeys": "godwit_state_fetched_keys",
}
_SHOWN: Final = {
    "epoch": "godwit_last_epoch",
    "unreadStateBytes": "godwit_state_unread_bytes",
    "stateTableBytes": "godwit_state_table_bytes",
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


def figures_of(kind: str, values: Mapping[str, Any]) -> list[Figure]:
    """Return the changes of metrics that follow from a journal entry with this kind and values.

    Entries of other kinds, such as loads of key groups, have no bounded labels, and no figures.
    """
    reader = _READERS.get(kind)
    return [] if reader is None else list(reader(values))  # all or, of a broken entry, none


def _of_progress(values: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures of epochs, rows and phases, from an entry ``progress``."""
    took = values["durationMs"]
    yield Figure("godwit_epochs", 1)
    yield Figure("godwit_epoch_seconds", took["epoch"] / 1e3)
    began_s = datetime.fromisoformat(values["timestamp"]).timestamp()
    yield Figure("godwit_last_epoch_end_time_seconds", began_s + took["epoch"] / 1e3)
    for phase, ms in took.items():
        if phase != "epoch":
            yield Figure("godwit_epoch_phase_seconds", ms / 1e3, (phase,))
    for phase, ms in values["laneMs"].items():
        yield Figure("godwit_lane_seconds", ms / 1e3, (phase,))
    for path, counts in values.get("requests", {}).items():
        for request, count in counts.items():
            yield Figure("godwit_storage_requests", count, (path, request))
    for figure, name in (_COUNTED | _SHOWN).items():
        yield Figure(name, values[figure])
    yield from _of_executors(values)


def _of_executors(values: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures that are one per executor, from an entry ``progress``."""
    executors = values["executors"]
    yield Figure("godwit_executor_lanes", None)  # executors that are gone are no longer shown
    yield Figure("godwit_executor_key_groups", None)
    for executor, figures in executors.items():
        yield Figure("godwit_executor_cpu_seconds", figures["cpuMs"] / 1e3, (executor,))
        yield Figure("godwit_executor_busy_seconds", figures["busyMs"] / 1e3, (executor,))
        yield Figure("godwit_executor_lanes", figures["lanes"], (executor,))
        owned = sum(counts.get(executor, 0) for counts in values["keyGroups"].values())
        yield Figure("godwit_executor_key_groups", owned, (executor,))
    if values["batchId"] is not None:  # an epoch with input
        yield Figure("godwit_executor_load_seconds", None)
        for executor, figures in executors.items():
            yield Figure("godwit_executor_load_seconds", figures["busyMs"] / 1e3, (executor,))


def _of_event(values: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the count of an event, and the figures that it carries."""
    kind = values["kind"]
    yield Figure("godwit_events", 1, (kind,))
    if kind in DECISIONS:
        yield Figure("godwit_decisions", 1, (kind,))
    if kind in _OF_EVENTS:
        yield Figure(_OF_EVENTS[kind], 1)
    if kind in _OF_MIGRATIONS:  # a scaling's end says again what its migrations moved
        yield Figure("godwit_key_groups_moved", values["moved"])
    match kind:
        case "LoadMeasured":
            yield Figure("godwit_load_distance_ratio", values["load_distance"])
            yield Figure("godwit_arrival_rows_per_second", values["arrival_per_s"])
            yield Figure("godwit_executor_speed_ratio", None)
            for executor, speed in values["speeds"].items():
                yield Figure("godwit_executor_speed_ratio", speed, (executor,))
        case "RowsLeftOut":
            operator = printable(values["operator"])
            for reason in _LEFT_OUT:
                yield Figure("godwit_rows_left_out", values[reason], (operator, reason))
        case "RowsUnreadable":
            source = printable(values["source"])
            yield Figure("godwit_rows_unreadable", values["rows"], (source,))
        case "CallsFailed":
            operator = printable(values["operator"])
            yield Figure("godwit_rows_diverted", values["rows"], (operator,))
        case "DeletesWaited":
            operator = printable(values["operator"])
            yield Figure("godwit_deletes_waited", values["deletes"], (operator,))


def _of_sources(values: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the sources' lag."""
    yield Figure("godwit_source_offsets_behind", None)
    for place, source in enumerate(values["sources"]):
        if source["behind"] is not None:
            shown = printable(source["description"])  # text of any kind cannot be sent
            yield Figure("godwit_source_offsets_behind", source["behind"], (f"{place} {shown}",))


_READERS: Final = {"progress": _of_progress, "event": _of_event, "sources": _of_sources}
